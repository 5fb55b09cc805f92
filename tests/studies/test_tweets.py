"""The study of tweets in a small form: its cases start from the same weights, and what is done is not done again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from betastar.runs import RunFolder
from studies.tweets import study as tweets
from studies.tweets.page import write

pytestmark = pytest.mark.slow


def test_the_study_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tweets, "QUICK", replace(tweets.FULL, batch_size=80, epochs=1, every=1))
    monkeypatch.setattr(tweets, "QUICK_SAMPLE", 400)
    told: list[str] = []
    results = tweets.study(tmp_path, quick=True, tell=told.append)
    assert told == ["1 of 3: plain, seed 0", "2 of 3: dp-sgd, seed 0", "3 of 3: gap-0.1, seed 0"]
    plain, watched, gap = results["runs"]
    assert plain["baseline"] == watched["baseline"] == gap["baseline"]
    assert gap["attribute"] > 0.95
    assert watched["membership"] == gap["membership"]
    assert watched["membership"] <= watched["attribute"]
    assert watched["concerned"] == RunFolder(tmp_path / "runs" / "dp-sgd" / "seed-0").status.concerned
    assert sum(map(len, watched["exposures"].values())) <= watched["concerned"]
    assert "DP-SGD, gap 0.1" in write(tmp_path).read_text()
    monkeypatch.setattr(tweets, "_private", None)
    monkeypatch.setattr(tweets, "_without_privacy", None)
    assert tweets.study(tmp_path, quick=True) == results  # it goes on where it stopped
