"""Small seeded trainings and audits, frozen as hashes. Each gives parts by name: text, bytes, tensors or numbers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import betastar as bs
from betastar import audit
from betastar.training import AttributeMonitor, BetastarAccountant, Budget, JsonLines, PrivateTraining, Secret, private_loader

VALUES = [-1.5, -0.5, 0.0, 0.25, 1.0, 2.0, 3.5]
SECRET = Secret.column(1, VALUES, name="secret")
#: Files of a run that are not compared: how long it took, a lock, and pictures.
LEFT_OUT = ("timings.jsonl", ".lock", "*.png")
#: Keys of JSON objects that say when, where and by which versions.
VOLATILE = ("versions", "date", "seconds", "time", "commit", "folder")
#: Lines of a summary or a model card that name versions.
MADE_WITH = re.compile(r"^.*\b(made|Written) with\b.*\n", re.MULTILINE)
#: These take less than ten seconds together.
SAMPLE = ("monitor: tanh, hooks", "private: gap", "audit: mechanism")


def hashes(name: str) -> dict[str, str]:
    """The hash of each part of a training."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as place:
        warnings.simplefilter("ignore")
        with contextlib.chdir(place):
            return {part: digest(value) for part, value in sorted(TRAININGS[name]().items())}


def digest(value: Any) -> str:
    """SHA-256 of bytes, text, arrays, tensors, or of what can be JSON, whose floats keep all their digits."""
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        value = f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
    if not isinstance(value, bytes | str):
        value = json.dumps(value, sort_keys=True)
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()


# Trainings with Opacus


def _table(records: int = 120, columns: int = 6) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, columns, generator=generator)
    x[:, 1] = torch.tensor(VALUES)[torch.randint(len(VALUES), (records,), generator=generator)]
    return TensorDataset(x, torch.randint(2, (records,), generator=generator))


