"""The folder of a run: its files, each with one name, one reader and one writer.

Only its owner may read it, one process at a time trains in it, and nothing is overwritten.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from betastar import files
from betastar.files import LEDGER as LEDGER
from betastar.files import MEMBERS, REMOVED, REPLACED, ledger_text
from betastar.files import STEPS as STEPS
from betastar.quality import main_figure
from betastar.runs.config import Config
from betastar.runs.encoder import TableEncoder
from betastar.runs.reading import FolderError, Inside, Json, JsonObject, StudyError, lines_of, object_of, rows_of

if TYPE_CHECKING:
    from betastar.training import JsonLines


def code_commit() -> str | None:
    """The Git commit of the current folder, with "-dirty" if files differ from it; None outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None


# Status.json

#: Fields that only some runs have; where such a field is None, the file does not have it.
OPTIONAL = ("secret", "values", "label", "gaps", "proof", "person", "records_per_person", "max_batch_size", "shares", "concerned")


@dataclass(frozen=True, kw_only=True)
class Status(JsonObject):
    """What is known of a run when it is complete.

    Attributes
    ----------
    batch_size, noise_multiplier, max_grad_norm, learning_rate, hidden
        The parameters of the training, as for `Recipe`.
    epochs : int
        The number of epochs that were trained.
    records : int
        The number of training records.
    sample_rate : float
        The probability of each record at each step.
    study : str
        The title of the study.
    finished : bool
        True, because the file is written last.
    versions : dict of str to str
        The packages that the run was made with.
    secret : str or None
        The name of the secret, where a monitor watched it or gap clipping protected it.
    values : int or None
        The number of values of the secret.
    label : str or None
        What the monitor's figures are: an estimate, or a statement after the fact.
    gaps : dict of str to float, or None
        The gap that was enforced for each secret.
    proof : str or None
        What gap clipping promises. A report computes it again, and does not repeat this sentence.
    restated : tuple of str
        The columns from which the secret can be read off.
    told : tuple of str
        What was done to the columns of a table, in sentences.
    person : str or None
        The column that says whose record it is.
    records_per_person : int or None
        The number of training records of the person who has most.
    sampling : str
        How batches were drawn, as in `betastar.DPSGD`.
    times_per_epoch : int
        With balls in bins: in how many batches of an epoch each record was.
    max_batch_size : int or None
        Larger batches were cut down to this many records, at random.
    shares : dict of str to float, or None
        Of the training records that the secret is about, the share that holds each value. It depends on the data.
    concerned : int or None
        The number of training records that the secret is about; None if these are all of them. It depends on the data.
    """

    batch_size: int
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    epochs: int
    hidden: tuple[int, ...]
    records: int
    sample_rate: float
    versions: dict[str, str] = field(default_factory=dict)
    finished: bool
    study: str
    secret: str | None = None
    values: int | None = None
    label: str | None = None
    gaps: dict[str, float] | None = None
    proof: str | None = None
    restated: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    person: str | None = None
    records_per_person: int | None = None
    sampling: str = "poisson"
    max_batch_size: int | None = None
    shares: dict[str, float] | None = None
    concerned: int | None = None
    times_per_epoch: int = 1

    def to_json(self) -> Json:
        """The object that status.json holds."""
        return {name: value for name, value in super().to_json().items() if value is not None or name not in OPTIONAL}


# The folder

#: Version of the format, in config.json.
FORMAT = 2

#: What was asked for; which records they are; what is known when the run is complete.
CONFIG, DATA, STATUS = "config.json", "data.json", "status.json"
#: A line for each epoch, and for how long it took; STEPS has one for each step, if a monitor watches.
EPOCHS, TIMINGS = "epochs.jsonl", "timings.jsonl"
#: When the run is complete: the model and the encoder of its records, the distance of each step, the exposure of single records.
MODEL, ENCODER, DISTANCES = "model.safetensors", "encoder.json", "distances.csv"
#: Until the run is complete: the seed, if it was drawn, and the state of the training.
SEED, CHECKPOINT = "seed.json", "checkpoint.pt"
LOCK = ".lock"

