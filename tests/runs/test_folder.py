"""Run folders: nobody else reads them, two processes do not mix, and a complete one does not tell its noise."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from betastar.report.report import summarise, write
from betastar.runs import seeds
from betastar.runs.audited import attacked, of_run
from betastar.runs.config import Config
from betastar.runs.folder import CONFIG, FORMAT, SECRETS, RunFolder
from betastar.runs.loop import Training, opened, train
from betastar.runs.reading import FolderError, StudyError

from ..command import COMMAND, call
from ..test_files import mode, umask
from ..trained_runs import TrainedRuns


@pytest.fixture
def config(runs: TrainedRuns) -> Config:
    return runs.people()


@pytest.fixture
def run(config: Config, trained: Callable[[Config], RunFolder]) -> RunFolder:
    return trained(config)


@pytest.fixture
def copy(run: RunFolder) -> Path:
    return run.path


def words(config: Config, folder: Path, *more: str) -> list[str]:
    fixed = ["train", config.study, "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "2"]
    return [*fixed, "--noise", "4", "--batch-size", "40", "-o", str(folder), *more]


def train_one_epoch(config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And interrupt it after the first checkpoint."""
    save = Training.save

    def stop(self: Training) -> None:
        save(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder)


def test_nobody_else_reads_a_run(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)  # there before, and open to all
    with umask(0):
        train_one_epoch(config, folder, monkeypatch)
    assert {"seed.json", "checkpoint.pt", "metrics.jsonl"} < {path.name for path in folder.iterdir()}
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir() if mode(path) != 0o600} == {}
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)  # as an earlier version left them
    with umask(0):
        train(config, folder, resume=True)
        summarise(folder)
        write(folder, tmp_path / "elsewhere.html")
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in [*folder.iterdir(), tmp_path / "elsewhere.html"] if mode(path) != 0o600} == {}


def test_a_complete_run_does_not_tell_its_noise(config: Config, tmp_path: Path) -> None:
    with opened(config, RunFolder(tmp_path / "run")) as training:
        assert training is not None
        training.run()
        weights = training.module.state_dict()
    folder = RunFolder(tmp_path / "run")
    names = {"config.json", "data.json", "distances.csv", "epochs.jsonl", "ledger.csv", "metrics.jsonl", "status.json"}
    assert {path.name for path in folder.path.iterdir()} == names | {
        "timings.jsonl",
        "model.safetensors",
        "encoder.json",
        ".lock",
    }
    for path in folder.path.iterdir():
        content = path.read_bytes()
        assert str(training.config.seed).encode() not in content, path
    kept = load_file(folder / "model.safetensors")
    assert all(torch.equal(kept[name], weights[name]) for name in weights)
    data = folder.data
    assert data is not None
    assert data["seed"] == seeds.derive(training.config.chosen_seed(), "split") < 2**32, (
        "the split can be repeated, not the noise"
    )
    again = attacked(of_run(folder.path))
    assert torch.equal(again.data.tensors[0], training.study.train.tensors[0]), "the ledger's numbers are still of these records"


@pytest.mark.parametrize("name", [*SECRETS, ".0123456789abcdef.partial"])
def test_what_a_kill_at_the_end_leaves_is_deleted_on_resume(config: Config, copy: Path, name: str) -> None:
    """After status.json and before the rest was deleted, or while a checkpoint was written."""
    (copy / name).write_text("state")
    before = (copy / "status.json").read_bytes()
    train(config, copy, resume=True)
    assert not (copy / name).exists()
    assert (copy / "status.json").read_bytes() == before


