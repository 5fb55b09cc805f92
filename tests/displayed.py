"""What an answer shows to rich on a terminal of 80 columns, and in a notebook."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import Any

import html5lib
from rich.console import Console


def printed_by_rich(answer: Any) -> str:
    """What rich prints; no line is longer than 80."""
    console = Console(file=io.StringIO(), width=80)
    console.print(answer)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in text.splitlines())
    return str(text)


def html_of(answer: Any) -> str:
    """What a notebook shows: HTML that is well formed, which IPython finds, where it is installed."""
    text = answer._repr_html_()
    html5lib.HTMLParser(strict=True).parseFragment(text)
    if find_spec("IPython") is not None:
        from IPython.core.formatters import DisplayFormatter

        shown, _ = DisplayFormatter().format(answer)
        assert shown["text/html"] == text
        assert shown["text/plain"] == repr(answer)
    return str(text)
