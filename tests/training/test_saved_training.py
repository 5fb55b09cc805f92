"""A training loop of one's own: what its monitor shows of itself, and the folder that a report takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import betastar as bs
from betastar.drawn_steps import DrawnBatch, SamplingScheme, poisson
from betastar.report import recomputed
from betastar.report.facts import load
from betastar.report.recomputed import ReportError
from betastar.report.report import write
from betastar.runs.reading import FolderError
from betastar.training import AttributeMonitor, Budget, PrivateTraining, Records, Secret
from betastar.training.measurement import AttributeMeasurement

from ..command import call
from ..displayed import html_of, printed_by_rich
from .private import build, fit, private, training


def watched(steps: int = 6, noise: Any = 1.0, **options: Any) -> AttributeMonitor:
    module, data, secret = build("tanh")
    parts, criterion = private(module, data, noise=noise, accountant="betastar"), nn.CrossEntropyLoss()
    monitor = AttributeMonitor(*parts, criterion, secret, **options)
    if steps:
        fit(parts, criterion, steps)
    return monitor


def clipping(steps: int = 6, gap: float = 0.1) -> PrivateTraining:
    module, data, secret = build("tanh")
    made = training(module, data, secret, gap=gap)
    for _ in range(steps):
        made.step()
    return made


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time that a report takes, and have tests of their own."""
    monkeypatch.setattr("betastar.report.report.draw", lambda facts: iter(()))


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_monitored_loop(tmp_path: Path) -> None:
    """Its numbers are those of the monitor."""
    monitor = watched(scope="dataset", ledger=True)
    folder = monitor.save(tmp_path / "runs" / "mine")
    assert sorted(path.name for path in folder.iterdir()) == ["ledger.csv", "metrics.jsonl", "training.json"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    facts = load(folder)
    assert facts.run == monitor.run
    assert facts.membership.lower == monitor.membership(method="certified").bayes_security.lower
    (attribute,) = facts.attributes
    assert attribute.lower == monitor.risk().bayes_security.lower
    assert (attribute.kind, attribute.name, attribute.values) == ("dataset", "secret", 7)
    assert len(facts.exposures) == 120
    written = [float(line.split(",")[2]) for line in (folder / "ledger.csv").read_text().splitlines()[1:]]
    assert min(written) == min(facts.exposures.values()) >= attribute.lower, "no record is exposed more than any record"
    public = write(folder, public=True)[1][0].read_text()
    assert "Membership inference" in public
    assert "Attribute inference" not in public
    assert "Exposure" not in public
    done = call("report", str(folder))
    assert done.returncode == 0, done.stderr
    text = (folder / "report.html").read_text()
    assert "mine: 6 steps of DP-SGD in a custom loop" in text
    _, data, secret = build("tanh")
    held = secret.own(Records((data.tensors[0],), data.tensors[1])).bincount(minlength=7) / 120
    assert list(facts.shares.values()) == pytest.approx(held.tolist())
    assert f"guessing alone is right {100 * float(held.max()):.2f} % of the time" in text
    assert "guessing alone" not in public
    assert facts.command.startswith('python -c "import betastar as bs; print(bs.analyze(bs.DPSGD(')


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_private_training(tmp_path: Path) -> None:
    made = clipping()
    folder = made.save(tmp_path / "mine")
    assert [path.name for path in folder.iterdir()] == ["training.json"]
    facts, _ = write(folder, kind="md")
    (attribute,) = facts.attributes
    assert (attribute.kind, attribute.gap, attribute.values) == ("proved", 0.1, 7)
    assert attribute.lower == made.guarantee.attribute.bayes_security.lower


@pytest.mark.usefixtures("no_figures")
def test_noise_that_changes(tmp_path: Path) -> None:
    monitor = watched(steps=2)
    monitor.adopt(0.5, None)
    monitor.record(poisson(0.1), 2.0)
    facts = load(monitor.save(tmp_path / "mine"))
    assert len(facts.run.segments) == 2
    assert facts.run == monitor.run
    assert " + bs.DPSGD(" in facts.command
    assert write(tmp_path / "mine")[1][0].exists()


def test_steps_of_every_sampling_are_read_as_they_were() -> None:
    """Epochs that are unfinished or whose noise changes, a sampler that begins anew, and batches that are cut off."""
    options: dict[str, Any] = {"scope": "dataset", "diameter": "exact", "every": 1, "ledger": False, "writers": ()}
    history = AttributeMeasurement(Secret.label(2), [], None, **options)  # type: ignore[arg-type]  # only records steps
    bins = SamplingScheme("balls-in-bins", 0.25, batches=4, records=40)
    drawn = [(bins, "1", 2.0)] * 3 + [(bins, "1", 1.5)] + [(bins, "2", 1.5)] * 2 + [(bins, "3", 1.5)] * 4
    drawn += [(SamplingScheme("poisson", 0.1, records=40, max_batch_size=9), "", 1.0)] * 3 + [
        (SamplingScheme("poisson", 0.1), "", 1.0)
    ]
    for i, (scheme, epoch, noise) in enumerate(drawn):
        history.adopt(0.1 + 0.01 * i, None)
        history.record(DrawnBatch(scheme, epoch), noise)
        assert history.entries()[-1].items() <= history.entry().items()
    steps = json.loads(json.dumps(history.entries()))
    assert recomputed.run_of_steps(steps) == history.run
    assert recomputed.distances(steps) == history._drawn.spread(history.distances).tolist()


def test_the_report_of_a_budget_and_of_persons(tmp_path: Path) -> None:
    module, data, secret = build("tanh")
    fits = training(module, data, secret, budget=Budget(0.1), steps=1, noise_multiplier=4.0).fit()
    (attribute,) = load(fits.save(tmp_path / "fits")).attributes
    assert (attribute.kind, attribute.gap) == ("proved", 2.0)
    measures = training(build("tanh")[0], data, secret, budget=Budget(0.5), noise_multiplier=4.0)
    measures.step()
    facts = load(measures.save(tmp_path / "measures"))
    assert facts.attributes == ()
    assert facts.budget is not None
    assert "β* ≥ 0.5" in facts.budget
    assert "membership is measured, and not proved" in facts.budget
    persons = training(build("tanh")[0], data, records=3, noise_multiplier=4.0)
    persons.step()
    person = load(persons.save(tmp_path / "persons")).person
    assert person is not None
    assert person.lower == pytest.approx(float(persons.guarantee.membership.bayes_security.lower), abs=1e-4)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    monitor = watched(ledger=False)
    folder = monitor.save(tmp_path / "mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=r"holds a training that was saved before: choose another folder, or overwrite=True"):
        clipping().save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    clipping().save(folder, overwrite=True)
    assert [path.name for path in folder.iterdir()] == ["training.json"], "no step of the training that was replaced"
    assert load(folder).attributes[0].kind == "proved"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=r"must be a new folder, but .*thesis holds something else"):
            monitor.save(tmp_path / "thesis", overwrite=overwrite)
    with pytest.raises(ValueError, match=r"must be a folder, but .* is a file"):
        monitor.save(tmp_path / "thesis" / "thesis.txt")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ValueError, match="is a symbolic link"):
        monitor.save(tmp_path / "link", overwrite=True)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no step was taken yet"):
        watched(steps=0).save(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format must be 1, got 2"),
        ({"made_by": "hand"}, "made_by must be one of 'monitor', 'private training', got 'hand'"),
        ({"segments": []}, "is damaged or not of betastar train"),
        (
            {"segments": [{"noise_multiplier": 9.0, "sample_rate": 0.1, "steps": 6}]},
            r"says that the run was .*, but metrics\.jsonl gives",
        ),
        ({"segments": [{"noise_multiplier": -1.0, "sample_rate": 0.1, "steps": 6}]}, "noise_multiplier must be"),
        ({"secrets": {"secret": {"values": 7, "shares": {"a": 7.0}}}}, r"shares\['a'\] must be between 0 and 1, got 7"),
        ({"secrets": {}}, "must name the one secret that the monitor watched"),
    ],
)
def test_a_forged_folder_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = watched().save(tmp_path / "mine")
    told = json.loads((folder / "training.json").read_text())
    (folder / "training.json").write_text(json.dumps(told | change))
    with pytest.raises((ReportError, FolderError), match=message):
        load(folder)


