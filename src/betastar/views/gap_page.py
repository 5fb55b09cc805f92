"""The study of gap clipping for people: a page with tables and figures, from results.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from betastar.views import plots
from betastar.views.rounding import down

COLOURS = {"age": "#c8553d", "sex": "#3b6ea8", "race": "#5b8c5a", "marital_status": "#8e6c8a", "item": "#c8553d"}
TITLES = {"age": "age", "sex": "sex", "race": "race", "marital_status": "marital status", "item": "first item"}
STUDIES = {"adult": "Adult", "purchase": "Purchase-100 (synthetic)"}
Run = dict[str, Any]


def write(folder: str | Path) -> Path:
    """README.md and its figures beside results.json."""
    path = Path(folder)
    results = json.loads((path / "results.json").read_text())
    runs: list[Run] = results["runs"]
    plots.save(_by_gap(runs), path / "gap")
    plots.save(_by_noise(runs), path / "noise")
    plots.save(_groups(runs), path / "groups")
    text = [
        INTRODUCTION.format(seeds=results["seeds"], epochs=_epochs(runs)),
        *_adult(runs),
        _deleting(runs),
        *_purchase(runs),
        BASIS,
    ]
    file = path / "README.md"
    file.write_text("\n\n".join(text).strip() + "\n", encoding="utf-8")
    return file


def select(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    return [run for run in runs if all(run[name] == value for name, value in wanted.items())]


def accuracy(runs: Sequence[Run]) -> float:
    return 100.0 * mean(run["accuracy"] for run in runs)


def _spread(runs: Sequence[Run]) -> str:
    values = [100.0 * run["accuracy"] for run in runs]
    return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _epochs(runs: list[Run]) -> int:
    one = select(runs, study="adult")[0]
    return round(one["steps"] * one["sample_rate"])


def _of(runs: list[Run], study: str, key: str, **wanted: Any) -> list[Any]:
    """Different values of something, in the order of the runs."""
    return list(dict.fromkeys(run[key] for run in select(runs, study=study, **wanted)))


def _baseline(runs: list[Run], study: str, noise: float) -> list[Run]:
    return select(runs, study=study, kind="plain", noise_multiplier=noise)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)])


def _gap_rows(runs: list[Run], study: str) -> list[list[str]]:
    """A row a gap: the proved β*, then the accuracy for each secret."""
    noise = _of(runs, study, "noise_multiplier")[0]
    secrets = _of(runs, study, "secret", kind="gap")
    plain = _baseline(runs, study, noise)
    rows = [["2 (plain DP-SGD)", down(min(run["attribute"] for run in plain)), *[_spread(plain)] * len(secrets)]]
    for gap in _of(runs, study, "gap", kind="gap"):
        some = [select(runs, study=study, secret=secret, kind="gap", gap=gap) for secret in secrets]
        rows.append([f"{gap:g}", down(min(run["attribute"] for run in some[0])), *(_spread(one) for one in some)])
    deleted = [select(runs, study=study, secret=secret, kind="delete", noise_multiplier=noise) for secret in secrets]
    return [*rows, ["column deleted", "1", *(_spread(one) for one in deleted)]]


def _noise_rows(runs: list[Run], study: str) -> list[list[str]]:
    """A row a noise: membership, gap, and the accuracy of plain DP-SGD and for each secret."""
    secrets = _of(runs, study, "secret", kind="target")
    rows = []
    for noise in _of(runs, study, "noise_multiplier", kind="target"):
        plain = _baseline(runs, study, noise)
        some = [select(runs, study=study, secret=secret, kind="target", noise_multiplier=noise) for secret in secrets]
        beta = down(min(run["membership"] for run in plain))
        rows.append([f"{noise:g}", beta, f"{some[0][0]['gap']:.4f}", _spread(plain), *(_spread(one) for one in some)])
    return rows


def _titles(runs: list[Run], study: str, kind: str) -> list[str]:
    return [TITLES[secret] for secret in _of(runs, study, "secret", kind=kind)]


def _adult(runs: list[Run]) -> list[str]:
    noise = _of(runs, "adult", "noise_multiplier")[0]
    return [
        "## Accuracy against the gap, Adult",
        f"Noise {noise:g}, the paper's. Accuracy in percent on test records: mean over the seeds (smallest to largest). β\\* against "
        "attribute inference is certified and was known before training; against membership inference it is "
        f"{down(min(run['membership'] for run in _baseline(runs, 'adult', noise)))} in every row.",
        _table(["gap", "proved β\\*", *_titles(runs, "adult", "gap")], _gap_rows(runs, "adult")),
        "| gap clipping | the paper's figure 1, reproduced: after the fact |\n|---|---|\n"
        "| ![accuracy against proved β*](gap.png) | ![the paper's figure 1](../reproduction/fig1.png) |",
        "## Less noise at the same attribute privacy, Adult",
        "If only the attribute must be protected, noise can be traded for a narrower gap: β\\* against attribute inference is at least "
        ".99 in every row, whatever happens to membership.",
        _table(
            ["noise", "β\\* membership", "gap", "plain DP-SGD", *_titles(runs, "adult", "target")], _noise_rows(runs, "adult")
        ),
        "![accuracy against noise](noise.png)",
        "## Who pays",
        "Accuracy for the groups that the secret defines, with plain DP-SGD, with the narrowest gap, and with the column deleted.",
        "![accuracy of groups](groups.png)",
    ]


def _deleting(runs: list[Run]) -> str:
    """When deleting the column is the better choice, with this study's numbers."""
    noises = _of(runs, "adult", "noise_multiplier", kind="target")
    rows = []
    for secret in _of(runs, "adult", "secret", kind="delete"):
        cells = [TITLES[secret]]
        for noise in (noises[0], noises[-1]):
            plain = accuracy(_baseline(runs, "adult", noise))
            kept = accuracy(select(runs, study="adult", secret=secret, kind="target", noise_multiplier=noise))
            gone = accuracy(select(runs, study="adult", secret=secret, kind="delete", noise_multiplier=noise))
            cells += [f"{kept - plain:+.1f}", f"{gone - plain:+.1f}"]
        rows.append(cells)
    head = ["secret", *(f"{what}, noise {noise:g}" for noise in (noises[0], noises[-1]) for what in ("gap", "deleted"))]
    return f"{DELETING}\n\nPoints of accuracy against plain DP-SGD, β\\* ≥ .99 or column deleted:\n\n{_table(head, rows)}"


