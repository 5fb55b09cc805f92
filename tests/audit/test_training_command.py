"""`betastar audit games`, also in one run: a study, a run, and code of one's own; what is printed, kept and reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from betastar.cli.main import app
from betastar.report.report import write
from betastar.runs.config import Config
from betastar.runs.loop import train

EXAMPLE = Path(__file__).parents[2] / "examples" / "audited_training.py"
SMALL = ["--sample", "60", "--batch-size", "20", "--epochs", "1", "--noise", "0.5", "--hidden", "4", "--references", "20"]
FEW = ["--games", "40", "--width", "0.9", "--seed", "1"]


def call(*words: Any, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["audit", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "small"
    train(Config(epochs=1, batch_size=2000, hidden=(4,), seed=1), path)
    return path


def test_code_of_ones_own(tmp_path: Path) -> None:
    text = call("games", EXAMPLE, *FEW, "-o", tmp_path / "games", "--plot", tmp_path / "roc.png")
    assert text.startswith("No violation")
    for words in ("sees every update", "has the final weights", "Challenge: a canary", "seed 1", "roc.png"):
        assert words in text
    assert (tmp_path / "roc.png").stat().st_size > 10_000
    again = json.loads(call("games", EXAMPLE, *FEW, "-o", tmp_path / "games", "--json"))
    assert again["kind"] == "training"
    assert again["audits"]["updates"]["games"] == 40
    assert not again["violated"]
    with pytest.raises(ValueError, match="is there already"):
        call("games", EXAMPLE, *FEW, "--plot", tmp_path / "roc.png")


def test_a_broken_one_exits_with_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(EXAMPLE.read_text().replace("noise_multiplier=NOISE,\n        max", "noise_multiplier=0.05,\n        max"))
    done = subprocess.run(
        [sys.executable, "-m", "betastar.cli.main", "audit", "games", broken, *FEW, "--games", "100"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("Bound violated")


def test_one_run_of_ones_own() -> None:
    told = json.loads(call("games", EXAMPLE, "--one-run", "--canaries", 100, "--seed", 1, "--json"))
    assert told["canaries"] == 100
    assert not told["violated"]
    assert call("games", EXAMPLE, "--one-run", "--canaries", 100, "--seed", 1).split() == f"{told['sentence']} Seed 1.".split()


def test_a_study_and_its_most_exposed_record() -> None:
    told = json.loads(call("games", "adult", *SMALL, *FEW, "--challenge", "most-exposed", "--json"))
    assert set(told["audits"]) == {"updates", "weights", "outputs"}
    assert told["challenge"].startswith("record ")
    values = ["--threat", "attribute", "--value", "17.0", "--value", "50.0", "--value", "90.0", "--challenge", 3]
    many = json.loads(call("games", "adult", *SMALL, *FEW, *values, "--json"))
    assert many["challenge"] == "age of record 3 of the data"
    assert len(many["audits"]["updates"]["prior"]) == 3


def test_a_person_with_two_records() -> None:
    for challenge, title in (("canary", "a canary in 2 copies"), ("3,7", "records 3, 7 of the data")):
        told = json.loads(call("games", "adult", *SMALL, *FEW, "--records-per-person", 2, "--challenge", challenge, "--json"))
        assert told["challenge"] == title
        assert told["audits"]["updates"]["threat"].endswith("of a person with 2 records")
        assert not told["violated"]


def test_a_run_and_its_report(folder: Path) -> None:
    """What is audited is kept with the run, is in its report, and is not written over."""
    text = call("games", folder, *SMALL, *FEW, "--challenge", "most-exposed", "--into", folder)
    assert "Challenge: record 59 of the data." in text
    call("games", folder, *SMALL[:-2], "--one-run", "--canaries", 40, "--seed", 1, "--into", folder)
    call("mechanism", "--noise", 1, "--rate", 0.1, "--steps", 10, "--games", 1000, "--seed", 1, "--into", folder)
    call("code", EXAMPLE, "--seed", 1, "--into", folder)
    kinds = ("training", "one-run", "mechanism", "code")
    assert {path.name for path in folder.glob("audit-*")} == {f"audit-{kind}.json" for kind in kinds}
    with pytest.raises(ValueError, match="has an audit of this kind already"):
        call("games", folder, "--one-run", "--canaries", 40, "--into", folder)
    for kind in ("html", "md"):
        page = write(folder, folder / f"report.{kind}")[1][0].read_text()
        for words in ("Audited", "Games on the mechanism", "Games on real training", "One run, many canaries", "asks the final"):
            assert words in page
        for words in ("The training code", "Nothing was found by the replay", "The guesses do not contradict the claim"):
            assert words in page
        assert "No violation" in page
        assert page.count("Not this very run") == 4
    (folder / "audit-training.json").write_text('{"sentence": "Fine.", "violated": false}')
    with pytest.raises(ValueError, match=r"audit-training\.json is damaged"):
        write(folder, folder / "again.html")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sampling": "balls-in-bins"}, "sampling='balls-in-bins'"),
        ({"gap": 0.1, "sampling": "fixed-size"}, "distance 0.1)"),
        pytest.param({"sampling": "poisson", "max_batch_size": 6000}, "max_batch_size=6000", marks=pytest.mark.slow),
        pytest.param({"sampling": "shuffled"}, "sampling='shuffled'", marks=pytest.mark.slow),
        pytest.param({"target_attribute_beta": 0.9}, "distance 0.", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_runs_of_other_kinds(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    """Their games are played as they were trained: the same sampling, and gap clipping."""
    train(Config(epochs=1, batch_size=6000, hidden=(4,), seed=1, **options), tmp_path / "run")
    attribute = ["--threat", "attribute", "--value", "17.0", "--value", "90.0"] if told.startswith("distance") else []
    result = json.loads(call("games", tmp_path / "run", *SMALL, *FEW, *attribute, "--challenge", 3, "--json"))
    assert not result["violated"]
    assert told in result["audits"]["updates"]["run"] + result["audits"]["updates"]["threat"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["games", "nothing.py"], "there is no file 'nothing.py'"),
        (["games", "adult", "--threat", "theft"], "--threat must be one of membership"),
        (["games", "adult", *SMALL, "--threat", "attribute", "--value", "old"], "--value must be one of the values of 'age'"),
        (["games", "adult", *SMALL, "--challenge", "999999"], "challenge must be one of the 26048 training records"),
        (["games", "adult", "--sample", "10"], "sample must be"),
        (
            ["games", "adult", *SMALL, "--challenge", "3,700"],
            "--challenge must be records of the sample",
        ),
        (["games", EXAMPLE, "--threat", "attribute", "--records-per-person", "2"], "--records-per-person must be left out"),
        (["games", "adult", *SMALL, "--games", "30"], "games must be at least"),
        (["games", EXAMPLE, "--threat", "attribute"], "--threat attribute needs a secret"),
        (["games", EXAMPLE, "--into", "."], "--into must be the folder of a run"),
        (["games", EXAMPLE, "--one-run", "--canaries", "3"], "canaries must be"),
        (["games", EXAMPLE, "--canaries", "30"], "canaries goes with"),
        (["games", EXAMPLE, "--one-run", "--games", "30"], "games does not go with"),
        (["one-run", EXAMPLE], "audit one-run is now betastar audit games --one-run"),
        (["training", EXAMPLE], "audit training is now betastar audit games"),
    ],
)
def test_bad_input(words: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(*words)


def test_a_file_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("data = []\n")
    with pytest.raises(ValueError, match="must define factory, train, data, run, max_grad_norm; it has no factory"):
        call("games", tmp_path / "empty.py")
