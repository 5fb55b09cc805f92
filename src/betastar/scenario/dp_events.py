"""Events of dp_accounting become runs. Needs the extra `interop`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from betastar import validation
from betastar.scenario.run import Segment


def segments_of(event: Any, rate: float = 1.0, count: int = 1) -> Iterator[Segment]:
    """Segments of an event: Gaussian, Poisson-sampled Gaussian, and their (self-)compositions."""
    import dp_accounting as dp

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
    elif not isinstance(event, dp.NoOpDpEvent):
        raise ValueError(
            "event must be made of Gaussian, Poisson-sampled and composed events, "
            f"got {type(event).__name__}: its privacy is not that of DP-SGD with Poisson sampling."
        )
