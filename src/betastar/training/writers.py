"""Writers, to which a measurement gives the figures of each step: any callable that takes a dictionary, or JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from betastar import files

#: Is called with the figures of a step by their names, with the number of the step under "step".
Writer: TypeAlias = Callable[[Mapping[str, Any]], object]


class JsonLines:
    """A writer that appends one JSON object for each step to a file, which only its owner may read.

    When a training goes on from a saved state, the lines of later steps are removed.

    Parameters
    ----------
    path : path
        The file. Its folder is made if it does not exist.

    Examples
    --------
    >>> import tempfile
    >>> from betastar.training import JsonLines
    >>> writer = JsonLines(tempfile.mkdtemp() + "/metrics.jsonl")
    >>> writer({"step": 1, "distance": 0.5})
    >>> writer.path.read_text()
    '{"step": 1, "distance": 0.5}\\n'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.append(self.path, "")

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Append one step."""
        files.append(self.path, json.dumps(dict(entry)) + "\n")

    def rewind(self, step: int) -> None:
        """Remove later steps from the file.

        Parameters
        ----------
        step : int
            The number of the last step that is kept.
        """
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line was cut off when the process was killed
                break
            if entry["step"] > step:
                break
            kept.append(line + "\n")
        files.write(self.path, "".join(kept))
