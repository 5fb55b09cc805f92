"""A process that computes, and that is ended when it takes too long: a request never runs for minutes."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from betastar.views.answers import TooSlowError


class Worker:
    """One question at a time, in a process of its own. patient: gives way to others."""

    def __init__(self, patient: bool = False) -> None:
        self._patient = patient
        self._ready = False
        self._lock = threading.Lock()
        self._process: Any = None
        self._line: Any = None

    def start(self) -> None:
        """Before the first question, if it is to be answered at once."""
        # Not forked: the server has threads.
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, self._patient), daemon=True)
        self._process.start()
        other.close()
        self._ready = False

    def ask(self, seconds: float, question: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            if self._process is None or not self._process.is_alive():
                self.start()
            if not self._ready:
                self._ready = bool(self._line.recv())  # it has read the libraries; that is not the question's time
            self._line.send((question, arguments))
            try:
                if self._line.poll(seconds):
                    answer, problem = self._line.recv()
                    if problem is not None:
                        raise problem
                    return answer
            except EOFError:
                raise ArithmeticError("the computation ended itself, probably for want of memory") from None
            self.stop()
            raise TooSlowError(
                f"this takes longer than {seconds:g} seconds here; use the method exact or affinity, or more moderate parameters."
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._line.close()
            self._process = None


def _work(line: Connection, patient: bool) -> None:
    import os
    import signal

    from betastar.views import answers, live  # noqa: F401 # what will be asked

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    if patient and hasattr(os, "nice"):
        os.nice(10)
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
