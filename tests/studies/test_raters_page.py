"""The page on raters says what its results are, and its claims hold for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import mean

import pytest

import betastar as bs
from studies.pages import accuracy, group_accuracy, select
from studies.raters.page import best_person, slope, write
from studies.raters.study import CAPS, NOISE, TARGETS, cases, claimed

from ..figures.pictures import same

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "studies" / "raters" / "results"
RESULTS = json.loads((DOCS / "results.json").read_text())
RUNS = RESULTS["runs"]


def test_the_page_is_made_of_the_results(tmp_path: Path) -> None:
    shutil.copy(DOCS / "results.json", tmp_path)
    page = write(tmp_path)
    assert page.read_text() == (DOCS / "README.md").read_text()
    for name in ("risk", "accuracy", "groups"):
        assert same((tmp_path / f"{name}.png").read_bytes(), (DOCS / f"{name}.png").read_bytes()), name
        assert f"({name}.png)" in page.read_text()


def test_everything_was_run() -> None:
    wanted = [(case.kind, case.cap, case.target, seed) for seed in range(RESULTS["seeds"]) for case in cases()]
    assert [(run["kind"], run["cap"], run["target"], run["seed"]) for run in RUNS] == wanted
    assert not RESULTS["quick"]
    assert len(RESULTS["people"]["ratings"]) == 536
    assert sum(RESULTS["people"]["ratings"]) == RESULTS["people"]["train"]


def test_figures_are_those_of_the_run() -> None:
    for run in select(RUNS, seed=0):
        if run["kind"] == "no-privacy":
            continue
        assert (run["steps"], run["sample_rate"]) == (100, 0.05)
        made = claimed(run["noise_multiplier"], "balls-in-bins" if run["kind"] == "bins" else "poisson")
        assert run["rating"] == pytest.approx(float(bs.analyze(made).bayes_security.lower), abs=1e-6)
        person = bs.analyze(made, bs.Membership(records=run["largest"])).bayes_security.lower
        assert run["person"] == pytest.approx(float(person), abs=1e-6)
        if run["target"] is not None:
            assert run["target"] <= run["person"] < run["target"] + 1e-4
    for one in RESULTS["risk"][:4]:
        for sampling in ("poisson", "balls-in-bins"):
            bound = bs.analyze(claimed(NOISE, sampling), bs.Membership(records=one["ratings"])).bayes_security
            assert one[sampling] == pytest.approx([float(bound.lower), float(bound.upper)], abs=1e-6)


def test_what_the_page_says_about_risk() -> None:
    """Ten ratings leave nothing, all users have more, balls in bins do not help, and noise grows with the ratings."""
    risk = {one["ratings"]: one for one in RESULTS["risk"]}
    assert min(RESULTS["people"]["ratings"]) > 10
    assert risk[10]["poisson"][0] < 1e-4
    for ratings in (2, 3, 5):
        low, high = risk[ratings]["balls-in-bins"]
        assert 0.0 < low < high < risk[ratings]["poisson"][0]
    needed = [
        one["poisson"] / one["ratings"] for one in RESULTS["noise"] if one["target"] == min(TARGETS) and one["ratings"] >= 2
    ]
    assert max(needed) < 1.02 * min(needed)
    assert slope(RESULTS) == pytest.approx(mean(needed), rel=0.02)
    assert all(1.0 < one["balls-in-bins"] / one["poisson"] < 1.055 for one in RESULTS["noise"])


def test_what_the_page_says_about_accuracy() -> None:
    """Protecting a rating costs about a point, protecting a person all that was learned."""
    baseline = 100.0 * mean(run["baseline"] for run in RUNS)
    without, rating = (accuracy(select(RUNS, kind=kind, cap=None)) for kind in ("no-privacy", "rating"))
    assert rating > baseline + 10.0
    assert abs(without - rating) < 1.5
    assert accuracy(best_person(RUNS)) - baseline < 0.15 * (rating - baseline)
    by_cap = [accuracy(select(RUNS, kind="rating", cap=cap)) for cap in CAPS]
    assert by_cap == sorted(by_cap, reverse=True)
    costs = [accuracy(select(RUNS, kind="no-privacy", cap=cap)) - one for cap, one in zip(CAPS, by_cap, strict=True)]
    assert min(costs[2:]) > max(costs[:2])  # "and more with it"
    alike = [accuracy(select(RUNS, kind=kind, cap=30)) for kind in ("bins", "rating")]
    assert abs(alike[0] - alike[1]) < 1.5


def test_what_the_page_says_about_who_pays() -> None:
    plain, best = select(RUNS, kind="no-privacy", cap=None), best_person(RUNS)
    lost = {
        name: group_accuracy(plain, "activity", name) - group_accuracy(best, "activity", name)
        for name in ("0", "50", "150", "400")
    }
    assert max(lost, key=lost.__getitem__) == "400"


def test_what_the_page_says_about_audits() -> None:
    for one in RESULTS["audits"]["mechanism"]:
        bound, right = 0.5 + 0.5 * one["bound"]["upper"], one["success"]["estimate"]
        assert one["p_value"] > 0.01
        if one["sampling"] == "poisson" or one["ratings"] == 1:
            assert right == pytest.approx(bound, abs=0.01)  # "the attacker reaches the bound"
        elif one["ratings"] == 3:
            assert 0.9 < right < bound < 0.98
    for audit in RESULTS["audits"]["training"].values():
        assert all(one["p_value"] > 0.01 for one in audit["audits"].values())
