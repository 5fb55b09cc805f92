"""Reports: valid, whole, honest, and the same numbers as `analyze`; looked at in a real browser."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import html5lib
import pytest

import betastar as bs
from betastar.report import statement
from betastar.report.facts import load
from betastar.report.report import Request, draw, render, summarise, write
from betastar.risk.plan import enforced
from betastar.rounding import percent
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train
from betastar.vocabulary import METRICS, band

from ..command import COMMAND, call
from ..datasets.test_data import people
from ..web.browser import chromium

EVIL = "<img src=x onerror=alert(1)>*age*|`_$"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, watched."""
    return trained(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with gap clipping."""
    return trained(tmp_path_factory.mktemp("clipped"), gap=0.1)


def trained(folder: Path, sensitive: str = "age", **options: Any) -> Path:
    people(400).rename(columns={"age": sensitive}).to_csv(folder / "people.csv", index=False)
    fixed: dict[str, Any] = {"drop": ("name",), "epochs": 2, "noise_multiplier": 6.0, "batch_size": 160}
    return train(Config(str(folder / "people.csv"), "rich", sensitive, **fixed, **options), folder / "run").path


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def change(path: Path, **entries: Any) -> None:
    """Set entries of a JSON file; None takes one out."""
    changed = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))


def without_monitor(folder: Path) -> None:
    for name in ("metrics.jsonl", "distances.csv", "ledger.csv"):
        (folder / name).unlink()
    change(folder / "status.json", secret=None, values=None, label=None)
    path = folder / "epochs.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in entry.items() if k != "exact"}) + "\n" for entry in entries))


def html(source: Path, output: Path, **options: Any) -> str:
    """The report, checked for what every report must be."""
    write(source, output, **options)
    return checked(output.read_text(encoding="utf-8"))


def checked(text: str) -> str:
    """Valid, small, and asking for nothing outside of itself."""
    html5lib.HTMLParser(strict=True).parse(text)
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert len(text.encode()) < 3_000_000
    document = html5lib.parse(text, namespaceHTMLElements=False)
    for element in document.iter():
        assert str(element.tag).split("}")[-1] not in ("script", "link", "iframe", "object", "embed", "img", "base", "form")
        for name, value in element.attrib.items():
            assert not str(name).lower().startswith("on")
            if str(name).split("}")[-1] in ("src", "href", "srcset", "action", "data", "poster"):
                assert value.startswith("#")
    assert re.findall(r"url\((?!#)|@import|https?:", text) == []
    return text


def beta(value: float) -> str:
    """β* as people see it."""
    return METRICS["bayes_security"].rounded(float(value))


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the table in the HTML."""
    table = text[text.index('id="numbers"') :]
    row_cells = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    return {name.replace("&#39;", "'"): re.findall(r"<td>(.*?)</td>", cells) for name, cells in row_cells}


def test_the_page_is_whole_and_its_numbers_are_analyzes(run: Path, tmp_path: Path) -> None:
    text = html(run, tmp_path / "report.html")
    status = json.loads((run / "status.json").read_text())
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    dpsgd = bs.DPSGD(6.0, status["sample_rate"], len(steps))
    threats = (bs.Membership(), bs.Membership("add-remove"), bs.AttributeInference([step["distance"] for step in steps]))
    exact = [bs.analyze(dpsgd, threat) for threat in threats]
    certified = [bs.analyze(dpsgd, threat, method="certified") for threat in threats]
    table = rows(text)
    assert table["Bayes security β*, exact"] == [beta(risk.bayes_security.lower) for risk in exact]
    assert table["β*, certified"] == [beta(risk.bayes_security.lower) for risk in certified]
    for name, label, values in (
        ("advantage", "advantage", [risk.advantage.upper for risk in exact]),
        ("tpr", "TPR at FPR 0.01", [risk.tpr(0.01).upper for risk in certified]),
        ("epsilon", "ε at δ 1e-5", [risk.epsilon(1e-5).upper for risk in certified]),
        ("gdp_mu", "Gaussian μ, fitted down to FPR 1e-5", [risk.gdp_mu.upper for risk in certified]),
    ):
        assert table[label] == [METRICS[name].rounded(float(value)) for value in values], "as `betastar analyze` rounds it"
    assert table["right guesses, prior 0.5"] == [percent(risk.success().upper, 2) for risk in exact]
    assert f"is right at most {percent(exact[0].success().upper, 2)} of the time, against 50 %" in text
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
    for beta in (0.9, 0.98, 0.97999, 0.999, 0.99999, 1.0, 0.0):
        said = float(statement.right(beta).split()[0]) / 100
        assert said >= 1 - beta / 2
        assert said - (1 - beta / 2) < 1.01e-3
        assert (said > 0.5) == (beta < 1.0)
    assert [band(beta) for beta in (1.0, 0.98, 0.97999, 0.9, 0.89999, 0.0)] == (
        ["strong", "strong", "moderate", "moderate", "weak", "weak"]
    )


def test_record_indices_only_on_request(run: Path) -> None:
    facts = load(run)
    figures = list(draw(facts))
    requests = (Request(records=records) for records in (False, True))
    plain, plain_words, listed, words = (render(facts, figures, kind, request) for request in requests for kind in ("html", "md"))
    assert 'id="records"' in checked(listed)
    assert 'id="records"' not in plain
    ledger = [line.split(",") for line in (run / "ledger.csv").read_text().splitlines()[1:]]
    worst = min(ledger, key=lambda row: float(row[2]))
    assert f"<tr><td>{worst[0]}</td><td>{beta(float(worst[2]))}</td></tr>" in listed
    assert listed.count("<tr><td>") == 22, "and the heads of the other two tables"
    row = f"| {worst[0]} | {beta(float(worst[2]))} |"
    assert row in words
    assert row not in plain_words
    assert "| record |" not in plain_words


def test_names_are_shown_not_obeyed(copy: Path, tmp_path: Path) -> None:
    change(copy / "status.json", study=EVIL, secret=EVIL, label=f"batch {EVIL}")
    change(copy / "config.json", study=f"{EVIL}.csv", sensitive=EVIL, target="$(rm -rf /); `x`")
    (tmp_path / "clipped").mkdir()
    clipped = trained(tmp_path / "clipped", EVIL, gap=0.5)
    for text in (html(copy, tmp_path / "report.html"), html(clipped, tmp_path / "clipped.html")):
        assert "<img" not in text
        assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "--label &#39;$(rm -rf /); `x`&#39;" in (tmp_path / "report.html").read_text()
    write(copy, tmp_path / "report.md")
    for words in ((tmp_path / "report.md").read_text(), summarise(clipped).read_text()):
        assert [line for line in words.splitlines() if "<img" in line and not line.startswith("    betastar train")] == []
        assert r"&lt;img src=x onerror=alert(1)&gt;\*age\*\|\`" in words


def test_gap_clipping_is_proved_in_advance(clipped: Path, tmp_path: Path) -> None:
    text = html(clipped, tmp_path / "report.html")
    facts = load(clipped)
    assert [(one.name, one.kind) for one in facts.attributes] == [("age", "proved")]
    threat = bs.AttributeInference(enforced(0.1))
    exact, certified = (bs.analyze(facts.run, threat, method).bayes_security.lower for method in ("exact", "certified"))
    assert exact > bs.analyze(facts.run).bayes_security.lower + 0.1, "membership would tell another number"
    paper = bs.analyze(facts.run, threat, "paper").bayes_security.estimate
    assert rows(text)["Bayes security β*, exact"][2] == beta(exact)
    assert rows(text)["β*, certified"][2] == beta(certified)
    assert rows(text)["β*, the paper's closed form"][2] == beta(paper) != beta(exact)
    for said in ("proved in advance", "holds for every record and may be published", "Not protected: what can be guessed"):
        assert said in text
    assert "Not for publication" not in text
    assert "Budget" not in text
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
    assert rows(text)["Bayes security β*, exact"][0] == beta(json.loads(lines[-1])["membership"]["lower"])


def test_a_setting_from_json(tmp_path: Path) -> None:
    path = tmp_path / "setting.json"
    inner = {"noise_multiplier": 3.51, "batch_size": 256, "dataset_size": 26048, "epochs": 20}
    path.write_text(json.dumps({"bayes_security": {}, "parameters": {**inner, "threat": "attribute", "distance": 0.5}}))
    text = html(path, tmp_path / "setting.html")
    run = bs.DPSGD.from_epochs(**inner)
    assert rows(text)["Bayes security β*, exact"][2] == beta(bs.analyze(run, bs.AttributeInference(0.5)).bayes_security.lower)
    assert "holds if the distance does" in text
    code = re.search(r"<pre>python -c &#34;(.*?)&#34;</pre>", text)
    assert code is not None
    said = subprocess.run([sys.executable, "-c", code[1]], capture_output=True, text=True)
    assert said.stdout.strip() == str(bs.analyze(run, bs.AttributeInference(0.5)).bayes_security), said.stderr
    same = [
        {"noise_multiplier": 3.51, "sample_rate": run.sample_rate, "steps": 2040, "epochs": 20, "batch_size": None},
        {"noise_multiplier": 3.51, "batch_size": 256, "dataset_size": 26048, "steps": 2040},
    ]
    for one in same:
        path.write_text(json.dumps(one))
        assert load(path).run == run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "setting.json is not JSON"),
        ("[1]", "must hold one JSON object, got list"),
        ("{}", "has no noise_multiplier: expected noise_multiplier, sample_rate"),
        ('{"noise_multiplier": 1, "sample_rate": 0.1}', "has no steps"),
        ('{"noise_multiplier": 1, "sample_rate": [0.1, 0.2], "steps": 3}', "sample_rate must be one number"),
        ('{"noise_multiplier": -1, "sample_rate": 0.1, "steps": 3}', "noise_multiplier must be a finite number greater than 0"),
        ('{"noise_multiplier": 1, "sample_rate": 0.1, "steps": 3, "distance": 3}', "distances must be between 0 and 2"),
        ('{"noise_multiplier": 1, "sample_rate": 0.1, "steps": 3, "distance": [1, 1]}', "one entry for each of the 3 steps"),
        ('{"noise_multiplier": 1, "batch_size": 9, "dataset_size": 3, "epochs": 3}', "batch_size must be at most dataset_size"),
    ],
)
def test_settings_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "setting.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path / "setting.json")


