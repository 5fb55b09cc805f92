"""Ways to train otherwise than promised: each is refused for good, or charged with at least what it really leaks.

The truth is computed by brute force (`oracle`: one record and one value at a time), with the weights, the loss, the clipping, the
rate and the noise that a step really had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from types import MethodType
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, WeightedRandomSampler

from betastar.bounds import affinity
from betastar.training import AttributeMonitor, Budget, Records, Secret

from .private import VALUES, account, oracle, table

SECRET = Secret.column(1, VALUES, name="value")
RECORDS, BATCH, NOISE, CLIP = 40, 8, 1.0, 0.5
NONE = nn.CrossEntropyLoss(reduction="none")


class Scaled(nn.Module):
    """A small network whose output is multiplied with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 9), nn.Linear(9, 2)
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, x: Any, shift: Any = 0.0) -> Any:
        return self.head(torch.tanh(self.first(x)) + shift) * self.scale


@dataclass
class Training:
    """A private training under a budget that is never exhausted, and what it really leaks."""

    options: dict[str, Any] = field(default_factory=dict)
    monitored: dict[str, Any] = field(default_factory=dict)
    truth: float = 0.0
    monitor: AttributeMonitor | None = None

    def __post_init__(self) -> None:
        MADE.append(self)
        torch.manual_seed(0)
        self.module, self.data = Scaled(), table(RECORDS)
        self.criterion: Any = nn.CrossEntropyLoss()
        options = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "noise_generator": torch.Generator().manual_seed(3)}
        options = options | {"criterion": self.criterion} | self.options
        self.engine = PrivacyEngine(accountant="rdp")
        made = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=options.pop("lr", 0.5)),
            data_loader=DataLoader(self.data, batch_size=BATCH, generator=torch.Generator().manual_seed(4)),
            **options,
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if len(made) == 4 else self.criterion

    def attach(self, **options: Any) -> AttributeMonitor:
        chosen = {"scope": "dataset", "budget": Budget(1e-9), "loader": self.loader} | self.monitored | options
        loader, secret = chosen.pop("loader"), chosen.pop("secret", SECRET)
        self.monitor = AttributeMonitor(self.model, self.optimizer, loader, self.criterion, secret, **chosen)
        return self.monitor

    def batches(self) -> Iterator[Any]:
        return chain.from_iterable(repeat(self.loader))

    def leak(self, rate: float, noise: float, loss: Any = None, **inputs: Any) -> None:
        """One step, with the gaps that all records have at these weights, by brute force."""
        twin = Scaled()
        twin.load_state_dict(self.module.state_dict())
        records = Records((self.data.tensors[0],), self.data.tensors[1], inputs, frozenset(inputs))
        gap = float(oracle(twin, records, SECRET, self.optimizer.max_grad_norm, loss).max())
        self.truth += float(affinity.leakage(rate, noise, gap))

    def fit(
        self,
        steps: int = 3,
        *,
        batches: Any = None,
        loss: Callable[..., Any] | None = None,
        before: Callable[[], None] = lambda: None,
        between: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        true_loss: Any = None,
        leaks: bool = True,
        **inputs: Any,
    ) -> None:
        """The usual loop with something done before the forward pass, between backward pass and step, and after the step."""
        loss = loss or (lambda output, y: self.criterion(output, y))
        for x, y in islice(batches if batches is not None else self.batches(), steps):
            self.optimizer.zero_grad()
            before()
            loss(self.model(x, **inputs), y).backward()
            if leaks:
                self.leak(self.loader.batch_sampler.sample_rate, self.optimizer.noise_multiplier, true_loss, **inputs)
            between()
            self.optimizer.step()
            after()


MADE: list[Training] = []
Way = Callable[[], Training]
WAYS: dict[str, tuple[Way, str]] = {}


def way(expected: str) -> Callable[[Way], Way]:
    """expected: what the refusal says; empty if the training is charged instead."""

    def add(attack: Way) -> Way:
        WAYS[attack.__name__] = attack, expected
        return attack

    return add


# ---------------------------------------------------------------- charged: nothing is wrong, or it is measured


