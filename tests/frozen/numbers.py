"""The questions whose answers are frozen: expressions over the public names of betastar, by group, and answers as text."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from math import exp, log
from typing import Any

import dp_accounting
import numpy as np

import betastar as bs

METHODS = ("paper", "affinity", "exact", "certified")
#: The paper has no closed form for other samplings, nor for persons: it raises an error, which one question is about.
WITHOUT_PAPER = METHODS[1:]
#: A metric that raises an error is frozen as the error.
METRICS: dict[str, Callable[[bs.Risk], bs.Bound]] = {
    "bayes_security": lambda risk: risk.bayes_security,
    "advantage": lambda risk: risk.advantage,
    "success(.5)": lambda risk: risk.success(0.5),
    "success(.1)": lambda risk: risk.success(0.1),
    "tpr(1e-6)": lambda risk: risk.tpr(1e-6),
    "tpr(.01)": lambda risk: risk.tpr(0.01),
    "tpr(.1)": lambda risk: risk.tpr(0.1),
    "delta(1)": lambda risk: risk.delta(1.0),
    "epsilon(1e-5)": lambda risk: risk.epsilon(1e-5),
    "reconstruction(1/74)": lambda risk: risk.reconstruction(1 / 74),
    "gdp_mu": lambda risk: risk.gdp_mu,
}
#: Of each group, every so many questions are in the sample: (stride, first). What takes long is not; odd strides mix the methods.
SAMPLE = {
    "membership": (27, 0),
    "persons": (23, 2),
    "attribute": (23, 1),
    "samplings": (23, 5),
    "sums": (15, 2),
    "extremes": (17, 5),
    "sweeps": (9, 2),
    "candidates": (9, 1),
    "final model": (3, 0),
    "events": (3, 0),
    "calibrate": (6, 0),
    "targets": (2, 0),
    "plans": (4, 0),
    "conversions": (2, 0),
    "tolerance": (5, 1),
}


def questions() -> dict[str, list[str]]:
    """For each group, expressions that are evaluated with the names bs, np and dp (dp_accounting)."""
    return {
        "membership": _by_methods(_membership()),
        "persons": [
            *_by_methods(_persons(), WITHOUT_PAPER),
            "bs.analyze(bs.DPSGD(1.0, 0.1, 9), bs.Membership(records=2), 'paper')",
        ],
        "attribute": [*_by_methods(_attribute(), ("paper", "affinity")), *_dear_attribute()],
        "samplings": [*_by_methods(_samplings(), WITHOUT_PAPER), *SAMPLED_ATTRIBUTES, *SAMPLED_BY_PAPER],
        "sums": _by_methods(SUMS),
        "extremes": [*_by_methods(EXTREMES), *_by_methods(WRONG, ("exact",))],
        "sweeps": _by_methods(SWEEPS),
        "candidates": _by_methods(CANDIDATES),
        "final model": FINAL_MODEL,
        "events": EVENTS,
        "calibrate": CALIBRATED,
        "targets": TARGETS,
        "plans": PLANS,
        "conversions": CONVERSIONS,
        "tolerance": TOLERANCES,
    }


def sample() -> dict[str, list[str]]:
    """Some questions of each group, which take seconds together."""
    return {group: every[SAMPLE[group][1] :: SAMPLE[group][0]] for group, every in questions().items()}


def answer(expression: str) -> dict[str, Any]:
    """What an expression is, each number as text that keeps all its bits; of an error its type alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = eval(expression, {"bs": bs, "np": np, "dp": dp_accounting})
        except Exception as problem:
            return {"error": _error(problem)}
        if isinstance(value, bs.Risk):
            return {name: _metric(read, value) for name, read in METRICS.items()}
        return _described(value)


