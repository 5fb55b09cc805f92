"""What is printed, when it is read again, is never on the unsafe side of the number."""

from __future__ import annotations

import json
import re
import warnings
from fractions import Fraction
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import betastar as bs
from betastar import rounding
from betastar.cli.answers import rows as rows_of
from betastar.training.budget import Budget, BudgetAccount

from .command import call

SHARES = st.one_of(st.floats(0.0, 1.0), st.floats(0.9499, 0.9501), st.floats(0.0, 1e-9), st.floats(0.999999, 1.0))


@given(SHARES, st.integers(0, 8))
def test_decimal_places(value: float, places: int) -> None:
    assert float(rounding.down(value, places)) <= value <= float(rounding.up(value, places))
    assert Fraction(rounding.up(value, places)) - Fraction(rounding.down(value, places)) <= Fraction(1, 10**places)
    above, below = (rounding.percent(value, places, upwards) for upwards in (True, False))
    exact = 100 * Fraction(repr(value))
    assert Fraction(below.removesuffix(" %")) <= exact <= Fraction(above.removesuffix(" %"))


@given(st.floats(5e-324, 1e300), st.integers(1, 12))
def test_significant_digits(value: float, digits: int) -> None:
    assert float(rounding.significant(value, digits, upwards=False)) <= value <= float(rounding.significant(value, digits))
    assert float(rounding.tiny(value)) >= value
    assert rounding.shortened(value, digits, False) <= value <= rounding.shortened(value, digits, True)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_plain_numbers_read_back(value: float) -> None:
    assert float(rounding.plain(value)) == value


def test_short_numbers_stay_and_infinite_ones_are_said() -> None:
    assert [rounding.down(0.95), rounding.up(0.05), rounding.percent(0.55)] == ["0.9500", "0.0500", "55.0 %"]
    assert rounding.plain(20.0) == "20"
    assert rounding.significant(0.05, 2) == "0.05"
    for shown in (rounding.up, rounding.down, rounding.significant, rounding.tiny, rounding.percent):
        assert shown(inf) == "no bound"


@given(st.floats(0.0, 1.0), st.floats(0.0, 1e-4))
def test_a_bound_prints_its_ends_outward(middle: float, width: float) -> None:
    bound = bs.Bound(max(0.0, middle - width), middle, min(1.0, middle + width))
    estimate, low, high = map(float, re.findall(r"[-+.\de]+", str(bound)))
    assert low <= bound.lower
    assert high >= bound.upper
    assert low <= estimate <= high


@given(st.floats(0.5, 1.0, exclude_max=True))
def test_a_budget_promises_no_more_than_was_asked(beta: float) -> None:
    account = BudgetAccount(Budget(beta), 3)
    for text in (str(account.proof(5)), str(account.refusal(5))):
        said = re.search(r"β\* ≥ ([-\d.e]+) ", text)
        assert said is not None
        assert float(said[1]) <= beta


@pytest.mark.parametrize("beta", [0.9999999, 0.9499999])
def test_budgets_that_were_rounded_to_the_wrong_side(beta: float) -> None:
    assert f"β* ≥ {beta} " in str(BudgetAccount(Budget(beta), 1).proof(0))


NUMBERS = st.floats(1e-9, 1.0)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_the_table_of_an_answer(beta: float, risk: float, mu: float) -> None:
    """Each number to rely on, read from the table."""
    ends = {"lower": risk, "estimate": risk, "upper": risk}
    answer = {
        "bayes_security": {"lower": beta, "estimate": beta, "upper": 1.0},
        "advantage": ends,
        "success": {"prior": 0.5, **ends},
        "tpr": [{"fpr": mu, **ends}],
        "epsilon": [{"delta": mu, **ends}],
        "gdp_mu": {"lower": mu, "estimate": mu, "upper": mu, "smallest_fpr": 1e-5},
    }
    for short in (False, True):
        rows = {title: relied for title, relied, *_ in rows_of(answer, short)}
        titles = list(rows)
        assert float(rows.pop(titles[0])) <= beta
        assert float(rows.pop(titles[5])) >= mu
        assert "down to FPR 1e-5" in titles[5], "μ depends on the floor"
        for text in rows.values():
            assert Fraction(text.removesuffix(" %")) / (100 if "%" in text else 1) >= Fraction(repr(risk))
        assert float(titles[3].split()[-1]) == mu, "a condition is said with all of its digits"