@way("")
def as_promised() -> Training:
    t = Training()
    t.attach()
    t.fit(4)
    return t


@way("")
def rate_raised_for_good() -> Training:
    t = Training()
    t.attach()
    t.loader.batch_sampler.sample_rate = 0.6
    t.fit()
    return t


@way("")
def noise_lowered_in_the_loop() -> Training:
    t = Training()
    t.attach()

    def lower() -> None:
        t.optimizer.noise_multiplier *= 0.7

    t.fit(before=lower)
    return t


@way("")
def noise_scheduled_in_the_step_hook() -> Training:
    t = Training()
    inner = t.optimizer.step_hook

    def hook(optimizer: Any) -> None:
        inner(optimizer)
        optimizer.noise_multiplier *= 2.0

    t.optimizer.attach_step_hook(hook)
    t.attach(accountant=t.engine.accountant)
    t.fit()
    return t


@way("")
def clipping_norm_raised() -> Training:
    t = Training()
    t.attach()
    t.fit(1)
    t.optimizer.max_grad_norm = 5.0
    t.fit(2)
    return t


@way("")
def buffer_changed_after_asking() -> Training:
    t = Training()
    monitor = t.attach()

    def change() -> None:
        assert monitor.may_step()
        t.module.scale.data.mul_(1.7)

    t.fit(before=change)
    return t


@way("")
def weight_penalty_that_opacus_does_not_use() -> Training:
    t = Training()
    t.attach()
    t.fit(loss=lambda output, y: t.criterion(output, y) + 50.0 * t.module.head.weight.square().sum())
    return t


def unclipped_and_scaled(scale: float) -> Training:
    """No gradient is clipped, so that a scaled loss moves the values of the secret apart."""
    t = Training({"max_grad_norm": 20.0})
    t.attach()

    def scaled(output: Any, y: Any) -> Any:
        return scale * nn.functional.cross_entropy(output, y)

    t.fit(loss=lambda output, y: scale * t.criterion(output, y), true_loss=scaled)
    return t


@way("")
def loss_scaled_by_less_than_is_noticed() -> Training:
    return unclipped_and_scaled(1.00009)


@way("not the criterion's")
def loss_scaled_by_a_little() -> Training:
    return unclipped_and_scaled(1.005)


@way("")
def steps_that_are_not_measured() -> Training:
    t = Training()
    t.attach(every=3)
    t.fit(4)
    return t


@way("")
def physical_batches() -> Training:
    t = Training()
    t.attach()
    with BatchMemoryManager(data_loader=t.loader, max_physical_batch_size=3, optimizer=t.optimizer) as loader:
        steps = 0
        for x, y in loader:
            t.optimizer.zero_grad()
            t.criterion(t.model(x), y).backward()
            weights = {k: v.clone() for k, v in t.module.state_dict().items()}
            t.optimizer.step()
            if not t.optimizer._is_last_step_skipped:
                after = {k: v.clone() for k, v in t.module.state_dict().items()}
                t.module.load_state_dict(weights)
                t.leak(1 / len(t.loader), NOISE)
                t.module.load_state_dict(after)
                steps += 1
            if steps == 3:
                return t
    raise AssertionError


@way("")
def shared_vector_as_long_as_the_batch() -> Training:
    """Nine numbers for all records together, in a batch of nine: they belong to no record."""
    t = Training(monitored={"split": lambda batch: Records((batch[0],), batch[1], {"shift": SHIFT})})
    t.attach()
    nine = ((x, y) for x, y in t.batches() if len(x) == 9)
    t.fit(batches=nine, shift=SHIFT)
    return t


SHIFT = torch.linspace(-1.0, 1.0, 9)


@way("")
def weights_projected_and_declared() -> Training:
    t = Training()
    monitor = t.attach()

    def project() -> None:
        with torch.no_grad():
            t.module.first.weight.mul_(0.9)
        monitor.accept_weights()

    t.fit(after=project)
    return t


@way("")
def ghost_clipping() -> Training:
    t = Training({"grad_sample_mode": "ghost"})
    t.attach()
    t.fit()
    return t


