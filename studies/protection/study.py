"""The study of protection on Adult: groups with targets of their own, and a budget for membership by which records sit out.

Groups: what does it cost to protect some people more, by rates or by clipping norms, beside one target for all? A budget: the
same promise with less noise, where records sit out that cannot pay. Is that better than the noise that the promise needs?
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from betastar import Target
from betastar.runs import Config, RunFolder, Study, network, outputs, quietly
from betastar.training import Budget, PrivateTraining, Protection, Records
from studies.trainings import Groups, Json, each_run, group_counts, kept, write_results

EPOCHS, QUICK_EPOCHS = 20, 2
LEARNING_RATE = 1e-3
#: β* of the groups if a record could have been left out, and their shares of the records where groups are drawn at random.
BETAS = {"careful": 0.99, "middle": 0.95, "usual": 0.9}
SHARES = {"careful": 0.1, "middle": 0.3, "usual": 0.6}
BY_SEX = {"women": 0.99, "men": 0.9}
#: Promises of a budget, and the noise of its trainings in units of the noise that the promise needs without one.
PROMISES, NOISES = (0.9, 0.95), (0.9, 0.75, 0.5)
#: The steps of an epoch: norms are measured once an epoch.
EVERY = 102


@dataclass(frozen=True)
class Case:
    """One setting, trained with several seeds.

    Attributes
    ----------
    kind : str
        "one" (one target for all), "random" or "sex" (groups), "noise" (the noise that a promise needs) or "budget".
    beta : float
        The target for all, or the promise.
    by : str
        How groups are protected.
    noise : float
        The noise of a budget in units of what the promise needs.
    epochs : int
        The length of the training.
    """

    kind: str
    beta: float = 0.0
    by: str = ""
    noise: float = 1.0
    epochs: int = EPOCHS

    @property
    def folder(self) -> str:
        return "-".join(str(one) for one in (self.kind, self.beta or "", self.by, self.noise, self.epochs) if one != "")


def cases(quick: bool = False) -> list[Case]:
    """All settings of the study."""
    epochs = QUICK_EPOCHS if quick else EPOCHS
    made = [Case("one", beta, epochs=epochs) for beta in BETAS.values()]
    made += [Case(kind, by=by, epochs=epochs) for kind in ("random", "sex") for by in ("rate", "clipping")]
    for promise in PROMISES[:1] if quick else PROMISES:
        made.append(Case("noise", promise, epochs=epochs))
        made += [Case("budget", promise, noise=noise, epochs=epochs) for noise in (NOISES[1:2] if quick else NOISES)]
    return made


def run(
    output: str | Path, seeds: int = 5, jobs: int = 2, quick: bool = False, tell: Callable[[str], None] | None = None
) -> Json:
    """Train all cases (those that are there already are kept), and write results.json."""
    path = Path(output)
    every = [(case, seed) for seed in range(seeds) for case in cases(quick)]
    entries = []
    for case, seed, entry in each_run(path, every, jobs, _one, tell):
        made = {"kind": case.kind, "beta": case.beta, "by": case.by, "noise": case.noise, "seed": seed}
        entries.append({**made, **entry})
    return write_results(path, {"seeds": seeds, "quick": quick, "epochs": every[0][0].epochs}, entries)


def _one(case: Case, seed: int, path: Path, threads: int) -> Json:
    with quietly(threads):
        return kept(RunFolder(path), (case, seed), lambda: _trained(case, seed))


def _trained(case: Case, seed: int) -> Json:
    """Accuracy after the last step, for all and for each sex, with what was proved and how many records sat out."""
    study = Config(seed=seed, sensitive="sex").load()
    torch.manual_seed(seed)
    model = network(study)
    training = _training(case, seed, study, model)
    before = time.process_time()
    training.fit(progress=False)
    seconds = time.process_time() - before
    x, y = study.test.tensors
    right = outputs(model, x).argmax(dim=1) == y
    plan = training.guarantee.groups
    return {
        "accuracy": float(right.double().mean()),
        "noise_multiplier": training.noise_multiplier,
        "rates": {} if plan is None else dict(plan.rates),
        "norms": {} if plan is None else dict(plan.norms),
        "retired": float(training.retired.mean()) if case.kind == "budget" else 0.0,
        "milliseconds": 1000.0 * seconds / training.steps,
        "groups": _groups_right(study, right),
    }


def _training(case: Case, seed: int, study: Study, model: nn.Module) -> PrivateTraining:
    def made(**options: object) -> PrivateTraining:
        return PrivateTraining(
            model,
            torch.optim.Adam(model.parameters(), lr=LEARNING_RATE),
            study.train,
            nn.CrossEntropyLoss(),
            batch_size=study.recipe.batch_size,
            max_grad_norm=study.recipe.max_grad_norm,
            epochs=case.epochs,
            seed=seed,
            **options,  # type: ignore[arg-type]
        )

    if case.kind == "noise":
        return made(target=Target(bayes_security=case.beta))
    if case.kind == "budget":
        noise = made(target=Target(bayes_security=case.beta)).noise_multiplier
        return made(noise_multiplier=case.noise * noise, budget=Budget(case.beta, per_record=True, every=EVERY))
    betas, members = _groups(case, seed, study)
    return made(protection=Protection(members, {name: Target(bayes_security=b) for name, b in betas.items()}, case.by or "rate"))


def _groups(case: Case, seed: int, study: Study) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """β* and the members of each group: all, three groups at random, or women and men, whose sex is then public."""
    records = len(study.train)
    if case.kind == "one":
        return {"all": case.beta}, {"all": np.arange(records)}
    if case.kind == "random":
        order = np.random.default_rng(seed).permutation(records)
        cuts = (np.cumsum(list(SHARES.values()))[:-1] * records).astype(int)
        return BETAS, dict(zip(SHARES, np.split(order, cuts), strict=True))
    women = (study.secret.own(Records(study.train.tensors[:1])) == study.secret.labels.index("Female")).numpy()
    return BY_SEX, {"women": women, "men": ~women}


def _groups_right(study: Study, right: torch.Tensor) -> Groups:
    """For women and for men, how many test records there are, and for how many the model is right."""
    assert study.raw is not None
    return group_counts(study.raw, ["sex"], right)
