"""A callback for Lightning: logs a monitor, and saves it in Lightning's checkpoints."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from betastar.training.opacus.monitor import AttributeMonitor


class MonitorCallback(Callback):
    """Logs a monitor, and saves it in the checkpoints of Lightning.

    Parameters
    ----------
    monitor : AttributeMonitor
        A monitor of the model, optimizer and loader that Lightning trains with.

    Notes
    -----
    Pass it to the trainer: `Trainer(callbacks=[MonitorCallback(monitor)])`.
    """

    def __init__(self, monitor: AttributeMonitor) -> None:
        self.monitor = monitor

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Log the figures of the step. Lightning calls this."""
        if self.monitor.steps:
            pl_module.log_dict(self.monitor.metrics(), prog_bar=True)

    def state_dict(self) -> dict[str, Any]:
        """The state of the monitor, for Lightning's checkpoint."""
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the state in a checkpoint of Lightning."""
        self.monitor.load_state_dict(state_dict)
