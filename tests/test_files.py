"""Files are whole or not there, private where they must be, and where they were asked for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from betastar import files
from betastar.audit.rungs.games import GameFolder
from betastar.training import JsonLines


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@contextmanager
def largest(size: int) -> Iterator[None]:
    """No file may become larger, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("bits", [0o000, 0o022, 0o077])
def test_private_files_are_private_whatever_the_umask(tmp_path: Path, bits: int) -> None:
    old, new, lines = tmp_path / "old", tmp_path / "new", tmp_path / "lines"
    old.write_text("old")
    old.chmod(0o666)
    with umask(bits):
        files.write(old, "1")
        files.write(new, b"1")
        files.append(lines, "1")
        files.make_private(tmp_path / "a" / "folder")
        files.write(tmp_path / "public", "1", private=False)
        files.write(tmp_path / "public", "2", private=False)
    assert {mode(path) for path in (old, new, lines)} == {0o600}
    assert mode(tmp_path / "a" / "folder") == 0o700
    assert mode(tmp_path / "public") == 0o666 & ~bits


def test_what_was_there_becomes_private_or_stays_as_private_as_it_was(tmp_path: Path) -> None:
    folder, inside, secret = tmp_path / "folder", tmp_path / "folder" / "file", tmp_path / "secret"
    folder.mkdir()
    folder.chmod(0o777)
    inside.write_text("x")
    inside.chmod(0o666)
    files.make_private(folder)
    assert (mode(folder), mode(inside)) == (0o700, 0o600)
    secret.write_text("x")
    secret.chmod(0o600)
    files.write(secret, "y", private=False)
    assert mode(secret) == 0o600, "writing over a file does not open it to others"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target, here = tmp_path / "target", tmp_path / "here"
    here.mkdir()
    for exists in (False, True):
        if exists:
            target.write_text("mine")
        link = here / f"link-{exists}"
        link.symlink_to(target)
        for writing in (files.write, files.append, lambda path, text: files.write(path, text, private=False)):
            with pytest.raises(ValueError, match=r"link-\w+ is a symbolic link, through which nothing is written"):
                writing(link, "evil")
        with pytest.raises(ValueError, match="is a symbolic link"):
            JsonLines(link)
        with pytest.raises(ValueError, match="is a symbolic link"), files.locked(link):
            pass
        assert target.exists() == exists
    assert target.read_text() == "mine"
    (here / "folder").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="name the folder that it points to"):
        files.make_private(here / "folder")
    os.mkfifo(here / "pipe")
    for strange in (here / "pipe", tmp_path):
        with pytest.raises(ValueError, match="must be a regular file"):
            files.write(strange, "x")


def test_on_a_full_disk_nothing_is_cut_off(tmp_path: Path) -> None:
    old, new, lines = tmp_path / "old", tmp_path / "new", tmp_path / "lines"
    files.write(old, "as it was")
    files.append(lines, "whole\n")
    with largest(1000):
        for path in (old, new):
            with pytest.raises(OSError, match=f"File too large: '{path}'"):
                files.write(path, "x" * 5000)
        with pytest.raises(OSError, match="File too large"):
            files.write_all({tmp_path / "first": "x", new: "x" * 5000})
        with pytest.raises(OSError, match="File too large"):
            files.append(lines, "x" * 5000 + "\n")
    assert old.read_text() == "as it was"
    assert lines.read_text() == "whole\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines", "old"]


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from betastar import files\n"
        "with files.locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(BlockingIOError), files.locked(tmp_path / "lock"):
                pass
        finally:
            holder.kill()
    for _ in range(2):
        with files.locked(tmp_path / "lock"), pytest.raises(BlockingIOError), files.locked(tmp_path / "lock"):
            pass


def test_the_games_of_an_audit_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with umask(0):
        GameFolder(folder).claim({"seed": 1})
        GameFolder(folder).write(0, {"world": np.arange(3.0)})
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == {"audit.json": 0o600, "games-00000.npz": 0o600}
    assert GameFolder(folder).read(0)["world"].tolist() == [0.0, 1.0, 2.0]
    GameFolder(folder).path(1).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symbolic link"):
        GameFolder(folder).write(1, {"world": np.arange(3.0)})
    assert not (tmp_path / "elsewhere").exists()
