"""Figures for papers: one style, three formats, the same file each time, legends off the data, seeds as points."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import betastar as bs
from betastar import plots

ENTRIES = [
    {
        "epoch": epoch,
        "accuracy": 0.7 + 0.01 * epoch,
        "baseline": 0.7,
        "membership": {"lower": 0.95 - 0.02 * epoch},
        "exact": {"lower": 0.97 - 0.01 * epoch, "estimate": 0.98 - 0.01 * epoch},
        "proved": {"sex": {"lower": 0.99 - 0.001 * epoch}},
    }
    for epoch in (1, 2, 3)
]


def drawn() -> dict[str, Any]:
    risk = bs.analyze(bs.DPSGD(2.0, 0.01, 500))
    return {
        "tradeoff": plots.tradeoff(risk, label="a name of forty characters, for a legend"),
        "log": plots.tradeoff(risk, log=True),
        "steps": plots.over_steps(bs.DPSGD(2.0, 0.01, 500), points=4),
        "epochs": plots.over_epochs(ENTRIES),
        "accuracy": plots.accuracy(ENTRIES),
        "exposure": plots.exposure([0.9, 0.95, 0.97], any_record=0.89),
    }


def test_legends_are_off_the_data_and_inside_of_the_figure() -> None:
    for name, ax in drawn().items():
        plots.image(ax)  # lays it out
        legend, inside, whole = ax.get_legend().get_window_extent(), ax.get_window_extent(), ax.figure.bbox
        assert legend.y0 >= inside.y1 - 1.0, name
        assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1, name
        assert legend.y1 <= whole.y1, name


@pytest.mark.parametrize("kind", plots.FORMATS)
def test_a_figure_is_the_same_file_each_time(kind: str, tmp_path: Path) -> None:
    first, second = (plots.image(plots.over_epochs(ENTRIES), kind) for _ in range(2))
    assert first == second
    plots.save(plots.over_epochs(ENTRIES), tmp_path / "figure", *plots.FORMATS)
    assert (tmp_path / f"figure.{kind}").read_bytes() == first
    if kind == "pdf":
        assert b"/Type3" not in first, "fonts that publishers accept"


def test_lines_are_the_numbers_to_rely_on() -> None:
    ax = plots.over_epochs(ENTRIES, secret="age")
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert list(lines["age, as measured"]) == [entry["exact"]["lower"] for entry in ENTRIES]
    assert list(lines["membership, any data"]) == [entry["membership"]["lower"] for entry in ENTRIES]
    assert len({line.get_linestyle() for line in ax.lines}) == 3, "told apart without colours"
    beside = {line.get_label(): line.get_ydata() for line in plots.accuracy(ENTRIES, secret="age").lines}
    assert list(beside["age, as measured"]) == [entry["exact"]["lower"] for entry in ENTRIES]


def test_every_seed_is_a_point() -> None:
    ax = plots.axes()
    plots.seeds(ax, [1.0, 2.0], [[3.0, 5.0, 4.0], [6.0, 8.0]], "o-", plots.MEMBERSHIP, "age", aside=3.0)
    points = [value for line in ax.lines[:-1] for value in line.get_ydata()]
    assert points == [3.0, 5.0, 4.0, 6.0, 8.0]
    assert list(ax.lines[-1].get_ydata()) == [4.0, 7.0]
    low, high = ax.get_ylim()
    assert low < 3.0 < 8.0 < high, "every point is inside"


def test_places_without_a_panel_are_blank() -> None:
    panels = plots.panels(2, 2, (6.0, 4.0), number=3)
    assert len(panels) == 3
    blank = [ax for ax in panels[0].figure.axes if ax not in panels]
    assert [ax.axison for ax in blank] == [False]


@pytest.mark.parametrize("share", [0.5, 0.5504, 0.513, 1.0])
def test_a_hundred_guesses(share: float) -> None:
    ax = plots.guesses({"membership": share})
    right = {True: 0.0, False: 0.0}
    squares = 0
    for patch in ax.patches:
        if patch.get_facecolor()[3] == 0.0:
            squares += 1
        else:
            right[patch.get_hatch() is not None] += patch.get_width() * patch.get_height()
    assert squares == 100
    one = ax.patches[0].get_width() ** 2
    assert right[False] / one == pytest.approx(50.0)
    assert right[True] / one == pytest.approx(100.0 * share - 50.0), "the model's share, to a fraction of a guess"
    said = float(re.findall(r"[\d.]+", ax.get_title())[0])
    assert -1e-9 <= said - 100.0 * share < 0.011


def test_guesses_that_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"shares\['age'\] must be between 0.5, which are right without the model, and 1, got 0.4"
    ):
        plots.guesses({"age": 0.4})
    with pytest.raises(ValueError, match="of one threat for one Axes"):
        plots.guesses({"age": 0.6, "sex": 0.7}, plots.axes())
