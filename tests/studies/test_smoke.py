"""One quick look at each study; the other tests of the studies are slow."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from betastar.runs import Config, RunFolder, StudyError, network, train
from studies import command
from studies.audits.__main__ import write as write_audits
from studies.gap_clipping import study as gap_clipping
from studies.one_run_power import __main__ as one_run_power
from studies.purchase import purchase
from studies.raters.data import raters
from studies.trainings import kept
from studies.tweets import study as tweets
from studies.voters import page as voters_page
from studies.voters import study as voters

ROOT = Path(__file__).parents[2]


def test_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What needs no training, and an error in one sentence."""

    def ended(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["paper", *words])
        try:
            runpy.run_module("studies.paper", run_name="__main__")
        except SystemExit as end:
            return end.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    code, out, err = ended("fig7", "numbers", "--quick", "--json", "-o", str(tmp_path))
    assert (code, err) == (0, "fig7 …\nnumbers …\n")
    rows = {row["what"]: row for row in json.loads(out)["rows"]}
    assert rows["TPR at FPR 0.1, by β* and by the curve"]["ours"] == "0.1284 and 0.1130"
    assert (tmp_path / "fig7.png").exists()
    code, _, err = ended("fig11")
    assert code == 2
    assert err.startswith("studies.paper: there is no 'fig11' to reproduce; there are all, fig1")


def test_a_study_without_its_packages() -> None:
    """After the install of the core alone: a sentence that says what to install, and no traceback."""
    code = (
        "import importlib.util, runpy; found = importlib.util.find_spec; "
        "importlib.util.find_spec = lambda name, *rest: None if name == 'joblib' else found(name, *rest); "
        "runpy.run_module('studies.paper', run_name='__main__')"
    )
    bad = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert bad.returncode == 1
    assert bad.stderr == 'studies: joblib is not installed. In the clone: python -m pip install -e ".[studies]"\n'


def test_gap_clipping(tmp_path: Path) -> None:
    """A run on the stand-in, which is not made again."""
    (case,) = [one for one in gap_clipping.cases(quick=True) if one.folder == "purchase-item-gap-0.5-noise-1.8"]
    small = replace(case, records=1200)
    result = gap_clipping._one(small, 0, tmp_path / "one", 1)
    assert (result["gap"], result["steps"], result["groups"]) == (0.5, 2, {})
    made = (tmp_path / "one" / "result.json").stat().st_mtime_ns
    assert gap_clipping._one(small, 0, tmp_path / "one", 1) == result
    assert (tmp_path / "one" / "result.json").stat().st_mtime_ns == made


def test_tweets() -> None:
    config = replace(tweets.QUICK, seed=0)
    study = tweets.load(config, 400)
    assert (len(study.public), len(study.train), len(study.test)) == (200, 160, 40)
    torch.manual_seed(0)
    assert network(study)(study.test.tensors[0][:3]).shape == (3, 3)


def test_voters(tmp_path: Path) -> None:
    config = replace(voters.QUICK, seed=0, epochs=1, gap=0.1)
    folder = train(config, tmp_path / "run", study=voters.load(config, 1000))
    assert folder.status.gaps == {"vote": 0.1}
    results = json.loads((ROOT / "studies" / "voters" / "results" / "results.json").read_text())
    assert voters_page.words(results)["seeds"] == 5


def test_raters() -> None:
    study = raters(0, max_records_per_person=3)
    assert (study.people.largest, study.people.number) == (3, 536)
    assert network(study)(study.test.tensors[0][:5]).shape == (5, 2)


def test_purchase() -> None:
    study = purchase(records=1000)
    assert (study.name, study.columns, len(study.train)) == ("Purchase-100 (synthetic)", 600, 800)


def test_audits(tmp_path: Path) -> None:
    results = ROOT / "studies" / "audits" / "results"
    for path in results.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    assert write_audits(tmp_path).read_text() == (results / "README.md").read_text()


def test_one_run_power() -> None:
    results = ROOT / "studies" / "one_run_power" / "results"
    assert one_run_power.page(json.loads((results / "one-run.json").read_text())) == (results / "one-run.md").read_text()


def test_a_command_ends_as_those_of_betastar_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(output: Path, seeds: int, jobs: int, quick: bool, tell: Any) -> dict[str, Any]:
        if seeds == 2:
            raise KeyboardInterrupt
        tell("1 of 1")
        return {"seeds": seeds, "jobs": jobs, "quick": quick}

    def ended(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["voters", "-o", str(tmp_path), *words])
        try:
            command.main("voters", "About voters.", run, lambda folder: folder / "README.md", seeds=5, quick="quickly")
        except SystemExit as end:
            return end.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    assert ended("--quick", "--json") == (0, '{"seeds": 1, "jobs": 2, "quick": true}\n', "1 of 1\n")
    assert ended() == (0, f"{tmp_path / 'README.md'}\n", "1 of 1\n")
    interrupted = "\nstudies.voters: interrupted; the same command goes on where it stopped.\n"
    assert ended("--seeds", "2") == (130, "", interrupted)
    code, _, text = ended("--seeds", "0")
    assert (code, "must be a whole number of at least 1, got '0'" in text) == (2, True)


def test_a_study_of_ones_own_is_trained(tmp_path: Path) -> None:
    """The hook that the studies rest on: records, a model and a secret of one's own, in place of a name."""
    config = Config(study="mine", sensitive="first item", epochs=1, batch_size=100, seed=0)
    study = replace(purchase(records=1000), model=lambda recipe: torch.nn.Linear(600, 100))
    folder = train(config, tmp_path / "run", study=config.applied_to(study))
    assert folder.complete
    assert {name: tuple(one.shape) for name, one in folder.weights.items()} == {"weight": (100, 600), "bias": (100,)}
    other = config.applied_to(purchase(seed=1, records=1000))
    (folder / "status.json").unlink()
    with pytest.raises(ValueError, match="the records are not those that the run"):
        train(config, tmp_path / "run", resume=True, study=other)


def test_a_result_of_another_configuration_is_not_returned(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert kept(folder, {"noise": 1.0}, lambda: {"accuracy": 0.8}) == {"accuracy": 0.8}
    assert kept(folder, {"noise": 1.0}, lambda: {"accuracy": 0.9}) == {"accuracy": 0.8}
    with pytest.raises(StudyError, match=r"the result of \{'noise': 1.0\}, not of \{'noise': 2.0\}"):
        kept(folder, {"noise": 2.0}, lambda: {"accuracy": 0.9})
    assert kept(folder, {"noise": 1.0}, lambda: {}) == {"accuracy": 0.8}
