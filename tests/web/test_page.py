"""The page in a real Chromium: what moves, what it says, what it sends, and how it looks on a phone."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from math import floor
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
from betastar.vocabulary import METRICS, PARAMETERS, RUN, filled

from . import browser as browsers
from .browser import CURVES, chromium, drag, explored, settle, visit

#: A page that keeps one question of each kind in flight is hardly ever refused.
FEW_REFUSALS = 2
#: Times that a drag is repeated: of a machine that others use, the best of them says what the page does.
DRAGS = 5


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with explored("--port", "18765", unhurried=CURVES) as said:
        yield said["url"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """A page whose console stays silent, which asks nobody but its server, and does not ask that one too much.

    On a busy machine the server may refuse a question for the moment, which Chromium writes to the console; the page asks again.
    A page that floods its server would be refused often.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda problem: said.append(str(problem)))
    opened.on("request", lambda ask: said.append(ask.url) if not ask.url.startswith((url, "data:", "blob:")) else None)
    yield opened
    context.close()
    refused = [text for text in said if "503 (Service Unavailable)" in text]
    assert len(refused) <= FEW_REFUSALS
    assert [text for text in said if text not in refused] == []


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


def test_a_slider_moves_the_number(page: Any, url: str) -> None:
    visit(page, url)
    assert page.inner_text("#beta") == four_digits(bs.analyze(run_of(page)).bayes_security.lower) == "0.8993"
    for name, place in (("noise", 300), ("epochs", 620), ("batch", 400), ("records", 700)):
        move(page, name, place)
        risk = bs.analyze(run_of(page))
        assert page.inner_text("#beta") == four_digits(risk.bayes_security.lower)
        right, guessing = told(page)
        assert 0.0 <= right - 100.0 * risk.success(0.5).upper <= 0.1 + 1e-6, "one decimal, rounded up"
        assert guessing == 50.0
    assert len(page.query_selector_all("#epochs-chart path.js-line")) >= 2
    page.focus("#noise-slider")
    before = page.input_value("#noise")
    page.keyboard.press("ArrowRight")
    assert page.input_value("#noise") != before, "the keyboard moves it, too"
    settle(page)


@pytest.mark.parametrize("threat", [bs.Membership(), bs.AttributeInference(0.8)], ids=["membership", "attribute"])
def test_the_number_moves_with_the_slider(page: Any, url: str, threat: Any) -> None:
    attribute = isinstance(threat, bs.AttributeInference)
    visit(page, url, "?noise=2&batch=256&records=26048&epochs=20&threat=attribute&distance=0.8" if attribute else "")
    for _ in range(DRAGS):
        told = drag(page)
        assert page.inner_text("#beta") == told["texts"][-1] == four_digits(bs.analyze(run_of(page), threat).bayes_security.lower)
        settle(page)
        if told["during"] >= 15 and told["after"] <= 150.0:
            break
    else:
        pytest.fail(f"The number changed {told['during']} times; it was right {told['after']:.0f} ms after the last event.")
    assert all(text.startswith("≥ ") == attribute for text in told["texts"][:-1]), "a quick bound says that it is one"
    values = [float(text.removeprefix("≥ ")) for text in told["texts"]]
    assert values == sorted(values), "no answer is shown after a newer one, and the bound is below what it is refined to"


def test_attribute_inference(page: Any, url: str) -> None:
    visit(page, url, "?noise=2&batch=256&records=26048&epochs=10&threat=attribute&distance=0.8")
    risk = bs.analyze(run_of(page), bs.AttributeInference(0.8))
    assert page.inner_text("#beta") == four_digits(risk.bayes_security.lower)
    assert "the attribute" in page.inner_text("#sentence")
    settle(page, rest=True)
    assert "certified" in page.inner_text("#epochs-note")
    page.select_option("#threat", "membership-add-remove")
    settle(page)
    assert page.inner_text("#beta") == four_digits(bs.analyze(run_of(page), bs.Membership("add-remove")).bayes_security.lower)
    assert not page.is_visible("#distance")


