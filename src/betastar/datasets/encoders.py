"""The encoders of all kinds of records, and which one a file encoder.json describes."""

from __future__ import annotations

from typing import Any, TypeAlias

from betastar.datasets.rating_encoder import RatingEncoder as RatingEncoder
from betastar.datasets.table_encoder import TableEncoder as TableEncoder
from betastar.datasets.text_encoder import TextEncoder as TextEncoder

#: What makes records of some kind into inputs of a model.
Encoder: TypeAlias = TableEncoder | TextEncoder | RatingEncoder


def encoder_of(values: dict[str, Any]) -> Encoder:
    """The encoder that an object of JSON describes; raises ValueError, TypeError or KeyError for another object."""
    if "tokenizer" in values:
        return TextEncoder.from_json(values)
    return RatingEncoder.from_json(values) if "films" in values else TableEncoder.from_json(values)
