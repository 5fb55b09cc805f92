"""The pages of the studies are made of the results beside them, and what they claim holds for these."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

import betastar as bs
from studies.audits.__main__ import GAMES, ordered
from studies.gap_clipping import page as gap_page
from studies.gap_clipping import study as gap_study
from studies.pages import accuracy, group_accuracy, select
from studies.protection import page as protection_page
from studies.protection import study as protection_study
from studies.raters import page as raters_page
from studies.raters import study as raters_study
from studies.tweets import data as tweets_data
from studies.tweets import page as tweets_page
from studies.tweets import study as tweets_study
from studies.voters import page as voters_page
from studies.voters import study as voters_study
from studies.voters.data import OPINION, SECRETS, VOTE

from ..figures.pictures import same

pytestmark = pytest.mark.slow

STUDIES = Path(__file__).parents[2] / "studies"
#: The page of each study, its figures, and the number of test records.
PAGES: dict[str, tuple[ModuleType, tuple[str, ...], int]] = {
    "gap_clipping": (gap_page, ("gap", "noise", "groups"), 6513),
    "raters": (raters_page, ("risk", "accuracy", "groups"), 0),
    "tweets": (tweets_page, ("risk", "exposure", "groups"), 1_000),
    "voters": (voters_page, ("gaps", "exposure", "groups"), 3_200),
    "protection": (protection_page, ("budget",), 6513),
}
RESULTS = {name: json.loads((STUDIES / name / "results" / "results.json").read_text()) for name in PAGES}
GAP, RATERS, TWEETS, VOTERS, PROTECTION = (RESULTS[name]["runs"] for name in PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_of_its_results(name: str, tmp_path: Path) -> None:
    made, figures, _ = PAGES[name]
    committed = STUDIES / name / "results"
    shutil.copy(committed / "results.json", tmp_path)
    page = made.write(tmp_path)
    assert page.read_text() == (committed / "README.md").read_text()
    for figure in figures:
        assert same((tmp_path / f"{figure}.png").read_bytes(), (committed / f"{figure}.png").read_bytes()), figure
        assert f"({figure}.png)" in page.read_text()


def test_every_case_was_run() -> None:
    """All cases, each with all seeds, and not the quick form."""
    for name, keys, cases in (
        ("raters", ("kind", "cap", "target"), raters_study.cases()),
        ("voters", ("label", "secret", "kind"), voters_study.cases()),
    ):
        results = RESULTS[name]
        wanted = [(*(getattr(one, key) for key in keys), seed) for seed in range(results["seeds"]) for one in cases]
        assert [tuple(run[key] for key in (*keys, "seed")) for run in results["runs"]] == wanted
        assert not results["quick"]
    wanted = [(one.folder, seed) for seed in range(RESULTS["protection"]["seeds"]) for one in protection_study.cases()]
    cases = [(protection_study.Case(*(run[key] for key in ("kind", "beta", "by", "noise"))), run["seed"]) for run in PROTECTION]
    assert [(one.folder, seed) for one, seed in cases] == wanted
    wanted = [(case, seed) for seed in range(RESULTS["tweets"]["seeds"]) for case in tweets_study.cases()]
    assert [(run["case"], run["seed"]) for run in TWEETS] == wanted
    assert RESULTS["gap_clipping"]["seeds"] == 5
    for secret in gap_study.SECRETS:
        for gap in gap_study.GAPS:
            assert len(select(GAP, study="adult", secret=secret, kind="gap", gap=gap)) == 5
        for noise in gap_study.NOISES:
            assert len(select(GAP, study="adult", secret=secret, kind="target", noise_multiplier=noise)) == 5
    people = RESULTS["raters"]["people"]
    assert (len(people["ratings"]), sum(people["ratings"])) == (536, people["train"])


@pytest.mark.parametrize("name", ["gap_clipping", "tweets", "voters", "protection"])
def test_groups_add_up(name: str) -> None:
    size = PAGES[name][2]
    for run in select(RESULTS[name]["runs"], **({"study": "adult"} if name == "gap_clipping" else {})):
        for groups in run["groups"].values():
            assert sum(each for each, _ in groups.values()) == size
            assert sum(right for _, right in groups.values()) == pytest.approx(size * run["accuracy"])


def test_what_is_promised_of_groups_is_certified() -> None:
    """The rates, norms and noise of the page, under today's certificate."""
    for run in {run["noise_multiplier"]: run for run in PROTECTION if run["rates"]}.values():
        betas = {"one": {"all": run["beta"]}, "random": protection_study.BETAS, "sex": protection_study.BY_SEX}[run["kind"]]
        plan = bs.GroupPlan(run["noise_multiplier"], 2040, run["rates"], run["norms"])
        for group, beta in betas.items():
            assert beta <= plan.risk(group).bayes_security.lower <= beta + 1e-3


