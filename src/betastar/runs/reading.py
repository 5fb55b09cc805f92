"""Reading the files of a run folder: each file is read whole, and each error names the file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from betastar.datasets.errors import StudyError

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
