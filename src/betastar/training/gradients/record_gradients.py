"""Gradients of single records: their norms and their clipped sums, from one forward and backward pass over a batch.

For a layer y = Wx + b that sees the positions t of a record, with errors δ_t at its output, the gradient is Σ_t δ_t ⊗ x_t. Norms
and clipped sums follow from δ and x, so that no gradient of a single record is written out unless that is cheaper:
    ‖Σ_t δ_t ⊗ x_t‖² = Σ_{t,t'} (x_t·x_t')(δ_t·δ_t'),     Σ_records s_i ∇_i = Σ_{i,t} s_i δ_{i,t} ⊗ x_{i,t}.
Where the terms of the sum over t cancel, rounding grows with A = Σ_t ‖δ_t‖‖x_t‖ and not with the norm. So inner products are in
double precision, and a gradient counts with a norm of at least A / `CANCELLATION`.
A model that these rules do not fit is differentiated record by record (`torch.func`), or one record after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from operator import gt, mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call, grad_and_value, vjp, vmap
from torch.nn import functional
from torch.utils import _pytree as pytree

from betastar.training.records import Records

#: The terms that add up to a clipped gradient are, together, at most this times the clipping norm.
CANCELLATION = 64.0
#: This many squares are added up in single precision, whose rounding is then at most 1e-5 of a norm.
PIECE = 256

# ---- Losses of single records

SINGLE = "criterion must give one number for a single record, got shape {} for a record: take the mean over its positions."


class RecordLosses:
    """The loss of each record: what the criterion gives for this record alone.

    Parameters
    ----------
    criterion : callable
        Called as `criterion(output, target)`, with any reduction.
    """

    def __init__(self, criterion: Callable[..., Tensor]) -> None:
        self.criterion = criterion
        self._vectorized = True
        self._rows: dict[int, list[bool]] = {}  # by the number of parts of output and target, which have one row a record

    def __call__(self, output: Any, target: Any, records: int) -> Tensor:
        """One loss for each record, (records,)."""
        known = self._known(output, target)
        if known is not None:
            return known
        leaves, structure = pytree.tree_flatten((output, target))
        rows = self._rows.get(len(leaves), []) if self._rows else _counted(leaves, records)
        if not any(rows) or any(map(gt, rows, _counted(leaves, records))):
            raise ValueError("the model must give one row of output for each record, so that each record has its own loss.")

        def alone(*parts: Tensor) -> Tensor:
            given = iter(parts)
            whole = [next(given)[None] if row else leaf for leaf, row in zip(leaves, rows, strict=True)]
            return self.one(*pytree.tree_unflatten(whole, structure))

        varying = [leaf for leaf, row in zip(leaves, rows, strict=True) if row]
        if self._vectorized and records:
            try:
                return vmap(alone, randomness="different")(*varying)
            except (RuntimeError, ValueError, NotImplementedError):  # a criterion that torch.func cannot vectorize
                self._vectorized = False
        every = [alone(*(leaf[i] for leaf in varying)) for i in range(records)]
        return torch.stack(every) if every else varying[0].new_zeros(0)

    def learn(self, output: Any, target: Any, records: int) -> None:
        """See from batches of different sizes which parts of output and target have one row for each record."""
        rows = _counted(pytree.tree_leaves((output, target)), records)
        self._rows[len(rows)] = [a and b for a, b in zip(self._rows.get(len(rows), rows), rows, strict=True)]

    def one(self, output: Any, target: Any) -> Tensor:
        """The loss of one record, from an output and a target with one row."""
        loss = self.criterion(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(SINGLE.format(tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__))
        return loss.reshape(())

    def _known(self, output: Any, target: Any) -> Tensor | None:
        """The same for the usual losses of one row a record, where it takes less time."""
        made = self.criterion
        if type(made) is nn.CrossEntropyLoss and made.weight is None and isinstance(output, Tensor) and output.ndim == 2:
            if target.ndim == 1 and not target.is_floating_point() and not bool((target == made.ignore_index).any()):
                return functional.cross_entropy(output, target, reduction="none", label_smoothing=made.label_smoothing)
        elif type(made) is nn.MSELoss and isinstance(output, Tensor) and output.shape == target.shape and output.ndim:
            squares = (output - target).square().flatten(1) if output.ndim > 1 else (output - target).square()[:, None]
            return squares.sum(dim=1) if made.reduction == "sum" else squares.mean(dim=1)
        return None


def _counted(leaves: list[Any], records: int) -> list[bool]:
    """Which of some values are tensors with this many rows."""
    return [isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == records for leaf in leaves]


# ---- Layers whose weight is a matrix, seen by positions of a record


@dataclass(frozen=True)
class MatrixCall:
    """One call of a layer whose gradient is Σ_t δ_t ⊗ x_t. An embedding has tokens in place of x."""

    delta: Tensor  # (n, s, e)
    x: Tensor  # (n, s, d), or tokens (n, s)
    width: int  # the number of columns of the gradient: d, or the size of the vocabulary

    @property
    def tokens(self) -> bool:
        """Whether the layer is an embedding."""
        return self.x.ndim == 2

    def take(self, i: int) -> MatrixCall:
        """One record."""
        return MatrixCall(self.delta[i : i + 1], self.x[i : i + 1], self.width)

    @cached_property
    def _rows(self) -> Tensor | None:
        """The gradients themselves, (n, e, d), where writing them out takes less time than products of positions."""
        _, s, e = self.delta.shape
        if s == 1 or self.tokens or self.width * e * (s + 8) > 2 * s * (s + 4) * (self.width + e):
            return None
        return torch.bmm(self.delta.transpose(1, 2), self.x)

    def summed(self, scale: Tensor) -> Tensor:
        """Σ_records s_i ∇_i, (e, d), or of an embedding (vocabulary, e)."""
        if self._rows is not None:
            return torch.tensordot(scale.to(self._rows), self._rows, dims=1)
        scaled = (self.delta * scale.view(-1, 1, 1).to(self.delta)).flatten(0, 1)
        if self.tokens:
            return scaled.new_zeros(self.width, scaled.shape[1]).index_add_(0, self.x.flatten(), scaled)
        return scaled.T @ self.x.flatten(0, 1)

    def square(self) -> Tensor:
        """‖∇‖² of each record, (n,), in double precision."""
        if self._rows is not None:
            return _square(self._rows)
        return self.terms().square() if self.delta.shape[1] == 1 else inner(self, self)

    def terms(self) -> Tensor:
        """Σ_t ‖δ_t‖‖x_t‖ of each record, (n,), in double precision."""
        delta = torch.linalg.vector_norm(self.delta, dim=2, dtype=torch.float64)
        return (delta if self.tokens else delta * torch.linalg.vector_norm(self.x, dim=2, dtype=torch.float64)).sum(dim=1)

    @property
    def cancels(self) -> bool:
        """Whether a sum over positions stands for the gradient, which is not written out."""
        return self.delta.shape[1] > 1 and self._rows is None


def inner(one: MatrixCall, other: MatrixCall) -> Tensor:
    """⟨∇, ∇'⟩ of each record for two calls of layers that share a weight, (n,), in double precision."""
    if other.tokens and not one.tokens:
        return inner(other, one)
    delta, others = one.delta.double(), other.delta.double()
    if one.tokens and not other.tokens:  # an embedding and a linear layer with one weight: row t of ∇ meets column token(t)
        columns = others.gather(2, one.x[:, None, :].expand(-1, others.shape[1], -1))
        return (columns * torch.bmm(other.x.double(), delta.transpose(1, 2))).sum(dim=(1, 2))
    products = torch.bmm(delta, others.transpose(1, 2))
    if one.tokens:
        return (products * (one.x[:, :, None] == other.x[:, None, :])).sum(dim=(1, 2))
    return (products * torch.bmm(one.x.double(), other.x.double().transpose(1, 2))).sum(dim=(1, 2))


