"""Runs the notebooks of examples/ without Jupyter, and writes what they show into them: `python -m tests.notebooks`.

The code cells of a notebook run in order, in one namespace. As in Jupyter, what a cell prints and the value of its last
expression are its outputs.
"""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "examples"
NOTEBOOKS = ("choose_parameters", "train_on_a_table", "measure_an_opacus_loop")


def run(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each code cell and its outputs, as the format of notebooks has them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(path.read_text("utf-8"))["cells"]
    for number, cell in enumerate((one for one in cells if one["cell_type"] == "code"), 1):
        tree = ast.parse("".join(cell["source"]), f"{path.name}, code cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(StringIO()) as printed:
            exec(compile(tree, f"{path.name}, code cell {number}", "exec"), namespace)
            value = None if last is None else eval(compile(ast.Expression(last.value), path.name, "eval"), namespace)
        outputs: list[dict[str, Any]] = []
        if printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)})
        if value is not None:
            outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown(value)})
        yield cell | {"execution_count": number}, outputs


def shown(value: Any) -> dict[str, Any]:
    """What a notebook shows of a value, by media type."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if callable(html := getattr(value, "_repr_html_", None)):
        data["text/html"] = html().splitlines(keepends=True)
    if callable(png := getattr(value, "_repr_png_", None)):
        data["image/png"] = base64.b64encode(png()).decode()
    return data


def main() -> None:
    for name in NOTEBOOKS:
        path = HERE / f"{name}.ipynb"
        book = json.loads(path.read_text("utf-8"))
        done = iter([cell | {"outputs": outputs} for cell, outputs in run(path)])
        book["cells"] = [next(done) if cell["cell_type"] == "code" else cell for cell in book["cells"]]
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(path)


if __name__ == "__main__":
    main()
