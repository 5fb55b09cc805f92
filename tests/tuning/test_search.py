"""betastar train --trials: one split, the winner alone is kept, the guarantee of the whole stands in report and model card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
from betastar.report import model_card, statement
from betastar.report.facts import load, public
from betastar.report.report import summarise, write
from betastar.runs import Config, StudyError
from betastar.runs import search as searching
from betastar.runs.search import SEARCH, TRIALS, search
from betastar.threats import Membership

from ..command import call
from ..trained_runs import people


@pytest.fixture
def config(tmp_path: Path) -> Config:
    table = tmp_path / "people.csv"
    people(200).to_csv(table, index=False)
    asked: dict[str, Any] = {"label": "rich", "sensitive": "age", "drop": ("name",), "epochs": 1, "batch_size": 40}
    return Config(
        study=str(table), noise_multiplier=4.0, hidden=(4,), trials=3, search=("lr=1e-3:1e-1log", "hidden=4,8x4"), **asked
    )


def test_the_winner_is_kept_with_the_guarantee_of_the_whole(config: Config, tmp_path: Path) -> None:
    told: list[Any] = []
    folder = search(config, tmp_path / "best", tell=told.append)
    assert folder.complete
    assert sorted(one["phase"] for one in told) == [f"training model {i} of 3" for i in (1, 2, 3)], "and nothing of how it goes"
    left = {one.name for one in folder.path.iterdir()}
    assert not left & {SEARCH, TRIALS, "seed.json", "checkpoint.pt", "steps.jsonl", "ledger.csv"}
    assert folder.config.hidden in ((4,), (8, 4))
    assert 1e-3 <= (folder.config.learning_rate or 0.0) <= 1e-1
    facts = load(folder.path)
    best = bs.best_of(facts.run, 3)
    assert facts.membership.lower == float(bs.analyze(best, method="certified").bayes_security.lower)
    assert facts.membership.lower < float(bs.analyze(facts.run).bayes_security.lower)
    assert facts.add_remove is not None
    assert facts.add_remove.lower == float(bs.analyze(best, Membership("add-remove"), "certified").bayes_security.lower)
    assert statement.verdicts(facts)[0].sentence.startswith("Best of 3: An attacker")
    assert statement.next_steps(facts) == []
    assert public(facts).membership.lower == facts.membership.lower
    card = model_card.write(folder.path).read_text()
    assert "Best of 3: An attacker" in card
    assert "the best of 3, if nothing of the others is ever seen" in card
    assert "those by which the parameters were chosen" not in card
    text = summarise(folder.path).read_text()
    assert "Best of 3: An attacker" in text
    assert "--trials 3" in facts.command
    assert "the paper" not in str(statement.metrics(facts))
    with pytest.raises(StudyError, match="already holds a run"):
        search(config, folder.path)
    assert search(config, folder.path, resume=True).status == folder.status
    with pytest.raises(StudyError, match="its trials is 3"):
        search(replace(config, trials=4), folder.path, resume=True)


@pytest.mark.slow
def test_a_report_of_the_winner(config: Config, tmp_path: Path) -> None:
    folder = search(config, tmp_path / "best")
    write(folder.path, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "Best of 3: An attacker" in text
    assert "This model is the best of 3." in text
    assert "closed form" not in text


def test_a_search_goes_on_with_what_was_drawn(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, begun = tmp_path / "best", searching._trial, []

    def trial(*given: Any) -> float:
        begun.append((given[2], given[3], given[5].fingerprint()))
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(searching, "_trial", trial)
    with pytest.raises(KeyboardInterrupt):
        search(config, path)
    drawn = json.loads((path / SEARCH).read_text())["drawn"]
    with pytest.raises(StudyError, match="already holds a search"):
        search(config, path)
    for other in (replace(config, trials=5), replace(config, search=("lr=0.1,0.2",))):
        with pytest.raises(StudyError, match="holds another search"):
            search(other, path, resume=True)
    folder = search(config, path, resume=True)
    assert folder.complete
    assert [number for number, *_ in begun] == [0, 1, 1, 2]
    assert [one for _, one, _ in begun] == [drawn[0], drawn[1], drawn[1], drawn[2]]
    assert len({split for *_, split in begun}) == 1, "one split: the test records are trained on by no model"


def test_a_gap_and_jobs(config: Config, tmp_path: Path) -> None:
    import joblib

    with joblib.parallel_config(backend="threading"):
        folder = search(replace(config, gap=0.1, trials=2), tmp_path / "best", jobs=2)
    facts = load(folder.path)
    proved = bs.analyze(bs.best_of(facts.run, 2), facts.attributes[0].threat, "certified")
    assert facts.attributes[0].lower == float(proved.bayes_security.lower)
    assert (
        "Best of 2: An attacker who knows everything about a record except the value of 'age'"
        in statement.verdicts(facts)[1].sentence
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"search": ("noise=1,2",)}, "--search must be as in lr=.*got 'noise=1,2'"),
        ({"search": ("lr",)}, "--search must be as in"),
        ({"search": ("lr=1,2", "learning-rate=1,2")}, "twice"),
        ({"search": ("lr=2:1",)}, "space of learning_rate must be a range"),
        ({"search": ("lr=fast",)}, "numbers greater than 0 for learning_rate, got 'fast'"),
        ({"search": ("hidden=4x0",)}, "widths of layers"),
        ({"seed": 1}, "--trials must have no --seed"),
        ({"trials": 0}, "trials must be a whole number of at least 1"),
    ],
)
def test_refused(config: Config, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        search(replace(config, **change), tmp_path / "best")
    assert not (tmp_path / "best" / TRIALS).exists()


def test_the_command(config: Config, tmp_path: Path) -> None:
    words = ["train", config.study, "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "1", "--batch", "40"]
    words += ["--noise", "4", "--hidden", "4", "-o", str(tmp_path / "best")]
    done = call(*words, "--trials", "2", "--search", "lr=0.01,0.1")
    assert done.returncode == 0, done.stderr
    assert "Best of 2" in (tmp_path / "best" / "summary.md").read_text()
    refused = call(*words, "--search", "lr=0.01,0.1")
    assert refused.returncode != 0
    assert "--search goes with --trials." in refused.stderr
