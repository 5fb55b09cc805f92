"""The price of the monitor and of gap clipping on transformers: against a step of Opacus, and of its ghost clipping, in one run.

Encoders with random weights, batches of 16 texts of 64 tokens, a secret token with 10 values. Steps of all kinds alternate, so
that a noisy machine is noisy for all; look at the ratios. Each shape has a process of its own, so that none finds the memory that
another one has left. With one thread (OMP_NUM_THREADS=1), times are those of the processor.
The number of rounds is an argument. Results are added to benchmarks/results.json.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from opacus import PrivacyEngine
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from betastar.training import AttributeMonitor, PrivateTraining, Secret
from common import keep

TEXTS, LENGTH, VOCABULARY, BATCH, VALUES = 512, 64, 1000, 16, 10
#: name: (width, layers, causal, LoRA, place of the secret)
SHAPES = {
    "0.27 M weights": (64, 4, False, False, 5),
    "0.93 M weights": (128, 4, False, False, 5),
    "5 M weights": (256, 6, False, False, 5),
    "20 M weights": (512, 6, False, False, 5),
    "LoRA, 0.1 M on 20 M": (512, 6, False, True, 5),
    "5 M weights, causal, secret in the middle": (256, 6, True, False, 32),
}
CRITERION = nn.CrossEntropyLoss()
clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of rank 8 beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, 8, bias=False), nn.Linear(8, layer.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


class Block(nn.Module):
    """Attention and a layer of four times the width, each behind a normalisation."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.causal, self.heads = causal, 4 if width < 256 else 8
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before(x)
        parts = (layer(normal).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Encoder(nn.Module):
    """Classifies a text by the mean over its positions."""

    def __init__(self, width: int, layers: int, causal: bool, adapted: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, causal) for _ in range(layers)))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 2)
        if adapted:
            self.requires_grad_(False)
            for block in self.blocks:
                block.query, block.value = Adapted(block.query), Adapted(block.value)
            self.head.requires_grad_(True)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]).repeat(len(ids), 1)
        return self.head(self.last(self.blocks(self.tokens(ids) + self.places(places))).mean(dim=1))


def training(shape: tuple[Any, ...], kind: str, values: int = VALUES, diameter: str = "exact") -> Any:
    """A PrivateTraining (private, gap), or (model, optimizer, loader, criterion) of Opacus: plain, ghost or monitored."""
    torch.manual_seed(0)
    *sizes, place = shape
    module = Encoder(*sizes)
    ids = torch.randint(values % VOCABULARY, VOCABULARY, (TEXTS, LENGTH))
    ids[:, place] = torch.arange(TEXTS) % values
    given: dict[str, Any] = {
        "module": module,
        "optimizer": torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.01),
        "data_loader": DataLoader(TensorDataset(ids, torch.randint(2, (TEXTS,))), batch_size=BATCH),
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
    }
    secret = Secret.column(place, range(values), unseen=values > TEXTS)
    if kind in ("private", "gap"):
        protected = {"secret": secret, "gap": 0.1} if kind == "gap" else {}
        data, sizes = given["data_loader"].dataset, {"batch_size": BATCH, "sampling": "fixed-size"}
        return PrivateTraining(module, given["optimizer"], data, CRITERION, noise_multiplier=1.0, **sizes, **protected)
    if kind == "ghost":
        model, optimizer, criterion, loader = PrivacyEngine().make_private(
            **given, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost"
        )
        return model, optimizer, loader, criterion
    parts = PrivacyEngine().make_private(**given)
    if kind == "monitored":
        AttributeMonitor(*parts, CRITERION, secret, diameter=diameter)
    return *parts, CRITERION


def step(parts: Any) -> float:
    """Seconds of one step: on the first texts, or on those that a PrivateTraining draws."""
    if isinstance(parts, PrivateTraining):
        start = clock()
        parts.step()
        return clock() - start
    model, optimizer, loader, criterion = parts
    ids, target = loader.dataset[:BATCH]
    start = clock()
    optimizer.zero_grad()
    criterion(model(ids), target).backward()
    optimizer.step()
    return clock() - start


def compare(name: str, rounds: int) -> dict[str, float]:
    """Median seconds of steps of each kind that alternate, and their ratios to a plain step and to one of ghost clipping."""
    warnings.filterwarnings("ignore")
    kinds = {kind: training(SHAPES[name], kind) for kind in ("plain", "ghost", "private", "monitored", "gap")}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in track(range(rounds), f"{name}: steps of each kind", transient=True):
        for kind, parts in kinds.items():
            times[kind].append(step(parts))
    row = {kind: statistics.median(some[1:]) for kind, some in times.items()}
    for kind in ("monitored", "gap"):
        row[f"{kind} ratio"], row[f"{kind} ghost ratio"] = row[kind] / row["plain"], row[kind] / row["ghost"]
    row["private ratio"] = row["private"] / min(row["plain"], row["ghost"])
    return row


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    results = {}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in SHAPES:
            results[name] = processes.submit(compare, name, rounds).result()
    table = Table(title=f"Transformers, {torch.get_num_threads()} threads (medians)")
    for title in ("shape", "Opacus", "ghost", "PrivateTraining", "to faster", "monitored", "ratio", "gap clipping", "ratio"):
        table.add_column(title, justify="left" if title == "shape" else "right")
    for name, row in results.items():
        times = [f"{row[kind]:.2f} s" for kind in ("plain", "ghost", "private", "monitored", "gap")]
        ratios = [f"{row[f'{kind} ratio']:.2f}" for kind in ("private", "monitored", "gap")]
        table.add_row(name, *times[:3], ratios[0], times[3], ratios[1], times[4], ratios[2])
    Console().print(table)
    mebibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    keep({"transformers": {"threads": torch.get_num_threads(), "peak MiB": mebibytes, "rows": results}})


if __name__ == "__main__":
    main()
