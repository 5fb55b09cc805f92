"""What a run leaves to be used: the model, its encoder and a card; and `betastar predict`."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

from betastar.report import model_card
from betastar.runs import adult, load
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train
from betastar.runs.prediction import Prediction, predict
from betastar.runs.reading import StudyError
from betastar.runs.study import split

from ..command import call
from ..trained_runs import TrainedRuns, people


def with_a_hole() -> pd.DataFrame:
    """A record without a label is not trained on, and can be predicted."""
    frame = people(400)
    frame.loc[5, "rich"] = None
    return frame


@pytest.fixture
def table(runs: TrainedRuns) -> Path:
    return Path(runs.table("with a hole/people", with_a_hole))


@pytest.fixture
def config(table: Path) -> Config:
    return Config(str(table), "rich", "age", drop=("name",), epochs=3, noise_multiplier=1.0, batch_size=40, learning_rate=0.02)


@pytest.fixture
def run(config: Config, trained: Callable[[Config], RunFolder]) -> RunFolder:
    return trained(config)


def test_the_accuracy_on_the_table_is_the_one_that_the_run_reported(run: RunFolder, table: Path) -> None:
    reported = run.epochs[-1]["accuracy"]
    told = predict(run.path, table)
    assert told.test_quality["accuracy"] == reported
    assert told.tested == 80
    frame = pd.read_csv(table)
    labelled = frame["rich"].notna().to_numpy()
    assert run.data is not None
    _, test = split(int(labelled.sum()), run.data["seed"])
    right = (told.predictions["prediction"] == frame["rich"])[labelled].to_numpy()
    assert right[test].mean() == reported
    assert told.accuracy == right.mean()
    assert reported > 0.6, "or the test proves little"
    assert len(told.predictions) == 400


def test_the_accuracy_on_adult_is_the_one_that_the_run_reported(tmp_path: Path) -> None:
    folder = train(Config(epochs=1, hidden=(8,), monitor=False, learning_rate=0.01), tmp_path / "run")
    told = predict(folder.path, "adult")
    assert (told.test_quality["accuracy"], told.tested) == (folder.epochs[-1]["accuracy"], 6513)
    adult.table("test").to_csv(tmp_path / "test.csv", index=False)
    other = predict(folder.path, tmp_path / "test.csv")
    assert other.tested is None
    assert other.accuracy == pytest.approx(told.accuracy, abs=0.02)


def test_three_lines_of_python(run: RunFolder, table: Path) -> None:
    encoder, model = load(run.path)
    outputs = model(encoder.tensor(pd.read_csv(table)))
    assert [encoder.classes[i] for i in outputs.argmax(dim=1)] == list(predict(run.path, table).predictions["prediction"])


def test_the_model_holds_the_weights_and_nothing_else(config: Config, tmp_path: Path) -> None:
    """The same run under two seeds has files that differ in the numbers of the weights only; none is the generator's state."""
    headers = []
    for seed in (1, 2):
        folder = train(replace(config, seed=seed, epochs=1, monitor=False), tmp_path / str(seed))
        with safe_open(folder / "model.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"}
            names = sorted(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        assert names == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
            "0.bias": (128,),
            "0.weight": (128, 6),
            "2.bias": (2,),
            "2.weight": (2, 128),
        }
        content = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        headers.append(content[: 8 + length])
        assert len(content) == 8 + length + 4 * sum(tensor.numel() for tensor in tensors.values()), "no byte more"
        state = torch.random.get_rng_state().numpy().tobytes()
        assert state[24:88] not in content
    assert headers[0] == headers[1]


def test_the_encoder_names_no_record(run: RunFolder) -> None:
    """Neither a name, nor a hash of the table by which somebody could try whether a record was in it."""
    text = (run / "encoder.json").read_text()
    assert "person" not in text
    data = run.data
    assert data is not None
    assert data["sha256"] not in text
    assert str(data["seed"]) not in text
    assert set(json.loads(text)) == {"format", "label", "classes", "left_out", "columns"}


