"""The same examples of property tests on every machine (`--hypothesis-profile=explore`: new ones); one browser for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from .browser import chromium

if TYPE_CHECKING:
    from betastar.runs import Config, RunFolder

    from .trained_runs import TrainedRuns

# Examples must not depend on which modules happen to be loaded, whose literals hypothesis would draw from.
providers._get_local_constants = lambda: providers._local_constants

settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> TrainedRuns:
    """Tables and runs that are made once a session."""
    from .trained_runs import TrainedRuns

    return TrainedRuns(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def trained(runs: TrainedRuns, tmp_path: Path) -> Callable[[Config], RunFolder]:
    """What gives the test a copy of the run of a configuration."""

    def copied(config: Config) -> RunFolder:
        return runs.copy(config, tmp_path / "trained" / str(len(list((tmp_path / "trained").glob("*")))))

    return copied
