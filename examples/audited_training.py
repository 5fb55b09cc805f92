"""Training code as `betastar audit games examples/audited_training.py` wants it: put your own in its place."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import betastar as bs

RECORDS, BATCH, EPOCHS, NOISE = 500, 50, 2, 1.0
max_grad_norm = 1.0

generator = torch.Generator().manual_seed(0)
x = torch.randn(RECORDS, 10, generator=generator)
data = TensorDataset(x, (x[:, 0] > 0).long())


def factory():
    """A new, plain model."""
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))


def train(model, data):
    """What you run: the model that is given, on the data that is given. No seeds in here."""
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=NOISE,
        max_grad_norm=max_grad_norm,
    )
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def run(records=RECORDS):
    """What you claim to run, on this many records (canaries add some)."""
    batches = -(-records // BATCH)
    return bs.DPSGD(noise_multiplier=NOISE, sample_rate=1 / batches, steps=EPOCHS * batches)
