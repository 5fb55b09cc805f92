"""Examples with the trainers of Lightning and Hugging Face."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("name", "package"), [("lightning_loop", "lightning"), ("hugging_face_loop", "transformers")])
def test_examples(name: str, package: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(package)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    found = re.search(r"logged β\* ≈ ([.\d]+) for the (\w+) after (\d+) steps", printed)
    assert found is not None
    assert 0.0 < float(found[1]) < 1.0
    assert int(found[3]) >= 20
    assert "an estimate for the trainer's eyes only" in printed
