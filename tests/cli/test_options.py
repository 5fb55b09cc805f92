"""The options of the command: each has help and its default, every spelling means the same, errors use the person's."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import betastar as bs
from betastar import validation
from betastar.cli import main
from betastar.cli.answers import SHORT, Question
from betastar.cli.options import HINTS, OTHER_NAMES, THREATS
from betastar.dpsgd import NUMBERS
from betastar.risk import METRICS

from ..command import call

#: Options that typer adds.
TYPERS = {"--help", "--install-completion", "--show-completion"}


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


SHOWN = {name: command for name, command in COMMANDS.items() if name not in main.MOVED}


@pytest.mark.parametrize("name", SHOWN)
def test_help_shows_every_option_and_its_default(name: str) -> None:
    text = " ".join(call(*name.split(), "--help").stdout.split())
    for one in options(SHOWN[name]):
        assert one.help, one.opts
        assert max(one.opts, key=len).replace("-", "_").strip("_") in (one.name, "with"), "the long option is the argument"
        if isinstance(one.default, int | float | str) and not isinstance(one.default, bool):
            assert re.search(rf"\[default: {re.escape(str(one.default))}[];]", text) or not one.default, one.opts


def test_the_help_is_short() -> None:
    assert len(options(SHOWN["train"])) <= 25
    lines = call("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for group in ("Table:", "Training:", "Protection:", "Several models:", "Options:"):
        assert group in call("train", "--help").stdout.splitlines()


def test_a_spelling_has_one_meaning() -> None:
    meaning: dict[str, str] = {}
    for command in SHOWN.values():
        for one in options(command):
            for spelling in one.opts:
                assert meaning.setdefault(spelling, one.name) == one.name, spelling


def test_names_that_the_command_line_knows_are_those_of_python() -> None:
    every = {one.name for command in SHOWN.values() for one in options(command)}
    assert {*HINTS, *SHORT, *NUMBERS} <= every
    assert set(OTHER_NAMES.values()) - {"with"} <= every
    for name in THREATS:
        question = Question(2.0, 0.01, steps=10, threat=name, distance=1.0 if name == "attribute" else None)
        again = json_of(*question.command().split()[1:])
        assert again["bayes_security"]["lower"] == question.risk.bayes_security.lower
    risk = bs.analyze(bs.DPSGD(2.0, 0.01, 10))
    for metric in METRICS.values():
        reading: Any = getattr(risk, metric.name)
        assert isinstance(reading if metric.at is None else reading(0.01), bs.Bound)
        assert bs.Target.parse(metric.example.split()[0]).metric == metric.name


LONG = "--noise-multiplier 2 --batch-size 50 --dataset-size 1000 --epochs 2"


@pytest.mark.parametrize("command", [
    "analyze --metric bayes_security",
    "sweep --metric success",
    "sweep --metric advantage --setting prior=0.3",
    "audit mechanism --games 500 --seed 1",
])  # fmt: skip
def test_aliases_give_identical_json(command: str) -> None:
    short = LONG.replace("-multiplier", "").replace("-size", "").replace("--dataset", "--records")
    assert json_of(*command.split(), *LONG.split()) == json_of(*command.split(), *short.split())


def test_aliases_of_rate_and_of_a_calibration() -> None:
    for words in (["analyze", "--noise", "2"], ["calibrate", "--target", "success<=60%"]):
        answers = [
            json_of(*words, "--metric", "success", option, "0.01", "--steps", "10") for option in ("--rate", "--sample-rate")
        ]
        assert answers[0] == answers[1]


@pytest.mark.parametrize(("words", "said"), [
    ("analyze --noise -1 --rate 0.1 --steps 3", "--noise must be a finite number greater than 0, got -1.0. Common"),
    ("analyze --noise-multiplier -1 --rate 0.1 --steps 3", "--noise-multiplier must be a finite number greater than 0"),
    ("analyze --noise-multiplier=-1 --rate 0.1 --steps 3", "--noise-multiplier must be"),
    ("analyze --noise 1 --batch-size 30 --records 3 --epochs 3", "--batch-size must be at most --records, got 30 > 3."),
    ("analyze --noise 1 --sample-rate 0.1 --dataset-size 3 --steps 3", "--sample-rate must be left out with --batch or --"),
    ("calibrate --target success<=0.6 --sample-rate 0.1", "leave out exactly one of --noise, --sample-rate, --steps; missing: "),
    ("calibrate --target bayes_security>=0.99 --noise 0.1 --dataset-size 100 --epochs 50", "reached by choosing --batch: "),
    ("train adult -o /nowhere/x --scope nothing", "--scope must be one of 'batch', 'dataset', got 'nothing'."),
    ("train adult -o /nowhere/x --attribute-target beta", "--attribute-target must be a metric and its limit"),
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
