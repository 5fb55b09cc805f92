"""An accountant for Opacus: `PrivacyEngine(accountant="betastar")` once `betastar.training` is imported."""

from __future__ import annotations

from math import inf

from numpy.typing import ArrayLike
from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant

from betastar.risk.analyze import analyze
from betastar.risk.interval import Bound
from betastar.risk.risk import Risk
from betastar.scenario.run import DPSGD
from betastar.scenario.threats import Membership


class BetastarAccountant(IAccountant):  # type: ignore[misc]
    """An accountant of Opacus that reads ε, β* and other metrics off the exact trade-off curve.

    `PrivacyEngine(accountant="betastar")` makes one, once `betastar.training` was imported.

    Examples
    --------
    >>> from opacus import PrivacyEngine
    >>> import betastar.training
    >>> accountant = PrivacyEngine(accountant="betastar").accountant
    >>> for step in range(50):
    ...     accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    >>> len(accountant)
    50
    >>> round(accountant.get_epsilon(delta=1e-5), 3)
    1.653
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[float, float, int]]

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Account for one step. Opacus calls this.

        Parameters
        ----------
        noise_multiplier : float
            The noise multiplier of the step.
        sample_rate : float
            The probability with which each record was sampled.
        """
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Give the name that `PrivacyEngine` knows this accountant by.

        Returns
        -------
        str
            "betastar".
        """
        return "betastar"

    @property
    def run(self) -> DPSGD:
        """Noise, sampling rate and number of the steps so far."""
        return run_of(self)

    def risk(self, relation: str = "substitution", method: str = "exact") -> Risk:
        """Analyse membership inference against the steps so far.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.
        method : str
            As in `betastar.analyze`.

        Returns
        -------
        Risk
            The risk of each record.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return analyze(self.run, Membership(relation), method)

    def get_epsilon(self, delta: float, **kwargs: object) -> float:
        """Compute ε of (ε, δ)-DP for adding or removing a record, from the upper end of the exact curve.

        Parameters
        ----------
        delta : float
            The δ.
        **kwargs : object
            Settings of other accountants, which are ignored.

        Returns
        -------
        float
            0 before the first step, and infinity if a step had no noise.
        """
        if not self.history:
            return 0.0
        if any(noise == 0.0 for noise, _, _ in self.history):
            return inf
        return float(self.risk("add-remove").epsilon(delta).upper)

    def bayes_security(self, relation: str = "substitution") -> Bound:
        """Compute β* against membership inference.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.

        Returns
        -------
        Bound
            β* and its numerical error.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return self.risk(relation).bayes_security

    def advantage(self, relation: str = "substitution") -> Bound:
        """Compute the advantage of membership inference.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.

        Returns
        -------
        Bound
            The advantage and its numerical error.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return self.risk(relation).advantage

    def tpr(self, fpr: ArrayLike, relation: str = "substitution") -> Bound:
        """Compute the true-positive rate of membership inference.

        Parameters
        ----------
        fpr : float or array
            The false-positive rate.
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.

        Returns
        -------
        Bound
            The largest true-positive rate and its numerical error.

        Raises
        ------
        ValueError
            If no step was taken yet.
        """
        return self.risk(relation).tpr(fpr)


def run_of(accountant: IAccountant) -> DPSGD:
    """The steps that an accountant of Opacus has seen. Raises `ValueError` if it has seen none."""
    if not accountant.history:
        raise ValueError("no step was taken yet: there is nothing to account for.")
    runs = [DPSGD(noise, min(rate, 1.0), steps) for noise, rate, steps in accountant.history]
    total = runs[0]
    for one in runs[1:]:
        total = total + one
    return total


register_accountant("betastar", BetastarAccountant, force=True)
