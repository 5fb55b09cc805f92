"""A step of PrivateTraining, with and without a gap, and a monitored step of Opacus, against a step of Opacus alone, in one run.

Shapes of the paper's two experiments, random records. Steps of all kinds alternate, so that a noisy machine is noisy for all;
look at the ratios. The monitor is also compared with the loop over records and pairs. Results are added to
benchmarks/results.json.
"""

from __future__ import annotations

import resource
import statistics
import time
import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from betastar.training import AttributeMonitor, PrivateTraining, Secret
from common import keep

STEPS = 60
CRITERION = nn.CrossEntropyLoss()
#: name: (records, columns, hidden, classes, batch, values, activation)
SHAPES = {
    "Adult": (26048, 108, 128, 2, 256, 74, nn.Tanh),
    "Adult, ReLU": (26048, 108, 128, 2, 256, 74, nn.ReLU),
    "Purchase": (50000, 600, 128, 100, 512, 2, nn.Tanh),
}
IMAGES = "CNN on images"
clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def images() -> tuple[TensorDataset, nn.Module]:
    """Random images of 28 × 28 pixels, and the network of the tutorials of Opacus for them."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()),
        *(nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    return TensorDataset(torch.randn(10_000, 1, 28, 28), torch.randint(10, (10_000,))), module


def training(shape: tuple[Any, ...] | None, values: int, gap: float | None = None, kind: str = "hooks", **options: Any) -> Any:
    """A private training: of Opacus by hooks or ghost clipping, monitored if `options` are given, or a PrivateTraining."""
    batch = 256
    if shape is None:
        data, module = images()
        return _made(data, module, batch, None, gap, kind, options)
    records, columns, hidden, classes, batch, _, activation = shape
    torch.manual_seed(0)
    levels = torch.linspace(-1.6, 3.8, values)
    x = torch.randn(records, columns)
    x[:, 0] = levels[torch.randint(values, (records,))]
    x[:values, 0] = levels
    data = TensorDataset(x, torch.randint(classes, (records,)))
    module = nn.Sequential(nn.Linear(columns, hidden), activation(), nn.Linear(hidden, classes))
    return _made(data, module, batch, Secret.column(0, levels), gap, kind, options)


def _made(
    data: TensorDataset, module: nn.Module, batch: int, secret: Secret | None, gap: float | None, kind: str, options: Any
) -> Any:
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    given: dict[str, Any] = {
        "module": module,
        "optimizer": optimizer,
        "data_loader": DataLoader(data, batch_size=batch),
        "noise_multiplier": 3.51,
        "max_grad_norm": 2.0,
    }
    if kind.startswith("private"):
        protected = {} if gap is None else {"secret": secret, "gap": gap}
        secure = {"secure_noise": kind == "private, secure"}
        return PrivateTraining(
            module, optimizer, data, CRITERION, batch_size=batch, noise_multiplier=3.51, max_grad_norm=2.0, **protected, **secure
        )
    if kind == "ghost":
        model, optimizer, criterion, loader = PrivacyEngine().make_private(
            **given, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost"
        )
        return model, optimizer, loader, criterion
    parts = PrivacyEngine().make_private(**given)
    if options:
        AttributeMonitor(*parts, CRITERION, secret, **options)
    return *parts, CRITERION


def step(parts: Any, batches: Any) -> float:
    """Seconds of one turn of the training loop: next batch, forward, backward, step."""
    start = clock()
    if isinstance(parts, PrivateTraining):
        parts.step()
        return clock() - start
    model, optimizer, _, criterion = parts
    x, y = next(batches)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    return clock() - start


def endless(loader: Any) -> Any:
    """The batches of one epoch after the other."""
    while True:
        yield from loader


def loop(parts: Any, values: int, number: int = 8) -> float:
    """Seconds of a step's distances the plain way (a gradient a variant, then every pair), from a few records."""
    model, _, loader, _ = parts
    module = model._module
    levels = torch.linspace(-1.6, 3.8, values)
    model.disable_hooks()
    x, y = loader.dataset[:number]
    start = clock()
    for i in range(number):
        gradients = []
        for level in levels:
            one = x[i : i + 1].clone()
            one[0, 0] = level
            loss = CRITERION(module(one), y[i : i + 1])
            flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
            gradients.append(flat * min(1.0, 2.0 / (float(flat.norm()) + 1e-6)))
        max(float((a - b).norm()) for k, a in enumerate(gradients) for b in gradients[:k])
    took = (clock() - start) / number
    model.enable_hooks()
    return took * SHAPES["Adult"][4]


