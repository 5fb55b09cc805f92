"""The page in a real Chromium, without a network: one test for each thing that it promises."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import betastar as bs
from betastar import page as pages
from betastar.exact import FourierCurve
from betastar.steps.poisson import PoissonFactor
from betastar.tuning import OneTrial, advantage_of_tail, exact_tail

from ..command import call

#: Largest difference from Python: of probabilities, and of ε relative to 1 + ε.
AGREES = 1e-6
#: Settings that are compared, of them attributes, and false-positive rates of their trade-off curves.
SETTINGS, ATTRIBUTES, RATES = 80, 16, np.array([1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.99])
SMALL = {"noise": 1.5, "batch": 50, "records": 1000, "epochs": 2}
#: Milliseconds that a page is waited for: a machine that others use may take long.
PATIENCE = 120_000


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(pages.html(), "utf-8")
    return path


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    """A page whose console stays silent, and which asks for nothing but its own file."""
    context = browser.new_context(offline=True, permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda problem: said.append(str(problem)))
    opened.on("request", lambda ask: said.append(ask.url) if not ask.url.startswith((file.as_uri(), "data:", "blob:")) else None)
    yield opened
    context.close()
    assert said == []


def visit(page: Any, file: Path, **setting: Any) -> None:
    page.goto(f"{file.as_uri()}?{'&'.join(f'{name}={value}' for name, value in setting.items())}")


def settle(page: Any) -> None:
    """Until the number and the charts belong to the last change, and nothing is left to refine."""
    page.wait_for_function(
        """() => {
            const of = (id) => document.getElementById(id).dataset, now = document.body.dataset.version;
            return of("beta").version === now && ["epochs-chart", "tradeoff-chart"].every((id) => of(id).version === now && of(id).rest === "true");
        }"""  # noqa: E501
    )


def knobs(page: Any) -> dict[str, float]:
    return {name: float(page.input_value(f"#{name}")) for name in SMALL}


def run_of(page: Any) -> bs.DPSGD:
    values = knobs(page)
    return bs.DPSGD.from_epochs(values["noise"], int(values["batch"]), int(values["records"]), values["epochs"])


def four_digits(value: float) -> str:
    return f"{floor(value * 1e4 + 1e-9) / 1e4:.4f}"


def shown(page: Any) -> list[str]:
    """Everything that the answer shows: the words, and the lines of the charts."""
    lines = page.eval_on_selector_all(".plot path.js-line", "all => all.map((one) => one.getAttribute('d'))")
    return [page.inner_text(f"#{name}") for name in ("beta", "sentence", "metrics", "tradeoff-note")] + lines


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


def check(answer: dict[str, Any], python: bs.Bound, scale: float = 1.0) -> None:
    """The same number, within the interval that the page has, and an interval that Python's meets."""
    assert answer["estimate"] == pytest.approx(python.estimate, rel=0.0, abs=AGREES * scale)
    assert answer["lower"] <= answer["estimate"] <= answer["upper"]
    rounding = 1e-14 * scale
    assert answer["lower"] <= python.upper + rounding
    assert answer["upper"] >= python.lower - rounding


def test_the_numbers_are_pythons(page: Any, file: Path) -> None:
    """Membership: those of the method exact. Attributes: those of the glued curve. Both are shown rounded to the safe side."""
    visit(page, file)
    rng = np.random.default_rng(4)
    attributes = [one | {"distance": float(rng.uniform(0.01, 1.99)), "glue": True} for one in random_settings(19, ATTRIBUTES)]
    settings = random_settings(18, SETTINGS) + [one for one in attributes if one["rate"] < 1.0]
    answers = page.evaluate(
        """({ settings, rates }) => settings.map((one) => {
            const curve = new TradeoffCurve(one);
            return {
                bayes_security: curve.bayesSecurity(), success: curve.success(one.prior), epsilon: curve.epsilon(one.delta),
                curve: [...rates, one.fpr].map((rate) => curve.tpr(rate)),
            };
        })""",
        {"settings": settings, "rates": RATES.tolist()},
    )
    for one, answer in zip(settings, answers, strict=True):
        rates = np.append(RATES, one["fpr"])
        if "glue" in one:
            curve = FourierCurve(
                [PoissonFactor(one["steps"], "glued", one["rate"], one["noise"], one["distance"])], symmetric=True
            )
            overlap, error = curve.overlap()
            values, errors, _ = curve.rates(rates)
            beta, tprs = bs.Bound(overlap - error, overlap, overlap + error), bs.Bound(values - errors, values, values + errors)
        else:
            run = bs.DPSGD(one["noise"], one["rate"], one["steps"])
            risk = bs.analyze(run, bs.Membership("add-remove" if one["distance"] == 1 else "substitution"))
            beta, tprs = risk.bayes_security, risk.tpr(rates)
            check(answer["success"], risk.success(one["prior"]))
            epsilon = risk.epsilon(one["delta"])
            check(answer["epsilon"], epsilon, 1.0 + epsilon.estimate)
        check(answer["bayes_security"], beta)
        for i, point in enumerate(answer["curve"]):
            python = bs.Bound(*(float(end[i]) for end in (tprs.lower, tprs.estimate, tprs.upper)))
            check(point, python)
            assert point["estimate"] == pytest.approx(python.estimate, rel=1e-5), "small rates, relative to themselves"
    numbers = np.exp(rng.uniform(np.log(1e-9), np.log(60.0), 500)).tolist()
    texts = page.evaluate(
        "(all) => all.map((one) => [down(one), down(one, 3), up(one), up(one, 6), percent(one), percent(one, 2)])", numbers
    )
    for value, (low, lower, high, six, *shares) in zip(numbers, texts, strict=True):
        assert max(float(low), float(lower)) <= value <= min(float(high), float(six))
        assert float(high) <= value * 1.011
        assert float(six) <= value * 1.000011
        assert min(float(share.removesuffix(" %")) / 100.0 for share in shares) >= value


