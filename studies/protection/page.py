"""The page of the study of protection: tables and a figure, from results.json."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from betastar import plots
from betastar.rounding import nearest, nearest_percent
from studies.pages import Run, accuracies, accuracy, group_accuracy, select, spread, table, write_page
from studies.protection.study import BETAS, BY_SEX, EVERY, LEARNING_RATE, SHARES
from studies.trainings import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPLATE = Path(__file__).with_name("page.md.j2")
COLOURS = {0.9: "#c8553d", 0.95: "#3b6ea8"}
#: Means that differ by less are called the same.
SAME = 0.1
WAYS = {"rate": "own rates", "clipping": "own norms"}


def write(folder: str | Path) -> Path:
    """Write README.md and its figure beside results.json."""
    return write_page(folder, TEMPLATE, lambda results: {"budget": _budget_figure(results["runs"])}, _words)


def _words(results: Json) -> Json:
    runs: list[Run] = results["runs"]
    random, sexes = (select(runs, kind=kind) for kind in ("random", "sex"))
    strict = select(runs, kind="one", beta=max(BETAS.values()))
    return {
        "seeds": results["seeds"],
        "epochs": results["epochs"],
        "rate": f"{LEARNING_RATE:g}",
        "every": EVERY,
        "shares": ", ".join(f"{round(100 * share)} % {name} (β\\* ≥ {BETAS[name]:g})" for name, share in SHARES.items()),
        "random": _group_table(runs, random),
        "sexes": _sex_table(runs, sexes),
        "budgets": _budget_table(runs),
        "random_verdict": _better(random),
        "women": f"{BY_SEX['women']:g}",
        "men": f"{BY_SEX['men']:g}",
        "gained": f"{max(accuracy(select(random, by=by)) for by in WAYS) - accuracy(strict):.1f}",
        **{f"women_{by}": _change(select(sexes, by=by), select(runs, kind="one", beta=min(BETAS.values()))) for by in WAYS},
        "budget_verdict": _budget_verdict(runs),
        "step": _milliseconds(runs),
    }


def _noise(runs: list[Run]) -> str:
    return nearest(mean(run["noise_multiplier"] for run in runs), 3)


def _group_table(runs: list[Run], random: list[Run]) -> str:
    rows = []
    for beta in BETAS.values():
        one = select(runs, kind="one", beta=beta)
        rows.append([f"one target for all, β\\* ≥ {beta:g}", _noise(one), "", spread(one)])
    for by, words in WAYS.items():
        some = select(random, by=by)
        what = "rates" if by == "rate" else "norms"
        rows.append([f"three groups, {words}", _noise(some), _levels(some[0][what]), spread(some)])
    return table(["", "noise", "careful, middle, usual", "accuracy"], rows)


def _levels(numbers: dict[str, float]) -> str:
    return ", ".join(nearest(number, 3) for number in numbers.values())


def _sex_table(runs: list[Run], sexes: list[Run]) -> str:
    low, high = min(BY_SEX.values()), max(BY_SEX.values())
    cases = [(f"one target for all, β\\* ≥ {beta:g}", select(runs, kind="one", beta=beta)) for beta in (high, low)]
    cases += [(f"women and men, {words}", select(sexes, by=by)) for by, words in WAYS.items()]
    rows = [
        [title, _noise(some), spread(some), *(f"{group_accuracy(some, 'sex', name):.1f}" for name in ("Female", "Male"))]
        for title, some in cases
    ]
    return table(["", "noise", "accuracy", "women", "men"], rows)


def _budget_table(runs: list[Run]) -> str:
    rows = []
    for promise in sorted({run["beta"] for run in select(runs, kind="noise")}):
        alone = select(runs, kind="noise", beta=promise)
        rows.append([f"{promise:g}", "noise alone", _noise(alone), "none", spread(alone)])
        for noise in sorted({run["noise"] for run in select(runs, kind="budget", beta=promise)}, reverse=True):
            some = select(runs, kind="budget", beta=promise, noise=noise)
            out = nearest_percent(mean(run["retired"] for run in some), 0)
            rows.append([f"{promise:g}", f"budget, {noise:g} of this noise", _noise(some), out, spread(some)])
    return table(["promise β\\*", "", "noise", "sat out the last step", "accuracy"], rows)


def _change(some: list[Run], others: list[Run]) -> str:
    """By how many points the accuracy for women changes beside other runs."""
    return f"{group_accuracy(some, 'sex', 'Female') - group_accuracy(others, 'sex', 'Female'):+.1f}"


def _better(random: list[Run]) -> str:
    """Which of the two ways is better, and how often."""
    by_rate, by_clipping = (accuracies(select(random, by=by)) for by in WAYS)
    wins = sum(a > b for a, b in zip(by_rate, by_clipping, strict=True))
    difference = mean(by_rate) - mean(by_clipping)
    if abs(difference) < SAME:
        return "Own rates and own norms cost the same here: the means differ by less than 0.1 points"
    first = "Own rates" if difference > 0.0 else "Own norms"
    wins = wins if difference > 0.0 else len(by_rate) - wins
    return f"{first} cost less, by {abs(difference):.1f} points on average, and in {wins} of {len(by_rate)} seeds"


def _budget_verdict(runs: list[Run]) -> str:
    """How much the best budget gains or loses beside the noise that keeps the same promise."""
    found = []
    for promise in sorted({run["beta"] for run in select(runs, kind="noise")}):
        alone = accuracy(select(runs, kind="noise", beta=promise))
        some = select(runs, kind="budget", beta=promise)
        noise = max({run["noise"] for run in some}, key=lambda noise: accuracy(select(some, noise=noise)))
        change = accuracy(select(some, noise=noise)) - alone
        found.append(f"{change:+.1f} points for β\\* ≥ {promise:g} (at {noise:g} of the noise)")
    return " and ".join(found)


def _milliseconds(runs: list[Run]) -> str:
    """The processor time of a step with and without a budget."""
    plain, charged = (mean(run["milliseconds"] for run in select(runs, kind=kind)) for kind in ("noise", "budget"))
    return f"{charged / plain:.2f}"


def _budget_figure(runs: list[Run]) -> Axes:
    """Accuracy against the noise of a budget, in units of what the promise needs without one, which is the point at 1."""
    ax = plots.axes(size=(5.6, 3.6))
    for k, promise in enumerate(sorted({run["beta"] for run in select(runs, kind="noise")})):
        some = select(runs, kind="budget", beta=promise)
        noises = sorted({run["noise"] for run in some})
        values = [accuracies(select(some, noise=noise)) for noise in noises]
        plots.seeds(ax, noises, values, "o-", COLOURS[promise], f"budget, β* ≥ {promise:g}", 4.0 * k - 2.0)
        alone = accuracies(select(runs, kind="noise", beta=promise))
        plots.seeds(ax, [1.0], [alone], "s", COLOURS[promise], f"noise alone, β* ≥ {promise:g}", 4.0 * k - 2.0)
    ax.set_xlabel("noise, in units of what the promise needs without a budget")
    ax.set_ylabel("accuracy (%)")
    plots.legend(ax, columns=2, title="Lines: mean of the seeds, which are the small points.")
    return ax
