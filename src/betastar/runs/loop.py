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
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from betastar.analyze import RegimeWarning
from betastar.risk import Risk
from betastar.runs import quality, seeds
from betastar.runs.config import Config, Recipe
from betastar.runs.folder import LedgerEntry, RunFolder, Status, versions
from betastar.runs.model import fully_connected, outputs
from betastar.runs.reading import Json, StudyError
from betastar.runs.study import Study
from betastar.training import (
    AttributeMonitor,
    Budget,
    BudgetExhausted,
    GapClipping,
    Records,
    Secret,
    ShufflingWarning,
    make_attribute_private,
    private_loader,
)

# One private training, which `betastar train` and audits share


def network(study: Study) -> nn.Module:
    """The model of a study, with new weights."""
    if study.model is not None:
        return study.model(study.recipe)
    return fully_connected([study.columns, *study.recipe.hidden, len(study.classes) or 1])


def criterion_of(data: TensorDataset) -> nn.Module:
    """The loss of records: the squared error of targets that are numbers, the cross-entropy of those that are classes."""
    return nn.MSELoss() if data.tensors[1].is_floating_point() else nn.CrossEntropyLoss()


def sampled_loader(data: TensorDataset, batch_size: int, sampling: str, max_batch_size: int | None) -> DataLoader[Any]:
    """The loader of a sampling. Opacus makes plain Poisson sampling of it."""
    if sampling == "shuffled":
        return DataLoader(data, batch_size=batch_size, shuffle=True)
    loader: DataLoader[Any] = DataLoader(data, batch_size=batch_size)
    plain = sampling == "poisson" and max_batch_size is None
    return loader if plain else private_loader(loader, sampling, max_batch_size=max_batch_size)


class PrivateTraining:
    """Model, optimizer and loader as Opacus makes them private, and the monitors that watch them.

    Parameters
    ----------
    module : Module
        The model, which is trained in place.
    data : TensorDataset
        The records to train on.
    secret : Secret
        The attribute that monitors watch, or that gap clipping protects.
    recipe : Recipe
        The parameters of training.
    gap, target_attribute_beta : float, optional
        With one of them gaps are clipped, as `make_attribute_private` does.
    sampling : str
        How batches are drawn, as in `betastar.DPSGD`.
    max_batch_size : int, optional
        With Poisson sampling: of a larger batch, so many records are kept at random.
    """

    def __init__(
        self,
        module: nn.Module,
        data: TensorDataset,
        secret: Secret,
        recipe: Recipe,
        gap: float | None = None,
        target_attribute_beta: float | None = None,
        sampling: str = "poisson",
        max_batch_size: int | None = None,
    ) -> None:
        self.module, self.data, self.secret = module, data, secret
        self.engine = PrivacyEngine(accountant="betastar")
        self.criterion = criterion_of(data)
        self.monitors: dict[str, AttributeMonitor] = {}
        self.clipping: GapClipping | None = None
        parts: dict[str, Any] = {
            "module": module,
            "optimizer": torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=recipe.learning_rate),
            "data_loader": sampled_loader(data, recipe.batch_size, sampling, max_batch_size),
            "noise_multiplier": recipe.noise_multiplier,
            "max_grad_norm": recipe.max_grad_norm,
            "poisson_sampling": sampling == "poisson" and max_batch_size is None,
        }
        if gap is None and target_attribute_beta is None:
            self.model, self.optimizer, self.loader = self.engine.make_private(**parts)
            return
        self.model, self.optimizer, self.loader = make_attribute_private(
            **parts,
            criterion=self.criterion,
            secret=secret,
            gap=gap,
            bayes_security=target_attribute_beta,
            epochs=None if target_attribute_beta is None else recipe.epochs,
            engine=self.engine,
        )
        self.clipping = self.optimizer.gap_clipping

    def watch(self, diameter: str = "exact", **options: Any) -> AttributeMonitor:
        """Add a monitor of the secret, with these options of `AttributeMonitor`."""
        parts = (self.model, self.optimizer, self.loader, self.criterion, self.secret)
        self.monitors[diameter] = AttributeMonitor(*parts, diameter=diameter, **options)
        return self.monitors[diameter]

    def one_epoch(self) -> Iterator[tuple[int, Tensor]]:
        """One epoch: the size of each batch and its loss, after its step.

        `betastar train`, and every game of an audit of a study, iterate this and nothing else. The batches come from the sampler
        rather than from the loader, which draws one more random number an epoch and does not say which records it has drawn.
        """
        ledgers = [one for one in self.monitors.values() if one.ledger is not None and one.scope == "batch"]
        for indices in self.loader.batch_sampler:
            for monitor in ledgers:
                monitor.records(indices)
            x, y = self.data[indices]
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            yield len(x), loss.detach()