class _Images(nn.Module):
    """A table of 36 columns as 6 × 6 pictures."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 1, 6, 6)


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "conv":
        return nn.Sequential(_Images(), nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    if name == "layernorm":
        return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    if name == "dropout":
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))


def _data(name: str) -> TensorDataset:
    return _table(60, 36) if name == "conv" else _table()


def _fit(model: Any, optimizer: Any, loader: Any, criterion: Any, epochs: int = 2) -> None:
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()


def _weights(model: nn.Module) -> dict[str, Any]:
    return {f"weights {name}": tensor for name, tensor in model.state_dict().items()}


def _ends(bound: bs.Bound) -> list[str]:
    return [float(end).hex() for end in (bound.lower, bound.estimate, bound.upper)]


def _monitored(
    name: str = "tanh", mode: str = "hooks", sampling: str | None = None, noise: float = 2.0, epochs: int = 2, **options: Any
) -> dict[str, Any]:
    module, criterion = _model(name), nn.CrossEntropyLoss()
    loader: Any = DataLoader(_data(name), batch_size=20, generator=torch.Generator().manual_seed(4))
    if sampling is not None:
        most = 24 if sampling == "poisson" else None
        loader = private_loader(loader, sampling, generator=torch.Generator().manual_seed(5), max_batch_size=most)
    parts = PrivacyEngine(accountant=BetastarAccountant.mechanism()).make_private(
        module=module,
        optimizer=torch.optim.Adam(module.parameters(), lr=0.01),
        data_loader=loader,
        criterion=criterion,
        noise_multiplier=noise,
        max_grad_norm=0.5,
        noise_generator=torch.Generator().manual_seed(3),
        grad_sample_mode=mode,
        poisson_sampling=sampling is None,
    )
    model, optimizer, loader = parts[0], parts[1], parts[-1]
    loss: Any = parts[2] if len(parts) == 4 else criterion
    monitor = AttributeMonitor(model, optimizer, loader, loss, SECRET, writers=[JsonLines("steps.jsonl")], **options)
    _fit(model, optimizer, loader, loss, epochs)
    return {
        **_weights(module),
        "distances": np.asarray(monitor.distances),
        "beta": _ends(monitor.risk().bayes_security),
        "membership": _ends(monitor.membership().bayes_security),
        "steps": _json_lines(Path("steps.jsonl").read_text()),
    }


def _private(name: str = "tanh", epochs: int = 2, noise: float = 2.0, **options: Any) -> dict[str, Any]:
    model = _model(name)
    training = PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        _data(name),
        nn.CrossEntropyLoss(),
        batch_size=20,
        max_grad_norm=0.5,
        noise_multiplier=noise,
        seed=3,
        **options,
    )
    for _ in range(epochs):
        for _ in training.epoch():
            pass
    found, guarantee = _weights(model), training.guarantee
    if guarantee.proof is not None:
        proof = guarantee.proof
        found["proof"] = [proof.steps, float(proof.spent).hex(), float(proof.allowance).hex()]
    for about, risk in (("membership", guarantee.membership), ("attribute", guarantee.attribute)):
        if risk is not None:
            found[about] = _ends(risk.bayes_security)
    return found


# The command


def _betastar(*words: str) -> None:
    """The installed command, in this process."""
    (command,) = entry_points(group="console_scripts", name="betastar")
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "argv", ["betastar", *words]):
        try:
            command.load()()
        except SystemExit as end:
            code = end.code or 0
    if code != 0:
        raise RuntimeError(f"betastar {' '.join(words)} ended with {code}: {err.getvalue()[-2000:]}")


def _people() -> str:
    generator = np.random.default_rng(5)
    number = 300
    age, hours = generator.integers(20, 28, number), generator.normal(38.0, 8.0, number).round(1)
    rich = np.where(0.1 * (age - 24) + 0.05 * (hours - 38.0) + generator.normal(0.0, 0.7, number) > 0.0, "yes", "no")
    pay = (1000.0 + 30.0 * hours + 20.0 * age + generator.normal(0.0, 50.0, number)).round()
    town = generator.choice(["north", "south", "west"], number)
    pd.DataFrame({"age": age, "town": town, "hours": hours, "pay": pay, "rich": rich}).to_csv("people.csv", index=False)
    return "people.csv"


def _run(*words: str) -> dict[str, Any]:
    _betastar("train", *words, "--seed", "0", "-o", "run")
    return dict(_files(Path("run")))


def _people_run(*words: str, label: str = "rich", drop: str = "pay", noise: Sequence[str] = ("--noise", "2")) -> dict[str, Any]:
    common = ["--label", label, "--sensitive", "age", "--drop", drop, "--epochs", "2", *noise, "--batch", "30"]
    found = _run(_people(), *common, *words)
    if not words:
        _betastar("predict", "run", "people.csv", "-o", "predictions.csv")
        found["predictions.csv"] = Path("predictions.csv").read_text()
    return found


def _files(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or any(path.match(pattern) for pattern in LEFT_OUT):
            continue
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json":
            yield name, _steady(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            yield name, _json_lines(path.read_text())
        elif path.suffix == ".md":
            yield name, MADE_WITH.sub("", path.read_text())
        else:
            yield name, path.read_bytes()


def _json_lines(text: str) -> list[Any]:
    return [_steady(json.loads(line)) for line in text.splitlines()]


def _steady(value: Any) -> Any:
    """JSON without what differs from day to day and from machine to machine."""
    if isinstance(value, dict):
        return {key: _steady(one) for key, one in value.items() if key not in VOLATILE}
    return [_steady(one) for one in value] if isinstance(value, list) else value


# Audits


def _numbers(value: Any) -> Any:
    """JSON without sentences: text in which there are spaces."""
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items() if not (isinstance(one, str) and " " in one)}
    if isinstance(value, list | tuple):
        return [_numbers(one) for one in value if not (isinstance(one, str) and " " in one)]
    return value.item() if isinstance(value, np.generic) else value


def _parts(result: Any) -> dict[str, Any]:
    """A part for each key of what an audit prints as JSON."""
    return _numbers(json.loads(json.dumps(result.as_dict(), default=lambda one: np.asarray(one).tolist())))


def _factory() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def _train(model: nn.Module, data: Any) -> None:
    generator = torch.Generator().manual_seed(int(torch.randint(2**31, (1,))))
    criterion = nn.CrossEntropyLoss()
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        noise_generator=generator,
    )
    _fit(private, optimizer, loader, criterion, 1)


def _claim(records: int) -> bs.DPSGD:
    batches = -(-records // 10)
    return bs.DPSGD(1.0, 1.0 / batches, batches)


def _audit_training(**options: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"max_grad_norm": 1.0, "games": 40, "seed": 1, "width": 1.0, **options}
    return _parts(audit.games(_factory, _train, _table(50), _claim(50), **told))


def _audit_secret() -> dict[str, Any]:
    threat = bs.AttributeInference(2.0)
    return _audit_training(threat=threat, challenge=3, secret=SECRET, values=[-1.5, 3.5], criterion=nn.CrossEntropyLoss())


def _audit_one_run() -> dict[str, Any]:
    return _parts(audit.one_run(_factory, _train, _table(50), _claim, max_grad_norm=1.0, canaries=100, seed=1))


def _audit_code(threat: bs.Membership | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"factory": _factory, "max_grad_norm": 1.0, "steps": 5, "seed": 1}
    return _parts(audit.replay(_train, _table(50), _claim(50), threat, **options))


def _audit_leakage() -> dict[str, Any]:
    draw = np.random.default_rng(1)
    worlds = draw.integers(0, 2, 1000)
    return _parts(audit.leakage(worlds, draw.normal(size=(1000, 3)) + worlds[:, None], seed=1))


RUN = bs.DPSGD(1.0, 0.05, 20)
TRAININGS: dict[str, Callable[[], dict[str, Any]]] = {
    "monitor: tanh, hooks": lambda: _monitored(),
    "monitor: tanh, ghost": lambda: _monitored(mode="ghost"),
    "monitor: conv, functorch": lambda: _monitored("conv", "functorch"),
    "monitor: layernorm, all records": lambda: _monitored("layernorm", scope="dataset", ledger=True),
    "monitor: dropout, centroid": lambda: _monitored("dropout", diameter="centroid"),
    "monitor: balls-in-bins": lambda: _monitored(sampling="balls-in-bins"),
    "monitor: fixed-size": lambda: _monitored(sampling="fixed-size"),
    "monitor: batches cut off": lambda: _monitored(sampling="poisson"),
    "private: tanh": lambda: _private(),
    "private: conv": lambda: _private("conv"),
    "private: layernorm, fixed-size": lambda: _private("layernorm", sampling="fixed-size"),
    "private: dropout, batches cut off": lambda: _private("dropout", max_batch_size=24),
    "private: secure noise": lambda: _private(secure_noise=True),
    "private: budget": lambda: _private(noise=8.0, epochs=50, secret=SECRET, budget=Budget(bayes_security=0.95)),
    "private: budget of each record": lambda: _private(
        noise=8.0, epochs=50, secret=SECRET, budget=Budget(bayes_security=0.97, per_record=True)
    ),
    "private: gap": lambda: _private(secret=SECRET, gap=0.1),
    "private: gap, conv": lambda: _private("conv", secret=SECRET, gap=0.02),
    "private: gap, balls-in-bins": lambda: _private(secret=SECRET, gap=0.3, sampling="balls-in-bins"),
    "train: people": lambda: _people_run(),
    "train: people, gap": lambda: _people_run("--attribute-target", "bayes_security>=0.95"),
    "train: people, fixed-size, all records": lambda: _people_run("--sampling", "fixed-size", "--scope", "dataset"),
    "train: people, target": lambda: _people_run("--target", "success<=80%", noise=()),
    "train: pay": lambda: _people_run("--label-range", "0:5000", label="pay", drop="rich"),
    "train: adult": lambda: _run("adult", "--epochs", "1", "--batch", "4096", "--scope", "batch/3", "--sensitive", "sex"),
    "audit: mechanism": lambda: _parts(audit.mechanism(RUN, games=4000, seed=1)),
    "audit: mechanism, add-remove": lambda: _parts(audit.mechanism(RUN, bs.Membership("add-remove"), games=4000, seed=1)),
    "audit: mechanism, attribute": lambda: _parts(audit.mechanism(RUN, bs.AttributeInference(0.7), games=4000, seed=1)),
    "audit: mechanism, in one run": lambda: _parts(audit.one_run_mechanism(RUN, canaries=500, seed=1)),
    "audit: leakage": _audit_leakage,
    "audit: training": lambda: _audit_training(),
    "audit: training, secret": _audit_secret,
    "audit: training, in one run": _audit_one_run,
    "audit: code": lambda: _audit_code(),
    "audit: code, add-remove": lambda: _audit_code(bs.Membership("add-remove")),
}
