"""An accountant for Opacus: `PrivacyEngine(accountant="betastar")` once a name of `betastar.training` for Opacus is imported."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from opacus.accountants import IAccountant
from opacus.accountants.registry import register_accountant
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from betastar.analyze import analyze
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnBatch, DrawnSteps, poisson
from betastar.risk import Bound, Risk
from betastar.threats import Membership
from betastar.training.opacus.adapter import drawn_by, made_private, noise_of_step, require_counted, warn_of_shards

#: What to do with a state that does not say how batches were drawn.
STATE_POISSON = (
    "it does not say how batches were drawn; if each of its steps had Poisson sampling, say so: "
    "accountant.history = state['history']."
)


class BetastarAccountant(IAccountant):  # type: ignore[misc]
    """An accountant of Opacus that reads ε, β* and other metrics off the exact trade-off curve.

    `PrivacyEngine(accountant="betastar")` makes one, once it was imported. It sees which loader `make_private`
    returns, and counts what that does: Poisson sampling of Opacus, a loader of `private_loader`, or PyTorch's shuffling. Of balls
    in bins and of shuffling, an epoch of which a step was taken counts as a whole one.

    What cannot be counted is refused with an error: other loaders, `rand_on_empty`, adaptive clipping, optimizers that are not
    those of Opacus, and steps on several batches at once. With several processes, the noise multiplier of the optimizer and the
    rate of the loader are counted; that the processes draw their batches independently (with a seed each) is not checked.

    Examples
    --------
    >>> from opacus import PrivacyEngine
    >>> from betastar.training import BetastarAccountant
    >>> accountant = PrivacyEngine(accountant="betastar").accountant
    >>> for step in range(50):
    ...     accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    >>> len(accountant)
    50
    >>> round(accountant.get_epsilon(delta=1e-5), 3)
    1.653
    """

    def __init__(self) -> None:
        self._drawn = DrawnSteps()
        self._assigned = True  # whether all steps so far were assigned to `history`
        self._loader: DataLoader[Any] | None = None
        self._divisor = ""  # a warning that the next statement about adding or removing a record shows
        super().__init__()

    @property
    def history(self) -> tuple[tuple[float, float, int], ...]:
        """(noise multiplier, rate, steps) of steps in a row that are alike.

        Assigning states that all steps had Poisson sampling, as Opacus does when it looks for a noise. It raises `ValueError`
        once a step was counted.
        """
        return tuple(self._drawn.triples())

    @history.setter
    def history(self, steps: Iterable[tuple[float, float, int]]) -> None:
        if not self._assigned:
            raise ValueError("history is what was counted and cannot be assigned any more: make another BetastarAccountant.")
        self._drawn = DrawnSteps()
        for noise, rate, count in steps:
            self._drawn.add(noise, poisson(rate), steps=count)

    def follow(self, loader: DataLoader[Any]) -> None:
        """Count further steps as this loader draws its batches.

        `make_private` of Opacus does this by itself. An engine of one's own has to do it.

        Parameters
        ----------
        loader : DataLoader
            The loader that the training loop iterates over.

        Raises
        ------
        TypeError, ValueError
            If the loader draws batches in a way that cannot be analysed.
        """
        drawn_by(loader)
        self._loader = loader

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """Give the function that Opacus calls at each step.

        Parameters
        ----------
        sample_rate : float
            One divided by the number of batches of an epoch. It is not used: the loader knows its rate.

        Returns
        -------
        callable
            It is called with the optimizer, and counts the step. It raises `ValueError` or `TypeError`, before the weights
            change, if the step cannot be analysed or if no loader is known.

        Raises
        ------
        TypeError, ValueError
            If `make_private` asks, and its optimizer or its loader does what cannot be analysed.
        """
        made = made_private()
        if made is not None:
            require_counted(made.optimizer)
            warn_of_shards(made.optimizer)
            scheme = drawn_by(made.loader).scheme
            if made.for_epsilon and not scheme.plain:
                raise ValueError(
                    "make_private_with_epsilon computes the noise of Poisson sampling, but the loader draws batches otherwise "
                    f"({scheme.sampling!r}): find the noise with betastar.calibrate and pass it to make_private."
                )
            self._divisor = made.divisor or self._divisor

        def count(optimizer: DPOptimizer) -> None:
            loader = self._loader if made is None else made.loader
            if loader is None:
                raise ValueError(
                    "the accountant does not know which loader draws the batches: call accountant.follow(loader) before the "
                    "first step, or count steps of Poisson sampling yourself: accountant.step(noise_multiplier=…, sample_rate=…)."
                )
            self._add(noise_of_step(optimizer), drawn_by(loader))

        return count

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Account for one step with Poisson sampling. The caller states that the step had it.

        Parameters
        ----------
        noise_multiplier : float
            The noise multiplier of the step.
        sample_rate : float
            The probability with which each record was sampled, independently of the others.
        """
        self._add(noise_multiplier, poisson(sample_rate))

    def _add(self, noise: float, drawn: DrawnBatch) -> None:
        """Count a step."""
        self._drawn.add(noise, drawn)
        self._assigned = False

    def __len__(self) -> int:
        return len(self._drawn)

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
        """Noise, sampling and number of the steps so far. Raises `ValueError` if there are none."""
        if not len(self):
            raise ValueError("no step was taken yet: there is nothing to account for.")
        return self._drawn.run

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
        state = OrderedDict() if destination is None else destination
        state.update(mechanism=self.mechanism(), drawn=self._drawn.state_dict(), divisor=self._divisor)
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
            If the state is empty or of another accountant, or if it does not say how batches were drawn.
        """
        mechanism = (state_dict or {}).get("mechanism")
        if mechanism is None:
            raise ValueError("state_dict is empty or not the state of an accountant, and cannot be loaded.")
        if mechanism != self.mechanism() or "drawn" not in state_dict:
            raise ValueError(f"the state of the accountant {mechanism!r} cannot be loaded: {STATE_POISSON}")
        self._drawn, self._assigned = DrawnSteps(), False
        self._drawn.load_state_dict(state_dict["drawn"])
        self._divisor = state_dict["divisor"]

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
        found = analyze(self.run, Membership(relation), method)
        if relation == "add-remove" and self._divisor:
            divisor, self._divisor = self._divisor, ""
            warnings.warn(divisor, stacklevel=3)
        return found

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
        if not len(self):
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


register_accountant("betastar", BetastarAccountant, force=True)
