"""What people see on a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .. import terminal
from ..command import COMMAND, call
from ..trained_runs import people

TRAIN = ["train", "people.csv", "--label", "rich", "--sensitive", "age", "--drop", "name", "--epochs", "2", "--noise", "1.5"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """The folder where a model was trained, the last screen, and all that was shown."""
    folder = tmp_path_factory.mktemp("terminal")
    people(400).to_csv(folder / "people.csv", index=False)
    code, screen, text = terminal.run([COMMAND, *TRAIN, "-o", "runs/people"], folder)
    assert code == 0, text
    return folder, screen, text


def test_the_last_screen_of_a_training(trained: tuple[Path, list[str], str]) -> None:
    """The verdict comes first; then one table, where the files are, and the next command, with room for a prompt."""
    folder, screen, _ = trained
    first = next(i for i, line in enumerate(screen) if line.startswith("Membership inference: "))
    assert re.fullmatch(r"Membership inference: β\* ≥ 0\.\d+, proved\. Weak by the example bands\.", screen[first])
    assert re.fullmatch(
        r"Attribute inference: age: β\* ≈ 0\.\d+, measured\. (Weak|Moderate) by the example bands\.", screen[first + 1]
    )
    assert len(screen) - first < terminal.LINES
    assert screen[first - 1] == "The column 'pay' is missing in 28 of 400 records: the median stands there."
    text = "\n".join(screen[first:])
    table, files, following = (text.index(one) for one in ("rely on", "In runs/people:", "Next:"))
    assert table < files < following
    assert "always guessing the most frequent label is right for" in text.replace("\n", " ")
    assert re.search(r"^membership, proved +β\* +0\.\d+ +0\.\d+ +1$", text, re.M)
    assert re.search(r"^age, measured +β\* +≈ 0\.\d+ +0\.\d+ +1$", text, re.M)
    assert re.search(r"^  \S*betastar report runs/people( |$)", text, re.M)
    assert re.search(r"^  \S*betastar predict runs/people TABLE.csv( |$)", text, re.M)
    for name in ("model.safetensors", "encoder.json", "model-card.md", "summary.md"):
        assert name in text
        assert (folder / "runs/people" / name).exists()
    assert not re.search(r"\\\*|!\[|^\||nan", text), "no Markdown, and no number that is none"


def test_the_next_command_works(trained: tuple[Path, list[str], str]) -> None:
    folder, screen, _ = trained
    line = next(line for line in screen if "betastar report" in line)
    words = line.split("#")[0].split()[1:]
    done = call(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "runs/people/report.html").exists()


def test_the_progress_of_a_training(trained: tuple[Path, list[str], str]) -> None:
    """Each phase is named before it begins; the number of steps and the time left are told, and no number that is not known."""
    _, _, text = trained
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    order = ["starting", "reading people.csv", "preparing the model, and what watches age (40 values)", "epoch 1 of 2, loss"]
    order += ["analysing the risk after epoch 1", "analysing the risk after epoch 2", "writing the model", "drawing the figures"]
    places = [shown.find(one) for one in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert re.search(r"training, steps .*\d+ of \d+, 0:\d\d:\d\d left", shown)
    assert "nan" not in shown
    assert "accuracy" not in shown[: shown.index("analysing the risk after epoch 1")], "it is not known yet"
    assert all(len(line) <= terminal.COLUMNS for line in re.split(r"[\r\n]+", shown))


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "--batch", "256", "--records", "26048", "--epochs", "20", *(f"--setting=noise={n}" for n in range(1, 7))],
        ["sweep", "--noise", "2", "--rate", ".01", "--steps", "90", "--method", "exact", "--method", "paper"],
        ["analyze", "--noise", "2", "--rate", ".01", "--steps", "90"],
        ["audit", "mechanism", "--noise", "2", "--rate", "0.1", "--steps", "3", "--games", "200", "--width", "1", "--seed", "1"],
    ],
    ids=lambda words: " ".join(words[:4]),
)
def test_tables_fit_80_columns(words: list[str]) -> None:
    """Into a pipe, too: the rule below the heads is as wide as the table."""
    done = call(*words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rules = [i for i, line in enumerate(lines) if set(line) == {"─"}]
    assert rules
    for i in rules:
        end = lines.index("", i)
        block = lines[i - 1 : end]
        assert max(map(len, block)) <= terminal.COLUMNS
        assert all(re.fullmatch(r"\S.*?( {2,}(no bound|\S+( %| to \S+)?))+", line) for line in block[2:]), (
            "no cell is broken over lines"
        )
