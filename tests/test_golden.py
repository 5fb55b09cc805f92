"""Against values computed without betastar (golden/generate.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
from betastar.certified.enclosure import certify
from betastar.exact import FourierCurve
from betastar.steps.base import Family
from betastar.steps.poisson import PoissonFactor, PoissonStep

ROWS = json.loads((Path(__file__).parent / "golden" / "golden.json").read_text())


def name(row: dict[str, Any]) -> str:
    return "+".join(f"p{p:g}s{s:g}R{r:g}T{n:g}" for p, s, r, n in row["segments"]) + f"-{row['kind']}-{row['way']}"


def curve(row: dict[str, Any]) -> FourierCurve:
    """The curve that a golden value belongs to: the line pair or the glued curve."""
    family: Family = "glued" if row["kind"] == "glued" else "line"
    symmetric = row["kind"] == "glued" or all(r == 2.0 for _, _, r, _ in row["segments"])
    return FourierCurve([PoissonFactor(n, family, p, s, r) for p, s, r, n in row["segments"]], symmetric)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_exact_bayes_security(row: dict[str, Any]) -> None:
    truth = float(row["beta"])
    value, error = curve(row).overlap()
    assert abs(value - truth) <= 1e-8
    assert abs(value - truth) <= error + 1e-15, "the reported error is too small"
    assert abs(value - truth) <= 1e-6 * truth, "a small β* must keep its digits"
    assert error <= 1e-8


@pytest.mark.parametrize("row", [row for row in ROWS if row["tpr"]], ids=name)
def test_exact_true_positive_rates(row: dict[str, Any]) -> None:
    exact = curve(row)
    for fpr, text in row["tpr"].items():
        truth = float(text)
        value, error = exact.true_positives(float(fpr))
        assert value == pytest.approx(truth, rel=1e-6), fpr
        assert abs(value - truth) <= error + 1e-9 * truth, "the reported error is too small"


@pytest.mark.parametrize("row", [row for row in ROWS if row["kind"] == "line" and row["segments"][0][2] in (1.0, 2.0)], ids=name)
def test_public_api_agrees(row: dict[str, Any]) -> None:
    """Through DPSGD, segments and threats, with the relation of the pair."""
    distances = {r for _, _, r, _ in row["segments"]}
    run = None
    for p, s, _, n in row["segments"]:
        run = bs.DPSGD(s, p, n) if run is None else run + bs.DPSGD(s, p, n)
    assert run is not None
    threat = bs.Membership("substitution" if distances == {2.0} else "add-remove")
    beta = bs.analyze(run, threat).bayes_security
    assert float(row["beta"]) == pytest.approx(beta.estimate, abs=1e-8)
    assert beta.lower - 1e-15 <= float(row["beta"]) <= beta.upper + 1e-15


@pytest.mark.parametrize("row", json.loads((Path(__file__).parent / "golden" / "samplings.json").read_text()), ids=str)
def test_other_samplings(row: dict[str, Any]) -> None:
    """Batches of a fixed size, where the value is exact, and batches that are cut off, where it is an upper bound."""
    if row["kind"] == "fixed-size":
        size, drawn, noise, steps = row["numbers"]
        run = bs.DPSGD(noise, drawn / size, steps, "fixed-size", dataset_size=size)
    else:
        size, rate, most, noise, steps = row["numbers"]
        run = bs.DPSGD(noise, rate, steps, max_batch_size=most, dataset_size=size)
    risk = bs.analyze(run, bs.Membership("add-remove")).advantage
    assert risk.upper == pytest.approx(row["advantage"], rel=2e-4)
    proof = bs.analyze(run, bs.Membership("add-remove"), method="certified").advantage
    assert proof.lower - 1e-5 <= row["advantage"] <= proof.upper + 1e-5


def certificate_holds(row: dict[str, Any]) -> None:
    truth = float(row["beta"])
    symmetric = row["kind"] == "glued" or row["segments"][0][2] != 1.0
    proof = certify([PoissonStep(p, s, r, n) for p, s, r, n in row["segments"]], symmetric, 1e-4)
    assert proof.lower <= truth
    if row["kind"] == "line" and (not symmetric or row["segments"][0][2] == 2.0):
        assert truth <= proof.upper
        assert proof.upper - proof.lower <= 1e-4
    else:
        assert truth - proof.lower <= 1e-4, "the glued curve itself is enclosed to the tolerance"


def heavy(row: dict[str, Any]) -> bool:
    return any(n >= 10**8 or s < 0.5 for _, s, _, n in row["segments"])


@pytest.mark.parametrize("row", [row for row in ROWS if not heavy(row)], ids=name)
def test_certified_contains_the_truth(row: dict[str, Any]) -> None:
    certificate_holds(row)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if heavy(row)], ids=name)
def test_certified_contains_the_truth_at_the_extremes(row: dict[str, Any]) -> None:
    certificate_holds(row)
