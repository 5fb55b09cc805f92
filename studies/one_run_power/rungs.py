"""The power of each rung of an audit of training code, beside jax_privacy on the same scores: a table and a figure.

`python -m studies.one_run_power.rungs --peer PYTHON` takes a quarter of an hour; PYTHON is one with jax_privacy 2.0. The audit of
training code plays a replay of a real training with Opacus, one run with 1,000 canaries and 300 games. The last two are played on
the mechanism, where noise that is too small is the only fault.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from betastar import DPSGD, Membership, analyze, audit, plots
from betastar.rounding import nearest_percent
from studies import command

#: What is claimed, and the factors by which the noise is too small; 1 is a correct training.
CLAIM, FACTORS = DPSGD(1.0, 1.0 / 6.0, 12), (1.0, 1.15, 1.3, 2.0, 3.0)
CANARIES, GAMES, RECORDS, BATCH = 1000, 300, 60, 10
#: Audits of a correct training, and of one that is not; replays of these.
CORRECT, BROKEN, REPLAYED = 500, 100, 40
LEVEL, DELTA = 0.05, 1e-5
RUNGS = {
    "replay": "replay, Opacus",
    "one run": f"one run, {CANARIES:,} canaries",
    "games": f"{GAMES} games",
    "epsilon_one_run": "jax_privacy, epsilon_one_run",
    "epsilon_one_run_fdp": "jax_privacy, epsilon_one_run_fdp",
}
#: What runs in the other Python: for each row of scores, the ε that jax_privacy refutes.
PEER = """
import sys
import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor, Split
with np.load(sys.argv[1]) as file:
    scores, truth, made = file["scores"], file["truth"], {}
for name in ("epsilon_one_run", "epsilon_one_run_fdp"):
    found = []
    for number, (own, was) in enumerate(zip(scores, truth)):
        auditor = CanaryScoreAuditor(own[was], own[~was])
        split = Split(seed=number)
        found.append(getattr(auditor, name)(float(sys.argv[3]), float(sys.argv[4]), threshold_strategy=split))
    made[name] = found
np.savez(sys.argv[2], **made)
"""


def _actual(factor: float) -> DPSGD:
    return DPSGD(CLAIM.noise_multiplier / factor, CLAIM.sample_rate, CLAIM.steps)


def replays(factor: float, audits: int) -> list[bool]:
    """Whether replays of real trainings find that their noise is too small by a factor."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(RECORDS, 6, generator=generator), torch.randint(2, (RECORDS,), generator=generator))

    def train(data: Any) -> None:
        model: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=BATCH),
            noise_multiplier=1.0 / factor,
            max_grad_norm=1.0,
        )
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [audit.replay(train, data, CLAIM, max_grad_norm=1.0, seed=seed).violated for seed in range(audits)]


def scores(factor: float, audits: int) -> tuple[Any, Any]:
    """The log-likelihood ratios of the canaries of many runs of the mechanism, and which of them were in."""
    draw = np.random.default_rng(int(100 * factor))
    noise, rate = _actual(factor).noise_multiplier, CLAIM.sample_rate
    truth, total = draw.random((audits, CANARIES)) < 0.5, np.zeros((audits, CANARIES))
    for _ in range(CLAIM.steps):
        seen = truth * (draw.random(truth.shape) < rate) + noise * draw.standard_normal(truth.shape)
        total += np.log1p(rate * np.expm1((seen - 0.5) / CLAIM.noise_multiplier**2))
    return total, truth


def peer(python: str, told: Any, truth: Any) -> dict[str, Any]:
    """What jax_privacy says of these scores, by the name of its method."""
    with tempfile.TemporaryDirectory() as place:
        given, made = Path(place) / "given.npz", Path(place) / "made.npz"
        np.savez(given, scores=told, truth=truth)
        subprocess.run([python, "-c", PEER, str(given), str(made), str(LEVEL), str(DELTA)], check=True)
        with np.load(made) as file:
            return {name: file[name] for name in file.files}


