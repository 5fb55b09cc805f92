"""The command: what it prints, to whom, and how it ends. Once as it is installed, otherwise in this process."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
import betastar.audit
import betastar.runs.loop
from betastar.cli import analysis, main
from betastar.cli.answers import Question

from ..command import COMMAND, call

ADULT = "--noise 3.51 --batch 256 --records 26048 --epochs 20"
RUN = bs.DPSGD.from_epochs(3.51, 256, 26048, 20)


def run(line: str, code: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
    words = [word.strip('"') for word in line.split()]
    done = call(*words, **more)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_analyze_says_it_in_words_first() -> None:
    text = subprocess.run([COMMAND, "analyze", *ADULT.split()], capture_output=True, text=True, check=True).stdout
    assert text == run(f"analyze {ADULT}").stdout
    lines = text.splitlines()
    assert lines[0] == "An attacker who guesses membership is right at most 55.04 % of the time, against 50 % without the model."
    assert "\x1b" not in text, "colour belongs to a terminal"
    for words in ("0.8993", "0.1007", "0.01907", "0.9385", "worst-case record", "sees every update", "Poisson", "Exact"):
        assert words in text


def test_json_is_what_the_core_says() -> None:
    answer = json.loads(run(f"analyze {ADULT} --json --fpr 0.01 --fpr 0.1 --delta 1e-6").stdout)
    risk = bs.analyze(RUN)
    for name, bound in (("bayes_security", risk.bayes_security), ("advantage", risk.advantage), ("success", risk.success(0.5))):
        assert [answer[name][end] for end in ("lower", "estimate", "upper")] == [bound.lower, bound.estimate, bound.upper]
    assert [one["fpr"] for one in answer["tpr"]] == [0.01, 0.1]
    assert answer["tpr"][0]["upper"] == risk.tpr(0.01).upper
    assert answer["epsilon"] == [{"delta": 1e-6, **{e: getattr(risk.epsilon(1e-6), e) for e in ("lower", "estimate", "upper")}}]
    assert answer["gdp_mu"]["upper"] == risk.gdp_mu.upper
    assert answer["parameters"]["steps"] == 2040
    again = json.loads(run(answer["command"].removeprefix("betastar ") + " --json").stdout)
    assert again == answer


def test_no_bound_is_null() -> None:
    answer = json.loads(run("analyze --noise 1.5 --rate 0.01 --steps 500 --method affinity --json").stdout)
    assert answer["epsilon"][0]["upper"] is None


def test_attribute_inference_and_little_noise_are_certified() -> None:
    answer = json.loads(run("analyze --noise 1.1 --rate 0.004 --steps 5000 --threat attribute --distance 0.8 --json").stdout)
    risk = bs.analyze(bs.DPSGD(1.1, 0.004, 5000), bs.AttributeInference(0.8), method="certified")
    assert answer["bayes_security"]["lower"] == risk.bayes_security.lower
    assert answer["certainty"].startswith("Certified")
    little = json.loads(run("analyze --noise 0.2 --rate 0.01 --steps 300 --json").stdout)
    assert little["parameters"]["method"] == "certified", "the exact curve would take minutes"


def test_require_gates_a_pipeline() -> None:
    fine = run(f'analyze {ADULT} --metric bayes_security --require "bayes_security>=0.89" --require "tpr<=0.02@fpr=0.01"')
    assert fine.stderr == ""
    done = run(f'analyze {ADULT} --metric bayes_security --require "bayes_security>=0.95" --require "epsilon<=0.5@delta=1e-5"', 1)
    first, second = done.stderr.splitlines()
    assert first == "betastar: not met: bayes_security>=0.95; the number to rely on is 0.8993."
    assert "epsilon<=0.5@delta=1e-5" in second
    assert done.stdout, "the answer is printed all the same"


def test_calibrate_finds_each_missing_parameter() -> None:
    answer = json.loads(run('calibrate --target "bayes_security>=0.98" --batch 256 --records 26048 --epochs 20 --json').stdout)
    core = bs.calibrate(bs.Target(bayes_security=0.98), batch_size=256, dataset_size=26048, epochs=20)
    assert answer["found"] == {"noise_multiplier": core.noise_multiplier}
    assert answer["bayes_security"]["lower"] >= 0.98
    for left_out, name in (("epochs", "epochs"), ("batch", "batch_size"), ("records", "dataset_size")):
        given = {"noise": "3.51", "batch": "256", "records": "26048", "epochs": "20"}
        del given[left_out]
        line = " ".join(f"--{option} {value}" for option, value in given.items())
        answer = json.loads(run(f'calibrate --target "success<=0.53" {line} --metric success --json').stdout)
        assert list(answer["found"]) == [name]
        assert 0.52 < answer["success"]["upper"] <= 0.53
    text = run('calibrate --target "tpr<=0.05@fpr=0.01" --rate 0.01 --steps 1000').stdout
    assert text.startswith("--noise 0.9")
    assert "just meets tpr<=0.05@fpr=0.01." in text.splitlines()[0]


def test_sweep_compares_settings_and_methods() -> None:
    line = "sweep --batch 256 --records 26048 --epochs 20 --setting noise=2 --setting noise=4,name=careful"
    text = run(line + " --metric bayes_security --metric success").stdout
    assert text.startswith("careful: An attacker")
    assert "0.8237" in text
    assert "0.9116" in text
    answer = json.loads(
        run("sweep --noise 2 --rate 0.01 --steps 500 --method exact --method paper --metric advantage --json").stdout
    )
    assert [one["name"] for one in answer["settings"]] == ["exact", "paper"]
    assert run(line + ' --metric advantage --require "bayes_security>=0.9"', 1).stderr.count("not met by") == 1


def test_sweep(tmp_path: Path) -> None:
    grid = "sweep --noise 1:4:3log --rate 0.001,0.01 --steps 100"
    rows = list(csv.DictReader(io.StringIO(run(grid).stdout)))
    assert [float(row["noise_multiplier"]) for row in rows] == pytest.approx([1, 1, 2, 2, 4, 4])
    risk = bs.analyze(bs.DPSGD(2.0, 0.01, 100))
    assert float(rows[3]["lower"]) == pytest.approx(risk.bayes_security.lower, abs=1e-12)
    answer = json.loads(run(f"{grid} --metric tpr@fpr=0.01 --json").stdout)
    assert answer["tpr"]["upper"][1][1][0] == pytest.approx(risk.tpr(0.01).upper, abs=1e-9)
    assert answer["axes"]["steps"] == [100]
    run(f"{grid} -o {tmp_path / 'heat.svg'}")
    assert (tmp_path / "heat.svg").read_text().startswith("<?xml")
    table = tmp_path / "heat.csv"
    run(f"{grid} -o {table}")
    assert len(table.read_text().splitlines()) == 7
    assert "--force" in run(f"{grid} -o {table}", 2).stderr
    run(f"{grid} -o {table} --force")


BAD = [
    ("analyze --noise -1 --rate 0.1 --steps 3", "--noise must be a finite number greater than 0, got -1.0. Common"),
    ("analyze --noise 1 --rate 3 --steps 3", "--rate must be greater than 0 and at most 1, got 3.0."),
    ("analyze --noise 1 --batch 30 --records 3 --epochs 3", "--batch must be at most --records, got 30 > 3."),
    ("analyze --noise 1 --batch 30 --epochs 3", "--records is missing: the number of training records, e.g. 50000."),
    ("analyze --noise 1 --rate 0.1 --epochs 3", "--epochs must come with --batch and --records"),
    ("analyze --noise 1 --rate 0.1 --steps 3 --threat attr", "Did you mean attribute?"),
    ("analyze --noise 1 --rate 0.1 --steps 3 --threat attribute", "--distance is missing"),
    ("analyze --noise 1 --rate 0.1 --steps 3 --threat attribute --distance 3", "--distance must be between 0 and 2"),
    ("analyze --noise 1 --rate 0.1 --steps 3 --prior 2", "--prior must be between 0 and 1, got 2.0."),
    ("analyze --noise 1 --rate 0.1 --steps 3 --require beta>=1", "--require must be one of bayes_security"),
    ("analyze --noise many", "--noise"),
    ("calibrate --target tpr<=0.1 --rate 0.1 --steps 3", "tpr<=0.05@fpr=0.01"),
    (
        "calibrate --target success<=0.4 --rate 0.1 --steps 3",
        "success<=0.4 is impossible: guessing alone succeeds with probability 0.5",
    ),
    ("calibrate --target success<=0.6 --rate 0.1", "leave out exactly one of --noise, --rate, --steps"),
    ("calibrate --target bayes_security>=0.99 --noise 0.1 --records 100 --epochs 50", "cannot be reached by choosing --batch"),
    ("sweep --setting nois=2 --rate 0.1 --steps 3", "Did you mean noise?"),
    ("sweep --noise 1:2 --rate 0.1 --steps 3", "--noise must be a number, a list as 1,2,4 or a grid"),
    ("sweep --noise 1 --rate 0.1 --steps 3 -o x.png", "exactly two options with a grid"),
    ("sweep --noise 1 --rate 0.1 --steps 3 -o x.txt", "--output must end with one of .csv"),
    ("explore --export x.txt", "--export must end with .html"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_bad_input_is_one_sentence(line: str, words: str, tmp_path: Path) -> None:
    done = run(line, 2, cwd=tmp_path)
    assert words in done.stderr
    assert done.stdout == ""


def test_bad_input_of_the_installed_command() -> None:
    done = subprocess.run([COMMAND, *BAD[0][0].split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert BAD[0][1] in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_computed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(bs, "analyze", fail)
    done = run("sweep --noise 1 --rate 0.1 --steps 3", 2)
    assert "beyond what this --method can compute (float division by zero). Try another one." in done.stderr


@pytest.mark.parametrize(
    ("line", "where", "hint"),
    [
        ("sweep --noise 1 --rate 0.1 --steps 3", (analysis.Grid, "compute"), "."),
        ("analyze --noise 1 --rate 0.1 --steps 3", (analysis, "answer"), "."),
        ("audit mechanism --noise 1 --rate 0.1 --steps 3", (betastar.audit, "mechanism"), "."),
        ("train adult -o run", (betastar.runs.loop, "train"), "; the same command with --resume goes on."),
    ],
)
def test_an_interruption_says_how_to_go_on(line: str, where: Any, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*where, interrupt)
    assert run(line, main.INTERRUPTED).stderr == f"\nbetastar: interrupted{hint}\n"


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("reproduce fig7 --quick -o out", "paper"),
        ("gaps --help", "gap_clipping"),
        ("tweets", "tweets"),
        ("voters --quick --json", "voters"),
        ("raters -o out", "raters"),
    ],
)
def test_studies_that_moved_say_where_they_went(line: str, module: str, tmp_path: Path) -> None:
    done = call(*line.split(), cwd=tmp_path)
    name = line.split()[0]
    assert done.returncode == 2
    assert done.stderr.endswith(f"{name} is now a study beside the package: in a clone, python -m studies.{module}.\n")
    assert not (tmp_path / "out").exists()


def test_a_sweep_counts_its_points() -> None:
    told: list[int] = []
    axes = {"noise_multiplier": (1.0, 2.0), "sample_rate": (0.1,), "steps": (3, 4, 5)}
    grid = analysis.Grid.read(axes, Question(), "bayes_security")
    grid.compute(told.append)
    assert len(grid.bounds) == grid.size == 6
    assert told == [1, 2, 3, 4, 5, 6]


#: Ctrl-C while a module is loaded.
LOADING = """
import os, signal, sys
class Slow:
    def find_spec(self, name, *_):
        if name == "betastar.calibrate":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Slow())
