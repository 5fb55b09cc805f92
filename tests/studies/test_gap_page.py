"""The page of the gap study says what its results are, and the results are what was promised."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import betastar as bs
from studies.gap_clipping.page import write
from studies.gap_clipping.study import GAPS, NOISES, SECRETS, TARGET
from studies.pages import accuracy, select

from ..figures.pictures import same

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "studies" / "gap_clipping" / "results"
RESULTS = json.loads((DOCS / "results.json").read_text())
RUNS = RESULTS["runs"]


def test_the_page_is_made_of_the_results(tmp_path: Path) -> None:
    shutil.copy(DOCS / "results.json", tmp_path)
    page = write(tmp_path)
    assert page.read_text() == (DOCS / "README.md").read_text()
    for name in ("gap", "noise", "groups"):
        assert same((tmp_path / f"{name}.png").read_bytes(), (DOCS / f"{name}.png").read_bytes()), name
        assert f"({name}.png)" in page.read_text()


def test_made_up_records_are_said_to_be_so_first() -> None:
    """And nothing is concluded from their accuracy."""
    section = (DOCS / "README.md").read_text().split("## Purchase-100, synthetic stand-in\n\n")[1].split("\n## ")[0]
    assert section.startswith("**The records of this section are made up**")
    assert "No conclusion can be drawn from the accuracy" in section


def test_everything_was_run() -> None:
    assert RESULTS["seeds"] == 5
    for secret in SECRETS:
        for gap in GAPS:
            assert len(select(RUNS, study="adult", secret=secret, kind="gap", gap=gap)) == 5
        for noise in NOISES:
            assert len(select(RUNS, study="adult", secret=secret, kind="target", noise_multiplier=noise)) == 5
    assert select(RUNS, study="purchase", kind="gap")


def test_proved_figures_are_certified_ones() -> None:
    seen = set()
    for run in RUNS:
        key = (run["noise_multiplier"], run["sample_rate"], run["steps"], run["gap"])
        if key in seen or run["noise_multiplier"] < 3.0:
            continue
        seen.add(key)
        risk = bs.Plan(bs.DPSGD(*key[:3]), run["gap"]).attribute()
        assert run["attribute"] == pytest.approx(float(risk.bayes_security.lower), abs=1e-6)
    assert len(seen) > len(GAPS)
    assert all(run["attribute"] >= TARGET for run in RUNS if run["kind"] == "target")


def test_age_is_protected_at_the_papers_noise_for_less_than_a_point_and_a_half() -> None:
    plain = select(RUNS, study="adult", kind="plain", noise_multiplier=3.51)
    age = select(RUNS, study="adult", secret="age", kind="target", noise_multiplier=3.51)
    assert len(plain) == len(age) == 5
    assert min(run["attribute"] for run in age) >= 0.99
    assert accuracy(age) > accuracy(plain) - 1.5


def test_groups_add_up() -> None:
    for run in select(RUNS, study="adult"):
        for groups in run["groups"].values():
            assert sum(right for _, right in groups.values()) == pytest.approx(run["accuracy"] * 6513)
