"""Sweeps: grids as people write them, and their results as CSV, JSON or a heat map."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import betastar as bs
from betastar import files
from betastar.answers.json_answers import Answer, number
from betastar.answers.settings import Setting, choose
from betastar.risk import SMALLEST_FPR
from betastar.rounding import plain
from betastar.validation import MUST, WrongValueError
from betastar.vocabulary import LEVELS, METRICS, RUN, told

PICTURES = (".png", ".svg", ".pdf")
WHOLE = ("batch_size", "dataset_size", "steps")


def read_axis(name: str, text: str) -> tuple[float, ...]:
    """ "2", "1,2,4", "0:1:5" (evenly) or ".5:5:20log" (in even ratios)."""
    grid = re.fullmatch(r"([^:,]+):([^:,]+):(\d+)(log)?", text.replace(" ", ""))
    try:
        if grid:
            first, last, count = float(grid[1]), float(grid[2]), int(grid[3])
            if grid[4] and not (first > 0.0 and last > 0.0):
                raise ValueError
            values = (np.geomspace if grid[4] else np.linspace)(first, last, count)
        else:
            values = np.array([float(part) for part in text.split(",")])
    except ValueError:
        allowed = "a number, a list as 1,2,4 or a grid as 0.5:5:20log"
        raise WrongValueError(name, MUST, {"allowed": allowed, "value": repr(text)}) from None
    if not values.size or not np.isfinite(values).all():
        raise WrongValueError(name, "{argument} must have at least one finite value, got {value}.", {"value": repr(text)})
    if name in WHOLE:
        values = np.unique(np.round(values)) if grid else values
        if (values != np.round(values)).any():
            raise WrongValueError(name, MUST, {"allowed": "whole numbers", "value": repr(text)})
        return tuple(int(value) for value in values)
    return tuple(float(value) for value in values)


@dataclass(frozen=True)
class Grid:
    """Axes of values, and what is asked at each point."""

    axes: dict[str, tuple[float, ...]]
    base: Setting
    metric: str
    condition: tuple[str, float] | None

    @classmethod
    def read(cls, texts: Mapping[str, str | None], base: Setting, metric: str) -> Grid:
        axes = {name: read_axis(name, text) for name, text in texts.items() if text is not None}
        name, at, rest = metric.partition("@")
        about = METRICS[choose("metric", name, told())]
        wanted = about.at
        if wanted is None:
            if at:
                text = "{argument} {name} depends on nothing else, got {value}."
                raise WrongValueError("metric", text, {"name": name, "value": repr(metric)})
            return cls(axes, base, name, None)
        key, _, value = rest.partition("=")
        if not at and about.usual is not None:
            return cls(axes, base, name, (wanted, about.usual))
        try:
            if key != wanted:
                raise ValueError
            return cls(axes, base, name, (wanted, float(value)))
        except ValueError:
            text = "{argument} {name} must say at which {wanted}, as in {name}@{wanted}=0.01, got {value}."
            raise WrongValueError("metric", text, {"name": name, "wanted": wanted, "value": repr(metric)}) from None

    @property
    def long(self) -> list[str]:
        """Axes with more than one value."""
        return [name for name, values in self.axes.items() if len(values) > 1]

    def axes_of_picture(self) -> tuple[str, str]:
        if len(self.long) != 2:
            names = ", ".join(RUN[name].brief for name in self.long) or "none"
            raise ValueError(f"a heat map must have exactly two options with a grid, got {names}. Write a .csv file instead.")
        return self.long[0], self.long[1]

    @property
    def size(self) -> int:
        return prod(map(len, self.axes.values()))

    def points(self) -> Iterator[Setting]:
        for values in product(*self.axes.values()):
            fields: dict[str, Any] = dict(zip(self.axes, values, strict=True))
            yield replace(self.base, **fields)

    def compute(self, tell: Callable[[int], None] | None = None) -> Result:
        """The bound at each point. `tell` is called with the number of points that are done."""
        bounds = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bs.RegimeWarning)  # a warning for each point would say nothing
            for point in self.points():
                risk = point.risk()
                reading: Any = getattr(risk, self.metric)
                bounds.append(reading if self.condition is None else reading(self.condition[1]))
                if tell:
                    tell(len(bounds))
        return Result(self, bounds)


@dataclass(frozen=True)
class Result:
    """A bound at each point of a grid, the last axis fastest."""

    grid: Grid
    bounds: list[bs.Bound]

    @property
    def size(self) -> int:
        return len(self.bounds)

    def rows(self) -> Iterator[dict[str, float]]:
        for values, one in zip(product(*self.grid.axes.values()), self.bounds, strict=True):
            yield dict(zip(self.grid.axes, values, strict=True)) | {
                "lower": float(one.lower),
                "estimate": float(one.estimate),
                "upper": float(one.upper),
            }

    def as_csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, [*self.grid.axes, "lower", "estimate", "upper"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def as_json(self) -> Answer:
        condition = dict([self.grid.condition]) if self.grid.condition else {}
        if self.grid.metric == "gdp_mu":
            condition = {"smallest_fpr": SMALLEST_FPR}
        shape = [len(values) for values in self.grid.axes.values()]
        sides = {
            side: _nested([number(getattr(one, side)) for one in self.bounds], shape) for side in ("lower", "estimate", "upper")
        }
        base = self.grid.base
        more = {"distance": base.distance} if base.distance is not None else {}
        return {
            "axes": {name: list(values) for name, values in self.grid.axes.items()},
            "metric": self.grid.metric,
            **condition,
            self.grid.metric: sides,
            "threat": base.threat,
            **more,
            "method": base.chosen_method,
        }

    def draw(self) -> Any:
        """A heat map of the number to rely on."""
        from betastar.figures import plots

        down, across = self.grid.axes_of_picture()
        shape = (len(self.grid.axes[down]), len(self.grid.axes[across]))
        metric = METRICS[self.grid.metric]
        safe = metric.protects
        values = np.array([getattr(one, metric.safe_end) for one in self.bounds], dtype=float).reshape(shape)
        if self.grid.metric == "gdp_mu":
            condition = f" down to FPR {plain(SMALLEST_FPR)}"
        else:
            condition = "" if self.grid.condition is None else f" at {self.grid.condition[0]} {plain(self.grid.condition[1])}"
        ax = plots.heatmap(
            values,
            plots.axes(size=(6.4, 4.6)),
            x=self.grid.axes[across],
            y=self.grid.axes[down],
            xlabel=RUN[across].label,
            ylabel=RUN[down].label,
            title=f"{metric.title if safe else metric.name + condition} ({metric.safe_end} end)",
            levels=LEVELS if safe else (),
            limits=(0.0, 1.0) if metric.limited else None,
            risky=not safe,
        )
        fixed = [f"{RUN[name].label} {plain(values[0])}" for name, values in self.grid.axes.items() if len(values) == 1]
        ax.set_title(f"{self.grid.base.attack.describe()}; {', '.join(fixed)}", fontsize=9)
        return ax


def check_output(path: Path, force: bool) -> None:
    """Refuse a file that the result cannot be written to, before anything is computed."""
    allowed = (".csv", ".json", *PICTURES)
    if path.suffix not in allowed:
        raise ValueError(f"--output must end with one of {', '.join(allowed)}, got {str(path)!r}.")
    files.check(path)
    if path.exists() and not force:
        raise ValueError(f"--output {str(path)!r} is there already; choose another name, or write over it with --force.")
    if not path.parent.is_dir():
        raise ValueError(f"--output must be in a folder that exists, got {str(path)!r}.")


def write(result: Result, path: Path) -> None:
    if path.suffix == ".csv":
        files.write(path, result.as_csv(), private=False)
    elif path.suffix == ".json":
        files.write(path, json.dumps(result.as_json(), allow_nan=False) + "\n", private=False)
    else:
        from betastar.figures import plots

        plots.save(result.draw(), path.with_suffix(""), path.suffix.removeprefix("."))


def _nested(values: list[object], shape: list[int]) -> list[object]:
    """A flat list as lists of lists, the last axis innermost."""
    for length in reversed(shape[1:]):
        values = [values[i : i + length] for i in range(0, len(values), length)]
    return values
