"""Every Python block of the README runs, in order, and prints what its comments say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_blocks_run_and_say_what_they_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) >= 2
    names: dict[str, object] = {}
    checked = 0
    for block in BLOCKS:
        lines = block.splitlines()
        for node in ast.parse(block).body:
            statement = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            exec(statement, names)
            said = re.match(r"print\(.*\)\s+# (.*)", statement)
            output = capsys.readouterr().out.strip()
            if said:
                promise = re.split(r"\.\.\.|:", said[1])[0].strip()
                assert output.startswith(promise), statement
                checked += 1
    assert checked >= 5
