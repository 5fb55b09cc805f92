"""A dataclass whose fields are the entries of one JSON object, with the types of its fields checked when it is read."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from betastar.runs.reading import Inside, Json

#: What a field of each type holds, for people.
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class JsonObject:
    """The base of dataclasses that are written as one JSON object: tuples as lists, and everything else as it is."""

    def to_json(self) -> Json:
        """The object that is written."""
        return dict(json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, values: Json, source: Path) -> Self:
        """The instance that an object of JSON describes.

        A field with a default may be missing. An entry that is no field is refused, since a later version may mean by it that the
        run was another one.

        Parameters
        ----------
        values : dict
            The object.
        source : Path
            The file that it was read from, which errors name.

        Raises
        ------
        FolderError
            If an entry is missing, unknown, or of another type than its field.
        """
        types = get_type_hints(cls)
        with Inside(source):
            if unknown := [name for name in values if name not in types]:
                raise ValueError(f"the entry {unknown[0]!r} is unknown")
            for field in fields(cls):
                if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
                    raise KeyError(field.name)
            return cls(**{name: _checked(types[name], value, name) for name, value in values.items()})


def _checked(hint: Any, value: Any, name: str) -> Any:
    """The value of a field of this type. A whole number counts as a number, but true and false do not."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and NoneType in options:
        return None
    kind = next(option for option in options if option is not NoneType)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list) and (inner[-1] is ... or len(value) == len(inner)):
        return tuple(_checked(inner[0], item, name) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _checked(inner[1], item, f"{name}[{key!r}]") for key, item in value.items()}
    if origin is None and isinstance(value, bool) == (kind is bool) and isinstance(value, int | float if kind is float else kind):
        return value
    raise ValueError(f"{name} must be {_in_words(kind)}{' or null' if NoneType in options else ''}, got {value!r}")


def _in_words(kind: Any) -> str:
    """What a value of this type is, for people."""
    if kind in _WORDS:
        return _WORDS[kind]
    inner = get_args(kind)
    if get_origin(kind) is dict:
        return f"an object, each of whose values is {_in_words(inner[1])}"
    number = "" if inner[-1] is ... else f"{len(inner)} "
    return f"a list of {number}items, each of which is {_in_words(inner[0])}"