def test_solving_agrees_with_calibrate(page: Any, url: str) -> None:
    visit(page, url)
    page.click("#noise-find")
    settle(page)
    core = bs.calibrate(bs.Target(bayes_security=0.98), batch_size=256, dataset_size=26048, epochs=20)
    assert knobs(page)["noise"] == pytest.approx(core.noise_multiplier, rel=1e-5)
    assert page.inner_text("#beta") == "0.9800"
    page.click("#epochs-find")
    settle(page)
    page.click("#records-find")
    page.select_option("#target", "success")
    page.fill("#limit", "0.52")
    settle(page)
    values = knobs(page)
    target = bs.Target(success=0.52)
    core = bs.calibrate(target, noise_multiplier=values["noise"], batch_size=256, epochs=values["epochs"])
    assert values["records"] == pytest.approx(256 / core.sample_rate)


def test_the_address_restores_a_setting(page: Any, url: str) -> None:
    visit(page, url, "?records=60000&batch=512&noise=1.3&epochs=7&fpr=0.001&log=1")
    page.click("#pin")
    page.wait_for_selector("#pins tbody td:nth-child(5):not(:text('…'))")
    move(page, "noise", 500)
    page.click("#share")
    page.wait_for_function("() => document.getElementById('done').textContent !== ''")
    shared = page.evaluate("navigator.clipboard.readText()")
    number, values = page.inner_text("#beta"), knobs(page)
    visit(page, shared)
    assert knobs(page) == values
    assert page.inner_text("#beta") == number
    assert page.is_checked("#log")
    page.wait_for_selector("#pins tbody td:nth-child(5):not(:text('…'))")
    assert four_digits(bs.analyze(bs.DPSGD.from_epochs(1.3, 512, 60000, 7)).bayes_security.lower) in page.inner_text("#pins")
    page.click("#pins button")
    assert not page.is_visible("#pins")


def test_taking_it_along(page: Any, url: str, tmp_path: Path) -> None:
    visit(page, url)
    for button, words in (
        ("python", "bs.DPSGD.from_epochs(noise_multiplier=3.51"),
        ("command", "betastar analyze --noise 3.51 --batch 256 --records 26048 --epochs 20 --method exact"),
    ):
        page.click(f"#{button}")
        page.wait_for_function("() => document.getElementById('done').textContent !== ''")
        assert words in page.evaluate("navigator.clipboard.readText()")
    for kind, first in (("epochs", "epochs,method,lower"), ("tradeoff", "fpr,tpr_lower")):
        with page.expect_download() as waiting:
            page.click(f"[data-csv={kind}]")
        waiting.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_text().startswith(first)
        with page.expect_download() as waiting:
            page.click(f"[data-svg={kind}]")
        assert waiting.value.suggested_filename == f"betastar-{kind}.svg"
        waiting.value.save_as(tmp_path / kind)
        assert "<svg" in (tmp_path / kind).read_text()


def test_bands_are_an_example(page: Any, url: str) -> None:
    visit(page, url)
    assert page.inner_text("#band").startswith("weak (example")
    page.click("summary:has-text('Bands')")
    page.fill("#moderate", "0.85")
    assert page.inner_text("#band").startswith("moderate")


