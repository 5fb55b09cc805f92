"""More than one process: torchrun with gloo, against one process on the same global batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


MEASURED = ("", "--plain-ddp", "--scope=dataset")
PRIVATE = ("--gap=.05", "--gap=.05 --sampling=balls-in-bins", "--budget=.94", "--retire=.93")
SAMPLED = (
    "--sampling=balls-in-bins",
    "--sampling=fixed-size --scope=dataset",
    "--sampling=poisson --scope=dataset",
)


def run(processes: int, *trainings: str) -> list[Any]:
    """All trainings one after the other: to start Python takes longer than they do."""
    script = ["-m", "tests.training.several_processes", *trainings]
    if processes > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *launch, *script]
    else:
        command = [sys.executable, *script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_two_processes_do_what_one_does() -> None:
    options = (*MEASURED, *PRIVATE, *SAMPLED)
    for given, alone, two in zip(options, run(1, *options), run(2, *options), strict=True):
        assert (alone["world"], two["world"]) == (1, 2)
        (same_weights if given in PRIVATE else same_measurements)(given, alone, two)


@pytest.mark.slow
def test_processes_that_do_not_train_together_are_refused() -> None:
    late, data = run(2, "--apart=late", "--apart=data")
    assert "was made for 1 processes, and there are 2" in late
    assert "must be the same in all processes" in data


def same_measurements(given: str, alone: Any, two: Any) -> None:
    assert two["rate"] == alone["rate"], given
    assert len(alone["distances"]) == (9 if given in SAMPLED else 6), given
    assert two["run"] == alone["run"], given
    assert two["batches"] == alone["batches"], given  # the processes share one draw
    if "balls-in-bins" in given:
        assert sorted(record for batch in two["batches"][:6] for record in batch) == list(range(120))
    np.testing.assert_allclose(two["distances"], alone["distances"], rtol=1e-5, err_msg=given)
    np.testing.assert_allclose(two["leakage"], alone["leakage"], rtol=1e-4, atol=1e-12, err_msg=given)
    assert max(alone["leakage"]) > 0.0, given
    np.testing.assert_allclose(two["norms"], alone["norms"], rtol=1e-4, err_msg=given)
    assert min(alone["norms"]) < 1.0, given


def same_weights(given: str, alone: Any, two: Any) -> None:
    """Each process adds its own records' share."""
    assert two["run"] == alone["run"], given
    assert two["stopped"] == alone["stopped"] == ("--budget" in given), given
    assert two["spent"] == pytest.approx(alone["spent"], rel=1e-5), given
    assert sum(two.get("norms", [1])) == sum(alone.get("norms", [1])) > 0, given
    np.testing.assert_allclose(two["weights"], alone["weights"], rtol=1e-5, atol=1e-5, err_msg=given)
