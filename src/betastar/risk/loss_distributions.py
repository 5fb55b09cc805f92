"""Privacy loss distributions of dp_accounting become curves. Needs the extra `interop`."""

from __future__ import annotations

from typing import Any

import numpy as np

from betastar.bounds.discrete import DiscreteCurve, Side


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
