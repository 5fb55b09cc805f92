"""Train privately on a study, with membership and attribute monitoring; each run is a folder that can be resumed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from betastar.analyze import RegimeWarning, analyze
from betastar.calibrate import Target
from betastar.risk import Risk
from betastar.runs import quality, seeds
from betastar.runs.config import Config, Recipe
from betastar.runs.folder import LedgerEntry, RunFolder, Status, versions
from betastar.runs.model import fully_connected, outputs
from betastar.runs.reading import Json, StudyError
from betastar.runs.study import Study
from betastar.threats import Membership
from betastar.training import AttributeMeasurement, PrivateTraining, Records
from betastar.training.saved_training import labelled_shares

# One private training, which `betastar train` and audits share


def network(study: Study) -> nn.Module:
    """The model of a study, with new weights."""
    if study.model is not None:
        return study.model(study.recipe)
    return fully_connected([study.columns, *study.recipe.hidden, len(study.classes) or 1])


def criterion_of(data: TensorDataset) -> nn.Module:
    """The loss of records: the squared error of targets that are numbers, the cross-entropy of those that are classes."""
    return nn.MSELoss() if data.tensors[1].is_floating_point() else nn.CrossEntropyLoss()


def private(module: nn.Module, data: TensorDataset, recipe: Recipe, config: Config, **more: Any) -> PrivateTraining:
    """The training of a model on some records, as a configuration wants it. `more` are arguments of `PrivateTraining`."""
    return PrivateTraining(
        module,
        torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=recipe.learning_rate),
        data,
        criterion_of(data),
        batch_size=recipe.batch_size,
        max_grad_norm=recipe.max_grad_norm,
        noise_multiplier=recipe.noise_multiplier,
        sampling=config.sampling,
        times_per_epoch=config.times_per_epoch,
        max_batch_size=config.max_batch_size,
        **more,
    )


# A run in a folder

#: Steps between two looks at single records, for the ledger.
LEDGER_EVERY = 10
#: At most this many gradients are taken to measure, unless a configuration says how often: minutes on a laptop.
MEASURED = 20_000_000


class Training:
    """One run: what is trained, what is measured, and the folder where it is kept.

    Parameters
    ----------
    config : Config
        What is asked for.
    folder : RunFolder
        Where the run is kept.
    study : Study, optional
        The study of the configuration, if it is loaded already.
    drawn : bool
        Whether nobody has chosen the seed. Noise then comes from the operating system.
    """

    def __init__(self, config: Config, folder: RunFolder, study: Study | None = None, drawn: bool = False) -> None:
        seed = config.chosen_seed()
        self.config, self.folder = replace(config, seed=seed), folder
        self.study = study = self.config.load() if study is None else study
        if study.recipe.batch_size > len(study.train):
            size = study.recipe.batch_size
            raise StudyError(f"batch_size must be at most the {len(study.train)} training records, got {size}.")
        seeds.start(seed, "weights")
        self.module = network(study)
        self.monitors: dict[str, AttributeMeasurement] = {}
        protected: dict[str, Any] = {}
        if config.clips_gaps:
            wanted = None if config.attribute_target is None else Target.parse(config.attribute_target)
            protected = {"secret": study.secret, "gap": config.gap, "attribute_target": wanted}
        noise = None if drawn or config.seed is None else seed
        recipe = study.recipe
        self.training = private(self.module, study.train, recipe, config, epochs=recipe.epochs, seed=noise, **protected)
        if config.monitor and not self.training.gaps:
            self._watch_all()
        self.epoch = 0

    @property
    def every(self) -> int:
        """The number of steps from one measurement to the next."""
        if self.config.every is not None:
            return self.config.every
        study, steps = self.study, self.study.recipe.epochs * self.training.steps_per_epoch
        at_a_time = study.recipe.batch_size if self.config.scope == "batch" else len(study.train)
        return max(1, -(-steps * at_a_time * study.secret.count // MEASURED))

    def _watch_all(self) -> None:
        config = self.config
        shared: dict[str, Any] = {"scope": config.scope, "every": self.every}
        ledger = LEDGER_EVERY if config.ledger else False
        watch, secret = self.training.watch, self.study.secret
        first = watch(secret, diameter=config.diameter, ledger=ledger, writers=[self.folder.step_writer()], **shared)
        self.monitors[config.diameter] = first
        if config.approximate:
            self.monitors["centroid"] = watch(secret, diameter="centroid", **shared)

    def run_epoch(self, tell: Callable[[Json], None] | None = None) -> float:
        """Train for one epoch, and return the mean loss of its batches."""
        total, number = 0.0, 0
        first = next(iter(self.monitors.values()), None)
        for _ in range(self.training.steps_per_epoch):
            step = self.training.step()
            if step.batch_size:
                total, number = total + step.loss, number + 1
            if tell:
                beta = {} if first is None else {**first.quick(), "secret": first.secret.name}
                tell({"epoch": self.epoch + 1, "loss": total / max(1, number), **self._progress(), **beta})
        return total / max(1, number)

    def _progress(self) -> Json:
        """The steps so far, and the number of steps and epochs of the whole run."""
        epochs = self.study.recipe.epochs
        return {"step": self.training.steps, "steps": epochs * self.training.steps_per_epoch, "epochs": epochs}

    def right(self) -> Tensor:
        """Whether the model is right about each test record."""
        x, y = self.study.test.tensors
        return outputs(self.module, x).argmax(dim=1) == y

    def accuracy(self) -> float:
        """The share of test records about which the model is right."""
        return float(self.right().double().mean())

    def quality(self) -> dict[str, float]:
        """How good the model is on the test records, and what needs no model: the figures of `QUALITY` that there are."""
        x, y = self.study.test.tensors
        given, scale = outputs(self.module, x), self.study.label_scale
        if scale is not None:
            true = scale.labels(y.flatten())
            return quality.errors(scale.labels(given.flatten()), true) | quality.baseline_errors(true)
        area = quality.auc(given.softmax(dim=1).double().numpy(), y.numpy())
        told = {"accuracy": self.accuracy(), "baseline": quality.baseline(y.numpy())}
        return told | ({} if area is None else {"auc": area})

    def entry(self, loss: float) -> Json:
        """The entry of an epoch in epochs.jsonl."""
        entry: Json = {
            "epoch": self.epoch,
            "steps": self.training.steps,
            "loss": loss,
            **self.quality(),
            "membership": self._bounds(partial(analyze, self.training.run, Membership(records=self.training.records))),
        }
        for name, monitor in self.monitors.items():
            entry[name] = {"scope": monitor.scope, **self._bounds(monitor.risk)}
        if self.training.gaps:
            entry["proved"] = {name: self._bounds(partial(self.training.attribute, name)) for name in self.training.gaps}
        return entry

    def _bounds(self, risk: Callable[..., Risk]) -> dict[str, float]:
        """β* by the method exact, its lower end and its estimate, and for Poisson sampling by the paper's closed form."""
        exact = risk(method="exact").bayes_security
        bounds = {"lower": float(exact.lower), "estimate": float(exact.estimate)}
        if self.config.plain_poisson:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RegimeWarning)  # the exact value is beside it
                bounds["paper"] = float(risk(method="paper").bayes_security.estimate)
        return bounds

    def run(self, tell: Callable[[Json], None] | None = None) -> None:
        """Train to the end of the last epoch, from the last checkpoint of the folder."""
        self.folder.identify({"sha256": self.study.fingerprint(), "seed": self.config.data_seed()})
        if self.folder.complete:
            self.module.load_state_dict(self.folder.weights)
            return
        self.restore()
        if tell and self.monitors and self.config.every is None and self.every > 1:
            often = f"one step in {self.every} is measured, which takes minutes, not hours (--scope {self.config.scope}/1: each)"
            tell({"told": [f"To measure what tells {self.study.secret.name}, {often}."]})
        while self.epoch < self.study.recipe.epochs:
            start = time.perf_counter()
            loss = self.run_epoch(tell)
            took = time.perf_counter() - start
            self.epoch += 1
            if tell:
                tell({"phase": f"analysing the risk after epoch {self.epoch}"})
            entry = self.entry(loss)
            self.folder.add_epoch(entry, took, torch.get_num_threads())
            self.save()
            if tell:
                tell({"finished": True, **entry})
        if tell:
            tell({"phase": "writing the model"})
        self.finish()

    def save(self) -> None:
        """Write the checkpoint."""
        self.folder.write_checkpoint({"epoch": self.epoch, "training": self.training.state_dict()})

    def restore(self) -> None:
        """Go back to the checkpoint, if there is one; what was written after it is void."""
        state = self.folder.checkpoint
        if state is not None:
            self.epoch = state["epoch"]
            self.training.load_state_dict(state["training"])
        elif self.monitors:
            self.folder.step_writer().rewind(0)
        self.folder.rewind(self.epoch)

    def finish(self) -> None:
        """Write what is made from the run as a whole. Then the run is complete."""
        first = next(iter(self.monitors.values()), None)
        if first is not None:
            self.folder.write_distances({name: monitor.distances for name, monitor in self.monitors.items()})
        if first is not None and first.ledger is not None:
            any_record = float(self.folder.epochs[-1][next(iter(self.monitors))]["lower"])
            betas = first.ledger.beside(any_record)
            each = enumerate(zip(first.ledger.measured, first.ledger.leakage, betas, strict=True))
            entries = [LedgerEntry(i, float(leakage), float(beta)) for i, (measured, leakage, beta) in each if measured]
            self.folder.write_ledger(entries)
        self.folder.finish(self._status(first), self.module.state_dict(), self.study.encoder)

    def _status(self, monitor: AttributeMeasurement | None) -> Status:
        secret, gaps = self.study.secret, self.training.gaps
        watched = monitor is not None or bool(gaps)
        return Status(
            **{**asdict(self.study.recipe), "epochs": self.epoch},
            records=len(self.study.train),
            sample_rate=self.training.run.segments[-1].sample_rate,
            sampling=self.config.sampling,
            times_per_epoch=self.config.times_per_epoch,
            max_batch_size=self.config.max_batch_size,
            versions=versions(),
            finished=True,
            study=self.study.name,
            secret=secret.name if watched else None,
            values=secret.count if watched else None,
            label=None if monitor is None else monitor.label,
            gaps=dict(gaps) or None,
            proof=self.training.guarantee.about_attributes if gaps else None,
            restated=tuple(self.study.restated),
            told=self.study.told,
            person=None if self.study.people is None else self.study.people.column,
            records_per_person=None if self.study.people is None else self.study.people.largest,
            shares=self._shares() if watched else None,
            concerned=self._concerned() if watched else None,
        )

    def _shares(self) -> dict[str, float]:
        """Of the training records that hold a value of the secret, the share that holds each."""
        secret, records = self.study.secret, Records((self.study.train.tensors[0],), self.study.train.tensors[1])
        held = secret.own(records)[secret.concerned(records)]
        return labelled_shares(secret, torch.bincount(held, minlength=secret.count))

    def _concerned(self) -> int | None:
        """The number of training records that the secret is about; None if these are all of them."""
        records = Records((self.study.train.tensors[0],), self.study.train.tensors[1])
        number = int(self.study.secret.concerned(records).sum())
        return None if number == len(records) else number


