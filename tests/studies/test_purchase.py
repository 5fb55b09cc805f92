"""Purchase-100: the archive is read, a broken one is refused in words, and the stand-in has its shape."""

from __future__ import annotations

import gzip
import http.server
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from betastar.runs import StudyError
from studies.purchase import load, purchase, synthetic

pytestmark = pytest.mark.slow


def rows(number: int = 60) -> str:
    bits, labels = synthetic(0, number)
    return "".join(f"{int(y) + 1}," + ",".join(map(str, x.tolist())) + "\n" for x, y in zip(bits, labels, strict=True))


def test_the_archive_in_every_packing(tmp_path: Path) -> None:
    bits, labels = synthetic(0, 60)
    plain = tmp_path / "dataset_purchase"
    plain.write_text(rows())
    packed = tmp_path / "dataset_purchase.gz"
    packed.write_bytes(gzip.compress(rows().encode()))
    ball = tmp_path / "dataset_purchase.tgz"
    with tarfile.open(ball, "w:gz") as file:
        file.add(plain, "dataset_purchase")
    for path in (plain, packed, ball):
        x, y = load(path)
        assert torch.equal(x, bits)
        assert torch.equal(y, labels)
    study = purchase(plain)
    assert study.name == "Purchase-100"
    assert (len(study.train), len(study.test), study.columns, len(study.classes)) == (48, 12, 600, 100)


def test_archives_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "purchase.csv"
    with pytest.raises(StudyError, match=r"no file .*purchase\.csv: give the path or the URL"):
        load(path)
    path.write_text(rows()[:-700])
    with pytest.raises(StudyError, match="truncated or no Purchase-100 table"):
        load(path)
    path.write_text("1,0,1\n2,1,1\n")
    with pytest.raises(StudyError, match="has 3 columns and 2 rows; expected a label and 600 bits"):
        load(path)
    path.write_text(rows(3).replace(",1", ",2", 1))
    with pytest.raises(StudyError, match=r"labels from 1 to 100 and bits"):
        load(path)
    path.write_text(rows(3))
    with pytest.raises(StudyError, match=r"has the SHA-256 [0-9a-f]{64}, not abc"):
        load(path, checksum="abc")
    cut = tmp_path / "cut.tgz"
    with tarfile.open(cut, "w:gz") as file:
        file.add(path, "purchase")
    cut.write_bytes(cut.read_bytes()[:-300])
    with pytest.raises(StudyError, match="truncated"):
        load(cut)


@contextmanager
def server(body: bytes, broken: list[int]) -> Iterator[tuple[str, list[str | None]]]:
    """Serves one file with ranges; breaks off after so many bytes, as often as the list says."""
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Range")
            asked.append(given)
            start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
            part = body[start:]
            self.send_response(206 if given else 200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part[: broken.pop(0)] if broken else part)

        def log_message(self, *args: Any) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/purchase.csv", asked
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_a_download_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    body = rows().encode()
    with server(body, [5000]) as (url, asked):
        with pytest.raises(StudyError, match=r"broke off|could not be downloaded"):
            load(url, folder=tmp_path)
        assert not (tmp_path / "purchase.csv").exists()
        x, _ = load(url, folder=tmp_path)
        assert asked == [None, "bytes=5000-"]
        assert len(x) == 60
        load(url, folder=tmp_path)
        assert len(asked) == 2  # it is here
    (tmp_path / "purchase.csv").unlink()
    with pytest.raises(StudyError, match="could not be downloaded"):
        load(url, folder=tmp_path)


def test_the_stand_in_says_that_it_is_one() -> None:
    study = purchase(records=2000)
    assert study.name == "Purchase-100 (synthetic)"
    assert study.columns == 600
    assert set(study.train.tensors[0].unique().tolist()) == {0.0, 1.0}


def test_purchase_has_its_items_as_columns() -> None:
    study = purchase(records=1000, drop=["7"])
    assert study.encoder is not None
    bits = pd.DataFrame(np.ones((3, 600), dtype=int))
    inputs = study.encoder.encode(bits)
    assert inputs.shape == (3, 600)
    assert inputs[:, 7].tolist() == [0.0] * 3
    assert inputs.sum() == 3 * 599


def test_items_that_are_not_there() -> None:
    with pytest.raises(StudyError, match="items 0 to 599"):
        purchase(records=2000, drop=("600",))
