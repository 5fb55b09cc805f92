"""The recipes of CONTRIBUTING.md, run as they stand there: a threat, a method, a metric and a secret.

Each is used in Python and by the command in a process of its own; no other module changes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils.data import TensorDataset

import betastar as bs
from betastar import audit
from betastar.training import AttributeMonitor, Records, Secret
from betastar.vocabulary import METHODS, METRICS, THREATS

from .command import COMMAND, call
from .training.private import fit, private

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text()
RUN = bs.DPSGD(noise_multiplier=1.2, sample_rate=0.02, steps=60)
SETTING = "--noise 1.2 --rate 0.02 --steps 60"
#: The module of each recipe.
MODULES = {"threat": "similar_records", "method": "sum_of_steps", "metric": "gini", "secret": "sign"}


def block(what: str) -> str:
    """The Python of a recipe."""
    recipe = RECIPES.split(f"### How to add a {what}\n")[1].split("\n### ")[0]
    (python,) = re.findall(r"```python\n(.*?)```", recipe, flags=re.DOTALL)
    return str(python)


def made(what: str) -> dict[str, Any]:
    """The names that the block of a recipe makes."""
    names: dict[str, Any] = {"__name__": f"recipe_{what}"}
    exec(compile(block(what), f"CONTRIBUTING.md, {what}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a recipe registers is gone after its test."""
    with patch.dict(METHODS), patch.dict(METRICS), patch.dict(THREATS):
        yield
    if hasattr(bs.Risk, "gini"):
        del bs.Risk.gini


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each recipe."""
    folder = tmp_path_factory.mktemp("plug ins")
    for what, name in MODULES.items():
        (folder / f"{name}.py").write_text(block(what))
    return folder


def plugins(folder: Path, *which: str) -> str:
    return ",".join(str(folder / f"{MODULES[what]}.py") for what in which)


def command(line: str, named: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The installed command, with these plug-ins."""
    words = [word.replace("~", " ") for word in line.split()]
    done = subprocess.run(
        [COMMAND, *words], capture_output=True, text=True, check=False, env={**os.environ, "BETASTAR_PLUGINS": named}
    )
    assert done.returncode == code, done.stderr
    return done


def test_a_threat_in_python() -> None:
    threat = made("threat")["SimilarRecords"](0.7)
    for method in METHODS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bs.RegimeWarning)
            risk = bs.analyze(RUN, threat, method=method)
            same = bs.analyze(RUN, bs.AttributeInference(0.7), method=method)
        assert str(risk.bayes_security) == str(same.bayes_security)
        assert risk.threat == "membership inference (records at most 0.7 apart)"
    safer = bs.calibrate(bs.Target(bayes_security=0.95), sample_rate=0.02, steps=60, threat=threat)
    assert bs.analyze(safer, threat).bayes_security.lower >= 0.95
    result = audit.mechanism(RUN, threat, games=2000, seed=1)
    assert not result.violated
    assert result.bound.estimate in result.advantage


def test_a_method_in_python() -> None:
    made("method")
    for threat in (bs.Membership(), bs.Membership("add-remove"), bs.AttributeInference(0.5)):
        exact = bs.analyze(RUN, threat).bayes_security
        bound = bs.analyze(RUN, threat, method="sum-of-steps").bayes_security
        assert bound.lower <= exact.lower <= exact.upper <= bound.upper
    one_step = bs.analyze(bs.DPSGD(1.2, 0.02, 1), method="sum-of-steps").bayes_security
    assert bs.analyze(bs.DPSGD(1.2, 0.02, 1)).bayes_security.estimate == pytest.approx(one_step.lower)
    run = bs.calibrate(bs.Target(bayes_security=0.5), sample_rate=0.02, steps=60, method="sum-of-steps")
    assert bs.analyze(run, method="sum-of-steps").bayes_security.lower >= 0.5
    with pytest.raises(ValueError, match=r"method must be one of .*'sum-of-steps'"):
        bs.analyze(RUN, method="sum")


def test_a_metric_in_python() -> None:
    made("metric")
    risks = [bs.analyze(bs.DPSGD(noise, 0.02, 60)) for noise in (4.0, 2.0, 1.0)]
    areas = [risk.gini for risk in risks]  # type: ignore[attr-defined]
    assert areas[0].estimate < areas[1].estimate < areas[2].estimate
    for risk, area in zip(risks, areas, strict=True):
        assert area.lower <= area.estimate <= area.upper
        # Of a concave curve that is at most TV above the diagonal and somewhere reaches it: between TV and TV(2 - TV).
        assert area.upper >= risk.advantage.estimate
        assert area.lower <= risk.advantage.estimate * (2.0 - risk.advantage.estimate)
    run = bs.calibrate(bs.Target(gini=0.25), sample_rate=0.02, steps=60, method="affinity")
    less = bs.DPSGD(0.99 * run.noise_multiplier, 0.02, 60)
    reached = [bs.analyze(one, method="affinity").gini.upper for one in (run, less)]  # type: ignore[attr-defined]
    assert reached[0] <= 0.25 < reached[1]
    setting = "analyze --noise 1 --rate 0.02 --steps 60 --require"
    assert call(*setting.split(), "gini<=0.9").returncode == 0
    assert call(*setting.split(), "gini<=0.1").returncode == 1


