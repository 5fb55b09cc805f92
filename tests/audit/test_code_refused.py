"""A training that cannot be replayed gets a sentence that says what to fix, and no verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import betastar as bs
from betastar import audit
from betastar.audit import AuditError
from tests.audit.replayed import FLAG, quiet, trained
from tests.audit.trainings import factory, table
from tests.command import call

DATA = table(52)
REMOVED: dict[str, Any] = {"threat": bs.Membership("add-remove")}
GENERATOR = torch.Generator().manual_seed(0)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Records that are another each time."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = DATA[index]
        return x + 0.1 * torch.randn(6), y


def entropy() -> nn.Module:
    """A model whose weights nobody can compute again."""
    model = factory()
    with torch.no_grad():
        next(model.parameters())[0, 0] = int.from_bytes(os.urandom(3), "big") / 2**24
    return model


def no_steps(data: Any) -> None:
    """Nothing is trained."""


def without_opacus(data: Any) -> None:
    model = factory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(data[:10][0]), data[:10][1]).backward()
    optimizer.step()


def failing(data: Any) -> None:
    raise RuntimeError("no such file")


HAND = {"run": bs.DPSGD(1.0, 0.2, 6), "max_grad_norm": 1.0, "divisor": 10}
REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "weights of no seed": (
        trained(model=entropy),
        DATA,
        {},
        "does not do the same twice.*other weights, at 0.weight",
    ),
    "a generator of the whole process": (trained(noise_generator=GENERATOR), DATA, {}, "does not do the same twice.*step 1"),
    "no steps": (no_steps, DATA, {}, "got no step of one"),
    "no private optimizer": (without_opacus, DATA, {}, "got steps of SGD alone"),
    "a training that fails": (failing, DATA, {}, "raised RuntimeError: no such file"),
    "adaptive clipping": (
        trained(
            clipping="adaptive",
            target_unclipped_quantile=0.5,
            clipbound_learning_rate=0.2,
            max_clipbound=10.0,
            min_clipbound=0.1,
            unclipped_num_std=2.0,
        ),
        DATA,
        {},
        "clips adaptively",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_has_no_verdict(name: str) -> None:
    train, data, told, text = REFUSED[name]
    with pytest.raises(AuditError, match=text):
        quiet(lambda: audit.replay(train, data, seed=3, **told))


@pytest.mark.parametrize("told", [{}, REMOVED])
@pytest.mark.parametrize(
    ("train", "data"),
    [
        (trained(), Augmented()),
        (trained(model=lambda: nn.Sequential(factory(), nn.Dropout(0.5))), DATA),
        (trained(physical=3), DATA),
    ],
    ids=["augmentation", "dropout", "physical batches"],
)
def test_random_numbers_and_batches_of_any_kind_can_be_replayed(train: Any, data: Any, told: dict[str, Any]) -> None:
    assert not quiet(lambda: audit.replay(train, data, seed=3, **told)).violated


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"data": [DATA[0]]}, "data must be a data set of at least 2 records"),
        ({"run": 3}, "run must be one DPSGD run"),
        ({"threat": "membership"}, "threat must be Membership or AttributeInference"),
        ({"threat": bs.Membership(other_rate=0.5)}, "threat must be without norms and other_rate for a replay of code"),
        ({"threat": bs.Membership(), "secret": FLAG}, "secret must be left out"),
        ({"ignore": ["loss"]}, "ignore must be one of"),
        ({"record": 52}, "record must be a record of the data, 0 to 51, got 52"),
        ({"steps": 0}, "steps must be"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be"),
        ({"divisor": 0.0}, "divisor must be"),
        ({"replacements": []}, "replacements must be at least one record"),
        ({"record": 1, "steps": 1}, "record must be drawn in one of the 1 steps, got 1"),
    ],
)
def test_arguments_are_checked(told: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        quiet(lambda: audit.replay(**{"train": trained(), "data": DATA, "seed": 3, **told}))


ROOT = Path(__file__).parents[2]


def test_the_command(tmp_path: Path) -> None:
    fine = call("audit", str(ROOT / "examples" / "audited_training.py"), "--seed", "1", "--canaries", "100")
    assert (fine.returncode, fine.stdout.startswith("Nothing was found by the replay and the one run.")) == (0, True), fine.stderr
    file = tmp_path / "broken.py"
    file.write_text(
        "from tests.audit.test_code_faults import DATA as data, second_optimizer as fit\n\n\ndef nothing():\n    pass\n"
    )
    broken = call("audit", "code", f"{file}:fit", "--seed", "1", "--json")
    assert broken.returncode == 1, broken.stderr
    assert [finding["parameter"] for finding in json.loads(broken.stdout)["replay"]["findings"]] == ["2.weight"]
    missing, strange = call("audit", str(file)), call("audit", f"{file}:nothing")
    assert missing.returncode == strange.returncode == 2
    assert "must define train" in missing.stderr
    assert "must take data" in strange.stderr


@pytest.mark.slow
def test_two_processes() -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.audit.replayed_together"]
    done = subprocess.run([sys.executable, "-W", "ignore", *launch], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "fine: no promise broken" in done.stdout
    assert "little noise: noise" in done.stdout