def test_the_best_of_several_models(page: Any, file: Path) -> None:
    """β* is Python's to 1e-7; the other figures are the composition of all models, or what follows from β* if that is less."""
    visit(page, file)
    rng = np.random.default_rng(6)
    settings = [one | {"trials": int(rng.integers(2, 300))} for one in random_settings(23, 16)]
    answers = page.evaluate(
        """(settings) => settings.map((one) => {
            const all = new TradeoffCurve({ ...one, steps: one.steps * one.trials });
            const best = new BestOf(new TradeoffCurve(one), all, one.trials);
            return {
                exact: best.exact, bayes_security: best.bayesSecurity(), success: best.success(one.prior),
                epsilon: best.epsilon(one.delta), tpr: best.tpr(one.fpr),
            };
        })""",
        settings,
    )
    for one, answer in zip(settings, answers, strict=True):
        threat = bs.Membership("substitution" if one["distance"] == 2 else "add-remove")
        trial = OneTrial([bs.analyze(bs.DPSGD(one["noise"], one["rate"], one["steps"]), threat)._outcomes[0]], [1.0])
        some, _ = advantage_of_tail(exact_tail(trial.fourier, [1.0]), bs.Trials.fixed(one["trials"]), trial.advantage)
        assert answer["exact"] == (one["distance"] == 2)
        assert answer["bayes_security"]["estimate"] == pytest.approx(1.0 - some.estimate, abs=1e-7), one
        together = bs.analyze(bs.DPSGD(one["noise"], one["rate"], one["steps"] * one["trials"]), threat)
        prior = one["prior"]
        likelier, most = max(prior, 1.0 - prior), 1.0 - answer["bayes_security"]["lower"]
        assert some.estimate <= most <= some.estimate + 1e-4
        for name, expected, scale in (
            ("success", min(together.success(prior).upper, likelier + (1.0 - likelier) * most), 1.0),
            ("tpr", min(together.tpr(one["fpr"]).upper, one["fpr"] + most), 1.0),
            ("epsilon", together.epsilon(one["delta"]).upper if most > one["delta"] else 0.0, None),
        ):
            if np.isfinite(expected):
                assert answer[name]["upper"] == pytest.approx(expected, abs=AGREES * (scale or 1.0 + expected)), (name, one)


def test_models_tried_is_a_field(page: Any, file: Path) -> None:
    visit(page, file, **SMALL)
    settle(page)
    one = float(page.inner_text("#beta"))
    page.fill("#trials", "20")
    settle(page)
    best = bs.analyze(bs.best_of(run_of(page), 20))
    assert page.inner_text("#beta") == four_digits(best.bayes_security.lower)
    assert float(page.inner_text("#beta")) < one
    assert page.inner_text("#sentence").startswith("Best of 20: An attacker who guesses membership is right at most")
    assert "only the winner is released" in page.inner_text("#assumptions")
    assert "trials=20" in page.evaluate("location.href") or page.wait_for_function("location.href.includes('trials=20')")
    page.click("#command")
    command = page.evaluate("navigator.clipboard.readText()")
    assert json.loads(call(*shlex.split(command)[1:], "--json").stdout)["bayes_security"]["lower"] == best.bayes_security.lower
    page.click("#python")
    code = page.evaluate("navigator.clipboard.readText()")
    names: dict[str, Any] = {}
    exec(code[: code.index("print(")], names)
    assert names["risk"].bayes_security.lower == best.bayes_security.lower
    page.fill("#trials", "0")
    assert "must be a whole number from 1 to 1,000, got" in page.inner_text("#trials-problem")


