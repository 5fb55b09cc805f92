"""Poisson batches of which at most B records are kept at random: the probabilities of one record (theory, section 13).

K ~ Bin(N-1, p) other records are drawn, N being the number of records of the larger data set. Everybody may know whether K ≥ B,
which says nothing of the record. If K < B, the record is in the batch with probability p, in addition to the others. If K ≥ B, it
is in the batch with the probability p·E[B/(K+1) | K ≥ B] = B·Pr[Bin(N,p) > B] / (N·Pr[K ≥ B]), in the place of another.
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import betainc

#: What rounding may change of a probability, relative to itself.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Truncation:
    """full: probability that the others alone fill the batch. rate: that the record takes part then. overall: that it ever does.

    The first two are rounded up, the last one down.
    """

    full: float
    rate: float
    overall: float


def truncation(sample_rate: float, dataset_size: int, max_batch_size: int) -> Truncation:
    """The probabilities of one record."""
    p, others, most = sample_rate, dataset_size - 1, max_batch_size
    full, crowded = at_least(most, others, p), at_least(most + 1, dataset_size, p)
    if full == 0.0:
        return Truncation(0.0, p, p)
    rate = min(p, most / dataset_size * crowded / full * (1.0 + 4.0 * ROUNDING))
    # p·Pr[K < B] + (B/N)·Pr[Bin(N,p) > B] = p - (p·Pr[K ≥ B] - …): what the cut takes away is small, or nothing.
    overall = p - max(p * full - most / dataset_size * crowded, 0.0)
    return Truncation(min(1.0, full * (1.0 + 2.0 * ROUNDING)), rate, overall * (1.0 - 4.0 * ROUNDING))


def at_least(number: int, trials: int, probability: float) -> float:
    """Pr[Bin(trials, probability) ≥ number], as a regularised incomplete beta function: accurate relative to itself."""
    if number <= 0:
        return 1.0
    if number > trials:
        return 0.0
    return float(betainc(number, trials - number + 1, probability))
