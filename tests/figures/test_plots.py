"""Figures: what is drawn is what `analyze` says, into the Axes that was given."""

from __future__ import annotations

import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

import betastar as bs
from betastar import plots

RUN = bs.DPSGD(2.0, 0.01, 500)


def lines(ax: object) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in ax.lines}  # type: ignore[attr-defined]


@pytest.mark.parametrize("log", [False, True])
def test_tradeoff_draws_the_curve_to_rely_on(log: bool) -> None:
    risk = bs.analyze(RUN, bs.AttributeInference(0.9), method="certified")
    ax = plots.tradeoff(risk, log=log, label="age")
    rates, drawn = lines(ax)["age"]
    np.testing.assert_array_equal(drawn, risk.tradeoff(rates).upper)
    assert (drawn >= rates - 1e-12).all()
    assert ax.get_xscale() == ("log" if log else "linear")
    assert rates.min() == (1e-5 if log else 0.0)
    again = plots.tradeoff(bs.analyze(RUN, method="certified"), ax, log)
    assert again is ax
    assert list(lines(ax)) == ["guessing without the model", "age", "membership inference (substitution)"], "one line of guessing"


def test_over_steps_draws_each_moment() -> None:
    run = bs.DPSGD(2.0, 0.01, 30) + bs.DPSGD(1.0, 0.01, 20)
    distances = np.repeat([0.5, 1.5], [10, 40])
    candidates = bs.AttributeInference.among(distances[:, None, None] * (1.0 - np.eye(2)))
    for threat in (None, bs.AttributeInference(distances), bs.AttributeInference(0.4), candidates):
        drawn = lines(plots.over_steps(run, threat, points=3))
        steps, beta = drawn["β*, exact"]
        assert steps.tolist() == [1, 26, 50]
        assert (np.diff(beta) < 0).all()
        assert beta[-1] == bs.analyze(run, threat).bayes_security.lower
        assert len(drawn["paper's closed form"][0]) == 3
    part = bs.analyze(bs.DPSGD(2.0, 0.01, 26), bs.AttributeInference(distances[:26]))
    drawn = lines(plots.over_steps(run, bs.AttributeInference(distances), points=3))["β*, exact"][1][1]
    assert drawn == part.bayes_security.lower
    certified = lines(plots.over_steps(RUN, method="certified", points=3))["β*, certified"][1]
    assert certified[-1] == bs.analyze(RUN, method="certified").bayes_security.lower
    one = plots.over_steps(bs.DPSGD(2.0, 0.01, 1))
    assert one.lines[0].get_marker() == "o", "a single step is seen"


@pytest.mark.parametrize("sampling", ["fixed-size", "balls-in-bins", "shuffled"])
def test_over_steps_keeps_the_sampling(sampling: str) -> None:
    run = bs.DPSGD(2.0, 0.1, 30, sampling)
    drawn = lines(plots.over_steps(run, points=4))
    assert list(drawn) == ["β*, exact"]  # the closed form is of Poisson sampling
    steps, betas = drawn["β*, exact"]
    for count, beta in zip(steps.tolist(), betas, strict=True):
        assert beta == bs.analyze(bs.DPSGD(2.0, 0.1, count, sampling)).bayes_security.lower
    assert steps.tolist() == ([1, 11, 20, 30] if sampling == "fixed-size" else [10, 20, 20, 30])


def test_heatmap_takes_a_risk_or_an_array() -> None:
    noises, rates = np.geomspace(0.5, 8, 6), np.geomspace(1e-4, 1e-1, 5)
    risk = bs.analyze(bs.DPSGD(noises[:, None], rates, 100))
    ax = Figure().subplots()
    assert plots.heatmap(risk, ax, x=rates, y=noises) is ax
    np.testing.assert_array_equal(ax.collections[0].get_array(), risk.bayes_security.lower)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert plots.heatmap(np.eye(3)).get_xscale() == "linear"


def test_what_cannot_be_drawn_is_refused() -> None:
    sweep = bs.DPSGD([1.0, 2.0], 0.01, 10)
    with pytest.raises(ValueError, match="risk must be of one run, got a sweep"):
        plots.tradeoff(bs.analyze(sweep))
    with pytest.raises(ValueError, match="run must be one run, got a sweep"):
        plots.over_steps(sweep)
    with pytest.raises(ValueError, match="one per step to draw steps in order, got a histogram"):
        plots.over_steps(RUN, bs.AttributeInference({0.5: 500}))
    with pytest.raises(ValueError, match="a sweep over two parameters, got shape"):
        plots.heatmap(bs.analyze(sweep))
    with pytest.raises(ValueError, match="x must have one entry for each of the 3 values along it, got 2"):
        plots.heatmap(np.eye(3), x=[1, 2])


def test_exposure_accepts_an_axes() -> None:
    ax = Figure().subplots()
    assert plots.exposure([0.9, 0.95, 1.0], ax) is ax
    assert sum(bar.get_height() for bar in ax.patches) == 3


def test_an_inline_figure_is_xml_with_ids_and_colours_of_its_own() -> None:
    entries = [{"epoch": 1, "accuracy": 0.8, "membership": {"lower": 0.9}, "proved": {"_<b>$age$&\n": {"lower": 0.99}}}]
    for name, ax in (("epochs", plots.over_epochs(entries)), ("accuracy", plots.accuracy(entries))):
        text = plots.inline(ax, name)
        root = ElementTree.fromstring(text)
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(ids) == len(set(ids)) > 5
        assert all(one.startswith(f"{name}-") for one in ids)
        assert "var(--membership)" in text
        assert "currentColor" in text
        assert "http" not in text
        assert "#000000" not in text
        assert "<b>" not in text
        assert "&lt;b&gt;$age$&amp;" in text


def test_a_risk_draws_itself() -> None:
    """One run its trade-off curve; a sweep β* over its parameter or parameters; a notebook gets the picture."""
    run = bs.DPSGD(2.0, 0.01, 500)
    curve, same = bs.analyze(run).plot(), plots.tradeoff(bs.analyze(run))
    for mine, known in zip(curve.lines, same.lines, strict=True):
        np.testing.assert_array_equal(mine.get_xydata(), known.get_xydata())
    assert bs.analyze(run).plot(log=True).get_xscale() == "log"
    assert curve._repr_png_()[1:4] == b"PNG"  # type: ignore[attr-defined]
    noises, rates = [1.0, 2.0, 9.0], [0.01, 0.02]
    line = bs.analyze(bs.DPSGD(noises, 0.01, 500))
    ax = line.plot()
    assert ax.get_xlabel() == "noise multiplier"
    assert ax.get_xscale() == "log"
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), np.stack([noises, line.bayes_security.lower], axis=1))
    both = bs.analyze(bs.DPSGD([[one] for one in noises], rates, 500))
    ax = both.plot()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("sampling rate", "noise multiplier")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs.RegimeWarning)
        paper = bs.analyze(bs.DPSGD(noises, 0.01, 500), method="paper")
    assert paper.plot().get_ylabel() == "Bayes security β* (estimate)"
    np.testing.assert_array_equal(paper.plot().lines[0].get_ydata(), paper.bayes_security.estimate)
    mine = plots.axes()
    assert line.plot(mine) is mine
    cube = bs.analyze(bs.DPSGD([[noises]], [[[0.01]], [[0.02]]], [[[10], [20]]]), method="affinity")
    with pytest.raises(ValueError, match=r"sweep over one or two parameters, got one of shape \(2, 2, 3\)"):
        cube.plot()
