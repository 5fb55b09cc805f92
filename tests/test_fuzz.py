"""40 of the random settings that have some noise, 200 in `make test-all`; `make fuzz` checks 10,000."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import betastar as bs
from betastar import coins
from betastar.exact import FourierCurve
from betastar.steps.base import Family
from betastar.steps.poisson import factors

from . import brackets, fuzz

#: With less noise some settings take seconds.
NOISE = 0.1
NUMBERS = [n for n in range(250) if min(part.noise_multiplier for part in fuzz.Case.draw(n).run.segments) >= NOISE][:200]


@pytest.mark.parametrize("tenth", [tenth if tenth == 2 else pytest.param(tenth, marks=pytest.mark.slow) for tenth in range(10)])
def test_no_number_is_on_the_unsafe_side(tenth: int) -> None:
    reports = [fuzz.check(number, tolerance=1e-2, quick=True) for number in NUMBERS[tenth::10]]
    assert len(reports) == 20
    assert not [(str(report.case), report.faults) for report in reports if report.faults]


def test_no_number_of_another_sampling_is_on_the_unsafe_side() -> None:
    reports = [fuzz.check(number, tolerance=1e-2, quick=True) for number in range(fuzz.PLAIN + 3, fuzz.PLAIN + 103, 20)]
    drawn = {report.case.run.sampling for report in reports}
    assert drawn == {"fixed-size", "poisson", "balls-in-bins"}
    assert not [(str(report.case), report.faults) for report in reports if report.faults]


def fixed(run: bs.DPSGD, threat: Any, family: Family, symmetric: bool) -> float:
    """The advantage of a fixed pair, or of the glued curve, by the transform."""
    return 1.0 - FourierCurve(factors(threat.reduction(run).proved[0].steps, family), symmetric).overlap().value


def test_many_distances_are_narrow_and_safe() -> None:
    """40 runs with up to 60 different distances in any order: above what is attained, below what is proved, and narrow."""
    widths = []
    for number in range(40):
        run, threat = fuzz.many_distances(np.random.default_rng([30, number]), 60.0)
        risk = bs.analyze(run, threat).advantage
        assert risk.lower <= risk.estimate <= risk.upper
        if min(part.noise_multiplier for part in run.segments) < 0.35:
            told = coins.told(threat.reduction(run).proved[0].steps)
            assert told is not None
            assert risk.lower <= told.hockey_stick(0.0).value + 1e-9
            continue
        assert risk.lower <= fixed(run, threat, "glued", True) + 1e-9, run
        assert risk.upper >= fixed(run, threat, "line", False) - 1e-8, run
        widths.append((risk.upper - risk.lower) / risk.upper)
    assert np.quantile(widths, 0.95) <= 0.03
    assert max(widths) <= 0.1


def test_the_checks_see_a_number_on_the_unsafe_side() -> None:
    """Each of the comparisons complains of a number that is too good by a little."""
    report = fuzz.Report(fuzz.Case.draw(1))
    proof, risky = bs.Bound(0.9, 0.9001, 0.9002), bs.Bound(0.1, 0.1001, 0.1002)
    fuzz._agree(report, "bayes_security", {"certified": proof, "exact": bs.Bound(0.9003, 0.9003, 0.9003), "affinity": proof})
    assert "exact: unsafe bayes_security" in report.faults.pop(0)
    report.faults.clear()
    fuzz._agree(report, "advantage", {"certified": risky, "exact": risky, "affinity": bs.Bound(0.0, 0.05, 0.0999)})
    assert "affinity: unsafe advantage" in report.faults.pop(0)
    report.faults.clear()
    fuzz._is_bound(report, "tpr", bs.Bound(0.2, 0.1, 0.3), 0.0, 1.0)
    assert "out of order" in report.faults.pop()


GOLDEN = [
    (bs.DPSGD(3.51, 256 / 26048, 2040), bs.Membership(), 0.10064826, 3e-3),
    (bs.DPSGD(0.5, 1e-4, 10_000), bs.Membership(), 0.03788964, 4e-3),
    (bs.DPSGD(2.0, 1.0, 10), bs.Membership(), 0.88615370, 2e-3),
    (bs.DPSGD(1.0, 0.001, 50_000), bs.Membership("add-remove"), 0.11627956, 4e-3),
    (bs.DPSGD(3.51, 256 / 26048, 2040), bs.Membership("add-remove", records=8), 0.393567, 2e-3),
    (bs.DPSGD(0.8, 0.3, 6), bs.AttributeInference(1.0), 0.40905, 0.08),
    (bs.DPSGD(0.3, 1.0, 1), bs.AttributeInference(0.4), 0.4950149, 5e-3),
]


@pytest.mark.parametrize(("run", "threat", "advantage", "width"), GOLDEN, ids=str)
def test_brackets_enclose_what_is_known(run: bs.DPSGD, threat: Any, advantage: float, width: float) -> None:
    known = brackets.bracket(run, threat)
    assert known is not None
    low, high = known.sides("advantage")
    assert low <= advantage + 1e-7
    assert advantage <= high + 1e-7
    assert high - low <= width * high
    if isinstance(threat, bs.AttributeInference):  # the attacker who adapts is near the optimum
        assert low >= 0.995 * advantage


def test_a_number_that_is_too_good_by_little_is_seen() -> None:
    """Each metric of each method by 2 % of what some attack attains."""
    report = fuzz.Report(fuzz.Case(301, bs.DPSGD(1.0, 0.1, 20), bs.Membership("add-remove")))
    exact = bs.analyze(report.case.run, report.case.threat)
    honest = {name: read(exact) for name, (read, _, _) in fuzz.METRICS.items()}
    fuzz._bracketed(report, {"exact": honest})
    assert not report.faults
    assert report.compared == 2 * len(fuzz.METRICS) - 3  # of 4 secrets nothing is known, of μ one side
    del honest["success(4 secrets)"]  # not among the brackets
    for name, bound in honest.items():
        upper = 1.0 - 0.98 * float(exact.advantage.upper) if name == "bayes_security" else 0.98 * float(bound.upper)
        lower = upper if name == "bayes_security" else 0.0
        fuzz._bracketed(report, {"exact": {name: bs.Bound(lower, upper, upper)}})
        assert f"exact: unsafe {name}" in report.faults.pop(0)
        report.faults.clear()


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    kept = tmp_path / "fuzz.jsonl"
    done = {"number": 0, "setting": "kept from before", "faults": [], "seconds": 0.5, "slowest": ""}
    kept.write_text(json.dumps(done) + "\n" + '{"number": 1, "set')  # cut off in the middle
    command = [sys.executable, "-m", "tests.fuzz", "--settings", "3", "--tolerance", "0.01", "--output", str(kept)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert "3 settings, 0 with a fault" in ended.stdout
    lines = list(fuzz._kept(kept))
    assert [line["number"] for line in lines] == [0, 1, 2]
    assert lines[0] == done
