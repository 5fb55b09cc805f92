"""Property tests try the same examples on every machine; `--hypothesis-profile=explore` tries new ones."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("fixed")