def compare(name: str) -> dict[str, float]:
    """Median seconds of steps of each kind that alternate."""
    shape = SHAPES.get(name)
    values = 2 if shape is None else shape[5]
    kinds = {
        "plain": training(shape, values),
        "ghost": training(shape, values, kind="ghost"),
        "private": training(shape, values, kind="private"),
        "private, secure": training(shape, values, kind="private, secure"),
    }
    if shape is not None:
        kinds["monitored"] = training(shape, values, scope="batch")
        kinds["gap"] = training(shape, values, gap=0.1, kind="private")
        kinds["gap, 2 values"] = training(shape, 2, gap=0.1, kind="private")
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    streams = {kind: None if isinstance(parts, PrivateTraining) else endless(parts[2]) for kind, parts in kinds.items()}
    for _ in track(range(STEPS), f"{name}: steps of each kind", transient=True):
        for kind, parts in kinds.items():
            times[kind].append(step(parts, streams[kind]))
    found = {kind: statistics.median(some[5:]) for kind, some in times.items()}
    fastest = min(found["plain"], found["ghost"])
    found["private ratio"], found["secure ratio"] = found["private"] / fastest, found["private, secure"] / fastest
    if shape is None:
        return found
    found["ratio"] = found["monitored"] / found["plain"]
    found["ghost ratio"] = found["monitored"] / found["ghost"]
    for kind in ("gap", "gap, 2 values"):
        found[f"{kind} ratio"] = found[kind] / found["plain"]
    if name == "Adult":
        found["loop"] = loop(kinds["plain"], shape[5])
        found["loop ratio"] = found["loop"] / found["monitored"]
    return found


def many_values(kind: str) -> dict[str, float]:
    """10,000 values: seconds a step, and MiB above what was used before."""
    plain = training(SHAPES["Adult"], 10_000)
    step(plain, iter(plain[2]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parts = training(SHAPES["Adult"], 10_000, scope="batch", diameter=kind)
    took = step(parts, iter(parts[2]))
    return {"seconds": took, "MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook|Secure RNG")
    results: dict[str, Any] = {"threads": torch.get_num_threads()}
    # First: what comes later may use more memory for other reasons.
    results["10,000 values, centroid"] = many_values("centroid")
    results |= {name: compare(name) for name in (*SHAPES, IMAGES)}
    table = Table(title="The monitor, exact diameters (medians)")
    for title in ("shape", "plain step", "monitored step", "ratio", "loop over records and pairs", "ratio"):
        table.add_column(title, justify="left" if title == "shape" else "right")
    for name in SHAPES:
        row = results[name]
        slow = (f"{row['loop']:.1f} s", f"{row['loop ratio']:.0f} ×") if "loop" in row else ("", "")
        table.add_row(name, f"{row['plain'] * 1e3:.1f} ms", f"{row['monitored'] * 1e3:.1f} ms", f"{row['ratio']:.2f} ×", *slow)
    console = Console()
    console.print(table)
    own = Table(title="PrivateTraining, spot checks and drawing of records included (medians)")
    for title in ("shape", "Opacus", "its ghost clipping", "PrivateTraining", "ratio to the faster", "secure noise", "ratio"):
        own.add_column(title, justify="left" if title == "shape" else "right")
    for name in (*SHAPES, IMAGES):
        row = results[name]
        times = [f"{row[kind] * 1e3:.1f} ms" for kind in ("plain", "ghost", "private", "private, secure")]
        own.add_row(name, *times[:3], f"{row['private ratio']:.2f}", times[3], f"{row['secure ratio']:.2f}")
    console.print(own)
    clipped = Table(title="Gap clipping (medians)")
    for title in ("shape", "values", "plain step", "gap-clipped step", "ratio"):
        clipped.add_column(title, justify="left" if title == "shape" else "right")
    for name in SHAPES:
        row = results[name]
        for kind, values in (("gap", SHAPES[name][5]), ("gap, 2 values", 2)):
            clipped.add_row(
                name, str(values), f"{row['plain'] * 1e3:.1f} ms", f"{row[kind] * 1e3:.1f} ms", f"{row[f'{kind} ratio']:.2f} ×"
            )
    console.print(clipped)
    for name, row in results.items():
        if isinstance(row, dict) and "MiB" in row:
            console.print(f"{name}, batch 256: {row['seconds']:.1f} s a step, {row['MiB']:.0f} MiB more memory")
    keep({"monitor": results})


if __name__ == "__main__":
    main()
