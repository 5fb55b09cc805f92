"""Reading the files of a run folder: each is read whole, and each complaint names the file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from betastar.datasets.errors import StudyError

#: One JSON object.
Json = dict[str, Any]


class FolderError(StudyError):
    """A file of a run folder cannot be read: says which one, and what is expected in it."""


class Inside:
    """Whatever is wrong with the values of a file is said of that file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if isinstance(problem, StudyError):
            return
        if isinstance(problem, KeyError):
            raise FolderError(f"{self.path} is damaged or not of betastar train: it has no {problem.args[0]}.") from None
        if isinstance(problem, ValueError | TypeError | IndexError | AttributeError | csv.Error):
            raise FolderError(f"{self.path} is damaged or not of betastar train: {problem}.") from None


def object_of(path: Path) -> Json:
    return parsed(_text(path), str(path))


def parsed(text: str, source: str) -> Json:
    """The JSON object in a text; source: what a complaint calls it."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as problem:
        raise FolderError(f"{source} is not JSON: {problem}.") from None
    if not isinstance(value, dict):
        raise FolderError(f"{source} must hold one JSON object, got {type(value).__name__}.")
    return value


def lines_of(path: Path) -> Iterator[Json]:
    """Of JSON lines; none if there is no such file. A last line without its end was cut off when the run was killed."""
    lines = _text(path).splitlines(keepends=True) if path.exists() else []
    for i, line in enumerate(lines, 1):
        if i == len(lines) and not line.endswith("\n"):
            return
        yield parsed(line, f"{path}, line {i},")


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Of a table in CSV, by the names in its first line; none if there is no such file."""
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FolderError(f"{path} cannot be read as text: {problem}.") from None
