"""Options of a command from a dataclass and the vocabulary, and errors in the spelling that the person used.

A command is a function whose parameters are dataclasses. Each field of these is an option: its name finds the word in the
vocabulary, which has the spellings and the help; its type and its default are the option's. The command gets the dataclasses,
filled in.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import UnionType
from typing import Annotated, Any, ClassVar, Optional, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from betastar.rounding import plain
from betastar.validation import ArgumentError
from betastar.vocabulary import METHODS, SAMPLINGS, SEES, THREATS, Parameter, filled, parameter_of, parameters_of, told

Run = Callable[..., None]
#: A field of a dataclass, and its type.
Typed = tuple[Field[Any], object]
#: What a shell completes.
COMPLETED: dict[str, Callable[[], Iterable[str]]] = {
    "threat": lambda: THREATS,
    "method": lambda: METHODS,
    "metric": told,
    "sampling": lambda: SAMPLINGS,
    "sees": lambda: SEES,
}


@dataclass(frozen=True)
class Words:
    """What a command says of an option if it is not what the vocabulary says.

    default: words for what it is unless it is given; limits: min and max; argument: it is given by its position, and so shown.
    """

    help: str = ""
    default: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    argument: str = ""


def option(value: object = MISSING, help: str = "", default: str = "", argument: str = "", **limits: float) -> Any:
    """A field of a dataclass of options, with words of its own. value: what it is unless it is given."""
    return field(default=value, metadata={"words": Words(help, default, limits, argument)})


@dataclass(frozen=True)
class Fields:
    """Which fields a command has options for: those of a dataclass (or of another one) without some."""

    without: tuple[str, ...] = ()
    of: type | None = None


@dataclass(frozen=True)
class JsonOption:
    json: bool = False


@dataclass(frozen=True)
class RequireOption:
    require: tuple[str, ...] = ()


class Command(TyperCommand):
    """Understands former spellings, and remembers which spelling of an option the person used."""

    #: The options of the command that runs, and the words that the person wrote.
    shown: ClassVar[set[str]] = set()
    words: ClassVar[list[str]] = []

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        for one in self.params:
            one.help = filled(getattr(one, "help", None) or "")  # type: ignore[attr-defined] # options and arguments have it

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        Command.words = [word.split("=")[0] for word in args]
        Command.shown = shown = {spelling for parameter in self.params for spelling in parameter.opts}
        known = [word for one in self.params for word in parameters_of(one.name or "") if word.option in shown]
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
    for word in parameters_of(argument):
        if word.option in Command.shown:
            return next((one for one in Command.words if one in (*word.spellings, *word.former)), word.brief)
    return argument


def command(app: typer.Typer, name: str | None = None, pipeline: bool = True) -> Callable[[Run], Run]:
    """Add a function of dataclasses to an app. pipeline: its reader may go away, and its numbers may be beyond what can be
    computed."""

    def add(function: Run) -> Run:
        app.command(name, cls=Command)(_flat(_for_pipelines(function) if pipeline else function))
        return function

    return add


def _flat(function: Run) -> Run:
    """The function as typer wants it: an option for each field of the dataclasses that it takes."""
    groups = {name: _group(hint) for name, hint in get_type_hints(function, include_extras=True).items() if name != "return"}

    def flat(**given: object) -> None:
        function(**{name: made(**_values(kept, given)) for name, (made, kept) in groups.items()})

    parameters = [_parameter(one, hint) for _, kept in groups.values() for one, hint in kept]
    flat.__name__, flat.__doc__, flat.__module__ = function.__name__, function.__doc__, function.__module__
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    return flat


def _group(hint: object) -> tuple[Callable[..., object], list[Typed]]:
    """What the command wants, and the fields that are options, each with its type."""
    made, chosen = get_args(hint) if get_origin(hint) is Annotated else (hint, Fields())
    cls = chosen.of or made
    hints = get_type_hints(cls)
    return made, [(one, hints[one.name]) for one in fields(cls) if one.name not in chosen.without]


def _values(kept: list[Typed], given: Mapping[str, object]) -> dict[str, object]:
    """The fields that were given; a list that is empty was not."""
    values = {one.name: given[one.name] for one, _ in kept}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value not in (None, [])}


def _parameter(one: Field[Any], hint: object) -> inspect.Parameter:
    """The parameter of typer's function for a field: several values are a list, and None unless they are given."""
    kinds = [part for part in get_args(hint) if part is not type(None)] if get_origin(hint) in (Union, UnionType) else [hint]
    kind, default = kinds[0], inspect.Parameter.empty if one.default is MISSING else one.default
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], None  # type: ignore[misc]
    words: Words = one.metadata.get("words", Words())
    info = _argument(words) if words.argument else _option(one.name, words, shown=default is not None)
    annotation = Annotated[Optional[kind] if default is None else kind, info]  # type: ignore[valid-type] # noqa: UP045
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _argument(words: Words) -> object:
    return typer.Argument(metavar=words.argument, help=_with_default(words.help, words.default))


def _option(name: str, words: Words, shown: bool) -> object:
    """The option of a field. `shown` says that typer shows the default by itself, because it is a value."""
    word = parameter_of(name)
    assert word is not None, name
    complete = COMPLETED.get(word.name)
    return typer.Option(
        *((f"{word.option}/--no-{word.option.removeprefix('--')}",) if word.negatable else word.spellings),
        help=_with_default(words.help or word.help, words.default or ("" if shown else _default(word))),
        metavar=word.metavar,
        autocompletion=None if complete is None else lambda: list(complete()),
        **words.limits,  # type: ignore[arg-type]
    )


def _default(word: Parameter) -> str:
    """What a parameter is unless it is given, in words."""
    return " ".join(map(plain, word.default)) if isinstance(word.default, tuple) else str(word.default or "")


def _with_default(text: str, default: str) -> str:
    return f"{text} [default: {default}]" if default else text


def _for_pipelines(function: Run) -> Run:
    """A command whose reader may go away, and whose numbers may be beyond what can be computed."""

    @functools.wraps(function)
    def wrapped(**given: object) -> None:
        from betastar.cli import printing

        printing.quiet_pipe()
        try:
            function(**given)
        except ArithmeticError as problem:  # exit code 1 is for --require
            raise ValueError(
                f"these parameters are beyond what this --method can compute ({problem}). Try another one."
            ) from None

    return wrapped


def arguments(options: object, cls: type) -> dict[str, Any]:
    """What the options say, by the names that the fields of another dataclass have for it. What was not given is left out."""
    given = vars(options)
    chosen = {}
    for one in fields(cls):
        others = [name for word in parameters_of(one.name) for name in (word.name, *word.arguments)]
        name = next((name for name in (one.name, *others) if name in given), None)
        if name is not None and given[name] not in (None, ()):
            chosen[one.name] = given[name]
    return chosen