def lower(run: Any, *threat: Any) -> float:
    return float(bs.analyze(run, *threat).bayes_security.lower)


def test_figures_are_those_of_the_runs() -> None:
    """β* of membership, of a gap, of a rating and of a person, computed again from the numbers of each run."""
    seen: dict[tuple[Any, ...], float] = {}
    for run in [*GAP, *TWEETS, *VOTERS]:
        if "noise_multiplier" not in run or (run["noise_multiplier"] < 1.5 and run in GAP):  # those take long
            continue
        made = bs.DPSGD(run["noise_multiplier"], run["sample_rate"], run["steps"])
        gap = run.get("gap")
        for name, key in (("membership", (made, None)), ("attribute", (made, gap))):
            if name not in run or (name == "attribute" and gap is None):
                continue
            if key not in seen:
                seen[key] = lower(made) if key[1] is None else float(bs.Plan(made, gap).attribute().bayes_security.lower)
            assert run[name] == pytest.approx(seen[key], abs=1e-6)
    assert len(seen) > 10
    for run in select(RATERS, seed=0):
        if run["kind"] == "no-privacy":
            continue
        made = raters_study.claimed(run["noise_multiplier"], "balls-in-bins" if run["kind"] == "bins" else "poisson")
        assert (run["steps"], run["sample_rate"]) == (100, 0.05)
        assert run["rating"] == pytest.approx(lower(made), abs=1e-6)
        assert run["person"] == pytest.approx(lower(made, bs.Membership(records=run["largest"])), abs=1e-6)
        if run["target"] is not None:
            assert run["target"] <= run["person"] < run["target"] + 1e-4
    for one in RESULTS["raters"]["risk"][:4]:
        for sampling in ("poisson", "balls-in-bins"):
            made = raters_study.claimed(raters_study.NOISE, sampling)
            bound = bs.analyze(made, bs.Membership(records=one["ratings"])).bayes_security
            assert one[sampling] == pytest.approx([float(bound.lower), float(bound.upper)], abs=1e-6)


def test_what_is_said_about_gaps_on_adult() -> None:
    """Age is protected at the paper's noise for less than a point and a half; nothing is concluded from made-up records."""
    plain = select(GAP, study="adult", kind="plain", noise_multiplier=3.51)
    age = select(GAP, study="adult", secret="age", kind="target", noise_multiplier=3.51)
    assert min(run["attribute"] for run in age) >= 0.99
    assert accuracy(age) > accuracy(plain) - 1.5
    assert all(run["attribute"] >= gap_study.TARGET for run in GAP if run["kind"] == "target")
    text = (STUDIES / "gap_clipping" / "results" / "README.md").read_text()
    section = text.split("## Purchase-100, synthetic stand-in\n\n")[1].split("\n## ")[0]
    assert section.startswith("**The records of this section are made up**")
    assert "No conclusion can be drawn from the accuracy" in section