def test_the_numbers_follow_the_sliders(page: Any, file: Path) -> None:
    visit(page, file)
    settle(page)
    risk = bs.analyze(run_of(page))
    assert page.inner_text("#beta") == four_digits(risk.bayes_security.lower) == "0.8993"
    right, guessing = (float(share) for share in re.findall(r"([\d.]+) %", page.inner_text("#sentence")))
    assert 0.0 <= right - 100.0 * risk.success(0.5).upper <= 0.01 + 1e-6
    assert guessing == 50.0
    metrics = dict(zip(page.locator("#metrics dt").all_inner_texts(), page.locator("#metrics dd").all_inner_texts(), strict=True))
    assert 0.0 <= float(metrics["TPR at FPR 0.01"].removesuffix(" %")) - 100.0 * risk.tpr(0.01).upper <= 0.01 + 1e-6
    assert 1.0 <= float(metrics["ε at δ 1e-5"]) / risk.epsilon(1e-5).upper <= 1.011
    before = shown(page)
    moved = page.evaluate(
        """async () => {
            const slider = document.getElementById("noise-slider"), beta = document.getElementById("beta"), seen = new Set();
            for (let place = 300; place <= 480; place += 3) {
                slider.value = place;
                slider.dispatchEvent(new Event("input", { bubbles: true }));
                await new Promise((later) => setTimeout(later, 16));
                seen.add(beta.textContent);
            }
            return seen.size;
        }"""
    )
    assert moved > 1, "the number does not wait for the end"
    settle(page)
    assert page.inner_text("#beta") == four_digits(bs.analyze(run_of(page)).bayes_security.lower)
    assert all(now != then for now, then in zip(shown(page)[:3], before[:3], strict=True))
    page.select_option("#threat", "membership-add-remove")
    settle(page)
    assert page.inner_text("#beta") == four_digits(bs.analyze(run_of(page), bs.Membership("add-remove")).bayes_security.lower)


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
    assert page.eval_on_selector("#target", "one => one.selectedOptions[0].textContent") == "ε at δ 1e-5 ≤"
    core = bs.calibrate(
        bs.Target(epsilon=0.5, delta=1e-5), noise_multiplier=knobs(page)["noise"], batch_size=256, dataset_size=26048
    )
    assert knobs(page)["epochs"] == core.steps // 102
    before = shown(page)
    page.fill("#limit", "0")
    page.wait_for_selector("#limit-problem:has-text('The command searches farther: betastar calibrate')")
    assert shown(page) == before


def test_percent_is_accepted_and_a_wrong_entry_changes_nothing(page: Any, file: Path) -> None:
    visit(page, file)
    sentences = set()
    for entry in ("52 %", "52%", "52", "0.52"):
        page.fill("#prior", entry)
        settle(page)
        sentences.add(page.inner_text("#sentence"))
    assert len(sentences) == 1
    assert "against 52 % without the model" in sentences.pop()
    page.click("#noise-find")
    page.fill("#limit", "98 %")
    settle(page)
    assert page.inner_text("#beta") == "0.9800"
    page.click("#noise-find")
    settle(page)
    before = shown(page)
    wrong = {
        ("noise", "abc"): "Noise multiplier must be a number from 0.3 to 1,000, got “abc”.",
        ("noise", ""): "Noise multiplier must be a number from 0.3 to 1,000, got nothing.",
        ("noise", "0.1"): "got “0.1”. For this one run betastar analyze --noise 0.1 --batch 256",
        ("noise", "52 %"): "got “52 %”.",
        ("prior", "152 %"): "must be a probability from 0 to 1, or a percentage such as 52 %, got “152 %”.",
        ("batch", "99,999,999"): "The batch size must be at most the number of training records, got 99,999,999 > 26,048.",
        ("batch", "2.5"): "Batch size must be a whole number from 1 to 1,000,000,000, got “2.5”.",
    }
    for (name, entry), words in wrong.items():
        good = page.input_value(f"#{name}")
        page.fill(f"#{name}", entry)
        assert words in page.inner_text(f"#{name}-problem")
        assert page.is_visible("#stale")
        assert shown(page) == before
        page.fill(f"#{name}", good)
        settle(page)
        assert not page.is_visible("#stale")


def test_an_attribute_has_a_proved_bound_and_the_command_for_the_tighter_figure(page: Any, file: Path) -> None:
    visit(page, file, **SMALL, threat="attribute", distance=0.8)
    settle(page)
    beta, certainty = page.inner_text("#beta"), page.inner_text("#certainty")
    assert certainty.startswith("Proved up to numerical error: no attack on an attribute with this distance does better.")
    command = "betastar analyze --noise 1.5 --batch 50 --records 1000 --epochs 2 --threat attribute --distance 0.8 --fpr 0.01"
    assert certainty.endswith(f"for the tighter figure run {command}.")
    tighter = json.loads(call(*command.split()[1:], "--json").stdout)["bayes_security"]["lower"]
    assert beta.startswith("≥ ")
    assert 0.9 < float(beta.removeprefix("≥ ")) <= tighter