import betastar_command
betastar_command.main()
"""


def listening() -> None:
    """In a new process: a suite that runs in the background ignores Ctrl-C, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_no_traceback_while_the_command_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=False, preexec_fn=listening)
    assert (done.returncode, done.stderr) == (130, "\nbetastar: interrupted.\n")


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_explore_ends_without_a_traceback(sign: signal.Signals, code: int, tmp_path: Path) -> None:
    """While a browser in the terminal holds it up."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f"#!/bin/sh\ntouch {opened}\nexec sleep 20\n")
    browser.chmod(0o700)
    environment = {**os.environ, "BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "betastar_command", "explore"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True, preexec_fn=listening
    )
    while not opened.exists() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, sign)
    assert (process.wait(30), process.communicate()[1].strip()) == (code, "betastar: interrupted." if code > 0 else "")


def test_a_closed_pipe_is_no_error() -> None:
    line = f"'{COMMAND}' sweep --noise 1:4:40 --rate 0.001:0.1:40 --steps 100 --method paper"
    done = subprocess.run(["bash", "-c", f"{line} | head -1"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("noise_multiplier,")
    assert done.stderr == ""
    done = subprocess.run(["bash", "-c", f"'{COMMAND}' analyze {ADULT} | head -1"], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_every_help_has_examples_and_completion_works() -> None:
    for command in ("analyze", "calibrate", "sweep", "explore"):
        assert f"betastar {command} " in run(f"{command} --help").stdout.replace(f"Usage: betastar {command} ", "") + " "
    shell = {**os.environ, "_BETASTAR_COMPLETE": "complete_bash", "COMP_WORDS": "betastar analyze --thr", "COMP_CWORD": "2"}
    assert "--threat" in subprocess.run([COMMAND], capture_output=True, text=True, env=shell, check=False).stdout
