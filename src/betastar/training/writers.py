"""Writers, to which a monitor gives the figures of each step: JSON lines, TensorBoard, or anything with the same two methods."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from betastar import files


class Writer(Protocol):
    """What a monitor asks of a writer.

    Examples
    --------
    >>> class Printed:
    ...     def write(self, entry):
    ...         print("step", entry["step"])
    ...
    ...     def rewind(self, step):
    ...         print("back to step", step)
    >>> Printed().write({"step": 3})
    step 3
    """

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write the figures of one step.

        Parameters
        ----------
        entry : mapping
            Figures by their names, with the number of the step under "step".
        """

    def rewind(self, step: int) -> None:
        """Forget later steps, because training goes on from a checkpoint.

        Parameters
        ----------
        step : int
            The number of the last step that is kept.
        """


class JsonLines:
    """Appends one JSON object for each step to a file that only its owner may read.

    Parameters
    ----------
    path : path
        The file. Its folder is made if it does not exist.

    Examples
    --------
    >>> import tempfile
    >>> from betastar.training import JsonLines
    >>> writer = JsonLines(tempfile.mkdtemp() + "/metrics.jsonl")
    >>> writer.write({"step": 1, "distance": 0.5})
    >>> writer.path.read_text()
    '{"step": 1, "distance": 0.5}\\n'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.append(self.path, "")

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one step.

        Parameters
        ----------
        entry : mapping
            Figures by their names, with the number of the step under "step".
        """
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


class TensorBoard:
    """Writes the figures of each step as scalars for TensorBoard.

    Parameters
    ----------
    log_dir : path
        The folder that TensorBoard reads.
    prefix : str
        The beginning of the names of the scalars.

    Raises
    ------
    ImportError
        If TensorBoard is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from betastar.training import TensorBoard
    >>> TensorBoard(tempfile.mkdtemp()).write({"step": 1, "scope": "batch", "distance": 0.5})
    """

    def __init__(self, log_dir: str | os.PathLike[str], prefix: str = "privacy") -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make: Any = lambda purge: SummaryWriter(str(log_dir), purge_step=purge)
        self._writer: Any = self._make(None)
        self._prefix = prefix

    def write(self, entry: Mapping[str, Any]) -> None:
        """Write the numbers of one step.

        Parameters
        ----------
        entry : mapping
            Figures by their names, with the number of the step under "step".
        """
        tag = f"{self._prefix}/{entry['scope']}" if "scope" in entry else self._prefix
        for name, value in entry.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(f"{tag}/{name}", value, entry["step"])
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """Make TensorBoard hide later steps.

        Parameters
        ----------
        step : int
            The number of the last step that is kept.
        """
        self._writer.close()
        self._writer = self._make(step + 1)