def test_a_complete_run_is_complete(config: Config, copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    done = call(*words(config, copy, "--resume"))
    assert done.returncode == 0, done.stderr
    assert {name: (copy / name).read_bytes() for name in before} == before
    with opened(config, RunFolder(copy), resume=True) as training:
        assert training is None


def test_each_file_is_read_as_it_was_written(run: RunFolder) -> None:
    record, distances, ledger = run.read(), run.distances, run.ledger
    assert json.loads((run / CONFIG).read_text()) == {"format": FORMAT, **run.config.to_json()}
    assert record.config == run.config
    assert record.status == run.status
    assert run.status.to_json() == json.loads((run / "status.json").read_text())
    assert [epoch["epoch"] for epoch in record.epochs] == [1, 2] == [timing["step"] for timing in run.timings]
    assert record.step_count == len(record.steps) == len(run.steps) > 0
    assert distances["exact"].tolist() == [step["distance"] for step in record.steps]
    rows = [f"{one.record},{one.leakage!r},{one.bayes_security!r}" for one in ledger]
    assert rows == (run / "ledger.csv").read_text().splitlines()[1:]
    assert rows
    assert set(run.weights) == set(load_file(run / "model.safetensors"))
    assert json.loads(run.encoder.to_json()) == json.loads((run / "encoder.json").read_text())
    assert (run.checkpoint, run.tells_noise, run.audits) == (None, False, {})
    run.write_distances(distances)
    run.write_ledger(ledger)
    assert run.distances["exact"].tolist() == distances["exact"].tolist()
    assert run.ledger == ledger


@pytest.mark.parametrize("made", [FORMAT + 1, FORMAT - 1, True, "2", None])
def test_a_folder_of_another_format_is_refused(config: Config, copy: Path, made: object) -> None:
    folder = RunFolder(copy)
    (copy / CONFIG).write_text(json.dumps({"format": made, **folder.config.to_json()}))
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    message = rf"config\.json: format must be {FORMAT}, got {made!r}: another version .* Train it again in another folder"
    reading: list[Callable[[], object]] = [
        lambda: folder.status,
        folder.read,
        lambda: train(config, copy, resume=True),
        lambda: write(copy),
        lambda: of_run(copy),
        lambda: folder.write_audit("mechanism", {}),
    ]
    for read in reading:
        with pytest.raises(StudyError, match=message):
            read()
    game = ["audit", "mechanism", "--noise", "2", "--rate", "0.1", "--steps", "3", "--games", "200", "--width", "1"]
    for command in (["report", str(copy)], words(config, copy, "--resume"), [*game, "--into", str(copy)]):
        done = call(*command)
        assert done.returncode == 2, command
        assert "format must be" in done.stderr
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("config.json", {"epochs": "2"}, "epochs must be a whole number or null, got '2'"),
        ("config.json", {"epochs": True}, "epochs must be a whole number or null, got True"),
        ("config.json", {"epochs": 2.5}, "epochs must be a whole number or null, got 2.5"),
        ("config.json", {"study": None}, "study must be text, got None"),
        ("config.json", {"drop": "name"}, "drop must be a list of items, each of which is text, got 'name'"),
        (
            "config.json",
            {"label_range": [1.0]},
            "label_range must be a list of 2 items, each of which is a number or null, got [1.0]",
        ),
        ("status.json", {"versions": {"torch": 2}}, "versions['torch'] must be text, got 2"),
        ("status.json", {"gaps": [0.1]}, "gaps must be an object, each of whose values is a number or null, got [0.1]"),
        ("status.json", {"finished": 1}, "finished must be true or false, got 1"),
        ("status.json", {"records": ...}, "it has no records"),
    ],
)
def test_a_value_of_another_type_is_named(copy: Path, name: str, entries: dict[str, object], message: str) -> None:
    values = {**json.loads((copy / name).read_text()), **entries}
    (copy / name).write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
    with pytest.raises(FolderError, match=re.escape(f"{name} is damaged or not of betastar train: {message}.")):
        RunFolder(copy).read()


def test_an_entry_of_another_version_is_named(config: Config, copy: Path) -> None:
    values = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(values | {"target_beta": 0.9}))
    said = r"config\.json: the entry 'target_beta' is unknown: another version .* Train it again in another folder\."
    for read in (RunFolder(copy).read, lambda: train(config, copy, resume=True)):
        with pytest.raises(FolderError, match=said):
            read()