def test_mu_is_said_with_its_floor() -> None:
    fit = bs.analyze(bs.DPSGD(9.4, 0.328, 2000), method="certified").gdp_mu
    assert str(fit).endswith("down to FPR 1e-5")
    done = call("analyze", "--noise", "9.4", "--rate", ".328", "--steps", "2000", "--require", "gdp_mu<=1", "--metric", "gdp_mu")
    code, out, err = done.returncode, done.stdout, done.stderr
    assert code == 1
    assert "down to FPR 1e-5" in out
    assert "down to FPR 1e-5" in err


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 0.999), st.floats(-3.5, -0.5), st.integers(1, 5000), st.sampled_from(["noise_multiplier", "sample_rate"]))
def test_what_calibrate_prints_meets_the_target(beta: float, log_rate: float, steps: int, left_out: str) -> None:
    """The printed parameter, read again, with the method that found it; and certified does not refute it."""
    numbers: dict[str, Any] = {"steps": steps}
    numbers |= {"sample_rate": 10**log_rate} if left_out == "noise_multiplier" else {"noise_multiplier": 0.5 - log_rate}
    target = bs.Target.parse(f"bayes_security>={beta!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.NoNoiseNeeded)
        shown = rounding.plain(getattr(bs.calibrate(target, **numbers), left_out))
    printed = float(shown)
    assert len(shown.replace(".", "").strip("0").partition("e")[0]) <= rounding.CALIBRATED
    run = bs.DPSGD(**{**numbers, left_out: printed})
    assert target.met(bs.analyze(run))
    assert float(bs.analyze(run, method="certified").bayes_security.upper) >= beta


@pytest.mark.parametrize(("target", "given_"), [
    ("bayes_security>=0.95", ["--rate", "0.01", "--steps", "700"]),
    ("bayes_security>=0.9", ["--noise", "1.3", "--steps", "900"]),
    ("success<=0.53", ["--batch", "100", "--records", "7000", "--epochs", "3"]),
    ("tpr<=0.03@fpr=0.01", ["--noise", "2", "--rate", "0.003"]),
    ("gdp_mu<=0.3", ["--rate", "0.02", "--steps", "400"]),
    ("epsilon<=1.5@delta=1e-5", ["--noise", "2", "--batch", "50", "--records", "9000"]),
])  # fmt: skip
def test_printed_parameters_meet_the_target_by_certified(target: str, given_: list[str]) -> None:
    done = call("calibrate", "--target", target, "--method", "certified", *given_)
    code, out = done.returncode, done.stdout
    printed = re.match(r"(--\w+) (\S+) just meets", out)
    assert code == 0
    assert printed is not None
    done = call("analyze", printed[1], printed[2], "--method", "certified", *given_, "--require", target)
    code, err = done.returncode, done.stderr
    assert code == 0, err


def test_a_missing_bound_is_said() -> None:
    assert next(rows_of({"epsilon": [{"delta": 1e-5, "lower": 1.0, "estimate": 2.0, "upper": None}]}))[1] == "no bound"


def test_amounts_are_written_without_a_power_of_ten() -> None:
    shown = {
        59397.3: "59,400",
        0.8074: "0.8074",
        12.0: "12",
        1234567.0: "1,235,000",
        0.00012345: "0.0001234",
        0.0: "0",
        -0.25: "-0.25",
    }
    assert {value: rounding.nearest_amount(value) for value in shown} == shown
    amounts = [rounding.nearest_amount(value) for value in (1e20, 3e-9, inf)]
    assert amounts == ["1e+20", "3e-9", "no bound"]


def test_settings_are_repeated_with_all_digits() -> None:
    noise = 1.2345678901234567
    answer = json.loads(call("analyze", "--noise", repr(noise), "--rate", "0.01", "--steps", "100", "--json").stdout)
    assert f"--noise {noise!r}" in answer["command"]
