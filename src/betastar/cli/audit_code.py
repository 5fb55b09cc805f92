"""The command `betastar audit code`: replays of training code of one's own."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from betastar.cli.audit_mechanism import KeepOptions, keep
from betastar.cli.audit_training import names_of
from betastar.cli.options import JsonOption, command, option
from betastar.runs.reading import Json
from betastar.threats import Membership

if TYPE_CHECKING:
    from betastar.audit import CodeAudit

#: What a file may define besides the function and its data, by the names of the arguments of `betastar.audit.code`.
OPTIONAL = ("run", "threat", "max_grad_norm", "divisor", "replacements", "secret", "values", "split")
THREATS = {"membership": Membership(), "membership-add-remove": Membership("add-remove")}


@dataclass(frozen=True)
class FileArgument:
    file: str = option(
        help="A Python file that defines data and a function of them that trains, with the function's name after a colon (train "
        f"unless it is given). It may define {', '.join(OPTIONAL[:-1])} and {OPTIONAL[-1]}, and a factory of models for a "
        "function of (model, data).",
        argument="FILE.py[:FUNCTION]",
    )


@dataclass(frozen=True)
class ReplayOptions:
    threat: str | None = option(
        None, f"What differs: {' (another record) or '.join(THREATS)} (no record).", "the file's, or membership"
    )
    record: int | None = None
    steps: int = option(20, "Number of steps after which a training is ended.", min=1)
    seed: int | None = None
    ignore: tuple[str, ...] = ()


def code(code: FileArgument, options: ReplayOptions, kept: KeepOptions, printed: JsonOption) -> None:
    """Replay a training on data that differ in one record, with the same random numbers, and see that it keeps its promises.

    It takes seconds. Exits with 1 if a promise is broken, and says which one, at which step and at which parameter.

    \b
    Examples:
      betastar audit code my_training.py
      betastar audit code my_training.py:fit --threat membership-add-remove --steps 50 --seed 1
      betastar audit code my_training.py --ignore output --json
      betastar audit code my_training.py --into runs/adult
    """
    from betastar.audit import code as replay
    from betastar.cli import printing

    keep(kept, "code")
    told = _told(code.file)
    if options.threat is not None:
        if options.threat not in THREATS:
            raise ValueError(f"--threat must be one of {', '.join(THREATS)}, got {options.threat!r}.")
        told["threat"] = THREATS[options.threat]
        told.pop("secret", None)
    with printing.phase(f"replaying {code.file}"):
        result = replay(**told, record=options.record, steps=options.steps, seed=options.seed, ignore=options.ignore)
    keep(kept, "code", result.as_dict())
    printing.as_json(result.as_dict()) if printed.json else _print(result)
    if result.violated:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    command(app)(code)


def _told(file: str) -> Json:
    """The arguments of a replay that a file defines."""
    path, _, name = file.rpartition(":") if ".py:" in file else (file, "", "train")
    names = names_of(path)
    if missing := [one for one in (name, "data") if one not in names]:
        raise ValueError(f"{path} must define {missing[0]}, got {', '.join(one for one in names if one[:1] != '_')}.")
    told = {one: names[one] for one in OPTIONAL if one in names} | {"train": names[name], "data": names["data"]}
    takes = _arguments(names[name], f"{name} of {path}")
    if takes == 2 and "factory" in names:
        told["factory"] = names["factory"]
    elif takes != 1:
        raise ValueError(f"{name} of {path} must take data, or (model, data) beside a factory of models, got {takes} arguments.")
    return told


def _arguments(function: object, what: str) -> int:
    """The number of arguments that a function needs."""
    if not callable(function):
        raise ValueError(f"{what} must be a function, got {function!r}.")
    given = inspect.signature(function).parameters.values()
    return sum(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in given)


def _print(result: CodeAudit) -> None:
    from betastar.cli import printing

    printing.console().print(result)
