"""What would help: for each threat of a report, what would reach the next band, or the reader's own target."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from betastar.answers import advice, settings
from betastar.answers.advice import Advice, Lever
from betastar.answers.targets import Wish
from betastar.dpsgd import DPSGD, all_plain
from betastar.plan import enforced
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


def next_steps(facts: Facts, wish: Wish | None = None) -> list[NextStep]:
    """The advice for each threat.

    Parameters
    ----------
    facts : Facts
        What the report is about.
    wish : Wish, optional
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
    said = [(one.title, _advice(one, _levers(facts, one), wish)) for one in against]
    return [NextStep(title, advised) for title, advised in said if advised is not None]


def _advice(one: Against, levers: Iterator[Lever], wish: Wish | None) -> Advice | None:
    if wish is None:
        return advice.towards_next_band(one.lower, levers)
    return None if wish.target.met(one.certified) else advice.towards(wish, levers)


def _levers(facts: Facts, one: Against) -> Iterator[Lever]:
    """What can be changed: noise and length, for a distance that is known before; the gap, for an attribute of a run."""
    if one.kind not in ("batch", "dataset"):
        setting = _setting(facts)
        for lever in advice.levers(setting):
            yield replace(lever, make=_against(lever, one.threat))
    if facts.is_run and isinstance(one.threat, AttributeInference):
        now = FARTHEST if one.gap is None else one.gap

        def clipped(gap: float) -> tuple[DPSGD, Threat]:
            return one.run, AttributeInference(enforced(gap))

        yield Lever("gap", now, clipped, 1e-6 * FARTHEST, now)


def _against(lever: Lever, threat: Threat) -> Callable[[float], tuple[DPSGD, Threat]]:
    """The lever's run, against another threat."""
    return lambda value: (lever.make(value)[0], threat)


def _setting(facts: Facts) -> settings.Setting:
    """The run by epochs if it is one of whole epochs, else by steps."""
    first, known = facts.run.segments[0], facts.parameters
    by_steps = settings.Setting(noise_multiplier=first.noise_multiplier, sample_rate=first.sample_rate, steps=first.steps)
    sizes = {"batch_size": known.get("batch_size"), "dataset_size": known.get("records", known.get("dataset_size"))}
    if None in sizes.values() or "epochs" not in known:
        return by_steps
    by_epochs = settings.Setting(
        noise_multiplier=first.noise_multiplier,
        epochs=known["epochs"],
        opacus=facts.is_run,
        **sizes,  # type: ignore[arg-type]
    )
    return by_epochs if by_epochs.run() == facts.run else by_steps
