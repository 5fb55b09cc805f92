"""The options about samplings, persons and the final model."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import betastar as bs

from ..command import call

RUN = ("--noise", "2", "--batch", "20", "--records", "200", "--epochs", "2")


def said(*words: str) -> Any:
    ended = call(*words)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_shuffled_batches_say_what_other_samplings_would_give() -> None:
    answer = said("analyze", *RUN, "--sampling", "shuffled", "--metric", "bayes_security", "--json")
    assert "Nothing better is proved of shuffled batches, and an attack is known that is right" in answer["sentence"]
    assert "with sampling balls-in-bins and at most" in answer["sentence"]
    assert "what lies between them is not known" in answer["certainty"]
    assert any("permuted uniformly" in line for line in answer["assumptions"])
    assert answer["parameters"]["sampling"] == "shuffled"
    assert "--sampling shuffled" in answer["command"]


@pytest.mark.parametrize("sampling", ["fixed-size", "balls-in-bins", "shuffled"])
def test_the_command_gives_the_same_number(sampling: str) -> None:
    answer = said("analyze", *RUN, "--sampling", sampling, "--records-per-person", "2", "--json")
    assert any("a person with 2 records" in line for line in answer["assumptions"])
    assert said(*answer["command"].split()[1:], "--json") == answer


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("--sampling", "shufled"),
            "--sampling must be one of poisson, fixed-size, balls-in-bins, shuffled, got 'shufled'. Did you",
        ),
        (("--max-batch", "15"), "--max-batch must be at least the expected batch size"),
        (("--sampling", "fixed-size", "--max-batch", "30"), "--max-batch must be left out with sampling 'fixed-size'"),
        (("--sampling", "shuffled", "--threat", "membership-add-remove"), "must be analysed with relation 'substitution'"),
        (("--threat", "attribute", "--distance", "1", "--records-per-person", "2"), "--records-per-person must be left out"),
        (("--records-per-person", "0"), "--records-per-person must be a whole number of at least 1, got 0"),
        (("--sampling", "fixed-size", "--records-per-person", "201"), "--records-per-person must be at most the 200 records"),
        (("--records-per-person", "201"), "--records-per-person must be at most the 200 records"),
        (("--max-batch", "30", "--records-per-person", "2"), "--records-per-person must be 1 with"),
        (("--sampling", "balls-in-bins", "--method", "paper"), "--method paper is about Poisson sampling"),
        (("--times-per-epoch", "2"), "--times-per-epoch must be 1 with sampling 'poisson', got 2"),
        (("--sampling", "balls-in-bins", "--times-per-epoch", "0"), "--times-per-epoch must be a whole number of at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(given: tuple[str, ...], message: str) -> None:
    ended = call("analyze", *RUN, *given)
    assert ended.returncode == 2
    assert message in " ".join(ended.stderr.split())


def test_compare_calibrate_and_sweep() -> None:
    settings = [word for name in ("poisson", "fixed-size") for word in ("--setting", f"sampling={name}")]
    both = said("sweep", *RUN, *settings, "--metric", "bayes_security", "--json")["settings"]
    assert both[0]["bayes_security"]["lower"] > both[1]["bayes_security"]["lower"]
    wanted = ("calibrate", "--target", "bayes_security>=0.9", *RUN[2:], "--sampling", "balls-in-bins", "--json")
    assert said(*wanted)["bayes_security"]["lower"] >= 0.9
    table = call("sweep", "--noise", "1,2", *RUN[2:], "--sampling", "balls-in-bins").stdout.splitlines()
    assert len(table) == 3


def test_several_times_an_epoch() -> None:
    """Two of twenty batches, for two epochs; what is calibrated or swept is the same run."""
    often = ("--sampling", "balls-in-bins", "--times-per-epoch", "2")
    answer = said("analyze", *RUN, *often, "--json")
    wanted = bs.analyze(bs.DPSGD(2.0, 0.1, 40, "balls-in-bins", times_per_epoch=2)).bayes_security
    assert answer["bayes_security"]["lower"] == pytest.approx(wanted.lower, rel=1e-9)
    assert any("in exactly 2 of the batches of an epoch" in line for line in answer["assumptions"])
    assert "--times-per-epoch 2" in answer["command"]
    settings = ("--setting", "times-per-epoch=1", "--setting", "times-per-epoch=2", "--metric", "bayes_security", "--json")
    once, twice = said("sweep", *RUN, *often[:2], *settings)["settings"]
    assert twice["bayes_security"]["lower"] == answer["bayes_security"]["lower"] < once["bayes_security"]["lower"]
    target = ("calibrate", "--target", "bayes_security>=0.7", *often, "--json")
    for left_out in (RUN[2:], RUN[:2] + RUN[4:], RUN[:6]):
        found = said(*target, *left_out)
        assert found["bayes_security"]["lower"] >= 0.7
        assert "--times-per-epoch 2" in found["command"]
        again = said(*shlex.split(found["command"])[1:], "--json")
        assert again["bayes_security"]["lower"] == pytest.approx(found["bayes_security"]["lower"], rel=1e-9)


def test_an_end_that_is_not_known_is_a_sentence() -> None:
    setting = ("--noise", "0.26185", "--rate", "0.178743", "--steps", "108", "--records-per-person", "15", "--method", "exact")
    answer = said("analyze", *setting, "--metric", "epsilon", "--json")
    assert answer["epsilon"][0]["upper"] is None
    (note,) = (one for one in answer["warnings"] if "is not known" in one)
    assert note.startswith("The upper end of ε at δ 1e-5 is not known")
    assert "; --method certified, more noise or a larger δ may tell it." in note
