"""The GitHub Action: its shell lines run as a runner would run them, and pip is asked for this repository and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
ADULT = "--noise 3.51 --batch 256 --records 26048\n  --epochs 20\n"
CODE = "examples/audited_training.py"


def run(place: Path, **given: str) -> tuple[int, str, str]:
    """The first exit code that is not 0, what was printed, and the summary. pip is a stand-in that writes down what it gets."""
    python, summary = place / "python", place / "summary"
    python.write_text(
        f'#!/bin/bash\nif [[ "$2" == pip ]]; then printf "%s\\n" "$@" > {place}/pip; else exec {sys.executable} "$@"; fi\n'
    )
    python.chmod(0o755)
    inputs = {name: one.get("default") for name, one in ACTION["inputs"].items()} | {"python": str(python)} | given
    printed = ""
    known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(ROOT)}
    for step in ACTION["runs"]["steps"]:
        if step.get("if") == "inputs.code != ''" and not inputs["code"]:
            continue
        told = {name: re.sub(r"\$\{\{ (.*?) \}\}", lambda match: known[match[1]], value) for name, value in step["env"].items()}
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "GITHUB_STEP_SUMMARY": str(summary)} | told
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        printed += done.stdout + done.stderr
        if done.returncode:
            break
    return done.returncode, printed, summary.read_text() if summary.exists() else ""


def test_a_setting_that_is_private_enough(tmp_path: Path) -> None:
    code, printed, summary = run(tmp_path, setting=ADULT, require="bayes_security>=0.89\n\n  tpr<=0.02@fpr=0.01\n")
    assert code == 0, printed
    assert "How sure: Certified" in summary
    assert all(line.startswith("    ") or not line for line in summary.splitlines()), "a block of code in Markdown"
    assert (tmp_path / "pip").read_text().splitlines()[-1] == str(ROOT), "the repository, and no package by the name"


def test_a_setting_that_is_not(tmp_path: Path) -> None:
    code, _, summary = run(tmp_path, setting=ADULT, require="bayes_security>=0.89\nbayes_security>=0.95")
    assert code == 1
    assert "not met: bayes_security>=0.95" in summary


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"require": "\n \n"}, "require is empty: say what must hold"),
        ({"require": "bayes_security=0.9"}, "betastar: "),
        ({"require": "bayes_security>=0.9", "setting": "--noise nothing"}, "--noise"),
        ({"require": "$(touch injected)"}, "betastar: "),
        ({"require": "bayes_security>=0.9", "setting": "--noise 1; touch injected"}, ""),
    ],
)
def test_bad_input(tmp_path: Path, given: dict[str, str], message: str) -> None:
    """Exit code 2; what is given is a value and never shell code."""
    code, printed, _ = run(tmp_path, **{"setting": ADULT, **given})
    assert code == 2
    assert message in printed
    assert not (ROOT / "injected").exists()


def test_inputs_reach_the_shell_as_variables() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"


def test_the_replay(tmp_path: Path) -> None:
    """Code that keeps its promise passes, and the run ends with 1 for code that does not."""
    code, printed, summary = run(tmp_path, setting=ADULT, require="bayes_security>=0.89", code=CODE)
    assert code == 0, printed
    assert (tmp_path / "pip").read_text().splitlines()[-1] == f"{ROOT}[training,audit]"
    assert "Replayed: membership inference (substitution)" in " ".join(summary.split())


@pytest.mark.slow
def test_the_replay_finds_a_fault(tmp_path: Path) -> None:
    """Opacus divides by a number that depends on the number of records."""
    given = {"code": CODE, "threat": "membership-add-remove"}
    code, _, summary = run(tmp_path, setting=ADULT, require="bayes_security>=0.89", **given)
    assert code == 1
    assert "normaliser" in summary


def test_docs_install_from_the_repository_only() -> None:
    """The name on package indexes is not ours: nobody must be told to install it."""
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), ROOT / "README.md", ROOT / "action.yml"]:
        for line in path.read_text().splitlines():
            wrong = re.search(r"""pip install (?:-\S+ )*["']?betastar(?!\S* @ )""", line)
            assert wrong is None, f"{path.relative_to(ROOT)}: {line.strip()}"