def _purchase(runs: list[Run]) -> list[str]:
    if not select(runs, study="purchase"):
        return []
    number = len({run["seed"] for run in select(runs, study="purchase")})
    return [
        "## Purchase-100, synthetic stand-in",
        f"The same for one bit of 600, on records that are made up (20,000 of them, ten epochs, {number} seeds): accuracy says nothing "
        "of the real data, the price of the gap hardly anything, as one bit of 600 tells little about the class.",
        _table(["gap", "proved β\\*", "first item"], _gap_rows(runs, "purchase")),
        _table(["noise", "β\\* membership", "gap", "plain DP-SGD", "first item"], _noise_rows(runs, "purchase")),
    ]


# ---------------------------------------------------------------------- figures


def _by_gap(runs: list[Run]) -> Any:
    """Accuracy against 1 - β*, on a logarithmic axis: each point to the left is a narrower gap."""
    ax = plots.axes(size=(5.6, 3.8))
    noise = _of(runs, "adult", "noise_multiplier")[0]
    plain = _baseline(runs, "adult", noise)
    for secret in _of(runs, "adult", "secret", kind="gap"):
        points = [(1.0 - min(run["attribute"] for run in plain), accuracy(plain))]
        for gap in _of(runs, "adult", "gap", kind="gap"):
            some = select(runs, study="adult", secret=secret, kind="gap", gap=gap)
            points.append((1.0 - min(run["attribute"] for run in some), accuracy(some)))
        x, y = zip(*points, strict=True)
        ax.plot(x, y, "o-", color=COLOURS[secret], ms=4, lw=1.2, label=TITLES[secret])
        gone = accuracy(select(runs, study="adult", secret=secret, kind="delete", noise_multiplier=noise))
        ax.axhline(gone, color=COLOURS[secret], lw=0.9, ls=":")
    ax.set_xscale("log")
    ax.invert_xaxis()
    ax.set_xlabel("1 − β* against attribute inference, proved (better to the right)")
    ax.set_ylabel("accuracy (%)")
    ax.legend(frameon=False, fontsize=8, title="dotted: column deleted", title_fontsize=8)
    return ax


