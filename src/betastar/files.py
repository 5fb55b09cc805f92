"""Files are written whole or not at all, never through a symbolic link, and for their owner only where they tell of people."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

#: Modes of a folder and of a file that nobody else may read.
FOLDER, FILE = 0o700, 0o600
#: Ends the name of a file that is being written; one that is still there belongs to a process that was killed.
PARTIAL = ".partial"
_NEW = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def check(path: Path) -> None:
    """Refuse a place at which writing would change something else."""
    if path.is_symlink():
        raise ValueError(f"{path} is a symbolic link, through which nothing is written: remove it, or name what it points to.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} must be a regular file, but is something else: choose another name.")


def write(path: Path, content: str | bytes, private: bool = True) -> None:
    """All of the file, or what was there before."""
    write_all({path: content}, private)


def write_all(contents: Mapping[Path, str | bytes], private: bool = True) -> None:
    """All of these files, or (where one cannot be written) none of them. A file that is not private keeps its mode."""
    partial: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            check(path)
            with _named(path):
                partial[path] = _whole(path, content.encode() if isinstance(content, str) else content, private)
        for path, made in partial.items():
            with _named(path):
                made.replace(path)
    finally:
        for made in partial.values():
            made.unlink(missing_ok=True)


def _whole(path: Path, content: bytes, private: bool) -> Path:
    """A new file beside the path, which is on the disk when this returns."""
    mode = FILE if private else path.stat().st_mode & 0o777 if path.exists() else None
    made = path.with_name(f".{secrets.token_hex(8)}{PARTIAL}")
    handle = os.open(made, _NEW | os.O_EXCL, 0o666 if mode is None else FILE)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            made.chmod(mode)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    return made


def append(path: Path, text: str) -> None:
    """Add to a private file; nothing is added if the whole text cannot be."""
    check(path)
    with _named(path):
        handle = os.open(path, _NEW | os.O_APPEND, FILE)
        try:
            size, left = os.fstat(handle).st_size, text.encode()
            try:
                while left:
                    left = left[os.write(handle, left) :]
            except OSError:
                os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors name the file that was asked for, not the one that is renamed to it."""
    try:
        yield
    except OSError as problem:
        raise type(problem)(problem.errno, problem.strerror, str(path)) from None


def make_private(folder: Path) -> None:
    """A folder that only its owner may enter, new or not, with the files that are in it, none of which leads elsewhere."""
    if folder.is_symlink():
        raise ValueError(f"{folder} is a symbolic link, through which nothing is written: name the folder that it points to.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=FOLDER, exist_ok=True)
    folder.chmod(FOLDER)
    refuse_links(folder)
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(FILE)


def refuse_links(folder: Path) -> None:
    """What is read from a folder, or written to it, is in it."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link, and leads elsewhere: remove it, or put the file itself there.")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; BlockingIOError if another process holds it. The lock ends with the process, however that ends."""
    check(path)
    handle = os.open(path, _NEW, FILE)
    try:
        if sys.platform == "win32":
            import msvcrt

            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            except OSError as problem:
                raise BlockingIOError(problem.errno, problem.strerror, str(path)) from None
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


# ---- Files that a run folder and the folder of a training loop of one's own have in common: their names and contents.

#: A line for each step that a monitor has watched, and the exposure of single records.
STEPS, LEDGER = "metrics.jsonl", "ledger.csv"
#: The exposure of single records to membership inference.
MEMBERS = "members.csv"
REPLACED, REMOVED = "bayes_security_replaced", "bayes_security_removed"
#: What a monitor or a PrivateTraining says of a training loop of one's own, and the version of its format.
TRAINING, TRAINING_FORMAT = "training.json", 1
#: What has written it.
MONITOR, PRIVATE_TRAINING = "monitor", "private training"


def ledger_text(entries: Iterable[tuple[int, float, float]]) -> str:
    """The content of ledger.csv: the number of each record that was measured, its leakage and its β*."""
    rows = [f"{record},{leakage!r},{beta!r}" for record, leakage, beta in entries]
    return "\n".join(["record,leakage,bayes_security", *rows]) + "\n"


def members_text(entries: Iterable[tuple[int, int, float, float, float]]) -> str:
    """The content of members.csv: each record that was measured, how often, its norm, and its β* if it is replaced or removed."""
    rows = [f"{record},{times},{norm!r},{replaced!r},{removed!r}" for record, times, norm, replaced, removed in entries]
    return "\n".join([f"record,times,norm,{REPLACED},{REMOVED}", *rows]) + "\n"