def _metric(read: Callable[[bs.Risk], bs.Bound], risk: bs.Risk) -> Any:
    try:
        bound = read(risk)
    except Exception as problem:
        return {"error": _error(problem)}
    ends = [bits(bound.lower), bits(bound.estimate), bits(bound.upper)]
    return [*ends, bits(bound.regret), bits(bound.smallest_fpr)] if isinstance(bound, bs.GaussianFit) else ends


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, bs.DPSGD):
        return {name: bits(getattr(value, name)) for name in ("noise_multiplier", "sample_rate", "steps")}
    if isinstance(value, bs.Plan):
        return {**_described(value.run), "gap": bits(value.gap)}
    if isinstance(value, list) and value and isinstance(value[0], bs.Plan):
        return {str(i): _described(plan) for i, plan in enumerate(value)}
    return {"value": bits(value)}


def bits(number: Any) -> Any:
    """Numbers as text, in hexadecimal digits; arrays as lists."""
    if isinstance(number, bool | np.bool_):
        return bool(number)
    if np.ndim(number):
        return [bits(one) for one in np.asarray(number).tolist()]
    return float(number).hex()


def _error(problem: Exception) -> str:
    """The built-in type of an error: other types may be renamed."""
    return next(kind.__name__ for kind in type(problem).__mro__ if kind.__module__ == "builtins")


def _by_methods(settings: Any, methods: tuple[str, ...] = METHODS) -> list[str]:
    return [f"bs.analyze({run}, {threat}, {method!r})" for run, threat in settings for method in methods]


def _between(draw: np.random.Generator, low: float, high: float) -> float:
    """In even ratios, with four digits."""
    return float(f"{exp(draw.uniform(log(low), log(high))):.4g}")


def _run(draw: np.random.Generator, most: float = 3e4) -> str:
    rate, noise, steps = _between(draw, 1e-5, 0.9), _between(draw, 0.4, 20.0), round(_between(draw, 1.0, most))
    return f"bs.DPSGD({noise}, {rate}, {steps})"


Settings = Iterator[tuple[str, str]]


def _membership() -> Settings:
    draw = np.random.default_rng(1)
    for i in range(90):
        yield _run(draw), "bs.Membership('add-remove')" if i % 2 else "bs.Membership()"
    for noise in (0.5, 1.0, 3.51, 10.0):
        run = f"bs.DPSGD.from_epochs({noise}, 256, 26048, 20)"
        yield run, "bs.Membership()"
        yield run, "bs.Membership('add-remove')"
    yield "bs.DPSGD.from_epochs(1.0, 80, 100, 3, opacus=True)", "None"
    yield "bs.DPSGD.from_epochs(1.0, 80, 100, 2.5, opacus=False)", "None"


def _persons() -> Settings:
    draw = np.random.default_rng(2)
    for i in range(24):
        relation = ("substitution", "add-remove")[i % 2]
        yield _run(draw, 3e3), f"bs.Membership({relation!r}, records={(2, 8)[i // 2 % 2]})"


def _attribute() -> Settings:
    draw = np.random.default_rng(3)
    for i in range(40):
        yield _run(draw), f"bs.AttributeInference({(0.01, 0.3, 1.0, 1.9)[i % 4]})"
    for _ in range(10):
        yield _run(draw), f"bs.AttributeInference({_between(draw, 1e-3, 2.0)})"
    for number in (2, 5, 30):
        distances = [_between(draw, 0.01, 2.0) for _ in range(number)]
        yield f"bs.DPSGD(1.2, 0.05, {number})", f"bs.AttributeInference({distances})"
        counts = dict.fromkeys(distances, 20)
        yield f"bs.DPSGD(2.0, 0.01, {20 * number})", f"bs.AttributeInference({counts})"
    yield "bs.DPSGD(1.0, 0.01, 500)", "bs.AttributeInference([0.5, 0.2], [400, 100])"


