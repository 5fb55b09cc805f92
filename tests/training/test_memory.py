"""Ten thousand values: memory stays bounded."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from betastar.training import AttributeMonitor, Secret
from tests.training.private import private
from torch.utils.data import TensorDataset

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

torch.manual_seed(0)
levels = torch.linspace(-3, 3, 10_000)
x = torch.randn(10_000, 108)
x[:, 0] = levels
data, criterion = TensorDataset(x, torch.randint(2, (10_000,))), nn.CrossEntropyLoss()

def step(kind, batch):
    module = nn.Sequential(nn.Linear(108, 128), nn.Tanh(), nn.Linear(128, 2))
    model, optimizer, loader = private(module, data, batch=batch)
    monitor = kind and AttributeMonitor(model, optimizer, loader, criterion, Secret.column(0, levels), diameter=kind)
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    optimizer.step()
    return monitor and float(monitor.distances[0])

step(None, {batch})
before = peak()
distance = step("{kind}", {batch})
print(distance, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch"), [("exact", 2), ("centroid", 12), ("centroid", 256)])
def test_ten_thousand_values_in_bounded_memory(kind: str, batch: int) -> None:
    code = CODE.replace("{kind}", kind).replace("{batch}", str(batch))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    distance, gibibytes = map(float, done.stdout.split())
    assert 0.05 < distance < 2.0
    assert gibibytes < 2.0


TEXTS = """
import resource, warnings
warnings.simplefilter("ignore")
import pandas, torch
from torch import nn
from betastar.training import AttributeMonitor, Secret
from tests.training.private import private
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
ids = torch.randint(74, 500, (148, 32))
ids[:, 3] = torch.arange(148) % 74
data, criterion = TensorDataset(ids, torch.randint(2, (148,))), nn.CrossEntropyLoss()

class Mean(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)

layers = [layer for _ in range(3) for layer in (nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256))]
module = nn.Sequential(nn.Embedding(500, 256), *layers, Mean(), nn.Linear(256, 2))
secret, memory = Secret.column(3, range(74)), {mebibytes} << 20
model, optimizer, loader = private(module, data, batch=5)
if "{kind}" == "monitor":
    AttributeMonitor(model, optimizer, loader, criterion, secret, memory=memory)
criterion(model(ids[:5]), data.tensors[1][:5]).backward()
optimizer.step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)
"""


@pytest.mark.slow
def test_memory_is_a_bound() -> None:
    """A monitor of a model that reads texts takes no more than it may, at attaching and at a step, and 20 % for what is freed."""
    mebibytes, peaks = 160, []
    for kind in ("plain", "monitor"):
        code = TEXTS.replace("{kind}", kind).replace("{mebibytes}", str(mebibytes))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    assert peaks[1] - peaks[0] < 1.2 * mebibytes
