"""What audits show of themselves."""

from __future__ import annotations

import numpy as np

import betastar as bs
from betastar import audit
from betastar.audit import Games, OneRun

from ..displayed import html_of, printed_by_rich

AUDIT = audit.mechanism(bs.DPSGD(1.0, 0.05, 20), games=2000, seed=3)


def test_an_audit() -> None:
    assert len(repr(AUDIT)) < 200
    assert "2000 games" in repr(AUDIT)
    assert "no violation" in repr(AUDIT)
    assert str(AUDIT).splitlines() == [AUDIT.sentence, "Played: membership inference (substitution), seed 3."]
    for text in (printed_by_rich(AUDIT), html_of(AUDIT)):
        assert "right guesses" in text
        assert "95 % interval" in text


def test_trials() -> None:
    trials = Games("a canary", {"updates": AUDIT, "weights": AUDIT, "outputs": AUDIT}, None)
    assert repr(trials) == "Games(a canary, updates: no violation, weights: no violation, outputs: no violation, p_value=1)"
    assert str(trials).splitlines()[-1] == "Challenge: a canary."
    for text in (printed_by_rich(trials), html_of(trials)):
        assert all(word in text for word in ("update", "weights", "model"))


def test_one_run_and_leakage() -> None:
    one = OneRun(100, 2, 50, 30, 0.5, 0.1, 1e-5, 0.2, 0.95, 2.0, 1)
    assert str(one) == f"{one.sentence}\nSeed 1."
    assert len(repr(one)) < 400
    random = np.random.default_rng(0)
    worlds = random.integers(0, 2, 1000)
    leak = audit.leakage(worlds, random.normal(size=(1000, 2)) + worlds[:, None], seed=1)
    assert str(leak) == f"{leak.sentence}\n{leak.caveat}"
    assert "nearest neighbour" in html_of(leak)
    assert len(repr(leak)) < 900
