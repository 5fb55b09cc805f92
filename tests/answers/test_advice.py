"""Advice: what is printed reaches the target by the method certified, and is not much more careful than it has to be."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import betastar as bs
from betastar.answers.advice import advise
from betastar.answers.settings import Setting
from betastar.answers.targets import parse
from betastar.vocabulary import BANDS, band, next_band

from ..command import call

ADULT = Setting(3.51, None, 256, 26048, None, 20)
SETTINGS = [
    ADULT,
    replace(ADULT, noise_multiplier=0.5),
    Setting(1.1, 0.004, steps=5000),
    replace(ADULT, threat="membership-add-remove"),
    replace(ADULT, threat="attribute", distance=0.8),
    Setting(0.3, 0.1, steps=10_000),
]


def relied(setting: Setting) -> float:
    return float(setting.risk().bayes_security.lower)


def test_bands_are_in_one_place() -> None:
    assert [band(beta) for beta in (1.0, 0.98, 0.9799, 0.9, 0.0)] == ["strong", "strong", "moderate", "moderate", "weak"]
    assert next_band(0.5) == (0.9, "moderate")
    assert next_band(0.9) == (0.98, "strong")
    assert next_band(BANDS[0][0]) is None


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"{one.threat}-{one.noise_multiplier}")
def test_each_option_alone_is_certified_to_reach_the_next_band(setting: Setting) -> None:
    beta = relied(setting)
    advice = advise(setting, beta)
    better = next_band(beta)
    assert advice is not None
    assert better is not None
    assert advice.options, "noise always helps"
    for option in advice.options:
        assert f"{option.value:,.10g}" in advice.sentence, "what is printed is what was checked"
        value = int(option.value) if option.parameter in ("epochs", "steps") else option.value
        other = replace(setting, **{option.parameter: value})  # type: ignore[arg-type]
        certified = bs.analyze(other.run(), other.attack, "certified").bayes_security.lower
        assert certified >= better[0]
        assert option.reached <= certified + 1e-12
    noise = advice.options[0]
    run = setting.run()
    least = bs.calibrate(
        bs.Target(bayes_security=better[0]), sample_rate=run.sample_rate, steps=run.steps, threat=setting.attack
    ).noise_multiplier
    assert noise.parameter == "noise_multiplier"
    assert least <= noise.value * (1.0 + 1e-9)
    assert noise.value < 1.06 * least, "not much more than is needed"


@pytest.mark.parametrize(
    "wish", ["bayes_security>=0.93", "success<=0.52", "tpr<=0.012@fpr=0.01", "epsilon<=0.5@delta=1e-5", "gdp_mu<=0.1"]
)
def test_a_target_of_ones_own(wish: str) -> None:
    target = parse(wish)
    advice = advise(ADULT, relied(ADULT), [parse("bayes_security>=0.5"), target])
    assert advice is not None
    assert advice.band is None
    for option in advice.options:
        value = int(option.value) if option.parameter == "epochs" else option.value
        other = replace(ADULT, **{option.parameter: value})  # type: ignore[arg-type]
        assert target.target.met(bs.analyze(other.run(), other.attack, "certified"))
    assert advise(ADULT, relied(ADULT), [parse("bayes_security>=0.5")]) is None, "it is met"


def test_what_cannot_help_is_not_advised() -> None:
    quiet = Setting(3.51, None, 256, 26048, None, 20)
    advice = advise(quiet, 0.9, [parse("bayes_security>=0.98")])
    assert advice is not None
    assert [option.parameter for option in advice.options] == ["noise_multiplier"], "not even one epoch"
    assert advise(replace(quiet, noise_multiplier=20.0), relied(replace(quiet, noise_multiplier=20.0))) is None


def test_the_command_says_it() -> None:
    words = ["analyze", "--noise", "3.51", "--batch", "256", "--records", "26048", "--epochs", "20"]
    answer = json.loads(call(*words, "--require", "bayes_security>=0.93", "--json").stdout)
    values = {option["parameter"]: option["value"] for option in answer["advice"]["options"]}
    sentence = (
        f"Noise {values['noise_multiplier']} instead of 3.51, or {values['epochs']} epochs instead of 20, gives a certified"
    )
    assert answer["advice"]["sentence"] == f"{sentence} β* ≥ 0.93."
    printed = " ".join(call(*words).stdout.split())
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