def damaged(folder: Path) -> Iterator[tuple[str, str]]:
    """Each kind of damage, and what is said of it."""
    originals = {path.name: path.read_bytes() for path in folder.iterdir()}

    def restore() -> None:
        for name, content in originals.items():
            (folder / name).write_bytes(content)

    for name, text, message in (
        ("config.json", "{", "config.json is not JSON"),
        ("status.json", "[]", "status.json must hold one JSON object"),
        ("status.json", '{"finished": true, "versions": 3}', "status.json is damaged or not of betastar train"),
        ("epochs.jsonl", "", "no epoch of this run is finished"),
        ("epochs.jsonl", "{}\n", "epochs.jsonl is damaged or not of betastar train: it has no membership"),
        ("epochs.jsonl", "{}\nnonsense\n{}\n", "epochs.jsonl, line 2, is not JSON"),
        ("metrics.jsonl", '{"step": 1}\n', "metrics.jsonl has 1 steps, of the 4"),
        ("metrics.jsonl", '{"step": 1}\n' * 4, "metrics.jsonl is damaged or not of betastar train: it has no noise_multiplier"),
        ("ledger.csv", "record,name\n1,2\n", "ledger.csv is damaged or not of betastar train: it has no bayes_security"),
        ("ledger.csv", "record,bayes_security\n1,7\n", "bayes_security must be between 0 and 1"),
    ):
        (folder / name).write_text(text)
        yield name, message
        restore()
    (folder / "config.json").write_bytes(b"\xff\xfe")
    yield "config.json", "cannot be read as text"
    restore()
    steps = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(steps.replace('"noise_multiplier": 6.0', '"noise_multiplier": 7.0'))
    yield "epochs.jsonl", "these files are not of one run"
    restore()


