"""The price of the monitor and of gap clipping: a step with them against a step of Opacus alone, in one run.

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

from betastar.training import AttributeMonitor, Secret, make_attribute_private
from common import keep

STEPS = 60
CRITERION = nn.CrossEntropyLoss()
#: name: (records, columns, hidden, classes, batch, values, activation)
SHAPES = {
    "Adult": (26048, 108, 128, 2, 256, 74, nn.Tanh),
    "Adult, ReLU": (26048, 108, 128, 2, 256, 74, nn.ReLU),
    "Purchase": (50000, 600, 128, 100, 512, 2, nn.Tanh),
}
clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def training(shape: tuple[Any, ...], values: int, gap: float | None = None, ghost: bool = False, **options: Any) -> Any:
    """A private training; monitored if `options` are given, with gap clipping if a gap is, or with ghost clipping of Opacus."""
    records, columns, hidden, classes, batch, _, activation = shape
    torch.manual_seed(0)
    levels = torch.linspace(-1.6, 3.8, values)
    x = torch.randn(records, columns)
    x[:, 0] = levels[torch.randint(values, (records,))]
    x[:values, 0] = levels
    data = TensorDataset(x, torch.randint(classes, (records,)))
    module = nn.Sequential(nn.Linear(columns, hidden), activation(), nn.Linear(hidden, classes))
    given: dict[str, Any] = {
        "module": module,
        "optimizer": torch.optim.Adam(module.parameters(), lr=1e-4),
        "data_loader": DataLoader(data, batch_size=batch),
        "noise_multiplier": 3.51,
        "max_grad_norm": 2.0,
    }
    secret = Secret.column(0, levels)
    if gap is not None:
        return *make_attribute_private(**given, criterion=CRITERION, secret=secret, gap=gap), CRITERION
    if ghost:
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
    model, optimizer, _, criterion = parts
    start = clock()
    x, y = next(batches)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    return clock() - start


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
    """Median seconds of plain, monitored and gap-clipped steps that alternate."""
    shape = SHAPES[name]
    kinds = {
        "plain": training(shape, shape[5]),
        "ghost": training(shape, shape[5], ghost=True),
        "monitored": training(shape, shape[5], scope="batch"),
        "gap": training(shape, shape[5], gap=0.1),
        "gap, 2 values": training(shape, 2, gap=0.1),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    streams = {kind: iter(parts[2]) for kind, parts in kinds.items()}
    for _ in track(range(STEPS), f"{name}: steps of each kind", transient=True):
        for kind, parts in kinds.items():
            times[kind].append(step(parts, streams[kind]))
    found = {kind: statistics.median(some[5:]) for kind, some in times.items()}
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
    results |= {name: compare(name) for name in SHAPES}
    table = Table(title="The monitor, exact diameters (medians)")
    for title in ("shape", "plain step", "monitored step", "ratio", "loop over records and pairs", "ratio"):
        table.add_column(title, justify="left" if title == "shape" else "right")
    for name in SHAPES:
        row = results[name]
        slow = (f"{row['loop']:.1f} s", f"{row['loop ratio']:.0f} ×") if "loop" in row else ("", "")
        table.add_row(name, f"{row['plain'] * 1e3:.1f} ms", f"{row['monitored'] * 1e3:.1f} ms", f"{row['ratio']:.2f} ×", *slow)
    console = Console()
    console.print(table)
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
