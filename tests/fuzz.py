"""Random settings, each analysed by the methods that may be relied on: no number may be on the unsafe side.

They are compared with each other and with brackets of `tests.brackets`, which share nothing with betastar; some of Poisson
sampling with both roundings of dp_accounting. `make fuzz` checks 10,000 of them. Setting number i is always the same. What is
done is kept in a file with one line for each setting, so that the same command goes on where it stopped; the command exits with
1 if a setting has a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import exp, inf, isnan, log
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

import betastar as bs
from betastar.analyze import TOLERANCE, reliable
from betastar.rounding import plain
from betastar.threats import Threat

from . import brackets

METHODS = ("certified", "exact", "affinity")
#: Nobody waits longer than this for one answer (processor time).
SECONDS = 10.0
#: Two proved numbers that differ by less differ by the rounding of the comparison.
ROUNDING = 1e-12
FLOOR = 1e-5
#: From this number on, the last digit of the number says what is special: the sampling, many distances, or several records.
PLAIN, SAMPLED, MANY_DISTANCES, GROUP = 250, 3, 7, 5
#: One setting in so many is asked everything, certified figures and calibrations too: of membership with Poisson samples, others.
CHEAP, DEAR = 3, 6
#: One in so many settings of Poisson sampling is compared with dp_accounting.
PEER = 20
#: Brackets are compared to this accuracy.
OWN = 1e-9
#: Numbers of different distances.
MANY = (2, 3, 5, 10, 20, 50, 100, 200)
#: Width of an exact interval of many distances, as a share of the advantage: no more in any setting.
WIDEST = 0.1


@dataclass(frozen=True)
class Case:
    """A setting of the fuzz test; its number determines everything."""

    number: int
    run: bs.DPSGD
    threat: Threat

    @classmethod
    def draw(cls, number: int) -> Case:
        draw = np.random.default_rng([14, number])
        special = number % 10 if number >= PLAIN else -1
        if special == SAMPLED:
            run = _sampled(draw)
            return cls(number, run, _threat(draw, run, False))
        if special == MANY_DISTANCES:
            return cls(number, *many_distances(draw, float(draw.choice([50.0, 300.0, 5000.0], p=[0.6, 0.3, 0.1]))))
        if special == GROUP:
            run = _segment(draw, False)
            run = run + _segment(draw, False) if draw.random() < 0.2 else run
            records = round(_between(draw, 2.0, 40.0))
            return cls(number, run, bs.Membership(str(draw.choice(["substitution", "add-remove"])), records=records))
        extreme = draw.random() < 0.05
        segments = int(draw.choice([1, 2, 3], p=[0.8, 0.1, 0.1]))
        run = _segment(draw, extreme)
        for _ in range(segments - 1):
            run += _segment(draw, extreme)
        return cls(number, run, _threat(draw, run, extreme))

    @property
    def brief(self) -> bool:
        """Whether certified figures and calibrations are left out: they take long, and are asked of some settings only."""
        poisson = all(one.sampling == "poisson" and one.max_batch_size is None for one in self.run.segments)
        plain = isinstance(self.threat, bs.Membership) and self.threat.records == 1 and poisson
        return self.number >= PLAIN and (self.number % CHEAP != 0 if plain else self.number // 10 % DEAR != 0)

    def __str__(self) -> str:
        return f"{self.number}: {self.run!r}, {self.threat.describe()}"


def _between(draw: np.random.Generator, low: float, high: float) -> float:
    """In even ratios."""
    return float(exp(draw.uniform(log(low), log(high))))


def _segment(draw: np.random.Generator, extreme: bool) -> bs.DPSGD:
    rate = 1.0 if draw.random() < 0.05 else _between(draw, 1e-14 if extreme else 1e-5, 1.0)
    noise = _between(draw, 0.02, 1e6) if extreme else _between(draw, 0.35, 30.0)
    return bs.DPSGD(noise, rate, round(_between(draw, 1.0, 1e9 if extreme else 1e5)))


def many_distances(draw: np.random.Generator, most: float = 5000.0) -> tuple[bs.DPSGD, Threat]:
    """Distances of each step in a random order, of up to 200 different values; sums of runs among them."""
    noise, rate, steps = _between(draw, 0.35, 10.0), _between(draw, 1e-3, 0.5), round(_between(draw, 4.0, most))
    number, style = min(int(draw.choice(MANY)), steps), draw.integers(3)
    if style == 0:
        values = draw.uniform(0.01, 2.0, number)
    elif style == 1:
        values = np.array([_between(draw, 1e-3, 2.0) for _ in range(number)])
    else:
        values = np.clip(_between(draw, 0.02, 1.0) * np.exp(0.3 * draw.normal(size=number)), 1e-3, 2.0)
    each = np.concatenate([np.arange(number), draw.integers(0, number, steps - number)])
    draw.shuffle(each)
    run = bs.DPSGD(noise, rate, steps)
    if draw.random() < 0.2:
        first = int(draw.integers(1, steps))
        run = bs.DPSGD(noise, rate, first) + bs.DPSGD(_between(draw, 0.05, 10.0), rate, steps - first)
    return run, bs.AttributeInference(values[each])


def _sampled(draw: np.random.Generator) -> bs.DPSGD:
    """A run whose batches have a fixed size, are cut off, or are those of random allocation."""
    noise, batches = _between(draw, 0.5, 20.0), round(_between(draw, 2.0, 500.0))
    epochs, kind = round(_between(draw, 1.0, 20.0)), draw.random()
    if kind < 0.2:
        batches = min(batches, 60)
        return bs.DPSGD(noise, 1.0 / batches, epochs * batches, "balls-in-bins")
    if kind < 0.6:
        size = batches * int(draw.integers(2, 50))
        most = min(size, int(size / batches * draw.uniform(1.0, 1.5)) + 1)
        return bs.DPSGD(noise, 1.0 / batches, epochs * batches, max_batch_size=most, dataset_size=size)
    return bs.DPSGD(noise, 1.0 / batches, epochs * batches, "fixed-size")


def _threat(draw: np.random.Generator, run: bs.DPSGD, extreme: bool) -> Threat:
    kind = draw.choice(["substitution", "add-remove", "distance", "distances"], p=[0.35, 0.3, 0.25, 0.1])
    if kind in ("substitution", "add-remove"):
        return bs.Membership(str(kind))
    if extreme:
        return bs.AttributeInference(float(draw.choice([0.0, 5e-324, 1e-300, 1e-20, 1e-12, 1e-7, 2.0])))
    if kind == "distances" and len(run.segments) == 1:
        number = min(int(draw.integers(2, 6) if draw.random() < 0.9 else draw.integers(25, 90)), int(run.steps))
        counts = np.full(number, int(run.steps) // number)
        counts[0] += int(run.steps) - counts.sum()
        return bs.AttributeInference([_between(draw, 1e-3, 2.0) for _ in range(number)], counts)
    return bs.AttributeInference(_between(draw, 1e-3, 2.0))


#: Each metric: how it is read, and the least and the most that it can be.
Reading = Callable[[bs.Risk], bs.Bound]
METRICS: dict[str, tuple[Reading, float, float]] = {
    "bayes_security": (lambda risk: risk.bayes_security, 0.0, 1.0),
    "advantage": (lambda risk: risk.advantage, 0.0, 1.0),
    "success(.5)": (lambda risk: risk.success(), 0.5, 1.0),
    "success(.1)": (lambda risk: risk.success(0.1), 0.9, 1.0),
    "success(.999)": (lambda risk: risk.success(0.999), 0.999, 1.0),
    "success(4 secrets)": (lambda risk: risk.success([0.1, 0.2, 0.3, 0.4]), 0.4, 1.0),
    "tpr(.1)": (lambda risk: risk.tpr(0.1), 0.1, 1.0),
    "tpr(.01)": (lambda risk: risk.tpr(0.01), 0.01, 1.0),
    "tpr(1e-6)": (lambda risk: risk.tpr(1e-6), 1e-6, 1.0),
    "epsilon(.01)": (lambda risk: risk.epsilon(0.01), 0.0, inf),
    "epsilon(1e-6)": (lambda risk: risk.epsilon(1e-6), 0.0, inf),
    "delta(0)": (lambda risk: risk.delta(0.0), 0.0, 1.0),
    "delta(1)": (lambda risk: risk.delta(1.0), 0.0, 1.0),
    "reconstruction(1/74)": (lambda risk: risk.reconstruction(1 / 74), 1 / 74, 1.0),
    "gdp_mu": (lambda risk: risk.gdp_mu, 0.0, inf),
}


@dataclass
class Report:
    """Faults of a setting, and the processor time of its slowest answer."""

    case: Case
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest: str = ""
    #: The bracket of the advantage, the number of comparisons with it, and whether dp_accounting was compared, too.
    own: tuple[float, float] | None = None
    compared: int = 0
    peer: bool = False
    own_seconds: float = 0.0

    def timed(self, what: str, compute: Callable[[], Any]) -> Any:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bs.NoNoiseNeeded)
            result = compute()
        took = time.process_time() - start
        if took > self.seconds:
            self.seconds, self.slowest = took, what
        return result

    def expect(self, right: bool, what: str) -> None:
        if not right:
            self.faults.append(what)

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.case.number,
            "setting": str(self.case),
            "faults": self.faults,
            "seconds": round(self.seconds, 3),
            "slowest": self.slowest,
            "own": self.own,
            "compared": self.compared,
            "peer": self.peer,
            "own_seconds": round(self.own_seconds, 3),
        }


def check(number: int, tolerance: float = TOLERANCE, quick: bool = False) -> Report:
    """Everything that must hold of a setting. tolerance: width of the certified interval of β*.

    quick: the dear questions, about the exact curve of an attribute and about calibration, are asked of fewer settings.
    """
    case = Case.draw(number)
    report = Report(case)
    risks: dict[str, bs.Risk] = {}
    bounds: dict[str, dict[str, bs.Bound]] = {}
    try:
        for method in METHODS[1 if case.brief else 0 :]:
            risks[method] = report.timed(method, lambda method=method: bs.analyze(case.run, case.threat, method, tolerance))
            bounds[method] = {}
            if method == "exact" and number >= PLAIN and number % 10 == 7:
                wide = risks[method].advantage
                loud = min(part.noise_multiplier for part in case.run.segments) >= 0.35
                report.expect(wide.width <= WIDEST * wide.upper or not loud, f"exact: too wide, {wide}")
            for name, (read, least, most) in _asked(case, method, quick):
                bounds[method][name] = bound = report.timed(f"{method}: {name}", lambda read=read, risk=risks[method]: read(risk))
                _is_bound(report, f"{method}: {name}", bound, least, most)
        _bracketed(report, bounds)
        if case.brief:
            return report
        for name in METRICS:
            _agree(report, name, {method: bounds[method][name] for method in METHODS if name in bounds[method]})
        _mu_holds_between_its_points(report, risks, bounds)
        _arrays_are_their_numbers(report, risks, bounds)
        if number % (12 if quick else 4) == 0:
            _calibrated(report, bounds, tolerance)
    except Exception as problem:  # a crash is a fault, too, and the next setting is looked at all the same
        report.faults.append(f"{type(problem).__name__}: {problem}")
    return report


def _asked(case: Case, method: str, quick: bool) -> list[tuple[str, tuple[Reading, float, float]]]:
    """Every metric; of the exact curve, which takes longer to read, β* and one or two others in turn, and μ now and then."""
    number, member = case.number, isinstance(case.threat, bs.Membership)
    every = list(METRICS.items())
    if method != "exact":
        return every
    if quick and not member and number % 10:
        return every[:2]
    curve = every[1:-1]
    turn = [curve[number % len(curve)], *([curve[(number + 6) % len(curve)]] if member else [])]
    return [every[0], *turn, *([every[-1]] if number % (10 if member else 100) == 0 else [])]


def _is_bound(report: Report, what: str, bound: bs.Bound, least: float, most: float) -> None:
    low, middle, high = float(bound.lower), float(bound.estimate), float(bound.upper)
    report.expect(not any(map(isnan, (low, middle, high))), f"{what} is not a number: {bound}")
    report.expect(low <= middle <= high, f"{what} is out of order: {low!r}, {middle!r}, {high!r}")
    report.expect(least - ROUNDING <= low and high <= most + ROUNDING, f"{what} is out of range: {low!r}, {high!r}")


def _agree(report: Report, name: str, bounds: dict[str, bs.Bound]) -> None:
    """The end to rely on, by each method, against the attacks that certified knows; and the two proofs against each other."""
    proof = bounds["certified"]
    low, high = float(proof.lower), float(proof.upper)
    for method in ("exact", "affinity"):
        if method not in bounds:
            continue
        lower, upper = float(bounds[method].lower), float(bounds[method].upper)
        if name == "bayes_security":
            report.expect(lower <= high + ROUNDING, f"{method}: unsafe {name}, {lower!r} above certified {high!r}")
            report.expect(low <= upper + ROUNDING, f"{method}: {name} {upper!r} below what is proved, {low!r}")
        else:
            report.expect(upper >= low - _slack(low), f"{method}: unsafe {name}, {upper!r} below certified {low!r}")
            report.expect(lower <= high + _slack(high), f"{method}: {name} {lower!r} above what is proved, {high!r}")
    if name == "bayes_security":  # certified starts from the affinity
        wide = bounds["affinity"]
        report.expect(float(wide.lower) <= low + ROUNDING, f"affinity: {name} {wide.lower!r} above certified {low!r}")
        report.expect(float(wide.upper) >= high - ROUNDING, f"affinity: {name} {wide.upper!r} below certified {high!r}")


def _bracketed(report: Report, bounds: dict[str, dict[str, bs.Bound]]) -> None:
    """Each method's figures against what some attack attains and what none exceeds, known without betastar."""
    case, start = report.case, time.process_time()
    sides: list[tuple[str, Callable[[str], tuple[float, float]]]] = []
    known = brackets.bracket(case.run, case.threat)
    if known is not None:
        sides.append(("own bracket", known.sides))
        report.own = known.sides("advantage")
    segment = case.run.segments[0]
    alike = len(case.run.segments) == 1 and segment.sampling == "poisson" and segment.max_batch_size is None
    if isinstance(case.threat, bs.Membership) and case.threat.records == 1 and alike and case.number % PEER == 0:
        peer = _peer(case)
        report.peer = peer is not None
        sides += [("dp_accounting", peer)] if peer is not None else []
    for who, read in sides:
        for name in METRICS:
            low, high = read(name) if name != "bayes_security" else read("advantage")
            for method in METHODS:
                if name not in bounds.get(method, {}):
                    continue
                bound = bounds[method][name]
                least, most = float(bound.lower), float(bound.upper)
                if name == "bayes_security":
                    least, most = 1.0 - most, 1.0 - least
                slack = OWN * (1.0 + abs(low) if low > -inf else 1.0)
                report.expect(most >= low - slack, f"{method}: unsafe {name}, {most!r} below {low!r} of {who}")
                report.expect(least <= high + OWN * (1.0 + abs(least)), f"{method}: {name} {least!r} above {high!r} of {who}")
                report.compared += (low > -inf) + (high < inf)
    report.own_seconds = time.process_time() - start