#: Run, distances and method: seconds each where the attacker adapts.
DEAR: list[tuple[str, str, tuple[str, ...]]] = [
    *(
        ("bs.DPSGD(1.0, 0.01, 1000)", f"bs.AttributeInference({distance})", ("exact", "certified"))
        for distance in (0.0, 0.01, 0.3, 1.0, 1.9, 2.0)
    ),
    *(
        ("bs.DPSGD(3.51, 0.00983, 2040)", f"bs.AttributeInference({distance})", ("exact", "certified"))
        for distance in (0.1, 0.97)
    ),
    ("bs.DPSGD(0.8, 0.3, 6)", "bs.AttributeInference(1.0)", ("exact", "certified")),
    ("bs.DPSGD(0.8, 0.3, 1)", "bs.AttributeInference(1.0)", ("exact", "certified")),
    ("bs.DPSGD(0.8, 0.3, 2)", "bs.AttributeInference([0.4, 1.2])", ("exact", "certified")),
    ("bs.DPSGD(1.5, 1.0, 20)", "bs.AttributeInference(0.5)", ("exact", "certified")),
    ("bs.DPSGD(4.0, 0.02, 100)", "bs.AttributeInference({0.5: 60, 0.2: 40})", ("exact", "certified")),
    ("bs.DPSGD(4.0, 0.02, 40)", "bs.AttributeInference(np.linspace(0.05, 0.6, 40))", ("exact", "certified")),
    ("bs.DPSGD(2.0, 0.05, 60)", "bs.AttributeInference([0.8] * 20 + [0.5] * 20 + [0.2] * 20)", ("exact", "certified")),
    ("bs.DPSGD(1.0, 0.1, 60)", "bs.AttributeInference(0.4 + 0.3 * np.cos(np.arange(60)))", ("exact", "certified")),
    ("bs.DPSGD(1.0, 0.01, 50) + bs.DPSGD(2.0, 0.02, 50)", "bs.AttributeInference(0.5)", ("exact", "certified")),
    ("bs.DPSGD(0.3, 0.001, 100)", "bs.AttributeInference(0.3)", ("exact", "certified")),
    ("bs.DPSGD(5.0, 0.01, 1000000)", "bs.AttributeInference(0.01)", ("certified",)),
    ("bs.DPSGD(0.5, 0.001, 10000)", "bs.AttributeInference(0.01)", ("certified",)),
    ("bs.DPSGD(1.0, 0.001, 50000)", "bs.AttributeInference(0.3)", ("exact",)),
]


def _dear_attribute() -> list[str]:
    found = [f"bs.analyze({run}, {threat}, {method!r})" for run, threat, methods in DEAR for method in methods]
    draw = np.random.default_rng(4)
    for i in range(12):
        run = _run(draw, 2e3)
        found.append(f"bs.analyze({run}, bs.AttributeInference({(0.01, 0.3, 1.0, 1.9)[i % 4]}), 'exact')")
    return found


def _samplings() -> Settings:
    draw = np.random.default_rng(5)
    threats = ("bs.Membership()", "bs.Membership('add-remove')")
    for i in range(8):
        noise, batches, epochs = _between(draw, 0.8, 10.0), int(draw.integers(2, 60)), int(draw.integers(1, 12))
        size, steps = 20 * batches, batches * epochs
        for sampling in ("fixed-size", "balls-in-bins", "shuffled"):
            yield f"bs.DPSGD({noise}, 1 / {batches}, {steps}, {sampling!r}, dataset_size={size})", threats[i % 2]
        yield f"bs.DPSGD({noise}, 1 / {batches}, {steps}, max_batch_size=24, dataset_size={size})", threats[i % 2]
    for sampling in ("fixed-size", "balls-in-bins", "shuffled"):
        yield f"bs.DPSGD.from_epochs(2.0, 100, 1000, 3, sampling={sampling!r})", threats[0]
        yield f"bs.DPSGD(2.0, 0.03, 100, {sampling!r})", threats[0]
    yield "bs.DPSGD.from_epochs(2.0, 100, 1000, 3, max_batch_size=120)", threats[0]
    yield "bs.DPSGD(2.0, 0.1, 30, max_batch_size=50, dataset_size=1000)", threats[0]
    yield "bs.DPSGD(2.0, 0.1, 30, 'fixed-size')", "bs.Membership(records=2)"
    yield "bs.DPSGD(2.0, 0.1, 30, 'balls-in-bins')", "bs.Membership(records=2)"


