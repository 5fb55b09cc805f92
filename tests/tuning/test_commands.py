"""--trials on the command line says what Python says."""

from __future__ import annotations

import json
from typing import Any

import pytest

import betastar as bs
from tests.command import call

RUN = ["--noise", "2", "--rate", "0.01", "--steps", "300"]
PLAIN = bs.DPSGD(2.0, 0.01, 300)


def told(*words: str) -> Any:
    done = call(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("law", ["fixed", "geometric"])
def test_analyze(law: str) -> None:
    answer = told("analyze", *RUN, "--trials", "7", "--trials-law", law)
    trials = getattr(bs.Trials, law)(7)
    risk = bs.analyze(bs.best_of(PLAIN, trials))
    assert answer["advantage"]["upper"] == risk.advantage.upper
    assert answer["epsilon"][0]["upper"] == risk.epsilon(1e-5).upper
    assert answer["sentence"].startswith(f"Best of {trials}: an attacker")
    assert answer["parameters"]["trials"] == 7
    assert told(*answer["command"].split()[1:])["advantage"] == answer["advantage"]


def test_calibrate_and_sweep() -> None:
    found = told("calibrate", "--target", "success<=55%", *RUN[2:], "--trials", "7")
    run = bs.calibrate(bs.Target(success=0.55), sample_rate=0.01, steps=300, trials=7)
    assert found["found"] == {"noise_multiplier": run.noise_multiplier}
    table = call("sweep", "--noise", "2,4", *RUN[2:], "--trials", "7").stdout.splitlines()
    assert float(table[1].split(",")[-3]) == bs.analyze(bs.best_of(PLAIN, 7)).bayes_security.lower
    both = told("sweep", *RUN, "--setting", "trials=7", "--setting", "trials=3,trials-law=geometric")
    assert [one["parameters"]["trials"] for one in both["settings"]] == [7, 3]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--trials", "0"], "--trials must be a whole number of at least 1, got 0"),
        (["--trials", "2.5"], "--trials must be a whole number of at least 1, got 2.5"),
        (["--trials", "0.5", "--trials-law", "geometric"], "--trials must be at least 1"),
        (["--trials-law", "poisson"], "--trials is missing"),
        (["--trials", "3", "--trials-law", "binomial"], "--trials-law must be one of"),
        (["--trials", "3", "--method", "paper"], "--method must be 'exact' or 'certified'"),
        (["--trials", "3", "--advise"], "--advise must be left out with --trials"),
    ],
)
def test_bad_input(more: list[str], said: str) -> None:
    done = call("analyze", *RUN, *more)
    assert done.returncode != 0
    assert said in done.stderr
