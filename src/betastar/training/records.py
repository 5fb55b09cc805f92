"""Records as a model and its criterion see them: the arguments of the model and the target, with one row for each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from betastar import validation

#: The key of the target among the arguments of a record, next to positions and names.
TARGET = "target of the criterion"
#: What helps whose batches are not (inputs, target).
SPLIT = (
    "pass split= to say which parts of a batch the model and the criterion get, as in split=lambda batch: Records((table, "
    "tokens), target) for a model with two inputs, or split=by_name() for dictionaries with labels"
)


@dataclass(frozen=True)
class Records:
    """Some records, as the training loop gives them to `model(*inputs, **named)` and `criterion(output, target)`.

    Attributes
    ----------
    inputs : tuple
        The positional arguments of the model.
    target : object
        The target of the criterion.
    named : dict
        The keyword arguments of the model.
    shared : frozenset
        Positions and names of arguments that are the same for all records, so that their rows do not belong to records.
    places : Tensor, optional
        The places of these records in a batch that they were taken out of, if the records of that batch were numbered.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import Records
    >>> records = Records((torch.zeros(4, 3),), torch.arange(4))
    >>> len(records)
    4
    >>> records.take([1, 3]).target
    tensor([1, 3])
    """

    inputs: tuple[Any, ...]
    target: Any = None
    named: dict[str, Any] = field(default_factory=dict)
    shared: frozenset[int | str] = frozenset()
    places: Tensor | None = None

    def arguments(self) -> dict[int | str, Any]:
        """Give every argument by its position or name, and the target.

        Returns
        -------
        dict
            The target has the key `TARGET`.
        """
        arguments: dict[int | str, Any] = dict(enumerate(self.inputs))
        arguments.update(self.named)
        return arguments | {TARGET: self.target}

    def rows(self) -> dict[int | str, Tensor]:
        """Give the arguments that have one row for each record.

        Returns
        -------
        dict
            Tensors by their position or name.
        """
        return {k: v for k, v in self.arguments().items() if isinstance(v, Tensor) and v.ndim and k not in self.shared}

    def __len__(self) -> int:
        for value in self.rows().values():
            return int(value.shape[0])
        raise TypeError(f"the records hold no tensor whose first dimension counts them; {SPLIT}.")

    def changed(self, change: Callable[[int | str, Any], Any]) -> Records:
        """Change each argument and the target.

        Parameters
        ----------
        change : callable
            Maps the position or name of an argument, and the argument, to another one.

        Returns
        -------
        Records
            The changed records.
        """
        made = {key: change(key, value) for key, value in self.arguments().items()}
        target = made.pop(TARGET)
        return replace(
            self,
            inputs=tuple(made[i] for i in range(len(self.inputs))),
            target=target,
            named={name: made[name] for name in self.named},
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Records:
        """Change each tensor that has one row for each record.

        Parameters
        ----------
        change : callable
            Maps a tensor to another one.

        Returns
        -------
        Records
            The changed records.

        Raises
        ------
        ValueError
            If an argument has another number of rows.
        """
        number, mine = len(self), self.rows()

        def one(key: int | str, value: Any) -> Any:
            if key not in mine:
                return value
            if len(value) != number:
                raise ValueError(
                    f"argument {key!r} has {len(value)} rows for {number} records: each argument must have one row for each "
                    "record, or be the same for all records."
                )
            return change(value)

        return self.changed(one)

    def take(self, index: slice | Sequence[int] | Tensor) -> Records:
        """Take some of the records.

        Parameters
        ----------
        index : slice, sequence of int or Tensor
            Which ones.

        Returns
        -------
        Records
            These records.
        """
        taken = self.map(lambda tensor: tensor[index])
        return taken if self.places is None else replace(taken, places=self.places[index])

    def numbered(self) -> Records:
        """Number the records, so that it stays known which ones were taken out.

        Returns
        -------
        Records
            The same records with their `places`.
        """
        return replace(self, places=torch.arange(len(self)))

    def repeat(self, times: int) -> Records:
        """Repeat each record.

        Parameters
        ----------
        times : int
            How often.

        Returns
        -------
        Records
            The copies of a record stand one after the other, not numbered.
        """
        return replace(self.map(lambda tensor: tensor.repeat_interleave(times, dim=0)), places=None)

    def to(self, device: torch.device) -> Records:
        """Move all tensors to a device.

        Parameters
        ----------
        device : torch.device
            The device.

        Returns
        -------
        Records
            The moved records.
        """
        return self.changed(lambda _, value: value.to(device) if isinstance(value, Tensor) else value)

    def copied(self) -> Records:
        """Copy all tensors, without the graph of gradients.

        Returns
        -------
        Records
            Records that stay as they are when these are overwritten.
        """
        return self.changed(lambda _, value: value.detach().clone() if isinstance(value, Tensor) else value)

    def get(self, argument: int | str) -> Any:
        """Give an argument of the model.

        Parameters
        ----------
        argument : int or str
            Its position or name.

        Returns
        -------
        object
            The argument.
        """
        return self.inputs[argument] if isinstance(argument, int) else self.named[argument]


def argument_of(records: Records, argument: int | str, name: str) -> Tensor:
    """The argument of the model that holds a secret. `name` is the name of the secret."""
    known = {key: value for key, value in records.arguments().items() if key != TARGET}
    if argument not in known:
        raise ValueError(
            f"the secret {name!r} is in argument {argument!r}, which the model is not called with; it is called with "
            f"{', '.join(map(repr, known))}. Say which argument holds the secret, as in Secret.column(…, argument=0). If the "
            f"model gets more than that, {SPLIT}."
        )
    if not isinstance(known[argument], Tensor):
        kind = type(known[argument]).__name__
        raise ValueError(f"the secret {name!r} is in argument {argument!r}, which is no tensor but {kind}.")
    return known[argument]


def flattened(records: Records) -> Tensor:
    """Everything that belongs to a record in one row of numbers."""
    return torch.cat([value.double().cpu().reshape(len(value), -1) for value in records.rows().values()], dim=1)


def concatenated(parts: Sequence[Records]) -> Records:
    """The records of all parts, one after the other, not numbered."""
    rows = [part.rows() for part in parts]
    whole = parts[0].changed(lambda key, value: torch.cat([some[key] for some in rows]) if key in rows[0] else value)
    return replace(whole, places=None)


def pair(batch: Any) -> Records:
    """Turn the usual batch, (inputs, target, ...), into `Records`. What follows the target is left out."""
    if not isinstance(batch, Sequence) or isinstance(batch, str | bytes) or len(batch) < 2:
        raise TypeError(f"a batch must be (inputs, target, ...), got {_shape(batch)}; {SPLIT}.")
    return Records((batch[0],), batch[1])


def by_name(target: str = "labels") -> Callable[[Any], Records]:
    """Make a `split` for batches that are dictionaries, as those of Hugging Face are.

    Parameters
    ----------
    target : str
        The entry that the criterion gets. The model gets all other entries by their names.

    Returns
    -------
    callable
        Turns a batch into `Records`.

    Raises
    ------
    TypeError
        When it is given a batch that is no dictionary, or that lacks the target.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import by_name
    >>> batch = {"input_ids": torch.zeros(4, 7), "attention_mask": torch.ones(4, 7), "labels": torch.arange(4)}
    >>> records = by_name()(batch)
    >>> list(records.named), records.target
    (['input_ids', 'attention_mask'], tensor([0, 1, 2, 3]))
    """

    def split(batch: Any) -> Records:
        if not isinstance(batch, Mapping) or target not in batch:
            raise TypeError(f"a batch must be a dictionary with the entry {target!r}, got {_shape(batch)}.")
        return Records((), batch[target], {name: value for name, value in batch.items() if name != target})

    return split


def _shape(batch: object) -> str:
    """What a batch is, in words: its type and, of a mapping, its keys."""
    keys = f" with the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
    return f"{type(batch).__name__}{keys}"


# ---- The loss of a language model as a mean over texts, which differential privacy needs.

REDUCTIONS = ("mean", "sum", "none")


class NextTokenLoss(nn.Module):
    """The loss of a causal language model: for each text the mean over its own tokens, then the mean over texts.

    Models of Hugging Face take the mean over the tokens of all texts of a batch when they are given labels. The loss of a text
    then depends on the lengths of the others, so that no part of its gradient belongs to one text alone. Call the model without
    labels, and this loss with the model's output and the labels.

    Parameters
    ----------
    reduction : "mean", "sum" or "none"
        What is done with the losses of the texts.
    ignored : int
        The label of tokens that are not predicted.

    Raises
    ------
    ValueError
        If reduction is another word.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import NextTokenLoss
    >>> labels = torch.tensor([[4, 1, 2], [4, 3, -100]])
    >>> NextTokenLoss()(torch.zeros(2, 3, 5), labels)  # each token has probability 1/5
    tensor(1.6094)
    """

    def __init__(self, reduction: str = "mean", ignored: int = -100) -> None:
        super().__init__()
        self.reduction = validation.choice("reduction", reduction, REDUCTIONS)
        self.ignored = ignored

    def forward(self, output: Any, labels: Tensor) -> Tensor:
        """Compute the loss.

        Parameters
        ----------
        output : Tensor or ModelOutput
            The logits of each position, (texts, positions, vocabulary), or an output of Hugging Face that has them.
        labels : Tensor
            The tokens of each position, (texts, positions): the model predicts them from the positions before.

        Returns
        -------
        Tensor
            One number, or with reduction "none" one for each text. A text without any label has loss 0.
        """
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        wanted = labels[:, 1:]
        each = functional.cross_entropy(logits[:, :-1].transpose(1, 2), wanted, ignore_index=self.ignored, reduction="none")
        losses = each.sum(dim=1) / (wanted != self.ignored).sum(dim=1).clamp(min=1)
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()
