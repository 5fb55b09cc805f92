"""The Git commit that a run or a report was made at."""

from __future__ import annotations

import subprocess


def code_commit() -> str | None:
    """The Git commit of the current folder, with "-dirty" if files differ from it; None outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
