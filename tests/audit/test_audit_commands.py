"""`betastar audit mechanism` and its figure."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import betastar as bs
from betastar import audit, plots
from betastar.cli.main import app

from ..command import call

GAME = "audit mechanism --noise 1 --rate 0.05 --steps 20 --games 2000 --seed 3"


def run(line: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = call(*line.split())
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_it_says_the_verdict_first() -> None:
    result = audit.mechanism(bs.DPSGD(1.0, 0.05, 20), games=2000, seed=3)
    lines = run(GAME).stdout.splitlines()
    assert " ".join(lines[:2]).split() == result.sentence.split()
    assert any("advantage" in line for line in lines)
    assert any(line.strip() == "on a line" for line in lines)
    assert lines[-1] == "Played: membership inference (substitution), seed 3."


def test_json_is_what_the_core_says() -> None:
    line = GAME + " --threat attribute --distance 0.7 --prior 0.4 --confidence 0.9 --jobs 2 --json"
    result = audit.mechanism(bs.DPSGD(1.0, 0.05, 20), bs.AttributeInference(0.7), games=2000, seed=3, confidence=0.9, prior=0.4)
    assert json.loads(run(line).stdout) == json.loads(json.dumps(result.as_dict()))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "--games 20",
            "--games must be at least 402 for an interval of the advantage no wider than 0.2 at confidence 0.95, got 20.",
        ),
        ("--width 0.01", "--games must be at least 154056"),
        ("--jobs 0", "--jobs must be a whole number of at least 1, or -1 for all cores, got 0."),
        ("--confidence 1.5", "--confidence must be strictly between 0 and 1, got 1.5."),
        ("--seed -1", "--seed must be a whole number of at least 0, got -1."),
        ("--plot roc.gif", "--plot must end with one of .png, .svg, .pdf, got 'roc.gif'."),
        ("--plot /nowhere/roc.png", "--plot must be in a folder that exists, got '/nowhere/roc.png'."),
        ("--distance 1", "--distance must be left out with threat membership"),
    ],
)
def test_bad_input_is_named(more: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, f"{GAME} {more}".split())
    assert str(done.exception).startswith(message)
    assert done.output == ""


def test_bad_input_is_one_sentence() -> None:
    done = run(f"{GAME} --games 20", code=2)
    assert done.stderr.startswith("betastar: --games must be at least 402 for ")
    assert done.stdout == ""


def test_require_and_violation_exit_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not met: bayes_security>=0.99" in run(f"{GAME} --require bayes_security>=0.99", code=1).stderr
    assert run(f"{GAME} --require bayes_security>=0.5").stderr == ""
    play = audit.mechanism

    def faulty(claimed: bs.DPSGD, *rest: Any, **more: Any) -> audit.Audit:
        return play(claimed, *rest, **more, actual=bs.DPSGD(0.3, 0.5, 20))

    monkeypatch.setattr(audit, "mechanism", faulty)
    done = CliRunner().invoke(app, GAME.split())
    assert done.exit_code == 1
    assert done.output.startswith("Bound violated: in 2,000 games")


@pytest.mark.parametrize("log", [False, True])
def test_figure_shows_points_inside_their_band(log: bool) -> None:
    result = audit.mechanism(bs.DPSGD(1.0, 0.05, 20), games=2000, seed=3)
    ax = plots.audit(result, log=log)
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines) == ["guessing without the model", "bound", "measured, 2,000 games"]
    np.testing.assert_array_equal(lines["measured, 2,000 games"].get_xdata(), [point.fpr.estimate for point in result.roc])
    rates, drawn = lines["bound"].get_data()
    np.testing.assert_array_equal(drawn, bs.analyze(result.run, method="certified").tradeoff(rates).upper)
    band = ax.collections[-1].get_paths()[0]
    for point in result.roc:
        assert band.contains_point((point.fpr.estimate, point.tpr.estimate))
        assert band.contains_point((point.fpr.lower, point.tpr.upper), radius=1e-9)
    violated = plots.audit(replace(result, p_value=1e-9), log=log)
    assert ax.get_legend().get_title().get_text().endswith("bound not violated")
    assert violated.get_legend().get_title().get_text().endswith("bound violated (p = 1e-9)")


def test_figure_is_written_once(tmp_path: Path) -> None:
    file = tmp_path / "roc.v1.svg"
    assert f"The curve is in {file}." in run(f"{GAME} --plot {file}").stdout
    assert file.read_text().startswith("<?xml")
    assert "is there already" in run(f"{GAME} --plot {file}", code=2).stderr
    run(f"{GAME} --plot {file} --force --log --json")


def test_one_run_of_the_mechanism() -> None:
    """What is printed is what the core says; with other noise than is claimed, it ends with 1."""
    line = "audit mechanism --one-run --noise 2 --rate 0.5 --steps 4 --threat membership-add-remove --seed 1"
    claim, threat = bs.DPSGD(2.0, 0.5, 4), bs.Membership("add-remove")
    result = audit.one_run_mechanism(claim, threat, 1000, seed=1)
    assert run(line).stdout.split() == f"{result.sentence} Seed 1.".split()
    found = audit.one_run_mechanism(claim, threat, 500, seed=1, actual=bs.DPSGD(0.4, 0.5, 4))
    told = json.loads(run(f"{line} --actual-noise 0.4 --canaries 500 --json", code=1).stdout)
    assert told == json.loads(json.dumps(found.as_dict()))
    values = json.loads(run(line.replace("membership-add-remove", "attribute --distance 1 --values 4 --json")).stdout)
    assert (values["values"], values["violated"]) == (4, False)
    assert "--canaries must be" in run(f"{line} --canaries 3", code=2).stderr
    assert "--games does not go with --one-run" in run(f"{line} --games 3", code=2).stderr
    assert "--delta goes with --one-run" in run(f"{GAME} --delta 1e-6", code=2).stderr
    assert "betastar audit mechanism --one-run" in run("audit one-run-mechanism --noise 2", code=2).stderr
