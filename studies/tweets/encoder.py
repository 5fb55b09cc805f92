"""The encoder of a table of texts: its tokenizer, and the shape of the transformer that reads the tokens. It is kept as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from betastar.datasets.errors import StudyError

if TYPE_CHECKING:
    from pandas import DataFrame
    from tokenizers import Tokenizer
    from torch import Tensor

#: Version of the format, in encoder.json.
FORMAT = 1
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
    label : str
        The column that the model predicts.
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

    label: str
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
    def label_scale(self) -> None:
        """None: the label is a class, not a number."""
        return None

    @property
    def vocabulary_size(self) -> int:
        """The number of different tokens."""
        return int(self._tokenizer.get_vocab_size())

    def model_words(self, hidden: tuple[int, ...]) -> str:
        """The model, in words for its card. `hidden` is for models of tables."""
        shape = self.shape
        return (
            f"A transformer ({shape.layers} layers of {shape.features} features, {self.vocabulary_size:,} tokens), which was "
            f"pre-trained on texts that count as public and fine-tuned with LoRA of rank {shape.rank},"
        )

    @property
    def fitted_words(self) -> str:
        """What the encoder holds of the records, in words for the card of its model."""
        return "the tokenizer, which was fitted on the texts that count as public, and the shape of the model."

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

    def to_json(self) -> str:
        """The text of encoder.json."""
        values = asdict(self) | {"tokenizer": json.loads(self.tokenizer)}
        return json.dumps({"format": FORMAT, **values}, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TextEncoder:
        """The encoder that an object of JSON describes; raises ValueError, TypeError or KeyError for another object."""
        if values["format"] != FORMAT:
            raise ValueError(f"format must be {FORMAT}, got {values['format']!r}: install the version of betastar that made it")
        width = values["width"]
        if type(width) is not int or not 2 <= width <= 4096:
            raise ValueError(f"width must be a whole number from 2 to 4096, got {width!r}")
        made = cls(
            str(values["label"]),
            tuple(map(str, values["classes"])),
            str(values["column"]),
            width,
            json.dumps(values["tokenizer"], ensure_ascii=False),
            TransformerShape(**values["shape"]),
        )
        try:
            _ = made._tokenizer
        except Exception as problem:  # tokenizers raises Exception itself
            raise ValueError(f"tokenizer is none: {problem}") from None
        return made