def _peer(case: Case) -> Callable[[str], tuple[float, float]] | None:
    """Both roundings of dp_accounting; None where that takes long."""
    from .crosscheck.test_calibrations import Rounded

    run, relation = case.run, case.threat.relation
    if run.noise_multiplier < 0.5 or run.steps > 3000:
        return None
    if (
        bs.analyze(run, case.threat, "affinity").advantage.lower > 0.999
    ):  # its optimistic ε is too large there: 749.96, not 749.06
        return None
    sides = [Rounded(run, relation, pessimistic) for pessimistic in (False, True)]

    def read(name: str) -> tuple[float, float]:
        low, high = (_metric_of(one, name) for one in sides)
        return (low, high) if low <= high else (-inf, inf)

    return read


def _metric_of(rounded: Any, name: str) -> float:
    if name in ("advantage", "delta(0)"):
        return float(rounded.ahead[0])
    if name.startswith("tpr"):
        return float(rounded.tpr(float(name[4:-1]))[0])
    if name.startswith("epsilon"):
        return float(rounded.all.get_epsilon_for_delta(float(name[8:-1])))
    if name == "delta(1)":
        return float(rounded.all.get_delta_for_epsilon(1.0))
    return float("nan")  # not asked


def _slack(number: float) -> float:
    return ROUNDING * (1.0 + number) if number < inf else 0.0


