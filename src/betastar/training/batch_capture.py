"""Captures the batches that a training loop runs its model and criterion on, by hooks, so that the loop stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from betastar.training.checks.loop_checks import require_arguments, require_model_output, require_precision
from betastar.training.checks.step_checks import same_contents
from betastar.training.gradients.side_effects import Draws, GeneratorStates
from betastar.training.opacus.adapter import OpacusAdapter, loss_of
from betastar.training.records import Records
from betastar.training.source import Source

#: The loss of a batch, called with the output of the model and the target.
Criterion: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True)
class CapturedBatch:
    """The records of a forward pass, and the random numbers that it has drawn."""

    records: Records
    draws: Draws


class BatchCapture:
    """Keeps the batches of the forward passes since the last step.

    Parameters
    ----------
    adapter : OpacusAdapter
        The model that is trained.
    criterion : callable
        The loss that the loop calls, or wraps if it is a plain function.
    source : Source
        The data set.
    listening : callable
        Returns whether a forward pass belongs to the training. A pass in evaluation mode or without gradients never does.

    Attributes
    ----------
    criterion : callable
        The loss to call in the loop. It is the criterion itself if that is a module.
    """

    def __init__(
        self, adapter: OpacusAdapter, criterion: Criterion, source: Source, listening: Callable[[], bool] = lambda: True
    ) -> None:
        self._adapter, self._source, self._listening = adapter, source, listening
        self._weights: list[Tensor] = []  # the weights of the forward passes since the last step
        self._seen: tuple[tuple[Any, ...], dict[str, Any], Any] | None = None  # arguments and output of the last forward pass
        self._before: GeneratorStates | None = None  # of the last forward pass
        self._draws: Draws | None = None
        self._batches: list[tuple[CapturedBatch, list[int]]] = []  # each with the versions that its tensors had
        self._handles = [
            adapter.outer.register_forward_pre_hook(self._sees_model),
            adapter.outer.register_forward_hook(self._saw_model, with_kwargs=True),
        ]
        self.criterion: Criterion = criterion
        loss = loss_of(criterion)
        if isinstance(loss, nn.Module):
            self._handles.append(loss.register_forward_hook(self._saw_loss, with_kwargs=True))
            return

        def watched(*args: Any, **kwargs: Any) -> Tensor:
            value = criterion(*args, **kwargs)
            self._saw_loss(None, args, dict(kwargs), value)
            return value

        self.criterion = watched

    @property
    def attached(self) -> bool:
        """Whether batches are captured."""
        return bool(self._handles)

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _training(self) -> bool:
        """Whether a forward pass at this moment belongs to the training."""
        here = self.attached and not self._adapter.quiet and self._listening()
        return here and self._adapter.outer.training and torch.is_grad_enabled()

    def _sees_model(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._training():
            self._before = GeneratorStates.now(self._adapter.device)

    def _saw_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._training():
            require_precision(self._adapter.parameters)
            self._seen = (args, kwargs, output)
            if self._before is not None:
                self._draws = Draws(self._before, GeneratorStates.now(self._adapter.device))

    def _saw_loss(self, module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor) -> None:
        if not self._training() or self._seen is None:
            return
        given = list(args) + [kwargs.pop(name) for name in ("input", "target") if name in kwargs]
        if kwargs or len(given) > 2:
            raise ValueError(
                "criterion must be called with the model's output and the target only: nothing else can be repeated."
            )
        inputs, named, output = self._seen
        require_model_output(given[0] if given else None, output)
        batch = Records(inputs, given[1] if len(given) > 1 else None, named, self._source.shared).detach()
        require_arguments(batch, self._source)
        assert self._draws is not None
        self._batches.append((CapturedBatch(batch, self._draws), batch.versions()))
        self._seen, self._before, self._draws = None, None, None
        if not self._weights:
            self._weights = self._adapter.contents()

    def take(self) -> list[CapturedBatch]:
        """Hand over the batches since the last step, and forget them.

        Raises
        ------
        RuntimeError
            If there are none, or if a batch or the weights were changed since the forward pass.
        """
        seen, self._batches = self._batches, []
        weights, self._weights = self._weights, []
        if not seen:
            raise RuntimeError(
                "the monitor saw no forward pass with its criterion before optimizer.step(): call the very module that was "
                "passed as criterion, and not another one of its kind; if the criterion is a plain function, call the watched "
                "one in the loop instead (monitor.criterion, optimizer.gap_clipping.criterion)."
            )
        if any(batch.records.versions() != versions for batch, versions in seen):
            raise RuntimeError(
                "the batch was changed between the forward pass and optimizer.step(): its gradients cannot be computed again."
            )
        if not same_contents(weights, self._adapter.tensors()):
            raise RuntimeError(
                "the weights or buffers of the model were changed between the forward pass and optimizer.step(): the gradients "
                "belong to the earlier ones."
            )
        return [batch for batch, _ in seen]


def too_many(number: int) -> RuntimeError:
    """The error for several forward passes before one step."""
    return RuntimeError(
        f"the monitor saw {number} forward passes before optimizer.step(): a step on sampled records has one "
        "batch (for several physical ones use BatchMemoryManager; evaluate under torch.no_grad())."
    )
