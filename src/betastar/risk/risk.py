"""Risk: what an attacker can do, for one run or for a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from betastar import validation
from betastar.display import Display, Displayed
from betastar.risk.interval import Bound, GaussianFit, stack
from betastar.risk.metrics import Outcome

#: Smallest false-positive rate that the Gaussian fit looks at, unless another is given.
SMALLEST_FPR = 1e-5
#: What the figures for an attacker are who sees the final model only.
FINAL_MODEL = "a heuristic for an attacker who sees the final model only, not a bound"


class Risk(Displayed):
    """The answer of `analyze`: what an attacker can do. People do not make one themselves.

    Each metric is a Bound(lower, estimate, upper); for a sweep, of arrays of its shape. `source` says what the metrics are read
    off: the trade-off curve, or β* alone for methods that have no curve. Printed, a risk is a sentence and its β*; rich and
    notebooks show a table as well, and notebooks the trade-off curve.

    Parameters
    ----------
    outcomes : sequence of Outcome
        One for each run of a sweep.
    shape : tuple of int
        The shape of the sweep; () for a single run.
    threat : str
        The description of the threat.
    method : str
        The name of the method.
    heuristic : str, optional
        What the figures are if they are no bounds; None otherwise. Each metric then has an estimate, and nan for its ends.

    Examples
    --------
    >>> import betastar as bs
    >>> risk = bs.analyze(bs.DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500))
    >>> print(risk.advantage)
    0.0893302 [0.0893301, 0.0893302]
    >>> print(risk.success(prior=0.5))
    0.544665 [0.544665, 0.544666]
    """

    def __init__(
        self, outcomes: Sequence[Outcome], shape: tuple[int, ...], threat: str, method: str, heuristic: str | None = None
    ) -> None:
        self.heuristic = heuristic
        self._outcomes = list(outcomes)
        self.shape = shape
        self.threat = threat
        self.method = method

    @classmethod
    def from_pld(cls, pld: Any) -> Risk:
        """From a dp_accounting privacy loss distribution: pessimistic, so only the unsafe side of each metric is bounded."""
        from betastar.risk.loss_distributions import curve_of

        curve = curve_of(pld)
        beta = max(0.0, curve.overlap().value)
        outcome = Outcome(Bound(beta, beta, 1.0), worst=(curve,), oriented=True)
        return cls([outcome], (), "membership inference (as in the privacy loss distribution)", "privacy loss distribution")

    @property
    def source(self) -> str:
        return self._outcomes[0].source

    @property
    def bayes_security(self) -> Bound:
        """β*: 1 minus the attacker's best advantage. 1 is perfect, 0 is none."""
        return self._each(lambda outcome: outcome.bayes_security)

    @property
    def advantage(self) -> Bound:
        """2·Pr[right guess] - 1 at a fair prior, the total variation of the two worlds."""
        return self._each(lambda outcome: outcome.bayes_security.complement())

    def success(self, prior: Any = 0.5) -> Bound:
        """Probability of a right guess. prior: probability of the positive world, or of each of M secrets."""
        if np.ndim(prior) == 0:
            value = validation.probability("prior", prior)
            return self._each(lambda outcome: outcome.success(value))
        priors = np.asarray(validation.probability("prior", prior))
        if priors.ndim != 1 or priors.size < 2 or abs(priors.sum() - 1.0) > 1e-9:
            raise ValueError(f"prior must be a probability or a list of at least two that add up to 1, got {prior!r}.")
        if priors.size == 2:
            return self.success(float(priors[1]))
        return self._each(lambda outcome: outcome.success_among(float(priors.max())))

    def tpr(self, fpr: Any) -> Bound:
        """True-positive rate of the best attack with this false-positive rate (a number or an array)."""
        return self._at(validation.probability("fpr", fpr), Outcome.tpr)

    def tradeoff(self, fpr: Any) -> Bound:
        """The whole curve: TPR at each FPR of an array; a sweep's shape comes first."""
        return self.tpr(np.atleast_1d(fpr))

    def delta(self, epsilon: Any) -> Bound:
        """δ of (ε, δ)-DP: the worse of the two directions. A number or an array, as for tpr."""
        value = validation.numbers("epsilon", epsilon, "a finite number of at least 0", low=0.0, high=np.inf)
        return self._at(value, Outcome.delta)

    def mean_delta(self, epsilons: Any) -> Any:
        """The mean of δ over the two directions, which is what a fair coin between the two worlds allows: the safe end, for an
        array of ε of a single run. It equals δ if either world may be the positive one."""
        if self.shape != ():
            raise ValueError(f"mean_delta needs a single run, got a sweep of shape {self.shape}.")
        value = validation.numbers("epsilons", epsilons, "finite numbers of at least 0", low=0.0, high=np.inf)
        return self._outcomes[0].mean_delta(np.atleast_1d(value))

    def epsilon(self, delta: Any) -> Bound:
        """ε of (ε, δ)-DP: the worse of the two directions. A number or an array, as for tpr."""
        return self._at(validation.probability("delta", delta, strict=True), Outcome.epsilon)

    def reconstruction(self, prior: Any) -> Bound:
        """Probability that a record is reconstructed if the best guess without the model is right with `prior` (or an array)."""
        return self._at(validation.probability("prior", prior), Outcome.tpr)

    @property
    def gdp_mu(self) -> GaussianFit:
        """μ of Gaussian DP, fitted down to FPR 1e-5, with its regret."""
        return self.gaussian()

    def gaussian(self, smallest_fpr: Any = SMALLEST_FPR) -> GaussianFit:
        """The smallest μ whose Gaussian curve lies above the trade-off curve where both error rates are ≥ smallest_fpr (or an
        array). The smaller that floor, the larger is μ: name it beside μ."""
        value = validation.numbers(
            "smallest_fpr", smallest_fpr, "greater than 0 and below 0.5", low=0.0, high=0.5, open_low=True, open_high=True
        )
        fits: list[Bound] = [outcome.gaussian(float(one)) for outcome in self._outcomes for one in np.ravel(value)]
        fit = self._said(stack(fits, self.shape + np.shape(value)))
        assert isinstance(fit, GaussianFit)
        return fit

    def _at(self, given: Any, metric: Callable[[Outcome, Any], Bound]) -> Bound:
        """A metric at a number, or at each of an array in one pass: a sweep's shape comes first."""
        return self._said(stack([metric(outcome, given) for outcome in self._outcomes], self.shape + np.shape(given)))

    def _each(self, metric: Callable[[Outcome], Bound]) -> Bound:
        return self._said(stack([metric(outcome) for outcome in self._outcomes], self.shape))

    def _said(self, bound: Bound) -> Bound:
        """A bound as it is; of a heuristic, the estimate alone."""
        return bound if self.heuristic is None else bound.without_ends()

    def _display(self, brief: bool) -> Display:
        from betastar.risk.risk_display import display

        return display(self, brief)

    def __repr__(self) -> str:
        said = "" if self.heuristic is None else f", {self.heuristic}"
        return f"Risk({self.threat}, {self.method}{said}: bayes_security={self.bayes_security})"
