"""The study of voters: what a model of an opinion, or of the vote, tells about a respondent's vote, religion, race, ideology.

It is trained without privacy, with DP-SGD under monitors of both scopes, with gap clipping, and without the column of the secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from betastar import DPSGD, AttributeInference, Plan, Risk, analyze
from betastar.runs import Config, RunFolder, attacked, opened, quietly
from studies.trainings import (
    GAMES,
    QUICK_GAMES,
    Json,
    each_run,
    group_counts,
    kept,
    played,
    without_privacy,
    write_results,
)
from studies.voters import informed_attacker
from studies.voters.data import ANSWERS, OPINION, SECRETS, VOTE, Voters, voters, with_frequencies

if TYPE_CHECKING:
    from pandas import DataFrame

GAPS = (0.5, 0.1, 0.01)
#: The gap of all secrets together, and the name that they have together.
JOINT_GAP, TOGETHER = 0.1, "together"
FULL, SAMPLE = Config(study="voters", every=5), 20_000
QUICK, QUICK_SAMPLE = replace(FULL, batch_size=160, epochs=2), 2_000
#: How often all combinations are measured: there are hundreds.
JOINT_EVERY = 25
#: The quantiles of β* that are kept of each group of the ledger.
QUANTILES = (0.05, 0.25, 0.5, 0.75)
#: The trainings that are attacked: few records and little noise, so that attacks can succeed.
ATTACKED = Config(study="voters", batch_size=20, epochs=6, noise_multiplier=0.6, learning_rate=5e-3, hidden=(16,), seed=0)
RECORDS = 200
#: The votes that the attacker hesitates between there.
VOTES = ANSWERS[VOTE][2]


@dataclass(frozen=True)
class Case:
    """One setting, trained with several seeds.

    Attributes
    ----------
    label : str
        What the model predicts.
    secret : str
        The column that is secret, `TOGETHER`, or "none".
    kind : "no-privacy", "batch", "dataset", "gap" or "delete"
        How it is trained, and for DP-SGD alone which records a monitor looks at.
    config : Config
        The configuration.
    sample : int
        The number of respondents.
    """

    label: str
    secret: str
    kind: str
    config: Config
    sample: int = SAMPLE

    @property
    def folder(self) -> str:
        """The name of the folder of its runs."""
        gap = [] if self.config.gap is None or self.kind == "delete" else [f"{self.config.gap:g}"]
        return "-".join([self.label, self.secret, self.kind, *gap])


def cases(quick: bool = False) -> list[Case]:
    """All settings. Where a column is deleted, the monitor is off."""
    config = QUICK if quick else FULL
    secrets, gaps = (SECRETS[:1], GAPS[1:2]) if quick else (SECRETS, GAPS)
    made: list[Case] = []
    for label, some in ((OPINION, secrets), (VOTE, (VOTE,))):
        mine = replace(config, target=label)
        made.append(Case(label, "none", "no-privacy", mine))
        for secret in some:
            one = replace(mine, sensitive=secret)
            made.append(Case(label, secret, "batch", replace(one, ledger=False)))
            made.append(Case(label, secret, "dataset", replace(one, scope="dataset")))
            made += [Case(label, secret, "gap", replace(one, gap=gap)) for gap in gaps]
            if secret != label:
                other = next(name for name in SECRETS if name != secret)
                made.append(Case(label, secret, "delete", replace(mine, sensitive=other, drop=(secret,), monitor=False)))
    if not quick:
        together = replace(config, target=OPINION, sensitive=SECRETS[0], along=SECRETS[1:])
        made.append(Case(OPINION, TOGETHER, "batch", replace(together, every=JOINT_EVERY, ledger=False)))
        made.append(Case(OPINION, TOGETHER, "gap", replace(together, gap=JOINT_GAP)))
        alone = replace(config, target=OPINION, sensitive="party", drop=SECRETS, monitor=False)
        made.append(Case(OPINION, TOGETHER, "delete", alone))
    return [replace(case, sample=QUICK_SAMPLE) for case in made] if quick else made


def load(config: Config, sample: int) -> Voters:
    """The study of a configuration, with this many respondents."""
    columns = config.target or OPINION, config.sensitive or VOTE, config.along, config.drop
    return config.applied_to(voters(config.data_seed(), *columns, sample))


def study(
    output: str | Path, seeds: int = 5, jobs: int = 2, quick: bool = False, tell: Callable[[str], None] | None = None
) -> Json:
    """Train all cases and play the audits (what is there already is kept), and write results.json."""
    path = Path(output)
    every = [(case, seed) for seed in range(seeds) for case in cases(quick)]
    made = each_run(path, every, jobs, _one, tell)
    runs = [{"label": case.label, "secret": case.secret, "kind": case.kind, "seed": seed, **entry} for case, seed, entry in made]
    audits = audit(path / "audits", QUICK_GAMES if quick else GAMES, jobs, tell)
    return write_results(path, {"seeds": seeds, "quick": quick, "audits": audits}, runs)


def _one(case: Case, seed: int, path: Path, threads: int) -> Json:
    config, folder = replace(case.config, seed=seed), RunFolder(path)
    with quietly(threads):
        private, without = partial(_private, case, config, folder), partial(_without, case, config)
        return kept(folder, replace(case, config=config), without if case.kind == "no-privacy" else private)


def _without(case: Case, config: Config) -> Json:
    study = load(config, case.sample)
    trained = without_privacy(study, config.chosen_seed())
    groups = group_counts(study.raw, SECRETS, trained.right)
    return {"accuracy": trained.accuracy, "baseline": trained.baseline, "groups": groups}


def _private(case: Case, config: Config, folder: RunFolder) -> Json:
    """Accuracy after the last epoch, membership risk, and attribute risk as it was measured or proved."""
    study = load(config, case.sample)
    with opened(config, folder, resume=True, again=True, study=study) as training:
        assert training is not None
        training.run()
        last = folder.epochs[-1]
        entry: Json = {
            "accuracy": last["accuracy"],
            "baseline": last["baseline"],
            "noise_multiplier": study.recipe.noise_multiplier,
            "steps": last["steps"],
            "sample_rate": training.training.run.segments[-1].sample_rate,
            "membership": last["membership"]["lower"],
            "records": {"public": len(study.public_table), "train": len(study.train), "test": len(study.test)},
            "groups": group_counts(study.raw, SECRETS, training.right()),
        }
        if case.kind == "delete":
            return entry
        run = DPSGD(entry["noise_multiplier"], entry["sample_rate"], entry["steps"])
        if case.kind == "gap":
            assert config.gap is not None
            entry["gap"], risk = config.gap, Plan(run, config.gap).attribute()
        else:
            risk = analyze(run, AttributeInference(folder.distances["exact"]), method="certified")
        entry |= {"attribute": float(risk.bayes_security.lower), "informed": _informed(case, study, risk)}
        return entry if case.kind == "gap" else entry | _measured(study, folder, entry["attribute"])


def _informed(case: Case, study: Voters, risk: Risk) -> Json:
    """What attackers reach who know how frequent the values are, or what the rest of the record tells about them."""
    secret = study.secret
    prior = (secret if secret.prior is not None else with_frequencies(secret, study.public_table, [case.secret])).prior
    assert prior is not None
    told: Json = {
        "values": study.secret.count,
        "frequencies": {"without": float(prior.max()), "with": float(risk.success(prior.tolist()).upper)},
    }
    if case.secret != TOGETHER:
        told["rest"] = informed_attacker.of_rest(study, case.secret, risk)
    return told


def _measured(study: Voters, folder: RunFolder, any_record: float) -> Json:
    """What the monitor saw: the largest distance, and how exposed the records of each group are.

    No record is more exposed than any record can be.
    """
    told: Json = {"largest_distance": float(folder.distances["exact"].max())}
    entries = folder.ledger
    if not entries:
        return told
    betas = np.maximum([entry.bayes_security for entry in entries], any_record)
    looked_at = training_words(study).iloc[[entry.record for entry in entries]]
    told["exposures"] = {
        name: {
            str(group): [int(mine.sum()), *(round(float(np.quantile(betas[mine], q)), 6) for q in QUANTILES)]
            for group in sorted(looked_at[name].unique())
            if (mine := (looked_at[name] == group).to_numpy()).any()
        }
        for name in SECRETS
    }
    return told


def training_words(study: Voters) -> DataFrame:
    """The columns of words of the training records that people may ask about, read back from what the model sees."""
    import pandas as pd

    encoder, (x, y) = study.encoder, study.train.tensors
    columns, start = {}, 0
    for column in encoder.columns:
        inputs = x[:, start : start + len(column.mean)]
        start += len(column.mean)
        if column.name in SECRETS:
            columns[column.name] = [column.categories[i] for i in inputs.argmax(dim=1).tolist()]
    if encoder.label in SECRETS:
        columns[encoder.label] = [encoder.classes[i] for i in y.tolist()]
    return pd.DataFrame(columns)


# ---------------------------------------------------------------------- audits


def audit(path: Path, games: int, jobs: int, tell: Callable[[str], None] | None = None) -> Json:
    """Attack trainings on a few voters: a canary, the vote of the record that is most exposed, and that vote as the label."""
    told: Json = {}
    as_label = replace(ATTACKED, target=VOTE, sensitive=VOTE)
    attribute, label = (attacked(one, RECORDS, study=load(one, QUICK_SAMPLE)) for one in (ATTACKED, as_label))
    for name, one, exposed in (("canary", attribute, False), ("vote", attribute, True), ("label", label, True)):
        if tell:
            tell(f"audit: {name}, {games} games")
        told[name] = played(one, path / name, games, jobs, VOTES if exposed else None)
    return told
