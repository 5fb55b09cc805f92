"""A risk shows itself: a sentence when it is printed, a table to rich, a curve in a notebook; and a bound is a number."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import betastar as bs

from ..displayed import html_of, printed_by_rich

RUN = bs.DPSGD(noise_multiplier=3.51, sample_rate=0.01, steps=2000)
RISK = bs.analyze(RUN)


def test_printed() -> None:
    assert str(RISK).splitlines() == [
        "Membership inference (substitution): at even odds an attacker is right at most 55.07 % of the time, against 50 % "
        "without the model.",
        "β* ≥ 0.8986 (estimate 0.8986), method exact",
    ]
    assert repr(RISK).startswith("Risk(membership inference (substitution), exact: bayes_security=0.898604 [")
    assert len(repr(RISK)) < 120


def test_the_safe_end_is_printed() -> None:
    """β* rounded down, what the attacker can do rounded up, also of wide bounds."""
    wide = bs.analyze(RUN, method="affinity")
    share = re.search(r"at most ([\d.]+) %", str(wide))
    assert share is not None
    assert float(share[1]) / 100 >= 1 - wide.bayes_security.lower / 2
    beta = re.search(r"β\* ≥ ([\d.]+)", str(wide))
    assert beta is not None
    assert float(beta[1]) <= wide.bayes_security.lower


def test_an_approximation_is_called_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.RegimeWarning)
        paper = bs.analyze(bs.DPSGD(0.6, 0.01, 2000), method="paper")
    assert "is right about" in str(paper)
    assert "about" in html_of(paper)


def test_to_rich_and_in_a_notebook() -> None:
    for text in (printed_by_rich(RISK), html_of(RISK)):
        flat = " ".join(text.split())
        assert "right at most 55.07 % of the time" in flat
        for row in ("Bayes security β*", "right guesses, prior 0.5", "true positives at FPR 0.01", "ε at δ 1e-5"):
            assert row in flat
        assert f"{RISK.tpr(0.01).upper + 5e-6:.5f}" in flat


def test_the_curve_of_a_notebook_is_the_trade_off_curve() -> None:
    """Each point is (FPR, TPR at the end to rely on), in a square of 220 points."""
    html = html_of(RISK)
    drawn = re.search(r'<polyline points="([\d., ]+)" fill="none" stroke="currentColor" stroke-width="2"/>', html)
    assert drawn is not None
    points = np.array([[float(one) for one in pair.split(",")] for pair in drawn[1].split()])
    fpr, tpr = (points[:, 0] - 34) / 220, 1 - (points[:, 1] - 8) / 220
    assert len(points) > 30
    assert fpr[[0, -1]].tolist() == [0.0, 1.0]
    np.testing.assert_allclose(tpr, RISK.tpr(np.clip(fpr, 0, 1)).upper, atol=3e-3)
    assert 'role="img" aria-label="trade-off curve of the best attack"' in html


def test_other_peoples_words_are_text() -> None:
    class Odd(bs.Membership):
        def describe(self) -> str:
            return "<script>alert(1)</script> & [bold]"

    odd = bs.analyze(RUN, Odd())
    assert "<script>" not in html_of(odd)
    assert "<script>" in printed_by_rich(odd)


def test_a_sweep() -> None:
    sweep = bs.analyze(bs.DPSGD([1.0, 2.0, 4.0], [[0.01], [0.02]], 500))
    low, high = sweep.bayes_security.lower.min(), sweep.bayes_security.lower.max()
    assert re.fullmatch(r"Membership inference \(substitution\), a sweep of 2 × 3 runs: β\* from 0\.\d+ to 0\.\d+\.", str(sweep))
    shown = [float(one) for one in re.findall(r"0\.\d+", str(sweep))]
    assert shown[0] <= low < shown[0] + 1e-3
    assert shown[1] <= high < shown[1] + 1e-3


def test_a_sweep_is_a_table() -> None:
    """A row for each run: what differs, and the numbers to rely on, as the run alone has them."""
    run = bs.DPSGD([1.0, 2.0, 4.0], [[0.01], [0.02]], 500)
    sweep = bs.analyze(run)
    assert {name: values.tolist() for name, values in sweep.parameters.items()} == {
        "noise_multiplier": [[1.0, 2.0, 4.0]] * 2,
        "sample_rate": [[0.01] * 3, [0.02] * 3],
    }
    rows = re.findall(r"<tr><th>(.*?)</tr>", html_of(sweep))
    assert rows[0].startswith("noise multiplier</th><th>sample rate</th><th>β*</th>")
    for row, alone in zip(rows[1:], run.scalars(), strict=True):
        risk = bs.analyze(alone)
        shown = [risk_table["rely on"] for risk_table in table_of(html_of(risk))]
        assert re.split(r"(?:</t[hd]>(?:<td>)?)+", row)[:-1] == [
            f"{alone.noise_multiplier:g}", f"{alone.sample_rate:g}", *shown
        ]  # fmt: skip
    assert "right" in printed_by_rich(sweep)


def table_of(html: str) -> list[dict[str, str]]:
    """The rows of a table, by its heads."""
    heads, *rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    return [dict(zip(heads, row, strict=True)) for row in rows]


def test_the_rows_of_a_sweep() -> None:
    """Several parts are told apart, approximations are marked, a long sweep is cut off, and what varies nowhere is left out."""
    parts = bs.analyze(bs.DPSGD(1.0, 0.01, [10, 100]) + bs.DPSGD([2.0, 3.0], 0.01, 7))
    assert list(table_of(html_of(parts))[0])[:2] == ["steps, part 1", "noise multiplier, part 2"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.RegimeWarning)
        paper = bs.analyze(bs.DPSGD([1.0, 2.0], 0.01, 500), method="paper")
    assert all(row["β*"].startswith("≈ 0.") for row in table_of(html_of(paper)))
    assert "β* from ≈ 0." in str(paper)
    long = bs.analyze(bs.DPSGD(np.linspace(1, 3, 23), 0.01, 500), method="affinity")
    assert len(table_of(html_of(long))) == 20
    assert "3 more runs are not shown." in html_of(long)
    same = bs.analyze(bs.DPSGD([2.0, 2.0], 0.01, 500), method="affinity")
    assert [row["run"] for row in table_of(html_of(same))] == ["0", "1"]
    assert RISK.parameters == {}
    assert bs.heuristics.final_model(bs.DPSGD([1.0, 2.0], 0.01, 500)).parameters.keys() == {"noise_multiplier"}


def test_a_bound_is_a_number() -> None:
    """The estimate: a bound does not know which of its ends is the safe one."""
    bound = RISK.bayes_security
    assert float(bound) == bound.estimate
    assert isinstance(float(RISK.tpr(0.01)), float)
    assert float(RISK.gdp_mu) == RISK.gdp_mu.estimate
    assert float(bs.Bound(0, 1, 2)) == 1.0
    sweep = bs.analyze(bs.DPSGD([1.0, 2.0], 0.01, 500)).advantage
    with pytest.raises(TypeError, match=r"float\(\) needs one bound, but this one is a sweep of shape \(2,\): take its arrays"):
        float(sweep)


def test_an_end_that_is_not_known_says_what_to_do() -> None:
    run, threat = bs.DPSGD(0.26185, 0.178743, 108), bs.Membership(records=15)
    exact = bs.analyze(run, threat)
    assert str(exact.epsilon(1e-5)).endswith(", not known]")
    assert "inf" not in str(exact.epsilon(1e-5))
    shown = exact._repr_html_()
    assert (
        "The upper end of ε at δ 1e-5 is not known: losses are too large to be integrated; method=&#x27;certified&#x27;, "
        in shown
    )
    assert np.isfinite(bs.analyze(run, threat, "certified").epsilon(0.3).upper)
    assert "it does not follow from β* alone" in bs.analyze(bs.DPSGD(1.0, 0.1, 10), method="affinity")._repr_html_()
    assert "not known" not in bs.analyze(bs.DPSGD(1.0, 0.1, 10))._repr_html_()
