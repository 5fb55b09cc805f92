"""The folder of an audit: games that it holds are not played again, and are not used for another training."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from betastar import files
from betastar.arrays import Real
from betastar.audit.record_contents import leaves
from betastar.audit.training_audit.attackers import AuditError
from betastar.audit.training_audit.challenges import Challenge

#: The number of records that stand for the data.
SOME = 100


class GameFolder:
    """The folder of an audit: what it is about, and its games in files of ten."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = folder / "audit.json"
        self.about: dict[str, Any] | None = json.loads(about.read_text()) if about.exists() else None

    @property
    def seed(self) -> int | None:
        return None if self.about is None else int(self.about["seed"])

    def claim(self, about: dict[str, Any]) -> None:
        """Make the folder that of this audit; the folder of another audit is refused."""
        about = json.loads(json.dumps(about))
        if self.about is not None:
            for name, value in about.items():
                if self.about.get(name) != value:
                    stored = self.about.get(name)
                    raise AuditError(f"folder {str(self.folder)!r} holds another audit: its {name} is {stored!r}, not {value!r}.")
            files.make_private(self.folder)
            return
        if self.folder.exists() and any(path.suffix != files.PARTIAL for path in self.folder.iterdir()):
            raise AuditError(f"folder must be new, empty or of an audit, got {str(self.folder)!r}.")
        files.make_private(self.folder)
        files.write(self.folder / "audit.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")

    def path(self, chunk: int) -> Path:
        return self.folder / f"games-{chunk:05d}.npz"

    def read(self, chunk: int) -> dict[str, Real]:
        with np.load(self.path(chunk)) as file:
            return {name: file[name] for name in file.files}

    def write(self, chunk: int, columns: dict[str, Real]) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **columns)  # type: ignore[arg-type]
        files.write(self.path(chunk), buffer.getvalue())


def digest(functions: list[Callable[..., Any]], challenge: Challenge) -> str:
    """A hash of the code of a training, as far as it can be seen, of the candidates and of some of the data."""
    total = hashlib.sha256()
    for function in functions:
        for part in _code(getattr(function, "__code__", None)):
            total.update(part)
        for cell in getattr(function, "__closure__", None) or ():
            total.update(repr(cell.cell_contents).encode() if isinstance(cell.cell_contents, int | float | str) else b"")
    for record in [*challenge.candidates, *(challenge.data[i] for i in range(min(len(challenge.data), SOME)))]:
        total.update(repr(list(leaves("", record))).encode())
    return total.hexdigest()


def _code(code: CodeType | None) -> Iterator[bytes]:
    if code is not None:
        yield code.co_code + repr(code.co_names).encode()
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _code(constant)
            else:
                yield repr(constant).encode()
