"""The ledger: the β* of single records beside the one that holds for any record."""

from __future__ import annotations

import numpy as np
import pytest

from betastar.training import Ledger


@pytest.mark.parametrize("any_record", [0.0, 5e-324, 1e-300, 0.4, 0.97, 1.0])
@pytest.mark.parametrize("scope", ["batch", "dataset"])
def test_no_record_is_worse_than_any_record(scope: str, any_record: float) -> None:
    ledger = Ledger(3, scope)
    for _ in range(8):
        ledger.step(np.array([0.0, 0.04, 0.08]), 0.25, 0.8)
    beta = ledger.beside(any_record)
    assert np.all((any_record <= beta) & (beta <= 1.0))
    assert beta[0] == 1.0
    assert np.all(np.diff(beta) <= 0.0)
    if any_record > 1e-300:
        assert beta[2] == pytest.approx(any_record)
