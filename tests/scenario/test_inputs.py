"""Bad input gets an error that names the argument, its value and what is allowed."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import betastar as bs
from betastar.steps.poisson import PoissonStep

RUN = bs.DPSGD(1.0, 0.01, 100)
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])

CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: bs.DPSGD(0.0, 0.1, 10), ValueError, r"noise_multiplier must be a finite number greater than 0, got 0\.0"),
    (lambda: bs.DPSGD(math.nan, 0.1, 10), ValueError, r"noise_multiplier .* got nan"),
    (lambda: bs.DPSGD(math.inf, 0.1, 10), ValueError, r"noise_multiplier .* got inf"),
    (lambda: bs.DPSGD("1", 0.1, 10), TypeError, r"noise_multiplier .* got '1'"),
    (lambda: bs.DPSGD(1.0, 0.0, 10), ValueError, r"sample_rate must be greater than 0 and at most 1, got 0\.0"),
    (lambda: bs.DPSGD(1.0, 1 + 0.1j, 10), TypeError, r"sample_rate"),
    (lambda: bs.DPSGD(1.0, 0.1, 0), ValueError, r"steps must be a whole number of at least 1, got 0"),
    (lambda: bs.DPSGD(1.0, 0.1, 2.5), ValueError, r"steps .* got 2\.5"),
    (lambda: bs.DPSGD(1.0, 0.1, True), TypeError, r"steps .* got True"),
    (lambda: bs.DPSGD(1.0, 0.01, [1, 2**53 + 2]), ValueError, r"steps must be a whole number of at least 1 and at most 9007199254740992"),
    (lambda: bs.DPSGD.from_epochs(1.0, 1, 10**9, np.array([1e12])), ValueError, r"steps .* at most 9007199254740992"),
    (lambda: bs.DPSGD(np.ones(2), np.full(3, 0.1), 10), ValueError, r"must broadcast together"),
    (lambda: bs.DPSGD.from_epochs(1.0, 300, 200, 1), ValueError, r"batch_size must be at most dataset_size, got 300 > 200"),
    (lambda: bs.DPSGD.from_epochs(1.0, 10, 200, 0), ValueError, r"epochs .* got 0"),
    (lambda: bs.DPSGD.from_epochs(1.0, 10.5, 200, 1), ValueError, r"batch_size .* got 10\.5"),
    (lambda: bs.DPSGD([], 0.1, 10), ValueError, r"noise_multiplier .* got an empty array"),
    (lambda: bs.DPSGD(MASKED, 0.1, 10), TypeError, r"noise_multiplier must be an array without a mask, got masked_array"),
    (lambda: bs.DPSGD([[1.0], [1.0, 2.0]], 0.1, 10), TypeError, r"noise_multiplier .* got \[\[1\.0\], \[1\.0, 2\.0\]\]"),
    (lambda: bs.DPSGD(torch.tensor(1.0, requires_grad=True), 0.1, 10), TypeError, r"noise_multiplier .* got tensor\(1., req"),
    (lambda: bs.DPSGD(1.0, 0.1, 10**400), TypeError, r"steps must be a whole number of at least 1, got 1000"),
    (lambda: bs.DPSGD(1.0, 0.1, 10, max_batch_size=[20], dataset_size=100), TypeError, r"max_batch_size .* got \[20\]"),
    (lambda: bs.DPSGD(Decimal("NaN"), 0.1, 10), ValueError, r"noise_multiplier .* got Decimal\('NaN'\)"),
    (lambda: bs.DPSGD(1.0, 0.2, 10, times_per_epoch=2), ValueError, r"times_per_epoch must be 1 with sampling 'poisson', got 2"),
    (lambda: bs.DPSGD(1.0, 0.3, 10, "balls-in-bins", times_per_epoch=2), ValueError, r"sample_rate must be 2 divided by .*; 2/7 = 0.28"),
    (lambda: bs.DPSGD(1.0, 0.2, 15, "balls-in-bins", times_per_epoch=2), ValueError, r"steps must be a whole number of epochs"),
    (lambda: bs.DPSGD(1.0, 0.2, 10, "balls-in-bins", times_per_epoch=0), ValueError, r"times_per_epoch .* got 0"),
    (lambda: RUN + 3, TypeError, r"unsupported operand"),
    (lambda: bs.Membership("swap"), ValueError, r"relation must be one of 'substitution', 'add-remove', got 'swap'"),
    (lambda: bs.AttributeInference(2.1), ValueError, r"distances must be between 0 and 2 .*, got 2\.1"),
    (lambda: bs.AttributeInference([]), (ValueError, TypeError), r"distances"),
    (lambda: bs.AttributeInference([0.1], counts=[]), ValueError, r"counts .* got an empty array"),
    (lambda: bs.Membership(records=torch.tensor([1.0], requires_grad=True)), TypeError, r"records .* requires_grad"),
    (lambda: bs.AttributeInference([0.1, 0.2], counts=[1]), ValueError, r"counts must have one entry for each"),
    (lambda: bs.AttributeInference({0.1: 2}, counts=[2]), TypeError, r"counts must be left out"),
    (lambda: bs.analyze(RUN, bs.AttributeInference([0.1, 0.2])), ValueError, r"one entry for each of the 100 steps, got 2"),
    (lambda: bs.analyze(RUN, bs.AttributeInference({0.1: 99})), ValueError, r"counts must add up to the 100 steps .* got 99"),
    (lambda: bs.analyze(RUN + RUN, bs.AttributeInference({0.1: 200})), ValueError, r"several segments"),
    (lambda: bs.AttributeInference.among([[0.0, 1.0]]), ValueError, r"M × M"),
    (lambda: bs.AttributeInference.among([[0.0, 1.0], [0.5, 0.0]]), ValueError, r"symmetric"),
    (lambda: bs.AttributeInference.among([[0.0, 3.0], [3.0, 0.0]]), ValueError, r"between 0 and 2"),
    (lambda: bs.analyze(1.0), TypeError, r"run must be a DPSGD or a BestOf, got 1\.0"),  # type: ignore[arg-type]
    (lambda: bs.analyze(RUN, "membership"), TypeError, r"threat must be Membership"),  # type: ignore[arg-type]
    (lambda: bs.analyze(RUN, method="magic"), ValueError, r"method must be one of 'exact', .* got 'magic'"),
    (lambda: bs.analyze(RUN, method="certified", tolerance=0.0), ValueError, r"tolerance must be at least 1e-8"),
    (lambda: bs.analyze(RUN, method="certified", tolerance=[1e-3]), TypeError, r"tolerance must be one number, got"),
    (lambda: bs.analyze(RUN).tpr(np.ma.masked), TypeError, r"fpr must be an array without a mask"),
    (lambda: bs.analyze(RUN).gaussian([]), ValueError, r"smallest_fpr .* got an empty array"),
    (lambda: bs.Target(advantage=[0.1]), TypeError, r"advantage must be one number, got \[0.1\]"),
    (lambda: bs.analyze(RUN).tpr(1.1), ValueError, r"fpr must be between 0 and 1, got 1\.1"),
    (lambda: bs.analyze(RUN).success(prior=-0.1), ValueError, r"prior"),
    (lambda: bs.analyze(RUN).success(prior=[0.5, 0.6]), ValueError, r"add up to 1"),
    (lambda: bs.analyze(RUN).delta(-1.0), ValueError, r"epsilon .* got -1\.0"),
    (lambda: bs.analyze(RUN).epsilon(0.0), ValueError, r"delta must be strictly between 0 and 1, got 0\.0"),
    (lambda: bs.analyze(RUN).gaussian(0.7), ValueError, r"smallest_fpr"),
    (lambda: bs.advantage_from_epsilon(-1.0), ValueError, r"epsilon"),
    (lambda: bs.epsilon_from_bayes_security(1.2), ValueError, r"bayes_security"),
    (lambda: bs.Target(), TypeError, r"Target needs one of bayes_security"),
    (lambda: bs.Target(beta=0.9), TypeError, r"got beta"),
    (lambda: bs.Target(bayes_security=1.0), ValueError, r"bayes_security must be strictly between 0 and 1, got 1\.0"),
    (lambda: bs.Target(tpr=0.1), TypeError, r"needs fpr as well"),
    (lambda: bs.Target(tpr=0.1, prior=0.1), TypeError, r"takes fpr, got prior"),
    (lambda: bs.Target(tpr=0.01, fpr=0.05), ValueError, r"tpr<=0\.01@fpr=0\.05 is impossible"),
    (lambda: bs.Target(success=0.4), ValueError, r"success<=0\.4 is impossible: .* 0\.5"),
    (lambda: bs.Target(success=0.8, prior=0.1), ValueError, r"success<=0\.8@prior=0\.1 is impossible: .* 0\.9"),
    (lambda: bs.Target(epsilon=1.0), TypeError, r"epsilon"),
    (lambda: bs.calibrate("0.9", steps=1, sample_rate=0.1), TypeError, r"target must be a Target"),  # type: ignore[arg-type]
    (lambda: bs.calibrate(bs.Target(advantage=0.1), steps=10), TypeError, r"leave out exactly one .* missing: noise_multiplier, sample_rate"),
    (lambda: bs.calibrate(bs.Target(advantage=0.1), noise_multiplier=1.0, sample_rate=0.1, steps=10), TypeError, r"missing: none"),
    (lambda: bs.calibrate(bs.Target(advantage=0.1), sample_rate=0.1, epochs=3), TypeError, r"epochs must come with batch_size and dataset_size"),
    (lambda: bs.calibrate(bs.Target(advantage=0.1), noise_multiplier=1.0, batch_size=10), TypeError, r"missing: dataset_size, epochs"),
    (lambda: bs.calibrate(bs.Target(advantage=0.1), sample_rate=2.0, steps=10), ValueError, r"sample_rate .* got 2\.0"),
    (lambda: bs.calibrate(bs.Target(advantage=0.1), sample_rate=np.array([0.1, 0.2]), steps=10), TypeError, r"needs numbers, got arrays"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), CASES, ids=[message[:40] for *_, message in CASES])
def test_errors(call: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_decimals_fractions_and_tensors_are_numbers() -> None:
    run = bs.DPSGD(1.0, 0.125, 10)
    assert bs.DPSGD(Decimal(1), Fraction(1, 8), torch.tensor(10)) == run
    assert bs.DPSGD([Decimal(1), 2], Fraction(1, 8), 10) == bs.DPSGD([1.0, 2.0], 0.125, 10)
    assert bs.AttributeInference({Decimal("0.5"): 3}) == bs.AttributeInference({0.5: 3})


def test_a_run_and_a_threat_keep_their_numbers() -> None:
    """They are copies, which nobody can change: not the caller's array, not what is read off them, not those of a copy."""
    noise, distances, counts = np.array([1.0, 2.0]), np.array([0.5, 0.2]), np.array([3, 7])
    run, threat = bs.DPSGD(noise, 0.1, np.array([10, 20])), bs.AttributeInference(distances, counts)
    before = hash(run), repr(run), hash(threat), repr(threat)
    noise[0] = distances[0] = counts[0] = 9
    assert (hash(run), repr(run), hash(threat), repr(threat)) == before
    for made in (run, copy.deepcopy(run), pickle.loads(pickle.dumps(run)), next((run + run).scalars()) + run):
        for array in (made.segments[-1].noise_multiplier, made.segments[-1].steps):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 9
    for same in (threat, copy.deepcopy(threat), pickle.loads(pickle.dumps(threat))):
        assert same == threat
        for array in (same.distances, same.counts):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        with pytest.raises(AttributeError, match="a threat is frozen"):
            same.distances = 0.5