def train(
    config: Config,
    path: str | Path,
    resume: bool = False,
    tell: Callable[[Json], None] | None = None,
    study: Study | None = None,
) -> RunFolder:
    """Train a configuration in a folder.

    Parameters
    ----------
    config : Config
        What is asked for.
    path : path
        The folder of the run, which must be new or empty unless `resume` is given.
    resume : bool
        Whether to go on with the run that is there, and with its seed unless one is given.
    tell : callable, optional
        Called before each phase, after each step and after each epoch with what is known then.
    study : Study, optional
        A study of one's own, as `config.applied_to` returns it, in place of the one that `config.study` names.

    Returns
    -------
    RunFolder
        The folder of the complete run.
    """
    folder = RunFolder(path)
    with opened(config, folder, resume, tell=tell, study=study) as training:
        if training is not None:
            training.run(tell)
    return folder


@contextmanager
def opened(
    config: Config,
    folder: RunFolder,
    resume: bool = False,
    again: bool = False,
    tell: Callable[[Json], None] | None = None,
    study: Study | None = None,
) -> Iterator[Training | None]:
    """The training of a folder, while no other process may train there; parameters as for `train`.

    It is None if the run is complete, unless `again` is given.
    """
    folder.check(resume)
    if tell:
        tell({"phase": f"reading {config.study}"})
    seeded = replace(config, seed=config.chosen_seed())
    given, study = study, study if study is not None or folder.begun else seeded.load()  # complain before anything is written
    with folder.locked():
        folder.check(resume)
        if folder.begun:
            folder.compare(config)
            if folder.complete:
                folder.forget()
                if not again:
                    yield None
                    return
            seeded, study = replace(config, seed=folder.seed), given
        else:
            folder.begin(config, seeded.chosen_seed())
        if tell:
            if study is not None and study.told:
                tell({"told": study.told})
            watched = "" if study is None else f", and what watches {study.secret.name} ({study.secret.count} values)"
            tell({"phase": f"preparing the model{watched}"})
        yield Training(seeded, folder, study, drawn=folder.config.seed is None)