#: From these the noise can be computed: they are deleted when the run is complete.
SECRETS = (SEED, CHECKPOINT)
#: Kinds of audits that are kept with a run, in the order of a report.
AUDITS = ("code", "mechanism", "training", "one-run")
#: Names under which an epoch has the β* of measured distances; a report takes the first.
DIAMETERS = ("exact", "centroid")


def versions() -> dict[str, str]:
    """The versions of the packages that a run is made with, and the Git commit of the folder that it is started in, if any."""
    told = {name: version(name) for name in ("betastar", "torch", "opacus", "numpy")}
    return told | ({"commit": commit} if (commit := code_commit()) else {})


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger: how exposed a record is."""

    record: int
    leakage: float
    bayes_security: float

    @classmethod
    def of(cls, row: Mapping[str, str]) -> LedgerEntry:
        record, beta = int(row["record"]), float(row["bayes_security"])
        if not 0.0 <= beta <= 1.0:
            raise ValueError("bayes_security must be between 0 and 1")
        return cls(record, float(row["leakage"]), beta)


@dataclass(frozen=True)
class RunRecord:
    """All that a run has written about itself until now.

    Attributes
    ----------
    folder : RunFolder
        Where it is written.
    config : Config
        What was asked for.
    status : Status or None
        What is known when the run is complete; None before.
    epochs : list of dict
        An entry for each epoch that is finished; at least one.
    steps : list of dict
        An entry for each step of these epochs; empty if no monitor watched.
    """

    folder: RunFolder
    config: Config
    status: Status | None
    epochs: list[Json]
    steps: list[Json]

    @property
    def last(self) -> Json:
        """The last epoch."""
        return self.epochs[-1]

    @property
    def step_count(self) -> int:
        return int(self.last["steps"])


class RunFolder:
    """The files of one run. `folder / name` is the path of a file; attributes read files, methods write them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def begun(self) -> bool:
        """Whether a run was started here."""
        return (self / CONFIG).exists()

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return (self / STATUS).exists()

    # Reading

    @property
    def config(self) -> Config:
        """What was asked for. The version of the format is checked first."""
        if not self.begun:
            inside = sorted(self.path.glob(f"*/{CONFIG}"))
            several = f" It holds runs of several seeds: name one of them, such as {inside[0].parent}." if inside else ""
            raise FolderError(f"{self.path} holds no run: expected a folder made by betastar train, with a {CONFIG}.{several}")
        values = object_of(self / CONFIG)
        if (made := values.pop("format", None)) != FORMAT or type(made) is not int:
            raise FolderError(
                f"{self / CONFIG}: format must be {FORMAT}, got {made!r}: another version of betastar made this run. Train it "
                "again in another folder, or install that version to resume it or to report on it."
            )
        return Config.from_json(values, self / CONFIG)

    @property
    def status(self) -> Status:
        """What is known when a run is complete."""
        self.check_format()
        if not self.complete:
            raise StudyError(f"the run in {self.path} is not finished: betastar train --resume -o {self.path}")
        return Status.from_json(object_of(self / STATUS), self / STATUS)

    @property
    def seed(self) -> int:
        """The seed of the run: the one that was asked for, or the one that was drawn, until the run is complete."""
        given = self.config.seed
        if given is not None:
            return given
        if not (self / SEED).exists():
            why = "it was deleted when the run was complete" if self.complete else f"{SEED} is missing"
            raise StudyError(f"the seed of the run in {self.path} was drawn, and is not known any more: {why}.")
        with Inside(self / SEED):
            return int(object_of(self / SEED)["seed"])

    @property
    def data(self) -> Json | None:
        """Fingerprint of the records, and the seed that chose them, from which the noise cannot be computed."""
        return object_of(self / DATA) if (self / DATA).exists() else None

    @property
    def tells_noise(self) -> bool:
        """Whether a file is there from which the noise can be computed."""
        return any((self / name).exists() for name in SECRETS)

    @property
    def epochs(self) -> list[Json]:
        """An entry for each epoch that is finished."""
        entries = list(lines_of(self / EPOCHS))
        with Inside(self / EPOCHS):
            for entry in entries:
                parts = ["membership", *(name for name in DIAMETERS if name in entries[-1])]
                bounds = [entry[part] for part in parts] + [entry["proved"][name] for name in entries[-1].get("proved", {})]
                _ = int(entry["epoch"]), int(entry["steps"]), float(entry[main_figure(entry).name])
                _ = [float(one[key]) for one in bounds for key in ("lower", "estimate")]
        return entries

    @property
    def steps(self) -> list[Json]:
        """What a monitor wrote down at each step."""
        return list(lines_of(self / STEPS))

    @property
    def timings(self) -> list[Json]:
        """How long each epoch took."""
        return list(lines_of(self / TIMINGS))

    @property
    def distances(self) -> dict[str, NDArray[Any]]:
        """The distance of each step, by the diameter that was measured."""
        table = np.genfromtxt(self / DISTANCES, delimiter=",", names=True)
        return {name: np.atleast_1d(table[name]) for name in table.dtype.names or () if name != "step"}

    @property
    def ledger(self) -> list[LedgerEntry]:
        """Single records that were looked at; none without a ledger."""
        with Inside(self / LEDGER):
            return [LedgerEntry.of(row) for row in rows_of(self / LEDGER)]

    @property
    def members(self) -> dict[int, tuple[float, float]]:
        """β* against membership inference of single records that were measured, if replaced (perhaps not known), and removed."""
        with Inside(self / MEMBERS):
            found = {int(row["record"]): (float(row[REPLACED]), float(row[REMOVED])) for row in rows_of(self / MEMBERS)}
            if any(not 0.0 <= beta <= 1.0 for both in found.values() for beta in both if beta == beta):
                raise ValueError("β* must be between 0 and 1")
            return found

    @property
    def weights(self) -> dict[str, Any]:
        """The weights of the trained model."""
        from betastar.runs.model import unpack_weights

        return unpack_weights(self / MODEL)

    @property
    def encoder(self) -> TableEncoder:
        """What makes the records of a table into inputs of the model."""
        if not (self / ENCODER).exists():
            raise FolderError(f"{self.path} has no {ENCODER}: an earlier version of betastar made this run. Train it again.")
        with Inside(self / ENCODER):
            return TableEncoder.from_json(object_of(self / ENCODER))

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        """The state of the training after the last epoch that is finished."""
        from betastar.runs.model import unpack

        return unpack(self / CHECKPOINT) if (self / CHECKPOINT).exists() else None

    def audit_path(self, kind: str) -> Path:
        """The file of an audit of this kind."""
        return self / f"audit-{kind}.json"

    @property
    def audits(self) -> dict[str, Json]:
        """Results of audits that are kept with the run, by their kind."""
        return {kind: object_of(self.audit_path(kind)) for kind in AUDITS if self.audit_path(kind).exists()}

    def read(self) -> RunRecord:
        """What the run has written until now; at least one epoch is finished."""
        config = self.config
        files.refuse_links(self.path)
        status, epochs = self.status if self.complete else None, self.epochs
        if not epochs:
            raise FolderError(f"{self / EPOCHS}: no epoch of this run is finished. Go on with betastar train --resume.")
        return RunRecord(self, config, status, epochs, self.steps[: int(epochs[-1]["steps"])])

    # Whether a run may be here

    def check_format(self) -> None:
        """Refuse a folder without a run, or of a format that this version does not read."""
        _ = self.config

    def check(self, resume: bool) -> None:
        """Raise StudyError unless a run may start here, or go on."""
        if self.path.is_symlink():
            raise StudyError(f"{self.path} is a symbolic link: name the folder that it points to.")
        if self.begun and not resume:
            raise StudyError(f"{self.path} already holds a run: choose another folder, or --resume to go on with it.")
        if not self.begun and self.path.exists():
            own = (LOCK, SEED)  # of a run that was killed before it began
            if any(path.name not in own and path.suffix != files.PARTIAL for path in self.path.iterdir()):
                raise StudyError(f"{self.path} is not empty and holds no run: choose another folder.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A context in which no other process trains here."""
        files.make_private(self.path)
        with ExitStack() as held:
            try:
                held.enter_context(files.locked(self / LOCK))
            except BlockingIOError:
                text = f"another process trains in {self.path}: wait until it has ended, or choose another folder."
                raise StudyError(text) from None
            self._sweep()
            yield

    def compare(self, config: Config) -> None:
        """Refuse to go on with another run than the one that is here. A seed that is not given is the folder's."""
        stored, asked = self.config.to_json(), config.to_json()
        for name in sorted(stored):
            if stored[name] == asked[name] or (name == "seed" and asked[name] is None):
                continue
            if name == "seed":  # that of the folder is not told: anyone who knows it can compute the noise
                raise StudyError(f"{self.path} holds another run: its seed is not {asked[name]!r}.")
            raise StudyError(f"{self.path} holds another run: its {name} is {stored[name]!r}, not {asked[name]!r}.")

    # Writing

    def write(self, name: str, content: str | bytes) -> None:
        """Write all of the file, or none of it."""
        files.write(self / name, content)

    def begin(self, config: Config, seed: int) -> None:
        """Write what was asked for. A seed that was drawn is kept in a file of its own, so that it can be deleted."""
        if config.seed is None:
            self.write(SEED, json.dumps({"seed": seed}) + "\n")
        self.write(CONFIG, json.dumps({"format": FORMAT, **config.to_json()}, indent=1) + "\n")

    def identify(self, data: Json) -> None:
        """Refuse to go on with other records than those that the run began with."""
        known = self.data
        if known is None and (self / CHECKPOINT).exists():
            raise StudyError(
                f"{self.path} has a checkpoint but no {DATA}, so that nobody can tell whether the records are still the same: "
                "start the run again in another folder."
            )
        if known is not None and known != data:
            raise StudyError(
                f"the records are not those that the run in {self.path} began with (their fingerprint differs): bring the table "
                "back as it was, or start again in another folder."
            )
        if known is None:
            self.write(DATA, json.dumps(data) + "\n")

    def step_writer(self) -> JsonLines:
        """The writer to which a monitor gives each step."""
        return self._lines(STEPS)

    def add_epoch(self, entry: Json, seconds: float, threads: int) -> None:
        """Add the entry of an epoch, and how long it took."""
        self._lines(EPOCHS)({"step": entry["epoch"], **entry})
        self._lines(TIMINGS)({"step": entry["epoch"], "seconds": seconds, "threads": threads, "date": date.today().isoformat()})

    def rewind(self, epoch: int) -> None:
        """Delete what was written after this epoch."""
        for name in (EPOCHS, TIMINGS):
            self._lines(name).rewind(epoch)

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        """Write the state of the training after an epoch."""
        from betastar.runs.model import pack

        self.write(CHECKPOINT, pack(state))

    def write_distances(self, columns: Mapping[str, Sequence[float] | NDArray[Any]]) -> None:
        """Write the distance of each step, by the diameter that was measured."""
        rows = [",".join(["step", *columns])]
        for step, row in enumerate(zip(*columns.values(), strict=True), start=1):
            rows.append(",".join([str(step), *(repr(float(distance)) for distance in row)]))
        self.write(DISTANCES, "\n".join(rows) + "\n")

    def write_ledger(self, entries: Sequence[LedgerEntry]) -> None:
        """Write how exposed each record is that was measured."""
        self.write(LEDGER, ledger_text((one.record, one.leakage, one.bayes_security) for one in entries))

    def finish(self, status: Status, weights: dict[str, Any], encoder: TableEncoder | None) -> None:
        """Write the model, its encoder and status.json, which makes the run complete, and delete what tells the noise."""
        from betastar.runs.model import pack_weights

        self.write(MODEL, pack_weights(weights))
        if encoder is not None:
            self.write(ENCODER, encoder.to_json())
        self.write(STATUS, json.dumps(status.to_json(), indent=1) + "\n")
        self.forget()

    def write_audit(self, kind: str, result: Json) -> None:
        """Write the result of an audit, for the report of the run."""
        self.check_format()
        files.write(self.audit_path(kind), json.dumps(result, indent=1, ensure_ascii=False) + "\n")

    def forget(self) -> None:
        """Delete what the noise can be computed from."""
        for name in SECRETS:
            (self / name).unlink(missing_ok=True)
        self._sweep()

    def _sweep(self) -> None:
        """Delete what a process that was killed was writing: it may hold a generator's state."""
        for path in self.path.glob(f".*{files.PARTIAL}"):
            path.unlink(missing_ok=True)

    def _lines(self, name: str) -> JsonLines:
        from betastar.training import JsonLines

        return JsonLines(self / name)
