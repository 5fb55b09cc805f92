"""Events of dp_accounting become runs. Needs the extra `interop`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from betastar import validation
from betastar.scenario.run import Segment

#: What the probabilities of a mixture may differ from 1 by, in all.
ROUNDING = 1e-9


def segments_of(event: Any, rate: float = 1.0, count: int = 1) -> Iterator[Segment]:
    """Segments of an event: Gaussians, sampled in several ways, mixtures of them, and their (self-)compositions."""
    from dp_accounting import dp_event as dp

    composed = isinstance(event, dp.ComposedDpEvent) and len(event.events) > 1
    repeated = isinstance(event, dp.SelfComposedDpEvent) and event.count > 1
    if rate != 1.0 and (composed or repeated):
        raise ValueError(f"event must sample anew for each mechanism, got one sample for several: {event!r}.")
    if isinstance(event, dp.ComposedDpEvent):
        for part in event.events:
            yield from segments_of(part, rate, count)
    elif isinstance(event, dp.SelfComposedDpEvent):
        yield from segments_of(event.event, rate, count * validation.whole("count", event.count))
    elif isinstance(event, dp.PoissonSampledDpEvent):
        inner = validation.fraction("sampling_probability", event.sampling_probability)
        yield from segments_of(event.event, rate * inner, count)
    elif isinstance(event, dp.GaussianDpEvent):
        yield Segment(validation.positive("noise_multiplier", event.noise_multiplier), rate, count)
    elif isinstance(event, dp.MixtureOfGaussiansDpEvent):
        yield _mixture(event, rate, count)
    elif isinstance(event, dp.SampledWithoutReplacementDpEvent):
        yield from _without_replacement(event, rate, count)
    elif isinstance(event, dp.TruncatedSubsampledGaussianDpEvent):
        _only_once(event, rate)
        size = validation.whole("dataset_size", event.dataset_size)
        most = validation.whole("truncated_batch_size", event.truncated_batch_size)
        chance = validation.fraction("sampling_probability", event.sampling_probability)
        noise = validation.positive("noise_multiplier", event.noise_multiplier)
        yield Segment(noise, chance, count, max_batch_size=most, dataset_size=size)
    elif not isinstance(event, dp.NoOpDpEvent):
        raise ValueError(
            "event must be made of Gaussians, sampled by Poisson sampling (truncated or not) or without replacement, of mixtures "
            f"of Gaussians, and of their compositions, got {type(event).__name__}: its privacy is not that of DP-SGD."
        )


def _only_once(event: Any, rate: float) -> None:
    if rate != 1.0:
        raise ValueError(f"event must not sample from a sample, got another sampling around {event!r}.")


def _without_replacement(event: Any, rate: float, count: int) -> Iterator[Segment]:
    """A fixed number of records, drawn anew each time."""
    _only_once(event, rate)
    size = validation.whole("source_dataset_size", event.source_dataset_size)
    drawn = validation.whole("sample_size", event.sample_size)
    if drawn > size:
        raise ValueError(f"sample_size must be at most source_dataset_size = {size}, got {drawn}.")
    inside = list(segments_of(event.event))
    if len(inside) != 1 or inside[0].steps != 1 or inside[0] != Segment(inside[0].noise_multiplier, 1.0, 1):
        raise ValueError(f"event must sample anew for each mechanism, and only once, for a Gaussian, got {event!r}.")
    yield Segment(inside[0].noise_multiplier, drawn / size, count, "fixed-size", dataset_size=size)


def _mixture(event: Any, rate: float, count: int) -> Segment:
    """A Gaussian of random sensitivity; if it is sampled, the sensitivity is 0 otherwise."""
    noise = validation.positive("standard_deviation", event.standard_deviation)
    shifts = np.atleast_1d(validation.numbers("sensitivities", event.sensitivities, "at least 0", low=0.0, high=np.inf))
    chances = np.atleast_1d(validation.probability("sampling_probs", event.sampling_probs))
    if shifts.shape != chances.shape or abs(chances.sum() - 1.0) > ROUNDING:
        raise ValueError(
            f"sampling_probs must add up to 1, one for each of the sensitivities, got {event.sampling_probs!r} for "
            f"{event.sensitivities!r}."
        )
    law = {0.0: 1.0 - rate} if rate < 1.0 else {}
    for shift, chance in zip(shifts.tolist(), chances.tolist(), strict=True):
        law[shift] = law.get(shift, 0.0) + rate * chance
    pairs = tuple((shift, law[shift]) for shift in sorted(law) if law[shift] > 0.0)
    sampled = min(1.0, sum(chance for shift, chance in pairs if shift > 0.0))
    return Segment(noise, sampled or 1.0, count, "mixture", mixture=pairs)