# ---- Rules of layers: from the input x and the error δ at the output to calls of a matrix, or to written gradients

#: The linear layer of Hugging Face whose weight has a row for each input. It is known by its name, as the package may be missing.
TRANSPOSED_LINEAR = "transformers.pytorch_utils.Conv1D"


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether a layer computes x W + b, where PyTorch's linear layer computes x Wᵀ + b."""
    return f"{type(module).__module__}.{type(module).__qualname__}" == TRANSPOSED_LINEAR


def is_linear(module: nn.Module) -> bool:
    """Whether a layer computes x Wᵀ + b."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def is_plain_embedding(module: nn.Module) -> bool:
    """Whether a layer looks up rows of its weight, and does nothing else to them."""
    return type(module) is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq and not module.sparse


def patches(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """What each position of a convolution's output sees, (n, positions, kernel · channels), by a strided view and one copy."""
    sizes, strides, gaps = (list(v) for v in (module.kernel_size, module.stride, module.dilation))
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        sides = module._reversed_padding_repeated_twice
        x = functional.pad(x, sides, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    elif any(module.padding):
        x = functional.pad(x, [side for one in reversed(module.padding) for side in (one, one)])
    last = x.movedim(1, -1).contiguous()  # channels last: a row of the kernel is one piece of memory
    n, *space, channels = last.shape
    each = zip(space, sizes, strides, gaps, strict=True)
    out = [(length - gap * (size - 1) - 1) // stride + 1 for length, size, stride, gap in each]
    step = last.stride()[1:-1]
    view = last.as_strided(
        (n, *out, *sizes, channels),
        (last.stride(0), *map(mul, step, strides), *map(mul, step, gaps), 1),
    )
    return view.reshape(n, -1, channels * module.weight[0, 0].numel())


def conv_matrix(module: nn.Module) -> bool:
    """Whether a convolution is a matrix seen by patches."""
    return isinstance(module, nn.Conv1d | nn.Conv2d) and type(module) in (nn.Conv1d, nn.Conv2d) and module.groups == 1


def per_channel(module: nn.Module) -> bool:
    """Whether a layer normalizes its input, and then multiplies and shifts it entry by entry."""
    return type(module) in (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def normalized(module: nn.Module, x: Tensor) -> Tensor:
    """The input of such a layer, normalized."""
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.RMSNorm):
        return functional.rms_norm(x, module.normalized_shape, eps=module.eps)
    assert isinstance(module, nn.GroupNorm)
    return functional.group_norm(x, module.num_groups, eps=module.eps)


def written_gradients(module: Any, x: Tensor, delta: Tensor) -> dict[nn.Parameter, Tensor]:
    """The gradient of each record for each trainable parameter of a layer that maps a tensor to a tensor, (n, *shape)."""
    if per_channel(module):
        kept = [1] if isinstance(module, nn.GroupNorm) else list(range(delta.ndim - len(module.normalized_shape), delta.ndim))
        over = [d for d in range(1, delta.ndim) if d not in kept]
        made = {"weight": delta * normalized(module, x), "bias": delta}
        found: dict[Any, Tensor] = {getattr(module, name, None): value for name, value in made.items()}
        return {p: value.sum(dim=over) if over else value for p, value in found.items() if p is not None and p.requires_grad}
    if conv_matrix(module):
        found = {}
        errors = delta.flatten(2)
        if module.weight.requires_grad:
            rows = torch.bmm(errors, patches(module, x))
            found[module.weight] = rows.view(len(x), len(module.weight), *module.kernel_size, -1).movedim(-1, 2)
        if module.bias is not None and module.bias.requires_grad:
            found[module.bias] = errors.sum(dim=2)
        return found
    parameters = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}
    fixed = {name: p.detach() for name, p in module.named_parameters() if name not in parameters}

    def backward(row: Tensor, error: Tensor) -> Any:
        _, back, *_ = vjp(
            lambda p: functional_call(module, {**fixed, **p}, (row[None],)), {k: p.detach() for k, p in parameters.items()}
        )
        return back(error[None])[0]

    rows = vmap(backward, randomness="different")(x, delta)
    return {parameters[name]: value for name, value in rows.items()}


class UnknownLayer(Exception):  # noqa: N818
    """The rules do not fit a model; the message says which part of it."""


@dataclass(frozen=True)
class LayerPass:
    """Norms and sums of the gradients of single records, by the rules of layers."""

    losses: Tensor  # (n,)
    matrices: dict[nn.Parameter, list[tuple[MatrixCall, Callable[[Tensor], Tensor]]]]  # each with what shapes its sum
    written: dict[nn.Parameter, Tensor]  # (n, *shape)

    @cached_property
    def squares(self) -> Tensor:
        """‖∇‖² of each record, (n,), in double precision; more where terms cancel."""
        parts = [_square(value) for value in self.written.values()]
        for calls in self.matrices.values():
            square = calls[0][0].square()
            for i, (call, _) in enumerate(calls[1:], 1):
                square = square + call.square() + 2.0 * sum(inner(call, other) for other, _ in calls[:i])
            if len(calls) > 1 or calls[0][0].cancels:
                terms = torch.stack([call.terms() for call, _ in calls]).sum(dim=0)
                square = torch.maximum(square, (terms / CANCELLATION).square())
            parts.append(square)
        return torch.stack(parts).sum(dim=0) if parts else torch.zeros_like(self.losses, dtype=torch.float64)

    @property
    def nbytes(self) -> int:
        """The number of bytes of gradients that are written out."""
        rows = [call._rows for calls in self.matrices.values() for call, _ in calls]
        return sum(value.nbytes for value in (*self.written.values(), *rows) if value is not None)

    @property
    def cancels(self) -> bool:
        """Whether gradients are sums of terms that may cancel."""
        return any(len(calls) > 1 or calls[0][0].cancels for calls in self.matrices.values())

    def sums(self, scale: Tensor) -> dict[nn.Parameter, Tensor]:
        """Σ_records s_i ∇_i for each parameter."""
        return self._sums(scale, lambda call: call, lambda value: value)

    def one(self, i: int) -> dict[nn.Parameter, Tensor]:
        """The gradient of one record."""
        return self._sums(self.losses.new_ones(1), lambda call: call.take(i), lambda value: value[i : i + 1])

    def _sums(self, scale: Tensor, of_call: Callable[..., MatrixCall], of_rows: Callable[[Tensor], Tensor]) -> dict[Any, Tensor]:
        totals = {p: torch.tensordot(scale.to(value), of_rows(value), dims=1) for p, value in self.written.items()}
        for parameter, calls in self.matrices.items():
            for call, shaped in calls:
                total = shaped(of_call(call).summed(scale))
                totals[parameter] = totals[parameter] + total if parameter in totals else total
        return totals


@dataclass(frozen=True)
class WrittenPass:
    """The same from gradients that are written out."""

    losses: Tensor
    written: dict[nn.Parameter, Tensor]  # (n, *shape)

    cancels = False

    @property
    def nbytes(self) -> int:
        """The number of bytes of the gradients, which are in memory twice while they are made."""
        return 2 * sum(value.nbytes for value in self.written.values())

    @cached_property
    def squares(self) -> Tensor:
        """‖∇‖² of each record, (n,), in double precision."""
        return torch.stack([_square(value) for value in self.written.values()]).sum(dim=0)

    def sums(self, scale: Tensor) -> dict[nn.Parameter, Tensor]:
        """Σ_records s_i ∇_i for each parameter."""
        return {p: torch.tensordot(scale.to(value), value, dims=1) for p, value in self.written.items()}

    def one(self, i: int) -> dict[nn.Parameter, Tensor]:
        """The gradient of one record."""
        return {p: value[i] for p, value in self.written.items()}


def _square(rows: Tensor) -> Tensor:
    """The squared norm of each row of written gradients, in double precision, or in single precision for each piece of it."""
    flat = rows.flatten(1)
    whole = flat.shape[1] - flat.shape[1] % PIECE
    rest = torch.linalg.vector_norm(flat[:, whole:], dim=1, dtype=torch.float64).square()
    if not whole:
        return rest
    pieces = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, PIECE)), dim=2)
    return rest + torch.linalg.vector_norm(pieces, dim=1, dtype=torch.float64).square()


