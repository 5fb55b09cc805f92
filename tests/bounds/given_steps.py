"""A threat whose steps are given, for tests of kinds of steps that no threat has alone."""

from __future__ import annotations

from dataclasses import dataclass

import betastar as bs
from betastar.steps import Step


@dataclass
class GivenSteps:
    """A threat whose steps are given."""

    given: tuple[Step, ...]
    symmetric: bool

    @property
    def oriented(self) -> bool:
        return not self.symmetric

    def steps(self, run: bs.DPSGD) -> tuple[Step, ...]:
        return self.given

    def describe(self) -> str:
        return "given steps"


ANY_RUN = bs.DPSGD(1.0, 0.5, 1)
