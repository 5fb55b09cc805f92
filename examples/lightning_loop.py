"""Lightning with Opacus: how much does a training reveal about one column of its records?

The data are synthetic: 600 records with five numbers and a flag. The flag is the secret. The task logs what is measured,
and saves it in the checkpoints of Lightning. It is measured on the sampled records, so that it is an estimate, and no guarantee.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from betastar.training import AttributeMonitor, Secret

FLAG = 5


def records(number: int = 600) -> TensorDataset:
    """Five numbers and a flag, and a label that depends on all of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(number, 6, generator=generator)
    x[:, FLAG] = (x[:, FLAG] > 0).float()
    return TensorDataset(x, (x.sum(dim=1) > 0.5).long())


class Task(LightningModule):
    """A small network. Model, optimizer and loader are those that Opacus has made private."""

    def __init__(self) -> None:
        super().__init__()
        module = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        self.model, self.private_optimizer, self.loader = PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.2),
            data_loader=DataLoader(records(), batch_size=60),
            noise_multiplier=1.2,
            max_grad_norm=1.0,
        )
        self.criterion = nn.CrossEntropyLoss()
        secret = Secret.column(FLAG, values=[0.0, 1.0], name="flag")
        self.monitor = AttributeMonitor(self.model, self.private_optimizer, self.loader, self.criterion, secret)

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        loss: Tensor = self.criterion(self.model(x), y)
        return loss

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        if self.monitor.steps:
            self.log_dict(self.monitor.metrics(), prog_bar=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["monitor"] = self.monitor.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.monitor.load_state_dict(checkpoint["monitor"])

    def configure_optimizers(self) -> Any:
        return self.private_optimizer

    def train_dataloader(self) -> Any:
        return self.loader


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    task = Task()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(task)
    logged = float(trainer.callback_metrics["privacy/batch/bayes_security_attribute"])
    print(f"Lightning logged β* ≈ {logged:.4f} for the flag after {task.monitor.steps} steps.")
    print(task.monitor)


if __name__ == "__main__":
    main()
