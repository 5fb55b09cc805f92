"""A callback for the Trainer of Hugging Face: adds a monitor's figures to its logs and stops when the budget is spent."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from betastar.training.monitor import AttributeMonitor


class MonitorCallback(TrainerCallback):
    """Trainer(..., callbacks=[MonitorCallback(monitor)])."""

    def __init__(self, monitor: AttributeMonitor) -> None:
        self.monitor = monitor

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.monitor.optimizer.zero_grad()  # the Trainer clears the model's gradients only, Opacus keeps more
        if not self.monitor.may_step():
            control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if len(self.monitor.history):
            figures = self.monitor.metrics()
            if logs is not None:
                logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)
