"""The same examples of property tests on every machine (`--hypothesis-profile=explore`: new ones); one browser for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from .browser import chromium

# Examples must not depend on which modules happen to be loaded, whose literals hypothesis would draw from.
providers._get_local_constants = lambda: providers._local_constants

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started
