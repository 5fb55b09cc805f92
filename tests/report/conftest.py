"""Small runs to report on, trained once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .runs import trained


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, watched."""
    return trained(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with gap clipping."""
    return trained(tmp_path_factory.mktemp("clipped"), gap=0.1)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))
