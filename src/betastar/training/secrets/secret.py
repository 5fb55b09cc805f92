"""Secret: an attribute of a record whose value an attacker wants to know, who knows everything else about the record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from betastar import validation
from betastar.training.records import Records
from betastar.training.secrets.text_tokens import TextField

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import TransformerMixin

    from betastar.training.secrets.secret_types import Columns
    from betastar.training.secrets.text_tokens import Tokenizer


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
        from betastar.training.secrets.secret_types import Columns, Entry

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
        from betastar.training.secrets.text_secret import Tokens

        if isinstance(start, bool) or not isinstance(start, int | str) or (isinstance(start, int) and start < 0):
            raise ValueError(f"start must be a position of at least 0 or the name of an argument of the model, got {start!r}.")
        spans = [_token_tuple(one) for one in candidates]
        shown = list(spans) if labels is None else list(labels)
        return Tokens(start, spans, _field(field), shown, name, unseen)

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
        from betastar.training.secrets.text_secret import Word
        from betastar.training.secrets.text_tokens import HuggingFaceTokenizer, WordBoundaries, word_forms

        keeps = validation.choice("others", others, OTHERS) == "keep"
        words = [candidates] if isinstance(candidates, str) else list(candidates)
        if len(words) < 2:
            raise ValueError(f"candidates must be at least two words, got {candidates!r}.")
        forms = word_forms(tokenizer, words)
        boundaries = WordBoundaries(tokenizer) if isinstance(tokenizer, HuggingFaceTokenizer) else None
        return Word(forms, boundaries, _field(field), words, name, unseen, keeps)

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
        from betastar.training.secrets.tables import encode

        columns, table, shown = encode(transformer, column, values, records)
        from betastar.training.secrets.secret_types import Columns

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


def _field(field: int | str | TextField) -> TextField:
    return field if isinstance(field, TextField) else TextField(field)


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
