"""Options from the vocabulary, and errors in the spelling that the person used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from betastar.rounding import plain
from betastar.validation import ArgumentError
from betastar.vocabulary import METHODS, PARAMETERS, THREATS, TOLD, Parameter, parameter_of


def option(name: str, help: str = "", default: str | None = "", flag: bool = False, **more: Any) -> Any:
    """The option of a parameter. help, default: other words than the vocabulary's, or None. flag: there is --no-… as well."""
    word = PARAMETERS[name]
    said = _default(word) if default == "" else default
    text = " ".join(part for part in (help or word.help, f"[default: {said}]" if said else "") if part)
    spellings = [f"{word.option}/--no-{name}"] if flag else word.spellings
    return typer.Option(*spellings, help=text, **more)


def _default(word: Parameter) -> str:
    """Words of the help; typer shows values itself, but not those of options that are repeated."""
    if isinstance(word.default, tuple):
        return " ".join(map(plain, word.default))
    return word.default if isinstance(word.default, str) and word.name != "threat" else ""


Noise = Annotated[float | None, option("noise_multiplier")]
Rate = Annotated[float | None, option("sample_rate")]
Batch = Annotated[int | None, option("batch_size")]
Records = Annotated[int | None, option("dataset_size")]
Steps = Annotated[int | None, option("steps")]
Epochs = Annotated[float | None, option("epochs")]
Opacus = Annotated[bool | None, option("opacus", flag=True)]
Attack = Annotated[str, option("threat", autocompletion=lambda: list(THREATS))]
Distance = Annotated[float | None, option("distance")]
Method = Annotated[str | None, option("method", autocompletion=lambda: list(METHODS))]
Prior = Annotated[float, option("prior")]
Fpr = Annotated[list[float] | None, option("fpr", metavar="RATE")]
Delta = Annotated[list[float] | None, option("delta", metavar="DELTA")]
Metric = Annotated[list[str] | None, option("metric", metavar="NAME", autocompletion=lambda: list(TOLD))]
Json = Annotated[bool, option("json")]
Require = Annotated[list[str] | None, option("require", metavar="LIMIT")]
Force = Annotated[bool, option("force")]


class Command(TyperCommand):
    """Understands former spellings, and remembers which spelling of an option the person used."""

    #: Of the command that runs: typer's context, the options that it has, and the words that the person wrote.
    context: ClassVar[Any] = None
    shown: ClassVar[set[str]] = set()
    words: ClassVar[list[str]] = []

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        Command.context, Command.words = ctx, [word.split("=")[0] for word in args]
        Command.shown = shown = {spelling for parameter in self.params for spelling in parameter.opts}
        known = [word for word in PARAMETERS.values() if word.option in shown]
        former = {old: word.option for word in known for old in word.former if old not in shown}
        renamed = [former.get(name, name) + equals + value for name, equals, value in (word.partition("=") for word in args)]
        return super().parse_args(ctx, renamed)

    def invoke(self, ctx: Any) -> Any:
        """An error names the option that was wrong, as the person spelled it."""
        try:
            return super().invoke(ctx)
        except ArgumentError as problem:
            from betastar.answers import wording

            raise ValueError(wording.explain(problem, spelling)) from None


def spelling(argument: str) -> str:
    """How the person spelled the option of an argument, or its shortest spelling if they did not give it."""
    word = parameter_of(argument)
    if word is None or word.option not in Command.shown:
        return argument
    return next((one for one in Command.words if one in (*word.spellings, *word.former)), word.brief)


def was_given(argument: str) -> bool:
    """The person gave this option themselves."""
    return Command.context.get_parameter_source(argument).name == "COMMANDLINE"


def for_pipelines(command: Callable[..., None]) -> Callable[..., None]:
    """A command of which the reader may go away, and whose numbers may be beyond what can be computed."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        from betastar.cli import printing

        if command.__name__ != "explore":  # a server must survive a browser that goes away
            printing.quiet_pipe()
        try:
            command(**given)
        except ArithmeticError as problem:  # exit code 1 is for --require
            raise ValueError(
                f"these parameters are beyond what this --method can compute ({problem}). Try another one."
            ) from None

    return wrapped