def test_what_is_said_about_raters() -> None:
    """Ten ratings leave nothing, all users have more; protecting a rating costs about a point, a person all that was learned."""
    results = RESULTS["raters"]
    risk = {one["ratings"]: one for one in results["risk"]}
    assert min(results["people"]["ratings"]) > 10
    assert risk[10]["poisson"][0] < 1e-4
    for ratings in (2, 3, 5):
        low, high = risk[ratings]["balls-in-bins"]
        assert 0.0 < low < high < risk[ratings]["poisson"][0]
    first = [one for one in results["noise"] if one["target"] == min(raters_study.TARGETS) and one["ratings"] >= 2]
    needed = [one["poisson"] / one["ratings"] for one in first]
    assert max(needed) < 1.02 * min(needed)
    assert raters_page.slope(results) == pytest.approx(mean(needed), rel=0.02)
    assert all(1.0 < one["balls-in-bins"] / one["poisson"] < 1.055 for one in results["noise"])

    baseline = 100.0 * mean(run["baseline"] for run in RATERS)
    plain, best = select(RATERS, kind="no-privacy", cap=None), raters_page.best_person(RATERS)
    rating = accuracy(select(RATERS, kind="rating", cap=None))
    assert rating > baseline + 10.0
    assert abs(accuracy(plain) - rating) < 1.5
    assert accuracy(best) - baseline < 0.15 * (rating - baseline)
    by_cap = [accuracy(select(RATERS, kind="rating", cap=cap)) for cap in raters_study.CAPS]
    assert by_cap == sorted(by_cap, reverse=True)
    without = [accuracy(select(RATERS, kind="no-privacy", cap=cap)) for cap in raters_study.CAPS]
    costs = [one - capped for one, capped in zip(without, by_cap, strict=True)]
    assert min(costs[2:]) > max(costs[:2])  # "and more with it"
    alike = [accuracy(select(RATERS, kind=kind, cap=30)) for kind in ("bins", "rating")]
    assert abs(alike[0] - alike[1]) < 1.5
    lost = {n: group_accuracy(plain, "activity", n) - group_accuracy(best, "activity", n) for n in ("0", "50", "150", "400")}
    assert max(lost, key=lost.__getitem__) == "400"

    for one in results["audits"]["mechanism"]:
        bound, right = 0.5 + 0.5 * one["bound"]["upper"], one["success"]["estimate"]
        if one["sampling"] == "poisson" or one["ratings"] == 1:
            assert right == pytest.approx(bound, abs=0.01)  # "the attacker reaches the bound"
        elif one["ratings"] == 3:
            assert 0.9 < right < bound < 0.98


def test_what_is_said_about_tweets() -> None:
    """A person is little better protected than membership, far better by a gap; privacy costs points, and rare devices pay."""
    plain, watched = select(TWEETS, case="plain"), select(TWEETS, case="dp-sgd")
    narrow = select(TWEETS, gap=min(tweets_study.GAPS))
    assert {tuple(run["groups"]["device"]) for run in TWEETS} == {tuple(tweets_data.DEVICES)}
    for run in watched:
        assert run["membership"] < run["attribute"] < run["membership"] + 0.2
        assert min(beta for some in run["exposures"].values() for beta in some) >= run["attribute"] - 1e-6
        assert [epoch["attribute"] for epoch in run["epochs"]] == sorted((e["attribute"] for e in run["epochs"]), reverse=True)
    for name in watched[0]["exposures"]:  # "Each of the persons has tweets far to the left"
        assert min(min(run["exposures"][name], default=1.0) for run in watched) < 0.85
    assert min(run["attribute"] for run in narrow) > 0.99
    baseline = 100.0 * mean(run["baseline"] for run in watched)
    assert accuracy(plain) > accuracy(watched) + 2.0 > baseline + 7.0
    assert abs(accuracy(narrow) - accuracy(watched)) < 1.0
    lost = tweets_page.changes(plain, watched)
    assert lost["Web"] > -1.0
    assert max(lost["Android"], lost["iPhone"]) < -3.0
    assert max(map(abs, tweets_page.changes(watched, narrow).values())) < 3.0


