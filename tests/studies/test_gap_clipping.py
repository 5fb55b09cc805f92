"""The study of gap clipping: its cases, and one of its runs, cut short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from betastar.runs import Config
from studies.gap_clipping import study as gap_clipping

pytestmark = pytest.mark.slow


def test_cases_of_the_study() -> None:
    cases = gap_clipping.cases()
    assert len({case.folder for case in cases}) == len(cases)
    adult_cases = [case for case in cases if case.study == "adult"]
    assert {case.secret for case in adult_cases} == {"none", *gap_clipping.SECRETS}
    assert {case.config.gap for case in adult_cases if case.kind == "gap"} == set(gap_clipping.GAPS)
    assert all(case.config.epochs == 20 for case in adult_cases)


def test_groups_of_a_run(tmp_path: Path) -> None:
    """One run of the study, cut short: accuracy of groups adds up to accuracy of all, and a finished run is not repeated."""
    config = Config(sensitive="sex", gap=0.1, epochs=1, noise_multiplier=3.51)
    short = gap_clipping.Case("adult", "sex", "gap", config)
    result = gap_clipping._one(short, 0, tmp_path / "one", torch.get_num_threads())
    assert result["gap"] == 0.1
    for name in gap_clipping.SECRETS:
        sizes, right = zip(*result["groups"][name].values(), strict=True)
        assert sum(sizes) == 6513
        assert sum(right) / 6513 == pytest.approx(result["accuracy"])
    before = (tmp_path / "one" / "result.json").stat().st_mtime_ns
    assert gap_clipping._one(short, 0, tmp_path / "one", 1) == json.loads(json.dumps(result))
    assert (tmp_path / "one" / "result.json").stat().st_mtime_ns == before