def train_seeds(config: Config, path: str | Path, seeds: Sequence[int], jobs: int = 1, resume: bool = False) -> list[RunFolder]:
    """The same run with several seeds, each in a folder of its own, in parallel through joblib.

    The backend is joblib's: inside `with joblib.parallel_config(backend="dask")` they run on a Dask cluster, with "ray" on Ray.
    """
    folders = seed_folders(path, seeds)
    workers = joblib.effective_n_jobs(jobs)
    threads = torch.get_num_threads() if workers == 1 else max(1, torch.get_num_threads() // workers)
    todo = [
        joblib.delayed(_alone)(replace(config, seed=seed), folder, resume, threads)
        for seed, folder in zip(seeds, folders, strict=True)
    ]
    joblib.Parallel(n_jobs=jobs)(todo)
    return [RunFolder(folder) for folder in folders]


def seed_folders(path: str | Path, seeds: Sequence[int]) -> list[Path]:
    """The folders of several seeds."""
    return [Path(path) / f"seed-{seed}" for seed in seeds]


def _alone(config: Config, folder: Path, resume: bool, threads: int) -> None:
    with quietly(threads):
        train(config, folder, resume)


@contextmanager
def quietly(threads: int) -> Iterator[None]:
    """A context with this many threads, and without the warnings that every run would repeat."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook")
            yield
    finally:
        torch.set_num_threads(before)
