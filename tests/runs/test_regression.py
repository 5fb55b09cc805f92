"""A label that is a number: training, what is reported, `betastar predict`, the card and gap clipping."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from betastar.quality import QUALITY
from betastar.report import model_card, report
from betastar.report.facts import load as facts_of
from betastar.report.facts import public
from betastar.runs import load, quality
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import Training, train
from betastar.runs.prediction import predict
from betastar.runs.reading import StudyError
from betastar.runs.study import split

from ..command import call
from ..trained_runs import TrainedRuns


@pytest.fixture
def config(runs: TrainedRuns) -> Config:
    return runs.houses()


@pytest.fixture
def table(config: Config) -> Path:
    return Path(config.study)


@pytest.fixture
def run(config: Config, trained: Callable[[Config], RunFolder]) -> RunFolder:
    return trained(config)


def test_the_figures_against_scikit_learn() -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    generator = np.random.default_rng(3)
    labels, said = generator.normal(5.0, 2.0, 50), generator.normal(5.0, 2.0, 50)
    told = quality.errors(said, labels)
    assert told["rmse"] == pytest.approx(np.sqrt(mean_squared_error(labels, said)), rel=1e-12)
    assert told["mae"] == pytest.approx(mean_absolute_error(labels, said), rel=1e-12)
    assert told["r2"] == pytest.approx(r2_score(labels, said), rel=1e-12)
    always = quality.baseline_errors(labels)
    assert always["baseline_rmse"] == pytest.approx(np.sqrt(mean_squared_error(labels, np.full(50, labels.mean()))), rel=1e-12)
    assert always["baseline_mae"] == pytest.approx(mean_absolute_error(labels, np.full(50, labels.mean())), rel=1e-12)
    assert "r2" not in quality.errors(np.ones(3), np.full(3, 2.0))


@pytest.mark.parametrize("label_range", [None, (150_000.0, 500_000.0)])
def test_predict_on_the_table_gives_what_the_run_reported(
    config: Config, trained: Callable[[Config], RunFolder], table: Path, label_range: tuple[float, float] | None
) -> None:
    """In the label's own units; with a declared range, records beyond it are judged by their true label."""
    folder = trained(replace(config, label_range=label_range))
    reported = folder.epochs[-1]
    told = predict(folder.path, table)
    assert set(told.test_quality) == {"rmse", "mae", "r2", "baseline_rmse", "baseline_mae"}
    for name, value in told.test_quality.items():
        assert value == pytest.approx(reported[name], rel=1e-5)
    frame = pd.read_csv(table)
    labelled = frame["price"].notna().to_numpy()
    assert folder.data is not None
    _, test = split(int(labelled.sum()), folder.data["seed"])
    assert told.tested == len(test) == 80
    price, said = frame["price"][labelled].to_numpy(), told.predictions["prediction"][labelled].to_numpy()
    assert np.sqrt(np.mean((price - said)[test] ** 2)) == pytest.approx(reported["rmse"], rel=1e-5)
    assert np.abs(price - said).mean() == pytest.approx(told.quality["mae"], rel=1e-9)
    assert price[test].std() == pytest.approx(reported["baseline_rmse"], rel=1e-6)
    assert reported["rmse"] < 0.7 * reported["baseline_rmse"], "or the test proves little"
    assert len(told.predictions) == 400
    assert told.predictions["prediction"].between(0.0, 1e6).all()


def test_the_loss_is_the_squared_error_of_the_scaled_label(config: Config, table: Path, tmp_path: Path) -> None:
    training = Training(replace(config, monitor=False), RunFolder(tmp_path / "run"))
    x, y = training.study.train.tensors
    out = training.module(x).detach()
    assert out.shape == y.shape
    assert float(training.training.criterion(out, y)) == pytest.approx(float(((out - y) ** 2).mean()), rel=1e-6)
    price = pd.read_csv(table)["price"].dropna().to_numpy()
    assert training.study.label_scale is not None
    assert set(np.round(training.study.label_scale.labels(y.flatten()), -2)) <= set(price)


def test_every_figure_has_a_word(run: RunFolder) -> None:
    known = {"step", "epoch", "steps", "loss", "membership", "exact"}
    assert set(run.epochs[-1]) - known == {"rmse", "mae", "r2", "baseline_rmse", "baseline_mae"}
    assert set(run.epochs[-1]) - known <= set(QUALITY)


def test_three_lines_of_python(run: RunFolder, table: Path) -> None:
    encoder, model = load(run.path)
    assert encoder.label_scale is not None
    numbers = encoder.label_scale.labels(model(encoder.tensor(pd.read_csv(table))).detach().flatten())
    assert numbers == pytest.approx(predict(run.path, table).predictions["prediction"].to_numpy(), rel=1e-5)