def _mu_holds_between_its_points(report: Report, risks: dict[str, bs.Risk], bounds: dict[str, dict[str, bs.Bound]]) -> None:
    """No point of a curve that is attained lies above the Gaussian's, wherever both error rates are at least the floor."""
    rates = np.geomspace(FLOOR, 0.5, 40)
    rates = np.concatenate([rates, 1.0 - rates])
    curve = report.timed("certified: 80 points of the curve", lambda: risks["certified"].tradeoff(rates))
    seen = np.asarray(curve.lower) <= 1.0 - FLOOR
    with np.errstate(invalid="ignore"):
        mu = np.where(seen, ndtri(np.asarray(curve.lower)) - ndtri(rates), -inf)
    worst = int(np.argmax(mu))
    for method in ("certified", "exact"):
        if "gdp_mu" not in bounds[method]:
            continue
        upper = float(bounds[method]["gdp_mu"].upper)
        report.expect(
            upper >= mu[worst] - 1e-9, f"{method}: unsafe gdp_mu, {upper!r} below {mu[worst]!r} at FPR {rates[worst]!r}"
        )


def _arrays_are_their_numbers(report: Report, risks: dict[str, bs.Risk], bounds: dict[str, dict[str, bs.Bound]]) -> None:
    """What is asked with an array is what is asked with each of its numbers."""
    asked: dict[str, Callable[[bs.Risk], bs.Bound]] = {
        "tpr(.01)": lambda risk: risk.tpr(np.array([0.01])),
        "epsilon(.01)": lambda risk: risk.epsilon(np.array([[0.01]])),
        "delta(1)": lambda risk: risk.delta(np.array([1.0])),
        "reconstruction(1/74)": lambda risk: risk.reconstruction(np.array([1 / 74])),
    }
    for name, ask in asked.items():
        one = ask(risks["certified"])
        same = all(
            np.ndim(getattr(one, end)) and np.ravel(getattr(one, end))[0] == getattr(bounds["certified"][name], end)
            for end in ("lower", "estimate", "upper")
        )
        report.expect(same, f"certified: {name} of an array is {one!r}, not {bounds['certified'][name]!r}")


