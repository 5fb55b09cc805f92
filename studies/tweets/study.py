"""The study of tweets: accuracy, membership risk and attribute risk of a transformer that is fine-tuned with LoRA.

It is fine-tuned without privacy, with DP-SGD under a monitor, and with gap clipping, on the same tweets from the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from betastar import DPSGD, Plan
from betastar.runs import Config, RunFolder, Study, Training, opened, quietly
from betastar.training import Records
from studies.trainings import Json, kept, without_privacy, write_results
from studies.tweets.data import DEVICES, Tweets, tweets

GAPS = (0.1, 0.01)
SECRET = "person"
#: The name of the group of tweets that name none of the candidates, or several.
NOBODY = "nobody"
FULL, SAMPLE = Config(study="tweets", sensitive=SECRET, batch_size=160, epochs=5, every=5), 10_000
QUICK, QUICK_SAMPLE = replace(FULL, batch_size=100, epochs=2), 2_000


def load(config: Config, sample: int) -> Tweets:
    """The study of a configuration, with this many tweets."""
    return config.applied_to(tweets(config.data_seed(), config.sensitive or SECRET, sample))


def cases(quick: bool = False) -> dict[str, Config]:
    """The configurations, by the names of their folders. The first one is trained without privacy."""
    config = QUICK if quick else FULL
    gaps = {f"gap-{gap:g}": replace(config, gap=gap) for gap in (GAPS[:1] if quick else GAPS)}
    return {"plain": config, "dp-sgd": config, **gaps}


def study(output: str | Path, seeds: int = 1, quick: bool = False, tell: Callable[[str], None] | None = None) -> Json:
    """Train all cases (those that are there already are kept), and write results.json."""
    path, sample = Path(output), QUICK_SAMPLE if quick else SAMPLE
    every = [(name, replace(config, seed=seed)) for seed in range(seeds) for name, config in cases(quick).items()]
    entries: list[Json] = []
    for number, (name, config) in enumerate(every, start=1):
        if tell:
            tell(f"{number} of {len(every)}: {name}, seed {config.seed}")
        folder = RunFolder(path / "runs" / name / f"seed-{config.seed}")
        with quietly(torch.get_num_threads()):
            result = kept(folder, (name, config, sample), partial(_result, name, config, sample, folder))
        entry = {"case": name, "seed": config.seed, **result}
        if name == "dp-sgd":
            entry["largest_distance"] = float(folder.distances["exact"].max())
        if config.gap is not None:
            run = DPSGD(entry["noise_multiplier"], entry["sample_rate"], entry["steps"])
            entry["attribute"] = float(Plan(run, config.gap).attribute().bayes_security.lower)
        entries.append(entry)
    return write_results(path, {"seeds": seeds, "quick": quick, "secret": SECRET}, entries)


def _result(name: str, config: Config, sample: int, folder: RunFolder) -> Json:
    study = load(config, sample)
    return _without_privacy(study, config.chosen_seed()) if name == "plain" else _private(config, study, folder)


def _private(config: Config, study: Tweets, folder: RunFolder) -> Json:
    """Accuracy after the last epoch, membership risk, and attribute risk as it was measured or proved."""
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
            "gap": config.gap,
            "records": {
                "public": len(study.public),
                "train": len(study.train),
                "test": len(study.test),
            },
            "groups": _groups(study, training.right()),
        }
        return entry | (_measured(training, folder) if config.gap is None else {})


def _measured(training: Training, folder: RunFolder) -> Json:
    """What the monitor saw: β* after each epoch, and how exposed single tweets are, by the person that they name."""
    study = training.study
    records = Records((study.train.tensors[0],), study.train.tensors[1])
    held, concerned = study.secret.own(records), study.secret.concerned(records)
    exposures: dict[str, list[float]] = {str(label): [] for label in study.secret.labels}
    for entry in folder.ledger:
        if concerned[entry.record]:
            exposures[str(study.secret.labels[held[entry.record]])].append(round(entry.bayes_security, 6))
    return {
        "attribute": folder.epochs[-1]["exact"]["lower"],
        "concerned": int(concerned.sum()),
        "epochs": [{"membership": one["membership"]["lower"], "attribute": one["exact"]["lower"]} for one in folder.epochs],
        "exposures": {name: sorted(betas) for name, betas in exposures.items()},
    }


def _without_privacy(study: Study, seed: int) -> Json:
    trained = without_privacy(study, seed)
    groups = _groups(study, trained.right)
    return {"accuracy": trained.accuracy, "baseline": trained.baseline, "gap": None, "groups": groups}


def _groups(study: Study, right: Tensor) -> dict[str, dict[str, tuple[int, int]]]:
    """How many test records of each group there are, and for how many the model is right: by device and by person."""
    x, y = study.test.tensors
    records = Records((x,), y)
    named = torch.where(study.secret.concerned(records), study.secret.own(records), study.secret.count)
    kinds = {"device": (y, DEVICES), SECRET: (named, (*study.secret.labels, NOBODY))}
    return {
        kind: {str(name): (int((of == i).sum()), int(right[of == i].sum())) for i, name in enumerate(names)}
        for kind, (of, names) in kinds.items()
    }