# ---------------------------------------------------------------- steps that nobody saw


def unseen_steps_behind(hook: Callable[[Any], Any]) -> Training:
    """Steps before the monitor is attached, and a hook that hides the accountant which counted them."""
    t = Training()
    t.optimizer.attach_step_hook(hook(t.optimizer.step_hook))
    t.fit(20, leaks=False)
    t.attach()
    t.fit(1)
    return t


class Hook:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, optimizer: Any) -> None:
        self.inner(optimizer)


@way("pass accountant=")
def steps_behind_a_lambda() -> Training:
    return unseen_steps_behind(lambda inner: lambda optimizer: inner(optimizer))


@way("pass accountant=")
def steps_behind_a_partial() -> Training:
    return unseen_steps_behind(lambda inner: partial(inner))


@way("pass accountant=")
def steps_behind_an_object() -> Training:
    return unseen_steps_behind(Hook)


@way("has seen 2 steps and the parameters 0, of which 0")
def steps_before_attaching() -> Training:
    t = Training()
    t.fit(2)
    t.attach()
    t.fit(1)
    return t


@way("has seen 0 steps and the parameters 1, of which 1")
def accountant_of_another_training() -> Training:
    t = Training()
    t.attach(accountant=RDPAccountant())
    t.fit(2)
    return t


@way("has seen 0 steps and the parameters 2, of which 2")
def accountant_that_is_set_back() -> Training:
    t = Training()
    t.attach()
    t.fit(2)
    account(t.optimizer).history.clear()
    t.fit(2)
    return t


@way("has seen 3 steps and the parameters 3, of which 2")
def steps_after_detaching() -> Training:
    t = Training()
    monitor = t.attach()
    t.fit(2)
    monitor.detach()
    t.fit(1)
    return t


@way("has seen 2 steps and the parameters 0, of which 0")
def another_monitor_for_the_rest() -> Training:
    t = Training()
    t.attach().detach()
    t.fit(2)
    t.attach()
    t.fit(1)
    return t


@way("of which 0")
def opacus_own_step_put_back() -> Training:
    t = Training()
    t.attach()
    t.optimizer.pre_step = MethodType(DPOptimizer.pre_step, t.optimizer)
    t.fit(2)
    return t


@way("the parameters 2, of which 1")
def second_optimizer() -> Training:
    t = Training()
    t.attach()
    other = torch.optim.SGD(t.module.head.parameters(), lr=1.0)
    t.fit(2, after=other.step)
    return t


@way("the parameters 2, of which 1")
def inner_optimizer_stepped_again() -> Training:
    t = Training()
    t.attach()
    t.fit(2, after=t.optimizer.original_optimizer.step)
    return t


@way("the weights were changed since the last step")
def descent_by_hand() -> Training:
    t = Training()
    t.attach()

    def descend() -> None:
        for p in t.module.parameters():
            p.data -= 0.1 * p.summed_grad

    t.fit(2, after=descend)
    return t


# ---------------------------------------------------------------- sampling


@way("the batch has")
def rate_raised_while_a_batch_is_drawn() -> Training:
    t = Training()
    t.attach()

    def batches() -> Iterator[Any]:
        while True:
            t.loader.batch_sampler.sample_rate = 0.95
            batch = next(iter(t.loader))
            t.loader.batch_sampler.sample_rate = BATCH / RECORDS
            yield batch

    t.fit(20, batches=batches(), leaks=False)
    return t


@way("records sampled with rate")
def another_loader_with_larger_batches() -> Training:
    t = Training()
    t.attach()
    t.fit(40, batches=chain.from_iterable(repeat(DataLoader(t.data, batch_size=20, shuffle=True))), leaks=False)
    return t


@way("exactly as many records as the one before")
def another_loader_with_fixed_batches() -> Training:
    t = Training()
    t.attach()
    t.fit(60, batches=chain.from_iterable(repeat(DataLoader(t.data, batch_size=BATCH, shuffle=True))), leaks=False)
    return t


