"""A report does not believe what a folder says of itself: it computes again, or refuses; and names stay where they are shown."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
from betastar.report.facts import load
from betastar.report.report import summarise, write
from betastar.report.statement import statement, verdicts
from betastar.runs.config import Config
from betastar.runs.loop import train

from ..command import call
from ..trained_runs import people

PROOF = "Proved: β* ≥ 0.99999 (may be published)."


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("forged")
    people(200).to_csv(folder / "people.csv", index=False)
    fixed: dict[str, Any] = {"study": str(folder / "people.csv"), "label": "rich", "sensitive": "age", "drop": ("name",)}
    fixed |= {"noise_multiplier": 4.0, "batch_size": 80, "epochs": 2}
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "gap": {"gap": 0.1},
        "target": {"attribute_target": "bayes_security>=0.99"},
    }
    return {name: train(Config(**fixed, **more), folder / name).path for name, more in kinds.items()}


def change(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def change_lines(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        edit(entry)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_what_is_true_is_reported(runs: dict[str, Path]) -> None:
    for name, folder in runs.items():
        facts = load(folder)
        assert ("Gap clipping fixed this before training" in verdicts(facts)[1].sentence) == (name in ("gap", "target"))
        assert "They are not signed" in dict(statement(facts))["Source"]
        if name in ("gap", "target"):
            assert facts.proof is not None
            proved = bs.analyze(facts.run, facts.attributes[0].threat, method="certified").bayes_security.lower
            assert facts.attributes[0].lower == proved
            assert facts.proof.startswith(
                "Proved: an attacker who knows everything about a record except the value of 'age' faces β* ≥ 0."
            )


@pytest.mark.parametrize(
    ("kind", "forged", "message"),
    [
        ("plain", {"gaps": {"age": 0.001}, "proof": PROOF}, "config.json asks for none (gap)"),
        ("plain", {"noise_multiplier": 40.0}, "noise_multiplier was 40.0, but config.json asks for 4.0"),
        ("plain", {"batch_size": 8}, "batch_size was 8, but config.json asks for 80"),
        ("plain", {"records": 16_000}, "16000 records in batches of 80 give 0.005"),
        ("plain", {"epochs": 1}, "epochs was 1, but config.json asks for 2"),
        ("plain", {"secret": "shoe size"}, "the secret is 'shoe size', but config.json asks for 'age'"),
        ("gap", {"gaps": {"age": 0.01}}, "config.json gives 'age' 0.1"),
        ("gap", {"gaps": {"town": 0.1}}, "'town' had the gap 0.1, but config.json gives 'age' 0.1"),
        ("gap", {"noise_multiplier": 40.0}, "not of one run"),
        ("gap", {"sample_rate": 0.01}, "not of one run"),
        ("target", {"gaps": {"age": 0.01}}, "config.json gives 'age' 0."),
    ],
)
def test_a_forged_status_is_refused(
    runs: dict[str, Path], tmp_path: Path, kind: str, forged: dict[str, Any], message: str
) -> None:
    folder = Path(shutil.copytree(runs[kind], tmp_path / "run"))
    change(folder / "status.json", **forged)
    if "gaps" in forged:  # and whatever follows from it
        steps = json.loads((folder / "epochs.jsonl").read_text().splitlines()[-1])["steps"]
        run = bs.DPSGD(4.0, 0.5, steps)
        ((name, gap),) = forged["gaps"].items()
        beta = bs.analyze(run, bs.AttributeInference(gap)).bayes_security
        bound = {"lower": beta.lower, "estimate": beta.estimate, "paper": beta.estimate}
        change_lines(folder / "epochs.jsonl", lambda entry: entry.update(proved={name: bound}))
    done = call("report", str(folder))
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert not (folder / "report.html").exists()


def test_a_forged_sentence_is_not_repeated(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs["gap"], tmp_path / "run"))
    change(folder / "status.json", proof=PROOF, label="proved, may be published")
    text = write(folder)[1][0].read_text() + summarise(folder).read_text()
    assert "0.99999" not in text
    assert "proved, may be published" not in text


def test_a_measured_figure_is_computed_again(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    change_lines(folder / "epochs.jsonl", lambda entry: entry["exact"].update(lower=0.9999, estimate=0.9999))
    with pytest.raises(ValueError, match=r"β\* \(age\) is 0\.999900, but the distances in metrics\.jsonl give at most 0\."):
        write(folder)


def test_names_stay_where_they_are_shown(tmp_path: Path) -> None:
    """A line break ends neither a code block nor a row, and what a terminal obeys is not printed."""
    name = "age\n\n# Proved: β* = 1 | `x` <b>\r\x1b[31m'\\\u2028\n    $(touch gone)"
    table = tmp_path / "people.csv"
    people(200).drop(columns="name").rename(columns={"age": name}).to_csv(table, index=False)
    config = Config(str(table), "rich", name, epochs=1, noise_multiplier=4.0, batch_size=80)
    folder = train(config, tmp_path / "run").path
    texts = [summarise(folder).read_text(), write(folder, kind="md")[1][0].read_text()]
    for text in texts:
        assert "\x1b" not in text
        assert "\u2028" not in text
        assert [line for line in text.splitlines() if line.startswith("#")] == [
            line for line in text.splitlines() if line.startswith(("# people: 1 epoch", "## "))
        ]
        assert [line for line in text.splitlines() if "touch gone" in line and line.startswith("    ")] == [
            line for line in text.splitlines() if line.startswith("    betastar train ")
        ]
        for block in (block for block in text.split("\n\n") if block.startswith("|")):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1
    command = next(line for line in texts[0].splitlines() if line.startswith("    betastar train "))
    script = command.strip().replace("betastar", r"printf '%s\0'", 1)
    said = subprocess.run(["bash", "-c", script], capture_output=True, cwd=tmp_path).stdout.decode().split("\0")
    assert said[said.index("--sensitive") + 1] == name
    assert not (tmp_path / "gone").exists()
    html = write(folder)[1][0].read_text()
    assert "<b>" not in html.split("<body>")[1].replace("<li><b>", "")