def test_two_processes_do_not_train_in_one_folder(config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(config, RunFolder(folder)) as training:
        assert training is not None
        for more in (("--resume",), ()):
            second = call(*words(config, folder, *more))
            assert second.returncode == 2
        assert call(*words(config, folder, "--resume")).stderr == (
            f"betastar: another process trains in {folder}: wait until it has ended, or choose another folder.\n"
        )
        assert not (folder / "epochs.jsonl").exists()
        training.run()
    assert call(*words(config, folder, "--resume")).returncode == 0


@pytest.fixture(scope="module")
def half_trained(runs: TrainedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped after an epoch, and its tables."""
    place = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        shutil.copy(runs.people().study, "table.csv")
        train_one_epoch(replace(runs.people(), study="table.csv"), Path("half"), patch)
    return place


@pytest.fixture
def half(half_trained: Path, runs: TrainedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Config, Path]:
    """A copy of it, in the current folder, and its configuration."""
    place = shutil.copytree(half_trained, tmp_path / "place")
    monkeypatch.chdir(place)
    return replace(runs.people(), study="table.csv"), Path(place / "half")


def test_the_table_may_not_change_before_a_run_goes_on(half: tuple[Config, Path]) -> None:
    mine, folder = half
    table = folder.parent / "table.csv"
    kept = table.read_text()
    head, first, *rest = kept.splitlines(keepends=True)
    age = int(first.split(",")[0])
    table.write_text("".join([head, first.replace(str(age), str(age + 1), 1), *rest]))
    with pytest.raises(StudyError, match=r"are not those that the run in .* began with .*bring the table back as it was"):
        train(mine, folder, resume=True)
    table.write_text(kept)
    assert train(mine, folder, resume=True).status.finished


def test_a_checkpoint_of_unknown_records_is_refused(half: tuple[Config, Path]) -> None:
    mine, folder = half
    (folder / "data.json").unlink()
    with pytest.raises(StudyError, match=r"has a checkpoint but no data\.json"):
        train(mine, folder, resume=True)


def test_a_checkpoint_runs_no_code(half: tuple[Config, Path]) -> None:
    mine, folder = half
    proof = folder.parent / "executed"

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(proof),)

    for content in (pickle.dumps({"epoch": Evil()}), b"", b"PK\3\4"):
        (folder / "checkpoint.pt").write_bytes(content)
        with pytest.raises(StudyError, match=r"checkpoint\.pt is damaged or not of betastar train"):
            train(mine, folder, resume=True)
    torch.save({"epoch": Evil()}, folder / "checkpoint.pt")
    with pytest.raises(StudyError, match=r"checkpoint\.pt is damaged or not of betastar train"):
        train(mine, folder, resume=True)
    assert not proof.exists()


def test_links_are_not_followed(config: Config, copy: Path, tmp_path: Path) -> None:
    victim, inside = tmp_path / "victim", tmp_path / "inside"
    (tmp_path / "link").symlink_to(copy)
    for bad in (call(*words(config, tmp_path / "link", "--resume")), call("report", str(tmp_path / "link"))):
        assert bad.returncode == 2
        assert "is a symbolic link: name" in bad.stderr
    setting = ["--noise", "2", "--rate", "0.1", "--steps", "3"]
    game = ["audit", "mechanism", *setting, "--games", "200", "--width", "1"]
    for name, command in (
        ("report.html", ["report", str(copy)]),
        ("report.html", ["report", str(copy), "--force"]),
        ("audit-mechanism.json", [*game, "--into", str(copy)]),
        ("audit-mechanism.json", [*game, "--into", str(copy), "--force"]),
        ("summary.md", words(config, copy, "--resume")),
        ("epochs.png", words(config, copy, "--resume")),
    ):
        for exists in (False, True):
            victim.unlink(missing_ok=True)
            if exists:
                victim.write_text("mine")
            (copy / name).unlink(missing_ok=True)
            (copy / name).symlink_to(victim)
            bad = call(*command)
            assert (bad.returncode, victim.exists()) == (2, exists), name
            assert f"{name} is a symbolic link" in bad.stderr
            (copy / name).unlink()
    inside.mkdir()
    for name, command in (
        ("x.png", [*game, "--plot", str(inside / "x.png"), "--force"]),
        ("x.csv", ["sweep", *setting, "-o", str(inside / "x.csv"), "--force"]),
        ("x.html", ["report", str(copy), "-o", str(inside / "x.html"), "--force"]),
    ):
        (inside / name).symlink_to(victim)
        bad = call(*command)
        assert bad.returncode == 2, (name, bad.stderr)
        assert "is a symbolic link, through which nothing is written" in bad.stderr
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "epochs.jsonl", "checkpoint.pt", "status.json", "model.safetensors", "seed.json"]
)
def test_a_run_writes_through_no_link(half: tuple[Config, Path], name: str) -> None:
    mine, folder = half
    victim = folder.parent / "victim"
    victim.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"mine")
    before = victim.read_bytes()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(ValueError, match=f"{name} is a symbolic link, and leads elsewhere"):
        train(mine, folder, resume=True)
    assert victim.read_bytes() == before


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file grows beyond this size."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_on_a_full_disk_no_report_or_audit_is_cut_off(config: Config, copy: Path, tmp_path: Path) -> None:
    """And the exit code is not the one of a bound that is violated."""
    game = ["audit", "mechanism", "--noise", "2", "--rate", "0.1", "--steps", "3", "--games", "200", "--width", "1"]
    before = {path.name for path in copy.iterdir()}
    for size, command, file in (
        (20_000, ["report", str(copy)], "report.html"),
        (20_000, ["report", str(copy), "-o", str(copy / "report.md")], "report.md"),
        (200, [*game, "--into", str(copy)], "audit-mechanism.json"),
        (4_000, words(config, tmp_path / "new"), "checkpoint.pt"),
    ):
        with full_disk(size):
            done = call(*command)
        assert done.returncode == 3, (command, done.stderr)
        assert done.stderr.endswith(": File too large.\n")
        assert done.stderr.splitlines()[-1].startswith("betastar: ")
        assert "Traceback" not in done.stderr
        assert {path.name for path in copy.iterdir()} == before, file
    assert not list((tmp_path / "new").glob("*.partial"))
    assert not list((tmp_path / "new").glob(".*.partial"))
    assert train(config, tmp_path / "new", resume=True).status.finished


def test_output_that_goes_nowhere_is_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [COMMAND, "analyze", "--noise", "2", "--rate", "0.1", "--steps", "3", "--json"]
    with Path("/dev/full").open("w") as nowhere:
        done = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (3, "betastar: standard output: No space left on device.\n")

    for failing in (RuntimeError("a bug"), EOFError("cut off"), MemoryError(), PermissionError(13, "Permission denied", "x")):
        monkeypatch.setattr("betastar.runs.loop.train", lambda *_, failing=failing: (_ for _ in ()).throw(failing))
        assert call("train", "-o", "/nowhere").returncode == 3, failing


def test_killed_before_it_began(config: Config, tmp_path: Path) -> None:
    """What is left of it does not make the folder somebody else's."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / "seed.json").write_text(json.dumps({"seed": 1}))
    (folder / ".0123.partial").touch()
    train(config, folder)
    assert RunFolder(folder).status.finished
