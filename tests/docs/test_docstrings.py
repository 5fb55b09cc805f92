"""The public names have numpydoc sections that agree with their signatures, and their examples are true."""

from __future__ import annotations

import doctest
import inspect
import re
import warnings
from typing import Any

import pytest
import torch

import betastar as bs
from betastar import audit, plots, training

NAMES = {f"betastar.{name}": getattr(bs, name) for name in bs.__all__}
NAMES |= {f"betastar.audit.{name}": getattr(audit, name) for name in audit.__all__ if name != "ALARM"}
NAMES |= {f"betastar.training.{name}": getattr(training, name) for name in training.__all__}
NAMES["betastar.DPSGD.from_epochs"] = bs.DPSGD.from_epochs
#: The figures; what only other modules of betastar need is left out, as it is in the reference.
FIGURES = {
    f"betastar.plots.{name}": one
    for name, one in inspect.getmembers(plots, inspect.isfunction)
    if one.__module__ == plots.__name__ and name[0] != "_" and name not in ("axes", "few_ticks", "inline", "plain")
}
CONSTRUCTORS = ("column", "columns", "one_hot", "label", "tokens", "word", "joint", "function", "from_transformer")
NAMES |= {f"betastar.training.Secret.{name}": getattr(training.Secret, name) for name in CONSTRUCTORS}


def sections(one: Any) -> dict[str, str]:
    """The text below each underlined title."""
    parts = re.split(r"^(\w+)\n-{3,}\n", inspect.getdoc(one) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def listed(text: str) -> list[str]:
    """The names that a section describes."""
    lines = re.findall(r"^(\S.*?) : ", text, flags=re.MULTILINE)
    return [name.lstrip("*") for line in lines for name in line.split(", ")]


def test_sections_agree_with_the_signature() -> None:
    for name, one in NAMES.items():
        described = sections(one)
        if inspect.isclass(one) and issubclass(one, Exception):
            continue
        assert ">>>" in described.get("Examples", "") or not name.startswith("betastar.training."), name
        if getattr(one, "_is_protocol", False):
            continue
        arguments = [argument for argument in inspect.signature(one).parameters if argument != "self"]
        text = described["Attributes"] if "Attributes" in described else described.get("Parameters", "")
        assert sorted(listed(text)) == sorted(arguments), name
        if not inspect.isclass(one):
            assert {"Returns", "Raises", "Examples"} <= set(described), name


def test_figures_describe_their_arguments_and_results() -> None:
    for name, one in FIGURES.items():
        signature, described = inspect.signature(one), sections(one)
        assert sorted(listed(described["Parameters"])) == sorted(signature.parameters), name
        assert ("Returns" in described) == (signature.return_annotation != "None"), name
        assert ">>>" in described["Examples"], name


def methods(one: type) -> dict[str, Any]:
    """The public methods and properties of a class and of the classes of betastar that it inherits from."""
    own = [part for part in one.__mro__ if part.__module__.startswith("betastar.")]
    return {name: member for part in reversed(own) for name, member in vars(part).items() if not name.startswith("_")}


def test_methods_describe_their_arguments_and_results_and_properties_what_they_are() -> None:
    classes = [one for name in training.__all__ if inspect.isclass(one := getattr(training, name))]
    members = {f"{one.__name__}.{name}": member for one in classes for name, member in methods(one).items()}
    assert len(members) > 50
    for name, member in members.items():
        function = getattr(member, "__func__", member)
        if isinstance(member, property):
            assert inspect.getdoc(member), name
        elif inspect.isfunction(function):
            signature, described = inspect.signature(function), sections(function)
            arguments = [argument for argument in signature.parameters if argument not in ("self", "cls")]
            assert sorted(listed(described.get("Parameters", ""))) == sorted(arguments), name
            assert ("Returns" in described) == (signature.return_annotation != "None"), name


EXAMPLES = {name: text for name, one in (NAMES | FIGURES).items() if ">>>" in (text := inspect.getdoc(one) or "")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_true(name: str) -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    text: list[str] = []
    examples = parser.get_doctest(EXAMPLES[name], {}, name, None, None)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG turned off|Full backward hook is firing")
        runner.run(examples, out=text.append)
    assert not runner.failures, "".join(text)
