"""What used to crash, or to answer wrongly without a word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import betastar as bs
from betastar.report.facts import _command
from betastar.report.report import write
from betastar.runs.config import Config

from .command import call

RUN = bs.DPSGD(1.0, 0.01, 100)
SWEEP = bs.DPSGD(np.array([1.0, 2.0]), 0.01, 100)


@pytest.mark.parametrize("method", ["exact", "certified", "affinity"])
@pytest.mark.parametrize("run", [RUN, SWEEP], ids=["one run", "a sweep"])
def test_metrics_take_arrays(run: bs.DPSGD, method: str) -> None:
    """A sweep's shape comes first; each entry is what the number alone gives, up to the error of the integrals."""
    risk = bs.analyze(run, method=method)
    asked = {"delta": [0.1, 1.0, 2.0], "epsilon": [1e-2, 1e-4, 1e-6], "reconstruction": [0.1, 0.01, 0.5], "tpr": [0.1, 0.01, 0.5]}
    for name, numbers in asked.items():
        metric = getattr(risk, name)
        bound = metric(np.array(numbers))
        assert bound.upper.shape == (*run.shape, 3)
        for i, number in enumerate(numbers):
            alone, error = metric(number), {"rtol": 1e-6, "atol": 1e-15} if method == "exact" else {"rtol": 0.0}
            np.testing.assert_allclose(bound.upper[..., i], alone.upper, **error)
            np.testing.assert_allclose(bound.lower[..., i], alone.lower, **error)
            assert np.all((bound.lower[..., i] <= alone.upper) & (alone.lower <= bound.upper[..., i]))
    if method != "exact":
        fit = risk.gaussian([1e-5, 1e-3])
        assert fit.upper.shape == (*run.shape, 2)
        assert np.ravel(fit.smallest_fpr)[-2:].tolist() == [1e-5, 1e-3]
        np.testing.assert_array_equal(fit.upper[..., 1], risk.gaussian(1e-3).upper)


@pytest.mark.parametrize("steps", [np.array([1e19]), 1e19, 10**19, [1, 2**53 + 2]])
def test_steps_beyond_what_a_float_counts_are_refused(steps: object) -> None:
    with pytest.raises(ValueError, match=r"steps must be a whole number of at least 1 and at most 9007199254740992, got"):
        bs.DPSGD(1.0, 0.01, steps)
    with pytest.raises(ValueError, match=r"steps .* at most 9007199254740992"):
        bs.DPSGD.from_epochs(1.0, 1, 10**9, np.array([1e12]))


@pytest.mark.parametrize("distance", [5e-324, 1e-300, 1e-160])
@pytest.mark.parametrize("method", ["affinity", "exact", "certified"])
def test_tiny_distances(distance: float, method: str) -> None:
    beta = bs.analyze(bs.DPSGD(0.5, 0.5, 1000), bs.AttributeInference(distance), method=method).bayes_security
    assert 1.0 - 1e-9 < beta.lower <= beta.upper == 1.0


def test_threats_compare_by_all_of_their_numbers() -> None:
    distances = np.linspace(0.1, 1.0, 2000)
    other = distances.copy()
    other[1000] = 0.123
    one, two = bs.AttributeInference(distances), bs.AttributeInference(other)
    assert repr(one) == repr(two), "NumPy leaves out the middle of a long array"
    assert one != two
    assert len({one, two, bs.AttributeInference(distances)}) == 2
    assert bs.AttributeInference(0.5) == bs.AttributeInference(0.5) != bs.AttributeInference(0.5 + 1e-12)
    assert bs.Membership() != bs.AttributeInference(2.0)
    square = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert bs.AttributeInference.among(square) == bs.AttributeInference.among(square.tolist())
    assert bs.AttributeInference.among(square) != bs.AttributeInference.among(0.5 * square)


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
    _, files = write(source, kind="md")
    text = files[0].read_text()
    assert "nan" not in text
    assert ("no bound" in text) == ("distance" not in setting)


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


def test_settings_are_repeated_with_all_digits() -> None:
    noise = 1.2345678901234567
    words = ("--noise", repr(noise), "--rate", "0.01", "--steps", "100", "--json")
    answer = json.loads(call("analyze", *words).stdout)
    assert f"--noise {noise!r}" in answer["command"]
    assert f"noise_multiplier={noise!r}" in answer["python"]


def test_the_gaussian_fit_of_a_hopeless_run() -> None:
    fit = bs.analyze(bs.DPSGD(1.5660695752398077, 0.6163613795276635, 4314)).gdp_mu
    assert fit.lower <= fit.upper
    assert 0.0 <= fit.regret <= 1.0


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
    assert "opacus=True" in theirs["python"]
    assert call("analyze", "--noise", "1", "--rate", ".1", "--steps", "3", "--opacus").returncode == 2
    fewer = ("--target", "bayes_security>=0.5", "--noise", "2", "--records", "100", "--epochs", "2", "--metric", "bayes_security")
    batch = json.loads(call("calibrate", *fewer, "--opacus", "--json").stdout)
    again = json.loads(call("analyze", *fewer[2:], "--batch", str(batch["found"]["batch_size"]), "--opacus", "--json").stdout)
    assert again["bayes_security"]["lower"] >= 0.5
    assert again["parameters"]["sample_rate"] == batch["parameters"]["sample_rate"]
