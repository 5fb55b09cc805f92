"""The study of raters: what a recommender tells about a person with many ratings, and what it costs to protect the person.

It is trained on all ratings and on a limited number of each user: without privacy, with DP-SGD for a rating, and with the noise
that a person needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from betastar import DPSGD, Membership, Target, analyze, audit, calibrate
from betastar.runs import Config, RunFolder, attacked, opened, quietly
from studies.raters.data import Raters, raters, table
from studies.raters.encoder import USER
from studies.trainings import (
    GAMES,
    QUICK_GAMES,
    Groups,
    Json,
    each_run,
    group_counts,
    kept,
    played,
    without_privacy,
    write_results,
)

#: Ratings of a person that are trained on at most; None for all.
CAPS = (None, 100, 30, 10, 3)
#: Noise of the runs that protect a rating; batches of an epoch, epochs.
NOISE, BATCHES, EPOCHS = 1.0, 20, 5
#: β* that a person shall have, and the caps at which it is tried.
TARGETS: dict[float, tuple[int, ...]] = {0.5: (30, 10, 3), 0.9: (10, 3)}
#: The numbers of ratings of a person whose risk is analysed, and the two samplings.
RATINGS = (1, 2, 3, 5, 10, 20, 50, 100, 300, 1000)
SAMPLINGS = ("poisson", "balls-in-bins")
#: The number of ratings of a user from which on they belong to the next group.
ACTIVITY = (0, 50, 150, 400, 100_000)
FULL = Config(study="raters", sensitive="liked", epochs=EPOCHS, monitor=False)
#: The trainings that are attacked: few ratings and little noise, so that attacks can succeed.
ATTACKED = Config(
    study="raters",
    sensitive="liked",
    batch_size=20,
    epochs=6,
    noise_multiplier=0.6,
    learning_rate=5e-3,
    hidden=(8,),
    seed=0,
    max_records_per_person=10,
)
RECORDS, MECHANISM_GAMES = 200, 20_000
#: The number of ratings of a person in the games on the mechanism.
PLAYED = (1, 3, 10)


@dataclass(frozen=True)
class Case:
    """One setting, trained with several seeds.

    Attributes
    ----------
    kind : "no-privacy", "rating", "person" or "bins"
        How it is trained: without privacy, with the noise `NOISE`, with the noise that a person needs for the target, or with
        `NOISE` and balls in bins.
    cap : int or None
        How many ratings of a person are trained on at most.
    target : float or None
        The β* that a person shall have.
    """

    kind: str
    cap: int | None
    target: float | None = None

    @property
    def folder(self) -> str:
        """The name of the folder of its runs."""
        return "-".join(
            [self.kind, "all" if self.cap is None else str(self.cap), *([] if self.target is None else [f"{self.target:g}"])]
        )

    def load(self, seed: int) -> tuple[Config, Raters]:
        """The configuration and its study: as many steps with each cap, however many ratings there are."""
        config = replace(FULL, seed=seed, max_records_per_person=self.cap)
        study = raters(config.data_seed(), max_records_per_person=self.cap)
        records = len(study.train)
        noise = NOISE if self.target is None else noise_of(self.target, self.cap or 1, SAMPLINGS[0])
        sampling = SAMPLINGS[1] if self.kind == "bins" else SAMPLINGS[0]
        config = replace(config, batch_size=-(-records // BATCHES), noise_multiplier=noise, sampling=sampling)
        return config, config.applied_to(study)


def cases(quick: bool = False) -> list[Case]:
    """All settings."""
    caps = CAPS[4:] if quick else CAPS
    targets = {0.5: (3,)} if quick else TARGETS
    made = [Case(kind, cap) for cap in caps for kind in ("no-privacy", "rating")]
    made += [Case("person", cap, target) for target, some in targets.items() for cap in some]
    return [*made, *(() if quick else (Case("bins", 30),))]


def claimed(noise: float = NOISE, sampling: str = SAMPLINGS[0]) -> DPSGD:
    """What is run, whatever the cap."""
    return DPSGD(noise, 1.0 / BATCHES, BATCHES * EPOCHS, sampling=sampling)


@cache
def noise_of(target: float, ratings: int, sampling: str) -> float:
    """The noise with which a person with this many ratings has this β*, proved where the sampling is balls in bins."""
    asked = {"sample_rate": 1.0 / BATCHES, "steps": BATCHES * EPOCHS, "sampling": sampling}
    made = calibrate(Target(bayes_security=target), threat=Membership(records=ratings), **asked)  # type: ignore[arg-type]
    return float(made.noise_multiplier)


def study(
    output: str | Path, seeds: int = 5, jobs: int = 2, quick: bool = False, tell: Callable[[str], None] | None = None
) -> Json:
    """Analyse, train all cases and play the audits (what is there already is kept), and write results.json."""
    path = Path(output)
    every = [(case, seed) for seed in range(seeds) for case in cases(quick)]
    made = each_run(path, every, jobs, _one, tell)
    runs = [{"kind": case.kind, "cap": case.cap, "target": case.target, "seed": seed, **entry} for case, seed, entry in made]
    head = {"seeds": seeds, "quick": quick, "people": people(raters()), "risk": risks(), "noise": noises()}
    audits = audited(path / "audits", QUICK_GAMES if quick else GAMES, jobs, tell)
    return write_results(path, {**head, "audits": audits}, runs)


# ---------------------------------------------------------------------- without training


def people(study: Raters) -> Json:
    """How many ratings the users have among those that are trained on."""
    counts = np.sort(np.unique(study.owners, return_counts=True)[1])
    return {"ratings": counts.tolist(), "train": len(study.train), "test": len(study.test)}


def risks() -> list[Json]:
    """β* of a person with this many ratings, for both samplings: the end to rely on, and the other end."""
    told = []
    for ratings in RATINGS:
        bounds = {one: analyze(claimed(sampling=one), Membership(records=ratings)).bayes_security for one in SAMPLINGS}
        told.append({"ratings": ratings, **{name: [float(one.lower), float(one.upper)] for name, one in bounds.items()}})
    return told


def noises() -> list[Json]:
    """The noise that a person with this many ratings needs for each target, for both samplings."""
    return [
        {"ratings": ratings, "target": target, **{one: noise_of(target, ratings, one) for one in SAMPLINGS}}
        for target in TARGETS
        for ratings in RATINGS
    ]


# ---------------------------------------------------------------------- trainings


def _one(case: Case, seed: int, path: Path, threads: int) -> Json:
    folder = RunFolder(path)
    with quietly(threads):
        private, without = partial(_private, case, seed, folder), partial(_without, case, seed)
        return kept(folder, (case, seed), without if case.kind == "no-privacy" else private)


def _without(case: Case, seed: int) -> Json:
    _, study = case.load(seed)
    trained = without_privacy(study, seed)
    return {
        "accuracy": trained.accuracy,
        "baseline": trained.baseline,
        "records": len(study.train),
        "groups": _groups(study, trained.right),
    }


def _private(case: Case, seed: int, folder: RunFolder) -> Json:
    """Accuracy after the last epoch, and β* of a rating and of the person who has most."""
    config, study = case.load(seed)
    with opened(config, folder, resume=True, again=True, study=study) as training:
        assert training is not None
        training.run()
        last = folder.epochs[-1]
        largest = study.people.largest
        run = claimed(study.recipe.noise_multiplier, config.sampling)
        return {
            "accuracy": last["accuracy"],
            "baseline": last["baseline"],
            "noise_multiplier": study.recipe.noise_multiplier,
            "steps": last["steps"],
            "sample_rate": folder.status.sample_rate,
            "records": len(study.train),
            "largest": largest,
            "rating": float(analyze(run).bayes_security.lower),
            "person": float(analyze(run, Membership(records=largest)).bayes_security.lower),
            "groups": _groups(study, training.right()),
        }


def _groups(study: Raters, right: torch.Tensor) -> Groups:
    """The test ratings of users with few and with many ratings."""
    import pandas as pd

    times = study.raw[USER].map(_ratings_of_users())
    activity = pd.cut(times, list(ACTIVITY), labels=[str(low) for low in ACTIVITY[:-1]]).astype(str)
    return group_counts(study.raw.assign(activity=activity), ["activity"], right)


@cache
def _ratings_of_users() -> dict[int, int]:
    """The number of ratings of each user in the whole data set."""
    return {int(user): int(number) for user, number in table()[USER].value_counts().items()}


# ---------------------------------------------------------------------- audits


def audited(path: Path, games: int, jobs: int, tell: Callable[[str], None] | None = None) -> Json:
    """Games on the mechanism for persons with several ratings, and on trainings for one rating."""
    told: Json = {"mechanism": [], "training": {}}
    for sampling in SAMPLINGS:
        for ratings in PLAYED:
            if tell:
                tell(f"audit of the mechanism: {sampling}, {ratings} ratings")
            result = audit.mechanism(claimed(sampling=sampling), Membership(records=ratings), MECHANISM_GAMES, 1, jobs=jobs)
            told["mechanism"].append({"sampling": sampling, "ratings": ratings, **result.as_dict()})
    made = raters(ATTACKED.data_seed(), max_records_per_person=ATTACKED.max_records_per_person)
    one = attacked(ATTACKED, RECORDS, study=ATTACKED.applied_to(made))
    for name in ("canary", "label"):
        if tell:
            tell(f"audit of training: {name}, {games} games")
        told["training"][name] = played(one, path / name, games, jobs, None if name == "canary" else one.study.secret.labels)
    return told
