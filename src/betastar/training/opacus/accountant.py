"""An accountant for Opacus: `PrivacyEngine(accountant="betastar")` once `betastar.training` is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from numpy.typing import ArrayLike
from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from betastar.analyze import analyze
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnBatch, DrawnSteps, poisson
from betastar.risk import Bound, Risk
from betastar.threats import Membership
from betastar.training.opacus.adapter import loader_of_make_private, logical_sampler
from betastar.training.opacus.samplers import drawn_of


class BetastarAccountant(IAccountant):  # type: ignore[misc]
    """An accountant of Opacus that reads ε, β* and other metrics off the exact trade-off curve.

    `PrivacyEngine(accountant="betastar")` makes one, once `betastar.training` was imported. It sees which loader `make_private`
    returns, and counts what that does: Poisson sampling of Opacus, a loader of `private_loader`, or PyTorch's shuffling. Of balls
    in bins and of shuffling, an epoch of which a step was taken counts as a whole one.

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
        self._drawn = DrawnSteps()
        self._loader: DataLoader[Any] | None = None
        self._sampled_by: DataLoader[Any] | None = None  # the loader of the step that is counted
        self._refusal = ""  # why the steps cannot be analysed
        self._last: tuple[int, tuple[float, float, int]] | None = None  # length and end of the history after the last step

    def follow(self, loader: DataLoader[Any]) -> None:
        """Count further steps as this loader draws its batches.

        `make_private` of Opacus, a monitor and gap clipping do this by themselves. An engine of one's own may not.

        Parameters
        ----------
        loader : DataLoader
            The loader that the training loop iterates over.

        Raises
        ------
        ValueError
            If the loader draws batches in a way that cannot be analysed.
        """
        _drawn(loader)
        self._loader = loader

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """Give the function that Opacus calls at each step.

        Parameters
        ----------
        sample_rate : float
            One divided by the number of batches of an epoch.

        Returns
        -------
        callable
            It is called with the optimizer, and counts the step.
        """
        loader = loader_of_make_private()
        count: Callable[[DPOptimizer], None] = super().get_optimizer_hook_fn(sample_rate)

        def count_sampled(optimizer: DPOptimizer) -> None:
            self._sampled_by = loader or self._loader
            try:
                count(optimizer)
            finally:
                self._sampled_by = None

        return count_sampled

    def _drawn_for_step(self, rate: float) -> DrawnBatch:
        """How the batch of the step that Opacus reports was drawn; `rate` is what Opacus says that its rate is."""
        loader = self._sampled_by
        if loader is None:
            return poisson(rate)
        try:
            drawn = _drawn(loader)
        except ValueError as problem:
            self._refusal = str(problem)
            return poisson(rate)
        if drawn.scheme.plain:
            return poisson(rate)
        if rate * len(loader) > 1.5:  # Opacus reports 1 / batches, times the batches that were accumulated
            word = repr(drawn.scheme.sampling)
            self._refusal = f"a step was taken on several batches at once, which sampling {word} does not cover."
        return drawn

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Account for one step. Opacus calls this.

        Parameters
        ----------
        noise_multiplier : float
            The noise multiplier of the step.
        sample_rate : float
            The probability with which each record was sampled, by Poisson sampling unless a loader is followed.
        """
        self._adopt()
        drawn = self._drawn_for_step(sample_rate)
        rate = drawn.scheme.sample_rate
        self._drawn.add(noise_multiplier, drawn)
        if self.history and self.history[-1][:2] == (noise_multiplier, rate):
            self.history[-1] = (noise_multiplier, rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, rate, 1))
        self._last = (len(self.history), self.history[-1])

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
        """Noise, sampling and number of the steps so far. Raises `ValueError` if there are none, or none can be analysed."""
        if not self.history:
            raise ValueError("no step was taken yet: there is nothing to account for.")
        if self._refusal:
            raise ValueError(f"the steps cannot be analysed: {self._refusal}")
        self._last = None
        self._adopt()
        return self._drawn.run

    def _adopt(self) -> None:
        """Take a history that somebody has set, as Opacus does when it looks for a noise, as one of Poisson sampling."""
        if self.history and self._last == (len(self.history), self.history[-1]):
            return
        if self._drawn.triples() == self.history:
            return
        if len(self._drawn) and not self._drawn.plain:
            raise ValueError("history was changed from outside, so that it does not belong to the samplings that were counted.")
        self._drawn = DrawnSteps()
        for noise, rate, steps in self.history:
            self._drawn.add(noise, poisson(rate), steps=steps)

    def state_dict(self, destination: Any = None) -> Any:
        """Give the state of the accountant, to be saved.

        Parameters
        ----------
        destination : mapping, optional
            Where the state is put; a new one by default.

        Returns
        -------
        mapping
            What `load_state_dict` takes.
        """
        self._adopt()
        state = super().state_dict(destination)
        if not self._drawn.plain:
            state["drawn"] = self._drawn.state_dict()
        if self._refusal:
            state["refusal"] = self._refusal
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Parameters
        ----------
        state_dict : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state is empty, or of another accountant.
        """
        super().load_state_dict(state_dict)
        self._drawn, self._refusal = DrawnSteps(), state_dict.get("refusal", "")
        if "drawn" in state_dict:
            self._drawn.load_state_dict(state_dict["drawn"])

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


def _drawn(loader: DataLoader[Any]) -> DrawnBatch:
    """How the last batch of a loader was drawn."""
    return drawn_of(logical_sampler(loader), len(loader.dataset))  # type: ignore[arg-type]


register_accountant("betastar", BetastarAccountant, force=True)