def test_threats_compare_by_all_of_their_numbers() -> None:
    distances = np.linspace(0.1, 1.0, 2000)
    other = distances.copy()
    other[1000] = 0.123
    one, two = bs.AttributeInference(distances), bs.AttributeInference(other)
    assert repr(one) == repr(two), "NumPy leaves out the middle of a long array"
    assert one != two
    assert len({one, two, bs.AttributeInference(distances)}) == 2
    assert bs.Membership() != bs.AttributeInference(2.0)
    square = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert bs.AttributeInference.among(square) == bs.AttributeInference.among(square.tolist())
    assert bs.AttributeInference.among(square) != bs.AttributeInference.among(0.5 * square)


def test_the_closed_form_warns_outside_its_regime() -> None:
    with pytest.warns(bs.RegimeWarning, match="below 1, got 0.9"):
        bs.analyze(bs.DPSGD(0.9, 0.001, 50000), method="paper")
    with pytest.warns(bs.RegimeWarning, match="below 1, got 0.5"):
        bs.analyze(bs.DPSGD(np.array([0.5, 2.0]), 0.001, 100), method="paper")


def test_the_closed_form_is_quiet_within_its_regime() -> None:
    risk = bs.analyze(bs.DPSGD(3.51, 256 / 26048, 2020), method="paper")
    assert risk.bayes_security.lower == 0.0, "its error term is above 1 here: vacuous, and shown"
    tight = bs.analyze(bs.DPSGD(100.0, 1e-4, 10), method="paper").bayes_security
    error = math.sqrt(10 * 1e-4 * (1 - 1e-4)) / 100.0
    assert tight.upper == 1.0
    assert tight.estimate - tight.lower == pytest.approx(error, rel=1e-9)


def test_steps_keep_their_order() -> None:
    run = bs.DPSGD(1.0, 0.01, 40) + bs.DPSGD(2.0, 0.01, 10)
    distances = np.linspace(0.0, 1.5, 50)
    ordered = bs.AttributeInference(distances).reduction(run).proved[0].in_order
    assert ordered is not None
    assert [step.distance for step in ordered] == distances.tolist()
    assert [step.noise for step in ordered] == [1.0] * 40 + [2.0] * 10


def test_a_subclass_that_changes_steps_alone_is_refused() -> None:
    """What it inherits would be about other steps, and a bound of these would be no bound."""
    with pytest.raises(TypeError, match=r"Farther must define reduction\(run\) as well as steps\(run\)"):

        class Farther(bs.AttributeInference):
            def steps(self, run: bs.DPSGD) -> tuple[PoissonStep, ...]:
                return ()
