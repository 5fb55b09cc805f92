"""Opacus samples with 1 / ⌊N / batch⌋: the rate is offered and told."""

from __future__ import annotations

import json

import numpy as np
import pytest

import betastar as bs

from ..command import call


def test_the_rate_of_opacus_is_offered_and_told() -> None:
    with pytest.warns(bs.RateWarning, match=r"= 0\.8, but Opacus would sample with .* = 0\.5"):
        plain = bs.DPSGD.from_epochs(1.0, 80, 100, 1)
    theirs = bs.DPSGD.from_epochs(1.0, 80, 100, 1, opacus=True)
    assert (plain.sample_rate, theirs.sample_rate) == (0.8, 0.5)
    assert plain == bs.DPSGD.from_epochs(1.0, 80, 100, 1, opacus=False)
    assert bs.DPSGD.from_epochs(1.0, 256, 26048, 20).sample_rate == 256 / 26048  # close enough to say nothing
    both = bs.DPSGD.from_epochs(1.0, np.array([50, 80]), 100, 1, opacus=True)
    np.testing.assert_array_equal(both.sample_rate, [0.5, 0.5])
    with pytest.warns(bs.RateWarning):
        bs.calibrate(bs.Target(bayes_security=0.5), batch_size=80, dataset_size=100, epochs=2)
    calibrated = bs.calibrate(bs.Target(bayes_security=0.5), batch_size=80, dataset_size=100, epochs=2, opacus=True)
    assert calibrated.sample_rate == 0.5


def test_opacus_samples_with_that_rate() -> None:
    """What `opacus=True` says is what Opacus does."""
    import torch
    from opacus.data_loader import DPDataLoader
    from torch.utils.data import DataLoader, TensorDataset

    for batch, size in ((80, 100), (64, 1000), (7, 50), (25, 100)):
        loader = DPDataLoader.from_data_loader(DataLoader(TensorDataset(torch.zeros(size, 1)), batch_size=batch))
        run = bs.DPSGD.from_epochs(1.0, batch, size, 3, opacus=True)
        assert (run.sample_rate, run.steps) == (loader.sample_rate, 3 * len(loader))


def test_the_rate_of_opacus_on_the_command_line() -> None:
    given = ("--noise", "1", "--batch", "80", "--records", "100", "--epochs", "2", "--metric", "bayes_security")
    told = call("analyze", *given)
    assert "--opacus" in told.stdout
    theirs, other = (json.loads(call("analyze", *given, "--json", word).stdout) for word in ("--opacus", "--no-opacus"))
    assert (theirs["parameters"]["sample_rate"], other["parameters"]["sample_rate"]) == (0.5, 0.8)
    assert not theirs["warnings"]
    assert "--opacus" in theirs["command"]
    assert call("analyze", "--noise", "1", "--rate", ".1", "--steps", "3", "--opacus").returncode == 2
    fewer = ("--target", "bayes_security>=0.5", "--noise", "2", "--records", "100", "--epochs", "2", "--metric", "bayes_security")
    batch = json.loads(call("calibrate", *fewer, "--opacus", "--json").stdout)
    again = json.loads(call("analyze", *fewer[2:], "--batch", str(batch["found"]["batch_size"]), "--opacus", "--json").stdout)
    assert again["bayes_security"]["lower"] >= 0.5
    assert again["parameters"]["sample_rate"] == batch["parameters"]["sample_rate"]