SAMPLED_ATTRIBUTES = [
    f"bs.analyze({run}, bs.AttributeInference({distance}), {method!r})"
    for run in (
        "bs.DPSGD(2.0, 0.1, 30, 'fixed-size', dataset_size=1000)",
        "bs.DPSGD(2.0, 0.1, 30, 'balls-in-bins')",
        "bs.DPSGD(2.0, 0.1, 30, 'shuffled')",
        "bs.DPSGD(2.0, 0.1, 30, max_batch_size=120, dataset_size=1000)",
    )
    for distance, method in (("0.3", "affinity"), ("0.3", "exact"), ("np.linspace(0.1, 0.5, 30)", "affinity"))
]
SAMPLED_BY_PAPER = [
    f"bs.analyze(bs.DPSGD(2.0, 0.1, 30, {sampling!r}), None, 'paper')" for sampling in ("fixed-size", "balls-in-bins", "shuffled")
]
SUMS = [
    *(
        (f"bs.DPSGD({a}, 0.01, 300) + bs.DPSGD({b}, 0.02, 200)", threat)
        for a, b in ((1.0, 2.0), (0.7, 5.0), (3.0, 0.9))
        for threat in ("bs.Membership()", "bs.Membership('add-remove')", "bs.Membership(records=2)")
    ),
    ("bs.DPSGD(1.0, 0.01, 300) + bs.DPSGD(1.0, 0.1, 20, 'balls-in-bins')", "None"),
    ("bs.DPSGD(1.0, 0.01, 300) + bs.DPSGD(1.5, 0.1, 20, 'fixed-size')", "None"),
    ("bs.DPSGD(1.0, 0.01, 300) + bs.DPSGD(1.5, 0.1, 20, 'shuffled')", "bs.Membership('add-remove')"),
    ("bs.DPSGD(8.0, 1.0, 3) + bs.DPSGD(1.5, 0.001, 2000) + bs.DPSGD(20.0, 0.5, 10)", "None"),
    ("bs.DPSGD([1.0, 2.0], 0.01, 300) + bs.DPSGD(2.0, 0.02, 200)", "None"),
]
EXTREMES = [
    *(
        (run, threat)
        for run in (
            "bs.DPSGD(1.0, 1e-8, 1000)",
            "bs.DPSGD(1.0, 1e-8, 10**9)",
            "bs.DPSGD(5.0, 1e-5, 10**9)",
            "bs.DPSGD(0.01, 0.001, 10)",
            "bs.DPSGD(0.01, 0.5, 1)",
            "bs.DPSGD(1.0, 0.01, 1)",
            "bs.DPSGD(0.5, 0.9999, 1)",
            "bs.DPSGD(3.0, 1.0, 10)",
            "bs.DPSGD(100.0, 1.0, 10000)",
            "bs.DPSGD(1e6, 0.1, 1000)",
            "bs.DPSGD(0.2, 0.001, 100)",
        )
        for threat in ("bs.Membership()", "bs.Membership('add-remove')")
    ),
    ("bs.DPSGD(1.0, 0.01, 100)", "bs.AttributeInference(0.0)"),
    ("bs.DPSGD(1.0, 0.01, 100)", "bs.AttributeInference(1e-20)"),
]
WRONG = [
    ("bs.DPSGD(1.0, 0.01, 100)", "bs.AttributeInference(2.1)"),
    ("bs.DPSGD(1.0, 0.01, 100)", "bs.AttributeInference([0.1, 0.2])"),
    ("bs.DPSGD(1.0, 0.01, 100)", "bs.Membership('other')"),
    ("bs.DPSGD(0.0, 0.01, 100)", "None"),
    ("bs.DPSGD(1.0, 1.5, 100)", "None"),
    ("bs.DPSGD(1.0, 0.1, 0)", "None"),
    ("bs.DPSGD('one', 0.1, 5)", "None"),
]
SWEEPS = [
    ("bs.DPSGD([0.7, 1.0, 4.0], 0.01, 500)", "None"),
    ("bs.DPSGD(1.0, [0.001, 0.01, 0.1], 200)", "bs.Membership('add-remove')"),
    ("bs.DPSGD([[1.0], [2.0]], 0.01, [10, 100, 1000])", "None"),
    ("bs.DPSGD([2.0, 3.0], 0.1, 50, 'fixed-size')", "bs.Membership('add-remove')"),
    ("bs.DPSGD.from_epochs(2.0, [64, 128], 1024, 5)", "None"),
    ("bs.DPSGD([1.0, 2.0], [0.1, 0.2, 0.3], 5)", "None"),
    ("bs.DPSGD([0.8, 2.0], 0.3, 1)", "bs.AttributeInference(0.5)"),
]
CANDIDATES = [
    ("bs.DPSGD(4.0, 0.02, 50)", "bs.AttributeInference.among([[0.0, 0.5, 0.9], [0.5, 0.0, 0.4], [0.9, 0.4, 0.0]])"),
    ("bs.DPSGD(4.0, 0.02, 2)", "bs.AttributeInference.among([[[0.0, 0.5], [0.5, 0.0]], [[0.0, 0.8], [0.8, 0.0]]])"),
    ("bs.DPSGD(4.0, 0.02, 2)", "bs.AttributeInference.among([[0.0, 0.5], [0.4, 0.0]])"),
]
FINAL_MODEL = [
    f"bs.heuristics.final_model({run}, {threat})"
    for run in ("bs.DPSGD(1.0, 0.01, 500)", "bs.DPSGD(3.51, 0.00983, 2040)", "bs.DPSGD([1.0, 2.0], 0.1, 30)")
    for threat in ("None", "bs.Membership('add-remove')", "bs.AttributeInference(0.5)")
]
_GAUSSIAN = "dp.GaussianDpEvent(1.3)"
EVENTS = [
    f"bs.analyze(bs.DPSGD.from_dp_event({event}), bs.Membership('add-remove'), {method!r})"
    for event in (
        f"dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.02, {_GAUSSIAN}), 100)",
        f"dp.SelfComposedDpEvent(dp.SampledWithoutReplacementDpEvent(1000, 20, {_GAUSSIAN}), 100)",
        "dp.SelfComposedDpEvent(dp.dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0, 2.0], [0.8, 0.15, 0.05]), 50)",
        "dp.LaplaceDpEvent(1.0)",
    )
    for method in ("exact", "certified")
]
_MEMBERS = "bs.Membership('add-remove')"
CALIBRATED = [
    *(
        f"bs.calibrate(bs.Target({target}), {given})"
        for target in (
            "bayes_security=0.95",
            "advantage=0.1",
            "success=0.55",
            "success=0.93, prior=0.1",
            "tpr=0.05, fpr=0.01",
            "epsilon=2.0, delta=1e-5",
            "gdp_mu=0.5",
            "reconstruction=0.05, prior=1 / 74",
        )
        for given in (
            "sample_rate=0.01, steps=500",
            "noise_multiplier=2.0, steps=500",
            "noise_multiplier=4.0, sample_rate=0.01",
        )
    ),
    *(
        f"bs.calibrate(bs.Target(bayes_security=0.9), {given}, threat={_MEMBERS})"
        for given in (
            "batch_size=256, dataset_size=26048, epochs=20",
            "noise_multiplier=2.0, dataset_size=26048, epochs=20",
            "noise_multiplier=2.0, batch_size=256, epochs=20",
            "noise_multiplier=2.0, batch_size=256, dataset_size=26048",
            "noise_multiplier=2.0, batch_size=256, dataset_size=26048, opacus=True",
        )
    ),
    *(
        f"bs.calibrate(bs.Target(bayes_security=0.95), sample_rate=0.01, steps=500, method={method!r})"
        for method in ("paper", "affinity", "certified")
    ),
    *(
        f"bs.calibrate(bs.Target(bayes_security=0.9), batch_size=50, dataset_size=500, epochs=3, {drawn})"
        for drawn in ("sampling='fixed-size'", "sampling='balls-in-bins'", "sampling='shuffled'", "max_batch_size=60")
    ),
    "bs.calibrate(bs.Target(bayes_security=0.9), sample_rate=0.01, steps=100, threat=bs.Membership(records=2))",
    "bs.calibrate(bs.Target(bayes_security=0.95), sample_rate=0.02, steps=50, threat=bs.AttributeInference(0.3))",
    "bs.calibrate(bs.Target(bayes_security=0.95), noise_multiplier=1.0, sample_rate=0.02, threat=bs.AttributeInference(0.3))",
    "bs.calibrate(bs.Target(bayes_security=0.9), sample_rate=0.01)",
    "bs.calibrate(bs.Target(bayes_security=0.9), sample_rate=0.01, steps=5, noise_multiplier=1.0)",
]
TARGETS = [
    *(
        f"bs.Target({target}).{call}(bs.analyze(bs.DPSGD(4.0, 0.01, 500), {_MEMBERS}))"
        for target in ("bayes_security=0.98", "tpr=0.02, fpr=0.01", "epsilon=0.5, delta=1e-5", "reconstruction=0.02, prior=0.01")
        for call in ("met", "reached")
    ),
    "bs.Target()",
    "bs.Target(tpr=0.005, fpr=0.01)",
    "bs.Target(bayes_security=1.5)",
]
PLANS = [
    "bs.plan(attribute=bs.Target(bayes_security=0.99), run=bs.DPSGD(2.0, 0.01, 500), method='affinity')",
    "bs.plan(membership=bs.Target(bayes_security=0.9), gap=0.2, sample_rate=0.01, steps=500, method='affinity')",
    "bs.plan(membership=bs.Target(bayes_security=0.9), attribute=bs.Target(bayes_security=0.98), sample_rate=0.01, steps=500,"
    " method='affinity')",
    "bs.plan(attribute=bs.Target(bayes_security=0.99), run=bs.DPSGD(2.0, 0.05, 20))",
    "[bs.plan(attribute=bs.Target(bayes_security=0.99), noise_multiplier=noise, method='affinity', sample_rate=0.01, steps=500)"
    " for noise in (2.0, 1.0)]",
    "bs.plan(attribute=bs.Target(bayes_security=0.99))",
]
CONVERSIONS = [
    *(f"bs.advantage_from_epsilon({epsilon}, {delta})" for epsilon, delta in ((0.1, 0.0), (1.0, 1e-5), (5.0, 1e-3))),
    *(f"bs.epsilon_from_bayes_security({beta})" for beta in (0.0, 0.3, 0.95, 1.0)),
]
#: The arguments tolerance and effort.
TOLERANCES = [
    *(
        f"bs.analyze({run}, bs.AttributeInference({distance}), {method!r}, {how})"
        for run, distance in (("bs.DPSGD(1.0, 0.01, 1000)", 0.3), ("bs.DPSGD(3.51, 0.00983, 2040)", 0.97))
        for method in ("exact", "certified")
        for how in ("tolerance=0.001, effort='normal'", "tolerance=0.1, effort='quick'")
    ),
    "bs.analyze(bs.DPSGD(1.0, 0.01, 1000), None, 'certified', tolerance=0.001)",
    "bs.analyze(bs.DPSGD(1.0, 0.01, 1000), None, 'certified', tolerance=1e-5)",
    "bs.analyze(bs.DPSGD(2.0, 0.1, 30, 'fixed-size'), None, 'certified', tolerance=0.001, effort='normal')",
    "bs.analyze(bs.DPSGD(2.0, 0.1, 30, 'fixed-size'), None, 'exact', effort='quick')",
    "bs.calibrate(bs.Target(bayes_security=0.95), sample_rate=0.02, steps=50, threat=bs.AttributeInference(0.3),"
    " method='certified', tolerance=0.001, effort='normal')",
    "bs.plan(attribute=bs.Target(bayes_security=0.99), run=bs.DPSGD(2.0, 0.05, 20), tolerance=0.001, effort='normal')",
]