def test_a_bad_setting_is_explained(browser: Any, url: str) -> None:
    page = browser.new_page()  # Chromium writes a refused request to the console
    visit(page, url)
    page.fill("#batch", "99999999")
    page.wait_for_selector("#problem:visible")
    assert "batch must be at most records" in page.inner_text("#problem")
    page.fill("#batch", "100")
    page.wait_for_selector("#problem", state="hidden")
    page.close()


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("noise", "", "Noise multiplier must be a number of at least 0.01 and at most 1,000,000, got no number."),
        ("noise", "-1", "Noise multiplier must be a number of at least 0.01 and at most 1,000,000, got -1."),
        ("batch", "2.5", "Batch size must be a whole number of at least 1 and at most 1,000,000,000, got 2.5."),
        ("fpr", "7", "False-positive rate must be a number of at least 0 and at most 1, got 7."),
        ("records", "10", "batch must be at most records, got 256 > 10."),
    ],
)
def test_nothing_old_stays_beside_a_bad_setting(browser: Any, url: str, field: str, text: str, words: str) -> None:
    page = browser.new_page()
    visit(page, url)
    page.fill(f"#{field}", text)
    page.wait_for_selector("#problem:visible")
    assert words in page.inner_text("#problem")
    page.wait_for_timeout(500)  # answers that were on their way
    assert page.inner_text("#beta") == "–"
    assert page.inner_text("#sentence") == page.inner_text("#band") == page.inner_text("#metrics") == ""
    assert not page.is_visible("#epochs-chart svg.main-svg")
    assert not page.is_visible("#tradeoff-chart svg.main-svg")
    page.click("#command")
    assert page.inner_text("#done") == "There is no answer to repeat."
    page.focus("#theme")
    assert page.input_value(f"#{field}") == text, "what was wrong can be seen"
    page.fill(f"#{field}", "300" if field != "fpr" else "0.1")
    page.wait_for_selector("#problem", state="hidden")
    settle(page)
    assert re.fullmatch(r"0\.\d{4}", page.inner_text("#beta"))
    assert page.is_visible("#epochs-chart svg.main-svg")
    page.close()


def test_the_page_explains_itself(page: Any, url: str) -> None:
    visit(page, url, "?solve=noise&threat=attribute")
    assert page.inner_text("#meaning") == METRICS["bayes_security"].meaning
    for word in (*RUN.values(), *(PARAMETERS[name] for name in ("distance", "prior", "fpr", "threat", "method", "target"))):
        name = word.name if word.name in ("threat", "method", "target") else word.brief.removeprefix("--")
        if not page.query_selector(f"#{name}"):
            continue
        assert not page.is_visible(f"#{name}-help")
        page.click(f"[aria-controls={name}-help]")
        assert page.inner_text(f"#{name}-help") == filled(word.help)
        assert page.get_attribute(f"#{name}", "aria-describedby") == f"{name}-help"
    controls = page.eval_on_selector_all("form input[type=number], form select", "all => all.map((one) => one.id)")
    assert {"noise", "batch", "records", "epochs", "distance", "prior", "fpr", "threat", "method", "target"} <= set(controls)
    for name in set(controls) - {"limit", "strong", "moderate"}:
        assert page.query_selector(f"[aria-controls={name}-help]"), name


@pytest.mark.parametrize("width", [1280, 360])
def test_no_number_is_clipped(browser: Any, url: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    training = "records=100000000&batch=1000000&noise=17.123456&epochs=1000"
    visit(page, url, f"?{training}&threat=attribute&distance=0.123456&fpr=0.00012345")
    clipped = "all => all.filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1).map((one) => one.id)"
    assert page.eval_on_selector_all("input[type=number], #beta, #metrics dd", clipped) == []
    too_long = """all => all.flatMap((one) => {
        const text = document.createElement("canvas").getContext("2d");
        text.font = getComputedStyle(one).font;
        const said = [...one.options].map((option) => option.textContent);
        return said.filter((words) => text.measureText(words).width > one.clientWidth - 24);
    })"""
    assert page.eval_on_selector_all("form select:not(#target)", too_long) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_one_way(browser: Any, url: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    page = context.new_page()
    visit(page, url, "?solve=noise")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    background = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != background
    for label in page.query_selector_all("input, select, button"):
        assert label.evaluate("e => (e.labels && e.labels.length) || e.ariaLabel || e.textContent.trim()"), (
            "everything has a name"
        )
    context.close()


def test_a_busy_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with explored("--port", str(port)) as said:
            assert said["port"] > port
    assert said["stderr"] == f"betastar: port {port} is busy; using {said['port']}.\n"
    assert said["code"] == 0


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_browser_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, outcome: Any) -> None:
    monkeypatch.setattr(browsers, "CHROMIUM", tmp_path / "chromium")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="make browser"), chromium():
        pass
