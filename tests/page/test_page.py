"""The page as one file, in a real Chromium: it asks nobody, and its numbers are Python's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import betastar as bs
from betastar import page as pages
from betastar.analyze import METHODS
from betastar.cli.options import SEES
from betastar.dpsgd import DPSGD, SAMPLINGS
from betastar.exact.curve import FourierCurve
from betastar.steps.poisson import PoissonFactor

from ..command import call
from . import browser as browsers
from .browser import chromium, drag, settle

#: Largest difference from Python: of probabilities, and of ε relative to 1 + ε.
AGREES = 1e-6
#: Settings that are compared, and false-positive rates of their trade-off curves.
SETTINGS, RATES = 200, np.array([1e-6, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])


#: Times that a drag is repeated: of a machine that others use, the best of them says what the page does.
DRAGS = 5


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("static") / "page.html"
    said = json.loads(call("explore", "--export", str(path), "--json").stdout)
    assert said == {"export": str(path), "bytes": path.stat().st_size}
    return path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """A page without a network, whose console stays silent, and which asks for nothing but its own file."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, offline=True, permissions=["clipboard-read", "clipboard-write"]
    )
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda problem: said.append(str(problem)))
    opened.on("request", lambda ask: said.append(ask.url) if not ask.url.startswith((file.as_uri(), "data:", "blob:")) else None)
    yield opened
    context.close()
    assert said == []


def visit(page: Any, file: Path, query: str = "") -> None:
    browsers.visit(page, file.as_uri(), query)


def move(page: Any, name: str, place: int) -> None:
    """A slider, by hand."""
    page.locator(f"#{name}-slider").fill(str(place))
    settle(page)


def knobs(page: Any) -> dict[str, float]:
    return {name: float(page.input_value(f"#{name}")) for name in ("noise", "batch", "records", "epochs")}


def run_of(page: Any) -> bs.DPSGD:
    values = knobs(page)
    return bs.DPSGD.from_epochs(values["noise"], int(values["batch"]), int(values["records"]), values["epochs"])


def four_digits(value: float) -> str:
    return f"{floor(value * 1e4 + 1e-9) / 1e4:.4f}"


def told(page: Any) -> tuple[float, ...]:
    """The percentages in the sentence: how often the attacker is right with the model, and without it."""
    return tuple(float(share) for share in re.findall(r"([\d.]+) %", page.inner_text("#sentence")))


def random_settings(seed: int, count: int) -> list[dict[str, Any]]:
    """Noise .3 … 20, rates 1e-6 … 1, steps 1 … 1e7, both relations; some without sampling, some of one step."""
    rng = np.random.default_rng(seed)
    settings = []
    for i in range(count):
        noise, rate, steps = (float(np.exp(rng.uniform(*np.log(ends)))) for ends in ((0.3, 20.0), (1e-6, 1.0), (1.0, 1e7)))
        settings.append(
            {
                "noise": noise,
                "rate": 1.0 if i % 20 == 7 else rate,
                "steps": 1 if i % 20 == 13 else round(steps),
                "distance": 1 + i % 2,
                "prior": float(rng.uniform(0.02, 0.98)),
                "fpr": float(10.0 ** rng.uniform(-5.0, -0.3)),
                "delta": float(10.0 ** rng.uniform(-8.0, -2.0)),
            }
        )
    return settings


#: What the page's own script says of settings.
COMPUTED = """({ settings, rates }) => settings.map((one) => {
    const curve = new window.computed.TradeoffCurve(one);
    return {
        bayes_security: curve.bayesSecurity(), success: curve.success(one.prior), tpr: curve.tpr(one.fpr),
        epsilon: curve.epsilon(one.delta), curve: rates.map((rate) => curve.tpr(rate)),
    };
})"""


