"""Numbers in the text of the paper that need no training."""

from __future__ import annotations

from math import erfc, sqrt

import betastar as bs
from betastar.rounding import percent
from studies.paper.sheet import Sheet


def make(sheet: Sheet) -> None:
    sheet.add("success at β* = .98, uniform prior", "51 %", f"{100 * (1 - 0.98 / 2):.1f} %")
    adult = bs.DPSGD(3.51, 256 / 26048, 2020)
    closed = erfc(adult.sample_rate * sqrt(adult.steps) / (sqrt(2) * adult.noise_multiplier))
    exact = bs.analyze(adult).bayes_security.lower
    sheet.add(
        "Adult, β* against MIA for σ = 3.51, 20 epochs", "0.9", f"{closed:.4f}, exact {exact:.4f}", "2,020 steps, p = 256/26,048"
    )
    for name, size, batch, paper in (("Adult", 26048, 256, "3.51"), ("Purchase", 197_324, 512, "1.8")):
        steps = 20 * (size // batch)
        noise = bs.calibrate(bs.Target(bayes_security=0.9), sample_rate=batch / size, steps=steps).noise_multiplier
        note = "" if name == "Adult" else "with all 197,324 records; an 80 % split would need 2.03"
        sheet.add(f"{name}, noise for β* = .9 after 20 epochs", paper, f"{noise:.4f}", note)
    purchase = bs.DPSGD.from_epochs(1.8, 512, 157_859, 30)
    closed, exact = (bs.analyze(purchase, method=method).bayes_security.estimate for method in ("paper", "exact"))
    text = f"{closed:.4f}, exact {exact:.4f}"
    sheet.add("Purchase, MIA, β* after 30 epochs (closed form)", "0.87", text, "80 % of the records; with all of them 0.8767")
    risk = bs.analyze(adult)
    epsilon = bs.analyze(adult, bs.Membership("add-remove")).epsilon(3.8e-6).upper
    sheet.add(
        "Adult, ε at δ = 3.8e-6 and β* ≈ .9", "≈ 0.5", f"{epsilon:.3f}", "add/remove, exact curve; the paper names no relation"
    )
    sheet.add("Adult, success of MIA at β* ≈ .9", "55 %", percent(risk.success().upper))
    sheet.add(
        "Adult, TPR of MIA at FPR 10 %",
        "≤ 20 %",
        f"≤ {percent(risk.tpr(0.1).upper)}",
        "exact curve; FPR + 1 − β* gives 20.1 %",
    )
    sheet.add("values of age that are analysed", "73", "74", "73 occur in the data, 17…90 has 74")
