"""The folder of a run: only its owner may read it, one process at a time trains in it, and nothing is overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from betastar import files
from betastar.studies.study import StudyError

LOCK = ".lock"
#: From these the noise can be computed: they are deleted when the run is complete.
SECRETS = ("seed.json", "checkpoint.pt")


def versions() -> dict[str, str]:
    """What a run is made with."""
    return {name: version(name) for name in ("betastar", "torch", "opacus", "numpy")}


class RunFolder:
    """config.json (what was asked for), data.json (which records they are), metrics.jsonl (steps), epochs.jsonl, timings.jsonl.

    Until the run is complete: seed.json (if the seed was drawn) and checkpoint.pt. Then: weights.pt, status.json, distances.csv,
    ledger.csv, summary.md.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def config(self) -> dict[str, Any]:
        try:
            return self._json("config.json")
        except FileNotFoundError:
            raise StudyError(f"{self.path} holds no run (no config.json).") from None

    @property
    def status(self) -> dict[str, Any]:
        """What is known when a run is complete."""
        if not self.complete:
            raise StudyError(f"the run in {self.path} is not finished: betastar train --resume -o {self.path}")
        return self._json("status.json")

    @property
    def begun(self) -> bool:
        return (self / "config.json").exists()

    @property
    def complete(self) -> bool:
        return (self / "status.json").exists()

    @property
    def seed(self) -> int:
        """Of the run: the one that was asked for, or the one that was drawn, until the run is complete."""
        given = self.config.get("seed")
        if given is None and not (self / "seed.json").exists():
            why = "it was deleted when the run was complete" if self.complete else "seed.json is missing"
            raise StudyError(f"the seed of the run in {self.path} was drawn, and is not known any more: {why}.")
        return int(self._json("seed.json")["seed"] if given is None else given)

    @property
    def data(self) -> dict[str, Any] | None:
        """Fingerprint of the records, and the seed that chose them, from which the noise cannot be computed."""
        return self._json("data.json") if (self / "data.json").exists() else None

    def check(self, resume: bool) -> None:
        """Whether a run may start here, or go on."""
        if self.path.is_symlink():
            raise StudyError(f"{self.path} is a symbolic link: name the folder that it points to.")
        if self.begun and not resume:
            raise StudyError(f"{self.path} already holds a run: choose another folder, or --resume to go on with it.")
        if not self.begun and self.path.exists():
            own = (LOCK, "seed.json")  # of a run that was killed before it began
            if any(path.name not in own and path.suffix != files.PARTIAL for path in self.path.iterdir()):
                raise StudyError(f"{self.path} is not empty and holds no run: choose another folder.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While one process trains here, no other does."""
        files.make_private(self.path)
        with ExitStack() as held:
            try:
                held.enter_context(files.locked(self / LOCK))
            except BlockingIOError:
                text = f"another process trains in {self.path}: wait until it has ended, or choose another folder."
                raise StudyError(text) from None
            self._sweep()
            yield

    def begin(self, config: dict[str, Any], seed: int) -> None:
        """What was asked for; a seed that was drawn is kept apart, so that it can be deleted."""
        if config["seed"] is None:
            self.write("seed.json", json.dumps({"seed": seed}) + "\n")
        self.write("config.json", json.dumps(config, indent=1) + "\n")

    def compare(self, config: dict[str, Any]) -> None:
        """Refuse to go on with another run than the one that is here. A seed that is not given is the folder's."""
        there = self.config
        for name in sorted({*there, *config}):
            if there.get(name) == config.get(name) or (name == "seed" and config.get(name) is None):
                continue
            if name == "seed":  # that of the folder is not told: whoever knows it can compute the noise
                raise StudyError(f"{self.path} holds another run: its seed is not {config.get(name)!r}.")
            raise StudyError(f"{self.path} holds another run: its {name} is {there.get(name)!r}, not {config.get(name)!r}.")

    def identify(self, data: dict[str, Any]) -> None:
        """Refuse to go on with other records than those that the run began with."""
        known = self.data
        if known is None and (self / "checkpoint.pt").exists():
            raise StudyError(
                f"{self.path} has a checkpoint but no data.json, so that nobody can tell whether the records are still the same: "
                "start the run again in another folder."
            )
        if known is not None and known != data:
            raise StudyError(
                f"the records are not those that the run in {self.path} began with (their fingerprint differs): bring the table "
                "back as it was, or start again in another folder."
            )
        if known is None:
            self.write("data.json", json.dumps(data) + "\n")

    def forget(self) -> None:
        """Delete what the noise can be computed from."""
        if (self / "checkpoint.pt").exists() and not (self / "weights.pt").exists():
            raise StudyError(
                f"{self / 'checkpoint.pt'} was left by an earlier version, and tells the noise: take the weights out of it "
                "(torch.load(path, weights_only=False)['model']), and delete it."
            )
        for name in SECRETS:
            (self / name).unlink(missing_ok=True)
        self._sweep()

    def _sweep(self) -> None:
        """Delete what a process that was killed was writing: it may hold a generator's state."""
        for path in self.path.glob(f".*{files.PARTIAL}"):
            path.unlink(missing_ok=True)

    def write(self, name: str, content: str | bytes) -> None:
        """All of the file, or none of it."""
        files.write(self / name, content)

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self / name
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self / name).read_text(encoding="utf-8"))
        except ValueError as problem:
            raise StudyError(f"{self / name} is damaged: {problem}.") from None
        if not isinstance(found, dict):
            raise StudyError(f"{self / name} is damaged: it must hold one JSON object.")
        return found
