"""Every word that people meet comes from the vocabulary; every spelling of an option means the same."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer

import betastar as bs
from betastar import analyze as analysing
from betastar import calibrate as calibrating
from betastar import dpsgd, validation
from betastar.answers import settings, targets
from betastar.cli import main
from betastar.cli.options import arguments
from betastar.cli.train import TrainOptions
from betastar.runs.config import Config
from betastar.vocabulary import KEYS, METHODS, METRICS, PARAMETERS, SAMPLINGS, THREATS, parameter_of

from .command import call

#: Options that typer adds.
TYPERS = {"--help", "--install-completion", "--show-completion"}
RUN_GIVEN = {"noise_multiplier": "2", "batch_size": "50", "dataset_size": "1000", "epochs": "2"}


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        full = f"{name} {word}".strip()
        yield from commands(command, full) if hasattr(command, "commands") else [(full, command)]


COMMANDS = dict(commands(typer.main.get_command(main.app)))


def options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not set(one.opts) & TYPERS]


def json_of(*words: str) -> Any:
    done = call(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_a_word_of_the_vocabulary(name: str) -> None:
    known = {word.option: word for word in PARAMETERS.values()}
    for one in options(COMMANDS[name]):
        long = next(spelling for spelling in one.opts if spelling in known)
        assert set(one.opts) == set(known[long].spellings), "every command has every spelling"
        assert one.help, f"{long} has no help"


def test_the_options_of_train_are_the_fields_of_a_configuration() -> None:
    """Each has its option (but for what a study chooses), and leaving it out means the same."""
    given = TrainOptions(label="y", value=("1", "2"), along=("b",), synthetic_records=2000, gap=0.0, hidden=(8,))
    assert Config(**arguments(given, Config)) == Config(
        target="y", values=("1", "2"), along=("b",), records=2000, gap=0.0, hidden=(8,)
    )
    assert Config(**arguments(TrainOptions(), Config)) == Config()
    every = {one.name: "something" for one in fields(TrainOptions)}
    assert set(arguments(TrainOptions(**every), Config)) == {one.name for one in fields(Config)} - {"ledger", "monitor"}


def test_a_spelling_has_one_meaning() -> None:
    every = [spelling for word in PARAMETERS.values() for spelling in word.spellings]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_default(name: str) -> None:
    for one in options(COMMANDS[name]):
        if not one.is_flag and not callable(one.default) and one.default is not None:
            assert one.show_default is True, one.opts
    text = " ".join(call(*name.split(), "--help").stdout.split())
    for one in options(COMMANDS[name]):
        if isinstance(one.default, int | float | str) and not isinstance(one.default, bool):
            assert re.search(rf"\[default: {re.escape(str(one.default))}[];]", text), one.opts


def test_the_option_is_the_argument() -> None:
    for name, option in (("noise_multiplier", "--noise-multiplier"), ("max_grad_norm", "--max-grad-norm"), ("steps", "--steps")):
        assert PARAMETERS[name].option == option
    for name in ("noise_multiplier", "sample_rate", "steps", "batch_size", "dataset_size", "epochs"):
        assert name in calibrating.calibrate.__kwdefaults__


def lines(given: dict[str, str]) -> Iterator[list[str]]:
    """The same arguments, in each spelling."""
    most = max(len(PARAMETERS[name].spellings) for name in given)
    for i in range(most):
        yield [
            word
            for name, value in given.items()
            for word in (PARAMETERS[name].spellings[i % len(PARAMETERS[name].spellings)], value)
        ]


@pytest.mark.parametrize("command", [
    ["analyze", "--metric", "bayes_security"],
    ["compare", "--metric", "advantage"],
    ["sweep", "--metric", "success"],
    ["audit", "mechanism", "--games", "500", "--seed", "1"],
])  # fmt: skip
def test_aliases_give_identical_json(command: list[str]) -> None:
    answers = [json_of(*command, *words) for words in lines(RUN_GIVEN)]
    assert len(answers) == 2
    assert answers[0] == answers[1]


def test_aliases_of_rate_and_of_a_calibration() -> None:
    for words in (["analyze", "--noise", "2"], ["calibrate", "--target", "success<=0.6"]):
        answers = [json_of(*words, "--metric", "success", *line) for line in lines({"sample_rate": "0.01", "steps": "10"})]
        assert answers[0] == answers[1]


def keys_of(answer: Any) -> Iterator[str]:
    if isinstance(answer, dict):
        for key, value in answer.items():
            yield key
            yield from keys_of(value)
    elif isinstance(answer, list):
        for one in answer:
            yield from keys_of(one)


@pytest.mark.parametrize("words", [
    "analyze --noise 2 --rate 0.01 --steps 10 --threat attribute --distance 1",
    "calibrate --target success<=0.6 --batch 50 --records 1000 --epochs 2",
    "compare --noise 2 --rate 0.01 --steps 10 --method exact --method paper",
    "sweep --noise 1,2 --rate 0.01 --steps 10 --metric gdp_mu",
])  # fmt: skip
def test_every_json_key_is_a_word_of_the_vocabulary(words: str) -> None:
    assert set(keys_of(json_of(*words.split()))) <= {*METRICS, *PARAMETERS, *KEYS}


def test_metrics_and_methods_are_those_of_the_core() -> None:
    assert set(METHODS) == set(analysing.OWN_METHODS)
    assert tuple(SAMPLINGS) == dpsgd.SAMPLINGS
    assert set(THREATS) == set(settings.OWN_THREATS)
    risk = bs.analyze(bs.DPSGD(2.0, 0.01, 10))
    for metric in METRICS.values():
        reading: Any = getattr(risk, metric.name)
        bound = reading if metric.at is None else reading(0.01)
        assert isinstance(bound, bs.Bound)
        assert targets.parse(metric.example.split()[0]).metric == metric.name
    assert set(calibrating.conditions()) == {"delta", *METRICS} - {"epsilon"}


def test_threats_are_what_their_python_says() -> None:
    for name, word in THREATS.items():
        distance = 1.0 if name == "attribute" else None
        setting = settings.Setting(threat=name, distance=distance)
        assert eval(word.python.format(distance=distance), {"bs": bs}) == setting.attack


@pytest.mark.parametrize(("words", "said"), [
    ("analyze --noise -1 --rate 0.1 --steps 3", "--noise must be a finite number greater than 0, got -1.0. Common"),
    ("analyze --noise-multiplier -1 --rate 0.1 --steps 3", "--noise-multiplier must be a finite number greater than 0"),
    ("analyze --noise-multiplier=-1 --rate 0.1 --steps 3", "--noise-multiplier must be"),
    ("analyze --noise 1 --batch-size 30 --records 3 --epochs 3", "--batch-size must be at most --records, got 30 > 3."),
    ("analyze --noise 1 --sample-rate 0.1 --dataset-size 3 --steps 3", "--sample-rate must be left out where --batch or --"),
    ("calibrate --target success<=0.6 --sample-rate 0.1", "leave out exactly one of --noise, --sample-rate, --steps; missing: "),
    ("calibrate --target bayes_security>=0.99 --noise 0.1 --dataset-size 100 --epochs 50", "reached by choosing --batch: "),
    ("train adult -o /nowhere/x --scope nothing", "--scope must be one of 'batch', 'dataset', got 'nothing'."),
    ("train adult -o /nowhere/x --gap 3", "--gap must be between 0 and 2"),
    ("sweep --noise-multiplier 1:2 --rate 0.1 --steps 3", "--noise-multiplier must be a number, a list as 1,2,4 or a grid"),
])  # fmt: skip
def test_an_error_names_the_spelling_that_was_used(words: str, said: str) -> None:
    done = call(*words.split())
    assert done.returncode == 2
    assert said in done.stderr


def test_an_error_carries_its_argument() -> None:
    with pytest.raises(ValueError, match="noise_multiplier must be a finite number") as caught:
        bs.DPSGD(-1.0, 0.1, 3)
    problem = caught.value
    assert isinstance(problem, validation.ArgumentError)
    assert problem.argument == "noise_multiplier"
    assert problem.spelled(lambda name: f"<{name}>").startswith("<noise_multiplier> must be")
    again = pickle.loads(pickle.dumps(problem))
    assert (str(again), again.argument) == (str(problem), "noise_multiplier")
    with pytest.raises(TypeError) as other:
        bs.DPSGD("{noise}", 0.1, 3)  # type: ignore[arg-type]
    assert "got '{noise}'" in str(other.value), "braces in a value are no names"


@pytest.mark.parametrize(("name", "former", "now"), [
    ("train", "--target", "--label"),
    ("train", "--records", "--synthetic-records"),
    ("report", "--records", "--list-records"),
])  # fmt: skip
def test_former_spellings_are_understood_but_not_shown(name: str, former: str, now: str) -> None:
    command = COMMANDS[name]
    help_text = call(name, "--help").stdout
    assert now in help_text
    assert f"{former} " not in help_text
    given = [] if now == "--list-records" else ["2000"]
    outcomes = []
    for option in (former, now):
        words = [option, *given] + (["x"] if name == "report" else ["-o", "x"])
        with command.make_context(name, words) as context:
            outcomes.append(context.params)
    assert outcomes[0] == outcomes[1]
    assert "2000" in map(str, outcomes[0].values()) or outcomes[0].get("list_records") is True


def test_arguments_are_found() -> None:
    assert parameter_of("distances") is PARAMETERS["distance"]
    assert parameter_of("nothing") is None


def test_a_number_has_one_precision() -> None:
    """The sentence, the table and what is demanded say the same digits."""
    done = call(
        "analyze",
        "--noise",
        "3.51",
        "--batch",
        "256",
        "--records",
        "26048",
        "--epochs",
        "20",
        "--require",
        "bayes_security>=0.95",
    )
    share = re.search(r"at most (\S+) %", done.stdout)
    beta = re.search(r"Bayes security β\*\s+(\S+)", done.stdout)
    assert share is not None
    assert beta is not None
    assert re.search(rf"right guesses, prior 0.5\s+{share[1]} %", done.stdout)
    assert done.stderr.endswith(f"the number to rely on is {beta[1]}.\n")
    tiny = call("analyze", "--noise", "20", "--rate", "0.0001", "--steps", "10").stdout
    share = re.search(r"at most (\S+) %", tiny)
    assert share is not None
    assert float(share[1]) > 50.0
    assert re.search(rf"right guesses, prior 0.5\s+{share[1]} %", tiny), "small excesses, too"