def test_gap_clipping_and_the_label_as_a_secret(config: Config, table: Path, tmp_path: Path) -> None:
    proved = train(replace(config, gap=0.1, epochs=1), tmp_path / "rooms")
    assert proved.status.gaps == {"rooms": 0.1}
    rounded = pd.read_csv(table).assign(price=lambda frame: (frame["price"] // 20_000) * 20_000)
    rounded.to_csv(tmp_path / "rounded.csv", index=False)
    label: dict[str, Any] = {"label": "price", "sensitive": "price", "epochs": 1, "batch_size": 40, "seed": 0}
    own = Config(str(tmp_path / "rounded.csv"), **label)
    watched = train(own, tmp_path / "label")
    assert watched.status.secret == "price"
    assert watched.epochs[-1]["exact"]["lower"] >= watched.epochs[-1]["membership"]["lower"] - 1e-9
    for wish in ({"gap": 0.1}, {"attribute_target": "bayes_security>=0.99"}):
        with pytest.raises(StudyError, match="a proof about the label 'price' needs --label-range"):
            train(Config(str(tmp_path / "rounded.csv"), **label, **wish), tmp_path / "refused")
    declared = Config(str(tmp_path / "rounded.csv"), **label, gap=0.1, label_range=(100_000.0, 600_000.0))
    assert train(declared, tmp_path / "declared").status.gaps == {"price": 0.1}
    with pytest.raises(StudyError, match="'price' is the label and the secret"):
        train(Config(str(tmp_path / "rounded.csv"), **label, along=("town",)), tmp_path / "refused")


def test_studies_of_the_paper_have_labels_of_their_own() -> None:
    with pytest.raises(StudyError, match="--label-range is for a table of your own; adult is not one"):
        Config("adult", label_range=(0.0, 1.0)).load()
    with pytest.raises(StudyError, match="--label is for a table of your own"):
        Config("adult", label="sex").load()


def test_the_report_and_the_card(config: Config, run: RunFolder, trained: Callable[[Config], RunFolder]) -> None:
    last = run.epochs[-1]
    facts = facts_of(run.path)
    text = report.render(facts, list(report.draw(facts)), "html")
    rmse, always = (QUALITY["rmse"].shown(last[name]) for name in ("rmse", "baseline_rmse"))
    assert re.fullmatch(r"\d\d,\d+", rmse)
    assert f"are off by {rmse} (RMSE)" in text
    assert f"always predicting the mean, by {always} (RMSE)" in text
    assert "Privacy against error" in text
    assert "How the table was read" in text
    assert "computed without noise, and no figure of risk covers them" in text
    assert "accuracy" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.S)
    shared = report.render(public(facts), [], "html")
    assert rmse not in shared
    assert "How the table was read" not in shared
    summary = report.summarise(run.path).read_text()
    assert "![privacy against error](error.png)" in summary
    assert (run / "error.png").exists()
    card = model_card.write(run.path).read_text()
    assert "(4 → 128 → 1) predicts price of a record: a number." in card
    assert f"off by {rmse} (RMSE)" in card
    assert f"always predicting the mean, by {always} (RMSE)" in card
    assert "The mean and the deviation of price in the training records" in card
    assert "encoder.label_scale.labels(outputs" in card
    declared = trained(replace(config, label_range=(0.0, 1e6)))
    card = model_card.write(declared.path).read_text()
    assert "scaled by the range 0…1000000 of price, which was declared and not computed" in card
    assert json.loads((declared / "encoder.json").read_text())["label_scale"] == {
        "mean": 500_000.0,
        "scale": 500_000.0,
        "low": 0.0,
        "high": 1e6,
    }


def test_the_commands(table: Path, tmp_path: Path) -> None:
    words = ["train", str(table), "--label", "price", "--label-range", "0:1000000", "--sensitive", "rooms", "--epochs", "1"]
    words += ["--batch", "40"]
    done = call(*words, "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "The label 'price' holds" in done.stderr.replace("\n", " ")
    assert re.search(r"Predictions for the test records are off by [\d,]+ \(RMSE\); always predicting\s", done.stdout)
    last = RunFolder(tmp_path / "run").epochs[-1]
    told = json.loads(call("predict", str(tmp_path / "run"), str(table), "--json").stdout)
    assert set(told) == {"label", "records", "tested", "predictions"} | {
        f"{part}{name}" for part in ("", "test_") for name in ("rmse", "mae", "r2", "baseline_rmse", "baseline_mae")
    }
    assert told["test_rmse"] == pytest.approx(last["rmse"], rel=1e-5)
    said = call("predict", str(tmp_path / "run"), str(table), "-o", str(tmp_path / "predictions.csv"))
    assert said.stderr == ""
    assert "Predictions for the 80 records that it kept for testing are off by " in said.stdout
    assert (tmp_path / "predictions.csv").read_text().startswith("record,prediction\n0,")
    made = call("report", str(tmp_path / "run"), "-o", str(tmp_path / "report.md"))
    assert made.returncode == 0, made.stderr
    assert "--label-range 0:1000000" in (tmp_path / "report.md").read_text()
    bad = call(*words[:4], "--label-range", "much", "--sensitive", "rooms", "-o", str(tmp_path / "bad"))
    assert bad.returncode == 2
    assert "--label-range must be two numbers as in 17:90, got 'much'" in bad.stderr
    pd.read_csv(table).assign(price="dear").to_csv(tmp_path / "words.csv", index=False)
    refused = call("predict", str(tmp_path / "run"), str(tmp_path / "words.csv"))
    assert refused.returncode == 2
    assert "the label 'price' must hold finite numbers, as it did in training, got 'dear'" in refused.stderr


def test_damaged_encoders_are_named(run: RunFolder, table: Path) -> None:
    copy = run.path
    values = json.loads((copy / "encoder.json").read_text())
    for scale in (
        {"mean": 1.0, "scale": 0.0},
        {"mean": "x", "scale": 1.0},
        {"mean": 1.0},
        {"mean": 0.0, "scale": 1.0, "low": 1.0},
    ):
        (copy / "encoder.json").write_text(json.dumps(values | {"label_scale": scale}))
        with pytest.raises(StudyError, match=r"encoder\.json is damaged"):
            predict(copy, table)
    (copy / "encoder.json").write_text(json.dumps({name: one for name, one in values.items() if name != "label_scale"}))
    with pytest.raises(StudyError, match="it has no output for each of the 0 classes"):
        predict(copy, table)
