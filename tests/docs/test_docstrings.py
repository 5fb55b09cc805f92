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
from betastar import audit

NAMES = {f"betastar.{name}": getattr(bs, name) for name in bs.__all__}
NAMES |= {f"betastar.audit.{name}": getattr(audit, name) for name in audit.__all__ if name != "ALARM"}
NAMES["betastar.DPSGD.from_epochs"] = bs.DPSGD.from_epochs


def sections(one: Any) -> dict[str, str]:
    """The text below each underlined title."""
    parts = re.split(r"^(\w+)\n-{3,}\n", inspect.getdoc(one) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def listed(text: str) -> list[str]:
    """The names that a section describes."""
    lines = re.findall(r"^(\S.*?) : ", text, flags=re.MULTILINE)
    return [name.lstrip("*") for line in lines for name in line.split(", ")]


@pytest.mark.parametrize("name", NAMES)
def test_sections_agree_with_the_signature(name: str) -> None:
    one, described = NAMES[name], sections(NAMES[name])
    if inspect.isclass(one) and issubclass(one, Exception):
        return
    arguments = [argument for argument in inspect.signature(one).parameters if argument != "self"]
    parameters = described["Attributes"] if "Attributes" in described else described["Parameters"]
    assert sorted(listed(parameters)) == sorted(arguments)
    if not inspect.isclass(one):
        assert {"Returns", "Raises", "Examples"} <= set(described)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_true(name: str) -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    text: list[str] = []
    examples = parser.get_doctest(inspect.getdoc(NAMES[name]) or "", {}, name, None, None)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Secure RNG turned off|Full backward hook is firing")
        runner.run(examples, out=text.append)
    assert not runner.failures, "".join(text)
