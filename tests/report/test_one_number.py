"""Each threat has one number to rely on, and every place that names it shows the same digits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from betastar import plots
from betastar.calibrate import Target
from betastar.cli.main import app
from betastar.cli.train import show
from betastar.report import model_card
from betastar.report.facts import load
from betastar.report.report import render
from betastar.report.statement import verdicts
from betastar.risk import METRICS
from betastar.runs.config import Config
from betastar.runs.folder import ENCODER
from betastar.runs.search import search

from ..trained_runs import people
from .runs import beta, rows

#: A number to rely on and its word, in Markdown.
MARKDOWN = re.compile(r"\*\*β\\\* [≥≈] ([\d.]+), (.*?)\. ")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The saved folder of a training of one's own."""
    import torch
    from torch.utils.data import TensorDataset

    from betastar.training import PrivateTraining, Secret

    def made(**options: Any) -> Path:
        torch.manual_seed(0)
        data = TensorDataset(torch.rand(120, 3).round(), torch.arange(120) % 2)
        model = torch.nn.Linear(3, 2)
        fixed: dict[str, Any] = {"noise_multiplier": 6.0, "batch_size": 40} | options
        if fixed.pop("private", True):
            fixed["secret"] = Secret.column(0, values=[0.0, 1.0], name="sex")
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
        training = PrivateTraining(model, optimizer, data, loss, **fixed)
        for _ in range(3):
            training.step()
        training.save(folder := tmp_path_factory.mktemp("own") / "run")
        return Path(folder)

    return made


@pytest.fixture(scope="module")
def budget(own: Callable[..., Path]) -> Path:
    from betastar.training import Budget

    return own(budget=Budget(0.6))


@pytest.fixture(scope="module")
def groups(own: Callable[..., Path]) -> Path:
    from betastar.training import Protection

    members = {"some": range(0, 120, 2), "others": range(1, 120, 2)}
    targets = {"some": Target(bayes_security=0.93), "others": Target(bayes_security=0.85)}
    return own(private=False, noise_multiplier=None, steps=5, protection=Protection(members, targets))


@pytest.fixture(scope="module")
def promised(own: Callable[..., Path]) -> Path:
    from betastar.training import Budget

    return own(private=False, budget=Budget(0.8, per_record=True))


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
        beside = re.sub(r"gap [\d.]+ clipping norms", "", card)
        assert set(re.findall(r"0\.\d{3,}", beside)) <= {number}, "no second number beside it"
        (word,) = re.findall(r'<span class="tag">(.*?)</span>', card)
        assert name not in said, "one card for each threat"
        said[name] = number, word
    assert page.index("</section>") < page.index("Appendix")
    return said


