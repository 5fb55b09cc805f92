"""The page about attackers on Adult: what is committed is what its files say, and these say what they must."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from studies.audits.__main__ import GAMES, ordered, write

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "studies" / "audits" / "results"


def test_the_page_is_what_its_files_say(tmp_path: Path) -> None:
    for name in GAMES:
        shutil.copy(FOLDER / f"{name}.json", tmp_path)
    assert write(tmp_path).read_text() == (FOLDER / "README.md").read_text()
    for name in GAMES:
        for kind in ("png", "svg"):
            assert (FOLDER / f"{name}.{kind}").exists(), kind


@pytest.mark.parametrize("name", GAMES)
def test_attackers_are_ordered_and_below_the_bound(name: str) -> None:
    told = json.loads((FOLDER / f"{name}.json").read_text())
    assert not told["violated"]
    assert ordered(told)
    for audit in told["audits"].values():
        assert audit["advantage"]["lower"] <= audit["bound"]["upper"]
        assert audit["games"] >= 300
    assert told["audits"]["updates"]["advantage"]["lower"] > 0.1, "there must be something to see"


def test_order_can_be_wrong() -> None:
    told = json.loads((FOLDER / "membership.json").read_text())
    told["audits"]["outputs"]["advantage"] = {"lower": 0.7, "estimate": 0.75, "upper": 0.8}
    assert not ordered(told)
