"""A training loop of one's own as a folder for `betastar report`, and what its monitor or gap clipping shows of itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from betastar import files
from betastar.display import Display, Displayed
from betastar.files import LEDGER, MEMBERS, PRIVATE_TRAINING, STEPS, TRAINING, TRAINING_FORMAT
from betastar.risk import METRICS
from betastar.threats import FARTHEST
from betastar.training import processes
from betastar.training.budget import NotProved
from betastar.training.members import members_files

if TYPE_CHECKING:
    from betastar.dpsgd import DPSGD
    from betastar.risk import Risk
    from betastar.training.secrets.secret import Secret
    from betastar.training.source import Source

HEADS = ("", "rely on", "estimate", "without a model")
BETA = METRICS["bayes_security"]


class SavedTraining(Displayed):
    """The base of what watches a training loop: it can be saved for a report."""

    def _files(self) -> Mapping[str, str]:
        """The content of each file of the folder, by its name."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Save what is known of the training so far as a folder, which `betastar report` takes.

        Only its owner may enter the folder. It holds figures about the records that were trained on, and single ones if there is
        a ledger, but neither the model nor the state of the generator. With several processes all of them call this, and the
        first one writes.

        Parameters
        ----------
        path : path
            The folder. It must be new or empty, unless `overwrite` is given.
        overwrite : bool
            Whether a folder that was saved like this before is replaced. Another folder never is.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        ValueError
            If something is there already or if no step was taken yet.
        NotProved
            If a step was taken that gap clipping does not cover.
        """
        folder = Path(path)
        contents = self._files()
        if processes.together() and torch.distributed.get_rank() != 0:
            return folder
        _require_place(folder, overwrite)
        files.make_private(folder)
        for name in (STEPS, LEDGER, MEMBERS):
            if name not in contents:
                (folder / name).unlink(missing_ok=True)  # of what is replaced
        files.write_all({folder / name: text for name, text in contents.items()})
        return folder


def _require_place(folder: Path, overwrite: bool) -> None:
    """Refuse a place where something is that may not be replaced."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"path must be a folder, but {folder} is a file: choose another name.")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / TRAINING).exists():
        raise ValueError(f"path must be a new folder, but {folder} holds something else: choose another name.")
    if not overwrite:
        raise ValueError(
            f"{folder} holds a training that was saved before: choose another folder, or overwrite=True to replace it."
        )


def shares_of(secret: Secret, source: Source) -> dict[str, float]:
    """Of the training records that hold a value of the secret, the share that holds each."""
    counts = torch.zeros(secret.count, dtype=torch.float64)
    for _, records in source.portions(range(len(source))):
        counts += torch.bincount(secret.own(records)[secret.concerned(records)].cpu(), minlength=secret.count)
    return labelled_shares(secret, counts)


def labelled_shares(secret: Secret, counts: torch.Tensor) -> dict[str, float]:
    """How often each value occurs as shares of all, by the label of the value; nothing if none occurs."""
    labels = (", ".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in secret.labels)
    return dict(zip(labels, (counts.double() / counts.sum()).tolist(), strict=True)) if counts.any() else {}


def private_files(training: Any) -> dict[str, str]:
    """The file of a `PrivateTraining`. What was measured besides has a `save` of its own."""
    guarantee = training.guarantee
    proof = None if guarantee.proof is None else guarantee.proof.bayes_security
    worst = FARTHEST if proof is None else None  # of a budget that keeps to the worst case without measuring
    secrets: dict[str, dict[str, Any]] = {
        one.name: {"values": one.count, "gap": training.gaps.get(one.name, worst)} for one in training.secrets
    }
    if len(secrets) == 1:
        secrets[training.secrets[0].name]["shares"] = shares_of(training.secrets[0], training._source)
    more: dict[str, Any] = {"secrets": secrets, "budget": proof, "records": training.records}
    if (plan := guarantee.groups) is not None:
        more["groups"] = {"relation": plan.relation, "rates": dict(plan.rates), "norms": dict(plan.norms)}
    if guarantee.budgeted is not None:
        more["membership_budget"] = guarantee.budgeted.bayes_security
    members = {} if training.ledger is None else members_files(training.ledger)
    return members | {TRAINING: described(PRIVATE_TRAINING, training.run, **more)}


def described(made_by: str, run: DPSGD, **more: Any) -> str:
    """The content of training.json."""
    segments = [{name: value for name, value in asdict(one).items() if value is not None} for one in run.segments]
    numbers = [{name: value.item() if hasattr(value, "item") else value for name, value in one.items()} for one in segments]
    versions = {name: version(name) for name in ("betastar", "torch", "opacus", "numpy")}
    return (
        json.dumps({"format": TRAINING_FORMAT, "made_by": made_by, "segments": numbers, **more, "versions": versions}, indent=1)
        + "\n"
    )


def private_display(training: Any, brief: bool) -> Display:
    """What a `PrivateTraining` shows: its steps, and what is proved of them."""
    lines = [repr(training)]
    if not training.steps:
        return Display(tuple(lines))
    try:
        guarantee = training.guarantee
    except NotProved as problem:
        return Display((*lines, f"Not proved: {problem}"))
    lines += str(guarantee).splitlines()
    return Display(tuple(lines)) if brief else Display(tuple(lines), HEADS, tuple(guarantee_rows(guarantee)))


def guarantee_rows(guarantee: Any) -> Iterator[tuple[str, ...]]:
    """The table of a guarantee: β* against each threat of which something is proved."""
    if guarantee.membership is not None:
        yield from rows("membership, proved", guarantee.membership)
    for name, risk in guarantee.attributes.items():
        yield from rows(f"{name}, proved", risk)


def rows(threat: str, risk: Risk, about: str = "") -> Iterator[tuple[str, ...]]:
    beta = risk.bayes_security
    title, relied, *others = BETA.row({"lower": float(beta.lower), "estimate": float(beta.estimate)})
    yield (f"{threat}: {title}", about + relied, *others)
