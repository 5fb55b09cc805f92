"""The notebooks of examples/ run as they stand there, with public names only, and show what is kept in them."""

from __future__ import annotations

import ast
import json
from typing import Any

import html5lib
import pytest

from .notebooks import HERE, NOTEBOOKS, run

PUBLIC = {"betastar", "betastar.plots", "betastar.training"}


def cells(name: str) -> list[dict[str, Any]]:
    every = json.loads((HERE / f"{name}.ipynb").read_text("utf-8"))["cells"]
    return [cell for cell in every if cell["cell_type"] == "code"]


def kinds(outputs: list[dict[str, Any]]) -> list[set[str]]:
    return [set(one.get("data", {one["output_type"]: 0})) for one in outputs]


def test_these_are_all() -> None:
    assert {path.stem for path in HERE.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str) -> None:
    """Each cell shows what is kept of it: the same kinds of output, HTML that is well formed, pictures."""
    seen: set[str] = set()
    for kept, (cell, outputs) in zip(cells(name), run(HERE / f"{name}.ipynb"), strict=True):
        assert kinds(outputs) == kinds(kept["outputs"]), "python -m tests.notebooks writes them again"
        assert cell["execution_count"] == kept["execution_count"]
        for data in (one["data"] for one in outputs if "data" in one):
            seen |= set(data)
            html5lib.HTMLParser(strict=True).parseFragment("".join(data.get("text/html", [])))
    assert "text/html" in seen


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_imports_what_is_public(name: str) -> None:
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells(name)))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {one for one in imported if one and one.startswith("betastar")} <= PUBLIC