def test_what_is_said_about_the_risk_of_voters() -> None:
    """Inputs are better protected than membership, the label is not, both scopes agree; other answers tell most."""
    for secret in SECRETS:
        scopes = (select(VOTERS, label=OPINION, secret=secret, kind=kind) for kind in ("batch", "dataset"))
        for batch, whole in zip(*scopes, strict=True):
            assert batch["attribute"] > batch["membership"] + 0.1
            assert whole["attribute"] == pytest.approx(batch["attribute"], abs=0.015)
    for run in select(VOTERS, label=VOTE, kind="batch") + select(VOTERS, label=VOTE, kind="dataset"):
        assert run["attribute"] == pytest.approx(run["membership"], abs=1e-3)
        assert run["largest_distance"] > 1.99
    worst = min(run["attribute"] for run in select(VOTERS, label=OPINION, kind="dataset"))
    assert min(run["attribute"] for run in select(VOTERS, secret=voters_study.TOGETHER, kind="batch")) <= worst + 0.01
    for secret, (_, low, _, high) in voters_page.exposed_groups(VOTERS).items():
        worst = min(run["attribute"] for run in select(VOTERS, label=OPINION, secret=secret, kind="dataset"))
        assert worst - 1e-6 <= low < high < 1.0
    informed = [run for run in VOTERS if "rest" in run.get("informed", {})]
    assert informed
    for run in informed:
        rest, frequencies = run["informed"]["rest"], run["informed"]["frequencies"]
        most = 0.01 if run["kind"] == "gap" and run["gap"] == min(voters_study.GAPS) else 0.1
        assert rest["without"] > frequencies["without"]
        assert rest["with"] - rest["without"] < most
        assert abs(rest["hits"] - rest["without"]) < 0.1  # the attacker's probabilities mean what they say


def test_what_is_said_about_the_accuracy_of_voters() -> None:
    """A proof about one input costs nothing that can be seen, all four cost points, and the label costs more the narrower."""
    plain, label = voters_page.dp_sgd(VOTERS, OPINION), voters_page.dp_sgd(VOTERS, VOTE)
    without = accuracy(select(VOTERS, label=OPINION, kind="no-privacy"))
    assert without > 100.0 * mean(run["baseline"] for run in plain) + 20.0
    assert abs(without - accuracy(plain)) < 1.0
    changes, deleted = voters_page.gap_changes(VOTERS), voters_page.deleted_changes(VOTERS)
    assert max(map(abs, changes.values())) < 1.05  # "a point or less"
    assert all(abs(changes[secret] - deleted[secret]) < 0.5 for secret in SECRETS)  # "deleting costs about the same"
    together = max(deleted[voters_study.TOGETHER], voters_page.joint_change(VOTERS))
    assert together < min(changes.values()) - 1.0  # "all four together cost more"
    gaps = voters_study.GAPS
    costs = [accuracy(label) - accuracy(select(VOTERS, label=VOTE, kind="gap", gap=gap)) for gap in gaps]
    assert costs == sorted(costs)
    assert costs[0] < 2.0  # "a moderate gap is cheap, a narrow one is not"
    narrow = select(VOTERS, label=VOTE, kind="gap", gap=min(gaps))
    assert accuracy(narrow) < 100.0 * mean(run["baseline"] for run in narrow) + 5.0  # "leaves nothing to learn"
    assert voters_page.narrowest(VOTERS) == min(gaps)
    name, gap, gone = min(voters_page.losers(VOTERS).values(), key=lambda one: one[1])  # a small group loses most
    assert name == "Black"
    assert gap < 3.0 * min(changes.values())
    assert gone == pytest.approx(gap, abs=1.5)  # and as much if the column is deleted


def test_audits_accuse_nobody() -> None:
    """No attacker beats the bound, a canary comes close to it, and those who see less do not do better."""
    audits = RESULTS["voters"]["audits"]
    right = {name: audits[name]["audits"]["updates"]["success"]["estimate"] for name in audits}
    bound = 0.5 + 0.5 * audits["canary"]["audits"]["updates"]["bound"]["upper"]
    assert right["canary"] > bound - 0.06
    assert right["canary"] > right["label"] > right["vote"]
    raters = RESULTS["raters"]["audits"]
    for told in [*audits.values(), *raters["training"].values(), {"audits": dict(enumerate(raters["mechanism"]))}]:
        assert all(one["p_value"] > 0.01 for one in told["audits"].values())
    for name in GAMES:
        told = json.loads((STUDIES / "audits" / "results" / f"{name}.json").read_text())
        assert not told["violated"]
        assert ordered(told)
        for audit in told["audits"].values():
            assert audit["advantage"]["lower"] <= audit["bound"]["upper"]
            assert audit["games"] >= 300
        assert told["audits"]["updates"]["advantage"]["lower"] > 0.1, "there must be something to see"
        told["audits"]["outputs"] = {"advantage": {"lower": 0.97, "estimate": 0.98, "upper": 0.99}}
        assert not ordered(told)
