"""Files that a report is made from: read whole, and named in every complaint."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class ReportError(ValueError):
    """What was given cannot be reported on: says which file, and what is expected in it."""


class Inside:
    """Whatever is wrong with the values of a file is said of that file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if isinstance(problem, ReportError):
            return
        if isinstance(problem, KeyError):
            raise ReportError(f"{self.path} is damaged or not of betastar train: it has no {problem.args[0]}.") from None
        if isinstance(problem, ValueError | TypeError | IndexError | AttributeError | csv.Error):
            raise ReportError(f"{self.path} is damaged or not of betastar train: {problem}.") from None


def object_of(path: Path) -> dict[str, Any]:
    return parsed(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ReportError(f"{path} cannot be read as text: {problem}.") from None


def parsed(text: str, source: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as problem:
        raise ReportError(f"{source} is not JSON: {problem}.") from None
    if not isinstance(found, dict):
        raise ReportError(f"{source} must hold one JSON object, got {type(found).__name__}.")
    return found


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Of JSON lines; none if there is no such file. A last line without its end was cut off when the run was killed."""
    lines = _text(path).splitlines(keepends=True) if path.exists() else []
    for i, line in enumerate(lines, 1):
        if i == len(lines) and not line.endswith("\n"):
            return
        yield parsed(line, f"{path}, line {i},")