def _by_noise(runs: list[Run]) -> Any:
    ax = plots.axes(size=(5.6, 3.8))
    noises = _of(runs, "adult", "noise_multiplier", kind="target")

    def line(pick: Callable[[float], list[Run]], style: str, colour: str, label: str) -> None:
        ax.plot(noises, [accuracy(pick(noise)) for noise in noises], style, color=colour, ms=4, lw=1.2, label=label)

    line(lambda noise: _baseline(runs, "adult", noise), "s--", plots.OTHER, "plain DP-SGD (no promise)")
    for secret in _of(runs, "adult", "secret", kind="target"):
        line(
            lambda noise, secret=secret: select(runs, study="adult", secret=secret, kind="target", noise_multiplier=noise),  # type: ignore[misc]
            "o-",
            COLOURS[secret],
            f"{TITLES[secret]}, β* ≥ .99",
        )
    ax.set_xscale("log")
    ax.set_xticks(noises, [f"{noise:g}" for noise in noises])
    ax.minorticks_off()
    ax.set_xlabel("noise multiplier")
    ax.set_ylabel("accuracy (%)")
    ax.legend(frameon=False, fontsize=8)
    return ax


def _groups(runs: list[Run]) -> Any:
    """One panel a secret; three bars a group."""
    from matplotlib.figure import Figure

    secrets = _of(runs, "adult", "secret", kind="gap")
    noise = _of(runs, "adult", "noise_multiplier")[0]
    narrow = min(_of(runs, "adult", "gap", kind="gap"))
    figure = Figure(figsize=(9.6, 3.0 * -(-len(secrets) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(secrets) // 2), 2).flat
    for ax, secret in zip(panels, secrets, strict=False):
        plots.axes(ax)
        kinds = {
            "plain DP-SGD": (_baseline(runs, "adult", noise), plots.OTHER),
            f"gap {narrow:g}": (select(runs, study="adult", secret=secret, kind="gap", gap=narrow), COLOURS[secret]),
            "deleted": (select(runs, study="adult", secret=secret, kind="delete", noise_multiplier=noise), "#c9c4b8"),
        }
        sizes = _sizes(kinds["plain DP-SGD"][0], secret)
        names = sorted(sizes, key=str if secret == "age" else lambda name, sizes=sizes: -sizes[name])  # type: ignore[misc]
        for k, (label, (some, colour)) in enumerate(kinds.items()):
            heights = [_group_accuracy(some, secret, name) for name in names]
            ax.bar([i + 0.27 * (k - 1) for i in range(len(names))], heights, 0.25, color=colour, label=label)
        shown = [f"{_short(name)}\n{100 * sizes[name] / sum(sizes.values()):.0f} %" for name in names]
        ax.set_xticks(range(len(names)), shown, fontsize=7)
        ax.set_ylim(50, 100)
        ax.set_title(TITLES[secret], fontsize=10)
        ax.set_ylabel("accuracy (%)")
        ax.legend(frameon=False, fontsize=7, ncols=3, loc="upper center")
    return ax


def _sizes(runs: list[Run], secret: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in runs:
        for name, (size, _) in run["groups"][secret].items():
            found[name] = found.get(name, 0) + size
    return found


def _group_accuracy(runs: list[Run], secret: str, name: str) -> float:
    pairs = [run["groups"][secret][name] for run in runs if name in run["groups"][secret]]
    return 100.0 * sum(right for _, right in pairs) / max(1, sum(size for size, _ in pairs))


def _short(name: str) -> str:
    """Adult's categories, short enough for an axis."""
    if name.startswith("["):
        low, high = (int(float(part)) for part in name.strip("[)").split(","))
        return f"{max(low, 17)} to {high - 1}" if high < 100 else f"{low} and more"
    words = name.split("-")
    return "\n".join([words[0], "-".join(words[1:])]) if len(name) > 10 and len(words) > 1 else name


# ---------------------------------------------------------------------- words

INTRODUCTION = """# Gap clipping: attribute privacy by construction

DP-SGD protects the value of a sensitive attribute only as a by-product, and how well is known after training only. Gap clipping
makes it a number that is picked before: at every step, the gradient of a sampled record is pulled towards its mean over all values
that the attribute could have, so that no two values are more than a gap *r* apart (in clipping norms; 2 is plain DP-SGD). Whoever
sees every update, and knows everything about the record but this value, then faces a β\\* that follows from *r*, the noise, the
sampling rate and the number of steps alone. Nothing has to be measured, nothing depends on the data, and the figure may be published.

What is protected: the value of this attribute in this record, given everything else about it. What is not: what can be guessed from
the record's other columns (a "Husband" is a man: name such columns, `--with relationship`, so that they change together), what holds
for the population, and whether the record was used at all (membership inference, whose bound stays what it was).

    betastar train adult --gap .1 -o runs/gap
    betastar train adult --sensitive sex --with relationship --target-attribute-beta .995 -o runs/protected
    betastar gaps -o docs/gap-clipping        # this page: {seeds} seeds, {epochs} epochs, about an hour on two cores"""

DELETING = """## When deleting the column is the better choice

Deleting a column protects it perfectly against an attacker who knows everything else, costs nothing to run, and needs no proof. If
the model may do without the attribute, delete it. On Adult, accuracy says so, too: none of the four attributes is needed, as other
columns stand in for it, and with the narrowest gap the model is trained on the attribute averaged out, over values that
are often impossible for the record (a widow of seventeen), which is worse than not having the column. Gap clipping is for what
cannot be deleted: the attribute must be an input of the model (a dose by age and sex, a fairness constraint), or it is the label, or it
is spread over inputs that are needed for other reasons, or the model's architecture is given. Then it buys a guarantee at a price
that the tables show, and lets one train with far less noise than membership privacy would ask for."""

BASIS = """## Why it holds

Let ḡ(a) be the clipped gradient of a record if its attribute were *a*, and v = mean of ḡ(a) over all values *a*. The step uses
ĝ(s) = v + clip(ḡ(s) − v, r/2) for the record's own value *s*.

1. *Gap.* v depends on the rest of the record only. Every ĝ(s) is within r/2 of v, so any two are within r.
2. *Norm.* ĝ(s) = c ḡ(s) + (1 − c) v with 0 ≤ c ≤ 1 is a mean of vectors of norm at most 1. So membership bounds stay as they are.
3. *Composition.* Weights before each step are known to the attacker, so 1 holds at every step whatever was released before; the
   distance r at each step is what `AttributeInference(distances=r)` analyses, exact or certified.

*Correction.* r = 2 is plain DP-SGD by definition, not by the formula: a gradient that is opposed to those of all other values is almost
2 away from their mean and would be clipped to 1. With r ≥ 2 gradients are left alone, which is admissible, as they are never more
than 2 apart.

*Several secrets, together.* `Secret.joint(a, b)` with one gap: all combinations have one mean, and no two of them are more than r apart.

*Several secrets, each with its own gap.* They are pulled one after the other on the table of all combinations. Pulling for the second
secret can widen the gap of the first: with F(u, v) = v + clip(u − v, ρ), and u and v each moving by at most r, F moves by at most √2 r.
(Along the way dF = (I − J) dv + J du, where J is the derivative of a projection onto a ball, symmetric with eigenvalues λ in [0, 1], and
(1 − λ)² + λ² ≤ 1.) The constant is attained. So of k secrets the j-th (from 0) is clipped to r_j / (2 √2^(k−1−j)), the smallest gap
last. Pulling with the A₁ + A₂ variants that differ in one attribute only is not enough: the mean over the one attribute still moves with the
other, by any amount. What is known of both together is the sum of the gaps.

*Numbers.* Weights are computed in double precision from gradients in single precision; the gap is reported 1e-6 larger. ĝ is a weighted
sum of the variants' gradients, and the sum over the batch comes out of the factors of one forward and backward pass over all variants:
no gradient of a single record is ever stored. Code: `training/pull.py`, `training/gap.py`; tests: `tests/training/test_gap.py`,
`test_gap_game.py` (an attacker plays the game on real training and stays below the bound)."""
