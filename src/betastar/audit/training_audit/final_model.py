"""What attackers of the final model see: outputs for some records, and the weights along gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from betastar.arrays import Real
from betastar.audit.training_audit.record_gradients import Criterion, Gradients
from betastar.training import Records


@torch.no_grad()
def confidences(copy: nn.Module, criterion: Criterion, records: Records) -> Real:
    """The log-confidence of the model in each record's target: minus the loss of the record."""
    output = copy(*records.inputs, **records.named)
    if isinstance(output, Tensor):
        losses = [criterion(output[i : i + 1], records.target[i : i + 1]).sum() for i in range(len(records))]
    else:  # an object that cannot be cut into records
        parts = (records.take(slice(i, i + 1)) for i in range(len(records)))
        losses = [criterion(copy(*one.inputs, **one.named), one.target).sum() for one in parts]
    return -torch.stack(losses).double().numpy()


@torch.no_grad()
def margins(copy: nn.Module, criterion: Criterion, candidates: Records) -> Real:
    """What an attacker who only asks the model sees.

    For each candidate it is the logit of the model's confidence, which is the margin of its class over the others, where there
    are two or more classes, and minus the loss otherwise.
    """
    output, target = copy(*candidates.inputs, **candidates.named), candidates.target
    classes = isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1
    if not classes or not isinstance(target, Tensor) or target.is_floating_point() or target.ndim != 1:
        return confidences(copy, criterion, candidates)
    own = output.gather(1, target[:, None])[:, 0]
    rest = output.scatter(1, target[:, None], -torch.inf).logsumexp(dim=1)
    return (own - rest).double().numpy()


def weights(gradients: Gradients, candidates: Records) -> Real:
    """What an attacker who holds the final weights sees besides: the length of each candidate's gradient, weights along it."""
    unclipped = gradients.raw(candidates).double()
    lengths = unclipped.norm(dim=1)
    own = torch.cat([p.detach().flatten() for name, p in gradients.copy.named_parameters() if name in gradients.names]).double()
    along = (unclipped @ own) / lengths.clamp(min=1e-12)
    return torch.cat([lengths.clamp(min=1e-12).log(), along]).numpy()
