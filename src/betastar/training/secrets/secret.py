"""Secret: an attribute of a record whose value an attacker wants to know, who knows everything else about the record."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from hashlib import sha256
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from betastar import validation
from betastar.training.records import TARGET, Records, argument_of, concatenated, flattened

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import TransformerMixin

    from betastar.training.secrets.texts import TextField, Tokenizer


#: What is done with records that do not hold exactly one of the candidates.
OTHERS = ("refuse", "keep")


class Secret(ABC):
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

    #: Whether `check` is cheap enough for every batch.
    quick_check = True
    #: What people call the secret.
    name: str
    #: What people call its values.
    labels: list[Any]
    #: How frequent the values are, if that is publicly known.
    prior: Tensor | None = None
    #: Whether people have already been told which other columns restate the secret.
    restated_reported = False

    @staticmethod
    def column(
        column: int | tuple[int, ...],
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
        column : int or tuple of int
            The number of the column in the last dimension of the input. A tuple is the place of one number in a record, such as
            (channel, row, column) of a pixel.
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
        >>> Secret.column((0, 4, 3), values=[0.0, 0.5, 1.0], name="pixel")
        Secret('pixel', 3 values)
        """
        table = _table("values", values)
        if table.ndim != 1:
            raise ValueError(
                f"values must be a list of numbers for one column, got shape {tuple(table.shape)}; see Secret.columns."
            )
        shown = [float(value) for value in table] if labels is None else list(labels)
        if isinstance(column, tuple):
            return Entry(column, table[:, None], shown, name or f"entry {column}", argument, unseen)
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
        return Label(table, table.tolist() if labels is None else list(labels), name, unseen)

    @staticmethod
    def tokens(
        start: int | str,
        candidates: Sequence[Sequence[int]],
        *,
        field: int | str | TextField = 0,
        labels: Sequence[Any] | None = None,
        name: str = "span",
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of a span of a text that could have been one of several spans.

        If candidates have different lengths, the text after the span moves, and padding takes up the difference (with padding on
        the left: the text before the span). The record keeps its number of positions; a text without room for the longest
        candidate is refused.

        Parameters
        ----------
        start : int or str
            The position at which the span starts in all records, or the name of a keyword argument of the model that holds the
            position for each record, or a mask that is 1 at the tokens of the span and 0 at others. If a mask has several spans
            in a record, they hold the same candidate and change together.
        candidates : sequence of sequences of int
            The ids of the tokens of each candidate.
        field : int, str or TextField
            Where the tokens are: the position or name of the model's argument, or a `TextField` that names labels, masks and
            padding, too.
        labels : sequence, optional
            What people call the candidates; by default their tokens.
        name : str
            What people call the secret.
        unseen : bool
            Whether candidates that no record holds are allowed.

        Returns
        -------
        Secret
            The secret.

        Raises
        ------
        TypeError, ValueError
            If the candidates are not at least two different sequences of ids, or if they have different lengths and no padding.

        Examples
        --------
        >>> import torch
        >>> from betastar.training import Records, Secret, TextField
        >>> place = Secret.tokens(1, [[7], [8, 9]], field=TextField(pad=0), labels=["Rome", "New York"], name="place")
        >>> text = Records((torch.tensor([[5, 7, 6, 0]]),), torch.tensor([1]))
        >>> place.variants(text, [0, 1]).inputs[0]
        tensor([[5, 7, 6, 0],
                [5, 8, 9, 6]])
        """
        from betastar.training.secrets.texts import Tokens

        if isinstance(start, bool) or not isinstance(start, int | str) or (isinstance(start, int) and start < 0):
            raise ValueError(f"start must be a position of at least 0 or the name of an argument of the model, got {start!r}.")
        spans = [_token_tuple(one) for one in candidates]
        shown = list(spans) if labels is None else list(labels)
        return Tokens(start, spans, field, shown, name, unseen)

    @staticmethod
    def word(
        tokenizer: Tokenizer,
        field: int | str | TextField,
        candidates: Sequence[str],
        *,
        others: str = "refuse",
        name: str = "word",
        unseen: bool = False,
    ) -> Secret:
        """Make a secret of a word that a text holds, such as a name, a place or a diagnosis.

        A text holds exactly one of the candidates, once or several times; all occurrences change together, because one of them
        would otherwise tell what the others were. Of candidates that begin alike, the longest one that fits counts.

        Parameters
        ----------
        tokenizer : tokenizer of Hugging Face or callable
            It made the tokens of the records. A function maps a text to the ids of its tokens, without those that mark the
            beginning and the end of a text.
        field : int, str or TextField
            Where the tokens are: the position or name of the model's argument, or a `TextField` that names labels, masks and
            padding, too.
        candidates : sequence of str
            The words, of one or several tokens.
        others : "refuse" or "keep"
            What is done with records that hold none of the candidates, or several different ones. "keep" leaves them as they are,
            with distance 0: nothing is measured or proved about them.
        name : str
            What people call the secret.
        unseen : bool
            Whether candidates that no record holds are allowed.

        Returns
        -------
        Secret
            The secret, with the words as labels.

        Raises
        ------
        TypeError, ValueError
            If there are fewer than two candidates, if two of them are the same tokens, or if the tokenizer does not know one.

        Examples
        --------
        >>> import torch
        >>> from betastar.training import Records, Secret
        >>> numbers = {"Ann": 1, "Bob": 2, "met": 3, "Carl": 4}
        >>> person = Secret.word(lambda text: [numbers[word] for word in text.split()], 0, ["Ann", "Bob"], name="person")
        >>> text = Records((torch.tensor([[4, 3, 1]]),), torch.tensor([1]))
        >>> person.variants(text, [0, 1]).inputs[0]
        tensor([[4, 3, 1],
                [4, 3, 2]])
        """
        from betastar.training.secrets.texts import Word, WordBoundaries, is_hugging_face, word_forms

        keeps = validation.choice("others", others, OTHERS) == "keep"
        words = [candidates] if isinstance(candidates, str) else list(candidates)
        if len(words) < 2:
            raise ValueError(f"candidates must be at least two words, got {candidates!r}.")
        forms = word_forms(tokenizer, words)
        boundaries = WordBoundaries(tokenizer) if is_hugging_face(tokenizer) else None
        return Word(forms, boundaries, field, words, name, unseen, keeps)

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
        from betastar.training.secrets.tables import encode

        columns, table, shown = encode(transformer, column, values, records)
        return Columns(columns, torch.from_numpy(table), shown, name or str(column), argument, unseen)

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.labels)

    @abstractmethod
    def variants(self, records: Records, values: Sequence[int]) -> Records:
        """Give each record the values of the secret in turn.

        Parameters
        ----------
        records : Records
            The records.
        values : sequence of int
            The numbers of the values.

        Returns
        -------
        Records
            Each record once for each value. The variants of a record stand one after the other.
        """

    @abstractmethod
    def check(self, records: Records, complete: bool) -> None:
        """Refuse records that hold none of the values, and values that no record holds.

        Parameters
        ----------
        records : Records
            The records.
        complete : bool
            Whether these are all records, so that each value has to occur among them.

        Raises
        ------
        ValueError
            If a record holds another value, or if a value does not occur.
        """

    @abstractmethod
    def own(self, records: Records) -> Tensor:
        """Find the value that each record holds.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Tensor
            The number of each record's value, of shape (n,).
        """

    def concerned(self, records: Records) -> Tensor:
        """Say which records the secret is about: what is measured or proved is about these.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Tensor
            True or False for each record, of shape (n,); by default always true.
        """
        return torch.ones(len(records), dtype=torch.bool)

    def shares(self, records: Records) -> Tensor:
        """Give the weight of each value in the mean over the values, which is the same whichever value the record holds.

        Parameters
        ----------
        records : Records
            The records.

        Returns
        -------
        Tensor
            Weights that add up to 1 for each record, of shape (n, count).
        """
        one = torch.full((self.count,), 1.0 / self.count, dtype=torch.float64) if self.prior is None else self.prior
        return one.expand(len(records), -1)

    def with_prior(self, prior: ArrayLike | Tensor) -> Self:
        """Make a copy that knows how frequent the values are. Gap clipping then takes the mean over them accordingly.

        The frequencies must be public (a census, other people's records), not those of the training records.

        Parameters
        ----------
        prior : sequence of float
            One number for each value. The numbers add up to 1.

        Returns
        -------
        Secret
            The copy.

        Raises
        ------
        ValueError
            If there are more or fewer numbers than values, or if they do not add up to 1.
        """
        numbers = torch.as_tensor(prior, dtype=torch.float64)
        if numbers.shape != (self.count,) or not bool((numbers >= 0.0).all()) or abs(float(numbers.sum()) - 1.0) > 1e-6:
            raise ValueError(
                f"prior must be {self.count} numbers of at least 0 that add up to 1, one for each value of {self.name!r}, "
                f"got {len(numbers) if numbers.ndim else 1} that add up to {float(numbers.sum()):g}."
            )
        weighted = copy(self)
        weighted.prior = numbers / numbers.sum()
        return weighted

    def tables(self) -> tuple[Tensor | None, ...]:
        """The values as the model sees them, which tell this secret from another one with the same labels.

        Returns
        -------
        tuple of Tensor
            One table for each part of the secret; None for a part without a table.
        """
        return (None,)

    def digest(self) -> str:
        """Compute a number that differs for a secret with other values, another place in a record, another name or prior.

        Returns
        -------
        str
            In hexadecimal digits.
        """
        parts = (type(self).__name__, self.name, self.labels, sorted(map(repr, self.places() or ())))
        tables = tuple(None if table is None else table.tolist() for table in (*self.tables(), self.prior))
        return sha256(repr((parts, tables)).encode()).hexdigest()

    def as_columns(self) -> Columns | None:
        """Give the secret as columns of one argument of the model, with which gradients are computed faster.

        Returns
        -------
        Columns or None
            None if the secret is something else.
        """
        return None

    def places(self) -> set[Hashable] | None:
        """Say where in a record the secret is.

        Returns
        -------
        set or None
            (argument, column) for each column, and "target" for the target. None if the secret may be anywhere.
        """
        return None

    def of(self, records: Records) -> Secret:
        """Prepare several questions about the same records.

        Parameters
        ----------
        records : Records
            The records, which the questions are then about.

        Returns
        -------
        Secret
            A secret that gives the same answers about them. By default it is this one.
        """
        return self

    def only(self, *labels: object) -> list[int]:
        """Find the numbers of values.

        Parameters
        ----------
        *labels : object
            The labels of the values.

        Returns
        -------
        list of int
            The number of each value.

        Raises
        ------
        ValueError
            If there is no value with such a label.
        """
        missing = [label for label in labels if label not in self.labels]
        if missing:
            raise ValueError(f"the secret {self.name!r} has no value {missing[0]!r}; it has {listed(self.labels)}.")
        return [self.labels.index(label) for label in labels]

    def __repr__(self) -> str:
        return f"Secret({self.name!r}, {self.count} values)"


def _table(name: str, values: ArrayLike | Tensor) -> Tensor:
    """Finite numbers in double precision."""
    try:
        table = torch.as_tensor(list(values) if isinstance(values, range) else values, dtype=torch.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be numbers as the model sees them, got {values!r}; see Secret.from_transformer.") from None
    if not table.isfinite().all():
        raise ValueError(f"{name} must be finite, got {values!r}.")
    return table


def _token_tuple(candidate: Sequence[int]) -> tuple[int, ...]:
    """The tokens of one candidate, as whole numbers of Python."""
    given = candidate.tolist() if hasattr(candidate, "tolist") else candidate
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"candidates must be sequences of ids of tokens, got {candidate!r}; see Secret.word.")
    return tuple(given)


def listed(labels: Sequence[object]) -> str:
    """Labels in one line; of many, the first and the last ones."""
    shown = [repr(label) for label in labels]
    return ", ".join(shown) if len(shown) <= 6 else ", ".join([*shown[:3], "…", *shown[-2:]])


# ---- Held values: which value of a secret each record holds, and what is refused about values and records.

#: A record holds a value if each of its columns agrees to this (relative, plus absolute).
CLOSE = 1e-4


def other_arguments(records: Records, argument: int | str) -> str:
    """A hint for a person who looks for a secret in the wrong argument of the model; empty if there is no other one."""
    others = [repr(key) for key in records.rows() if key not in (argument, TARGET)]
    if not others:
        return ""
    return f" It is looked for in argument {argument!r} of the model, which also gets {', '.join(others)}: argument= says which."


def numbers_held(held: Tensor, table: Tensor, secret: Secret, hint: str = "") -> Tensor:
    """The number of the value that each row holds, up to rounding. `table` has one row for each value."""
    numbers = []
    for some in held.double().cpu().split(4096):
        number = (some[:, None] - table[None]).abs().amax(dim=2).argmin(dim=1)
        stranger = ~torch.isclose(some, table[number], rtol=CLOSE, atol=CLOSE).all(dim=1)
        if stranger.any():
            row = some[stranger][0].tolist()
            raise ValueError(
                f"the secret {secret.name!r} never takes the value {row[0] if len(row) == 1 else row} that a record holds; "
                f"its values are {listed(secret.labels)}. Give them as the model sees them, or use Secret.from_transformer.{hint}"
            )
        numbers.append(number)
    return torch.cat(numbers) if numbers else torch.zeros(0, dtype=torch.long)


def require_distinct(table: Tensor, labels: Sequence[object], name: str) -> None:
    """Refuse values that are fewer than two, that have not one label each, or of which two are the same."""
    if len(table) < 2:
        raise ValueError(f"values must be at least two for the secret {name!r}, got {len(table)}.")
    if len(labels) != len(table):
        raise ValueError(f"labels must be one for each of the {len(table)} values, got {len(labels)}.")
    seen: dict[tuple[float, ...], object] = {}
    for row, label in zip(table.tolist(), labels, strict=True):
        if tuple(row) in seen:
            raise ValueError(
                f"values must differ, but {seen[tuple(row)]!r} and {label!r} of {name!r} look the same to the model."
            )
        seen[tuple(row)] = label


def refuse_missing(held: Tensor, name: str) -> None:
    """Refuse records that hold NaN."""
    if missing := int(held.isnan().flatten(1).any(dim=1).sum()):
        raise ValueError(
            f"the secret {name!r} is missing (NaN) in {missing} of {len(held)} records. Fill it in, with a value of its own if "
            "need be, or leave these records out."
        )


def refuse_unseen(labels: Sequence[object], name: str) -> None:
    """Refuse values that no record holds. `labels` are theirs."""
    if labels:
        raise ValueError(
            f"no record holds the value {listed(labels)} of the secret {name!r}. "
            "Leave it out, or pass unseen=True if an attacker would still consider it."
        )


# ---- Kinds of secrets

#: Up to this many records are compared with the values one by one, which is faster than looking for different ones.
FEW = 1024
#: A check of a function looks at this many records, and at this many candidates of each.
LOOK_AT = 8


class Held(Secret):
    """A secret that is read off numbers of a record. `table` has one row of numbers for each value."""

    def __init__(self, table: Tensor, labels: list[Any], name: str, unseen: bool) -> None:
        require_distinct(table, labels, name)
        self.table, self.labels, self.name, self.unseen = table, labels, name, unseen

    @abstractmethod
    def _held(self, records: Records) -> Tensor:
        """The numbers of each record, (n, k)."""

    def _hint(self, records: Records) -> str:
        """What helps if a record holds none of the values."""
        return ""

    def _expected(self, held: Tensor, missing: list[int]) -> list[int]:
        """Those of the missing values that have to occur."""
        return missing

    def tables(self) -> tuple[Tensor | None, ...]:
        return (self.table,)

    def own(self, records: Records) -> Tensor:
        return numbers_held(self._held(records), self.table.double(), self, self._hint(records))

    def check(self, records: Records, complete: bool) -> None:
        held = self._held(records)
        distinct = held.unique(dim=0) if len(held) > FEW else held
        which = set(numbers_held(distinct, self.table.double(), self, self._hint(records)).tolist())
        missing = sorted(set(range(self.count)) - which)
        if missing and complete and not self.unseen:
            refuse_unseen([self.labels[i] for i in self._expected(distinct, missing)], self.name)


class Columns(Held):
    """Columns of one argument of the model. `table` has one row for each value, and one column for each of `columns`."""

    def __init__(
        self, columns: Sequence[int], table: Tensor, labels: list[Any], name: str, argument: int | str, unseen: bool
    ) -> None:
        bad = [column for column in columns if isinstance(column, bool) or not isinstance(column, int) or column < 0]
        if bad or not columns or len(set(columns)) != len(columns):
            raise ValueError(f"columns must be different whole numbers of at least 0, got {list(columns)!r}.")
        super().__init__(table, labels, name, unseen)
        self.where, self.argument = list(columns), argument

    def as_columns(self) -> Columns | None:
        return self

    def places(self) -> set[Hashable] | None:
        return {(self.argument, column) for column in self.where}

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        tensor = repeated.get(self.argument)
        rows = self.table[list(values)].to(tensor).repeat(len(records), 1)  # those of a record one after the other
        tensor[..., self.where] = rows.reshape(len(rows), *(1,) * (tensor.ndim - 2), -1).expand(*tensor.shape[:-1], -1)
        return repeated

    def _held(self, records: Records) -> Tensor:
        tensor = argument_of(records, self.argument, self.name)
        hint = f"{_no_table(tensor)}{self._hint(records)}"
        if tensor.ndim < 2 or max(self.where) >= tensor.shape[-1]:
            width = tensor.shape[-1] if tensor.ndim > 1 else 0
            raise ValueError(
                f"the secret {self.name!r} needs column {max(self.where)}, but the model's input has {width} columns.{hint}"
            )
        held = tensor[..., self.where].flatten(1, -2) if tensor.ndim > 2 else tensor[:, None, self.where]
        if not (held == held[:, :1]).all():
            refuse_missing(held, self.name)
            raise ValueError(f"the secret {self.name!r} has different values at different positions of a record.{hint}")
        return held[:, 0]

    def _hint(self, records: Records) -> str:
        return other_arguments(records, self.argument)

    def _expected(self, held: Tensor, missing: list[int]) -> list[int]:
        if len(self.where) > 1:
            return missing
        low, high = float(held.min()), float(held.max())  # numbers within the range of the data do not have to occur
        slack = CLOSE * (1.0 + max(abs(low), abs(high)))
        return [i for i in missing if not low - slack <= float(self.table[i, 0]) <= high + slack]


class Entry(Columns):
    """One number of each record, at a place of its tensor: a pixel of an image."""

    def __init__(
        self, place: tuple[int, ...], table: Tensor, labels: list[Any], name: str, argument: int | str, unseen: bool
    ) -> None:
        if not place or any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in place):
            raise ValueError(f"column must be a whole number of at least 0 or a tuple of them, got {place!r}.")
        super().__init__([0], table, labels, name, argument, unseen)
        self.place = place
        self._index: Any = (slice(None), *place)

    def as_columns(self) -> Columns | None:
        return None

    def places(self) -> set[Hashable] | None:
        return {(self.argument, self.place), (self.argument, self.place[-1])}  # a secret column holds it, too

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        tensor = repeated.get(self.argument)
        tensor[self._index] = self.table[list(values), 0].to(tensor).repeat(len(records))
        return repeated

    def _held(self, records: Records) -> Tensor:
        tensor = argument_of(records, self.argument, self.name)
        shape = tuple(tensor.shape[1:])
        if len(shape) != len(self.place) or any(one >= size for one, size in zip(self.place, shape, strict=True)):
            raise ValueError(
                f"the secret {self.name!r} is at {self.place}, but a record of the model's input is of shape {shape}."
                f"{other_arguments(records, self.argument)}"
            )
        return tensor[self._index][:, None]


class Label(Held):
    """The target of the criterion. `table` has one column, with the targets."""

    def __init__(self, table: Tensor, labels: list[Any], name: str, unseen: bool) -> None:
        if table.ndim != 1:
            raise ValueError(f"values must be a list of targets, got shape {tuple(table.shape)}.")
        super().__init__(table[:, None], labels, name, unseen)

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        repeated = records.repeat(len(values))
        rows = self.table[list(values), 0].to(records.target).repeat(len(records))
        shape = repeated.target.shape
        return replace(repeated, target=rows.reshape(-1, *(1,) * (len(shape) - 1)).expand(shape))

    def places(self) -> set[Hashable] | None:
        return {"target"}

    def _held(self, records: Records) -> Tensor:
        if not isinstance(records.target, Tensor):
            raise ValueError(f"the secret {self.name!r} needs a target tensor, got {type(records.target).__name__}.")
        target = records.target.reshape(len(records.target), -1)
        if not (target == target[:, :1]).all():
            refuse_missing(target, self.name)
            raise ValueError(f"the secret {self.name!r} must be one number a record, but targets differ within a record.")
        return target[:, :1]


class Joint(Secret):
    """All combinations of the values of several secrets. The values of the last secret vary fastest."""

    def __init__(self, parts: Sequence[Secret]) -> None:
        self.parts = list(parts)
        _refuse_with_text(self.parts)
        self.quick_check = all(part.quick_check for part in parts)
        self._sizes = [part.count for part in parts]
        self.name = " and ".join(part.name for part in parts)
        self.labels = [tuple(combination) for combination in product(*(part.labels for part in parts))]
        self._merged = self._merge()

    def _merge(self) -> Columns | None:
        """The secrets as columns of one argument, if all of them are columns of the same argument."""
        parts = [part.as_columns() for part in self.parts]
        columns = [column for part in parts if part for column in part.where]
        if not all(parts) or len({part.argument for part in parts if part}) > 1 or len(set(columns)) < len(columns):
            return None
        table = torch.stack([torch.cat(rows) for rows in product(*(part.table for part in parts if part))])
        first = parts[0]
        assert first is not None
        return Columns(columns, table, self.labels, self.name, first.argument, unseen=True)

    def as_columns(self) -> Columns | None:
        return self._merged

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        if self._merged:
            return self._merged.variants(records, values)
        made = []
        for number in values:
            one = records
            for k, part in enumerate(self.parts):
                digit = number // prod(self._sizes[k + 1 :]) % self._sizes[k]
                one = part.variants(one, [digit])
            made.append(one)
        order = torch.arange(len(made) * len(records)).reshape(len(made), -1).T.flatten()  # those of a record in a row
        return concatenated(made).take(order)

    def places(self) -> set[Hashable] | None:
        every = [part.places() for part in self.parts]
        return None if None in every else {place for places in every for place in places or ()}

    def tables(self) -> tuple[Tensor | None, ...]:
        return tuple(table for part in self.parts for table in (*part.tables(), part.prior))

    def own(self, records: Records) -> Tensor:
        number = torch.zeros(len(records), dtype=torch.long)
        for part in self.parts:
            number = number * part.count + part.own(records)
        return number

    def shares(self, records: Records) -> Tensor:
        shares = torch.ones(len(records), 1, dtype=torch.float64)
        for part in self.parts:  # parts may refuse records here, with a prior of the whole, too
            shares = (shares[:, :, None] * part.shares(records)[:, None, :]).flatten(1)
        return shares if self.prior is None else super().shares(records)

    def check(self, records: Records, complete: bool) -> None:
        for part in self.parts:
            part.check(records, complete)


def _refuse_with_text(parts: Sequence[Secret]) -> None:
    """Refuse a secret in a text together with one that may be in the same text: each would move or change the other."""
    from betastar.training.secrets.texts import TextSecret

    for one in parts:
        for other in parts:
            if not isinstance(one, TextSecret) or other is one:
                continue
            places = other.places()
            where = {place[0] if isinstance(place, tuple) else place for place in places or ()}
            if places is None or where & set(one.text.arguments()):
                raise ValueError(
                    f"secrets must not be in the same text, but {one.name!r} and {other.name!r} may be: describe both with "
                    "Secret.function."
                )


class Function(Secret):
    """The candidates that a function returns for each record."""

    quick_check = False
    _every: Records | None = None  # the candidates of some records, for which the function is then called once a record

    def __init__(self, candidates: Callable[[Records], Records], labels: list[Any], name: str) -> None:
        self._candidates, self.labels, self.name = candidates, labels, name

    def _called(self, records: Records, values: Sequence[int]) -> Records:
        made = []
        for i in range(len(records)):
            candidates = self._candidates(records.take(slice(i, i + 1)))
            if not isinstance(candidates, Records) or not 1 <= len(candidates) <= self.count:
                got = f"{len(candidates)} of them" if isinstance(candidates, Records) else type(candidates).__name__
                raise ValueError(f"candidates must return Records with 1 to {self.count} rows, got {got} for record {i}.")
            # A record with fewer candidates than others repeats its last one.
            made.append(candidates.take([min(number, len(candidates) - 1) for number in values]))
        return concatenated(made)

    def of(self, records: Records) -> Secret:
        if self._every is not None:
            return self
        made = copy(self)
        made._every = self._called(records, range(self.count))
        return made

    def variants(self, records: Records, values: Sequence[int]) -> Records:
        if self._every is None:
            return self._called(records, values)
        return self._every.take((torch.arange(len(records))[:, None] * self.count + torch.tensor(list(values))).flatten())

    def own(self, records: Records) -> Tensor:
        if not len(records):
            return torch.zeros(0, dtype=torch.long)
        rows = flattened(self.variants(records, range(self.count))).split(self.count)
        return torch.cat([numbers_held(one, some, self) for one, some in zip(flattened(records).split(1), rows, strict=True)])

    def with_prior(self, prior: ArrayLike | Tensor) -> NoReturn:
        raise ValueError(f"prior cannot be given for {self.name!r}: each record has candidates of its own.")

    def shares(self, records: Records) -> Tensor:
        """Count each different candidate once, however often and in whichever order the function returns it.

        Each candidate must have the same candidates, bit for bit: otherwise the mean would tell which of them the record is. That
        is looked at for one record, which nobody can foresee.
        """
        looked, shares = secrets.randbelow(max(1, len(records))), torch.zeros(len(records), self.count, dtype=torch.float64)
        every = self.variants(records, range(self.count)) if len(records) else records
        for i in range(len(records)):
            own = every.take(slice(i * self.count, (i + 1) * self.count))
            different, which, times = flattened(own).unique(dim=0, return_inverse=True, return_counts=True)
            for k in range(self.count) if i == looked else ():
                others = flattened(self._called(own.take([k]), range(self.count)))
                if not torch.equal(others.unique(dim=0), different):
                    raise ValueError(
                        "candidates of a candidate must be the same records again, bit for bit, which they are not for "
                        f"candidate {k} of record {i} of a batch: compute all of them alike, whichever the record holds."
                    )
            shares[i] = 1.0 / (len(times) * times[which])
        return shares

    def check(self, records: Records, complete: bool) -> None:
        """Refuse records that are not their own candidates, and candidates that have other candidates.

        The attacker's choice would otherwise depend on the secret.
        """
        for i in range(min(len(records), LOOK_AT)):
            one = records.take(slice(i, i + 1))
            offered = self._called(one, range(self.count))
            if not _among(one, offered).all():
                raise ValueError(f"candidates must contain the record itself, which they do not for record {i}.")
            for k in range(min(self.count, LOOK_AT)):
                others = self._called(offered.take(slice(k, k + 1)), range(self.count))
                if not (_among(others, offered).all() and _among(offered, others).all()):
                    raise ValueError(
                        f"candidates of a candidate must be the same records again, which they are not for candidate {k} of "
                        f"record {i}: which records the attacker considers must not depend on the secret."
                    )


def _no_table(tensor: Tensor) -> str:
    """A hint for a person who asks for a column of records that are no rows of a table."""
    if tensor.ndim == 2:
        return ""
    if tensor.ndim < 2:
        return " Each record is a single number: give the model a table with one column, or use Secret.function."
    return (
        f" Each record is of shape {tuple(tensor.shape[1:])}, as an image or a sequence is, and not a row of a table: for one "
        "number of it, give its place, as in Secret.column((0, 4, 3), …); otherwise give the records that the attacker considers "
        "with Secret.function, such as the image with a face and without it."
    )


def _among(some: Records, others: Records) -> Tensor:
    """Whether each of some records is among the others."""
    return torch.isclose(flattened(some)[:, None], flattened(others)[None], rtol=CLOSE, atol=CLOSE).all(dim=2).any(dim=1)
