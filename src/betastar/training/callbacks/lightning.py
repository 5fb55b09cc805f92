"""A Lightning callback: logs a monitor, stops when its budget is spent, and saves it in Lightning's checkpoints."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from betastar.training.monitor import AttributeMonitor


class MonitorCallback(Callback):
    """Trainer(callbacks=[MonitorCallback(monitor)])."""

    def __init__(self, monitor: AttributeMonitor) -> None:
        self.monitor = monitor

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if len(self.monitor.history):
            pl_module.log_dict(self.monitor.metrics(), prog_bar=True)
        if not self.monitor.may_step():
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.monitor.load_state_dict(state_dict)
