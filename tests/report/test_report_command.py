"""The command `betastar report`: settings, folders that are damaged, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

import betastar as bs
from betastar.report import statement
from betastar.report.facts import _command, load
from betastar.report.report import write
from betastar.runs.config import Config
from betastar.runs.folder import RunFolder
from betastar.runs.loop import train

from ..command import call
from .runs import beta, html, rows


def test_a_setting_from_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "setting.json"
    inner = {"noise_multiplier": 3.51, "batch_size": 256, "dataset_size": 26048, "epochs": 20}
    path.write_text(json.dumps({"bayes_security": {}, "parameters": {**inner, "threat": "attribute", "distance": 0.5}}))
    text = html(path, tmp_path / "setting.html")
    run = bs.DPSGD.from_epochs(**inner)
    certified = bs.analyze(run, bs.AttributeInference(0.5), method="certified").bayes_security.lower
    assert rows(text)["Bayes security β*, the number to rely on"][2] == beta(certified)
    assert "proved if the distance holds" in text
    code = re.search(r"<pre>python -c &#34;(.*?)&#34;</pre>", text)
    assert code is not None
    exec(unescape(code[1]), {})
    assert capsys.readouterr().out.strip() == str(bs.analyze(run, bs.AttributeInference(0.5), "certified").bayes_security)
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
        ("{}", "noise_multiplier is missing: the standard deviation of the noise"),
        ('{"noise_multiplier": 1, "sample_rate": 0.1}', "steps is missing: the total number of updates"),
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
    done = call("report", str(run), "-o", str(page))
    assert (done.returncode, done.stderr) == (0, "")
    said = statement.verdicts(load(run))
    assert done.stdout.splitlines()[:-1] == [f"{one.line} {one.sentence}" for one in said]
    before = page.read_bytes()
    for words, message in (
        ((str(run), "-o", str(page)), f"{page} is there already: choose another name with -o, or --force"),
        ((str(tmp_path / "gone"),), "no file or folder"),
        ((str(tmp_path),), "holds no run: expected a folder made by betastar train, with a config.json"),
        ((str(run.parent),), f"It holds runs of several seeds: name one of them, such as {run}"),
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
    beta = bs.analyze(bs.DPSGD(2.0, 0.01, 100), method="certified").bayes_security
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
    with pytest.raises(ValueError, match=r"a report needs jinja2, which is not installed: pip install jinja2\."):
        write(run, tmp_path / "report.html")


def test_a_report_repeats_the_very_run() -> None:
    config = Config(
        study="people.csv",
        along=("relationship", "title"),
        values=("17:90.123456789",),
        learning_rate=0.012345678901,
        seed=7,
        hidden=(),
    )
    command = _command(config)
    assert "--with relationship --with title" in command
    assert "--value 17:90.123456789" in command
    assert "0.012345678901" in command
    assert "--scope" not in command
    assert _command(replace(config, scope="dataset", every=20)).endswith(" --scope dataset/20 --seed SEED -o RUN")
    in_python = _command(replace(config, gap=0.0, study="it's.csv"))
    assert in_python.startswith('betastar.runs.train(Config(study="it\'s.csv", ')
    assert "gap=0.0" in in_python
    assert in_python.endswith(", seed=SEED), 'RUN')")
