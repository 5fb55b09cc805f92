"""Secret: an attribute of a record whose value an attacker wants to know, who knows everything else about the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from betastar.training.records import Records
from betastar.training.secrets.secret_in_text import SecretInText

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import TransformerMixin


class Secret(SecretInText):
    """A sensitive attribute and the values that an attacker considers.

    Make one with `Secret.column`, `columns`, `one_hot`, `label`, `tokens`, `word`, `joint`, `function` or `from_transformer`. For
    another kind of secret, write a subclass with `name`, `labels` and the methods `variants`, `own` and `check`.

    Examples
    --------
    >>> from betastar.training import Secret
    >>> age = Secret.column(0, values=[-1.2, 0.1, 1.7], labels=[17, 40, 90], name="age")
    >>> age
    Secret('age', 3 values)
    >>> age.only(40, 90)
    [1, 2]
    """

    @staticmethod
    def column(
        column: int,
        values: ArrayLike | Tensor,
        *,
        labels: Sequence[Any] | None = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of one column of the model's input.

        Parameters
        ----------
        column : int
            The number of the column in the last dimension of the input.
        values : sequence of float
            The values as the model sees them (scaled).
        labels : sequence, optional
            What people call the values; by default the values themselves.
        name : str
            What people call the secret.
        argument : int or str
            The position or the name of the model's argument.
        unseen : bool
            Whether values beyond those that occur in the data are allowed.

        Returns
        -------
        Secret
            The secret.

        Raises
        ------
        TypeError, ValueError
            If the values are not at least two different numbers, or if there is not one label for each.

        Examples
        --------
        >>> from betastar.training import Secret
        >>> Secret.column(0, values=range(17, 91), name="age")
        Secret('age', 74 values)
        """
        table = _table("values", values)
        if table.ndim != 1:
            raise ValueError(
                f"values must be a list of numbers for one column, got shape {tuple(table.shape)}; see Secret.columns."
            )
        shown = [float(value) for value in table] if labels is None else list(labels)
        from betastar.training.secrets.secret_types import Columns

        return Columns([column], table[:, None], shown, name or f"column {column}", argument, unseen)

    @staticmethod
    def columns(
        columns: Sequence[int],
        values: ArrayLike | Tensor,
        *,
        labels: Sequence[Any] | None = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of several columns that change together.

        Parameters
        ----------
        columns : sequence of int
            The numbers of the columns in the last dimension of the input.
        values : table of float
            One row for each value of the secret, one number for each column, as the model sees them.
        labels : sequence, optional
            What people call the values; by default the rows.
        name : str
            What people call the secret.
        argument : int or str
            The position or the name of the model's argument.
        unseen : bool
            Whether values beyond those that occur in the data are allowed.

        Returns
        -------
        Secret
            The secret.

        Raises
        ------
        TypeError, ValueError
            If the values are not a table of at least two different rows, or if there is not one label for each.

        Examples
        --------
        >>> from betastar.training import Secret
        >>> Secret.columns([6, 7], values=[[0.0, 1.0], [0.5, 0.2]], name="place")
        Secret('place', 2 values)
        """
        table = _table("values", values)
        if table.ndim != 2 or table.shape[1] != len(columns):
            shape = tuple(table.shape)
            raise ValueError(
                f"values must have one row for each value of the secret and {len(columns)} columns, got shape {shape}."
            )
        shown = [tuple(row.tolist()) for row in table] if labels is None else list(labels)
        from betastar.training.secrets.secret_types import Columns

        return Columns(columns, table, shown, name or f"columns {list(columns)}", argument, unseen)

    @staticmethod
    def one_hot(
        columns: Sequence[int],
        *,
        on: ArrayLike = 1.0,
        off: ArrayLike = 0.0,
        labels: Sequence[Any] | None = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of a group of columns of which one is 1 and the others are 0.

        Parameters
        ----------
        columns : sequence of int
            The numbers of the columns in the last dimension of the input.
        on, off : float or sequence of float
            How the model sees 1 and 0 after scaling: one number for all columns, or one for each.
        labels : sequence, optional
            What people call the values; by default the numbers of the columns.
        name : str
            What people call the secret.
        argument : int or str
            The position or the name of the model's argument.
        unseen : bool
            Whether values beyond those that occur in the data are allowed.

        Returns
        -------
        Secret
            The secret.

        Raises
        ------
        TypeError, ValueError
            If there are fewer than two columns, or if there is not one label for each.

        Examples
        --------
        >>> from betastar.training import Secret
        >>> Secret.one_hot([3, 4, 5], labels=["office", "farm", "none"], name="work")
        Secret('work', 3 values)
        """
        size = len(columns)
        ones = torch.as_tensor(on, dtype=torch.float64).expand(size)
        zeros = torch.as_tensor(off, dtype=torch.float64).expand(size)
        table = torch.where(torch.eye(size, dtype=torch.bool), ones, zeros)
        named = name or f"one of columns {list(columns)}"
        return Secret.columns(columns, table, labels=labels or list(columns), name=named, argument=argument, unseen=unseen)

    @staticmethod
    def label(
        values: int | ArrayLike, *, labels: Sequence[Any] | None = None, name: str = "label", unseen: bool = False
    ) -> Secret:
        """Make a secret of what the model is trained to predict.

        Parameters
        ----------
        values : int or sequence
            The number of classes, or the list of targets.
        labels : sequence, optional
            What people call the values; by default the targets.
        name : str
            What people call the secret.
        unseen : bool
            Whether values beyond those that occur in the data are allowed.

        Returns
        -------
        Secret
            The secret.

        Raises
        ------
        ValueError
            If there are fewer than two different targets, or if there is not one label for each.

        Examples
        --------
        >>> from betastar.training import Secret
        >>> Secret.label(10, name="diagnosis")
        Secret('diagnosis', 10 values)
        """
        table = torch.arange(values) if isinstance(values, int) and not isinstance(values, bool) else torch.as_tensor(values)
        from betastar.training.secrets.secret_types import Label

        return Label(table, table.tolist() if labels is None else list(labels), name, unseen)

    @staticmethod
    def joint(*secrets: Secret) -> Secret:
        """Make a secret of several ones, whose values are all combinations of their values.

        Parameters
        ----------
        *secrets : Secret
            At least two secrets.

        Returns
        -------
        Secret
            The joint secret.

        Raises
        ------
        ValueError
            If there are fewer than two secrets.

        Examples
        --------
        >>> from betastar.training import Secret
        >>> age = Secret.column(0, values=[0.0, 0.5, 1.0], name="age")
        >>> Secret.joint(age, Secret.one_hot([3, 4], name="work"))
        Secret('age and work', 6 values)
        """
        if len(secrets) < 2:
            raise ValueError(f"secrets must be at least two, got {len(secrets)}.")
        from betastar.training.secrets.secret_types import Joint

        return Joint(secrets)

    @staticmethod
    def function(
        candidates: Callable[[Records], Records], count: int, *, labels: Sequence[Any] | None = None, name: str = "candidates"
    ) -> Secret:
        """Make a secret of any function from a record to the records that the attacker considers in its place.

        Parameters
        ----------
        candidates : callable
            Maps `Records` of one row to `Records` with one row for each candidate. The record itself has to be among them, and
            each candidate has to have the same candidates.
        count : int
            The largest number of candidates that a record has.
        labels : sequence, optional
            What people call the candidates; by default their numbers.
        name : str
            What people call the secret.

        Returns
        -------
        Secret
            The secret.

        Raises
        ------
        TypeError, ValueError
            If candidates cannot be called, or if count is less than 2.

        Examples
        --------
        >>> from betastar.training import Records, Secret
        >>> def with_either_sign(record):
        ...     size = record.inputs[0].abs().repeat(2, 1)
        ...     size[1] = -size[1]
        ...     return Records((size,), record.target.repeat(2))
        >>> Secret.function(with_either_sign, count=2, name="sign")
        Secret('sign', 2 values)
        """
        if not callable(candidates):
            raise TypeError(f"candidates must be a function from a record to its candidates, got {candidates!r}.")
        if isinstance(count, bool) or not isinstance(count, int) or count < 2:
            raise ValueError(f"count must be a whole number of at least 2, got {count!r}.")
        from betastar.training.secrets.secret_types import Function

        return Function(candidates, list(range(count)) if labels is None else list(labels), name)

    @staticmethod
    def from_transformer(
        transformer: TransformerMixin,
        column: str | Sequence[str],
        values: Sequence[Any],
        *,
        records: pd.DataFrame | None = None,
        name: str = "",
        argument: int | str = 0,
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of a raw column, by asking a fitted scikit-learn transformer how the model sees the raw values.

        Parameters
        ----------
        transformer : ColumnTransformer, Pipeline or other transformer
            It was fitted on a DataFrame with the raw columns.
        column : str or sequence of str
            The name of the raw column, or the names of several ones that change together.
        values : sequence
            The raw values; tuples if there are several columns.
        records : DataFrame, optional
            Some raw records, if the output of the transformer may depend on the whole record.
        name : str
            What people call the secret; by default the name of the column.
        argument : int or str
            The position or the name of the model's argument.
        unseen : bool
            Whether values beyond those that occur in the data are allowed.

        Returns
        -------
        Secret
            The secret, with the raw values as labels.

        Raises
        ------
        ValueError
            If the transformer does not know the column or a value, or if it encodes the column together with others.

        Examples
        --------
        >>> import pandas as pd
        >>> from sklearn.compose import make_column_transformer
        >>> from sklearn.preprocessing import OneHotEncoder, StandardScaler
        >>> from betastar.training import Secret
        >>> people = pd.DataFrame({"age": [17, 30, 60, 90], "work": ["office", "farm", "farm", "none"]})
        >>> encoder = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["work"])).fit(people)
        >>> Secret.from_transformer(encoder, "age", range(17, 91))
        Secret('age', 74 values)
        """
        from betastar.training.secrets.encoding import encode

        columns, table, shown = encode(transformer, column, values, records)
        from betastar.training.secrets.secret_types import Columns

        return Columns(columns, torch.from_numpy(table), shown, name or str(column), argument, unseen)


def _table(name: str, values: ArrayLike | Tensor) -> Tensor:
    """Finite numbers in double precision."""
    try:
        table = torch.as_tensor(list(values) if isinstance(values, range) else values, dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be numbers as the model sees them, got {values!r}; see Secret.from_transformer.") from None
    if not table.isfinite().all():
        raise ValueError(f"{name} must be finite, got {values!r}.")
    return table