@way("one record was sampled|records sampled with rate")
def another_loader_for_a_few_records() -> Training:
    t = Training()
    t.attach()

    def batches() -> Iterator[Any]:
        while True:
            chosen = [i for i in range(10) if torch.rand(()) < 0.8]
            yield t.data[chosen]

    torch.manual_seed(1)
    t.fit(60, batches=batches(), leaks=False)
    return t


@way("may draw a record more than once")
def weighted_sampler_as_if_all_took_part() -> Training:
    t = Training()
    loader = DataLoader(t.data, batch_size=BATCH, sampler=WeightedRandomSampler([100.0] + [1.0] * (RECORDS - 1), RECORDS))
    t.attach(loader=loader, amplification=False)
    return t


@way("may draw a record more than once")
def random_sampler_with_replacement() -> Training:
    t = Training()
    t.attach(loader=DataLoader(t.data, batch_size=BATCH, sampler=RandomSampler(t.data, replacement=True)), amplification=False)
    return t


class Always(Sampler[int]):
    """The first record, over and over."""

    def __iter__(self) -> Iterator[int]:
        return iter([0] * RECORDS)

    def __len__(self) -> int:
        return RECORDS


@way("may draw a record more than once")
def sampler_of_ones_own() -> Training:
    t = Training()
    t.attach(loader=DataLoader(t.data, batch_size=BATCH, sampler=Always()), amplification=False)
    return t


def twice(batches: Iterator[Any]) -> Iterator[Any]:
    for x, y in batches:
        yield torch.cat([x, x]), torch.cat([y, y])


@way("a record occurs more than once")
def records_repeated_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.fit(batches=twice(t.batches()), leaks=False)
    return t


@way("a record occurs more than once")
def records_repeated_without_amplification() -> Training:
    t = Training({"poisson_sampling": False})
    t.attach(amplification=False)
    t.fit(batches=twice(t.batches()), leaks=False)
    return t


@way("a record occurs more than once")
def batches_of_two_epochs_in_one_step() -> Training:
    t = Training({"poisson_sampling": False})
    t.attach(amplification=False)
    for x, y in chain(t.loader, t.loader):
        t.criterion(t.model(x), y).backward()
    t.optimizer.step()
    return t


@way("a record occurs more than once|records sampled with rate")
def two_draws_under_one_noise() -> Training:
    t = Training()
    t.attach()
    for number, (x, y) in enumerate(islice(t.batches(), 40)):
        t.optimizer.signal_skip_step(do_skip=number % 2 == 0)
        t.optimizer.zero_grad()
        t.criterion(t.model(x), y).backward()
        t.optimizer.step()
    return t


@way("a record that the data set does not")
def records_changed_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.fit(batches=((10.0 * x, y) for x, y in t.batches()), leaks=False)
    return t


@way("a record that the data set does not")
def targets_changed_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.fit(loss=lambda output, y: t.criterion(output, 1 - y), leaks=False)
    return t


@way("a record that the data set does not")
def data_set_changed_during_training() -> Training:
    t = Training()
    t.attach()
    t.fit(1)
    t.data.tensors[0][:, 3] *= 4.0
    t.fit(2)
    return t


# ---------------------------------------------------------------- weights and precision


@way("the weights were changed since the last step")
def weights_written_after_asking() -> Training:
    t = Training()
    monitor = t.attach()

    def change() -> None:
        assert monitor.may_step()
        t.module.first.weight.data.mul_(30.0)

    t.fit(before=change)
    return t


@way("changed between the forward pass and optimizer.step")
def weights_written_before_the_step() -> Training:
    t = Training()
    t.attach()
    t.fit(between=lambda: t.module.first.weight.data.mul_(0.01))
    return t


@way("changed between the forward pass and optimizer.step")
def buffer_written_before_the_step() -> Training:
    t = Training()
    t.attach()
    t.fit(between=lambda: t.module.scale.data.mul_(0.01))
    return t


@way("torch.autocast")
def forward_pass_in_bfloat16() -> Training:
    t = Training()
    t.attach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        t.fit(1, leaks=False)
    return t


@way("float32 or float64, got torch.bfloat16")
def weights_in_bfloat16() -> Training:
    t = Training()
    t.module.bfloat16()
    t.attach()
    return t


