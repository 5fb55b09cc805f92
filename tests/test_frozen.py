"""A sample of numbers is what it was, bit for bit on the same processor. `python -m tests.frozen.freeze` compares all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.frozen import freeze


def test_a_sample_has_not_changed() -> None:
    """In a process of its own: bits depend on the number of threads."""
    command = [sys.executable, "-m", "tests.frozen.freeze", "--sample", "numbers"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_change_is_told_with_its_values() -> None:
    kept = {"advantage": ["0x1.0p-1", "0x1.0p-1", "0x1.0p-1"], "gdp_mu": {"error": "ValueError"}}
    new = {"advantage": ["0x1.0p-1", "0x1.0p-1", "0x1.0000000000001p-1"], "gdp_mu": {"error": "TypeError"}}
    assert list(freeze.differences(kept, kept)) == []
    assert list(freeze.differences(kept, new)) == [
        "advantage, upper: was 0.5 (0x1.0p-1), is 0.5000000000000001 (0x1.0000000000001p-1)",
        "gdp_mu, error: was ValueError, is TypeError",
    ]
    assert list(freeze.differences(kept, new, bitwise=False)) == ["gdp_mu, error: was ValueError, is TypeError"]
