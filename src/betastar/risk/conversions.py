"""Between Bayes security and (ε, δ): the two bounds of the paper, and what β* alone says about an attack.

Write TV = 1 - β*. An attack curve TPR(FPR) is concave and somewhere TV above the diagonal; that is all that β* tells.
"""

from __future__ import annotations

from math import exp, inf, log, tanh

from scipy.special import ndtri

from betastar import validation


def advantage_from_epsilon(epsilon: float, delta: float = 0.0) -> float:
    """Largest advantage that (ε, δ)-DP allows: (e^ε - 1 + 2δ)/(e^ε + 1) (Humphries et al.).

    Parameters
    ----------
    epsilon : float
        ε, at least 0.
    delta : float
        δ, between 0 and 1.

    Returns
    -------
    float
        The advantage, between 0 and 1.

    Raises
    ------
    ValueError
        If a number is outside its range.

    Examples
    --------
    >>> import betastar as bs
    >>> round(bs.advantage_from_epsilon(1.0, delta=1e-5), 6)
    0.462123
    """
    epsilon = validation.numbers("epsilon", epsilon, "a finite number of at least 0", low=0.0, high=inf)
    delta = validation.probability("delta", delta)
    fair = exp(-epsilon) / (1.0 + exp(-epsilon))  # 1/(e^ε + 1)
    return min(1.0, tanh(0.5 * epsilon) + 2.0 * delta * fair)


def epsilon_from_bayes_security(bayes_security: float, delta: float = 0.0) -> float:
    """Smallest ε that any (ε, δ)-DP statement about a run with this β* can have: ln((2 - β* - 2δ)/β*), at least 0.

    Parameters
    ----------
    bayes_security : float
        β*. The answer is a lower bound on ε: pass the upper end of β*.
    delta : float
        δ, between 0 and 1.

    Returns
    -------
    float
        ε; infinite for β* = 0.

    Raises
    ------
    ValueError
        If a number is outside its range.

    Examples
    --------
    >>> import betastar as bs
    >>> round(bs.epsilon_from_bayes_security(0.9), 6)
    0.200671
    """
    beta = validation.probability("bayes_security", bayes_security)
    delta = validation.probability("delta", delta)
    inside = 2.0 - beta - 2.0 * delta
    if inside <= beta:
        return 0.0
    if beta == 0.0:
        return inf
    return log(inside / beta) if beta > 1e-300 else log(inside) - log(beta)  # whose ratio would overflow


def tpr_at_most(advantage: float, fpr: float) -> float:
    """TPR ≤ FPR + TV, for every prior (theory, section 8: the paper's second case is not needed)."""
    return min(1.0, fpr + advantage)


def tpr_at_least(advantage: float, fpr: float) -> float:
    """The lowest concave curve that is TV above the diagonal somewhere, at this FPR."""
    if advantage >= 1.0:
        return 1.0
    return max(fpr, min(fpr / (1.0 - advantage), fpr + advantage * (1.0 - fpr)))


def success_at_most(advantage: float, prior: float) -> float:
    """1 - β*·min(π, 1-π)."""
    return 1.0 - (1.0 - advantage) * min(prior, 1.0 - prior)


def delta_at_least(advantage: float, epsilon: float) -> float:
    """δ ≥ (TV(e^ε + 1) - (e^ε - 1))/2."""
    shrink = exp(-epsilon)
    return max(0.0, 0.5 * (advantage * (1.0 + shrink) - (1.0 - shrink)) / shrink) if epsilon < 700.0 else 0.0


def mu_from_overlap(bayes_security: float) -> float:
    """μ of the Gaussian curve with this β*: 2Φ^{-1}(1 - β*/2)."""
    return -2.0 * float(ndtri(0.5 * bayes_security)) if bayes_security > 0.0 else inf