def test_a_secret_in_python() -> None:
    """It measures what the same candidates measure as a function, on the same training."""

    def both(record: Records) -> Records:
        rows = record.inputs[0].repeat(2, 1)
        rows[:, 1] = rows[:, 1].abs() * torch.tensor([-1.0, 1.0])
        return Records((rows,), record.target.repeat(2))

    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    measured, criterion = [], torch.nn.CrossEntropyLoss()
    for secret in (made("secret")["Sign"](1), Secret.function(both, 2)):
        torch.manual_seed(5)
        parts = private(torch.nn.Linear(4, 2), data)
        monitor = AttributeMonitor(*parts, criterion, secret)
        fit(parts, criterion, steps=4)
        measured.append(monitor.risk().bayes_security.estimate)
    assert 0.0 < measured[0] < 1.0
    assert measured[0] == pytest.approx(measured[1], abs=1e-9)


def test_a_threat_on_the_command_line(modules: Path) -> None:
    named = plugins(modules, "threat")
    same = json.loads(call("analyze", *SETTING.split(), "--threat", "attribute", "--distance", "0.7", "--json").stdout)
    answer = json.loads(command(f"analyze {SETTING} --threat similar-records --distance 0.7 --json", named).stdout)
    assert answer["bayes_security"] == same["bayes_security"]
    assert answer["certainty"] == same["certainty"]
    assert answer["sentence"].startswith("An attacker who guesses between two similar records is right at most ")
    assert "never farther apart than 0.7 clipping norms" in answer["assumptions"][0]
    assert answer["parameters"] == same["parameters"] | {"threat": "similar-records"}
    # What is printed to repeat it repeats it.
    shell = answer["command"].replace("betastar analyze", f"'{COMMAND}' analyze") + " --json"
    assert json.loads(subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout) == answer
    names: dict[str, Any] = {}
    with patch.object(sys, "path", [*sys.path, str(modules)]):
        exec(answer["python"].replace("print", "_ = "), names)
    assert names["risk"].bayes_security.lower == answer["bayes_security"]["lower"]
    help_text = " ".join(command("analyze --help", named).stdout.split())
    assert "similar-records (which of two similar records was used?)" in help_text
    assert "certified for attribute, similar-records or noise below 0.5" in help_text
    said = command(f"analyze {SETTING} --threat similar-records", named, 2).stderr
    assert said.startswith("betastar: --distance must be given with threat similar-records.")
    assert (
        "--distance must be between 0 and 2, got 3.0."
        in command(f"analyze {SETTING} --threat similar-records --distance 3", named, 2).stderr
    )
    result = json.loads(
        command(
            f"audit mechanism {SETTING} --threat similar-records --distance 0.7 --games 2000 --seed 1 --jobs 2 --json", named
        ).stdout
    )
    assert not result["violated"], "the processes of an audit know the threat, too"


def test_a_method_on_the_command_line(modules: Path) -> None:
    made("method")
    named = plugins(modules, "method")
    bound = bs.analyze(RUN, method="sum-of-steps").bayes_security
    answer = json.loads(command(f"analyze {SETTING} --method sum-of-steps --json", named).stdout)
    assert answer["bayes_security"] == {"lower": bound.lower, "estimate": bound.estimate, "upper": bound.upper}
    assert answer["certainty"].startswith("Proved, but wide: β* lies between ")
    assert "exact, certified, affinity, paper or sum-of-steps" in " ".join(command("sweep --help", named).stdout.split())
    table = json.loads(command(f"compare {SETTING} --method exact --method sum-of-steps --json", named).stdout)
    assert [one["name"] for one in table["settings"]] == ["exact", "sum-of-steps"]
    assert table["settings"][1]["bayes_security"] == answer["bayes_security"]
    run = json.loads(
        command("calibrate --target bayes_security>=0.5 --rate 0.02 --steps 60 --method sum-of-steps --json", named).stdout
    )
    assert run["bayes_security"]["lower"] >= 0.5


def test_a_metric_on_the_command_line(modules: Path) -> None:
    made("metric")
    named = plugins(modules, "metric")
    area = bs.analyze(RUN).gini  # type: ignore[attr-defined]
    answer = json.loads(command(f"analyze {SETTING} --metric gini --json", named).stdout)
    assert answer["gini"] == {"lower": area.lower, "estimate": area.estimate, "upper": area.upper}
    assert "twice the area above the diagonal" in command(f"analyze {SETTING}", named).stdout, "it is one of all metrics"
    assert "not met: gini<=0.1; the number to rely on is " in command(f"analyze {SETTING} --require gini<=0.1", named, 1).stderr
    grid = json.loads(command("sweep --noise 1.2 --rate 0.02 --steps 60 --metric gini --json", named).stdout)
    assert grid["gini"]["upper"] == [[[area.upper]]]


def test_a_secret_on_the_command_line(modules: Path) -> None:
    """It is what the training code of an audit calls secret."""
    own, sizes = modules / "my_training.py", "RECORDS, BATCH, EPOCHS, NOISE = "
    code = (ROOT / "examples" / "audited_training.py").read_text().replace(f"{sizes}500, 50, 2, 1.0", f"{sizes}60, 20, 1, 1.0")
    own.write_text(f"{block('secret')}\n{code}\nsecret = Sign(1)\n")
    values = "--threat attribute --value negative --value positive --challenge 3"
    line = f"audit training {str(own).replace(' ', '~')} {values} --games 40 --width 0.9 --references 20 --seed 1 --json"
    answer = json.loads(command(line, "").stdout)
    assert answer["challenge"] == "sign of column 1 of record 3 of the data"
    assert not answer["violated"]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("nowhere.py", "BETASTAR_PLUGINS must name modules or files that exist, got 'nowhere.py'."),
        ("no_such_module", "BETASTAR_PLUGINS must name modules that can be imported, got 'no_such_module': ModuleNotFoundError"),
        ("{}/json.py", "BETASTAR_PLUGINS must name files whose names no other module has, got "),
        ("{}/broken.py", "broken.py': ZeroDivisionError"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_said(named: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    done = command(f"analyze {SETTING}", named.format(tmp_path), 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
