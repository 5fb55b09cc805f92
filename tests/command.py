"""The command `betastar` as it is installed, and in this process: the same, without the seconds that it takes to start Python."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

from betastar.cli import main

COMMAND = str(Path(sys.executable).parent / "betastar")


def call(*words: str, text: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What main() prints and how it ends; warnings are shown, as they are to people. text: standard input."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGPIPE)
    code: object = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.object(sys, "argv", ["betastar", *words]),
        mock.patch.object(sys, "stdin", io.StringIO(text)),
        mock.patch.dict(os.environ, {"COLUMNS": "80"}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", hidden)
        warnings.showwarning = lambda message, *_, **__: err.write(f"{message}\n")
        try:
            main.main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            signal.signal(signal.SIGPIPE, before)
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(["betastar", *words], code, out.getvalue(), err.getvalue())
