"""Each threat has one number to rely on, and every place that names it shows the same digits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from betastar.calibrate import Target
from betastar.cli.main import app
from betastar.cli.train import show
from betastar.report import model_card
from betastar.report.facts import load, public
from betastar.report.report import render
from betastar.report.statement import verdicts
from betastar.runs.folder import ENCODER

from .runs import beta, rows, trained

#: A number to rely on and its word, in Markdown.
MARKDOWN = re.compile(r"\*\*β\\\* [≥≈] ([\d.]+), (.*?)\. ")


@pytest.fixture(scope="module")
def budget(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("budget"), target_beta=0.6)


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    path = tmp_path / "setting.json"
    path.write_text('{"noise_multiplier": 3, "sample_rate": 0.01, "steps": 500, "distance": 0.3}')
    return path


def cards(page: str) -> dict[str, tuple[str, str]]:
    """The number and the word of each card on the first page."""
    said = {}
    for name, card in re.findall(r'<section class="card \w+" data-threat="(.*?)">(.*?)</section>', page, re.S):
        (number,) = re.findall(r"β\* [≥≈] <strong>([\d.]+)</strong>", card)
        assert set(re.findall(r"0\.\d{3,}", card)) <= {number}, "no second number beside it"
        (word,) = re.findall(r'<span class="tag">(.*?)</span>', card)
        assert name not in said, "one card for each threat"
        said[name] = number, word
    assert page.index("</section>") < page.index("Appendix")
    return said


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("run", ["proved", "measured"]),
        ("clipped", ["proved", "proved"]),
        ("budget", ["not proved", "proved"]),
        ("setting", ["proved", "proved if the distance holds"]),
    ],
)
def test_every_place_shows_the_same_digits(
    made: str, words: list[str], request: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    source: Path = request.getfixturevalue(made)
    facts = load(source)
    page = render(facts, [], "html")
    said = cards(page)
    expected = list(said.values())
    assert [word for _, word in expected] == words
    name, numbers = next(iter(rows(page).items()))
    assert name == "Bayes security β*, the number to rely on", "the first row is bold"
    assert [numbers[0], *numbers[2:]] == [number for number, _ in expected]
    for brief in (False, True):
        assert MARKDOWN.findall(render(facts, [], "md", brief=brief)) == expected
    monkeypatch.setattr("betastar.report.report.draw", lambda facts: iter(()))
    for module in ("report", "model_card"):  # what was computed is not computed again
        monkeypatch.setattr(f"betastar.report.{module}.load", lambda source: facts)
    command = ["report", str(source), "-o", str(tmp_path / "report.html"), "--force"]
    terminal = CliRunner().invoke(app, command).stdout
    assert re.findall(r"^\w.*?: β\* [≥≈] ([\d.]+), (.*?)\. ", terminal, re.M) == expected
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["threats"]
    assert [(beta(one["bayes_security"]["lower"]), one["known"]) for one in told] == expected
    assert [one["threat"] for one in told] == list(said)
    if not (source / ENCODER).exists():
        return
    capsys.readouterr()
    show(source, facts)
    last = capsys.readouterr().out
    assert re.findall(r"^\w.*?: β\* [≥≈] ([\d.]+), (.*?)\. ", last, re.M) == expected
    assert re.findall(r"^(\w+), .*? β\* +(?:≈ )?([\d.]+)", last, re.M) == [(name, number) for name, (number, _) in said.items()]
    card = model_card.write(source).read_text()
    assert MARKDOWN.findall(card) == [one for one in expected if one[1] != "measured"], "what was measured is not in it"


def test_a_budget_is_the_number_of_its_attribute(budget: Path) -> None:
    """What was measured under it is in the appendix; the public report has the same verdict."""
    facts = load(budget)
    assert facts.measured is not None
    assert cards(render(facts, [], "html"))["age"] == ("0.6", "proved")
    assert facts.measured.lower != 0.6
    assert cards(render(public(facts), [], "html"))["age"] == ("0.6", "proved")


@pytest.mark.parametrize(
    ("target", "met"),
    [("bayes_security>=0.95", [False, True]), ("bayes_security>=0.5", [True, True]), ("tpr<=2%@fpr=1%", [False, True])],
)
def test_the_verdict_is_by_the_readers_own_threshold(target: str, met: list[bool], clipped: Path) -> None:
    facts, wanted = load(clipped), Target.parse(target)
    said = verdicts(facts, wanted)
    assert [one.met for one in said] == met
    assert all(f"the target {wanted}" in one.judged for one in said)
    page = render(facts, [], "html", target=wanted)
    assert "example bands" not in page
    assert [one.met for one in verdicts(facts)] == [None, None]
    assert "an example, not a standard" in render(facts, [], "html")


def test_what_is_not_proved_meets_no_threshold(budget: Path) -> None:
    said = verdicts(load(budget), Target(bayes_security=0.01))
    assert [(one.word, one.met) for one in said] == [("not proved", False), ("proved", True)]
