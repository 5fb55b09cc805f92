"""Everything that touches what Opacus does not promise, and an accountant for it."""
