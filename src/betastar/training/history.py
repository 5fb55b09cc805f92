"""History: distance, noise and sampling of each step of a run, and the risks that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import erfc, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcinv

from betastar.analyze import analyze
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnBatch, DrawnSteps, SamplingScheme
from betastar.risk import Risk
from betastar.rounding import down
from betastar.threats import FARTHEST, AttributeInference, Membership
from betastar.training.ledger import LeakageSum

#: What kind of statement a figure of each scope is (theory, section 6).
SCOPES = {
    "batch": "batch scope: an estimate for the trainer's eyes only, as a record outside the batch may have a larger gap "
    "and publishing the figure reveals who was sampled",
    "dataset": "dataset scope: the largest gap over all records, an after-the-fact statement; publishing it can leak membership",
}


class Measured(AttributeInference):
    """Distances that a monitor measured, with the label of their scope."""

    def __init__(self, distances: NDArray[Any], label: str) -> None:
        super().__init__(distances)
        self.label = label

    def describe(self) -> str:
        return f"{super().describe()} [{self.label}]"


@lru_cache(maxsize=16)
def _leakage_of_bins(scheme: SamplingScheme, noise: float) -> float:
    """Λ of one epoch of balls in bins against membership inference, by the affinity."""
    assert scheme.batches is not None
    beta = analyze(scheme.run(noise, scheme.batches), method="affinity").bayes_security.estimate
    return float(erfcinv(float(beta))) ** 2


class History:
    """Distance R_t, noise and sampling of each step so far."""

    def __init__(self, scope: str, diameter: str) -> None:
        self.scope, self.diameter = scope, diameter
        self._distances: list[float] = []
        self._measured: list[bool] = []
        self._drawn = DrawnSteps()
        self._last: tuple[SamplingScheme, float] | None = None  # sampling and noise of the last step
        self._leakage, self._leakage_of_membership = LeakageSum(), LeakageSum()

    def __len__(self) -> int:
        return len(self._distances)

    def add(self, distance: float | None, drawn: DrawnBatch, noise: float) -> None:
        """Add one step. A distance of None means that it was not measured: the last distance is taken for it, or 2 at first."""
        last = self._distances[-1] if self._distances else FARTHEST
        self._distances.append(last if distance is None else distance)
        self._measured.append(distance is not None)
        self._drawn.add(noise, drawn)
        self._last = drawn.scheme, noise
        self._leakage.add(self._distances[-1], drawn, noise)
        if drawn.scheme.sampling != "balls-in-bins":
            self._leakage_of_membership.add(FARTHEST, drawn, noise)

    @property
    def distances(self) -> NDArray[Any]:
        """The distance R_t of each step, in clipping norms."""
        return np.array(self._distances)

    @property
    def last_distance(self) -> float:
        """The distance that the last step is charged with."""
        return self._distances[-1]

    @property
    def skipped(self) -> int:
        """The number of steps that were not measured."""
        return len(self) - sum(self._measured)

    @property
    def label(self) -> str:
        """What kind of statement the figures are. It belongs next to each of them."""
        notes = [SCOPES[self.scope]]
        if self.skipped:
            notes.append(f"{self.skipped} of {len(self)} steps were not measured and take the distance of the last one that was")
        return "; ".join(notes)

    @property
    def run(self) -> DPSGD:
        """Noise, sampling and number of steps so far. An unfinished epoch counts as a whole one where epochs count."""
        return self._drawn.run

    def risk(self, method: str = "exact") -> Risk:
        """Attribute inference against the run so far; its description carries the scope."""
        return analyze(self.run, Measured(self._drawn.spread(self.distances), self.label), method)

    def membership(self, relation: str = "substitution", method: str = "exact") -> Risk:
        """Membership inference against the same run."""
        return analyze(self.run, Membership(relation), method)

    def quick(self) -> dict[str, float]:
        """β* so far as erfc(√Λ°), the estimate of the affinity, which costs nothing. Logs and progress bars show it.

        An attribute is charged with the membership figure where that is less.
        """
        membership = self._leakage_of_membership.largest
        for noise, scheme, _ in self._drawn.whole_epochs():
            if scheme.sampling == "balls-in-bins":
                membership += _leakage_of_bins(scheme, noise)
        attribute = min(self._leakage.largest, membership)
        return {"attribute": erfc(sqrt(attribute)), "membership": erfc(sqrt(membership))}

    def entry(self) -> dict[str, Any]:
        """The last step as a flat mapping, for writers."""
        assert self._last is not None
        (scheme, noise), beta = self._last, self.quick()
        more = {"bayes_security_attribute": beta["attribute"], "bayes_security_membership": beta["membership"]}
        return self._step(len(self), noise, scheme, self._drawn.epochs) | more

    def entries(self) -> list[dict[str, Any]]:
        """All steps as flat mappings, without the figures that go with each of them."""
        return [self._step(number, *drawn) for number, drawn in enumerate(self._drawn.each(), start=1)]

    def _step(self, number: int, noise: float, scheme: SamplingScheme, epoch: int) -> dict[str, Any]:
        return {
            "step": number,
            "scope": self.scope,
            "diameter": self.diameter,
            "distance": self._distances[number - 1],
            "measured": self._measured[number - 1],
            "noise_multiplier": noise,
            "sample_rate": scheme.sample_rate,
            **scheme.told(),
            **({"epoch": epoch} if scheme.in_epochs else {}),
        }

    def progress(self, secret: str) -> str:
        """One short line for a progress bar. `secret` is the name of the secret."""
        if not len(self):
            return "β* of the secret and of membership: no step yet"
        beta = self.quick()
        word = "≈" if self.scope == "batch" else "after the fact ≈"
        return f"β* {word} {down(beta['attribute'], 3)} for {secret} ({self.scope}), {down(beta['membership'], 3)} for membership"

    def metrics(self) -> dict[str, float]:
        """Numbers of the last step for loggers; their names carry the scope."""
        entry = self.entry()
        names = ("distance", "bayes_security_attribute", "bayes_security_membership")
        return {f"privacy/{self.scope}/{name}": float(entry[name]) for name in names}

    def summary(self) -> dict[str, Any]:
        """All steps in one mapping, for JSON."""
        answers: dict[str, Any] = {"scope": self.scope, "label": self.label}
        answers |= {"diameter": self.diameter, "steps": len(self), "skipped": self.skipped}
        if len(self):
            answers["largest_distance"] = float(self.distances.max())
            for name, risk in (("attribute", self.risk()), ("membership", self.membership())):
                bound = risk.bayes_security
                answers[name] = {"bayes_security": [float(bound.lower), float(bound.estimate), float(bound.upper)]}
        return answers

    def state_dict(self) -> dict[str, Any]:
        """All steps, to be saved."""
        state: dict[str, Any] = {"distances": list(self._distances), "measured": list(self._measured)}
        state |= {"drawn": self._drawn.state_dict()}
        return state | {"leaked": [one.state_dict() for one in (self._leakage, self._leakage_of_membership)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved steps."""
        self._distances, self._measured = list(state["distances"]), list(state["measured"])
        self._drawn.load_state_dict(state["drawn"])
        self._last = None
        for noise, scheme, _ in self._drawn.each():
            self._last = scheme, noise
        for leakage, leaked in zip((self._leakage, self._leakage_of_membership), state["leaked"], strict=True):
            leakage.load_state_dict(leaked)
