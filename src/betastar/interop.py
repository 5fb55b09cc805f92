"""dp_accounting: its events become runs, its privacy loss distributions become curves. Needs the extra `interop`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from betastar import checks
from betastar.bounds.discrete import DiscreteCurve, Side
from betastar.run import Segment


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
        yield from segments_of(event.event, rate, count * checks.whole("count", event.count))
    elif isinstance(event, dp.PoissonSampledDpEvent):
        inner = checks.fraction("sampling_probability", event.sampling_probability)
        yield from segments_of(event.event, rate * inner, count)
    elif isinstance(event, dp.GaussianDpEvent):
        yield Segment(checks.positive("noise_multiplier", event.noise_multiplier), rate, count)
    elif not isinstance(event, dp.NoOpDpEvent):
        raise ValueError(
            "event must be made of Gaussian, Poisson-sampled and composed events, "
            f"got {type(event).__name__}: its privacy is not that of DP-SGD with Poisson sampling."
        )


def curve_of(pld: Any) -> DiscreteCurve:
    """The trade-off curve of a privacy loss distribution: forward when the record is removed, backward when it is added."""

    def side(pmf: Any) -> Side:
        dense = pmf.to_dense_pmf()
        if not dense._pessimistic_estimate:
            raise ValueError("pld must be made with pessimistic_estimate=True: an optimistic one understates the risk.")
        losses = dense._discretization * (dense._lower_loss + np.arange(len(dense._probs)))
        return Side.of(losses, np.asarray(dense._probs, dtype=np.float64), float(dense._infinity_mass))

    try:
        return DiscreteCurve(side(pld._pmf_remove), side(pld._pmf_add))
    except AttributeError:
        raise TypeError(f"pld must be a dp_accounting PrivacyLossDistribution, got {type(pld).__name__}.") from None
