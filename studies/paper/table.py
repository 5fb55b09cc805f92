"""The results table: β*, success rate and TPR at FPR 10 %, attribute and (membership) inference, after 30 epochs."""

from __future__ import annotations

import betastar as bs
from betastar.rounding import down, percent
from studies.paper.sheet import Sheet

ADULT, PURCHASE = "Adult", "Purchase-100 (synthetic)"
PAPER = {
    ADULT: ("0.93 (0.88)", "53 % (56 %)", "≤ 16 % (20 %)"),
    PURCHASE: ("0.99 (0.87)", "51 % (57 %)", "≤ 11 % (23 %)"),
}


def make(sheet: Sheet) -> None:
    for name, folders in ((ADULT, sheet.adult()), (PURCHASE, sheet.purchase())):
        folder = folders[0]
        last, status = folder.epochs[-1], folder.status
        run = bs.DPSGD(status.noise_multiplier, status.sample_rate, last["steps"])
        secret = bs.analyze(run, bs.AttributeInference(folder.distances["exact"]), method="certified")
        member = bs.analyze(run)
        why = sheet.note or (
            f"synthetic stand-in, {last['epoch']} epochs" if name == PURCHASE else "seed 0; exact curve instead of FPR + 1 − β*"
        )
        paper = PAPER[name]
        closed = f"{last['exact']['paper']:.4f} ({last['membership']['paper']:.4f})"
        sheet.add(f"{name}, β* AI (MIA), closed form", paper[0], closed, why)
        relied = f"{down(secret.bayes_security.lower)} ({down(member.bayes_security.lower)})"
        sheet.add(f"{name}, β* AI (MIA), relied on", "", relied, "certified for every gradient within the measured distances")
        success = f"{percent(secret.success().upper)} ({percent(member.success().upper)})"
        sheet.add(f"{name}, success rate", paper[1], success, why)
        sheet.add(
            f"{name}, TPR at FPR 10 %",
            paper[2],
            f"≤ {percent(secret.tpr(0.1).upper)} ({percent(member.tpr(0.1).upper)})",
            why,
        )
