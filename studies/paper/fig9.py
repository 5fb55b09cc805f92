"""Figure 9: full against approximate attribute analysis on Adult."""

from __future__ import annotations

from betastar import plots
from betastar.rounding import down
from studies.paper.sheet import Sheet, at, mean

#: The lines: the key in an epoch, which of its numbers, the dashes and the colour of the line, and words.
LINES = (
    ("membership", "paper", "-", plots.MEMBERSHIP, "membership, closed form"),
    ("exact", "paper", "--", plots.ATTRIBUTE, "attribute, all pairs, closed form"),
    ("centroid", "paper", ":", plots.OTHER, "attribute, approximated, closed form"),
    ("exact", "lower", "-.", plots.PROVED, "attribute, all pairs, relied on"),
)


def make(sheet: Sheet) -> None:
    adult = sheet.training("adult", sheet.adult)
    ax = plots.axes(size=(6.4, 4.2))
    epochs = [entry["epoch"] for entry in adult["seeds"][0]]
    for name, which, dashes, colour, text in LINES:
        values = [[entry[name][which] for entry in at(adult, epoch)] for epoch in epochs]
        plots.seeds(ax, epochs, values, dashes, colour, text)
    ax.set(xlabel="epoch", ylabel=plots.BAYES_SECURITY)
    plots.legend(ax, columns=2, title="Lines: mean of the seeds, which are the small points.")
    sheet.save(ax, "fig9")
    after = at(adult, 20)
    why = sheet.note or "the text of the paper swaps the two figures; the approximation can only lower β*"
    for name, text, paper in (("exact", "full", "0.950"), ("centroid", "approximate", "0.944")):
        shares = [entry[name]["paper"] for entry in after]
        spread = f" ({min(shares):.4f} to {max(shares):.4f})" if len(shares) > 1 else ""
        sheet.add(f"Adult, AI {text}, β* after 20 epochs (closed form)", paper, f"{mean(shares):.4f}{spread}", why)
    exact = f"{mean([e['exact']['estimate'] for e in after]):.4f}, relied on {down(mean([e['exact']['lower'] for e in after]))}"
    sheet.add(
        "the same, exact instead of the closed form", "", exact, "attained by a fixed pair; every gradient within the distances"
    )
    closed = mean([entry["membership"]["paper"] for entry in after])
    text = f"{closed:.4f}, exact {down(mean([entry['membership']['lower'] for entry in after]))}"
    why = sheet.note or "2,040 steps of a loader with ⌈N/B⌉ batches; the paper's .90 is at 2,020"
    sheet.add("Adult, MIA, β* after 20 epochs (closed form)", "0.90", text, why)
