"""The report holds together: every number of a run agrees wherever it is shown, and the public variant knows no record."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import betastar as bs
from betastar.report import statement
from betastar.report.facts import load, public
from betastar.report.report import write
from betastar.runs import quality
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train

from ..command import call

#: A4 without the margins of the style sheet, in pixels of CSS.
WIDTH, HEIGHT = round((210 - 34) / 25.4 * 96), round((297 - 36) / 25.4 * 96)


def table(seed: int, number: int = 300) -> pd.DataFrame:
    """Records of patients; few have the diagnosis."""
    generator = np.random.default_rng(seed)
    age = generator.integers(20, 60, number)
    ill = generator.random(number) < 0.07
    ill[:2] = True
    label = age + 20 * ill + generator.normal(0, 8, number) > 40
    return pd.DataFrame({"age": age, "diagnosis": np.where(ill, "yes", "no"), "rich": np.where(label, "yes", "no")})


def trained(folder: Path, records: int = 0, **options: Any) -> Path:
    """A run on the records with this number, kept as people/run."""
    folder.mkdir(parents=True, exist_ok=True)
    table(records).to_csv(folder / "people.csv", index=False)
    fixed: dict[str, Any] = {"epochs": 2, "noise_multiplier": 4.0, "batch_size": 60, "seed": 2**90}
    return train(Config(str(folder / "people.csv"), "rich", "diagnosis", **{**fixed, **options}), folder / "run").path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("variants"))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="watched", marks=pytest.mark.slow),
        pytest.param({"gap": 0.2}, id="gap"),
        pytest.param({"monitor": False}, id="plain", marks=pytest.mark.slow),
    ],
)
def test_the_public_report_is_the_same_whatever_the_records_are(options: dict[str, Any], tmp_path: Path) -> None:
    texts: dict[str, list[str]] = {"html": [], "json": []}
    for records in (1, 2):
        folder = trained(tmp_path / str(records), records, **options)
        path = write(folder, public=True, author="A. Person", purpose="for partners")[1][0]
        assert path.name == "report-public.html"
        texts["html"].append(path.read_text())
        said = json.loads(call("report", str(folder), "--public", "--force", "--json").stdout)
        texts["json"].append(json.dumps({key: value for key, value in said.items() if key != "files"}))
        internal = write(folder)[1][0].read_text()
        assert RunFolder(folder).data["sha256"] in internal  # type: ignore[index]
        assert "of the records that it has not seen" in internal
    for kind, (first, second) in texts.items():
        assert first == second, kind
    for said in ("SHA-256", "AUC", "that it has not seen", "Exposure", "training records.", str(tmp_path), "as measured"):
        assert said not in texts["html"][0], said
    assert "<b>records</b>" not in texts["html"][0]
    assert "nothing in it depends on the training records" in texts["html"][0]
    assert "Left out" in texts["html"][0]


def test_a_public_report_of_what_cannot_be_published_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--public leaves out single records"):
        write(run, tmp_path / "x.html", records=True, public=True)
    budgeted = replace(load(run), budget="Proved", budgeted=0.9)
    with pytest.raises(ValueError, match="--public must not tell when the budget ended this run"):
        public(budgeted)


@pytest.mark.parametrize(("seed", "options"), [(2, {"noise_multiplier": 0.8}), (3, {"scope": "dataset", "every": 2})])
def test_no_record_is_exposed_more_than_any_record(seed: int, options: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(tmp_path, seed, **{"seed": seed, **options})
    any_record = RunFolder(folder).epochs[-1]["exact"]["lower"]
    exposures = [entry.bayes_security for entry in RunFolder(folder).ledger]
    assert any_record <= min(exposures) < 1.0
    assert len(set(exposures)) > len(exposures) / 4, "records differ"
    facts = load(folder)
    assert facts.measured is not None
    assert min(facts.exposures.values()) >= facts.measured.lower
    text = write(folder, tmp_path / "report.html")[1][0].read_text()
    shown = re.search(r"the most exposed one has β\* ≈ ([\d.]+)", text)
    figure = re.search(r"β\* [≈≥] <strong>([\d.]+)</strong> <span", text[text.index('data-threat="diagnosis"') :])
    assert shown is not None
    assert figure is not None
    assert float(shown[1]) >= float(figure[1])


def test_a_ledger_of_an_earlier_version_is_not_below_the_figure(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for path in run.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "ledger.csv").write_text("record,leakage,bayes_security\n3,0.5,0.01\n4,0.0,1.0\n")
    facts = load(folder)
    assert facts.measured is not None
    assert facts.exposures == {3: facts.measured.lower, 4: 1.0}


def test_every_number_of_a_run_agrees(run: Path, tmp_path: Path) -> None:
    """The run's own files, the report, its JSON, and the command analyze by the method certified."""
    last, status = RunFolder(run).epochs[-1], RunFolder(run).status
    told = json.loads(call("report", str(run), "-o", str(tmp_path / "report.html"), "--json").stdout)
    page = (tmp_path / "report.html").read_text()
    options = ["--noise", str(status.noise_multiplier), "--rate", repr(status.sample_rate), "--steps", str(last["steps"])]
    analyzed = json.loads(call("analyze", *options, "--method", "certified", "--advise", "--json").stdout)
    member = analyzed["bayes_security"]["lower"]
    assert told["threats"][0]["bayes_security"]["lower"] == member == pytest.approx(last["membership"]["lower"], abs=1e-3)
    assert told["threats"][1]["bayes_security"]["lower"] == last["exact"]["lower"]
    advised = analyzed["advice"]["options"][0]
    assert advised["parameter"] == "noise_multiplier"
    assert told["advice"][0]["options"][0] == advised
    assert told["advice"][0]["sentence"] in page
    assert f"{100.0 * last['accuracy']:.1f} %" in page