# A run in a folder

#: Steps between two looks at single records, for the ledger.
LEDGER_EVERY = 10


class Training(PrivateTraining):
    """One run: what is trained, what watches it, and the folder where it is kept.

    Parameters
    ----------
    config : Config
        What is asked for.
    folder : RunFolder
        Where the run is kept.
    study : Study, optional
        The study of the configuration, if it is loaded already.
    """

    def __init__(self, config: Config, folder: RunFolder, study: Study | None = None) -> None:
        seed = config.chosen_seed()
        self.config, self.folder = replace(config, seed=seed), folder
        self.study = study = self.config.load() if study is None else study
        recipe = study.recipe
        if recipe.batch_size > len(study.train):
            raise StudyError(f"batch_size must be at most the {len(study.train)} training records, got {recipe.batch_size}.")
        seeds.start(seed, "weights")
        module = network(study)
        if seed >= seeds.SMALL:
            seeds.start(seed, "sampling and noise")
        chosen = ("gap", "target_attribute_beta", "sampling", "max_batch_size")
        options = {name: getattr(config, name) for name in chosen}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShufflingWarning)  # whoever trains so has asked for it, and the report says it
            super().__init__(module, study.train, study.secret, recipe, **options)
            if config.monitor and self.clipping is None:
                self._watch_all()
        self.epoch = 0
        self.stopped: str | None = None

    def _watch_all(self) -> None:
        config = self.config
        scope = "dataset" if config.target_beta is not None else config.scope
        budget = Budget(config.target_beta) if config.target_beta is not None else None
        ledger = LEDGER_EVERY if config.ledger else False
        shared: dict[str, Any] = {"scope": scope, "every": config.every}
        self.watch(config.diameter, ledger=ledger, budget=budget, writers=[self.folder.step_writer()], **shared)
        if config.approximate:
            self.watch("centroid", **shared)

    def run_epoch(self, tell: Callable[[Json], None] | None = None) -> float:
        """Train for one epoch, and return the mean loss of its batches."""
        total, number = 0.0, 0
        first = next(iter(self.monitors.values()), None)
        for size, loss in self.one_epoch():
            if size:
                total, number = total + float(loss), number + 1
            if tell:
                beta = {} if first is None else {**first.history.quick(), "secret": first.secret.name}
                tell({"epoch": self.epoch + 1, "loss": total / max(1, number), **self._progress(), **beta})
        return total / max(1, number)

    def _progress(self) -> Json:
        """The steps so far, and the number of steps and epochs of the whole run."""
        epochs = self.study.recipe.epochs
        return {"step": len(self.engine.accountant), "steps": epochs * len(self.loader), "epochs": epochs}

    def right(self) -> Tensor:
        """Whether the model is right about each test record."""
        x, y = self.study.test.tensors
        return outputs(self.module, x).argmax(dim=1) == y

    def accuracy(self) -> float:
        """The share of test records about which the model is right."""
        return float(self.right().double().mean())

    def quality(self) -> dict[str, float]:
        """How good the model is on the test records, and what needs no model: the figures of `QUALITY` that there are."""
        train, (x, y) = self.study.train.tensors[1], self.study.test.tensors
        given, scale = outputs(self.module, x), self.study.label_scale
        if scale is not None:
            learned, true = scale.labels(train.flatten()), scale.labels(y.flatten())
            return quality.errors(scale.labels(given.flatten()), true) | quality.baseline_errors(learned, true)
        area = quality.auc(given.softmax(dim=1).double().numpy(), y.numpy())
        told = {"accuracy": self.accuracy(), "baseline": quality.baseline(train.numpy(), y.numpy())}
        return told | ({} if area is None else {"auc": area})

    def entry(self, loss: float) -> Json:
        """The entry of an epoch in epochs.jsonl."""
        entry: Json = {
            "epoch": self.epoch,
            "steps": len(self.engine.accountant),
            "loss": loss,
            **self.quality(),
            "membership": self._bounds(self.engine.accountant.risk),
        }
        for name, monitor in self.monitors.items():
            entry[name] = {"scope": monitor.scope, **self._bounds(monitor.risk)}
        if self.clipping is not None:
            entry["proved"] = {name: self._bounds(partial(self.clipping.risk, name)) for name in self.clipping.gaps}
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
        while self.epoch < self.study.recipe.epochs and self.stopped is None:
            start = time.perf_counter()
            try:
                loss = self.run_epoch(tell)
            except BudgetExhausted as reason:
                if not len(self.engine.accountant):
                    advice = "give more noise, smaller batches or a smaller target_beta."
                    raise StudyError(f"{reason} The budget does not allow a single step: {advice}") from None
                self.stopped, loss = str(reason), float("nan")
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
        self.folder.write_checkpoint(
            {
                "epoch": self.epoch,
                "stopped": self.stopped,
                "model": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "accountant": self.engine.accountant.state_dict(),
                "monitors": {name: monitor.state_dict() for name, monitor in self.monitors.items()},
                "clipping": None if self.clipping is None else self.clipping.state_dict(),
                "random": torch.get_rng_state(),
            }
        )

    def restore(self) -> None:
        """Go back to the checkpoint, if there is one; what was written after it is void."""
        state = self.folder.checkpoint
        if state is not None:
            self.epoch, self.stopped = state["epoch"], state["stopped"]
            self.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.engine.accountant.load_state_dict(state["accountant"])
            for name, monitor in self.monitors.items():
                monitor.load_state_dict(state["monitors"][name])
            if self.clipping is not None:
                self.clipping.load_state_dict(state["clipping"])
            torch.set_rng_state(state["random"])
        else:
            for monitor in self.monitors.values():
                for writer in monitor.writers:
                    writer.rewind(0)
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

    def _status(self, monitor: AttributeMonitor | None) -> Status:
        secret, clipping = self.study.secret, self.clipping
        watched = monitor is not None or clipping is not None
        proof = str(monitor.proof) if monitor is not None and monitor.budget_account is not None else None
        return Status(
            **{**asdict(self.study.recipe), "epochs": self.epoch},
            records=len(self.study.train),
            sample_rate=self.engine.accountant.run.segments[-1].sample_rate,
            sampling=self.config.sampling,
            max_batch_size=self.config.max_batch_size,
            versions=versions(),
            finished=True,
            stopped=self.stopped,
            study=self.study.name,
            secret=secret.name if watched else None,
            values=secret.count if watched else None,
            label=None if monitor is None else monitor.label,
            gaps=None if clipping is None else clipping.gaps,
            proof=proof if clipping is None else clipping.promise(),
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
        counts = torch.bincount(held, minlength=secret.count).double()
        shares = (counts / counts.sum()).tolist() if len(held) else []
        return dict(zip(map(str, secret.labels), shares, strict=False))

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
        yield Training(seeded, folder, study)


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
    """A context with so many threads, and without the warnings that every run would repeat."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG|Full backward hook")
            yield
    finally:
        torch.set_num_threads(before)
