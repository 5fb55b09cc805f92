"""Figure 8: cost of an epoch of Adult, by what is analysed."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from betastar import plots
from betastar.runs import Config, RunFolder, Training, network
from studies.paper.sheet import Sheet
from studies.trainings import Json

PAPER = {"no DP": 0.19, "MIA": 0.40, "accountant": 0.42, "AI approximate": 74.5, "AI full": 1436.6}
#: The same for people, in two lines.
WORDS = {
    "no DP": "without\nDP",
    "MIA": "membership",
    "accountant": "membership,\naccountant",
    "AI approximate": "attribute,\napproximated",
    "AI full": "attribute,\nall pairs",
}


def measure(epochs: int) -> Json:
    """Seconds an epoch, by what is analysed: medians; and the number of threads."""
    measured: Json = {"threads": torch.get_num_threads(), "no DP": _plain(epochs)}
    options: dict[str, dict[str, Any]] = {
        "MIA": {"monitor": False},
        "AI approximate": {"diameter": "centroid", "ledger": False},
        "AI full": {"ledger": False},
    }
    times: dict[str, list[float]] = {name: [] for name in options}
    with tempfile.TemporaryDirectory() as folder:
        trainings = {
            name: Training(Config(seed=0, every=1, **given), RunFolder(Path(folder) / name)) for name, given in options.items()
        }
        for _ in range(epochs):  # in turn, so that a noisy machine is noisy for all
            for name, training in trainings.items():
                start = time.perf_counter()
                training.run_epoch()
                times[name].append(time.perf_counter() - start)
        start = time.perf_counter()
        trainings["MIA"].training.membership("add-remove", "exact").epsilon(delta=1e-5)
        measured |= {name: statistics.median(some) for name, some in times.items()}
        measured["accountant"] = measured["MIA"] + time.perf_counter() - start
    return measured


def make(sheet: Sheet) -> None:
    measured = sheet.measured("fig8", lambda: measure(1 if sheet.quick else 5))
    ax = plots.axes()
    names = list(PAPER)
    places = range(len(names))
    ax.bar([p - 0.2 for p in places], [PAPER[name] for name in names], 0.4, color=plots.OTHER, label="paper (A100)")
    ours = f"betastar ({measured['threads']} threads of a CPU)"
    ax.bar([p + 0.2 for p in places], [measured[name] for name in names], 0.4, color=plots.MEMBERSHIP, label=ours)
    ax.set_yscale("log")
    plots.few_ticks(ax.yaxis, 0.1, 1500)
    ax.set_xticks(list(places), [WORDS[name] for name in names])
    ax.set_ylabel("seconds an epoch")
    plots.legend(ax)
    sheet.save(ax, "fig8")
    why = {"AI full": "inner products from Gram matrices instead of gradients", "no DP": f"{measured['threads']} CPU threads"}
    for name in names:
        sheet.add(f"seconds an epoch, Adult, {name}", f"{PAPER[name]:g}", f"{measured[name]:.2f}", why.get(name, ""))
    sheet.add(
        "AI full / the same training without it",
        f"{PAPER['AI full'] / PAPER['MIA']:.0f}",
        f"{measured['AI full'] / measured['MIA']:.2f}",
    )


def _plain(epochs: int) -> float:
    """The same network without privacy, in batches of the same size."""
    study = Config(seed=0).load()
    torch.manual_seed(0)
    module, criterion = network(study), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(module.parameters(), lr=study.recipe.learning_rate)
    start = time.perf_counter()
    for _ in range(epochs):
        for some in torch.randperm(len(study.train)).split(study.recipe.batch_size):
            x, y = study.train[some]
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
    return (time.perf_counter() - start) / epochs