@way("must be 'highest', got 'medium'")
def matrix_products_in_low_precision() -> Training:
    t = Training()
    t.attach()
    torch.set_float32_matmul_precision("medium")
    try:
        t.fit(1)
    finally:
        torch.set_float32_matmul_precision("highest")
    return t


# ---------------------------------------------------------------- the loss and its gradients


@way("not the criterion's")
def loss_scaled_from_the_second_step_on() -> Training:
    t = Training()
    t.attach()
    scale = iter([1.0, 100.0, 100.0, 100.0])
    t.fit(4, loss=lambda output, y: next(scale) * t.criterion(output, y))
    return t


@way("not the criterion's")
def loss_with_a_second_term() -> Training:
    t = Training()
    t.attach()
    t.fit(loss=lambda output, y: t.criterion(output, y) + output.square().mean())
    return t


@way("not the criterion's")
def loss_that_weighs_one_record() -> Training:
    t = Training()
    t.attach()

    def loss(output: Any, y: Any) -> Any:
        value = t.criterion(output, y)
        rows = NONE(output, y)
        return value + 99.0 * rows[:1].sum() / len(rows)

    t.fit(loss=loss, leaks=False)
    return t


@way("not the criterion's")
def gradients_scaled_after_the_backward_pass() -> Training:
    t = Training()
    t.attach()

    def scale() -> None:
        for p in t.module.parameters():
            p.grad_sample = 0.01 * p.grad_sample

    t.fit(between=scale)
    return t


@way("not the criterion's")
def gradients_turned_after_the_backward_pass() -> Training:
    """Every norm is as it was."""
    t = Training()
    t.attach()

    def turn() -> None:
        weight = t.module.first.weight
        weight.grad_sample = weight.grad_sample.flip(-1).contiguous()

    t.fit(between=turn)
    return t


@way("away from the sum of the records' clipped gradients")
def no_clipping() -> Training:
    t = Training({"max_grad_norm": 0.01})
    t.attach()

    def add_up() -> None:
        for p in t.optimizer.params:
            p.summed_grad = p.grad_sample.sum(dim=0)

    t.optimizer.clip_and_accumulate = add_up
    t.fit()
    return t


@way("call loss.backward\\(\\) before")
def no_backward_pass() -> Training:
    t = Training()
    t.attach()
    x, y = next(iter(t.loader))
    t.criterion(t.model(x), y)
    t.optimizer.step()
    return t


@way("saw no forward pass|No activations detected")
def forward_pass_in_eval_mode() -> Training:
    t = Training()
    t.attach()
    t.model.eval()
    t.fit()
    return t


@way("saw 2 forward passes")
def two_forward_passes() -> Training:
    t = Training()
    t.attach()
    x, y = next(iter(t.loader))
    with torch.enable_grad():
        t.criterion(t.model(x), y)
        t.criterion(t.model(x), y).backward()
    t.optimizer.step()
    return t


# ---------------------------------------------------------------- noise


@way("the noise on first.weight has standard deviation 0")
def no_noise() -> Training:
    t = Training()
    t.attach()

    def bare() -> None:
        for p in t.optimizer.params:
            p.grad = p.summed_grad.clone()

    t.optimizer.add_noise = bare
    t.fit()
    return t


@way("the noise on head.bias has standard deviation 0")
def noise_on_some_parameters() -> Training:
    t = Training()
    t.attach()
    inner = t.optimizer.add_noise

    def most() -> None:
        inner()
        t.module.head.bias.grad = t.module.head.bias.summed_grad.clone()

    t.optimizer.add_noise = most
    t.fit()
    return t


@way("but noise_multiplier times max_grad_norm is 0.5")
def half_the_noise() -> Training:
    t = Training()
    t.attach()
    inner = t.optimizer.add_noise

    def less() -> None:
        t.optimizer.noise_multiplier /= 2.0
        inner()
        t.optimizer.noise_multiplier *= 2.0

    t.optimizer.add_noise = less
    t.fit(leaks=False)
    return t


