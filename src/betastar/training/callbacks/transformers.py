"""A callback for the Trainer of Hugging Face: adds the figures of a monitor to its logs."""

from __future__ import annotations

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from betastar.training.opacus.monitor import AttributeMonitor


class MonitorCallback(TrainerCallback):
    """Adds the figures of a monitor to the logs of a Trainer.

    Parameters
    ----------
    monitor : AttributeMonitor
        A monitor of the model, optimizer and loader that the Trainer trains with.

    Notes
    -----
    Pass it to the trainer: `Trainer(..., callbacks=[MonitorCallback(monitor)])`.
    """

    def __init__(self, monitor: AttributeMonitor) -> None:
        self.monitor = monitor

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """Clear gradients. The Trainer calls this."""
        self.monitor.optimizer.zero_grad()  # the Trainer clears the model's gradients only, and Opacus keeps more
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Add the figures of the last step to the logs. The Trainer calls this."""
        if self.monitor.steps:
            figures = self.monitor.metrics()
            if logs is not None:
                logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)
