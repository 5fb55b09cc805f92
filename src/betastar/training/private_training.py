"""PrivateTraining: DP-SGD whose guarantee rests on what betastar does itself.

A step draws records by its own sampler, reads them from the data set, computes the clipped gradient of each at the weights that
the model holds, adds noise of its own, divides by a public number and lets the optimizer use the result, which is then
post-processing. The loop around it has no part in the proof.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from threading import Lock
from types import MappingProxyType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import default_collate

from betastar import validation
from betastar.analyze import analyze
from betastar.calibrate import Target, calibrate, enforced, plan
from betastar.display import Display, Displayed
from betastar.dpsgd import DPSGD
from betastar.drawn_steps import DrawnSteps
from betastar.groups import GroupPlan, Protection, calibrate_groups
from betastar.risk import Risk, drawing
from betastar.rounding import down, plain
from betastar.threats import FARTHEST, AttributeInference, Membership
from betastar.training import noise, preparing, processes
from betastar.training.budget import Budget, BudgetAccount, BudgetExhausted, MembershipAccount, MembershipProof, NotProved, Proof
from betastar.training.draws import Draws
from betastar.training.gap_clipping import GapClippedSum, clipped_secrets
from betastar.training.gradients.factors import TINY
from betastar.training.gradients.record_gradients import (
    CANCELLATION,
    RecordGradients,
    RecordLosses,
    TrainedModel,
    UnknownLayer,
    apart,
    norm_of,
)
from betastar.training.gradients.side_effects import DropoutMasks, GeneratorStates, GradientError, recording, restored
from betastar.training.gradients.variant_gradients import SavedBytes, VariantGradients, without_checkpointing
from betastar.training.measurement import AttributeMeasurement, checked_options, measure_dataset
from betastar.training.members import MembershipLedger
from betastar.training.records import Records, pair
from betastar.training.saved_training import HEADS, SavedTraining, guarantee_rows, private_display, private_files
from betastar.training.secrets.secret import Secret
from betastar.training.source import Source
from betastar.training.writers import Writer

#: Two computations of one gradient in single precision may differ by this part of its norm, or by this part of the clipping norm.
AGREE = 1e-3, 1e-5
#: Sums in single precision are off by up to this part of the clipping norm for each record, and norms by the second number: noise
#: is larger by as much.
SUM_ROUNDING, NORM_ROUNDING = 2.0**-23, 1e-5
#: What is fixed once a training is made.
FIXED = ("model", "optimizer", "criterion", "max_grad_norm", "noise_multiplier", "records", "gaps", "groups")
#: The steps of the last training of each model.
TRAINED: WeakKeyDictionary[nn.Module, DrawnSteps] = WeakKeyDictionary()
#: Copies of the trained weights that a step makes: sums, noise (twice as long), gradients, and two gradients of a single record.
COPIES = 6
#: Tensors with at most this many numbers are compared together, in rows of this many bytes.
TOGETHER, ROW = 1 << 16, 1 << 9
#: The training whose optimizer is making a step at this moment, for audits.
STEPPING: ContextVar[PrivateTraining | None] = ContextVar("STEPPING", default=None)
WRITES = "a pass of the model or the criterion writes into weights, buffers or tensors of its own, which noise does not cover."
MIXES = (
    "the gradient of record {} depends on the other records of its batch, or changes from one pass to the next (it moved by "
    "{:.2g} of its norm). Does the model or the criterion use statistics of the batch, keep a state of its own, or draw random "
    "numbers other than those of dropout?"
)
DEPENDS = (
    "the loss of a record depends on the other records of its batch: is it a mean over all tokens of the batch, does the model "
    "return a loss of its own, or use statistics of the batch? Compute it from outputs with one row for each record"
)
CHANGED = (
    "weights or buffers of the model were changed since the last step, or the optimizer was called. If the change is a function "
    "of earlier weights alone (an average, a projection, going back), call accept_weights(); otherwise nothing is proved."
)
MOVED = (
    "the data set gives other records than before, or in another order: a group, a budget and an epoch know a record by its "
    "number. Make a data set that keeps its order; the steps draw records at random anyway."
)
UNKNOWN_END = "nothing is proved about membership: the budget ends training at a step that depends on the records."
COPIED = (
    "a PrivateTraining cannot be copied, as both copies would add the same noise: make another one and load state_dict() into it."
)


@dataclass(frozen=True)
class Step:
    """One update, for the trainer's eyes: both figures tell about the records.

    Attributes
    ----------
    number : int
        The number of the update, from 1.
    loss : float
        The mean loss of the records that took part; not a number if none did.
    batch_size : int
        The number of these records.

    Examples
    --------
    >>> from betastar.training import Step
    >>> Step(number=1, loss=0.7, batch_size=12)
    Step(number=1, loss=0.7, batch_size=12)
    """

    number: int
    loss: float
    batch_size: int


#: The method that proves what a guarantee says.
METHOD = "certified"


@dataclass(frozen=True)
class Guarantee(Displayed):
    """What is proved of a training.

    Attributes
    ----------
    run : DPSGD
        The updates so far.
    membership : Risk or None
        Membership inference against them; None if the number of updates depends on the records (with a budget).
    attributes : dict
        Attribute inference by the name of each secret that is protected.
    proof : Proof or None
        What a budget has proved.
    records : int
        The number of records of a person.
    groups : GroupPlan or None
        The updates so far with the rate and the clipping norm of each group of records; its `risk` is that of a group.
    budgeted : MembershipProof or None
        What a budget for membership has proved of each record.

    Examples
    --------
    >>> import betastar as bs
    >>> from betastar.training import Guarantee
    >>> run = bs.DPSGD(noise_multiplier=2.0, sample_rate=0.01, steps=500)
    >>> print(Guarantee(run, bs.analyze(run, method="certified")))
    Proved: an attacker who sees all 500 updates and asks whether a record was trained on faces β* ≥ 0.9106.
    """

    run: DPSGD
    membership: Risk | None
    attributes: dict[str, Risk] = field(default_factory=dict)
    proof: Proof | None = None
    records: int = 1
    groups: GroupPlan | None = None
    budgeted: MembershipProof | None = None

    @property
    def attribute(self) -> Risk | None:
        """Attribute inference against the secret, if exactly one is protected by a gap."""
        return next(iter(self.attributes.values())) if len(self.attributes) == 1 else None

    @property
    def about_attributes(self) -> str:
        """The sentences about attributes alone, one a line."""
        return "\n".join([*self._of_attributes(), *([] if self.proof is None else [str(self.proof)])])

    def _attacker(self) -> str:
        """How a sentence begins."""
        steps = int(self.run.steps)
        return f"Proved: an attacker who sees {'the one update' if steps == 1 else f'all {steps:,} updates'}"

    def _of_attributes(self) -> list[str]:
        return [
            f"{self._attacker()} and knows everything about a record except the value of {name!r} faces "
            f"β* ≥ {down(float(risk.bayes_security.lower))}."
            for name, risk in self.attributes.items()
        ]

    def _display(self, brief: bool) -> Display:
        lines = []
        if self.membership is not None:
            whose = "a record was trained on" if self.records == 1 else f"a person's {self.records} records were trained on"
            lines.append(
                f"{self._attacker()} and asks whether {whose} faces β* ≥ {down(float(self.membership.bayes_security.lower))}."
            )
        lines += [] if self.groups is None else [f"{self._attacker()} and asks {text}." for text in self.groups.sentences()]
        lines += [] if self.budgeted is None else [str(self.budgeted)]
        lines += self._of_attributes()
        if self.proof is not None:
            lines.append(str(self.proof))
            if self.membership is None:
                lines.append(UNKNOWN_END.capitalize())
        if brief:
            return Display(tuple(lines))
        return Display(
            tuple(lines), HEADS, tuple(guarantee_rows(self)), "" if self.membership is None else drawing(self.membership)
        )


class PrivateTraining(SavedTraining):
    """Trains a model with DP-SGD, and says what is proved of it.

    Parameters
    ----------
    model : Module
        A plain model, which is trained in place. Each layer keeps the mode (train, eval) that it has now.
    optimizer : Optimizer
        Any optimizer of PyTorch over the model's parameters. It is given noisy gradients.
    dataset : Dataset
        The records: anything with a length that gives a record by its number, and the same record each time.
    criterion : callable
        The loss, as in `criterion(model(inputs), target)`. It is asked for single records, with any reduction.
    batch_size : int
        The mean number of records of a step. It is public: sums of gradients are divided by it.
    max_grad_norm : float
        The norm that the gradient of each record is clipped to.
    noise_multiplier : float, optional
        The standard deviation of the noise in clipping norms. Leave it out with `target`.
    target : Target, optional
        What must hold against membership inference after all steps. The noise is calibrated to it.
    epochs, steps : float, int, optional
        The plan: more steps are refused. A target needs one of them.
    sampling : "poisson", "fixed-size" or "balls-in-bins"
        How batches are drawn, as in `betastar.DPSGD`.
    max_batch_size : int, optional
        With Poisson sampling: larger batches are cut down to this many records, at random.
    times_per_epoch : int
        With "balls-in-bins": in how many batches of an epoch each record is, drawn uniformly. An epoch has that many times as
        many steps.
    records : int
        The number of records that one person has at most. The guarantee is about persons.
    protection : Protection, optional
        Instead of a noise multiplier or a target: groups of records with targets of their own.
    secret : Secret or sequence of Secret, optional
        Sensitive attributes that `gap`, `attribute_target` or `budget` protect.
    gap : float or sequence of float, optional
        The largest distance between the gradients of two values of the secret, in clipping norms, between 0 and 2.
    attribute_target : Target or sequence of Target, optional
        What must hold against attribute inference after all steps. The gap is calibrated to it.
    budget : Budget, optional
        With a secret, instead of a gap: all records are measured before each step, and training ends in time. Without a secret,
        against membership inference: a record sits out the steps that it cannot pay for.
    seed : int, optional
        For research: makes sampling and noise a function of the seed. A guarantee then holds only as long as the seed is secret,
        and for one training: two with the same seed have the same noise, and their difference has none. By default, both come
        from the operating system.
    secure_noise : bool
        Whether noise is made from the bits of a cryptographic generator, by a method whose floating-point numbers have no holes.
    memory : int, optional
        The number of bytes that a step may take besides the model and the optimizer.
    split : callable
        Turns a batch into `Records`, if batches are not (inputs, target, ...).
    collate : callable, optional
        Makes a batch of a list of records; PyTorch's own by default.

    Raises
    ------
    TypeError, ValueError
        If an argument is not allowed, or if the model or the records cannot be trained on; the message says why.
    GradientError
        If the gradients of single records cannot be computed.

    Examples
    --------
    >>> import torch
    >>> from betastar.training import PrivateTraining
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Linear(3, 2)
    >>> training = PrivateTraining(
    ...     model,
    ...     torch.optim.SGD(model.parameters(), lr=0.1),
    ...     TensorDataset(torch.randn(40, 3), torch.arange(40) % 2),
    ...     torch.nn.CrossEntropyLoss(),
    ...     batch_size=10,
    ...     noise_multiplier=2.0,
    ... )
    >>> for step in training.epoch():
    ...     loss = step.loss
    >>> training
    PrivateTraining(4 steps of 10 among 40 records, noise 2)
    >>> print(training.guarantee)
    Proved: an attacker who sees all 4 updates and asks whether a record was trained on faces β* ≥ 0.8075.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        criterion: Callable[..., Tensor],
        *,
        batch_size: int,
        max_grad_norm: float = 1.0,
        noise_multiplier: float | None = None,
        target: Target | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        sampling: str = "poisson",
        max_batch_size: int | None = None,
        times_per_epoch: int = 1,
        records: int = 1,
        protection: Protection | None = None,
        secret: Secret | Sequence[Secret] | None = None,
        gap: float | Sequence[float] | None = None,
        attribute_target: Target | Sequence[Target] | None = None,
        budget: Budget | None = None,
        seed: int | None = None,
        secure_noise: bool = False,
        memory: int | None = None,
        split: Callable[[Any], Records] = pair,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        _check_parts(model, optimizer, criterion)
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        self.max_grad_norm = float(validation.positive("max_grad_norm", max_grad_norm))
        self.records = validation.whole("records", records)
        self._modes = [part.training for part in model.modules()]
        self._model = TrainedModel(model, self.max_grad_norm)
        self._source = Source(dataset, collate, split, self._model.device)
        _check_records(self._source)
        entropy = processes.of_first(lambda: noise.fresh_entropy() if seed is None else validation.seed(seed))
        batch = validation.whole("batch_size", batch_size)
        # A saved state may tell the entropy of the draws, from which that of the noise must not follow.
        secret_draws = noise.derived(entropy, "draws")
        self._draws = Draws(len(self._source), batch, sampling, max_batch_size, secret_draws, times_per_epoch)
        Membership(records=self.records).steps(next(iter(self._run_of(1, 1.0).scalars())))  # refuses what has no proof
        self._seeded, self._noise = seed is not None, noise.GaussianNoise(entropy, secure_noise)
        self._mask_entropy = noise.derived(entropy, "masks")
        self._norms: NDArray[np.float64] | None = None  # that the gradient of each record is clipped to, where these differ
        self._process, self._processes, self._lock = os.getpid(), processes.count(), Lock()
        self._random = noise.generator(noise.fresh_entropy(), noise.CHECKS, 0)  # which records are looked at twice
        secrets = [] if secret is None else [secret] if isinstance(secret, Secret) else list(secret)
        _check_secrets(secrets, gap, attribute_target, budget)
        self._planned = self._plan_steps(epochs, steps, target, attribute_target, protection)
        if protection is None:
            self.groups: GroupPlan | None = None
            self.noise_multiplier = self._calibrated_noise(noise_multiplier, target)
        else:
            given = {"noise_multiplier": noise_multiplier, "target": target}
            self._check_protection(protection, given, clips=gap is not None or attribute_target is not None)
            self.groups = self._protect(protection)
            self.noise_multiplier = self.groups.noise_multiplier
        self.gaps: Mapping[str, float] = MappingProxyType(self._calibrated_gaps(secrets, gap, attribute_target))
        self._secrets = secrets
        self._steps = DrawnSteps()
        self._void: str | None = None
        self._cancels = False  # whether gradients are sums of terms that may cancel
        self._watched: list[AttributeMeasurement] = []
        #: How exposed single records are to membership inference, if `watch_members` was called.
        self.ledger: MembershipLedger | None = None
        self._ledger_every = 1
        self._noted: list[tuple[Tensor, Tensor]] = []  # numbers of records of the current step, and norms
        copies = COPIES * sum(p.nbytes for p in self._model.parameters)
        self._memory = None if memory is None else preparing.room_for_passes(memory, copies)
        preparing.keep_freed_memory()
        self._losses = RecordLosses(criterion)
        self.gradients = RecordGradients(model, self._losses)
        with self._own_modes(), restored(model):
            self._try_out()
        self._budget = budget
        self._account = self._prepare_budget(secrets)
        self._spending = self._prepare_spending(secrets)
        self._clipped = self._prepare_gaps(secrets)
        self._order = self._digest_of(preparing.spread(self._source)) if self._by_number else None
        if processes.together():
            for tensor in self._state():
                torch.distributed.broadcast(tensor, src=0)
            if not processes.alike(self._made()):
                raise ValueError(
                    "dataset and settings must be the same in all processes, and they differ: does a split need a seed?"
                )
        if earlier := TRAINED.get(model):
            warnings.warn(
                f"this model has had {len(earlier)} steps of another PrivateTraining, which this guarantee does not cover: add "
                "both runs, bs.analyze(first.run + second.run), or begin with a new model.",
                stacklevel=2,
            )
        TRAINED[model] = self._steps
        optimizer.register_step_pre_hook(self._notice)
        self._weights = self._checksum()

    def __setattr__(self, name: str, value: object) -> None:
        if name in FIXED and name in vars(self):
            raise AttributeError(f"{name} is fixed once a training is made: make another training, and add the runs of both.")
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(COPIED)

    # ------------------------------------------------------------------ the plan

    def _plan_steps(self, epochs: float | None, steps: int | None, *targets: object) -> int | None:
        """The number of steps that are planned; None if there is no limit."""
        if epochs is not None and steps is not None:
            raise TypeError(f"give epochs or steps, not both: got epochs={epochs!r}, steps={steps!r}.")
        if epochs is None and steps is None:
            if any(target is not None for target in targets):
                raise TypeError("a target needs epochs or steps: how long training takes decides how much noise it needs.")
            return None
        if steps is not None:
            return int(validation.whole("steps", steps))
        return max(1, round(float(validation.positive("epochs", epochs)) * self._draws.steps_per_epoch))

    def _run_of(self, steps: int, noise_multiplier: float) -> DPSGD:
        return self._draws.scheme.run(noise_multiplier, steps)

    def _calibrated_noise(self, given: float | None, target: Target | None) -> float:
        if (given is None) == (target is None):
            raise TypeError(f"give noise_multiplier or target, one of them: got {given!r} and {target!r}.")
        if target is None:
            return float(validation.positive("noise_multiplier", given))
        if not isinstance(target, Target):
            raise TypeError(f"target must be a Target, got {target!r}.")
        assert self._planned is not None
        run = self._run_of(self._planned, 1.0)
        scheme = self._draws.scheme
        found = calibrate(
            target,
            sample_rate=run.segments[0].sample_rate,
            steps=int(run.steps),
            sampling=scheme.sampling,
            max_batch_size=scheme.max_batch_size,
            times_per_epoch=scheme.times_per_epoch,
            dataset_size=None if scheme.plain else scheme.records,
            threat=Membership(records=self.records),
            method=METHOD,
        )
        return float(found.noise_multiplier)

    def _check_protection(self, protection: object, given: Mapping[str, object], clips: bool) -> None:
        """Refuse what groups with own rates or norms cannot be combined with."""
        if not isinstance(protection, Protection):
            raise TypeError(f"protection must be a Protection, got {protection!r}.")
        for name, value in given.items():
            if value is not None:
                raise TypeError(f"protection calibrates the noise to its own targets: leave out {name}, got {value!r}.")
        if not self._draws.scheme.plain:
            raise ValueError(
                "protection needs sampling 'poisson' without max_batch_size, so that each record has a coin of its own, got "
                f"{self._draws.scheme.told()}."
            )
        if protection.by == "clipping" and clips:
            raise ValueError("protection by 'clipping' cannot go with gap or attribute_target: choose by='rate'.")

    def _protect(self, protection: Protection) -> GroupPlan:
        """Give each record the rate and the clipping norm of its group."""
        assert self._planned is not None
        names, places = list(protection.groups), protection.of_records(len(self._source))
        counts = np.bincount(places)
        plan = calibrate_groups(
            protection.targets,
            sizes={name: int(counts[place]) for place, name in enumerate(names)},
            batch_size=self._draws.batch_size,
            steps=self._planned,
            by=protection.by,
            relation=protection.relation,
            records=self.records,
            method=METHOD,
        )
        if protection.by == "rate":
            rates = np.array([plan.rates[name] for name in names])[places]
            self._draws = Draws(len(self._source), self._draws.batch_size, "poisson", None, self._draws.entropy, rates=rates)
        else:
            self._norms = np.array([plan.norms[name] for name in names])[places]
        self._places = sha256(places.tobytes()).hexdigest()
        return plan

    def _prepare_spending(self, secrets: list[Secret]) -> MembershipAccount | None:
        """The account of a budget for membership; None if there is none, or if the plan keeps to it whatever is measured."""
        if self._budget is None or secrets:
            return None
        if self._planned is not None and self._keep_to_budget(self._planned):
            return None
        if not self._draws.scheme.plain:
            raise ValueError(
                "a budget for membership needs sampling 'poisson' without max_batch_size, so that each record has a coin of its "
                f"own, got {self._draws.scheme.told()}."
            )
        every = np.full(len(self._source), self._draws.scheme.sample_rate) if self._draws.rates is None else self._draws.rates
        rounding = NORM_ROUNDING + SUM_ROUNDING * self._draws.scheme.largest_batch(len(self._source)) * CANCELLATION
        return MembershipAccount(self._budget, every, self.noise_multiplier, self.records, rounding)

    def _calibrated_gaps(
        self, secrets: list[Secret], gap: float | Sequence[float] | None, target: Target | Sequence[Target] | None
    ) -> dict[str, float]:
        """The gap of each secret by its name, in clipping norms."""
        if target is not None:
            assert self._planned is not None
            run, wanted = self._run_of(self._planned, self.noise_multiplier), _one_each("attribute_target", target, secrets)
            return {s.name: plan(attribute=t, run=run, method=METHOD).gap for s, t in zip(secrets, wanted, strict=True)}
        if gap is None:
            return {}
        allowed = "between 0 and 2 (units of the clipping norm)"
        numbers = [validation.numbers("gap", one, allowed, low=0.0, high=FARTHEST) for one in _one_each("gap", gap, secrets)]
        return {secret.name: float(number) for secret, number in zip(secrets, numbers, strict=True)}

    def _prepare_budget(self, secrets: list[Secret]) -> BudgetAccount | None:
        """The account of a budget; None if there is none, or if the plan keeps to it in the worst case without measurements."""
        if self._budget is None or not secrets:
            return None
        if self._planned is not None and self._keep_to_budget(self._planned):
            return None
        self._budget_distances = self._variants(secrets[0], "exact", "dataset").distances
        return BudgetAccount(self._budget, len(self._source))

    def _keep_to_budget(self, steps: int) -> bool:
        """Whether this many steps keep to the budget whatever is measured."""
        assert self._budget is not None
        threat = AttributeInference(FARTHEST) if self._secrets else Membership(records=self.records)
        wanted = Target(bayes_security=self._budget.bayes_security)
        return wanted.met(analyze(self._run_of(steps, self.noise_multiplier), threat, METHOD))

    @cached_property
    def worst_case_steps(self) -> int:
        """The number of steps that keep to the budget whatever is measured: gradients are taken to be 2 apart."""
        if self._budget is None:
            raise ValueError("worst_case_steps belongs to a budget, and there is none.")
        scheme, holds = self._draws.scheme, self._keep_to_budget
        unit = self._draws.steps_per_epoch if scheme.in_epochs else 1
        low, high = 0, 1
        while holds(high * unit) and high < 1 << 40:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle * unit) else (low, middle)
        return low * unit

    def _prepare_gaps(self, secrets: list[Secret]) -> GapClippedSum | None:
        clipped = clipped_secrets(secrets, self.gaps) if self.gaps else []
        if not clipped:
            return None
        joint = clipped[0] if len(clipped) == 1 else Secret.joint(*clipped)
        made = self._variants(joint, "exact", "batch")
        return GapClippedSum(self._model, made.gradients, made.distances, clipped, self.gaps, made.memory)

    def _variants(self, secret: Secret, diameter: str, scope: str) -> preparing.Variants:
        if self._mixes:
            raise GradientError(f"{DEPENDS}.")

        def total(output: Any, target: Any, rows: int) -> Tensor:
            return self._losses(output, target, rows).sum()

        def check(records: Records, variants: VariantGradients) -> None:
            own = variants.own(records)
            self._cancels = self._cancels or own.tiled
            for i in range(len(records)):
                with variants.masks_of(records.take([i]).places):
                    _, wanted = self.gradients.alone(records.take([i]))
                one = own.records(torch.tensor([i], device=own.norms.device))
                self._require_equal(one.totals(torch.ones_like(one.norms)), wanted, i)

        with self._own_modes():
            return preparing.variants_of(self._model, self._source, total, secret, diameter, scope, self._memory, check)

    # ------------------------------------------------------------------ gradients of single records

    def _try_out(self) -> None:
        """Choose how gradients are computed: by rules of layers if they fit the model, else by torch.func or one by one."""
        preparing.require_precision(self._model.parameters)
        records = preparing.different(self._source)
        preparing.require_call(self._model, records)
        self._draws_masks = self._uses_random_numbers(records)
        saved, before = SavedBytes(self.model), self._checksum()
        with torch.no_grad():
            for some in (records, records.take(slice(0, max(1, len(records) - 1)))):
                for as_trained in (True, False):  # without checkpointing, a model may return more
                    with nullcontext() if as_trained else without_checkpointing(self.model):
                        self._losses.learn(self.model(*some.inputs, **some.named), some.target, len(some))
        with saved.counting(), torch.enable_grad():
            self._losses(self.model(*records.inputs, **records.named), records.target, len(records))
        if before != self._checksum():
            raise GradientError(WRITES)
        self._mixes = self._mixed(records)
        why = ""
        for way, words in (("layers", ""), ("vectorized", "torch.func"), ("single", "one record after the other")):
            self.gradients.way = way
            try:
                if way == "layers" and self._mixes:
                    raise UnknownLayer(DEPENDS)
                made, masks = self._pass(records)
                for i in range(len(records)):
                    self._compare(made, records.take(slice(i, i + 1)), i, masks, i)
            except (UnknownLayer, GradientError, RuntimeError, NotImplementedError) as problem:
                if way == "single":
                    raise GradientError(f"the gradient of a record cannot be computed: {problem}") from problem
                why = why or str(problem).splitlines()[0]
                continue
            self._cancels = made.cancels
            if words and not self.gaps:
                warnings.warn(f"gradients are computed by {words}, which takes longer ({why}).", stacklevel=4)
            break
        self._per_record = max(1, (saved.whole_pass([]) + made.nbytes) // max(1, len(records)))

    def _mixed(self, records: Records) -> bool:
        """Whether records mix, however little: their gradients may agree on these records, and not on all."""
        with without_checkpointing(self.model):
            return all(self.gradients.mix(some) for some in (records, records.take(slice(0, max(1, len(records) - 1)))))

    def _uses_random_numbers(self, records: Records) -> bool:
        """Whether the model does so each time: another thread may draw some during one of the passes."""
        for _ in range(3):
            before = GeneratorStates.now(self._model.device)
            with torch.no_grad():
                self.model(*records.inputs, **records.named)
            if before.same(GeneratorStates.now(self._model.device)):
                return False
        return True

    def _pass(self, records: Records) -> tuple[Any, DropoutMasks | None]:
        """Losses, norms and sums of gradients of some records, and the masks of dropout that they had."""
        if self.gradients.way != "layers" or not self._draws_masks:
            return self.gradients.run(records), None
        with recording(None, self._model.device) as masks:
            made = self.gradients.run(records)
        if not masks:
            raise UnknownLayer("the model draws random numbers that are not masks of dropout")
        return made, DropoutMasks(tuple(masks), len(records))

    def _compare(self, made: Any, alone: Records, place: int, masks: DropoutMasks | None, record: int) -> None:
        """Compare the gradient of a record in a pass with that of the record alone, with everything else off.

        Where torch.func draws random numbers, the masks of dropout are not known: the record alone must repeat itself then.
        """
        unknown = self._draws_masks and masks is None
        state = torch.get_rng_state() if unknown else None
        with nullcontext() if masks is None else masks.applied(torch.tensor([place]), 1):
            _, wanted = self.gradients.alone(alone)
        if state is not None:
            torch.set_rng_state(state)
        if unknown or self.gradients.way == "single":
            _, gradient = self.gradients.alone(alone)
            self._require_equal(gradient, wanted, record)
        if not unknown:
            norm = self._require_equal(made.one(place), wanted, record)
            counted = float(made.squares[place]) ** 0.5
            if counted < norm * (1.0 - AGREE[0]) - AGREE[1] * self.max_grad_norm:
                raise GradientError(f"the norm of the gradient of record {record} is {norm:g}, and {counted:g} was computed.")

    def _require_equal(self, gradient: Mapping[Any, Tensor], wanted: Mapping[Any, Tensor], record: int) -> float:
        """Refuse a gradient that is not the wanted one, whose norm is returned."""
        distance, norm = apart(gradient, wanted), norm_of(wanted.values())
        if not distance <= AGREE[0] * norm + AGREE[1] * self.max_grad_norm:
            raise GradientError(MIXES.format(record, distance / max(norm, 1e-30)))
        return norm

    def _plain_sums(self, batch: Records, indices: Tensor) -> tuple[dict[Any, Tensor], float]:
        """Σ of clipped gradients for each parameter, and the sum of losses."""
        totals: dict[Any, Tensor] = {}
        loss, size = 0.0, max(1, (self._memory or preparing.PASSES) // self._per_record)
        looked = int(self._random.integers(len(batch)))
        for start in range(0, len(batch), size):
            part = batch if size >= len(batch) else batch.take(slice(start, start + size))
            made, masks = self._pass(part.copied())  # a model may write into its input
            self._cancels = self._cancels or made.cancels
            numbers = indices[start : start + size]
            scale = (self.max_grad_norm / (made.squares.sqrt() + TINY)).clamp(max=1.0)
            self._require_finite(scale, numbers)
            if (norms := self._allowed(numbers)) is not None:
                allowed = (self.max_grad_norm * norms).to(made.squares)
                scale = (allowed / (made.squares.sqrt() + TINY)).clamp(max=1.0)
            self._note(numbers, made.squares.sqrt() * scale / self.max_grad_norm)
            for parameter, one in made.sums(scale).items():
                totals[parameter] = totals[parameter] + one if parameter in totals else one
            loss += float(made.losses.nansum())
            if start <= looked < start + len(part):
                place, index = looked - start, int(indices[looked])
                self._compare(made, self._read_again(part, place, index), place, masks, index)
        return totals, loss

    def _read_again(self, part: Records, place: int, index: int) -> Records:
        """A record of the batch, read alone. It must be the same, unless a batch pads its records."""
        again = self._source.read([index])
        every = again.arguments()
        for key, mine in part.arguments().items():
            row = mine[place : place + 1] if key in part.rows() else mine
            if not isinstance(row, Tensor) or row.shape != every[key].shape or bool(torch.isnan(row).any()):
                continue
            if not torch.equal(row, every[key]):
                raise GradientError(
                    f"the data set gives another record when it is asked for record {index} again (argument {key!r}). "
                    "Augmentation, or statistics of the batch in collate?"
                )
        return again

    def _allowed(self, numbers: Tensor) -> Tensor | None:
        """The norms that the gradients of some records are clipped to, in clipping norms, if they are not 1."""
        if self._spending is None:
            return None if self._norms is None else torch.from_numpy(self._norms[numbers.numpy()])
        allowed = self._spending.norms[numbers.numpy()]
        return torch.from_numpy(allowed if self._norms is None else np.minimum(allowed, self._norms[numbers.numpy()]))

    def _gap_sums(self, batch: Records, indices: Tensor) -> tuple[dict[Any, Tensor], float]:
        """Σ of gap-clipped gradients for each parameter, and the sum of losses of the records as they are."""
        assert self._clipped is not None
        variants, secret = self._clipped.variants, self._clipped.secret
        if secret.quick_check:
            secret.check(batch, complete=False)
        looked = int(self._random.integers(len(batch)))

        def check(mine: Records, gradient: Callable[[int], dict[Tensor, Tensor]]) -> None:
            record = replace(self._read_again(batch, looked, int(indices[looked])), places=mine.places)
            own = int(secret.own(record)[0]) if bool(secret.concerned(record)[0]) else 0
            for value in {own, int(self._random.integers(secret.count))} if bool(secret.concerned(record)[0]) else {own}:
                one = secret.variants(record, [value]) if bool(secret.concerned(record)[0]) else record
                with variants.masks_of(record.places):
                    _, wanted = self.gradients.alone(one)
                self._require_equal(gradient(value), wanted, int(indices[looked]))

        with variants.dropout_of(batch) as numbered:
            totals = self._clipped.total(numbered, looked, check)
            self._note(indices, self._clipped.norms)
            with torch.no_grad(), variants.masks_of(numbered.places):
                loss = self._losses(self.model(*batch.inputs, **batch.named), batch.target, len(batch)).sum()
        return totals, float(loss)

    def _require_finite(self, scale: Tensor, indices: Tensor) -> None:
        """Refuse gradients that are not finite, and those whose scale would lose digits in single precision."""
        lost = ~(scale >= torch.finfo(torch.float32).tiny)
        if bool(lost.any()):
            raise GradientError(
                f"the gradient of record {int(indices[int(lost.nonzero()[0, 0])])} is not finite, or too large for single "
                "precision: check the record and the learning rate. The step was not taken."
            )

    # ------------------------------------------------------------------ steps

    @contextmanager
    def _own_modes(self) -> Iterator[None]:
        """Run the model in the modes (train, eval) that it had when the training was made, whatever an evaluation left."""
        parts = list(self.model.modules())
        before = [part.training for part in parts]
        for part, mode in zip(parts, self._modes, strict=False):
            part.training = mode
        try:
            yield
        finally:
            for part, mode in zip(parts, before, strict=True):
                part.training = mode

    @property
    def finished(self) -> bool:
        """Whether the plan is used up."""
        return self._planned is not None and len(self._steps) >= self._planned

    @property
    def exhausted(self) -> bool:
        """Whether the budget has refused a step."""
        return self._account is not None and self._account.exhausted

    @property
    def retired(self) -> NDArray[np.bool_]:
        """Which records could not pay for the last step, with a budget for membership. For your eyes: it tells about records."""
        if self._spending is None:
            raise ValueError("retired belongs to a budget for membership that has to measure, and there is none.")
        return self._spending.retired.copy()

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that are protected."""
        return tuple(self._secrets)

    @property
    def steps_per_epoch(self) -> int:
        """The number of updates of an epoch."""
        return self._draws.steps_per_epoch

    @property
    def steps(self) -> int:
        """The number of updates so far."""
        return len(self._steps)

    @property
    def planned_steps(self) -> int | None:
        """The number of updates of the whole training, if it was planned."""
        return self._planned

    def step(self) -> Step:
        """Make one update.

        Returns
        -------
        Step
            Its number and the loss, for your eyes.

        Raises
        ------
        NotProved
            If the guarantee is void, or if weights were changed by something else since the last step.
        BudgetExhausted
            If the budget does not allow another step.
        ValueError
            If all planned steps were taken.
        GradientError
            If the gradient of a record is not finite, or depends on other records.
        """
        with self._lock:
            self._require_valid()
            if self.finished:
                raise ValueError(f"all {self._planned} planned steps were taken: the guarantee was calibrated to this number.")
            return self._step(len(self._steps))

    def _step(self, number: int) -> Step:
        with self._own_modes():
            indices = self._draws.indices(number)
            with self._own_masks(number):
                self._measure(number)
                indices = self._without_retired(indices, number)
                totals, loss = self._summed(processes.part(indices))
            self._steps.add(self.noise_multiplier, self._draws.drawn(number))  # counted before anything can be seen of it
            for measurement in self._watched:
                measurement.record(self._draws.drawn(number), self.noise_multiplier)
            if self.ledger is not None:
                self._record_members(number)
            self._update(totals, number)
        self._weights = self._checksum()
        return Step(number + 1, loss / len(indices) if len(indices) else float("nan"), len(indices))

    @contextmanager
    def _own_masks(self, number: int) -> Iterator[None]:
        """Draw the masks of dropout from entropy of the training's own, whatever the loop seeds."""
        if not self._draws_masks:
            yield
            return
        device = self._model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            rank = torch.distributed.get_rank() if processes.together() else 0
            torch.manual_seed(int(noise.generator(self._mask_entropy, noise.MASKS, number, rank).integers(1 << 63)))
            yield

    def _notice(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """A step of the optimizer that is not this training's fills momenta, even at a learning rate of 0."""
        if STEPPING.get() is not self:
            self._weights = []

    def _require_valid(self) -> None:
        """Refuse to go on without a guarantee."""
        if os.getpid() != self._process:
            raise NotProved(COPIED)
        if processes.count() != self._processes:
            raise NotProved(
                f"the training was made for {self._processes} processes, and there are {processes.count()}: call "
                "torch.distributed.init_process_group first."
            )
        changed = self._weights != self._checksum()
        if not processes.alike((self._void, changed, len(self._steps), self._weights, self._noise.digest)):
            self._void = self._void or "the processes have different weights, or have taken different steps."
        if self._void is not None:
            raise NotProved(self._void)
        if changed:
            raise NotProved(CHANGED)
        preparing.require_precision(self._model.parameters)
        _check_optimizer(self.model, self.optimizer)
        if len(self._source) != self._draws.records:
            raise ValueError(f"the data set had {self._draws.records} records, and has {len(self._source)} now.")
        begins = self._order is not None and len(self._steps) % self.steps_per_epoch == 0
        if begins and self._order != self._digest_of(preparing.spread(self._source)):
            self._void = MOVED
            raise NotProved(self._void)

    def _measure(self, number: int) -> None:
        """Measure all records for a budget, and refuse the step that would break it."""
        if self._account is None:
            return
        account, drawn = self._account, self._draws.drawn(number)
        same = [one for one in self._watched if (one.secret, one.scope, one.diameter) == (self._secrets[0], "dataset", "exact")]
        each = account.budget.per_record or any(one.each for one in same)
        largest, gaps = measure_dataset(self._source, self._budget_distances, each)
        self._check_measured(largest)
        for measurement in same:
            measurement.adopt(largest, gaps)
        charge = largest, gaps, drawn, self.noise_multiplier, drawn.scheme.largest_batch(len(self._source))
        if not account.affordable(*charge):
            raise account.refusal(number)
        account.pay(*charge)

    def _without_retired(self, indices: Tensor, number: int) -> Tensor:
        """Charge all records for a step, whether drawn or not, and drop those that cannot pay for it."""
        if self._spending is None:
            return indices
        if self._spending.due(number):
            self._spending.measured(self._measured_norms())
        return indices[torch.from_numpy(self._spending.pay()[indices.numpy()])]

    def _measured_norms(self) -> NDArray[np.float64]:
        """The norm of the gradient of each record, in clipping norms, at most 1. Each process measures its share."""
        norms = np.full(len(self._source), -1.0)
        size = max(1, (self._memory or preparing.PASSES) // self._per_record)
        failure: Exception | None = None
        try:
            for indices, records in self._source.portions(processes.share(len(self._source))):
                for start in range(0, len(records), size):
                    made, _ = self._pass(records.take(slice(start, start + size)).copied())
                    numbers = indices[start : start + size]
                    self._require_finite(self.max_grad_norm / (made.squares.sqrt() + TINY), numbers)
                    norms[numbers.numpy()] = made.squares.sqrt().cpu().numpy() / self.max_grad_norm
        except Exception as problem:
            failure = problem
            norms[:] = np.inf
        norms = processes.maxima(norms)
        if failure is not None or bool(np.isinf(norms).any()):
            raise failure or RuntimeError("another process could not measure its records.")
        return np.minimum(norms, 1.0)

    def _check_measured(self, largest: float) -> None:
        """Compare two values of a random record by PyTorch's own backward passes with the largest distance that was measured."""
        secret, index = self._secrets[0], int(self._random.integers(len(self._source)))
        record = self._source.read([index])
        if not bool(secret.concerned(record)[0]):
            return
        values = self._random.choice(secret.count, 2, replace=False) if secret.count > 1 else [0, 0]
        both = []
        for value in values:
            _, gradient = self.gradients.alone(secret.variants(record, [int(value)]))
            norm = norm_of(gradient.values())
            both.append({p: g / max(norm + TINY, self.max_grad_norm) for p, g in gradient.items()})
        distance = apart(*both)
        if not distance <= largest * (1.0 + AGREE[0]) + AGREE[1]:
            self._void = (
                f"record {index} has a distance of {distance:.4g} where at most {largest:.4g} was measured: nothing is proved."
            )
            raise GradientError(self._void)

    def _summed(self, indices: Tensor) -> tuple[dict[Any, Tensor], float]:
        """Sums of clipped gradients over all processes, and of losses. An error in one process ends the step in all of them."""
        parameters = self._model.parameters
        totals: dict[Any, Tensor] = {}
        loss = 0.0
        failure: Exception | None = None
        try:
            if len(indices):
                batch = self._source.read(indices)
                for measurement in self._watched:
                    measurement.measure(batch, indices)
                totals, loss = (self._plain_sums if self._clipped is None else self._gap_sums)(batch, indices)
                if self._weights != self._checksum():
                    raise GradientError(WRITES)
            elif self._watched:
                for measurement in self._watched:
                    measurement.measure(self._source.read(indices), indices)
        except (GradientError, ValueError) as problem:  # the latter if a secret refuses a record
            if "not finite" not in str(problem):
                problem = type(problem)(f"{problem} No guarantee holds any more.")
                self._void = str(problem)
            failure = problem
        except Exception as problem:
            failure = problem
        if processes.together():
            flat = torch.cat([(totals.get(p, torch.zeros_like(p))).flatten().double() for p in parameters])
            flat = processes.sums(torch.cat([flat, flat.new_tensor([loss, float(failure is not None)])]))
            if float(flat[-1]) and failure is None:
                self._void = "another process failed in the middle of a step."
                raise RuntimeError(self._void)
            loss = float(flat[-2])
            pieces = flat[:-2].split([p.numel() for p in parameters])
            totals = {p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
        if failure is not None:
            raise failure
        return totals, loss

    def _update(self, totals: Mapping[Any, Tensor], number: int) -> None:
        """Add noise, divide by a public number, and let the optimizer use the result."""
        parameters = self._model.parameters
        most = self._draws.scheme.largest_batch(len(self._source))
        terms = CANCELLATION if self._cancels else 1.0
        least = 1.0 if self._norms is None else float(self._norms.min())  # rounding does not shrink with the norm of a group
        deviation = self.noise_multiplier * self.max_grad_norm
        deviation *= 1.0 + NORM_ROUNDING / least + SUM_ROUNDING * most * terms / least
        for parameter, one in zip(parameters, self._noise.like(parameters, number), strict=True):
            noisy = one.mul_(deviation / self._draws.divisor)
            if parameter in totals:
                noisy.add_(totals[parameter].to(noisy.device), alpha=1.0 / self._draws.divisor)
            parameter.grad = noisy.float().to(parameter)  # rounded, so that the last bits of the noise do not show
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                parameter.grad = None
        token = STEPPING.set(self)
        try:
            self.optimizer.step()
        finally:
            STEPPING.reset(token)

    def epoch(self) -> Iterator[Step]:
        """Make the updates of an epoch, or of what is left of it after a training was resumed within one.

        Returns
        -------
        Iterator of Step
            One update after the other. The iteration ends early if the plan or the budget is used up.
        """
        left = self.steps_per_epoch - len(self._steps) % self.steps_per_epoch
        for _ in range(left):
            if self.finished:
                return
            try:
                step = self.step()
            except BudgetExhausted:
                return
            yield step

    def fit(self, epochs: float | None = None, progress: bool = True) -> PrivateTraining:
        """Make all updates that are planned, or those of this many epochs, with a progress bar.

        Parameters
        ----------
        epochs : float, optional
            The number of epochs; by default what is left of the plan.
        progress : bool
            Whether a progress bar is shown, in a terminal or a notebook with ipywidgets.

        Returns
        -------
        PrivateTraining
            The training itself.
        """
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if epochs is None and self._planned is None:
            raise TypeError("epochs must be given here, or epochs or steps when the training is made.")
        left = None if self._planned is None else self._planned - len(self._steps)
        number = left if epochs is None else round(float(validation.positive("epochs", epochs)) * self.steps_per_epoch)
        assert number is not None
        if left is not None and number > left:
            raise validation.wrong("epochs", f"must be at most the {left} steps that are left of the plan, got {number} steps.")
        console = Console(stderr=True)
        shown = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
        columns = ("training", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not (progress and shown)) as bar:
            task = bar.add_task("training", total=number, loss="")
            for _ in range(number):
                try:
                    step = self.step()
                except BudgetExhausted:
                    break
                bar.update(task, advance=1, loss=f"loss {step.loss:.4g}")
        return self

    def accept_weights(self) -> None:
        """Declare that weights were changed since the last step by a function of weights of earlier steps alone.

        Averaging weights, going back to earlier ones and projecting them reveal nothing new about the records. A further step on
        gradients of records does, and must not be declared.
        """
        self._weights = self._checksum()

    def watch(
        self,
        secret: Secret,
        *,
        scope: str = "batch",
        diameter: str = "exact",
        every: int = 1,
        ledger: bool | int = False,
        writers: Sequence[Writer] = (),
    ) -> AttributeMeasurement:
        """Measure the risk of a secret at each step, without any proof.

        Parameters
        ----------
        secret : Secret
            The sensitive attribute.
        scope, diameter, every, ledger, writers : objects
            As for `AttributeMonitor`.

        Returns
        -------
        AttributeMeasurement
            It is brought up to date by each step.

        Raises
        ------
        ValueError
            If gaps are clipped, so that the distances are known, or if steps were taken already.
        """
        if self._clipped is not None:
            raise ValueError("gaps are clipped, so that distances are known in advance: ask training.guarantee for the risk.")
        if len(self._steps):
            raise ValueError("watch must be called before the first step, so that no step is missed.")
        options = checked_options(secret, scope, diameter, every, ledger)
        made = self._variants(secret, diameter, scope)
        measurement = AttributeMeasurement(secret, self._source, made.distances, writers=writers, **options)
        self._watched.append(measurement)
        return measurement

    def watch_members(self, *, scope: str = "batch", every: int = 1) -> MembershipLedger:
        """Measure how exposed single records are to membership inference, without any proof.

        What it tells is about single records and for your eyes only: to show it leaks. With gap clipping, the norm of a record is
        the largest one over the values of the secret. With groups that have rates of their own, the largest rate counts. It is a
        call, though it costs little, because a saved state and a saved folder then tell about single records.

        Parameters
        ----------
        scope : "batch" or "dataset"
            "batch" keeps the norms of the records that are drawn, which the step computes anyway. "dataset" measures all records,
            which takes a pass over the data.
        every : int
            In dataset scope: measures once in this many steps.

        Returns
        -------
        MembershipLedger
            It is brought up to date by each step, and is `training.ledger` from now on.

        Raises
        ------
        ValueError
            If steps were taken already, or if dataset scope is asked for with gap clipping or dropout.
        """
        if len(self._steps):
            raise ValueError("watch_members must be called before the first step, so that no step is missed.")
        every = validation.one_whole("every", every)
        ledger = MembershipLedger(len(self._source), scope, self.records)
        if scope == "batch" and every > 1:
            raise validation.wrong("every", f"must be 1 in batch scope, where the norms are there at each step, got {every}.")
        if scope == "dataset" and (self._clipped is not None or self._draws_masks):
            raise ValueError(
                "scope must be 'batch' with gap clipping or dropout: the gradients of the other records are not known then, "
                f"got {scope!r}."
            )
        self.ledger, self._ledger_every = ledger, every
        return ledger

    def _note(self, numbers: Tensor, norms: Tensor) -> None:
        """Keep the norms of clipped gradients of records in the batch, in clipping norms, for the ledger."""
        if self.ledger is not None and self.ledger.scope == "batch":
            self._noted.append((numbers, norms))

    def _record_members(self, number: int) -> None:
        """Tell the ledger of a step. With several processes, each has measured its share."""
        assert self.ledger is not None
        noted, self._noted = self._noted, []
        drawn = self._draws.drawn(number)
        if self.ledger.scope == "dataset":
            due = number % self._ledger_every == 0
            self.ledger.keep(self.noise_multiplier, drawn, norms=[self._measured_norms()] if due else [])
            return
        numbers: list[Any] = [one for one, _ in noted]
        norms: list[Any] = [one for _, one in noted]
        if processes.together():
            every = np.full(len(self._source), -1.0)
            for some, sizes in noted:
                every[some.numpy()] = sizes.cpu().numpy()
            every = processes.maxima(every)
            numbers, norms = [np.flatnonzero(every >= 0.0)], [every[every >= 0.0]]
        self.ledger.keep(self.noise_multiplier, drawn, numbers, norms)

    # ------------------------------------------------------------------ answers

    @property
    def run(self) -> DPSGD:
        """Noise, sampling and number of the updates so far. An unfinished epoch counts as a whole one, where epochs count."""
        return self._steps.run

    @property
    def guarantee(self) -> Guarantee:
        """What is proved of the updates so far. Raises `NotProved` if something happened that the proof does not cover."""
        self._require_proof()
        return self._guarantee(self.run)

    def _require_proof(self) -> None:
        """Refuse figures of a training whose guarantee is void."""
        if self._void is not None:
            raise NotProved(self._void)
        if self._weights != self._checksum():
            raise NotProved(CHANGED)

    def planned_guarantee(self) -> Guarantee:
        """Say what will be proved of all planned updates.

        Returns
        -------
        Guarantee
            It is known before the first step.

        Raises
        ------
        ValueError
            If no number of steps was planned.
        """
        if self._planned is None:
            raise ValueError("no number of steps was planned: give epochs or steps.")
        self._require_proof()
        return self._guarantee(self._run_of(self._planned, self.noise_multiplier))

    def _guarantee(self, run: DPSGD) -> Guarantee:
        membership = None if self._account is not None else analyze(run, Membership(records=self.records), METHOD)
        attributes = {name: analyze(run, AttributeInference(enforced(gap)), METHOD) for name, gap in self.gaps.items()}
        if self._budget is not None and self._secrets and self._account is None:
            attributes = {self._secrets[0].name: analyze(run, AttributeInference(FARTHEST), METHOD)}
        proof = None if self._account is None else self._account.proof(len(self._steps))
        groups = None if self.groups is None else replace(self.groups, steps=int(run.steps))
        budgeted = None if self._spending is None else self._spending.proof
        return Guarantee(run, membership, attributes, proof, self.records, groups, budgeted)

    def membership(self, relation: str = "substitution", method: str | None = None) -> Risk:
        """Analyse membership inference against the updates so far.

        Parameters
        ----------
        relation : "substitution" or "add-remove"
            As in `betastar.Membership`.
        method : str, optional
            As in `betastar.analyze`; by default the tightest that proves something.

        Returns
        -------
        Risk
            The risk of each record, or of each person. With groups it is that of the records that are drawn most often and have
            the largest norm; `guarantee.groups.risk` is about a group.

        Raises
        ------
        NotProved
            If the guarantee is void, or if a budget measures: the step at which training ends then depends on the records.
        """
        self._require_proof()
        if self._account is not None:
            raise NotProved(UNKNOWN_END)
        return analyze(self.run, Membership(relation, records=self.records), method or METHOD)

    def attribute(self, secret: str | None = None, method: str | None = None) -> Risk:
        """Analyse attribute inference against the updates so far, where a gap protects the secret.

        Parameters
        ----------
        secret : str, optional
            The name of the secret, if there are several.
        method : str, optional
            As in `betastar.analyze`; by default the tightest that proves something.

        Returns
        -------
        Risk
            The risk of each record.

        Raises
        ------
        ValueError
            If no gap protects such a secret.
        NotProved
            If the guarantee is void.
        """
        self._require_proof()
        if secret is None and len(self.gaps) != 1:
            raise ValueError(f"secret must be one of those that a gap protects, {list(self.gaps)}.")
        name = next(iter(self.gaps)) if secret is None else validation.choice("secret", secret, self.gaps)
        return analyze(self.run, AttributeInference(enforced(self.gaps[name])), method or METHOD)

    # ------------------------------------------------------------------ state

    def _state(self) -> list[Tensor]:
        """All weights, buffers and other tensors of the modules of the model and of the criterion."""
        found: list[Tensor] = []
        for module in (self.model, *([self.criterion] if isinstance(self.criterion, nn.Module) else [])):
            for part in module.modules():
                found += [value for kept in (part._parameters, part._buffers) for value in kept.values() if value is not None]
                for name, value in vars(part).items():  # but not the weight that torch.nn.utils.weight_norm makes of two others
                    if isinstance(value, Tensor) and f"{name}_g" not in part._parameters:
                        found.append(value)
        return [tensor.detach() for tensor in found]

    def _checksum(self) -> list[int]:
        """Numbers that change whenever the bits of a weight or buffer do, unless by a rare accident."""
        small: dict[torch.device, list[Tensor]] = {}
        found = []
        for tensor in self._state():
            if tensor.numel() > TOGETHER:
                found.append(_bits(tensor.flatten()))
            elif tensor.numel():
                small.setdefault(tensor.device, []).append(tensor.flatten().view(torch.uint8))
        return found + [_bits(torch.cat(bits)) for bits in small.values()]

    def state_dict(self) -> dict[str, Any]:
        """Give everything that a training needs to go on, as copies.

        Noise is not part of it: a training that is resumed draws fresh noise. With balls in bins it tells who is drawn next, and
        with a budget what each record has spent, so that it has to be kept secret.

        Returns
        -------
        dict
            A training that is made alike goes on after `load_state_dict`.
        """
        return {
            "made": self._made(),
            "model": deepcopy(self.model.state_dict()),
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "steps": self._steps.state_dict(),
            "draws": self._draws.state_dict(len(self._steps)),
            "void": self._void,
            "accepted": self._weights == self._checksum(),
            "budget": None if (account := self._account or self._spending) is None else deepcopy(account.state_dict()),
            "watched": [deepcopy(measurement.state_dict()) for measurement in self._watched],
            "ledger": None if self.ledger is None else self.ledger.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, model and optimizer included.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        ValueError
            If the state belongs to another training, or if this one has taken steps of its own.
        """
        if len(self._steps):
            raise ValueError("a state can be loaded before the first step only: its steps would count, and not these.")
        for name, mine in self._made().items():
            theirs = state["made"].get(name)
            if theirs != mine:
                raise ValueError(f"the state belongs to another training: its {name} is {theirs!r}, not {mine!r}.")
        if len(state["watched"]) != len(self._watched):
            raise ValueError(f"watch {len(state['watched'])} secrets before the state is loaded, got {len(self._watched)}.")
        if (self.ledger is None) != (state.get("ledger") is None):
            raise ValueError("watch_members must be called where the state was saved and here, or in neither place.")
        before = deepcopy(self.model.state_dict())
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        except Exception:
            self.model.load_state_dict(before)
            raise
        self._steps.load_state_dict(state["steps"])
        self._draws.load_state_dict(state["draws"])
        self._void = state["void"]
        if not state["accepted"]:
            self._void = self._void or "weights were changed before the state was saved."
        if (account := self._account or self._spending) is not None:
            account.load_state_dict(state["budget"])
        for measurement, saved in zip(self._watched, state["watched"], strict=True):
            measurement.load_state_dict(saved)
        if self.ledger is not None:
            self.ledger.load_state_dict(state["ledger"])
        self._weights = self._checksum()

    def _digest_of(self, indices: Sequence[int]) -> str:
        """A hash of the number of records and of some of them, in this order."""
        found = sha256(str(len(self._source)).encode())
        for _, records in self._source.portions(indices):
            for tensor in records.rows().values():
                found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()

    @cached_property
    def _data_digest(self) -> str:
        """What a saved state says of the data set: of all records, if what is kept of a record is kept by its number."""
        return self._digest_of(range(len(self._source)) if self._by_number else preparing.spread(self._source))

    @property
    def _by_number(self) -> bool:
        """Whether a record is known by its number: by its group, by what it has spent, or because an epoch draws it once."""
        charged = self._spending is not None or (self._account is not None and self._account.budget.per_record)
        return self.groups is not None or charged or self._draws.scheme.in_epochs

    def _made(self) -> dict[str, Any]:
        """What a saved state must have been made with."""
        budget = None if self._budget is None else asdict(self._budget)
        if budget is not None and budget["every"] == 1:
            del budget["every"]  # which earlier versions did not have
        return {
            "dataset": self._data_digest,
            "sampling": asdict(self._draws.scheme),
            "batch_size": self._draws.batch_size,
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": self.max_grad_norm,
            "records": self.records,
            "groups": None if self.groups is None else (self._places, dict(self.groups.rates), dict(self.groups.norms)),
            "gaps": dict(self.gaps),
            "secrets": [secret.digest() for secret in self._secrets],
            "budget": budget,
            "planned": self._planned,
            "seed": self._noise.digest if self._seeded else None,
        }

    def _files(self) -> Mapping[str, str]:
        return private_files(self)

    def _display(self, brief: bool) -> Display:
        return private_display(self, brief)

    def __repr__(self) -> str:
        size = len(self._source)
        done = f"{len(self._steps)} {'step' if len(self._steps) == 1 else 'steps'}"
        return f"PrivateTraining({done} of {self._draws.batch_size} among {size} records, noise {plain(self.noise_multiplier)})"


# ---- Checks of arguments


def _check_parts(model: object, optimizer: object, criterion: object) -> None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise TypeError("model must be the module itself, not DistributedDataParallel: PrivateTraining adds up gradients itself.")
    if not isinstance(model, nn.Module) or type(model).__module__.startswith("opacus.grad_sample"):
        raise TypeError(f"model must be a plain nn.Module, got {type(model).__name__}; of Opacus, give the module inside.")
    if not isinstance(optimizer, torch.optim.Optimizer) or type(optimizer).__module__.startswith("opacus"):
        raise TypeError(f"optimizer must be a plain optimizer of PyTorch, got {type(optimizer).__name__}.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer must not be LBFGS, which asks for several gradients a step.")
    if not callable(criterion):
        raise TypeError(f"criterion must be callable, got {criterion!r}.")
    _check_optimizer(model, optimizer)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("model has no trainable parameter.")
    if any(isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse for part in model.modules()):
        raise ValueError("model has an embedding with sparse gradients: noise reaches every entry, so make it with sparse=False.")
    if isinstance(criterion, nn.Module) and any(p.requires_grad for p in criterion.parameters()):
        raise ValueError(
            "criterion has trainable parameters, which would learn from the records without noise: put them into the model."
        )
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm | nn.modules.instancenorm._InstanceNorm):
            learns = part.training and (isinstance(part, nn.modules.batchnorm._BatchNorm) or part.track_running_stats)
            if learns:
                raise ValueError(
                    f"{name or type(part).__name__} ({type(part).__name__}) mixes records, or keeps statistics of them without "
                    "noise: use nn.GroupNorm or nn.LayerNorm, or put this layer into eval mode before the training is made."
                )


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer of other parameters than those that the model trains."""
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = list(model.parameters())
    if given - set(map(id, own)):
        raise ValueError("optimizer has parameters that the model has not: only the model's gradients are private.")
    if any(p.requires_grad and id(p) not in given for p in own):
        idle = next(name for name, p in model.named_parameters() if p.requires_grad and id(p) not in given)
        raise ValueError(f"{idle} is trainable but not in the optimizer: add it, or freeze it with requires_grad_(False).")


def _check_records(source: Source) -> None:
    """Refuse a data set without records, or with numbers that are not finite."""
    if not hasattr(source.dataset, "__len__") or not hasattr(source.dataset, "__getitem__"):
        kind = type(source.dataset).__name__
        raise TypeError(
            f"dataset must have a length and give a record by its number, got {kind}: a step draws records by number."
        )
    if not len(source):
        raise ValueError("dataset must have at least one record, got none.")
    for indices, records in source.portions(range(preparing.looked_at(source))):
        for key, tensor in records.rows().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                rows = (~tensor.isfinite()).flatten(1).any(dim=1) if tensor.ndim > 1 else ~tensor.isfinite()
                where = int(indices[int(rows.nonzero()[0, 0])])
                raise ValueError(
                    f"record {where} of the dataset holds a number that is not finite (argument {key!r}): repair it."
                )


def _check_secrets(secrets: list[Secret], gap: object, target: object, budget: object) -> None:
    if not all(isinstance(one, Secret) for one in secrets):
        raise TypeError(f"secret must be a Secret or several of them, got {secrets!r}.")
    given = [name for name, value in (("gap", gap), ("attribute_target", target), ("budget", budget)) if value is not None]
    if len(given) > 1:
        raise TypeError(f"{given[0]} and {given[1]} are two ways to the same end: choose one.")
    if given and not secrets and not (isinstance(budget, Budget) and budget.per_record):
        instead = " Without a secret, Budget(..., per_record=True) is about membership." if budget is not None else ""
        raise TypeError(f"{given[0]} needs a secret, which it protects.{instead}")
    if secrets and not given:
        raise TypeError("secret needs gap, attribute_target or budget; to measure it without a proof, call watch(secret).")
    if budget is not None:
        if not isinstance(budget, Budget):
            raise TypeError(f"budget must be a Budget, got {budget!r}.")
        if secrets and budget.every > 1:
            raise ValueError(f"every must be 1 for the budget of a secret, which measures before each step, got {budget.every}.")
        if len(secrets) > 1:
            raise TypeError(f"budget is for one secret, got {len(secrets)}: join them by Secret.joint.")
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


def _one_each(name: str, given: Any, secrets: list[Secret]) -> list[Any]:
    """One value for each secret."""
    values = list(given) if isinstance(given, list | tuple | np.ndarray) else [given] * len(secrets)
    if len(values) != len(secrets):
        raise ValueError(f"{name} must be one, or one for each of the {len(secrets)} secrets, got {given!r}.")
    return values


def _bits(flat: Tensor) -> int:
    """A number that follows from the bits of a vector and their places, read as whole numbers."""
    octets = flat.view(torch.uint8)
    table = functional.pad(octets, (0, -len(octets) % ROW)).view(torch.int64).view(-1, ROW // 8)
    total = 0
    for dim in (0, 1):
        sums = table.sum(dim=dim)
        total = 31 * total + int((sums * torch.arange(1, 2 * len(sums), 2, device=sums.device)).sum())
    return total
