"""The studies of voters and raters in a small form: what is done is not done again, and the pages are made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import betastar as bs
from studies.raters import page as raters_page
from studies.raters import study as raters
from studies.voters import page as voters_page
from studies.voters import study as voters
from studies.voters.data import SECRETS
from studies.voters.data import voters as voters_data
from studies.voters.informed_attacker import of_rest

pytestmark = pytest.mark.slow


def test_voters_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voters, "QUICK", replace(voters.FULL, batch_size=160, epochs=1, hidden=(8,), every=2))
    monkeypatch.setattr(voters, "QUICK_SAMPLE", 1000)
    monkeypatch.setattr(voters, "ATTACKED", replace(voters.ATTACKED, epochs=1, hidden=(4,)))
    monkeypatch.setattr(voters, "QUICK_GAMES", 17)
    monkeypatch.setattr(voters, "RECORDS", 80)
    told: list[str] = []
    results = voters.study(tmp_path, 1, 1, quick=True, tell=told.append)
    assert told[0] == "1 of 9: opinion-none-no-privacy, seed 0"
    assert told[-1] == "audit: label, 17 games"
    plain, *others = results["runs"]
    assert [run["kind"] for run in others[:4]] == ["batch", "dataset", "gap", "delete"]
    batch, whole, gap, deleted = others[:4]
    assert plain["baseline"] == batch["baseline"] == deleted["baseline"]
    assert batch["accuracy"] == whole["accuracy"]  # a monitor changes nothing
    assert batch["membership"] <= whole["attribute"] <= batch["attribute"] + 1e-3
    assert gap["attribute"] == float(
        bs.Plan(bs.DPSGD(gap["noise_multiplier"], gap["sample_rate"], gap["steps"]), 0.1).attribute().bayes_security.lower
    )
    for groups in whole["exposures"].values():
        assert sum(one[0] for one in groups.values()) == whole["records"]["train"]
        assert min(one[1] for one in groups.values()) >= whole["attribute"] - 1e-6
    for run in (batch, whole, gap):
        for known in ("frequencies", "rest"):
            assert 0.0 < run["informed"][known]["without"] <= run["informed"][known]["with"] <= 1.0
    assert "# Voters of 2016" in voters_page.write(tmp_path).read_text()
    monkeypatch.setattr(voters, "_private", None)
    monkeypatch.setattr(voters, "_without", None)
    assert voters.study(tmp_path, 1, 1, quick=True) == json.loads(
        (tmp_path / "results.json").read_text()
    )  # nothing is done again


def test_cases_of_voters() -> None:
    """Each secret alone and all together, each scope, gap and column; the vote as an input and as the label."""
    every = voters.cases()
    assert len({case.folder for case in every}) == len(every) == 34
    for secret in SECRETS:
        kinds = [case.kind for case in every if (case.label, case.secret) == ("opinion", secret)]
        assert kinds == ["batch", "dataset", "gap", "gap", "gap", "delete"]
    assert {case.kind for case in every if case.secret == voters.TOGETHER} == {"batch", "gap", "delete"}
    assert [case.config.gap for case in every if case.label == "vote" and case.kind == "gap"] == [0.5, 0.1, 0.01]


def test_an_informed_attacker() -> None:
    """Without a training nothing is gained; with a sure one, everything. The rest of the answers tells more than frequencies."""
    study = voters_data(0, sample=4000)
    nothing, everything = (
        bs.analyze(bs.DPSGD(noise, 0.5, 50), bs.AttributeInference(2.0), method="certified") for noise in (1e4, 0.2)
    )
    told = of_rest(study, "vote", nothing)
    assert told["without"] <= told["with"] <= told["without"] + 0.01  # probabilities are rounded up
    assert of_rest(study, "vote", everything)["with"] > 0.999
    assert study.secret.prior is not None
    assert told["hits"] > float(study.secret.prior.max()) + 0.1


def test_raters_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raters, "ATTACKED", replace(raters.ATTACKED, epochs=1, hidden=(4,)))
    monkeypatch.setattr(raters, "QUICK_GAMES", 17)
    monkeypatch.setattr(raters, "RECORDS", 80)
    monkeypatch.setattr(raters, "MECHANISM_GAMES", 2000)
    told: list[str] = []
    results = raters.study(tmp_path, 1, 1, quick=True, tell=told.append)
    assert told[:2] == ["1 of 3: no-privacy-3, seed 0", "2 of 3: rating-3, seed 0"]
    person = results["runs"][-1]
    assert (person["kind"], person["largest"]) == ("person", 3)
    assert person["person"] == pytest.approx(0.5, abs=1e-4)
    assert person["person"] < person["rating"]
    assert all(run["baseline"] == person["baseline"] for run in results["runs"])
    assert "# Film ratings" in raters_page.write(tmp_path).read_text()
    monkeypatch.setattr(raters, "_private", None)
    monkeypatch.setattr(raters, "_without", None)
    assert raters.study(tmp_path, 1, 1, quick=True) == json.loads(
        (tmp_path / "results.json").read_text()
    )  # nothing is done again


def test_every_cap_has_the_same_steps() -> None:
    """So that the figures of the page are those of the runs."""
    for case in (raters.Case("rating", 3), raters.Case("bins", 10), raters.Case("person", 10, 0.9)):
        config, study = case.load(0)
        assert -(-len(study.train) // study.recipe.batch_size) == raters.BATCHES
        assert study.recipe.epochs == raters.EPOCHS
    assert config.noise_multiplier == raters.noise_of(0.9, 10, "poisson")
    claimed = bs.analyze(raters.claimed(config.noise_multiplier), bs.Membership(records=10)).bayes_security
    assert 0.9 <= float(claimed.lower) < 0.9 + 1e-6
    assert sum(np.array(raters.people(study)["ratings"])) == len(study.train)
