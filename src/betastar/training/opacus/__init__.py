"""Everything that touches what Opacus does not promise, and an accountant for it."""

from betastar.training.opacus import accountant as accountant  # so that Opacus knows the accountant by its name