def _calibrated(report: Report, bounds: dict[str, dict[str, bs.Bound]], tolerance: float) -> None:
    """Each parameter, found again from the risk that the setting has: it meets the target as it is printed."""
    case = report.case
    run, beta = case.run, float(bounds["certified"]["bayes_security"].lower)
    if len(run.segments) > 1 or not 1e-6 < beta < 1.0 - 1e-6 or getattr(case.threat, "counts", None) is not None:
        return
    drawn = {"sampling": run.sampling, "max_batch_size": run.segments[0].max_batch_size}
    drawn |= {} if run.segments[0].dataset_size is None else {"dataset_size": run.segments[0].dataset_size}
    target = bs.Target(bayes_security=beta)
    given = {"noise_multiplier": run.noise_multiplier, "sample_rate": run.sample_rate, "steps": run.steps}
    left_out = ("noise_multiplier", "sample_rate", "steps")[case.number // 12 % 3]
    rest = {name: value for name, value in given.items() if name != left_out}
    method = ("certified", "exact")[case.number // 36 % 2]
    try:
        made = report.timed(
            f"calibrate {left_out}, {method}",
            lambda: bs.calibrate(target, threat=case.threat, method=method, tolerance=tolerance, **rest, **drawn),
        )
    except ValueError as problem:
        report.expect("does not limit" in str(problem) or "cannot be reached" in str(problem), f"calibrate: {problem}")
        return
    printed = {name: float(plain(getattr(made, name))) for name in given}
    again = reliable(bs.DPSGD(**printed, **drawn), case.threat, method, tolerance)
    report.expect(target.met(again), f"calibrate {left_out}, {method}: {printed} misses {target!r}: {again.bayes_security}")
    if method == "exact":
        proof = bs.analyze(bs.DPSGD(**printed, **drawn), case.threat, "certified", tolerance).bayes_security
        report.expect(float(proof.upper) >= beta, f"calibrate {left_out}: certified refutes {target!r} for {printed}: {proof}")


def _kept(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of settings that are done; the last one may be cut off."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--settings", type=int, default=10_000, help="how many are checked (default: 10000)")
    arguments.add_argument("--tolerance", type=float, default=TOLERANCE, help="width of the certified interval of β*")
    arguments.add_argument("--output", type=Path, default=Path("build/fuzz.jsonl"), help="what is done is kept here")
    arguments.add_argument("--quick", action="store_true", help="ask what takes long of fewer settings")
    options = arguments.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    done = {line["number"]: line for line in _kept(options.output)}
    faults = sum(bool(line["faults"]) for line in done.values())
    slow = max((line["seconds"] for line in done.values()), default=0.0)
    with options.output.open("a") as file:
        file.write("\n" if done else "")  # the last line may have been cut off
        for number in (i for i in range(options.settings) if i not in done):
            start = time.process_time()
            line = check(number, options.tolerance, options.quick).as_dict()
            line["total"] = round(time.process_time() - start, 3)
            if line["seconds"] > SECONDS:
                line["faults"].append(f"{line['slowest']} took {line['seconds']} s of processor time")
            file.write(json.dumps(line) + "\n")
            file.flush()
            done[number] = line
            faults, slow = faults + bool(line["faults"]), max(slow, line["seconds"])
            for fault in line["faults"]:
                print(f"\n{line['setting']}\n    {fault}", flush=True)
            print(
                f"\r{len(done)} of {options.settings}, {faults} with a fault, slowest answer {slow:.1f} s",
                end="",
                file=sys.stderr,
            )
    print(f"\n{len(done)} settings, {faults} with a fault, slowest answer {slow:.1f} s; kept in {options.output}.")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
