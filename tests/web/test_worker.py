"""Too many questions, slow ones, and processes that are killed: the server refuses or says so, and goes on."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import uvicorn

from betastar.answers.json_answers import TooSlowError
from betastar.web import api
from betastar.web.server import listen
from betastar.web.worker import QUESTIONS, BusyError, Worker, WorkerEndedError

SETTING = "noise_multiplier=3.51&batch_size=256&dataset_size=26048&epochs=20"
PATIENCE = 100.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    started = Worker()
    yield started
    started.stop()


def wait_for(path: str) -> str:
    """A question that is answered when the file exists."""
    while not Path(path).exists():
        time.sleep(0.01)
    return "done"


def test_more_questions_than_places_are_refused_at_once(worker: Worker, tmp_path: Path) -> None:
    signal_file = tmp_path / "now"
    with ThreadPoolExecutor(QUESTIONS + 1) as pool:
        asked = [pool.submit(worker.ask, PATIENCE, wait_for, str(signal_file)) for _ in range(QUESTIONS + 1)]
        refused = next(as_completed(asked))  # nobody else can be done before the file exists
        with pytest.raises(BusyError, match=f"{QUESTIONS} questions"):
            refused.result()
        signal_file.touch()
        assert [one.result() for one in asked if one is not refused] == ["done"] * QUESTIONS
    assert worker.ask(PATIENCE, len, "abc") == 3, "the places are free again"


def test_nobody_waits_long_for_his_turn(worker: Worker, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(worker.ask, PATIENCE, wait_for, str(tmp_path / "now"))
        while not worker._lock.locked():
            time.sleep(0.01)
        with pytest.raises(BusyError, match=r"longer than 0\.05 seconds"):
            worker.ask(0.05, len, "abc")
        (tmp_path / "now").touch()
        assert slow.result() == "done"


def test_a_slow_question_is_ended(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(TooSlowError, match=r"longer than 0\.05 seconds"):
        worker.ask(0.05, wait_for, str(tmp_path / "never"))
    assert worker.ask(PATIENCE, len, "abc") == 3


def test_a_process_that_ends_is_said_once(worker: Worker) -> None:
    for _ in range(2):
        with pytest.raises(WorkerEndedError, match="ended before it answered"):
            worker.ask(PATIENCE, os._exit, 1)
        assert worker.ask(PATIENCE, len, "abc") == 3


@pytest.mark.parametrize("ready", [False, True])
def test_a_process_killed_between_questions(worker: Worker, ready: bool) -> None:
    """It may be found dead, and is replaced, or it may die while it is asked, which is said."""
    if ready:
        worker.ask(PATIENCE, len, "abc")
    else:
        worker.start()
    os.kill(worker._process.pid, signal.SIGKILL)
    try:
        assert worker.ask(PATIENCE, len, "abc") == 3
    except WorkerEndedError:
        assert worker.ask(PATIENCE, len, "abc") == 3


def test_a_pipe_that_breaks_under_the_question(worker: Worker) -> None:
    """The process still lives when it is looked at, and no longer listens when it is asked."""
    worker.ask(PATIENCE, len, "abc")
    worker._line.close()
    with pytest.raises(WorkerEndedError):
        worker.ask(PATIENCE, len, "abc")
    assert worker.ask(PATIENCE, len, "abc") == 3


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, tuple[Worker, ...]]]:
    """A real server with its threads, and its workers: for numbers, for curves, and the patient one."""
    for name in ("SECONDS", "MOVING", "EXACT", "CERTIFYING"):
        monkeypatch.setattr(api, name, PATIENCE)
    app, listening = api.create_app(), listen(0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/", app.state.workers
    server.should_exit = True
    thread.join()
    listening.close()
    for worker in app.state.workers:
        worker.stop()


def get(url: str) -> tuple[int, Any, str | None]:
    """Status, answer, Retry-After."""
    try:
        with urlopen(url) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if "/api/" in url else text, None
    except HTTPError as problem:
        with problem:
            return problem.code, json.loads(problem.read()), problem.headers["Retry-After"]


def unread(worker: Worker) -> int:
    """Bytes that the worker was sent and has not read."""
    return int.from_bytes(fcntl.ioctl(worker._line.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_many_slow_requests_do_not_block_the_others(served: tuple[str, tuple[Worker, ...]]) -> None:
    url, (numbers, *_) = served
    assert get(f"{url}api/analyze?{SETTING}")[0] == 200
    os.kill(numbers._process.pid, signal.SIGSTOP)  # every number is slow from now on
    with ThreadPoolExecutor(45) as pool:
        asked = [pool.submit(get, f"{url}api/analyze?{SETTING}") for _ in range(45)]
        done = as_completed(asked)
        refused = [next(done).result() for _ in range(45 - QUESTIONS)]
        assert {status for status, *_ in refused} == {503}
        assert all("ask again" in answer["detail"] and after == str(api.RETRY) for _, answer, after in refused)
        assert get(url)[0] == get(f"{url}app.js")[0] == get(f"{url}api/tradeoff?{SETTING}")[0] == 200
        assert get(f"{url}api/tradeoff?{SETTING}&rest=true")[0] == 200
        assert sum(one.done() for one in asked) == 45 - QUESTIONS
        os.kill(numbers._process.pid, signal.SIGCONT)
        assert [one.result()[0] for one in done] == [200] * QUESTIONS


def test_a_killed_worker_answers_once_with_an_error(served: tuple[str, tuple[Worker, ...]]) -> None:
    url, (numbers, *_) = served
    expected = get(f"{url}api/analyze?{SETTING}")
    os.kill(numbers._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(get, f"{url}api/analyze?{SETTING}")
        while not unread(numbers):
            time.sleep(0.01)
        os.kill(numbers._process.pid, signal.SIGKILL)
        status, answer, _ = asked.result()
    assert status == 500, answer
    assert "killed it, or the memory ran out" in answer["detail"]
    assert get(f"{url}api/analyze?{SETTING}") == expected
