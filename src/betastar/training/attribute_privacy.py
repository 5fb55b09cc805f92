"""make_attribute_private: DP-SGD whose risk of attribute inference is a number that one picks before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader

from betastar import validation
from betastar.calibrate import Target, plan
from betastar.threats import FARTHEST
from betastar.training.batch_capture import Criterion
from betastar.training.batch_samplers import EpochSampler
from betastar.training.gap_clipping import GapClipping
from betastar.training.opacus.adapter import OpacusAdapter
from betastar.training.records import Records, pair
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source


def make_attribute_private(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: DataLoader[Any],
    criterion: Criterion,
    secret: Secret | Sequence[Secret],
    noise_multiplier: float,
    max_grad_norm: float | list[float],
    gap: float | Sequence[float] | None = None,
    bayes_security: float | Sequence[float] | None = None,
    epochs: int | None = None,
    engine: PrivacyEngine | None = None,
    clipping: str = "flat",
    loss_reduction: str = "mean",
    noise_generator: torch.Generator | None = None,
    poisson_sampling: bool | None = None,
    split: Callable[[Any], Records] = pair,
    memory: int | None = None,
) -> tuple[GradSampleHooks, DPOptimizer, DataLoader[Any]]:
    """Make a training private, as `make_private` of Opacus does, and keep the values of a secret close together at every step.

    Each sampled record's gradient is pulled towards its mean over the values of the secret, so that the gradients of two values
    are never farther apart than a gap. The training loop stays as it is.

    Parameters
    ----------
    module, optimizer, data_loader : objects
        As in `make_private`.
    criterion : callable
        The loss that the training loop calls as `criterion(model(inputs), target)`. If it is a plain function and not a module,
        the loop has to call `optimizer.gap_clipping.criterion` in its place.
    secret : Secret or sequence of Secret
        The sensitive attribute. Several secrets have a gap each; `Secret.joint` protects several together.
    noise_multiplier, max_grad_norm : float
        As in `make_private`.
    gap : float or sequence of float, optional
        The largest distance between two values, in clipping norms, between 0 and 2. With 2 the training is plain DP-SGD. With 0
        the model learns nothing from the attribute.
    bayes_security : float or sequence of float, optional
        Instead of a gap: the β* against attribute inference that holds after so many epochs. The gap is calibrated to it.
    epochs : int, optional
        The number of epochs that belongs to `bayes_security`.
    engine : PrivacyEngine, optional
        The engine whose accountant counts the steps; by default a new one with the accountant of betastar.
    clipping, loss_reduction, noise_generator : objects
        As in `make_private`.
    poisson_sampling : bool, optional
        As in `make_private`: whether Opacus replaces what the loader does by Poisson sampling. By default it does, unless
        `private_loader` made the loader.
    split : callable
        Turns a batch of the loader into `Records`, if batches are not (inputs, target, ...).
    memory : int, optional
        The number of bytes that measuring may take beyond a step of Opacus: copies of weights for the checks, and passes over
        variants. By default, it is up to 640 MiB, or up to 1 GiB if all values of one record need it. Code of
        libraries that has to be loaded, about 60 MiB, is not counted.

    Returns
    -------
    tuple
        The model, the optimizer and the loader. `optimizer.gap_clipping` is a `GapClipping`, which says what is promised.

    Raises
    ------
    TypeError
        If an argument is of a wrong type, or if not exactly one of gap and bayes_security is given.
    ValueError
        If an argument is not allowed, if secrets overlap, or if the training cannot be clipped; the message says why.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from betastar.training import Secret, make_attribute_private
    >>> x = torch.randn(40, 3)
    >>> x[:, 1] = (x[:, 1] > 0).float()
    >>> module, criterion = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()
    >>> model, optimizer, loader = make_attribute_private(
    ...     module=module,
    ...     optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(TensorDataset(x, torch.arange(40) % 2), batch_size=10),
    ...     criterion=criterion,
    ...     secret=Secret.column(1, values=[0.0, 1.0], name="flag"),
    ...     noise_multiplier=2.0,
    ...     max_grad_norm=1.0,
    ...     gap=0.1,
    ... )
    >>> for inputs, target in loader:
    ...     optimizer.zero_grad()
    ...     criterion(model(inputs), target).backward()
    ...     optimizer.step()
    >>> optimizer.gap_clipping
    GapClipping('flag': 0.1, 4 steps)
    >>> bool(optimizer.gap_clipping.risk().bayes_security.lower > 0.98)
    True
    """
    secrets = [secret] if isinstance(secret, Secret) else list(secret)
    if not secrets or not all(isinstance(one, Secret) for one in secrets):
        raise TypeError(f"secret must be a Secret or several of them, got {secret!r}.")
    _refuse_overlap(secrets)
    if not callable(criterion):
        raise TypeError(f"criterion must be callable, got {criterion!r}.")
    gaps, targets = _wishes(secrets, gap, bayes_security, epochs)
    engine = PrivacyEngine(accountant="betastar") if engine is None else engine
    if poisson_sampling is None:
        poisson_sampling = not isinstance(data_loader.batch_sampler, EpochSampler)
    model, private, loader = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=data_loader,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        clipping=clipping,
        loss_reduction=loss_reduction,
        noise_generator=noise_generator,
        poisson_sampling=poisson_sampling,
    )
    adapter = OpacusAdapter(model, private, loader, accountant=engine.accountant)
    if targets:
        run = adapter.drawn().scheme.run(noise_multiplier, validation.whole("epochs", epochs) * len(loader))
        gaps = [plan(attribute=target, run=run).gap for target in targets]
    source = Source(loader.dataset, loader.collate_fn, split, adapter.device)
    private.gap_clipping = GapClipping(adapter, criterion, secrets, gaps, source, memory)
    return model, private, loader


def _wishes(
    secrets: list[Secret],
    gap: float | Sequence[float] | None,
    bayes_security: float | Sequence[float] | None,
    epochs: int | None,
) -> tuple[list[float], list[Target]]:
    """The gap of each secret, or the target of each from which the gap follows; one of the two lists is empty."""
    if (gap is None) == (bayes_security is None):
        raise TypeError(f"give gap, or bayes_security with epochs, not both: got gap={gap!r}, bayes_security={bayes_security!r}.")
    if (bayes_security is None) != (epochs is None):
        raise TypeError(f"epochs belongs to bayes_security, and to it only: got {epochs!r} with {bayes_security!r}.")
    gaps = [] if gap is None else _one_each("gap", gap, secrets)
    for value in gaps:
        validation.numbers("gap", value, "between 0 and 2 (units of the clipping norm)", low=0.0, high=FARTHEST)
    wanted = [] if bayes_security is None else _one_each("bayes_security", bayes_security, secrets)
    return gaps, [Target(bayes_security=value) for value in wanted]


def _refuse_overlap(secrets: list[Secret]) -> None:
    """Refuse secrets that are not independent parts of a record: changing the value of one would change another."""
    seen: set[object] = set()
    for number, one in enumerate(secrets):
        if one.name in [other.name for other in secrets[:number]]:
            raise ValueError(f"secret must be several with different names, got {[other.name for other in secrets]}.")
        places = one.places()
        if len(secrets) > 1 and (places is None or places & seen):
            what = "is a function of the whole record" if places is None else "shares columns with another one"
            raise ValueError(
                f"secret must be several in different places of a record, but {one.name!r} {what}; use Secret.joint."
            )
        seen |= places or set()


def _one_each(name: str, given: float | Sequence[float], secrets: list[Secret]) -> list[float]:
    """One number for each secret."""
    numbers: list[float] = list(given) if np.ndim(given) else [given] * len(secrets)  # type: ignore[arg-type, list-item]
    if len(numbers) != len(secrets):
        raise ValueError(f"{name} must be one number, or one for each of the {len(secrets)} secrets, got {given!r}.")
    return numbers
