"""The page on voters says what its results are, and its claims hold for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import mean

import pytest

import betastar as bs
from studies.pages import accuracy, select
from studies.voters.data import OPINION, SECRETS, VOTE
from studies.voters.page import (
    deleted_changes,
    dp_sgd,
    exposed_groups,
    gap_changes,
    joint_change,
    losers,
    narrowest,
    write,
)
from studies.voters.study import GAPS, TOGETHER, cases

from ..figures.pictures import same

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "studies" / "voters" / "results"
RESULTS = json.loads((DOCS / "results.json").read_text())
RUNS = RESULTS["runs"]
PLAIN, LABEL = dp_sgd(RUNS, OPINION), dp_sgd(RUNS, VOTE)


def test_the_page_is_made_of_the_results(tmp_path: Path) -> None:
    shutil.copy(DOCS / "results.json", tmp_path)
    page = write(tmp_path)
    assert page.read_text() == (DOCS / "README.md").read_text()
    for name in ("gaps", "exposure", "groups"):
        assert same((tmp_path / f"{name}.png").read_bytes(), (DOCS / f"{name}.png").read_bytes()), name
        assert f"({name}.png)" in page.read_text()


def test_everything_was_run() -> None:
    wanted = [(case.label, case.secret, case.kind, seed) for seed in range(RESULTS["seeds"]) for case in cases()]
    assert [(run["label"], run["secret"], run["kind"], run["seed"]) for run in RUNS] == wanted
    assert not RESULTS["quick"]
    for run in (*PLAIN, *LABEL):
        assert run["records"] == {"public": 4_000, "train": 12_800, "test": 3_200}
        assert run["steps"] == 250


def test_figures_are_those_of_the_run() -> None:
    one = PLAIN[0]
    made = bs.DPSGD(one["noise_multiplier"], one["sample_rate"], one["steps"])
    exact = float(bs.analyze(made).bayes_security.lower)
    assert all(run["membership"] == pytest.approx(exact, abs=1e-6) for run in RUNS if "membership" in run)
    for gap in GAPS:
        proved = float(bs.Plan(made, gap).attribute().bayes_security.lower)
        assert all(run["attribute"] == pytest.approx(proved, abs=1e-6) for run in select(RUNS, kind="gap", gap=gap))


def test_groups_add_up() -> None:
    for run in RUNS:
        for column in SECRETS:
            groups = run["groups"][column].values()
            assert sum(size for size, _ in groups) == 3_200
            assert sum(right for _, right in groups) == pytest.approx(3_200 * run["accuracy"])


def test_what_the_page_says_about_risk() -> None:
    """Inputs are better protected than membership, the label is not, and both scopes agree."""
    for secret in SECRETS:
        for batch, whole in zip(
            *(select(RUNS, label=OPINION, secret=secret, kind=kind) for kind in ("batch", "dataset")), strict=True
        ):
            assert batch["attribute"] > batch["membership"] + 0.1
            assert whole["attribute"] == pytest.approx(batch["attribute"], abs=0.015)
    for run in select(RUNS, label=VOTE, kind="batch") + select(RUNS, label=VOTE, kind="dataset"):
        assert run["attribute"] == pytest.approx(run["membership"], abs=1e-3)
        assert run["largest_distance"] > 1.99
    together = select(RUNS, secret=TOGETHER, kind="batch")
    worst = min(run["attribute"] for run in RUNS if run["label"] == OPINION and run["kind"] == "dataset")
    assert min(run["attribute"] for run in together) <= worst + 0.01


def test_what_the_page_says_about_accuracy() -> None:
    """A proof about one input costs nothing that can be seen, all four cost points, and the label costs more the narrower."""
    without = accuracy(select(RUNS, label=OPINION, kind="no-privacy"))
    baseline = 100.0 * mean(run["baseline"] for run in PLAIN)
    assert without > baseline + 20.0
    assert abs(without - accuracy(PLAIN)) < 1.0
    changes, deleted = gap_changes(RUNS), deleted_changes(RUNS)
    assert max(map(abs, changes.values())) < 1.05  # "a point or less"
    assert all(abs(changes[secret] - deleted[secret]) < 0.5 for secret in SECRETS)  # "deleting costs about the same"
    assert max(deleted[TOGETHER], joint_change(RUNS)) < min(changes.values()) - 1.0  # "all four together cost more"
    costs = [accuracy(LABEL) - accuracy(select(RUNS, label=VOTE, kind="gap", gap=gap)) for gap in GAPS]
    assert costs == sorted(costs)
    assert costs[0] < 2.0  # "a moderate gap is cheap, a narrow one is not"
    narrow = select(RUNS, label=VOTE, kind="gap", gap=min(GAPS))
    assert accuracy(narrow) < 100.0 * mean(run["baseline"] for run in narrow) + 5.0  # "leaves nothing to learn"
    assert narrowest(RUNS) == min(GAPS)


def test_what_the_page_says_about_an_informed_attacker() -> None:
    """Other answers tell most; DP-SGD adds some points, the narrowest gap a fraction of one."""
    for run in RUNS:
        if "informed" not in run or "rest" not in run["informed"]:
            continue
        rest, frequencies = run["informed"]["rest"], run["informed"]["frequencies"]
        assert rest["without"] > frequencies["without"]
        assert rest["with"] - rest["without"] < 0.1
        if run["kind"] == "gap" and run["gap"] == min(GAPS):
            assert rest["with"] - rest["without"] < 0.01
            assert frequencies["with"] - frequencies["without"] < 0.01
        assert abs(rest["hits"] - rest["without"]) < 0.1  # the attacker's probabilities mean what they say


def test_what_the_page_says_about_who_pays() -> None:
    """The group that loses most is a small one, and it loses as much if the column is deleted."""
    name, gap, gone = min(losers(RUNS).values(), key=lambda one: one[1])
    assert name == "Black"
    assert gap < 3.0 * min(gap_changes(RUNS).values())
    assert gone == pytest.approx(gap, abs=1.5)


def test_what_the_page_says_about_exposure() -> None:
    for secret, (_, low, _, high) in exposed_groups(RUNS).items():
        worst = min(run["attribute"] for run in select(RUNS, label=OPINION, secret=secret, kind="dataset"))
        assert worst - 1e-6 <= low < high < 1.0


def test_what_the_page_says_about_audits() -> None:
    audits = RESULTS["audits"]
    right = {name: audits[name]["audits"]["updates"]["success"]["estimate"] for name in audits}
    bound = 0.5 + 0.5 * audits["canary"]["audits"]["updates"]["bound"]["upper"]
    assert right["canary"] > bound - 0.06  # "comes close to what the bound allows"
    assert right["canary"] > right["label"] > right["vote"]
    for audit in audits.values():
        assert all(one["p_value"] > 0.01 for one in audit["audits"].values())
