"""Names for kinds of arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

#: float64, complex128, int64 and bool; NumPy's own stubs promote too eagerly to say so.
Real: TypeAlias = NDArray[Any]
Complex: TypeAlias = NDArray[Any]
Whole: TypeAlias = NDArray[Any]
Booleans: TypeAlias = NDArray[Any]
