"""What evidence and verdicts share: errors, seeds, processes, what was recorded of a training, and how a result becomes JSON."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, TypeVarTuple

import numpy as np

from betastar import validation
from betastar.display import Displayed
from betastar.risk import Bound

if TYPE_CHECKING:
    from torch import Tensor, nn

    from betastar.dpsgd import DPSGD, Segment
    from betastar.drawn_steps import SamplingScheme

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class AuditError(ValueError):
    """What was given cannot be audited; the text says why, and what to do."""


def seed_of(seed: object) -> int:
    """The seed that was given, or one that is drawn."""
    return int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else validation.seed(seed)


def jobs_of(jobs: object) -> int:
    """The number of processes that was given; raises an error unless it is allowed."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or (jobs < 1 and jobs != -1):
        raise validation.wrong("jobs", f"must be a whole number of at least 1, or -1 for all cores, got {jobs!r}.")
    return jobs


def spread(function: Callable[[*Arguments], Result], chunks: list[tuple[*Arguments]], jobs: int) -> Iterator[Result]:
    """The results of the function for the arguments of each chunk, in order, from this process or from others."""
    if jobs == 1:
        yield from (function(*chunk) for chunk in chunks)
        return
    try:
        from joblib import Parallel, delayed
    except ImportError:
        raise validation.wrong("jobs", f"must be 1 unless joblib is installed (pip install joblib), got {jobs}.") from None
    with warnings.catch_warnings():  # of a process that has grown and is replaced: where warnings are errors, it hangs
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
        yield from Parallel(n_jobs=jobs, return_as="generator")(delayed(function)(*chunk) for chunk in chunks)


# --- The steps of a run


def segment_at(run: DPSGD, step: int) -> tuple[Segment, int]:
    """The segment of a step, and the number of the step in it; beyond the last step, the last segment."""
    for segment in run.segments:
        if step < segment.steps:
            break
        step -= segment.steps
    return segment, step


def rate_and_noise(run: DPSGD, step: int) -> tuple[float, float]:
    """Rate and noise of a step; beyond the last step those of the last."""
    segment = segment_at(run, step)[0]
    return float(segment.sample_rate), float(segment.noise_multiplier)


# --- What was recorded of a training


class EnoughError(BaseException):
    """Ends a training after enough steps. It is no Exception, so that the user's code does not catch it."""


class NotFiniteError(ArithmeticError):
    """A training computed numbers that are not finite."""


@dataclass(frozen=True)
class StepSettings:
    """What a private optimizer does at a step, besides its gradients.

    Attributes
    ----------
    noise_multiplier : float
        The noise multiplier.
    max_grad_norm : float
        The clipping norm by which the noise is scaled.
    divisor : float
        The number by which the noisy sum of all processes is divided.
    adaptive : bool
        Whether the clipping norm follows a count of clipped gradients.
    """

    noise_multiplier: float
    max_grad_norm: float
    divisor: float
    adaptive: bool = False


@dataclass(frozen=True)
class RecordedStep:
    """A step of an optimizer, before it is applied.

    Attributes
    ----------
    optimizer : str
        The name of the optimizer's class.
    gradients : dict
        What the optimizer is about to apply, by the names of the parameters.
    sums : dict
        The clipped sums without noise, by name; without those that no private optimizer has clipped.
    settings : StepSettings or None
        The settings of the private optimizer; None if the optimizer is not private.
    numbers : dict
        The learning rate and the other numbers of the optimizer's groups of parameters.
    drawn : frozenset of int or None
        The records of the batch; None if that is not known.
    rows : int or None
        How many records' gradients were added up in the last batch; None if that is not known.
    contents : dict
        A digest of each weight and buffer before the step, by name.
    states : tuple
        The states of the random number generators.
    last : tuple of int
        The records of the last batch, in their order.
    uses : int
        How often models were used since the step before.
    batches : int
        How many batches were delivered since the step before.
    """

    optimizer: str
    gradients: dict[str, Tensor]
    sums: dict[str, Tensor] = field(default_factory=dict)
    settings: StepSettings | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    drawn: frozenset[int] | None = None
    rows: int | None = None
    contents: dict[str, str] = field(default_factory=dict)
    states: tuple[Any, ...] = ()
    last: tuple[int, ...] = ()
    uses: int = 0
    batches: int = 0


@dataclass
class Recording:
    """What can be seen of a training.

    Attributes
    ----------
    steps : list of RecordedStep
        The steps of all optimizers, in their order.
    fetched : list of list of int
        The numbers of the records of each batch that a loader of the data has asked for.
    schemes : list of SamplingScheme or None
        How each loader draws; None where that is not known.
    records : int
        The number of records, if a loader has drawn from them.
    output : dict
        What was printed, logged, yielded and returned, by where it was seen.
    contents : dict
        A digest of each weight and buffer after the training.
    buffers : set of str
        The names of the model's buffers.
    ended : bool
        Whether the training came to its end, and was not ended after enough steps.
    late : bool
        Whether it was ended because it took too long.
    listed : bool
        Whether the steps are those that the training returned, so that they could not be replayed.
    private : bool
        Whether Opacus or betastar makes the steps.
    models : list of Module
        The models that were used.
    """

    steps: list[RecordedStep] = field(default_factory=list)
    fetched: list[list[int]] = field(default_factory=list)
    schemes: list[SamplingScheme | None] = field(default_factory=list)
    records: int = 0
    output: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)
    ended: bool = False
    late: bool = False
    listed: bool = False
    private: bool = False
    models: list[nn.Module] = field(default_factory=list)


def same_states(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether no random number was drawn between two states of the generators of PyTorch, NumPy and Python."""
    torch_same = bool((one[0] == other[0]).all()) and all(bool((a == b).all()) for a, b in zip(one[1], other[1], strict=False))
    return torch_same and all(np.array_equal(a, b) for a, b in zip(one[2], other[2], strict=True)) and bool(one[3] == other[3])


# --- What results have in common

#: A bound that holds is called violated in at most one of a thousand audits.
ALARM = 1e-3


class Verdict(Displayed):
    """The base of results, which are dataclasses. `derived` names the properties that belong to their JSON, too."""

    derived: ClassVar[tuple[str, ...]] = ("violated", "sentence")
    p_value: float

    @property
    def violated(self) -> bool:
        return self.p_value < ALARM

    def as_dict(self) -> dict[str, Any]:
        """The object that is printed as JSON."""
        told: dict[str, Any] = as_json(self)
        return told


def as_json(value: Any) -> Any:
    """A part of a result: bounds by their ends, other objects as dictionaries or as their representation."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if abs(value) < inf else None
    if isinstance(value, Bound):
        return {"lower": value.lower, "estimate": value.estimate, "upper": value.upper}
    if isinstance(value, Mapping):
        return {key: as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if describe := getattr(value, "describe", None):
        return describe()
    if not is_dataclass(value) or not type(value).__module__.startswith("betastar.audit"):
        return repr(value)
    names = (*(one.name for one in fields(value)), *getattr(value, "derived", ()))
    return {name: as_json(getattr(value, name)) for name in names}
