"""NextTokenLoss: the loss of a language model as a mean over texts, which differential privacy needs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from betastar import validation

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