def test_the_files_work_alone(run: RunFolder, table: Path, tmp_path: Path) -> None:
    """Whoever gets the model has these two files only."""
    for name in ("model.safetensors", "encoder.json"):
        shutil.copy(run / name, tmp_path / name)
    frame = people(400).drop(columns=["rich"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    told = predict(tmp_path, tmp_path / "new.csv")
    assert (told.accuracy, told.tested) == (None, None)
    assert list(told.predictions["prediction"]) == list(predict(run.path, table).predictions["prediction"])


def test_another_table_is_not_called_the_training_table(run: RunFolder, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    frame.loc[0, "age"] += 1
    frame.to_csv(tmp_path / "other.csv", index=False)
    assert predict(run.path, tmp_path / "other.csv").tested is None
    frame.head(1).to_csv(tmp_path / "one.csv", index=False)
    assert len(predict(run.path, tmp_path / "one.csv").predictions) == 1
    frame.head(0).to_csv(tmp_path / "none.csv", index=False)
    with pytest.raises(StudyError, match=r"none\.csv has no records: there is nothing to predict"):
        predict(run.path, tmp_path / "none.csv")


def test_labels_that_pandas_reads_as_fractions(tmp_path: Path) -> None:
    """A label that is missing makes 1.0 of the class 1."""
    frame = people(200).assign(rich=lambda f: (f["rich"] == "yes").astype(int))
    frame.to_csv(tmp_path / "whole.csv", index=False)
    folder = train(Config(str(tmp_path / "whole.csv"), "rich", "age", drop=("name",), epochs=1, monitor=False), tmp_path / "run")
    whole = predict(folder.path, tmp_path / "whole.csv")
    frame.astype({"rich": object}).assign(rich=frame["rich"].where(frame.index > 0)).to_csv(tmp_path / "holes.csv", index=False)
    holes = predict(folder.path, tmp_path / "holes.csv")
    right = (whole.predictions["prediction"] == frame["rich"].astype(str)).to_numpy()
    assert whole.accuracy == right.mean()
    assert holes.accuracy == right[1:].mean()


def test_a_spreadsheet_computes_nothing_of_predictions() -> None:
    """Classes that begin as formulas do get an apostrophe; signed numbers and other words stay."""
    classes = ['=HYPERLINK("http://x")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", " =1", "-1", "+2.5", "no", "x=1"]
    said = Prediction("rich", pd.DataFrame({"record": range(10), "prediction": classes, "probability": 0.5}))
    written = list(csv.DictReader(io.StringIO(said.as_csv(), newline="")))
    assert [row["prediction"] for row in written] == [*(f"'{one}" for one in classes[:6]), *classes[6:]]
    assert said.predictions["prediction"].tolist() == classes
    numbers = Prediction("rent", pd.DataFrame({"record": [0], "prediction": [-1.5]}))
    assert numbers.as_csv() == "record,prediction\n0,-1.5\n"


def test_the_command(run: RunFolder, table: Path, tmp_path: Path) -> None:
    words = ("predict", str(run.path), str(table))
    output = tmp_path / "predictions.csv"
    printed = call(*words)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith("record,prediction,probability\n0,")
    assert "Predicted rich of 400 records." in printed.stderr
    assert "of the 80 records that it kept for testing; always guessing the most frequent label is right for" in printed.stderr
    written = call(*words, "-o", str(output))
    assert (written.returncode, written.stderr) == (0, "")
    assert output.read_text() == printed.stdout
    assert output.stat().st_mode & 0o777 == 0o600
    refused = call(*words, "-o", str(output))
    assert refused.returncode == 2
    assert "is there already; choose another name, or write over it with --force" in refused.stderr
    assert call(*words, "-o", str(output), "--force").returncode == 0
    told = json.loads(call(*words, "--json").stdout)
    assert (told["test_accuracy"], told["test_baseline"]) == (run.epochs[-1]["accuracy"], run.epochs[-1]["baseline"])
    assert told["baseline"] == pd.read_csv(table)["rich"].value_counts(normalize=True).max()
    assert [row["prediction"] for row in told["predictions"]] == list(pd.read_csv(output)["prediction"])
    assert json.loads(call(*words, "--json", "-o", str(output), "--force").stdout)["output"] == str(output)
    pd.read_csv(table).assign(shoe=42, town="east").to_csv(tmp_path / "shoes.csv", index=False)
    unknown = call("predict", str(run.path), str(tmp_path / "shoes.csv"))
    assert unknown.returncode == 2
    assert "not trained with the column 'shoe': leave it out (--drop shoe)" in unknown.stderr
    unseen = call("predict", str(run.path), str(tmp_path / "shoes.csv"), "--drop", "shoe")
    assert unseen.returncode == 2
    assert "the column 'town' is 'east'" in unseen.stderr
    for folder, message in ((tmp_path, "holds no run"), (tmp_path / "nowhere", "holds no run")):
        bad = call("predict", str(folder), str(table))
        assert bad.returncode == 2
        assert message in bad.stderr


def test_damaged_files_are_named(run: RunFolder, table: Path) -> None:
    copy = run.path
    for name, content, message in (
        ("model.safetensors", b"PK\3\4", r"model\.safetensors is damaged or no safetensors file"),
        ("encoder.json", b"{}", r"encoder\.json is damaged or not of betastar train: it has no format"),
        ("encoder.json", None, r"has no encoder\.json: an earlier version of betastar made this run"),
    ):
        before = (copy / name).read_bytes()
        (copy / name).write_bytes(content) if content is not None else (copy / name).unlink()
        with pytest.raises(StudyError, match=message):
            predict(copy, table)
        (copy / name).write_bytes(before)
    values = json.loads((copy / "encoder.json").read_text())
    (copy / "encoder.json").write_text(json.dumps(values | {"classes": ["a", "b", "c"]}))
    with pytest.raises(
        StudyError, match="not the model that the encoder of the run belongs to: it has no output for each of the 3"
    ):
        predict(copy, table)
    (copy / "encoder.json").write_text(json.dumps(values | {"columns": values["columns"][:-1]}))
    with pytest.raises(StudyError, match="not the model that the encoder of the run belongs to: size mismatch"):
        predict(copy, table)


def test_the_model_card(run: RunFolder, config: Config, tmp_path: Path) -> None:
    """It tells the risk, and nothing that was measured on training records."""
    text = model_card.write(run.path).read_text()
    assert (run / "model-card.md").stat().st_mode & 0o777 == 0o600
    assert "right at most" in text
    assert "training records | 319" in text
    assert "(6 → 128 → 2) predicts rich of a record: no, yes." in text
    assert "from betastar.runs import load" in text
    measured = run.epochs[-1]["exact"]
    assert not re.search(r"\bage\b", text), "the figure of age is measured"
    assert not any(f"{number:.4f}" in text for number in (measured["lower"], measured["estimate"]))
    proved = train(replace(config, epochs=1, gap=0.1, seed=3), tmp_path / "proved")
    text = model_card.write(proved.path).read_text()
    assert "Gap clipping fixed this before training (gap 0.1 clipping norms; a clipping norm is" in text
    assert "always guessing the most frequent label is right for" in text
    assert "The noise can be computed from the seed of the run. But it was chosen, and is small enough to be guessed" in text
    assert np.isfinite(proved.epochs[-1]["accuracy"])
