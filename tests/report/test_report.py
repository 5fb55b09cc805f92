"""Reports: valid, whole, honest, and the same numbers as `analyze`; looked at in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
from betastar.calibrate import enforced
from betastar.report import statement
from betastar.report.facts import load
from betastar.report.report import draw, render, summarise, write
from betastar.risk import METRICS, band
from betastar.rounding import percent

from .runs import beta, change, checked, html, rows, trained, without_monitor

EVIL = "<img src=x onerror=alert(1)>*age*|`_$"


def test_the_page_is_whole_and_its_numbers_are_analyzes(run: Path, tmp_path: Path) -> None:
    text = html(run, tmp_path / "report.html")
    status = json.loads((run / "status.json").read_text())
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    dpsgd = bs.DPSGD(6.0, status["sample_rate"], len(steps))
    threats = (bs.Membership(), bs.Membership("add-remove"), bs.AttributeInference([step["distance"] for step in steps]))
    exact = [bs.analyze(dpsgd, threat) for threat in threats]
    certified = [bs.analyze(dpsgd, threat, method="certified") for threat in threats]
    table = rows(text)
    relied = [certified[0], certified[1], exact[2]]  # the attribute was measured
    assert table["Bayes security β*, the number to rely on"] == [beta(risk.bayes_security.lower) for risk in relied]
    for name, label, values in (
        ("advantage", "advantage", [risk.advantage.upper for risk in relied]),
        ("tpr", "TPR at FPR 0.01", [risk.tpr(0.01).upper for risk in certified]),
        ("epsilon", "ε at δ 1e-5", [risk.epsilon(1e-5).upper for risk in certified]),
        ("gdp_mu", "Gaussian μ, fitted down to FPR 1e-5", [risk.gdp_mu.upper for risk in certified]),
    ):
        assert table[label] == [METRICS[name].rounded(float(value)) for value in values], "as `betastar analyze` rounds it"
    assert table["right guesses, prior 0.5"] == [percent(risk.success().upper, 2) for risk in relied]
    assert f"is right at most {percent(relied[0].success().upper, 2)} of the time, against 50 %" in text
    for said in (
        "Unit of privacy",
        "Adjacency",
        "Covered outputs",
        "Poisson",
        "Accountant",
        "Trust model",
        "A statement after the fact",
        "can leak membership",
        "an example, not a standard",
        "betastar train",
        "noise_multiplier",
        f"torch {status['versions']['torch']}",
    ):
        assert said in text
    assert text.count("<svg") == text.count("<figcaption") == 6
    assert 'id="tradeoff-log-' in text


def test_numbers_are_rounded_to_the_safe_side() -> None:
    for security in (0.9, 0.98, 0.97999, 0.999, 0.99999, 1.0, 0.0):
        said = float(statement.right(security).split()[0]) / 100
        assert said >= 1 - security / 2
        assert said - (1 - security / 2) < 1.01e-3
        assert (said > 0.5) == (security < 1.0)
    assert [band(security) for security in (1.0, 0.98, 0.97999, 0.9, 0.89999, 0.0)] == (
        ["strong", "strong", "moderate", "moderate", "weak", "weak"]
    )


def test_record_indices_only_on_request(run: Path) -> None:
    facts = load(run)
    figures = list(draw(facts))
    each = ((records, kind) for records in (False, True) for kind in ("html", "md"))
    plain, plain_words, listed, words = (render(facts, figures, kind, records=records) for records, kind in each)
    assert 'id="records-exposure"' in checked(listed)
    assert 'id="records-' not in plain
    ledger = [line.split(",") for line in (run / "ledger.csv").read_text().splitlines()[1:]]
    worst = min(ledger, key=lambda row: float(row[2]))
    assert f"<tr><td>{worst[0]}</td><td>{beta(float(worst[2]))}</td></tr>" in listed
    assert listed.count("<tr><td>") == 21, "and the heads of the other table"
    row = f"| {worst[0]} | {beta(float(worst[2]))} |"
    assert row in words
    assert row not in plain_words
    assert "| record |" not in plain_words


def test_names_are_shown_not_obeyed(copy: Path, tmp_path: Path) -> None:
    change(copy / "status.json", study=EVIL, secret=EVIL, label=f"batch {EVIL}")
    change(copy / "config.json", study=f"{EVIL}.csv", sensitive=EVIL, label="$(rm -rf /); `x`")
    (tmp_path / "clipped").mkdir()
    clipped = trained(tmp_path / "clipped", EVIL, gap=0.5)
    for text in (html(copy, tmp_path / "report.html"), html(clipped, tmp_path / "clipped.html")):
        assert "<img" not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "--label &#39;$(rm -rf /); `x`&#39;" in (tmp_path / "report.html").read_text()
    write(copy, tmp_path / "report.md")
    for words in ((tmp_path / "report.md").read_text(), summarise(clipped).read_text()):
        assert [line for line in words.splitlines() if "<img" in line and not line.startswith("    betastar")] == []
        assert r"&lt;img src=x onerror=alert(1)&gt;\*age\*\|\`" in words


def test_gap_clipping_is_proved_in_advance(clipped: Path, tmp_path: Path) -> None:
    text = html(clipped, tmp_path / "report.html")
    facts = load(clipped)
    assert [(one.name, one.kind) for one in facts.attributes] == [("age", "proved")]
    threat = bs.AttributeInference(enforced(0.1))
    exact, certified = (bs.analyze(facts.run, threat, method).bayes_security.lower for method in ("exact", "certified"))
    assert exact > bs.analyze(facts.run).bayes_security.lower + 0.1, "membership would tell another number"
    paper = bs.analyze(facts.run, threat, "paper").bayes_security.estimate
    assert rows(text)["Bayes security β*, the number to rely on"][2] == beta(certified)
    assert rows(text)["β*, the paper's closed form"][2] == beta(paper) != beta(exact)
    for said in (
        "a clipping norm is the largest length",
        "holds for every record and may be published",
        "Not protected: what can be guessed",
    ):
        assert said in text
    assert "Not for publication" not in text
    assert "budget" not in text
    copy = Path(shutil.copytree(clipped, tmp_path / "run"))
    change(copy / "status.json", restated=["job = farm (9 % of the records)"], proof="Proved in advance: β* = 1.")
    text = html(copy, tmp_path / "restated.html")
    assert "β* = 1" not in text
    assert "Other columns give the attribute away: job = farm (9 % of the records)." in text
    change(copy / "status.json", gaps={"age": 0.05})
    with pytest.raises(
        ValueError, match=r"'age' had the gap 0\.05, but config\.json gives 'age' 0\.1: these files are not of one run"
    ):
        load(copy)


def test_runs_that_have_less(copy: Path, tmp_path: Path) -> None:
    lines = (copy / "epochs.jsonl").read_text().splitlines(keepends=True)
    full = {path.name: path.read_bytes() for path in copy.iterdir()}
    (copy / "status.json").unlink()
    (copy / "distances.csv").unlink()
    (copy / "ledger.csv").unlink()
    (copy / "epochs.jsonl").write_text(lines[0] + '{"epoch": 2, "st')  # killed while it wrote
    text = html(copy, tmp_path / "unfinished.html")
    assert "This run is not finished" in text
    assert "people: 1 epoch of DP-SGD" in text
    for name, content in full.items():
        (copy / name).write_bytes(content)
    without_monitor(copy)
    text = html(copy, tmp_path / "unwatched.html")
    assert "Attribute inference" not in text
    assert "Exposure" not in text
    assert "Not for publication" not in text
    assert rows(text)["Bayes security β*, the number to rely on"][0] == beta(load(copy).membership.lower)


def test_markdown_has_its_figures_beside_it(run: Path, tmp_path: Path) -> None:
    _, files = write(run, tmp_path / "my report.md")
    text = files[0].read_text()
    linked = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert [name.replace("%20", " ") for name in linked] == [
        f"my report-{name}.png" for name in ("guesses", "epochs", "tradeoff", "tradeoff-log", "accuracy", "exposure")
    ]
    assert all(file.stat().st_size > 3000 for file in files)
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    files[0].unlink()
    with pytest.raises(ValueError, match=r"my report-guesses\.png is there already"):
        write(run, files[0])
    assert not files[0].exists()
    write(run, files[0], force=True)
    short = summarise(run).read_text()
    assert len(short.splitlines()) < len(text.splitlines()) / 1.5
    assert short.splitlines()[2] == text.splitlines()[2]


def test_a_browser_shows_it(browser: Any, run: Path, tmp_path: Path) -> None:
    write(run, tmp_path / "report.html")
    asked: list[str] = []
    said: list[str] = []
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390), ("dark", 360)):
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((tmp_path / "report.html").as_uri())
        assert "is right at most" in page.inner_text(".card")
        assert page.inner_text("h1") == "people: 2 epochs of DP-SGD"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        for figure in page.query_selector_all("figure svg"):
            box = figure.bounding_box()
            assert box["width"] > 150
            assert box["height"] > 100
        ink, paper = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        lightness = [sum(int(number) for number in re.findall(r"\d+", color)[:3]) for color in (ink, paper)]
        assert (lightness[0] > lightness[1]) == (scheme == "dark")
        narrow = width < 1000
        hint = page.evaluate("getComputedStyle(document.querySelector('#numbers').parentElement, '::before').content")
        assert ("sideways" in hint) == narrow, "a table that scrolls says so"
        assert (
            page.evaluate("(one => one.scrollWidth > one.clientWidth)(document.querySelector('#numbers').parentElement)")
            == narrow
        )
        if width == 360:
            assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
        page.close()
    assert said == []
    assert asked == [(tmp_path / "report.html").as_uri()] * 4


@pytest.mark.parametrize(
    "setting",
    [
        {"noise_multiplier": 0.05, "sample_rate": 1.0, "steps": 50},  # ε is infinite
        {"noise_multiplier": 0.3, "sample_rate": 0.5, "steps": 10_000},
        {"noise_multiplier": 2.0, "sample_rate": 0.01, "steps": 100, "distance": 0.0},
    ],
)
def test_the_weakest_and_the_strongest_runs_get_a_report(setting: dict[str, float], tmp_path: Path) -> None:
    source = tmp_path / "setting.json"
    source.write_text(json.dumps(setting))
    text = write(source, kind="md")[1][0].read_text()
    assert "nan" not in text
    assert ("no bound" in text) == ("distance" not in setting)
