"""Advice: what is printed reaches the target by the method certified, and is not much more careful than it has to be."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import betastar as bs
from betastar.advice import Advice, advise
from betastar.risk import BANDS, band, next_band

from .command import call

ADULT = {"noise_multiplier": 3.51, "batch_size": 256, "dataset_size": 26048, "epochs": 20}
MEMBER, CLOSE = bs.Membership(), bs.AttributeInference(0.8)
SETTINGS: list[tuple[dict[str, Any], Any]] = [
    (ADULT, MEMBER),
    (ADULT | {"noise_multiplier": 0.5}, MEMBER),
    ({"noise_multiplier": 1.1, "sample_rate": 0.004, "steps": 5000}, MEMBER),
    (ADULT, bs.Membership("add-remove")),
    (ADULT, CLOSE),
    ({"noise_multiplier": 0.3, "sample_rate": 0.1, "steps": 10_000}, MEMBER),
]


def advised(numbers: dict[str, Any], threat: Any, *targets: str) -> Advice | None:
    method = "certified" if threat is CLOSE or numbers["noise_multiplier"] < 0.5 else "exact"
    risk = bs.analyze(bs.DPSGD.from_numbers(**numbers), threat, method)
    return advise(numbers, threat, risk, [bs.Target.parse(text) for text in targets])


def changed(numbers: dict[str, Any], threat: Any, option: Any) -> bs.Risk:
    """What is certified of the run with the change that is advised."""
    if option.parameter == "distance":
        threat = bs.AttributeInference(option.value)
    else:
        value = int(option.value) if option.parameter in ("epochs", "steps") else option.value
        numbers = numbers | {option.parameter: value}
    return bs.analyze(bs.DPSGD.from_numbers(**numbers), threat, "certified")


def test_bands_are_in_one_place() -> None:
    assert [band(beta) for beta in (1.0, 0.98, 0.9799, 0.9, 0.0)] == ["strong", "strong", "moderate", "moderate", "weak"]
    assert next_band(0.5) == (0.9, "moderate")
    assert next_band(0.9) == (0.98, "strong")
    assert next_band(BANDS[0][0]) is None


@pytest.mark.parametrize(("numbers", "threat"), SETTINGS)
def test_each_option_alone_is_certified_to_reach_the_next_band(numbers: dict[str, Any], threat: Any) -> None:
    advice = advised(numbers, threat)
    assert advice is not None
    assert advice.band is not None
    assert advice.options, "noise always helps"
    for option in advice.options:
        assert f"{option.value:,.10g}" in advice.sentence, "what is printed is what was checked"
        certified = changed(numbers, threat, option).bayes_security.lower
        assert certified >= advice.target.value
        assert option.reached <= certified + 1e-12
    noise, run = advice.options[0], bs.DPSGD.from_numbers(**numbers)
    least = bs.calibrate(advice.target, sample_rate=run.sample_rate, steps=run.steps, threat=threat).noise_multiplier
    assert noise.parameter == "noise_multiplier"
    assert least <= noise.value * (1.0 + 1e-9)
    assert noise.value < 1.06 * least, "not much more than is needed"


@pytest.mark.parametrize(
    "target", ["bayes_security>=0.93", "success<=0.52", "tpr<=0.012@fpr=0.01", "epsilon<=0.5@delta=1e-5", "gdp_mu<=0.1"]
)
def test_a_target_of_ones_own(target: str) -> None:
    advice = advised(ADULT, MEMBER, "bayes_security>=0.5", target)
    assert advice is not None
    assert advice.band is None
    for option in advice.options:
        assert bs.Target.parse(target).met(changed(ADULT, MEMBER, option))
    assert advised(ADULT, MEMBER, "bayes_security>=0.5") is None, "it is met"


def test_what_cannot_help_is_not_advised() -> None:
    advice = advised(ADULT, MEMBER, "bayes_security>=0.98")
    assert advice is not None
    assert [option.parameter for option in advice.options] == ["noise_multiplier"], "not even one epoch"
    assert advised(ADULT | {"noise_multiplier": 20.0}, MEMBER) is None


def test_the_command_says_it_if_asked() -> None:
    words = ["analyze", "--noise", "3.51", "--batch", "256", "--records", "26048", "--epochs", "20"]
    answer = json.loads(call(*words, "--advise", "--require", "bayes_security>=0.93", "--json").stdout)
    values = {option["parameter"]: option["value"] for option in answer["advice"]["options"]}
    sentence = (
        f"Noise {values['noise_multiplier']} instead of 3.51, or {values['epochs']} epochs instead of 20, gives a certified"
    )
    assert answer["advice"]["sentence"] == f"{sentence} β* ≥ 0.93."
    assert "What would help" not in call(*words).stdout
    printed = " ".join(call(*words, "--advise").stdout.split())
    assert re.search(
        r"What would help: Noise [\d.]+ instead of 3\.51, or \d+ epochs instead of 20, gives a certified β\* ≥ 0\.9 ", printed
    )


def test_a_prior_stands_beside_even_odds() -> None:
    words = ["analyze", "--noise", "1", "--rate", "0.01", "--steps", "2000", "--prior", "0.07"]
    answer = json.loads(call(*words, "--json").stdout)
    risk = bs.analyze(bs.DPSGD(1.0, 0.01, 2000))
    assert answer["success"]["upper"] == risk.success(0.07).upper
    share, even = (float(number) for number in re.findall(r"at most ([\d.]+) %", answer["sentence"]))
    assert 100 * risk.success(0.07).upper <= share < 100 * risk.success(0.07).upper + 0.011
    assert 100 * risk.success(0.5).upper <= even < 100 * risk.success(0.5).upper + 0.011
    assert "the rarer of the two answers has probability 0.07" in answer["sentence"]
    assert "against 93 % without the model, by always guessing the likelier answer" in answer["sentence"]