def test_real_odds_stand_beside_even_ones(run: Path, tmp_path: Path) -> None:
    facts = load(run)
    assert facts.measured is not None
    ill = facts.shares["yes"]
    assert 0.02 < ill < 0.15
    assert sum(facts.shares.values()) == pytest.approx(1.0)
    text = write(run, tmp_path / "report.html")[1][0].read_text()
    reach = float(facts.measured.certified.success(ill).upper)
    assert reach >= 1.0 - ill
    said = re.search(r"guessing alone is right ([\d.]+) % of the time, with the model about ([\d.]+) %\.</p>", text)
    assert said is not None
    assert float(said[1]) == pytest.approx(100 * (1.0 - ill), abs=0.011)
    assert said[2] == f"{np.ceil(1e4 * reach - 1e-6) / 100:.2f}"
    with pytest.raises(ValueError, match=r"--prior: prior must be strictly between 0 and 1, got 2"):
        write(run, tmp_path / "wrong.html", prior=2.0)
    known = write(run, tmp_path / "known.html", prior=0.3)[1][0].read_text()
    assert "“no” has probability 70.00 %" in known
    path = tmp_path / "setting.json"
    path.write_text('{"noise_multiplier": 1, "sample_rate": 0.01, "steps": 2000, "prior": 0.07}')
    reach = float(bs.analyze(bs.DPSGD(1.0, 0.01, 2000), method="certified").success(0.07).upper)
    text = write(path, tmp_path / "setting.html")[1][0].read_text()
    assert "“no” has probability 93.00 %" in text
    assert f"with the model at most {np.ceil(1e4 * reach - 1e-6) / 100:.2f} %." in text
    path.write_text('{"noise_multiplier": 1, "sample_rate": 0.01, "steps": 2000, "prior": 7}')
    with pytest.raises(ValueError, match=r"setting\.json: prior must be strictly between 0 and 1, got 7"):
        load(path)


def test_who_made_it_and_of_what(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write(run, tmp_path / "report.html", author="<b>A</b>", purpose="to decide")[1][0].read_text()
    assert "<b>Made by</b> &lt;b&gt;A&lt;/b&gt;" in text
    assert "<b>Purpose</b> to decide" in text
    assert re.search(r"<b>Date</b> \d{4}-\d\d-\d\d<", text)
    assert re.search(r"<b>Run of</b> \d{4}-\d\d-\d\d<", text)
    assert RunFolder(run).data["sha256"] in text  # type: ignore[index]
    facts = load(run)
    monkeypatch.setattr(statement, "code_commit", lambda: "0123456789ab")
    assert dict(statement.origin(facts))["Code of this report"] == f"betastar {bs.__version__}, commit 0123456789ab"
    assert "Made by" not in dict(statement.about(facts)), "what is not known is left out"


def test_quality_is_what_others_compute() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    scores = generator.random((200, 3)).round(1)  # with ties
    scores /= scores.sum(axis=1, keepdims=True)
    assert quality.auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores, multi_class="ovr"))
    two = np.stack([-scores[:, 0], scores[:, 0]], axis=1)
    assert quality.auc(two, labels % 2) == pytest.approx(roc_auc_score(labels % 2, two[:, 1]))
    assert quality.auc(two, np.zeros(200, dtype=int)) is None
    assert quality.baseline(np.array([1, 0, 0, 1, 1])) == 0.6


@pytest.mark.parametrize("variant", ["internal", "public"])
def test_no_figure_is_cut_on_a4(browser: Any, run: Path, tmp_path: Path, variant: str) -> None:
    path = write(run, tmp_path / "report.html", public=variant == "public")[1][0]
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    figures = page.query_selector_all("figure")
    assert len(figures) == (6 if variant == "internal" else 4)
    for figure in figures:
        box = figure.bounding_box()
        assert box["height"] < HEIGHT / 2, "two fit on a page"
        assert box["x"] >= 0.0
        assert box["x"] + box["width"] <= WIDTH
        assert figure.evaluate("one => getComputedStyle(one).breakInside") == "avoid"
        assert figure.get_attribute("aria-label")
    pages = re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True))
    page.close()
    assert 3 <= len(pages) <= 9
