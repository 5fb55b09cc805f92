"""Run the fenced blocks of a Markdown page, and put below each of them what it prints or draws.

Blocks marked `python` run in order, in one namespace a page; blocks marked `bash` hold `betastar` commands. All of it happens in
an empty folder, and a warning is an error. Blocks in other languages are shown as they are: files, and what runs elsewhere.

Two promises are kept: `print(x)  # 0.5: why` must print something that starts with 0.5 (what follows `...` or `:` is a remark),
and a command must end well unless its line ends with `# exit code 1`. A block whose last line is an Axes of matplotlib shows it.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>python|bash)\b[^\n]*\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
#: Warnings of other libraries that say nothing about a snippet.
IGNORED = ("Secure RNG turned off", "Full backward hook is firing")


class SnippetError(Exception):
    """A snippet failed, or did not print what its comment says."""


def run(text: str, name: str, given: Mapping[str, Any] | None = None, files: Mapping[str, str] | None = None) -> str:
    """The page with the results of its snippets. name: what to call it when one fails; given, files: what a reader has."""
    names: dict[str, Any] = {"__name__": "__main__", **(given or {})}
    number = 0

    def result(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        line = text.count("\n", 0, match.start()) + 1
        indent, body = match["indent"], _dedent(match["body"], match["indent"])
        try:
            if match["language"] == "bash":
                printed, figure = "".join(_command(line) for line in _lines(body)), ""
            else:
                printed, figure = _python(body, names, f"{re.sub(r'[^a-z]+', '-', name.lower())}{number}")
        except (Exception, SystemExit) as problem:
            raise SnippetError(f"{name}, line {line}: {type(problem).__name__}: {problem}") from problem
        shown = [match[0]]
        if printed.strip():
            shown.append(_indented(f"``` {{.text .output}}\n{printed.rstrip()}\n```", indent))
        if figure:
            shown.append(_indented(f'<figure class="drawn" markdown="0">{figure}</figure>', indent))
        return "\n\n".join(shown)

    with _aside():
        for file, content in (files or {}).items():
            Path(file).write_text(content)
        return FENCE.sub(result, text)


@contextmanager
def _aside() -> Iterator[None]:
    """An empty folder, warnings as errors, and a terminal of a known width."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chdir(folder),
        warnings.catch_warnings(),
        patch.dict(os.environ, COLUMNS="100", TERM="dumb", NO_COLOR="1"),
    ):
        warnings.simplefilter("error")
        for message in IGNORED:
            warnings.filterwarnings("ignore", message)
        yield


def _python(code: str, names: dict[str, Any], figure: str) -> tuple[str, str]:
    """What a block prints, and the figure that it ends with."""
    printed, lines, value = "", code.splitlines(), None
    for node in ast.parse(code).body:
        out, value = StringIO(), None
        with redirect_stdout(out):
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), "<snippet>", "eval"), names)
            else:
                exec(compile(ast.Module([node], []), "<snippet>", "exec", dont_inherit=True), names)
        printed += out.getvalue()
        said = re.search(r"\)\s+# (.*)", lines[(node.end_lineno or 1) - 1])
        if said and re.match(r"print\(", lines[node.lineno - 1]):
            promise = re.split(r"\.\.\.|: |:$", said[1])[0].strip()
            if not out.getvalue().startswith(promise):
                raise SnippetError(f"printed {out.getvalue().strip()!r}, but the comment says {promise!r}")
    if value is not None and hasattr(value, "figure") and hasattr(value, "plot"):
        from betastar import plots

        return printed, plots.inline(value, figure).replace("\n", "")
    return printed, ""


def _lines(body: str) -> Iterator[str]:
    for line in body.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def _command(line: str) -> str:
    """What `betastar …`, or `echo '…' | betastar …`, prints."""
    from typer.testing import CliRunner

    from betastar.cli.main import app

    expected = int(line.rsplit("# exit code ", 1)[1]) if "# exit code " in line else 0
    words, given = shlex.split(line, comments=True), None
    if words[0] == "echo" and words[2] == "|":
        given, words = words[1], words[3:]
    if words[0] != "betastar":
        raise SnippetError(f"only betastar commands are run, got {line!r}")
    done = CliRunner().invoke(app, words[1:], input=given, prog_name="betastar")
    if done.exit_code != expected:
        raise SnippetError(f"{line!r} ended with exit code {done.exit_code}: {done.output} {done.exception or ''}")
    return done.output


def _dedent(body: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))


def _indented(text: str, indent: str) -> str:
    return "\n".join(indent + line if line else line for line in text.splitlines())
