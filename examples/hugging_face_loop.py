"""The Trainer of Hugging Face with Opacus: how much does fine-tuning reveal about one word of each text?

The data are synthetic: 160 texts of eight tokens, the second of which is one of four names. The name is the secret. The model is
a small BERT with random weights. A callback adds what is measured to the logs of the Trainer. It is measured on the sampled
texts, so that it is an estimate, and no guarantee.
"""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from betastar.training import AttributeMonitor, Secret, by_name

NAMES = [11, 12, 13, 14]
LENGTH = 8


class Texts(Dataset[dict[str, Tensor]]):
    """Texts as dictionaries. Opacus needs the numbers of positions, one row for each text."""

    def __init__(self, number: int = 160) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(20, 60, (number, LENGTH), generator=generator)
        self.ids[:, 1] = torch.tensor(NAMES)[torch.arange(number) % len(NAMES)]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.ids[index]
        return {"input_ids": ids, "position_ids": torch.arange(LENGTH), "labels": (ids[2] > 40).long()}


class Loss(nn.Module):
    """The loss of the logits, one text at a time."""

    def forward(self, output: Any, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.logits, labels)


class PrivateTrainer(Trainer):  # type: ignore[misc]
    """Trains with the loader that Opacus made, and calls the criterion that the monitor listens to."""

    def __init__(self, loader: DataLoader[Any], criterion: nn.Module, **options: Any) -> None:
        super().__init__(**options)
        self.private_loader, self.criterion = loader, criterion

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.private_loader

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
        labels = inputs["labels"]
        return self.criterion(model(**{name: value for name, value in inputs.items() if name != "labels"}), labels)


class MonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Adds the figures of a monitor to the logs."""

    def __init__(self, monitor: AttributeMonitor) -> None:
        self.monitor = monitor

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.monitor.optimizer.zero_grad()  # the Trainer clears the model's gradients only, and Opacus keeps more

    def on_log(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.monitor.steps:
            state.log_history[-1].update(self.monitor.metrics())


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "initializer_range": 0.3,
    }
    module = BertForSequenceClassification(BertConfig(vocab_size=60, max_position_embeddings=LENGTH, num_labels=2, **sizes))
    module.train()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.AdamW(module.parameters(), lr=1e-3),
        data_loader=DataLoader(Texts(), batch_size=16),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    criterion = Loss()
    secret = Secret.column(1, values=NAMES, name="name", argument="input_ids")
    monitor = AttributeMonitor(model, optimizer, loader, criterion, secret, split=by_name())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=20,
            logging_steps=5,
            max_grad_norm=0.0,  # Opacus clips
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer.original_optimizer, lambda step: 1.0)
        callbacks = [MonitorCallback(monitor)]
        trainer = PrivateTrainer(
            loader, criterion, model=model, args=arguments, optimizers=(optimizer, schedule), callbacks=callbacks
        )
        trainer.train()
    name = "privacy/batch/bayes_security_attribute"
    logged = [entry[name] for entry in trainer.state.log_history if name in entry]
    print(f"The Trainer logged β* ≈ {logged[-1]:.4f} for the name after {len(monitor.distances)} steps.")
    print(monitor)


if __name__ == "__main__":
    main()
