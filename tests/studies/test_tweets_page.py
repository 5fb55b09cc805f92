"""The page on tweets says what its results are, and its claims hold for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import betastar as bs
from studies.pages import accuracy, select
from studies.tweets.data import DEVICES, SECRETS
from studies.tweets.page import changes, words, write
from studies.tweets.study import FULL, GAPS, NOBODY, cases

from ..figures.pictures import same

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "studies" / "tweets" / "results"
RESULTS = json.loads((DOCS / "results.json").read_text())
RUNS = RESULTS["runs"]
PLAIN, WATCHED, NARROW = select(RUNS, case="plain"), select(RUNS, case="dp-sgd"), select(RUNS, gap=min(GAPS))


def test_the_page_is_made_of_the_results(tmp_path: Path) -> None:
    shutil.copy(DOCS / "results.json", tmp_path)
    page = write(tmp_path)
    assert page.read_text() == (DOCS / "README.md").read_text()
    for name in ("risk", "exposure", "groups"):
        assert same((tmp_path / f"{name}.png").read_bytes(), (DOCS / f"{name}.png").read_bytes()), name
        assert f"({name}.png)" in page.read_text()


def test_everything_was_run() -> None:
    assert [(run["case"], run["seed"]) for run in RUNS] == [(case, seed) for seed in range(RESULTS["seeds"]) for case in cases()]
    for run in (*WATCHED, *NARROW):
        assert run["records"] == {"public": 5_000, "train": 4_000, "test": 1_000}
        assert run["steps"] == 25 * (FULL.epochs or 0)


def test_figures_are_those_of_the_run() -> None:
    for run in WATCHED[:1] + NARROW[:1]:
        made = bs.DPSGD(run["noise_multiplier"], run["sample_rate"], run["steps"])
        assert run["membership"] == pytest.approx(float(bs.analyze(made).bayes_security.lower), abs=1e-6)
    proved = bs.Plan(made, min(GAPS)).attribute().bayes_security.lower
    assert [run["attribute"] for run in NARROW] == pytest.approx([float(proved)] * len(NARROW), abs=1e-6)


def test_groups_add_up() -> None:
    names = [one.name for one in SECRETS["person"]]
    for run in RUNS:
        assert list(run["groups"]["device"]) == list(DEVICES)
        assert list(run["groups"]["person"]) == [*names, NOBODY]
        for groups in run["groups"].values():
            assert sum(size for size, _ in groups.values()) == 1_000
            assert sum(right for _, right in groups.values()) == pytest.approx(1_000 * run["accuracy"])


def test_what_the_page_says_about_accuracy() -> None:
    """Privacy costs points, the model still learns, a gap costs nothing that can be seen, and rare devices pay."""
    baseline = 100.0 * sum(run["baseline"] for run in WATCHED) / len(WATCHED)
    assert accuracy(PLAIN) > accuracy(WATCHED) + 2.0 > baseline + 7.0
    assert abs(accuracy(NARROW) - accuracy(WATCHED)) < 1.0
    lost = changes(PLAIN, WATCHED)
    assert lost["Web"] > -1.0
    assert max(lost["Android"], lost["iPhone"]) < -3.0
    assert max(map(abs, changes(WATCHED, NARROW).values())) < 3.0


def test_what_the_page_says_about_risk() -> None:
    """The person is little better protected than membership by DP-SGD, and far better by a gap."""
    for run in WATCHED:
        assert run["membership"] < run["attribute"] < run["membership"] + 0.2
        betas = [beta for some in run["exposures"].values() for beta in some]
        assert min(betas) >= run["attribute"] - 1e-6
        assert [epoch["attribute"] for epoch in run["epochs"]] == sorted((e["attribute"] for e in run["epochs"]), reverse=True)
    for name in WATCHED[0]["exposures"]:  # "Each of the persons has tweets far to the left"
        assert min(min(run["exposures"][name], default=1.0) for run in WATCHED) < 0.85
    assert min(run["attribute"] for run in NARROW) > 0.99
    assert float(words(RESULTS)["distance"]) <= 2.0