@way("has taken it away again")
def noise_removed_in_the_step_hook() -> Training:
    t = Training()
    inner = t.optimizer.step_hook

    def hook(optimizer: Any) -> None:
        inner(optimizer)
        for p in optimizer.params:
            p.grad = p.summed_grad / optimizer.expected_batch_size

    t.optimizer.attach_step_hook(hook)
    t.attach(accountant=t.engine.accountant)
    t.fit()
    return t


@way("the noise is that of an earlier step again")
def noise_that_repeats() -> Training:
    t = Training()
    t.attach()
    t.fit(before=lambda: t.optimizer.generator.manual_seed(7) and None)
    return t


@way("but noise_multiplier times max_grad_norm")
def adjusted_noise_of_ghost_clipping() -> Training:
    t = Training({"grad_sample_mode": "ghost"})
    t.attach()
    t.optimizer._adjusted_noise_multiplier = 0.1
    t.fit()
    return t


@way("greater than 0, got 0")
def noise_switched_off_in_the_loop() -> Training:
    t = Training()
    t.attach()
    t.optimizer.noise_multiplier = 0.0
    t.fit(leaks=False)
    return t


@way("releases a count of clipped gradients")
def adaptive_clipping() -> Training:
    adaptive = {"clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2}
    t = Training(adaptive | {"max_clipbound": 9.0, "min_clipbound": 0.1, "unclipped_num_std": 5.0})
    t.attach()
    return t


# ---------------------------------------------------------------- state of another run


def resumed(*, other_weights: bool = False, secret: Any = SECRET, **options: Any) -> Training:
    """A training that takes over the state of one with much noise."""
    first = Training({"noise_multiplier": 50.0, **options})
    first.attach(secret=secret)
    first.fit(3)
    t = Training({"noise_multiplier": 50.0} if options or other_weights or secret is not SECRET else {"noise_multiplier": 0.5})
    monitor = t.attach()
    t.model.load_state_dict(first.model.state_dict())
    if other_weights:
        t.module.head.bias.data += 1.0
    assert first.monitor is not None
    account(t.optimizer).load_state_dict(account(first.optimizer).state_dict())
    monitor.load_state_dict(first.monitor.state_dict())
    _ = monitor.proof
    return t


@way("its noise_multiplier is 50.0, this one's 0.5")
def state_of_a_run_with_more_noise() -> Training:
    return resumed()


@way("its max_grad_norm is")
def state_of_a_run_with_another_clipping_norm() -> Training:
    return resumed(max_grad_norm=0.1)


@way("its values is")
def state_of_a_run_with_another_secret() -> Training:
    return resumed(secret=Secret.column(1, [*VALUES[:-1], 3.5], labels=list("abcdefg"), name="value"))


@way("belongs to other weights")
def state_of_a_run_with_other_weights() -> Training:
    return resumed(other_weights=True)


# ---------------------------------------------------------------- the tests


def claim(t: Training) -> tuple[float, float]:
    """(what the proof says was spent, what really leaked)."""
    assert t.monitor is not None
    return t.monitor.proof.spent, t.truth


def test_there_are_many_ways() -> None:
    assert len(WAYS) >= 40


@pytest.mark.parametrize("name", [name for name, (_, expected) in WAYS.items() if not expected])
def test_charged_at_least_the_truth(name: str) -> None:
    spent, truth = claim(WAYS[name][0]())
    assert truth > 0.0
    assert spent >= truth * (1.0 - 1e-9)
    if name == "as_promised":
        assert spent <= truth * (1.0 + 1e-2)  # the truth is no trifle, and honest training is not overcharged


@pytest.mark.parametrize("name", [name for name, (_, expected) in WAYS.items() if expected])
def test_refused_for_good(name: str) -> None:
    attack, expected = WAYS[name]
    MADE.clear()
    with pytest.raises((ValueError, RuntimeError), match=expected):
        claim(attack())
    monitor = MADE[-1].monitor
    if monitor is None:
        return
    try:
        steps = monitor.proof.steps
    except ValueError as problem:
        assert re.search("nothing is proved|belongs to other weights", str(problem))  # noqa: PT017
    else:
        assert steps == 0  # what was refused in the forward pass has led to no step
