"""The encoder of a table of texts: its tokenizer, and the shape of the transformer that reads the tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from betastar.runs import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame
    from tokenizers import Tokenizer
    from torch import Tensor

#: The numbers of the tokens for padding, unknown words and the beginning of a text.
PAD, UNKNOWN, BEGIN = 0, 1, 2
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[BEGIN]")


@dataclass(frozen=True)
class TransformerShape:
    """The shape of a transformer.

    Attributes
    ----------
    layers, heads, features : int
        The number of layers, of attention heads in each, and of features of each token.
    rank : int
        The rank of the LoRA adapters.
    """

    layers: int = 2
    heads: int = 4
    features: int = 64
    rank: int = 4

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.features % self.heads:
            raise ValueError(f"features must be a multiple of heads, got {self.features} and {self.heads}")


@dataclass(frozen=True)
class TextEncoder:
    """How a column of texts becomes inputs of a transformer, and which class each of its outputs is.

    Attributes
    ----------
    classes : tuple of str
        The class of each output.
    column : str
        The column of the texts.
    width : int
        The number of tokens of each text, with padding; what is longer is cut off.
    tokenizer : str
        The tokenizer of the package `tokenizers`, as JSON.
    shape : TransformerShape
        The shape of the model.
    """

    classes: tuple[str, ...]
    column: str
    width: int
    tokenizer: str
    shape: TransformerShape

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self.fresh_tokenizer()

    def fresh_tokenizer(self) -> Tokenizer:
        """The tokenizer, which may be changed."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer)

    @property
    def vocabulary_size(self) -> int:
        """The number of different tokens."""
        return int(self._tokenizer.get_vocab_size())

    def tensor(self, frame: DataFrame) -> Tensor:
        """Encode the texts of a table as the model takes them.

        Parameters
        ----------
        frame : DataFrame
            The table. Columns other than that of the texts are not looked at.

        Returns
        -------
        Tensor
            The tokens, of shape (records, width).

        Raises
        ------
        StudyError
            If there is no column of texts, or if a text is missing.
        """
        import torch

        if self.column not in frame.columns:
            raise StudyError(f"the table has no column {self.column!r}; it has {', '.join(map(repr, frame.columns[:20]))}.")
        if missing := int(frame[self.column].isna().sum()):
            raise StudyError(f"the column {self.column!r} is missing (NaN) in {missing} records: fill it in.")
        encoded = self._tokenizer.encode_batch(frame[self.column].astype(str).tolist(), add_special_tokens=False)
        rows = torch.full((len(encoded), self.width), PAD)
        for row, text in zip(rows, encoded, strict=True):
            tokens = [BEGIN, *text.ids][: self.width]
            row[: len(tokens)] = torch.tensor(tokens)
        return rows
