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


def run(processes: int, *options: str) -> Any:
    script = ["-m", "tests.training.several_processes", *options]
    if processes > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *launch, *script]
    else:
        command = [sys.executable, *script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("options", [(), ("--plain-ddp",), ("--scope=dataset",), ("--scope=dataset", "--budget=.94")])
def test_two_processes_measure_what_one_does(options: tuple[str, ...]) -> None:
    alone, two = run(1, *[option for option in options if option != "--plain-ddp"]), run(2, *options)
    assert two["world"] == 2
    assert two["rate"] == alone["rate"]
    assert two["stopped"] == alone["stopped"] == ("--budget=.94" in options)
    assert len(alone["distances"]) == 6 or alone["stopped"]
    np.testing.assert_allclose(two["distances"], alone["distances"], rtol=1e-5)
    np.testing.assert_allclose(two["leakage"], alone["leakage"], rtol=1e-4, atol=1e-12)
    assert max(alone["leakage"]) > 0.0


@pytest.mark.parametrize("options", [(), ("--plain-ddp",)])
def test_two_processes_clip_gaps_as_one_does(options: tuple[str, ...]) -> None:
    """Weights after six steps with hardly any noise: each process adds its own records' share."""
    alone, two = run(1, "--gap=.05"), run(2, "--gap=.05", *options)
    assert two["world"] == 2
    assert two["distance"] == alone["distance"]
    np.testing.assert_allclose(two["weights"], alone["weights"], rtol=1e-5, atol=1e-5)