def test_damaged_folders_are_named(copy: Path) -> None:
    seen = 0
    for name, message in damaged(copy):
        with pytest.raises(ValueError, match=re.escape(message)) as problem:
            load(copy)
        assert name in str(problem.value)
        seen += 1
    assert seen == 12
    assert load(copy).finished


def test_the_command(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = subprocess.run([COMMAND, "report", str(run), "-o", str(page)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(statement.verdicts(load(run))[0].band.capitalize())
    before = page.read_bytes()
    for words, message in (
        ((str(run), "-o", str(page)), f"{page} is there already: choose another name with -o, or --force"),
        ((str(tmp_path / "gone"),), "no file or folder"),
        ((str(tmp_path),), "holds no run: expected a folder made by betastar train, with a config.json"),
        ((str(run.parent),), f"It holds runs of several seeds: name one of them, such as {run}"),
        ((str(run), "--format", "pdf"), "format must be one of 'html', 'md', got 'pdf'"),
        ((str(run), "-o", str(tmp_path / "no" / "x.html")), "there is no folder"),
        (("-",), "--output is needed for a setting from standard input"),
    ):
        bad = call("report", *words, text="{}")
        assert (bad.returncode, bad.stdout) == (2, ""), words
        assert message in bad.stderr
        assert "Traceback" not in bad.stderr
    assert page.read_bytes() == before
    setting = '{"noise_multiplier": 2, "sample_rate": 0.01, "steps": 100}'
    answer = json.loads(call("report", "-", "-o", str(page), "--force", "--json", text=setting).stdout)
    beta = bs.analyze(bs.DPSGD(2.0, 0.01, 100)).bayes_security
    assert answer["files"] == [str(page)]
    assert answer["threats"][0]["bayes_security"] == {"lower": beta.lower, "estimate": beta.estimate}
    assert page.read_bytes() != before


def test_the_command_in_a_report_makes_the_same_run(run: Path, tmp_path: Path) -> None:
    assert "SEED" not in load(run).command, "the seed was drawn, and is deleted"
    config = RunFolder(run).config
    first = train(replace(config, seed=2**90), tmp_path / "first").path
    command = load(first).command
    assert shlex.split(command)[-4:] == ["--seed", "SEED", "-o", "RUN"], "the seed is not told"
    words = [{"SEED": str(2**90), "RUN": str(tmp_path / "again")}.get(word, word) for word in shlex.split(command)[1:]]
    done = call(*words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "config.json").read_text() == (first / "config.json").read_text()
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == (first / "metrics.jsonl").read_text()


def test_what_is_not_installed_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("betastar.report.report.find_spec", lambda name: None if name == "jinja2" else name)
    with pytest.raises(ValueError, match=r"a report needs jinja2, which is not installed: pip install 'betastar\[report\]'"):
        write(run, tmp_path / "report.html")


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


def test_a_browser_shows_it(run: Path, tmp_path: Path) -> None:
    write(run, tmp_path / "report.html")
    asked: list[str] = []
    said: list[str] = []
    with chromium() as browser:
        for scheme, width in (("light", 1000), ("dark", 1000), ("light", 360)):
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto((tmp_path / "report.html").as_uri())
            assert "is right at most" in page.inner_text("#verdict")
            assert page.inner_text("h1") == "people: 2 epochs of DP-SGD"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
            for figure in page.query_selector_all("figure svg"):
                box = figure.bounding_box()
                assert box["width"] > 150
                assert box["height"] > 100
            ink, paper = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
            lightness = [sum(int(number) for number in re.findall(r"\d+", color)[:3]) for color in (ink, paper)]
            assert (lightness[0] > lightness[1]) == (scheme == "dark")
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    assert said == []
    assert asked == [(tmp_path / "report.html").as_uri()] * 3
