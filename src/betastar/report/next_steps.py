"""What would help: for each threat of a report, what would reach the next band, or the reader's own target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from betastar import advice
from betastar.advice import Advice, Lever
from betastar.calibrate import Target, enforced
from betastar.dpsgd import DPSGD, all_plain
from betastar.report.facts import Against, Facts
from betastar.threats import FARTHEST, AttributeInference, Threat


@dataclass(frozen=True)
class NextStep:
    """Advice on one threat."""

    threat: str
    advice: Advice

    @property
    def sentence(self) -> str:
        return f"{self.threat}: {self.advice.sentence}"


def next_steps(facts: Facts, target: Target | None = None) -> list[NextStep]:
    """The advice for each threat.

    Parameters
    ----------
    facts : Facts
        What the report is about.
    target : Target, optional
        The reader's own target; the next band of each threat by default.

    Returns
    -------
    list of NextStep
        Empty where a target is met or the band is the best one, for runs whose noise or rate changed, and for samplings other
        than Poisson's.
    """
    if len(facts.run.segments) != 1 or not all_plain(facts.run):
        return []
    against = [facts.membership, *facts.attributes]
    said = [(one.title, _advice(one, _levers(facts, one), target)) for one in against]
    return [NextStep(title, advised) for title, advised in said if advised is not None]


def _advice(one: Against, levers: Iterator[Lever], target: Target | None) -> Advice | None:
    if target is None:
        return advice.towards_next_band(one.lower, levers)
    return None if target.met(one.certified) else advice.towards(target, levers)


def _levers(facts: Facts, one: Against) -> Iterator[Lever]:
    """What can be changed: noise and length, for a distance that is known before; the gap, for an attribute of a run."""
    if one.kind not in ("batch", "dataset"):
        yield from advice.levers(_numbers(facts), one.threat)
    if facts.is_run and isinstance(one.threat, AttributeInference):
        now = FARTHEST if one.gap is None else one.gap

        def clipped(gap: float) -> tuple[DPSGD, Threat]:
            return one.run, AttributeInference(enforced(gap))

        yield Lever("gap", now, clipped, 1e-6 * FARTHEST, now)


def _numbers(facts: Facts) -> dict[str, Any]:
    """The numbers of the run: with epochs if it is one of whole epochs, else with steps."""
    first, known = facts.run.segments[0], facts.parameters
    by_steps = {"noise_multiplier": first.noise_multiplier, "sample_rate": first.sample_rate, "steps": first.steps}
    sizes = {"batch_size": known.get("batch_size"), "dataset_size": known.get("records", known.get("dataset_size"))}
    if None in sizes.values() or "epochs" not in known:
        return by_steps
    by_epochs = {"noise_multiplier": first.noise_multiplier, "epochs": known["epochs"], "opacus": facts.is_run, **sizes}
    return by_epochs if DPSGD.from_numbers(**by_epochs) == facts.run else by_steps