# ---- The three ways to gradients of single records


class RecordGradients:
    """Computes gradients of single records of a model.

    Parameters
    ----------
    module : Module
        The model.
    losses : RecordLosses
        The loss of each record.

    Attributes
    ----------
    way : "layers", "vectorized" or "single"
        How gradients are computed: by the rules of layers, by `torch.func`, or one record after the other.
    """

    def __init__(self, module: nn.Module, losses: RecordLosses) -> None:
        self._module, self._losses = module, losses
        self.way = "layers"

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained at this moment."""
        return [p for p in self._module.parameters() if p.requires_grad]

    def run(self, records: Records) -> LayerPass | WrittenPass:
        """One forward and backward pass over some records."""
        if self.way == "layers":
            return self._by_layers(records)
        return self._vectorized(records) if self.way == "vectorized" else self._singly(records)

    def alone(self, records: Records) -> tuple[Tensor, dict[nn.Parameter, Tensor]]:
        """The loss and the gradient of one record by PyTorch's own backward pass, and nothing else."""
        parameters = self.parameters
        with torch.enable_grad():
            loss = self._losses.one(self._module(*records.inputs, **records.named), records.target)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        made = zip(parameters, found, strict=True)
        return loss.detach(), {p: torch.zeros_like(p) if g is None else g for p, g in made}

    def mix(self, records: Records) -> bool:
        """Whether the loss of the first record has a gradient, however small, at the rows of others in the output of a layer."""
        rows: list[Tensor] = []

        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            parts = (part for part in pytree.tree_leaves(output) if isinstance(part, Tensor) and part.requires_grad and part.ndim)
            rows.extend(part for part in parts if len(part) == len(records))

        with listening(units(self._module), note, lambda *_: None), torch.enable_grad():
            losses = self._losses(self._module(*records.inputs, **records.named), records.target, len(records))
            found = torch.autograd.grad(losses[0], rows, allow_unused=True) if rows else ()
        return any(gradient is not None and bool(gradient[1:].any()) for gradient in found)

    def _singly(self, records: Records) -> WrittenPass:
        every = [self.alone(records.take(slice(i, i + 1))) for i in range(len(records))]
        written = {p: torch.stack([gradient[p] for _, gradient in every]) for p in self.parameters}
        return WrittenPass(torch.stack([loss for loss, _ in every]), written)

    def _vectorized(self, records: Records) -> WrittenPass:
        names = {p: name for name, p in self._module.named_parameters() if p.requires_grad}
        trained = {name: p.detach() for p, name in names.items()}
        rows = records.rows()

        def loss(weights: dict[str, Tensor], parts: dict[Any, Tensor]) -> Tensor:
            one = records.changed(lambda key, value: parts[key][None] if key in parts else value)
            return self._losses.one(functional_call(self._module, weights, one.inputs, one.named), one.target)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            gradients, losses = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different")(trained, rows)
        return WrittenPass(losses, {p: gradients[name] for p, name in names.items()})

    def _by_layers(self, records: Records) -> LayerPass:
        seen: list[tuple[nn.Module, Tensor, int, Any]] = []

        def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not watching:  # checkpointing runs layers again in the backward pass
                return
            if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not isinstance(output, Tensor):
                raise UnknownLayer(f"{type(module).__name__} does not map one tensor to one tensor")
            if output.requires_grad:
                if inputs[0].is_floating_point() and {inputs[0].dtype, output.dtype} - {torch.float32, torch.float64}:
                    raise UnknownLayer(f"{type(module).__name__} runs in less than single precision")
                seen.append((module, inputs[0].detach(), inputs[0]._version, get_gradient_edge(output)))
            elif watching and torch.is_grad_enabled():
                raise UnknownLayer(f"{type(module).__name__} runs without gradients")

        def before(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return one_row_each(inputs, count) if is_plain_embedding(module) else inputs

        count, watching = len(records), True
        with listening(units(self._module), note, before), torch.enable_grad():
            losses = self._losses(self._module(*records.inputs, **records.named), records.target, count)
            watching = False
            edges = [edge for *_, edge in seen]
            errors = torch.autograd.grad(losses.sum(), edges, allow_unused=True) if edges else ()
        made = LayerPass(losses.detach(), {}, {})
        for (module, x, version, _), delta in zip(seen, errors, strict=True):
            if x._version != version:
                raise UnknownLayer(f"the input of {type(module).__name__} was changed after its call")
            if delta is not None:
                if len(delta) != count or len(x) != count:
                    raise UnknownLayer(f"{type(module).__name__} sees {len(x)} rows for {count} records")
                _add(made, module, x, delta)
        if made.matrices.keys() & made.written.keys():
            raise UnknownLayer("layers of different kinds share a weight")
        return made


def _add(made: LayerPass, module: Any, x: Tensor, delta: Tensor) -> None:
    """Add one call of a layer to a pass."""
    n = len(x)
    matrix: MatrixCall | None = None

    def as_is(total: Tensor) -> Tensor:
        return total

    shaped = as_is
    if is_linear(module) or is_transposed_linear(module):
        errors = delta.reshape(n, -1, delta.shape[-1])
        rows = x.reshape(n, -1, x.shape[-1])
        matrix = MatrixCall(errors, rows, rows.shape[2])
        if is_transposed_linear(module):
            matrix = MatrixCall(rows, errors, errors.shape[2])
        bias = errors.sum(dim=1)
    elif is_plain_embedding(module):
        errors = delta.reshape(n, -1, module.embedding_dim)
        if module.padding_idx is not None:
            errors = errors * (x.reshape(n, -1, 1) != module.padding_idx)
        matrix = MatrixCall(errors, x.reshape(n, -1), module.num_embeddings)
    elif conv_matrix(module):
        errors = delta.flatten(2).transpose(1, 2)
        matrix = MatrixCall(errors, patches(module, x), module.weight[0].numel())
        kernel = module.weight.shape

        def shaped(total: Tensor) -> Tensor:
            return total.view(kernel[0], *kernel[2:], kernel[1]).movedim(-1, 1)

        bias = errors.sum(dim=1)
    else:
        for parameter, rows in written_gradients(module, x, delta).items():
            made.written[parameter] = made.written[parameter] + rows if parameter in made.written else rows
        return
    if module.weight.requires_grad:
        made.matrices.setdefault(module.weight, []).append((matrix, shaped))
    shift = getattr(module, "bias", None)
    if shift is not None and shift.requires_grad:
        made.written[shift] = made.written[shift] + bias if shift in made.written else bias


def units(module: nn.Module) -> list[nn.Module]:
    """The layers that have trainable parameters of their own, which no layer inside of them has as well."""
    found = []
    for part in module.modules():
        direct = {id(p) for p in part._parameters.values() if p is not None and p.requires_grad}
        if direct and part._modules:
            direct -= {id(p) for inside in part.children() for p in inside.parameters()}
        if direct:
            found.append(part)
    return found


@contextmanager
def listening(layers: Iterable[nn.Module], note: Callable[..., None], before: Callable[..., Any]) -> Iterator[None]:
    """Call `note` after each call of a layer, and `before` before that of an embedding."""
    every = list(layers)
    handles = [layer.register_forward_hook(note) for layer in every]
    handles += [layer.register_forward_pre_hook(before) for layer in every if type(layer) is nn.Embedding]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def one_row_each(inputs: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    """Repeat numbers of positions that a model makes itself, in one row for all records, so that each has a gradient."""
    ids = inputs[0]
    return (ids.expand(rows, *ids.shape[1:]), *inputs[1:]) if len(ids) == 1 < rows else inputs


# ---- A model as the computation of gradients sees it


class TrainedModel:
    """A model whose gradients of single records are clipped as a whole.

    Parameters
    ----------
    module : Module
        The model.
    max_grad_norm : float
        The clipping norm.

    Attributes
    ----------
    flat : bool
        Whether the gradient is clipped as a whole, not layer by layer.
    ignores_padding_idx : bool
        Whether the row of an embedding that belongs to its padding_idx gets gradients all the same, as Opacus has it.
    limits_cancellation : bool
        Whether gradients whose terms cancel are clipped further (`record_gradients.CANCELLATION`).
    """

    flat = True
    ignores_padding_idx = False
    limits_cancellation = True

    def __init__(self, module: nn.Module, max_grad_norm: float) -> None:
        self.module = module
        self._max_grad_norm = max_grad_norm

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained at this moment."""
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return next(self.module.parameters()).device

    def max_grad_norm(self) -> float:
        """The clipping norm C."""
        return self._max_grad_norm

    def layer_norms(self) -> dict[Tensor, float]:
        """The norm that the gradient of each parameter is clipped to; empty if gradients are clipped as a whole."""
        return {}

    def units(self) -> list[nn.Module]:
        """The layers that have trainable parameters of their own."""
        return units(self.module)

    def silence(self) -> AbstractContextManager[None]:
        """A context in which the model runs without anybody else seeing it."""
        return nullcontext()


def norm_of(gradient: Iterable[Tensor]) -> float:
    """The norm of a gradient."""
    return hypot(*(float(torch.linalg.vector_norm(part)) for part in gradient))


def apart(one: Mapping[Any, Tensor], other: Mapping[Any, Tensor]) -> float:
    """The distance of two gradients. A parameter that the first one lacks counts as zeros."""
    return norm_of(one[p] - g if p in one else g for p, g in other.items())
