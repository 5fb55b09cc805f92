"""The folder of a run: its configuration, its metrics, and a checkpoint from which it goes on. Nothing is overwritten."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from betastar.studies.study import StudyError


def versions() -> dict[str, str]:
    """What a run is made with."""
    return {name: version(name) for name in ("betastar", "torch", "opacus", "numpy")}


class RunFolder:
    """config.json, metrics.jsonl (steps), epochs.jsonl, timings.jsonl, distances.csv, ledger.csv, checkpoint.pt, summary.md."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def config(self) -> dict[str, Any]:
        try:
            return json.loads((self / "config.json").read_text())
        except FileNotFoundError:
            raise StudyError(f"{self.path} holds no run (no config.json).") from None
        except json.JSONDecodeError as problem:
            raise StudyError(f"{self / 'config.json'} is damaged: {problem}.") from None

    @property
    def status(self) -> dict[str, Any]:
        """What is known when a run is finished."""
        path = self / "status.json"
        if not path.exists():
            raise StudyError(f"the run in {self.path} is not finished: betastar train --resume -o {self.path}")
        return json.loads(path.read_text())

    def open(self, config: dict[str, Any], resume: bool) -> None:
        """Start a run here, or go on with the one that is here."""
        if (self / "config.json").exists():
            there = self.config
            different = [name for name in sorted({*there, *config}) if there.get(name) != config.get(name)]
            if not resume:
                raise StudyError(f"{self.path} already holds a run: choose another folder, or --resume to go on with it.")
            if different:
                name = different[0]
                if name == "seed":  # that of the folder is not told: whoever knows it can compute the noise
                    raise StudyError(f"{self.path} holds another run: its seed is not {config.get(name)!r}.")
                raise StudyError(f"{self.path} holds another run: its {name} is {there.get(name)!r}, not {config.get(name)!r}.")
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise StudyError(f"{self.path} is not empty and holds no run: choose another folder.")
        self.path.mkdir(parents=True, exist_ok=True)
        self.write("config.json", json.dumps(config, indent=1) + "\n")

    def write(self, name: str, text: str) -> None:
        """All of the file, or none of it."""
        partial = self / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(self / name)

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self / name
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