@pytest.fixture(scope="module")
def opacus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved folder of a loop with Opacus, measured."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    from betastar.training import AttributeMonitor, Secret

    torch.manual_seed(0)
    data, model = TensorDataset(torch.rand(120, 3).round(), torch.arange(120) % 2), torch.nn.Linear(3, 2)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    private = {"noise_multiplier": 4.0, "max_grad_norm": 1.0}
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=40), **private
    )
    secret = Secret.column(0, values=[0.0, 1.0], name="sex")
    monitor = AttributeMonitor(model, optimizer, loader, loss, secret, scope="dataset")
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    monitor.save(folder := tmp_path_factory.mktemp("opacus") / "run")
    return Path(folder)


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best of three models."""
    folder = tmp_path_factory.mktemp("best")
    people(200).assign(town=np.arange(200) // 3).to_csv(folder / "people.csv", index=False)
    fixed: dict[str, Any] = {"drop": ("name",), "epochs": 1, "noise_multiplier": 6.0, "batch_size": 40, "person": "town"}
    config = Config(str(folder / "people.csv"), "rich", "age", **fixed, trials=3, attribute_target="bayes_security>=0.99")
    return search(config, folder / "best").path


#: The words of the numbers of each folder, and the reader's own targets with which they are shown.
CASES = {
    "run": ["proved", "measured"],
    "clipped": ["proved", "proved"],
    "budget": ["not proved", "proved"],
    "setting": ["proved", "proved if the distance holds"],
    "groups": ["proved", "proved", "proved"],
    "promised": ["proved"],
    "opacus": ["proved", "measured"],
    "best": ["proved", "proved", "proved"],
}
TARGETS = {"run": "bayes_security>=0.95", "groups": "success<=52%", "best": "tpr<=2%@fpr=1%", "promised": "advantage<=0.2"}


@pytest.mark.parametrize("made", CASES)
def test_every_place_shows_the_same_digits(made: str, request: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    source: Path = request.getfixturevalue(made)
    facts = load(source)
    wanted = Target.parse(TARGETS[made]) if made in TARGETS else None
    page = render(facts, [], "html", target=wanted)
    said = cards(page)
    expected = list(said.values())
    assert [word for _, word in expected] == CASES[made]
    name, numbers = next(iter(rows(page).items()))
    assert name == "Bayes security β*, the number to rely on", "the first row is bold"
    columns = {"membership", *(one.name for one in facts.attributes)}
    shown = [number for name, (number, _) in said.items() if name in columns]
    assert [numbers[0], *numbers[2:]] == shown
    picture = plots.guesses({one.name: 1.0 - one.lower / 2.0 for one in verdicts(facts)})
    for panel, one in zip(picture.figure.axes, verdicts(facts), strict=False):  # there may be a blank place
        right = METRICS["success"].rounded(1.0 - one.lower / 2.0, 0.5)
        assert f": {right.removesuffix(' %')} of 100" in panel.get_title()
        assert f"{right} of the time" in one.sentence
    for brief in (False, True):
        assert MARKDOWN.findall(render(facts, [], "md", brief=brief, target=wanted)) == expected
    monkeypatch.setattr("betastar.report.report.draw", lambda facts: iter(()))
    for module in ("report", "model_card"):  # what was computed is not computed again
        monkeypatch.setattr(f"betastar.report.{module}.load", lambda source: facts)
    command = ["report", str(source), "-o", str(tmp_path / "report.html"), "--force"]
    command += ["--target", TARGETS[made]] if made in TARGETS else []
    terminal = CliRunner().invoke(app, command).stdout
    assert re.findall(r"^\w.*?: β\* [≥≈] ([\d.]+), (.*?)\. ", terminal, re.M) == expected
    told = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["threats"]
    assert [(beta(one["bayes_security"]["lower"]), one["known"]) for one in told] == expected
    assert [one["threat"] for one in told] == list(said)
    if facts.private or (source / ENCODER).exists():
        card = model_card.write(source).read_text()
        assert MARKDOWN.findall(card) == [one for one in expected if one[1] != "measured"], "what was measured is not in it"
    if not (source / ENCODER).exists():
        return
    capsys.readouterr()
    show(source, facts)
    last = capsys.readouterr().out
    assert re.findall(r"^\w.*?: β\* [≥≈] ([\d.]+), (.*?)\. ", last, re.M) == expected
    table = re.findall(r"^(\w[\w ]*?), .*? β\* +(?:≈ )?([\d.]+)", last, re.M)
    assert table == [("a person" if name == "person" else name, number) for name, (number, _) in said.items()]


def test_a_budget_of_membership_is_the_number_where_it_proves_more(promised: Path) -> None:
    facts = load(promised)
    assert facts.membership.lower != 0.8 == facts.membership_budget
    for budget, lower in ((0.8, max(0.8, facts.membership.lower)), (0.99, 0.99)):
        changed = replace(facts, membership_budget=budget)
        ((name, (number, word)),) = cards(page := render(changed, [], "html")).items()
        assert (name, number, word) == ("membership", beta(lower), "proved")
        assert rows(page)["Bayes security β*, the number to rely on"][0] == number


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