def test_another_sampling_has_no_number_but_a_command(page: Any, file: Path) -> None:
    visit(page, file, **SMALL)
    settle(page)
    before = shown(page)
    for name in ("fixed-size", "balls-in-bins", "shuffled"):
        page.select_option("#sampling", name)
        page.wait_for_selector(f"#problem:has-text('For {name} sampling run betastar analyze')")
        assert page.inner_text("#beta") == "–"
        assert not page.is_visible(".charts")
        command = page.inner_text("#problem code")
        said = json.loads(call(*command.split()[1:], "--metric", "bayes_security", "--json").stdout)
        assert said["parameters"]["sampling"] == name
    page.select_option("#sampling", "poisson")
    settle(page)
    assert shown(page) == before


def test_pins_stay_in_the_address(page: Any, file: Path) -> None:
    visit(page, file, **SMALL, fpr=0.001, log=1)
    settle(page)
    beta, lines = page.inner_text("#beta"), len(page.query_selector_all("#epochs-chart path.js-line"))
    page.click("#pin")
    page.fill("#noise", "3")
    settle(page)
    row = page.inner_text("#pins tbody")
    assert row.split("\t")[:2] == ["noise 1.5, batch 50, 2 epochs, 1000 records", beta]
    assert len(page.query_selector_all("#epochs-chart path.js-line")) == lines + 1
    page.wait_for_function("() => location.search.includes('noise=3')")
    page.reload()
    settle(page)
    assert page.inner_text("#pins tbody") == row
    assert page.input_value("#noise") == "3"
    page.click("#pins button")
    assert not page.is_visible("#pins")


@pytest.mark.filterwarnings("ignore::betastar.RateWarning")
def test_what_is_copied_runs(page: Any, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Python and the command have the number of the page, or where it shows a bound, one that is not below."""
    settings: list[dict[str, Any]] = [
        {"threat": "membership-add-remove", "prior": 0.2, "fpr": 1e-4},
        {"threat": "attribute", "distance": 0.8},
        {"sampling": "balls-in-bins"},
        {"solve": "noise"},
        {"solve": "epochs", "target": "tpr", "limit": 0.05},
    ]
    for setting in settings:
        visit(page, file, **SMALL, **setting)
        texts = []
        if "sampling" not in setting:
            settle(page)
        for name in ("Python", "Command"):
            page.click(f"#{name.lower()}")
            page.wait_for_selector(f"#done:has-text('{name} copied.')")
            texts.append(page.evaluate("navigator.clipboard.readText()"))
        found: dict[str, Any] = {}
        exec(texts[0], found)
        beta = found["risk"].bayes_security.lower
        assert str(found["risk"].bayes_security) in capsys.readouterr().out
        command = call(*shlex.split(texts[1])[1:], "--json")
        assert command.returncode == 0, command.stderr
        assert json.loads(command.stdout)["bayes_security"]["lower"] == pytest.approx(beta, abs=1e-9)
        number = page.inner_text("#beta")
        if number.startswith("≥ "):
            assert float(number.removeprefix("≥ ")) < beta
        elif number != "–":
            assert float(number) == pytest.approx(beta, abs=1.01e-4)


def test_it_is_light_or_dark_and_fits_a_phone(browser: Any, file: Path) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True, offline=True)
        page.set_default_timeout(PATIENCE)
        visit(page, file, solve="noise", threat="attribute", pin="noise%3D2")
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        for now in (scheme, other):
            ink, paper = page.evaluate(
                """['color', 'backgroundColor'].map((one) =>
                    getComputedStyle(document.documentElement)[one].match(/\\d+/g).map(Number))"""
            )
            assert (sum(ink) > sum(paper)) == (now == "dark")
            page.click("#theme")
        page.close()


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "page.html", []
    path.write_text("mine")
    refused = call("explore", "--export", str(path))
    assert refused.returncode == 2
    assert f"--export {str(path)!r} is there already; choose another name, or write over it with --force." in refused.stderr
    assert path.read_text() == "mine"
    said = json.loads(call("explore", "--export", str(path), "--force", "--json").stdout)
    assert said == {"export": str(path), "bytes": path.stat().st_size}
    assert path.read_text("utf-8") == pages.html()
    for name, words in (("page.txt", "must end with .html"), ("nowhere/page.html", "must be in a folder that exists")):
        assert words in call("explore", "--export", str(tmp_path / name)).stderr
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    said = json.loads(call("explore", "--json").stdout)
    assert opened == [Path(said["page"]).as_uri()]
    assert Path(said["page"]).read_text("utf-8") == pages.html()
