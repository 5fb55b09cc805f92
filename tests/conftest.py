"""Property tests try the same examples on every machine; `--hypothesis-profile=explore` tries new ones."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.internal.conjecture import providers

# Examples must not depend on which modules happen to be loaded, whose literals hypothesis would draw from.
providers._get_local_constants = lambda: providers._local_constants

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("fixed")
