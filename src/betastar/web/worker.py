"""A process that computes, and that is ended when it takes too long: a request never runs for minutes, nor waits for minutes."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar, TypeVarTuple, cast

from betastar.answers.json_answers import TooSlowError

Arguments = TypeVarTuple("Arguments")
Reply = TypeVar("Reply")
#: Questions that one worker holds at most: one is computed, the others wait. Three workers hold 24 of the server's 40 threads.
QUESTIONS = 8


class BusyError(RuntimeError):
    """The worker has too many questions, or too slow ones."""


class WorkerEndedError(RuntimeError):
    """The process ended before it answered."""


class Worker:
    """Answers one question at a time in a process of its own. The more patient a worker is, the lower is its priority.

    patience: from 0 to 19, as of `nice`.
    """

    def __init__(self, patience: int = 0) -> None:
        self._patience = patience
        self._ready = False
        self._places = threading.BoundedSemaphore(QUESTIONS)
        self._lock = threading.Lock()
        self._process: Any = None
        self._line: Any = None

    def start(self) -> None:
        """Start the process. Without this call it starts with the first question, which then takes longer."""
        # Not forked: the server has threads.
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, self._patience), daemon=True)
        self._process.start()
        other.close()
        self._ready = False

    def ask(self, seconds: float, question: Callable[[*Arguments], Reply], *arguments: *Arguments) -> Reply:
        """The answer to a question. It waits for its turn for at most so many seconds, and takes at most as many again."""
        if not self._places.acquire(blocking=False):
            raise BusyError(f"{QUESTIONS} questions of this kind are being answered already; ask again in a moment.")
        try:
            if not self._lock.acquire(timeout=seconds):
                raise BusyError(f"other questions took longer than {seconds:g} seconds; ask again in a moment.")
            try:
                return self._answer(seconds, question, arguments)
            finally:
                self._lock.release()
        finally:
            self._places.release()

    def _answer(self, seconds: float, question: Callable[[*Arguments], Reply], arguments: tuple[*Arguments]) -> Reply:
        if self._process is None or not self._process.is_alive():
            self.stop()
            self.start()
        try:
            if not self._ready:
                self._ready = bool(self._line.recv())  # it has read the libraries; that is not the question's time
            self._line.send((question, arguments))
            answer, problem = self._line.recv() if self._line.poll(seconds) else (None, _too_slow(seconds))
        except (EOFError, OSError):
            self.stop()
            raise WorkerEndedError(
                "the process that computes was ended before it answered: something killed it, or the memory ran out. "
                "The next question starts it again; if this one ends it once more, use the method exact or affinity."
            ) from None
        if isinstance(problem, TooSlowError):
            self.stop()  # it still computes
        if problem is not None:
            raise problem
        return cast(Reply, answer)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._line.close()
            self._process = None


def _too_slow(seconds: float) -> TooSlowError:
    return TooSlowError(
        f"this takes longer than {seconds:g} seconds here; use the method exact or affinity, or more moderate parameters."
    )


def _work(line: Connection, patience: int) -> None:
    import os
    import signal

    from betastar import plugins
    from betastar.answers import json_answers  # noqa: F401 # what will be asked
    from betastar.web import live_curves  # noqa: F401 # what will be asked

    plugins.load()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    if patience and hasattr(os, "nice"):
        os.nice(patience)
    line.send(True)
    while True:
        try:
            question, arguments = line.recv()
        except EOFError:
            return
        try:
            line.send((question(*arguments), None))
        except Exception as problem:
            line.send((None, problem))
