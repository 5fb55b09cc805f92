"""AttributeMonitor: measures attribute-inference risk beside a training loop with Opacus. The loop stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import DataLoader

from betastar.training import preparing
from betastar.training.gradients.record_gradients import apart
from betastar.training.gradients.side_effects import Draws, GeneratorStates, GradientError, restored
from betastar.training.gradients.variant_gradients import VariantGradients
from betastar.training.measurement import AttributeMeasurement, checked_options
from betastar.training.opacus.adapter import OpacusAdapter, loss_of
from betastar.training.records import Records, pair
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source
from betastar.training.writers import Writer

#: The loss of a batch, called with the output of the model and the target.
Criterion: TypeAlias = Callable[..., Tensor]
NOT_SEEN = (
    "the monitor saw no call of its criterion with what the model returned before optimizer.step(). Call the very module that "
    "was passed as criterion, or monitor.criterion(model(x), y) if it is a plain function; what lies in between belongs into a "
    "function that is passed as criterion."
)


class Hook:
    """A hook that a copy of the model shares and that then does nothing, as it is called for another module."""

    def __init__(self, owner: object, call: Callable[..., None] | None) -> None:
        self._owner, self._call = owner, call

    def __call__(self, owner: object, *args: Any) -> None:
        if owner is self._owner and self._call is not None:
            self._call(*args)

    def __deepcopy__(self, memo: object) -> Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (None, None)  # a model that is read from a file has no monitor


class AttributeMonitor(AttributeMeasurement):
    """Measures at each step how far the clipped gradients of a record can move when its secret takes another value.

    The distance of a record is the largest distance between its clipped gradients over two values of the secret, in units of the
    clipping norm. The distance of a step is the largest one over the records that are measured. Nothing is proved: what the loop
    does besides is not known. `PrivateTraining` proves.

    Parameters
    ----------
    model, optimizer, loader : objects
        What `make_private` of Opacus returned. What the loader does is analysed: Poisson sampling of Opacus, a loader of
        `private_loader`, or shuffling of PyTorch, of which little is known.
    criterion : callable
        The loss that the training loop calls as `criterion(model(inputs), target)`. If it is a plain function and not a module,
        the loop has to call `monitor.criterion` in its place.
    secret : Secret
        The sensitive attribute and its values.
    scope : "batch" or "dataset"
        "batch" measures the sampled records, which is cheap and gives an estimate. "dataset" measures all records at the current
        weights before each step.
    diameter : "exact" or "centroid"
        How the distance of a record is computed. "exact" compares all pairs of values. "centroid" (the paper's approximation) is
        an upper bound of it.
    every : int
        The monitor measures one step in this many. A step that is not measured takes the distance of the last measured one.
    ledger : bool or int
        Whether the leakage of each record is kept. With a number k, single records are measured in every k-th measured step
        only, which is cheaper. In batch scope, call `monitor.records(indices)` before each forward pass.
    writers : sequence of Writer
        Where the figures of each step are written.
    split : callable
        Turns a batch of the loader into `Records`, if batches are not (inputs, target, ...).
    memory : int, optional
        The number of bytes that passes over variants may take; by default up to 640 MiB, or up to 1 GiB if all values of one
        record need it.

    Raises
    ------
    TypeError, ValueError
        If an argument is not allowed, or if the training cannot be measured; the message says why.
    GradientError
        If the gradients of single records cannot be computed, or do not follow from weights and records alone.
    UnsupportedOpacus
        If the installed version of Opacus lacks a part that the monitor needs.

    Examples
    --------
    >>> import torch
    >>> from opacus import PrivacyEngine
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from betastar.training import AttributeMonitor, Secret
    >>> x = torch.randn(40, 3)
    >>> x[:, 1] = (x[:, 1] > 0).float()
    >>> module, criterion = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss()
    >>> model, optimizer, loader = PrivacyEngine().make_private(
    ...     module=module,
    ...     optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(TensorDataset(x, torch.arange(40) % 2), batch_size=10),
    ...     noise_multiplier=2.0,
    ...     max_grad_norm=1.0,
    ... )
    >>> secret = Secret.column(1, values=[0.0, 1.0], name="flag")
    >>> monitor = AttributeMonitor(model, optimizer, loader, criterion, secret)
    >>> for inputs, target in loader:
    ...     optimizer.zero_grad()
    ...     criterion(model(inputs), target).backward()
    ...     optimizer.step()
    >>> monitor
    AttributeMonitor('flag', 4 steps, batch scope)
    >>> bool(monitor.risk().bayes_security.lower > monitor.membership().bayes_security.upper)
    True
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loader: DataLoader[Any],
        criterion: Criterion,
        secret: Secret,
        *,
        scope: str = "batch",
        diameter: str = "exact",
        every: int = 1,
        ledger: bool | int = False,
        writers: Sequence[Writer] = (),
        split: Callable[[Any], Records] = pair,
        memory: int | None = None,
    ) -> None:
        options = checked_options(secret, scope, diameter, every, ledger)
        if not callable(criterion):
            raise TypeError(f"criterion must be callable, got {criterion!r}.")
        self._adapter = OpacusAdapter(model, optimizer, loader)
        self._loss = loss_of(criterion)
        #: Where the criterion's argument is in the output, for each of its calls; not known before the first one.
        self._parts: list[tuple[Any, ...]] = []
        source = Source(loader.dataset, loader.collate_fn, split, self._adapter.device)
        preparing.require_precision(self._adapter.parameters)
        preparing.keep_freed_memory()
        room = None if memory is None else preparing.room_for_passes(memory, 0)
        if scope == "dataset":
            with restored(self._adapter.module):
                _require_fixed_records(source)
        made = preparing.variants_of(
            self._adapter, source, self._total_loss, secret, diameter, scope, room, self._require_single_records
        )
        self._variants = made.gradients
        super().__init__(secret, source, made.distances, writers=writers, **options)
        self._indices: Tensor | None = None
        self._before: GeneratorStates | None = None
        self._fresh, self._target = False, None  # whether no loss of that pass was computed yet, and the target of the first
        self._seen: tuple[tuple[Any, ...], dict[str, Any], Any, Draws] | None = None  # the last forward pass
        self._batches: list[tuple[Records, Draws]] = []  # those since the last step whose loss was computed
        self._others, self._left_out = False, False  # calls of the criterion with something else than the model returned
        self._trained = self._adapter.parameters
        self._attach(criterion)

    # ------------------------------------------------------------------ listening to the loop

    def _attach(self, criterion: Criterion) -> None:
        outer, inner = self._adapter.outer, self._adapter.optimizer.original_optimizer
        self._handles: list[Any] = [
            outer.register_forward_pre_hook(Hook(outer, self._sees_model)),
            outer.register_forward_hook(Hook(outer, self._saw_model), with_kwargs=True),
            inner.register_step_pre_hook(Hook(inner, self._stepping)),
        ]
        #: The loss to call in the training loop if the criterion is a plain function; a module is returned as it is.
        self.criterion: Criterion = criterion
        if isinstance(self._loss, nn.Module):
            self._handles.append(self._loss.register_forward_hook(Hook(self._loss, self._saw_loss), with_kwargs=True))
            return

        def heard(*args: Any, **kwargs: Any) -> Tensor:
            value = criterion(*args, **kwargs)
            self._saw_loss(args, dict(kwargs), value)
            return value

        self.criterion = heard

    def detach(self) -> None:
        """Stop measuring. The figures of the steps so far stay."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen = [], None

    def _sees_model(self, args: tuple[Any, ...]) -> None:
        if self._adapter.trains:
            self._before = GeneratorStates.now(self._adapter.device)

    def _saw_model(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._adapter.trains and self._before is not None:
            self._seen = (args, kwargs, output, Draws(self._before, GeneratorStates.now(self._adapter.device)))
            self._fresh = True

    def _saw_loss(self, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor) -> None:
        if not self._adapter.trains or self._seen is None:
            return
        given = list(args) + [kwargs.pop(name) for name in ("input", "target") if name in kwargs]
        inputs, named, output, draws = self._seen
        place = _place(given[0] if given else None, output)
        if place is None:  # of another model, or a term that cannot be repeated
            self._others = self._others or _follows_from(given[0] if given else None, output)
            return
        if kwargs or len(given) > 2:
            raise ValueError(
                "criterion must be called with the model's output and the target only: nothing else can be repeated."
            )
        target = given[1] if len(given) > 1 else None
        if self._fresh:
            self._target, self._parts = target, [place]
            batch = Records(inputs, target, named, self._source.shared).copied()
            self._batches.append((batch, draws))
            self._fresh = False
        elif self._target is target or _is_copy(target, self._target):
            self._parts.append(place)  # another head, or another term, of the same pass
        else:
            self._others = True

    def _stepping(self, *args: Any) -> None:
        """Measure and record a step that the optimizer is about to take, at the weights that the gradients belong to."""
        batches, self._batches, self._seen = self._batches, [], None
        indices, self._indices = self._indices, None
        if not batches:
            raise RuntimeError(NOT_SEEN)
        self._left_out, self._others = self._left_out or self._others, False
        if self.due:
            preparing.require_precision(self._adapter.parameters)
            for number, (batch, draws) in enumerate(batches):
                with self._variants.dropout_of(batch, draws) as numbered:
                    known = indices if indices is not None and len(batches) == 1 else None
                    if known is not None and len(known) != len(batch):
                        raise ValueError(
                            f"indices must be one for each of the {len(batch)} records of the batch, got {len(known)}."
                        )
                    self.measure(numbered, known, first=not number)
        self.record(self._adapter.drawn(), self._adapter.noise_multiplier())

    def records(self, indices: ArrayLike | torch.Tensor) -> None:
        """Tell the ledger which records the coming batch holds. In batch scope, call this before each forward pass.

        Parameters
        ----------
        indices : sequence of int
            The numbers of the records in the data set, in the order of the batch.

        Raises
        ------
        ValueError
            If the monitor keeps no ledger, or if the data set has no such record.
        """
        if self.ledger is None:
            raise ValueError("the monitor keeps no ledger: make it with ledger=True.")
        numbers = torch.as_tensor(indices).flatten()
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self._source):
            raise ValueError(f"indices must be between 0 and {len(self._source) - 1}, got {numbers.tolist()[:5]}.")
        self._indices = numbers

    @property
    def optimizer(self) -> Any:
        """The optimizer that the monitor watches."""
        return self._adapter.optimizer

    @property
    def label(self) -> str:
        """What kind of statement the figures are. It belongs next to each of them."""
        notes = [super().label]
        if len(self._parts) > 1 and self.steps:
            notes.append(f"the loop calls the criterion {len(self._parts)} times a pass: distances are those of the plain sum")
        if self._left_out:
            notes.append("the loop calls the criterion with other tensors or targets, too: distances are without these calls")
        if {id(p) for p in self._trained} != {id(p) for p in self._adapter.parameters}:
            notes.append("layers were frozen or unfrozen since the monitor was made: distances follow from then on")
        return "; ".join(notes)

    # ------------------------------------------------------------------ the loss

    def _total_loss(self, output: Any, target: Any, rows: int) -> Tensor:
        """The sum of the records' losses, as the optimizer's reduction has it."""
        total = torch.zeros((), device=self._adapter.device)
        self._parts = self._parts or [self._first_place(output, target)]
        for place in self._parts:
            loss = self._loss(_part(output, place), target)
            if not isinstance(loss, Tensor) or loss.ndim > 1 or (loss.ndim == 1 and len(loss) != rows):
                shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise ValueError(f"criterion must give one loss, or one for each record, got shape {shape} for {rows} records.")
            total = total + (loss.sum() if loss.ndim else loss * rows if self._adapter.loss_reduction == "mean" else loss)
        return total

    def _first_place(self, output: Any, target: Any) -> tuple[Any, ...]:
        """Before the loop has called the criterion: the first part of an output that it takes."""
        for place in ((), *_tensors_within(output)):
            with suppress(Exception), torch.no_grad():
                self._loss(_part(output, place), target)
                return place
        return ()

    def _require_single_records(self, records: Records, variants: VariantGradients) -> None:
        """Refuse a model or loss whose gradients are not sums of gradients of single records, as Opacus takes them to be."""
        parts = self._adapter.module.modules()
        padded = {id(part.weight) for part in parts if isinstance(part, nn.Embedding) and part.padding_idx is not None}
        parameters = [p for p in self._adapter.parameters if id(p) not in padded]
        own, total = variants.own(records), torch.zeros(())
        try:
            with torch.enable_grad(), self._adapter.silence():
                for i in range(len(records)):
                    one = records.take([i])
                    total = total + self._total_loss(variants.output(one), one.target, 1)
                wanted = torch.autograd.grad(total, parameters, materialize_grads=True)
        except (RuntimeError, ValueError) as problem:
            raise ValueError(
                f"the model or the criterion cannot be run on one record alone ({problem}): a model that mixes records has "
                "no gradient of one record (batch norm: use group norm or layer norm)."
            ) from problem
        given = own.totals(torch.ones_like(own.norms))
        made = {p: given[p].reshape(p.shape).to(p.dtype) for p in parameters}
        distance = apart(made, dict(zip(parameters, wanted, strict=True)))
        if distance > 1e-2 * float(own.norms.sqrt().sum()) + 1e-6:
            raise GradientError(
                "the sum of the gradients of single records is not that of the batch: a model or a criterion that mixes records "
                "(class weights with reduction 'mean': use 'sum' and loss_reduction='sum'), another reduction than the optimizer "
                f"assumes, {self._adapter.loss_reduction!r} (loss_reduction of make_private), or a weight that is used outside "
                "of its module's forward pass, which Opacus leaves out."
            )


def _place(given: object, output: Any) -> tuple[Any, ...] | None:
    """Where a part of an output is: keys that lead to it, none if it is the whole; None if it is no part of the output."""
    if given is output or _is_copy(given, output):
        return ()
    items = output.items() if isinstance(output, Mapping) else enumerate(output) if isinstance(output, list | tuple) else ()
    for key, part in items:
        found = _place(given, part)
        if found is not None:
            return (key, *found)
    return None


def _part(output: Any, place: tuple[Any, ...]) -> Any:
    """The part of an output at a place."""
    for key in place:
        output = output[key]
    return output


def _tensors_within(output: Any) -> list[tuple[Any, ...]]:
    """Where the tensors of an output are."""
    if isinstance(output, Tensor):
        return [()]
    items = output.items() if isinstance(output, Mapping) else enumerate(output) if isinstance(output, list | tuple) else ()
    return [(key, *place) for key, part in items for place in _tensors_within(part)]


def _follows_from(given: object, output: Any) -> bool:
    """Whether something is computed from an output of the model, as far as its graph of gradients tells."""
    sources = {_part(output, place).grad_fn for place in _tensors_within(output)} - {None}
    if not isinstance(given, Tensor) or not sources:
        return True  # not known
    seen: set[Any] = {None}
    left: list[Any] = [given.grad_fn]
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += [one for one, _ in node.next_functions]
    return bool(seen & sources)


def _is_copy(given: object, output: object) -> bool:
    """Whether a tensor is another one as hooks or a copy of the model pass it on."""
    if not isinstance(given, Tensor) or not isinstance(output, Tensor):
        return False
    alike = (given.shape, given.dtype) == (output.shape, output.dtype)
    return alike and torch.equal(torch.nan_to_num(given), torch.nan_to_num(output))


def _require_fixed_records(source: Source) -> None:
    """Refuse a data set that gives another record when it is read again."""
    places = preparing.spread(source)
    one, again = source.read(places).rows(), source.read(places).rows()
    if any(not torch.equal(torch.nan_to_num(one[key]), torch.nan_to_num(again[key])) for key in one):
        raise ValueError(
            "loader has a data set that draws random numbers (augmentation); dataset scope needs the same records each time."
        )