def test_what_a_monitor_shows() -> None:
    monitor = watched()
    assert repr(monitor) == "AttributeMonitor('secret', 6 steps, batch scope)"
    lines = str(monitor).splitlines()
    assert lines == [f"secret (7 values), 6 steps: {monitor.progress()}", monitor.label]
    assert "no step yet" in str(watched(steps=0))
    risk = str(monitor.risk()).splitlines()
    assert "is right about" in risk[0]
    assert risk[1].startswith("β* ≈ "), "what was measured in batches bounds nothing"
    assert risk[2] == monitor.label
    shown, html = printed_by_rich(monitor), html_of(monitor)
    lower = bs.analyze(monitor.run).bayes_security.lower
    for text in (shown, html):
        assert f"{int(lower * 1e4) / 1e4:.4g}" in text
        assert "≈ " in text
        assert "eyes only" in text


def test_what_a_guarantee_shows() -> None:
    """Its sentences, and a table with the same digits; a notebook draws the curve of membership."""
    guarantee = clipping().guarantee
    shown, html = printed_by_rich(guarantee), html_of(guarantee)
    assert guarantee.membership is not None
    for name, risk in (("membership", guarantee.membership), *guarantee.attributes.items()):
        relied = f"{int(risk.bayes_security.lower * 1e4) / 1e4:.4g}"
        assert html.count(relied) >= 2, "in a sentence and in the table"
        assert f"{name}, proved: Bayes security β*" in shown
    assert "<svg" in html
    assert str(guarantee).splitlines()[1].endswith(".")


def test_a_terminal_shows_the_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    module, data, _ = build("tanh")
    training(module, data, steps=3).fit()
    told = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "3/3" in told
    assert re.search(r"loss \d", told)
    training(build("tanh")[0], data, steps=3).fit(progress=False)
    assert capsys.readouterr().err == ""