def computed(page: Any, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of the scripts that the file contains, in the browser."""
    page.evaluate(f"window.computed = {pages.bundle(pages.sources(), 'tradeoff.js')}")
    answers: list[dict[str, Any]] = page.evaluate(COMPUTED, {"settings": settings, "rates": RATES.tolist()})
    return answers


def check(answer: dict[str, Any], python: bs.Bound, scale: float = 1.0) -> None:
    """The same number, within the interval that is said here, and an interval that Python's meets."""
    assert answer["estimate"] == pytest.approx(python.estimate, rel=0.0, abs=AGREES * scale)
    assert answer["lower"] <= answer["estimate"] <= answer["upper"]
    rounding = 1e-14 * scale
    assert answer["lower"] <= python.upper + rounding
    assert answer["upper"] >= python.lower - rounding


def test_the_file_contains_the_scripts_that_are_tested(file: Path) -> None:
    text = file.read_text("utf-8")
    for name in ("normal", "transform", "contour", "tradeoff"):
        assert (pages.HERE / f"{name}.js").read_text("utf-8").split("export", 1)[0].strip().splitlines()[-1] in text
    assert "fetch(" not in text.split('id="plotly"')[0], "the script that asks a server is not in it"


def test_two_hundred_settings_agree_with_python(page: Any, file: Path) -> None:
    visit(page, file)
    settings = random_settings(seed=18, count=SETTINGS)
    for one, answer in zip(settings, computed(page, settings), strict=True):
        run = bs.DPSGD(one["noise"], one["rate"], one["steps"])
        risk = bs.analyze(run, bs.Membership("add-remove" if one["distance"] == 1 else "substitution"))
        check(answer["bayes_security"], risk.bayes_security)
        check(answer["success"], risk.success(one["prior"]))
        both = risk.tpr(np.append(RATES, one["fpr"]))
        for i, point in enumerate([*answer["curve"], answer["tpr"]]):
            python = bs.Bound(*(float(end[i]) for end in (both.lower, both.estimate, both.upper)))
            check(point, python)
            assert point["estimate"] == pytest.approx(python.estimate, rel=1e-5), "small rates, relative to themselves"
        epsilon = risk.epsilon(one["delta"])
        check(answer["epsilon"], epsilon, 1.0 + epsilon.estimate)


def test_an_attribute_has_the_glued_curve(page: Any, file: Path) -> None:
    """What is shown of attributes is above every attack, and not the certified figure: it is labelled as a bound."""
    visit(page, file)
    rng = np.random.default_rng(4)
    settings = [
        {**one, "distance": float(rng.uniform(0.01, 1.99)), "glue": True}
        for one in random_settings(seed=19, count=24)
        if one["rate"] < 1.0
    ]
    for one, answer in zip(settings, computed(page, settings), strict=True):
        part = PoissonFactor(one["steps"], "glued", one["rate"], one["noise"], one["distance"])
        curve = FourierCurve([part], symmetric=True)
        overlap, error = curve.overlap()
        check(answer["bayes_security"], bs.Bound(overlap - error, overlap, overlap + error))
        values, errors, _ = curve.rates(RATES)
        for point, value, doubt in zip(answer["curve"], values.tolist(), errors.tolist(), strict=True):
            check(point, bs.Bound(value - doubt, value, value + doubt))
    visit(page, file, "?noise=2&batch=256&records=26048&epochs=10&threat=attribute&distance=0.8")
    certified = bs.analyze(run_of(page), bs.AttributeInference(0.8), method="certified").bayes_security
    shown = page.inner_text("#beta")
    assert shown.startswith("≥ ")
    assert 0.9 < float(shown.removeprefix("≥ ")) <= certified.lower
    assert page.inner_text("#certainty").startswith("A bound: no attack on an attribute with this distance does better")
    command = "betastar analyze --noise 2 --batch 256 --records 26048 --epochs 10 --threat attribute --distance 0.8 --fpr 0.01"
    assert page.inner_text("#certainty code") == command
    proved = json.loads(call(*command.split()[1:], "--json").stdout)
    assert proved["bayes_security"]["lower"] == certified.lower, "the command is the proved figure"


def test_the_first_number_is_there_at_once(page: Any, file: Path) -> None:
    page.add_init_script(
        """new MutationObserver((_, watch) => {
            if (!/\\d/.test(document.getElementById("beta")?.textContent)) return;
            window.firstNumber = performance.now();
            watch.disconnect();
        }).observe(document, { childList: true, characterData: true, subtree: true })"""
    )
    times = []
    for _ in range(DRAGS):
        visit(page, file)
        times.append(page.evaluate("window.firstNumber"))
    assert min(times) < 1000.0, times


def test_the_page_is_the_served_one(page: Any, file: Path) -> None:
    visit(page, file)
    risk = bs.analyze(run_of(page))
    assert page.inner_text("#beta") == four_digits(risk.bayes_security.lower) == "0.8993"
    right, guessing = told(page)
    assert 0.0 <= right - 100.0 * risk.success(0.5).upper <= 0.01 + 1e-6
    assert guessing == 50.0
    assert (
        page.inner_text("#meaning")
        == "1 minus the advantage of the best attacker. At 1 they may as well toss a coin, at 0 they always know."
    )
    settle(page, rest=True)
    assert len(page.query_selector_all("#epochs-chart path.js-line")) >= 2
    metrics = page.inner_text("#metrics")
    for value in (risk.tpr(0.01).upper, risk.epsilon(1e-5).upper):
        assert any(0.0 <= shown / value - 1.0 < 0.011 for shown in numbers(metrics)), metrics
    page.select_option("#threat", "membership-add-remove")
    settle(page)
    assert page.inner_text("#beta") == four_digits(bs.analyze(run_of(page), bs.Membership("add-remove")).bayes_security.lower)
    page.click("#command")
    page.wait_for_function("() => document.getElementById('done').textContent !== ''")
    command = page.evaluate("navigator.clipboard.readText()")
    assert json.loads(call(*command.split()[1:], "--json").stdout)["parameters"]["threat"] == "membership-add-remove"
    page.click("#python")
    page.wait_for_function("() => document.getElementById('done').textContent === 'Python copied.'")
    code: dict[str, Any] = {}
    exec(page.evaluate("navigator.clipboard.readText()"), code)
    assert isinstance(code["run"], DPSGD)
    assert code["risk"].bayes_security == bs.analyze(run_of(page), bs.Membership("add-remove")).bayes_security


def numbers(text: str) -> list[float]:
    """The numbers in a text; a percentage is a share."""
    words = text.replace("\n%", " %").replace(",", "").split()
    shares = [*words[1:], ""]
    return [
        float(word) * (0.01 if after == "%" else 1.0)
        for word, after in zip(words, shares, strict=True)
        if word.replace(".", "").replace("e-", "").isdigit()
    ]


def test_the_number_moves_with_the_slider(page: Any, file: Path) -> None:
    visit(page, file)
    for _ in range(DRAGS):
        said = drag(page)
        assert page.inner_text("#beta") == said["texts"][-1] == four_digits(bs.analyze(run_of(page)).bayes_security.lower)
        settle(page)
        if said["during"] >= 15 and said["after"] <= 150.0:
            return
    pytest.fail(f"The number changed {said['during']} times; it was right {said['after']:.0f} ms after the last event.")


def test_a_parameter_is_found_from_a_target(page: Any, file: Path) -> None:
    visit(page, file)
    page.click("#noise-find")
    settle(page)
    core = bs.calibrate(bs.Target(bayes_security=0.98), batch_size=256, dataset_size=26048, epochs=20)
    assert knobs(page)["noise"] == pytest.approx(core.noise_multiplier, rel=1e-5)
    assert page.inner_text("#beta") == "0.9800"
    page.click("#epochs-find")
    page.select_option("#target", "epsilon")
    page.fill("#limit", "0.5")
    settle(page)
    values = knobs(page)
    target = bs.Target(epsilon=0.5, delta=1e-5)
    core = bs.calibrate(target, noise_multiplier=values["noise"], batch_size=256, dataset_size=26048)
    assert values["epochs"] == core.steps // 102
    page.fill("#limit", "0")
    page.wait_for_selector("#problem:visible")
    assert "The command searches farther: betastar calibrate" in page.inner_text("#problem")
    assert page.inner_text("#beta") == "–"


def test_what_it_cannot_compute_is_said(page: Any, file: Path) -> None:
    visit(page, file)
    assert "Everything else, proofs among it: betastar analyze." in page.inner_text("#lacks")
    lacked = {"method": {*METHODS} - {"exact"}, "sampling": {*SAMPLINGS} - {"poisson"}, "sees": {*SEES} - {"updates"}}
    for name, words in lacked.items():
        disabled = page.eval_on_selector_all(f"#{name} option:disabled", "all => all.map((one) => one.value)")
        assert set(disabled) == words
    assert not page.is_visible("#records-per-person-knob")
    page.click("#noise-find")
    assert page.eval_on_selector_all("#target option:disabled", "all => all.map((one) => one.value)") == ["gdp_mu"]
    page.click("#noise-find")
    page.fill("#noise", "0.1")
    page.wait_for_selector("#problem:visible")
    assert "In this file the noise multiplier must be between 0.3 and 1,000, and is 0.1." in page.inner_text("#problem")
    assert page.inner_text("#problem code").startswith("betastar analyze --noise 0.1 --batch 256")
    assert page.inner_text("#beta") == "–"
    page.fill("#noise", "")
    page.wait_for_selector("#problem:has-text('got no number')")
    page.fill("#batch", "99999999")
    page.fill("#noise", "1")
    page.wait_for_selector("#problem:has-text('batch must be at most records, got 99999999 > 26048.')")
    page.fill("#batch", "100")
    page.wait_for_selector("#problem", state="hidden")


@pytest.mark.parametrize("name", [*SAMPLINGS][1:])
def test_another_sampling_is_not_computed(page: Any, file: Path, name: str) -> None:
    """Nothing is shown that belongs to Poisson sampling; the command that is named has the answer."""
    page.goto(f"{file.as_uri()}?records=1000&batch=50&noise=1.5&epochs=2&sampling={name}")
    page.wait_for_selector("#problem:visible")
    assert page.inner_text("#problem").startswith(f"This file does not compute the sampling {name}. This does: betastar analyze")
    assert page.inner_text("#beta") == "–"
    command = page.inner_text("#problem code")
    assert json.loads(call(*command.split()[1:], "--metric", "bayes_security", "--json").stdout)["parameters"]["sampling"] == name


def test_the_address_restores_a_setting(page: Any, file: Path) -> None:
    visit(page, file, "?records=60000&batch=512&noise=1.3&epochs=7&fpr=0.001&log=1")
    assert page.inner_text("#beta") == four_digits(bs.analyze(bs.DPSGD.from_epochs(1.3, 512, 60000, 7)).bayes_security.lower)
    page.click("#pin")
    page.wait_for_selector("#pins tbody td:nth-child(5):not(:text('…'))")
    page.wait_for_function("() => location.search.includes('pin=')")
    number = page.inner_text("#pins tbody")
    page.reload()
    page.wait_for_selector("#pins tbody td:nth-child(5):not(:text('…'))")
    assert page.inner_text("#pins tbody") == number


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_one_way(browser: Any, file: Path, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True, offline=True)
    page = context.new_page()
    visit(page, file, "?solve=noise")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    context.close()


def test_a_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    refused = call("explore", "--export", str(path))
    assert refused.returncode == 2
    assert f"--export {str(path)!r} is there already; choose another name, or write over it with --force." in refused.stderr
    assert path.read_text() == "mine"
    assert call("explore", "--export", str(path), "--force").returncode == 0
    assert path.read_text("utf-8").startswith("<!doctype html>")
    for name, words in (("page.txt", "must end with .html"), ("nowhere/page.html", "must be in a folder that exists")):
        assert words in call("explore", "--export", str(tmp_path / name)).stderr
