"""Where a monitor writes each step: JSON lines, TensorBoard, or anything with the same two methods."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from betastar import files


class Writer(Protocol):
    """write: one step, a flat mapping with "step". rewind: training goes on after this step; later ones are void."""

    def write(self, entry: Mapping[str, Any]) -> None: ...

    def rewind(self, step: int) -> None: ...


class JsonLines:
    """One JSON object a line, appended to a file that only its owner may read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.append(self.path, "")

    def write(self, entry: Mapping[str, Any]) -> None:
        files.append(self.path, json.dumps(dict(entry)) + "\n")

    def rewind(self, step: int) -> None:
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # cut off when the process was killed
                break
            if entry["step"] > step:
                break
            kept.append(line + "\n")
        files.write(self.path, "".join(kept))


class TensorBoard:
    """Scalars for TensorBoard, under `prefix`."""

    def __init__(self, log_dir: str | os.PathLike[str], prefix: str = "privacy") -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make: Any = lambda purge: SummaryWriter(str(log_dir), purge_step=purge)
        self._writer: Any = self._make(None)
        self._prefix = prefix

    def write(self, entry: Mapping[str, Any]) -> None:
        tag = f"{self._prefix}/{entry['scope']}" if "scope" in entry else self._prefix
        for name, value in entry.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(f"{tag}/{name}", value, entry["step"])
        self._writer.flush()

    def rewind(self, step: int) -> None:
        self._writer.close()
        self._writer = self._make(step + 1)
