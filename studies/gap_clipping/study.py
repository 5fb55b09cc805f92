"""The study of gap clipping: accuracy against proved attribute privacy, on Adult and on the Purchase stand-in.

Three questions, each for every secret and seed: what does a narrower gap cost at the paper's noise; what does less noise bring at
the same β* against attribute inference; and how does that compare with deleting the column?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from betastar import DPSGD, Plan
from betastar.runs import Config, RunFolder, Study, Training, opened, quietly
from studies.purchase import SECRET, purchase
from studies.trainings import Groups, Json, each_run, group_counts, kept, write_results

GAPS = (0.5, 0.1, 0.01)
NOISES = (3.51, 1.5, 0.8, 0.5)
TARGET = 0.99
SECRETS = ("age", "sex", "race", "marital_status")
#: Ages are grouped by these.
AGES = (0, 30, 45, 60, 200)
#: The stand-in is made smaller and trained for less long than the paper's, to take minutes.
PURCHASE, PURCHASE_RECORDS = Config(study="purchase", sensitive=SECRET.name, epochs=10, every=1), 20_000
PURCHASE_GAPS, PURCHASE_NOISES, PURCHASE_SEEDS = (0.5, 0.1, 0.02), (1.8, 0.8, 0.5), 3


@dataclass(frozen=True)
class Case:
    """One setting, trained with several seeds."""

    study: str
    secret: str
    kind: str  # plain, gap, target, delete
    config: Config
    records: int | None = None  # of the stand-in

    def load(self, seed: int) -> tuple[Config, Study]:
        """The configuration with a seed, and its study."""
        config = replace(self.config, seed=seed)
        if self.records is None:
            return config, config.load()
        made = purchase(seed=config.data_seed(), records=self.records, drop=config.drop)
        return config, config.applied_to(made)

    @property
    def folder(self) -> str:
        number = {"gap": self.config.gap, "plain": None, "target": TARGET, "delete": None}[self.kind]
        noise = f"noise-{self.config.noise_multiplier:g}"
        return "-".join([self.study, self.secret, self.kind, *([] if number is None else [f"{number:g}"]), noise])


def cases(quick: bool = False) -> list[Case]:
    """Plain DP-SGD is the same for every secret, and stands under the name "none".

    It is run as gap clipping with a gap of 2 and two values: the same weights (a test says so), in half the time.
    """
    adult = Config(epochs=2 if quick else 20, every=1)
    settings: list[Case] = []
    secrets, gaps, noises = (SECRETS[:2], GAPS[1:], (3.51, 0.8)) if quick else (SECRETS, GAPS, NOISES)
    for noise in noises:
        settings.append(Case("adult", "none", "plain", replace(adult, sensitive="sex", gap=2.0, noise_multiplier=noise)))
    for secret in secrets:
        mine = replace(adult, sensitive=secret, noise_multiplier=noises[0])
        settings += [Case("adult", secret, "gap", replace(mine, gap=gap)) for gap in gaps]
        settings += [
            Case("adult", secret, "target", replace(mine, noise_multiplier=noise, attribute_target=f"bayes_security>={TARGET}"))
            for noise in noises
        ]
        other = "sex" if secret != "sex" else "race"
        settings += [
            Case("adult", secret, "delete", replace(mine, sensitive=other, gap=2.0, drop=(secret,), noise_multiplier=noise))
            for noise in (noises[0], noises[-1])
        ]
    bought, records = (replace(PURCHASE, epochs=1), 5000) if quick else (PURCHASE, PURCHASE_RECORDS)
    levels = PURCHASE_NOISES[:1] if quick else PURCHASE_NOISES
    for noise in levels:
        plain = replace(bought, noise_multiplier=noise)
        settings.append(Case("purchase", "none", "plain", replace(plain, gap=2.0), records))
        settings.append(Case("purchase", "item", "target", replace(plain, attribute_target=f"bayes_security>={TARGET}"), records))
        settings.append(Case("purchase", "item", "delete", replace(plain, gap=2.0, drop=("0",)), records))
    mine = replace(bought, noise_multiplier=levels[0])
    settings += [
        Case("purchase", "item", "gap", replace(mine, gap=gap), records)
        for gap in (PURCHASE_GAPS[:1] if quick else PURCHASE_GAPS)
    ]
    return settings


def run(
    output: str | Path, seeds: int = 5, jobs: int = 2, quick: bool = False, tell: Callable[[str], None] | None = None
) -> Json:
    """Train all cases (those that are there already are kept), and write results.json."""
    path = Path(output)
    every = [
        (case, seed)
        for seed in range(seeds)
        for case in cases(quick)
        if case.study == "adult" or seed < (1 if quick else PURCHASE_SEEDS)
    ]
    entries: list[Json] = []
    for case, seed, entry in each_run(path, every, jobs, _one, tell):
        noise = case.config.noise_multiplier
        proved = _proved(DPSGD(noise, entry["sample_rate"], entry["steps"]), entry["gap"])
        made = {"study": case.study, "secret": case.secret, "kind": case.kind, "noise_multiplier": noise, "seed": seed}
        entries.append({**made, **entry, "attribute": proved})
    return write_results(path, {"seeds": seeds, "quick": quick, "target": TARGET}, entries)


@cache
def _proved(run: DPSGD, gap: float) -> float:
    """β* against attribute inference that was known in advance."""
    return float(Plan(run, gap).attribute().bayes_security.lower)


def _one(case: Case, seed: int, path: Path, threads: int) -> Json:
    """Accuracy after the last epoch, for all records and for groups of them, and what is proved."""
    folder = RunFolder(path)
    with quietly(threads):
        return kept(folder, (case, seed), lambda: _trained(*case.load(seed), folder))


def _trained(config: Config, study: Study, folder: RunFolder) -> Json:
    with opened(config, folder, resume=True, again=True, study=study) as training:
        assert training is not None
        training.run()
        last = folder.epochs[-1]
        return {
            "accuracy": last["accuracy"],
            "steps": last["steps"],
            "sample_rate": training.training.run.segments[-1].sample_rate,
            "membership": last["membership"]["lower"],
            "gap": next(iter(training.training.gaps.values())),
            "groups": _groups(training),
        }


def _groups(training: Training) -> Groups:
    """For each secret of Adult, how many test records of each group there are, and for how many the model is right."""
    import pandas as pd

    raw = training.study.raw
    if raw is None:
        return {}
    ages = pd.cut(raw["age"], list(AGES), right=False).astype(str)
    return group_counts(raw.assign(age=ages), SECRETS, training.right())
