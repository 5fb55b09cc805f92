"""tune: settings are drawn before, losers are not kept, a search is resumed as drawn, and what voids the proof is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import optuna
import pytest
import torch
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import RandomSampler, TPESampler
from torch.utils.data import TensorDataset

import betastar as bs
from betastar.training import Budget, PrivateTraining, Secret, tune
from betastar.training.tune import SEARCH, WINNER, space_of

DATA = TensorDataset(torch.cat([torch.arange(40)[:, None] % 2, torch.randn(40, 2)], 1), torch.arange(40) % 2)
SPACE = {"lr": "0.01:1log", "width": [2, 4]}


def make(settings: dict[str, Any], **more: Any) -> PrivateTraining:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
    given = {"batch_size": 10, "epochs": 1, "noise_multiplier": 3.0, **more}
    return PrivateTraining(model, optimizer, DATA, torch.nn.CrossEntropyLoss(), **given)


def rate(training: PrivateTraining) -> float:
    return float(training.optimizer.param_groups[0]["lr"])


def test_the_best_one_is_kept_and_the_guarantee_is_of_all() -> None:
    tried: list[dict[str, Any]] = []

    def making(settings: dict[str, Any]) -> PrivateTraining:
        tried.append(settings)
        return make(settings)

    winner = tune(making, SPACE, 6, score=rate)
    assert len(tried) == 6
    assert winner.settings == max(tried, key=lambda one: one["lr"])
    assert winner.score == winner.settings["lr"]
    assert set(winner.weights) == {"weight", "bias"}
    run = bs.DPSGD(3.0, 0.25, 4)
    assert winner.run == bs.best_of(run, 6)
    assert winner.membership.bayes_security == bs.analyze(bs.best_of(run, 6), method="certified").bayes_security
    assert str(winner).startswith("Proved: best of 6: an attacker who asks whether a record was trained on is right at most ")
    assert len({one["lr"] for one in tried}) == 6
    assert all(0.01 <= one["lr"] <= 1.0 and one["width"] in (2, 4) for one in tried)


def test_persons_gaps_and_a_random_number_of_trials() -> None:
    secret = Secret.column(0, values=[0.0, 1.0], name="sign")
    protected = {"secret": secret, "gap": 0.1, "records": 2}
    winner = tune(lambda settings: make(settings, **protected), {"lr": [0.1]}, bs.Trials.geometric(2), score=rate)
    assert winner.membership.bayes_security.lower < winner.attributes["sign"].bayes_security.lower < 1.0
    assert "the 2 records of a person" in str(winner)
    assert "who guesses sign" in str(winner)


def test_a_search_goes_on_with_what_was_drawn(tmp_path: Path) -> None:
    folder, tried = tmp_path / "search", []

    def stops(at: int) -> Callable[[PrivateTraining], float]:
        def score(training: PrivateTraining) -> float:
            tried.append(rate(training))
            if len(tried) == at:
                raise KeyboardInterrupt
            return tried[-1]

        return score

    with pytest.raises(KeyboardInterrupt):
        tune(make, SPACE, 5, score=stops(3), folder=folder)
    drawn = [one["lr"] for one in json.loads((folder / SEARCH).read_text())["drawn"]]
    assert tried == drawn[:3]
    for other, said in ((7, "its trials is"), (bs.Trials.poisson(5), "its trials is")):
        with pytest.raises(ValueError, match=said):
            tune(make, SPACE, other, score=rate, folder=folder)
    with pytest.raises(ValueError, match="its space is"):
        tune(make, {**SPACE, "width": [2, 8]}, 5, score=rate, folder=folder)
    winner = tune(make, SPACE, 5, score=stops(-1), folder=folder)
    assert tried == [*drawn[:3], *drawn[2:]], "the third was not finished, and the first two are not done again"
    assert winner.score == max(drawn)
    kept = torch.load(folder / WINNER, weights_only=True)
    assert set(kept) == {"settings", "score", "weights"}
    assert torch.equal(kept["weights"]["bias"], winner.weights["bias"])
    told = json.loads((folder / SEARCH).read_text())
    assert told["guarantee"] == str(winner)
    assert not any(str(one) in json.dumps(told) for one in drawn if one != winner.score), "nothing of the others is left"
    assert sorted(one.name for one in folder.iterdir()) == [".lock", SEARCH, WINNER]
    with pytest.raises(ValueError, match="complete: trials cannot be added"):
        tune(make, SPACE, 5, score=rate, folder=folder)


def asking(trial: Any) -> PrivateTraining:
    return make({"lr": trial.suggest_float("lr", 0.01, 1.0, log=True)})


def test_a_random_study_is_charged_the_best_of_several() -> None:
    study = optuna.create_study(direction="maximize", sampler=RandomSampler(seed=1), pruner=NopPruner())
    winner = tune(asking, study, 4, score=rate)
    assert winner.run == bs.best_of(bs.DPSGD(3.0, 0.25, 4), 4)
    assert winner.settings == {"lr": winner.score}
    assert winner.score == max(one.params["lr"] for one in study.trials)
    assert all(one.values is None for one in study.trials), "scores of losers are not kept"
    poisson = optuna.create_study(direction="maximize", sampler=RandomSampler(), pruner=NopPruner())
    assert tune(asking, poisson, bs.Trials.geometric(2), score=rate).run.parts[0].trials.law == "geometric"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "study",
    [{"sampler": TPESampler(seed=1)}, {"sampler": RandomSampler(), "pruner": MedianPruner()}],
    ids=["a sampler that learns", "a pruner"],
)
def test_other_samplers_and_pruners_are_charged_all_models(study: dict[str, Any]) -> None:
    made = optuna.create_study(direction="maximize", **{"pruner": NopPruner(), **study})

    def pruned(training: PrivateTraining) -> float:
        if len(made.trials) == 2:
            raise optuna.TrialPruned
        return rate(training)

    winner = tune(asking, made, 4, score=pruned)
    assert winner.run == bs.DPSGD(3.0, 0.25, 16)
    assert winner.membership.bayes_security == bs.analyze(bs.DPSGD(3.0, 0.25, 16), method="certified").bayes_security
    assert str(winner).startswith(
        "Proved: all models together: an attacker who asks whether a record was trained on is right at most "
    )
    assert [one.value for one in made.trials if one.value is not None] == [
        one.params["lr"] for i, one in enumerate(made.trials) if i != 1
    ]
    assert winner.score == made.best_value


def prunes(trial: Any) -> PrivateTraining:
    raise optuna.TrialPruned


@pytest.mark.parametrize(
    ("study", "more", "said"),
    [
        (
            {"direction": "minimize"},
            {},
            "space must be a new study with direction='maximize', got one with 0 trials and minimize",
        ),
        ({}, {"jobs": 2}, "jobs must be left out with an Optuna study, got 2"),
        ({}, {"folder": "here"}, "folder must be left out with an Optuna study, got 'here'"),
        ({}, {"make_training": prunes}, "must not prune a trial of a random search"),
        ({"sampler": TPESampler()}, {"trials": bs.Trials.poisson(3)}, "trials must be a number with TPESampler and NopPruner"),
        ({"sampler": TPESampler()}, {"make_training": prunes}, "every trial was pruned"),
    ],
)
def test_studies_that_are_refused(study: dict[str, Any], more: dict[str, Any], said: str) -> None:
    made = optuna.create_study(**{"direction": "maximize", "sampler": RandomSampler(), "pruner": NopPruner(), **study})
    given: dict[str, Any] = {"trials": 2, "make_training": asking, **more}
    with pytest.raises(ValueError, match=said):
        tune(given.pop("make_training"), made, given.pop("trials"), score=rate, **given)
    assert not (Path("here")).exists()


def test_a_study_with_trials_is_refused() -> None:
    study = optuna.create_study(direction="maximize", sampler=RandomSampler(), pruner=NopPruner())
    study.enqueue_trial({"lr": 0.5})
    with pytest.raises(ValueError, match=r"must be a new study .* got one with 1 trials"):
        tune(asking, study, 2, score=rate)


def test_jobs(tmp_path: Path) -> None:
    with joblib.parallel_config(backend="threading"):
        winner = tune(make, SPACE, 5, score=rate, folder=tmp_path / "search", jobs=2)
    assert winner.run == bs.best_of(bs.DPSGD(3.0, 0.25, 4), 5)


ONE = torch.nn.Linear(3, 2)


def again(settings: dict[str, Any]) -> PrivateTraining:
    loss = torch.nn.CrossEntropyLoss()
    return PrivateTraining(ONE, torch.optim.SGD(ONE.parameters(), 0.1), DATA, loss, batch_size=10, epochs=1, noise_multiplier=3.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"make_training": lambda settings: make(settings, seed=1)}, "make_training must leave out seed"),
        ({"make_training": lambda settings: make(settings, epochs=None)}, "make_training must give epochs or steps"),
        ({"make_training": lambda settings: make(settings, noise_multiplier=1.0 + settings["lr"])}, "with the same noise"),
        ({"make_training": lambda settings: make(settings).fit()}, "must make a new model and a new PrivateTraining"),
        ({"make_training": lambda settings: None}, "make_training must return a PrivateTraining, got None"),
        (
            {
                "make_training": lambda settings: make(
                    settings, secret=Secret.column(0, values=[0.0, 1.0], name="x"), budget=Budget(0.999), epochs=None, steps=4
                )
            },
            "make_training must leave out budget|plan",
        ),
        ({"score": lambda training: float("nan")}, "score must be a finite number for every model.*got nan"),
        ({"score": lambda training: None}, "score must be a finite number"),
        ({"space": {}}, "space must be a mapping .* at least one setting, got {}"),
        ({"space": {"lr": []}}, "space of lr must be a list of at least one value"),
        ({"space": {"lr": "1:0"}}, "space of lr must be a range as 0:1"),
        ({"space": {"lr": "0:1log"}}, "space of lr must be a range .* positive ends"),
        ({"space": {"lr": 3}}, "space of lr must be"),
        ({"trials": 0}, "trials must be a whole number of at least 1, got 0"),
        ({"trials": 1.5}, "trials must be a whole number"),
        ({"jobs": 0}, "jobs must be a number of at least 1, or -1"),
    ],
)
def test_refused(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"make_training": make, "space": SPACE, "trials": 3, "score": rate} | change
    with pytest.raises((TypeError, ValueError), match=said):
        tune(given["make_training"], given["space"], given["trials"], score=given["score"], jobs=given.get("jobs", 1))


@pytest.mark.filterwarnings("ignore:this model has had")
def test_a_model_that_is_trained_again_is_refused() -> None:
    with pytest.raises(ValueError, match="must make a new model"):
        tune(again, SPACE, 2, score=rate)


def test_another_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="folder must be new or empty, or hold a search"):
        tune(make, SPACE, 2, score=rate, folder=tmp_path)
    with pytest.raises(ValueError, match="must have numbers, words and lists only"):
        tune(make, {"lr": [0.1], "kind": [object()]}, 2, score=rate, folder=tmp_path / "new")


def test_what_settings_are_drawn_from() -> None:
    draws = space_of(
        {"a": "1,2,tanh", "b": "-1:1", "c": "1e-4:1e-2log", "d": lambda generator: generator.normal(), "e": [(1, 2)]}
    )
    generator = np.random.default_rng(1)
    many = [{name: draw(generator) for name, draw in draws.items()} for _ in range(3000)]
    assert {one["a"] for one in many} == {1, 2, "tanh"}
    assert np.mean([one["a"] == 2 for one in many]) == pytest.approx(1 / 3, abs=0.05)
    assert np.mean([one["b"] for one in many]) == pytest.approx(0.0, abs=0.06)
    assert np.mean([np.log10(one["c"]) for one in many]) == pytest.approx(-3.0, abs=0.06)
    assert many[0]["e"] == (1, 2)