def play(python: str | None, quick: bool = False) -> list[dict[str, Any]]:
    """How often each rung finds the fault, by factor."""
    rows = []
    threat = Membership("add-remove")
    curve = audit.ClaimedCurve.of_run(CLAIM, threat)
    claimed = float(analyze(CLAIM, threat).epsilon(DELTA).upper)
    for factor in FACTORS:
        audits = 3 if quick else CORRECT if factor == 1.0 else BROKEN
        found: dict[str, list[bool]] = {"replay": replays(factor, min(audits, 5 * REPLAYED if factor == 1.0 else REPLAYED))}
        told, truth = scores(factor, audits)
        found["one run"] = [audit.judge_run(a, b, curve).p_value < LEVEL for a, b in zip(told, truth, strict=True)]
        games = (audit.mechanism(CLAIM, None, GAMES, seed, width=1.0, actual=_actual(factor)) for seed in range(audits))
        found["games"] = [one.p_value < LEVEL for one in games]
        if python is not None:
            found |= {name: list(epsilons > claimed) for name, epsilons in peer(python, told, truth).items()}
        for rung, each in found.items():
            rows.append({"rung": rung, "factor": factor, "audits": len(each), "found": int(np.sum(each))})
        command.tell(f"factor {factor:g}: {[(rung, int(np.sum(each)), len(each)) for rung, each in found.items()]}")
    return rows


def page(rows: list[dict[str, Any]]) -> str:
    """The page with the figure and the table."""
    parts = [
        "# Power of the rungs of an audit",
        "",
        f"The claim: noise multiplier 1, rate 1/6, 12 steps. How often each rung finds noise that is too small by a factor, at "
        f"{100 * (1 - LEVEL):g} % confidence: {BROKEN} audits ({REPLAYED} replays) of each, {CORRECT} ({5 * REPLAYED} replays) "
        "of correct trainings. The replay trains with Opacus on 60 records, and accuses at a level of its own, one in a million. "
        "One run and games are played on the mechanism: one run by adding or removing a record, games by substitution. "
        "jax_privacy's `CanaryScoreAuditor` (2.0, threshold chosen on half of the canaries) gets the scores of the one run, and "
        f"finds the fault if the ε that it refutes at δ = {DELTA:g} is above the claimed one. The p-values of `betastar audit` "
        "are compared with 0.001, not with 0.05, so it accuses fewer correct trainings.",
        "",
        "![Share of audits that find too little noise, by rung](rungs.png)",
        "",
        "| rung | correct: not accused | " + " | ".join(f"noise too small by {factor:g}" for factor in FACTORS[1:]) + " |",
        "|---|" + "---|" * len(FACTORS),
    ]
    for rung, title in RUNGS.items():
        mine = [row for row in rows if row["rung"] == rung]
        if mine:
            shares = [row["found"] / row["audits"] for row in mine]
            cells = [nearest_percent(1.0 - shares[0], 1), *(nearest_percent(one, 1) for one in shares[1:])]
            parts.append(f"| {title} | " + " | ".join(cells) + " |")
    parts += ["", "Made by `python -m studies.one_run_power.rungs --peer PYTHON -o studies/one_run_power/results`."]
    return "\n".join(parts) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The share of audits that find the fault, over the factor."""
    panel = plots.panels(1, 1, (6.6, 3.4))[0]
    for (rung, title), marker in zip(RUNGS.items(), "o^sxv", strict=True):
        mine = [row for row in rows if row["rung"] == rung]
        shares = [one["found"] / one["audits"] for one in mine]
        panel.plot([one["factor"] for one in mine], shares, f"{marker}-", ms=4, lw=1, label=title)
    panel.set(xlabel="noise too small by this factor", ylabel="share of audits that find it", ylim=(-0.03, 1.03))
    panel.legend(frameon=False, fontsize=plots.LEGEND, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plots.save(panel, path, "png")


def main() -> None:
    """Play, and write the page, its figure and its data."""
    options = command.parser("one_run_power.rungs", "Measure the power of each rung of an audit.", "three audits of each")
    options.add_argument("--peer", help="a Python with jax_privacy; without it, its rows are left out")
    given = options.parse_args()
    with command.ended("one_run_power.rungs"):
        rows = play(given.peer, given.quick)
        given.output.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in rows)
        (given.output / "rungs.json").write_text(f"[\n{lines}\n]\n")
        (given.output / "rungs.md").write_text(page(rows))
        draw(rows, given.output / "rungs")
        print(json.dumps(rows) if given.json else given.output / "rungs.md")


if __name__ == "__main__":
    main()
