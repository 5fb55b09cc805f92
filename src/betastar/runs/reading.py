"""Reading the files of a run folder: each file is read whole, and each error names the file. Nothing here needs torch."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints


class StudyError(ValueError):
    """What a person gave cannot be studied; the text says why, and what to do."""


#: One JSON object.
Json = dict[str, Any]


class FolderError(StudyError):
    """A file of a run folder cannot be read; the text names the file, and says what is expected in it."""


class Inside:
    """A context in which every error about values is raised as a FolderError that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(problem, StudyError):
            return
        if isinstance(problem, KeyError):
            raise FolderError(f"{self.path} is damaged or not of betastar train: it has no {problem.args[0]}.") from None
        if isinstance(problem, ValueError | TypeError | IndexError | AttributeError | csv.Error):
            raise FolderError(f"{self.path} is damaged or not of betastar train: {problem}.") from None


def object_of(path: Path) -> Json:
    """The JSON object that a file holds."""
    return parsed(_text(path), str(path))


def parsed(text: str, source: str) -> Json:
    """The JSON object in a text; an error calls the text by the name `source`."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as problem:
        raise FolderError(f"{source} is not JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise FolderError(f"{source} must hold one JSON object, got {type(value).__name__}.")
    return value


def lines_of(path: Path) -> Iterator[Json]:
    """The JSON objects of a file with one in each line; none if there is no such file.

    A last line without its end was cut off when the run was killed, and is left out.
    """
    lines = _text(path).splitlines(keepends=True) if path.exists() else []
    for i, line in enumerate(lines, 1):
        if i == len(lines) and not line.endswith("\n"):
            return
        yield parsed(line, f"{path}, line {i},")


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV table, by the names in its first line; none if there is no such file."""
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FolderError(f"{path} cannot be read as text: {problem}.") from None


# JSON objects with fields

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
                text = (
                    "another version of betastar made this run, or somebody changed the file. Train it again in another folder."
                )
                raise FolderError(f"{source}: the entry {unknown[0]!r} is unknown: {text}")
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
