"""The seed of a run: nobody guesses it, and whoever has it repeats the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from betastar.cli.main import app
from betastar.report.facts import load
from betastar.report.statement import statement
from betastar.runs import seeds
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import opened, train
from betastar.runs.reading import StudyError
from betastar.runs.study import split

from ..trained_runs import TrainedRuns

LARGE = 0x9E3779B97F4A7C15F39CC0605CEDC834


def noise(seed: int, use: str = "noise") -> list[float]:
    seeds.start(seed, use)
    return torch.randn(32).tolist()


@pytest.fixture
def config(runs: TrainedRuns) -> Config:
    return runs.people(epochs=1)


@pytest.fixture
def run(config: Config, trained: Callable[[Config], RunFolder]) -> RunFolder:
    """A run without a seed of its own."""
    return trained(config)


def test_small_seeds_are_those_of_torch() -> None:
    for seed in (0, 1, 2**32 - 1):
        torch.manual_seed(seed)
        assert torch.randn(32).tolist() == noise(seed)
        assert seeds.derive(seed, "split") == seed


def test_every_bit_of_a_large_seed_counts() -> None:
    """With torch.manual_seed the upper 32 bits of 64 make no difference."""
    kept = noise(LARGE)
    assert noise(LARGE) == kept
    for bit in (0, 31, 32, 63, 64, 127):
        assert noise(LARGE ^ 1 << bit) != kept
        assert split(1000, LARGE ^ 1 << bit) != split(1000, LARGE)
    assert noise(LARGE, "weights") != kept
    assert split(1000, LARGE) == split(1000, LARGE)


def test_the_whole_state_comes_from_the_seed() -> None:
    """The same words in NumPy's Mersenne twister give the same numbers: nothing of the 32-bit start is left."""
    seeds.start(LARGE, "noise")
    words = torch.get_rng_state().numpy()[seeds.WORDS].view(np.uint64).astype(np.uint32)
    assert len(np.unique(words)) > 600
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    assert (torch.rand(2000) * 2**24).tolist() == [int(twister.random_raw()) % 2**24 for _ in range(2000)]


def test_an_unknown_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_rng_state", lambda: torch.zeros(5056, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="keeps its random state in an unknown way: give a seed below 4294967296"):
        seeds.start(LARGE, "noise")


def test_drawn_seeds_are_not_guessed() -> None:
    drawn = {seeds.draw() for _ in range(100)}
    assert len(drawn) == 100
    assert all(2**127 <= seed < 2**128 and not seeds.guessable(seed) for seed in drawn)
    assert all(map(seeds.guessable, (0, 1, 20_240_131, 2**63, None, "0")))


def test_a_seed_that_was_drawn_is_not_that_of_the_noise(config: Config, tmp_path: Path) -> None:
    """Noise then comes from the operating system, and is another one each time; a seed that was given gives the same noise."""
    same = {}
    for seed in (None, 5):
        digests = []
        for _ in range(2):  # the second one goes on with the folder of the first
            with opened(replace(config, seed=seed), RunFolder(tmp_path / str(seed)), resume=True) as training:
                assert training is not None
                digests.append(training.training._noise.digest)
        same[seed] = digests[0] == digests[1]
    assert same == {None: False, 5: True}


def test_a_run_draws_its_seed_and_deletes_it(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(seeds, "draw", lambda draw=seeds.draw: drawn.append(draw()) or drawn[-1])
    first = train(config, tmp_path / "first")
    assert 2**127 <= drawn[0] < 2**128
    assert first.config.seed is None
    for path in first.path.iterdir():
        assert str(drawn[0]).encode() not in path.read_bytes(), path


def test_resume_takes_the_seed_of_the_folder(config: Config, run: RunFolder, tmp_path: Path) -> None:
    with opened(config, RunFolder(tmp_path / "new"), resume=True) as training:  # nothing is there yet
        assert training is not None
        seed = training.config.seed
    first = RunFolder(tmp_path / "new")
    assert first.config.seed is None
    assert first.seed == seed
    with opened(config, first, resume=True) as training:
        assert training is not None
        assert training.config.seed == seed
    train(config, first.path, resume=True)
    assert first.data["seed"] == seeds.derive(seed, "split")
    with pytest.raises(StudyError, match=r"is not known any more: it was deleted when the run was complete"):
        _ = first.seed
    with pytest.raises(StudyError, match=r"holds another run: its seed is not 1\.$"):
        train(replace(config, seed=1), first.path, resume=True)
    with pytest.raises(StudyError, match="already holds a run"):
        train(config, first.path)


@pytest.mark.parametrize("seed", [-1, 0.5, True, "7"])
def test_what_is_no_seed(config: Config, tmp_path: Path, seed: object) -> None:
    with pytest.raises((ValueError, TypeError), match="seed must be a whole number of at least 0, got"):
        train(replace(config, seed=seed), tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_the_report_warns_of_a_seed_that_can_be_guessed(config: Config, run: RunFolder, tmp_path: Path) -> None:
    def noise_of(folder: RunFolder) -> str:
        return dict(statement(load(folder.path)))["Noise"]

    assert "deleted with the state of the generator when the run was complete" in noise_of(run)
    large = train(replace(config, seed=LARGE), tmp_path / "large")
    assert "It was given (--seed) and is in config.json" in noise_of(large)
    assert str(LARGE) not in str(statement(load(large.path)))
    small = train(replace(config, seed=7), tmp_path / "run")
    assert "is small enough to be guessed, which is as good as known" in noise_of(small)


def test_the_command_can_be_given_twice(config: Config, tmp_path: Path) -> None:
    """As `make demo` does: with --resume and without a seed."""
    fixed = ["train", config.study, "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "1"]
    words = [*fixed, "--batch-size", "40", "--resume", "-o", str(tmp_path / "demo")]
    texts = []
    for _ in range(2):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0
        texts.append(done.stdout)
    assert texts[0] == texts[1]
