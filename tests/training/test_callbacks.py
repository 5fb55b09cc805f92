"""The callbacks, in the real trainers."""

from __future__ import annotations

import logging
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from betastar.training import AttributeMonitor

from .private import build, fit, private
from .test_monitor import attach

EXAMPLES = Path(__file__).parents[2] / "examples"


def plain(steps: int) -> AttributeMonitor:
    parts, criterion, monitor = attach()
    fit(parts, criterion, steps)
    return monitor


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_lightning(tmp_path: Path) -> None:
    from lightning import LightningModule, Trainer

    from betastar.training.callbacks.lightning import MonitorCallback

    class Task(LightningModule):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            parts, self.criterion, self.monitor = attach(**options)
            self.model, self._optimizer, self._loader = parts

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            return self.criterion(self.model(x), y)

        def configure_optimizers(self) -> Any:
            return self._optimizer

        def train_dataloader(self) -> Any:
            return self._loader

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    task = Task()
    trainer = Trainer(max_steps=8, max_epochs=5, callbacks=[MonitorCallback(task.monitor)], default_root_dir=tmp_path, **quiet)
    trainer.fit(task)
    np.testing.assert_allclose(task.monitor.distances, plain(8).distances, rtol=1e-5)
    logged = trainer.callback_metrics
    assert float(logged["privacy/batch/bayes_security_attribute"]) == pytest.approx(task.monitor.quick()["attribute"], rel=1e-5)
    trainer.save_checkpoint(tmp_path / "run.ckpt")

    other = Task()
    again = Trainer(max_steps=12, max_epochs=9, callbacks=[MonitorCallback(other.monitor)], default_root_dir=tmp_path, **quiet)
    again.fit(other, ckpt_path=tmp_path / "run.ckpt", weights_only=False)
    assert other.monitor.steps == 12
    np.testing.assert_allclose(other.monitor.distances[:8], task.monitor.distances, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_hugging_face(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from betastar.training.callbacks.transformers import MonitorCallback

    def train(**options: Any) -> tuple[Any, AttributeMonitor]:
        module, data, secret = build("tanh")
        noise = options.pop("noise", 1.0)
        model, optimizer, loader = private(module, data, noise=noise)
        criterion = nn.CrossEntropyLoss()
        monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, **options)

        class Private(Trainer):  # type: ignore[misc]
            def get_train_dataloader(self) -> Any:
                return loader

            def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
                return criterion(model(inputs[0]), inputs[1])

            def _prepare_inputs(self, inputs: Any) -> Any:
                return inputs

        arguments = TrainingArguments(
            output_dir=str(tmp_path), max_steps=8 if noise == 1.0 else 500, logging_steps=2, report_to=[], use_cpu=True,
            max_grad_norm=0.0, save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        )  # fmt: skip
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer.original_optimizer, lambda step: 1.0)
        trainer = Private(model=model, args=arguments, optimizers=(optimizer, schedule), callbacks=[MonitorCallback(monitor)])
        trainer.train()
        return trainer, monitor

    trainer, monitor = train()
    np.testing.assert_allclose(monitor.distances, plain(8).distances, rtol=1e-5)
    logged = [entry for entry in trainer.state.log_history if "privacy/batch/distance" in entry]
    assert logged[0]["privacy/batch/distance"] == pytest.approx(monitor.distances[1])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("name", "package"), [("lightning_loop", "lightning"), ("hugging_face_loop", "transformers")])
def test_examples(name: str, package: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(package)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    found = re.search(r"logged β\* ≈ ([.\d]+) for the (\w+) after (\d+) steps", printed)
    assert found is not None
    assert 0.0 < float(found[1]) < 1.0
    assert int(found[3]) >= 20
    assert "an estimate for the trainer's eyes only" in printed
