"""Gap clipping: what would break its promise is refused or noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from betastar.training import AttributeMonitor, GradientError, Records, Secret

from .private import VALUES, build, clone, fit, gapped, private, table
from .test_gap_clipping import weights


def test_plain_functions_are_called_through_the_optimizer() -> None:
    module, data, secret = build("tanh")

    def loss(output: Any, target: Any) -> Any:
        return nn.functional.cross_entropy(output, target)

    parts, _ = gapped(module, data, secret, loss, gap=0.1)
    before = weights(parts)
    with pytest.raises(RuntimeError, match=r"optimizer\.gap_clipping\.criterion"):
        fit(parts, loss, 1)
    assert torch.equal(before, weights(parts))
    fit(parts, parts[1].gap_clipping.criterion, 3)
    assert not torch.equal(before, weights(parts))


def test_another_loss_than_the_criterion_is_noticed() -> None:
    module, data, secret = build("tanh")
    parts, criterion = gapped(module, data, secret, gap=0.1)
    before = weights(parts)
    x, y = data.tensors[0][:9], data.tensors[1][:9]
    (3.0 * criterion(parts[0](x), y)).backward()
    with pytest.raises(GradientError, match="not the criterion's"):
        parts[1].step()
    parts[1].zero_grad()
    criterion(parts[0](x), y).backward()
    criterion(parts[0](x), y).backward()
    with pytest.raises(RuntimeError, match="2 forward passes"):
        parts[1].step()
    parts[1].zero_grad()
    criterion(parts[0](x), y)
    with pytest.raises(GradientError, match="no gradient was back-propagated"):
        parts[1].step()
    assert torch.equal(before, weights(parts))


@pytest.mark.parametrize("forget", ["model", "later"])
def test_sums_of_several_steps_are_never_noised_together(forget: str) -> None:
    """Without optimizer.zero_grad() the clipped sums of earlier steps are still there: the step is refused, as by Opacus."""
    module, data, secret = build("tanh")
    (model, optimizer, _), criterion = gapped(module, data, secret, gap=0.1)
    x, y = data.tensors[0][:9], data.tensors[1][:9]

    def turn(forgotten: bool) -> None:
        (model if forgotten else optimizer).zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    for _ in range(1 if forget == "model" else 5):
        turn(forgotten=False)
    before = weights((model, optimizer))
    with pytest.raises(ValueError, match=r"Gradients haven't been cleared"):
        turn(forgotten=True)
    assert torch.equal(before, weights((model, optimizer)))


def test_candidates_that_differ_by_rounding_are_refused() -> None:
    """The record itself beside all values computed again: its own value would count twice in the mean."""

    def candidates(record: Records) -> Records:
        values = torch.cat([record.inputs[0][:, 1], torch.tensor([0.0, 0.25, 1.0]) * (1 + 1e-6) + 1e-7])
        rows = record.inputs[0].repeat(4, 1)
        rows[:, 1] = values
        return Records((rows,), record.target.repeat(4))

    data = table(30)
    data.tensors[0][:, 1] = torch.tensor([0.0, 0.25, 1.0])[torch.arange(30) % 3]
    module, _, _ = build("tanh")
    (model, optimizer, _), criterion = gapped(module, data, Secret.function(candidates, 4), gap=0.05)
    criterion(model(data.tensors[0]), data.tensors[1]).backward()
    with pytest.raises(ValueError, match="the same records again, bit for bit"):
        optimizer.step()


def test_steps_without_the_gap_are_not_proved() -> None:
    module, data, secret = build("tanh")
    engine = PrivacyEngine(accountant="betastar")
    plain = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
    )
    fit(plain, nn.CrossEntropyLoss(), 3)
    parts, criterion = gapped(clone(module, "tanh"), data, secret, gap=0.01, engine=engine)
    with pytest.raises(ValueError, match="nothing is proved: the accountant has seen 3 steps and the parameters 0"):
        fit(parts, criterion, 2)
    with pytest.raises(ValueError, match="nothing is proved"):
        parts[1].gap_clipping.promise()


def test_low_precision() -> None:
    module, data, secret = build("conv")
    with pytest.raises(ValueError, match=r"float32 or float64, got torch\.bfloat16"):
        gapped(module.bfloat16(), TensorDataset(data.tensors[0].bfloat16(), data.tensors[1]), secret, gap=0.1)
    module, data, secret = build("tanh")
    (_, optimizer, _), _ = gapped(module, data, secret, gap=0.001)
    batch = Records((data.tensors[0][:9],), data.tensors[1][:9])
    exact = optimizer.gap_clipping.clipped_sum.total(batch).clipped
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = optimizer.gap_clipping.clipped_sum.total(batch).clipped
    for parameter, value in inside.items():
        assert torch.equal(value, exact[parameter])


def test_after_a_part_of_a_batch_failed_nothing_more_is_done() -> None:
    module, data, secret = build("tanh")
    (model, optimizer, loader), criterion = gapped(module, data, secret, gap=0.1)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=5, optimizer=optimizer) as parts:
        batches = iter(parts)
        x, y = next(batches)
        criterion(model(x * torch.inf), y).backward()
        with pytest.raises(GradientError, match="not finite"):
            optimizer.step()
        optimizer.zero_grad()
        x, y = next(batches)
        criterion(model(x), y).backward()
        with pytest.raises(RuntimeError, match="may be used twice"):
            optimizer.step()


def test_bad_input_is_refused() -> None:
    module, data, secret = build("tanh")
    for options, problem, message in (
        ({"gap": 2.5}, ValueError, r"gap must be between 0 and 2.*got 2\.5"),
        ({"gap": -0.1}, ValueError, r"gap must be between 0 and 2.*got -0\.1"),
        ({}, TypeError, "give gap, or bayes_security with epochs"),
        ({"gap": 0.1, "bayes_security": 0.9, "epochs": 1}, TypeError, "not both"),
        ({"bayes_security": 0.9}, TypeError, "epochs belongs to bayes_security"),
        ({"bayes_security": 1.0, "epochs": 1}, ValueError, "strictly between 0 and 1"),
        ({"bayes_security": 1.0 - 1e-13, "epochs": 3}, ValueError, "cannot be reached by choosing gap"),
        ({"gap": [0.1, 0.2]}, ValueError, "one for each of the 1 secrets"),
        ({"gap": 0.1, "secret": [secret, secret]}, ValueError, "different names"),
        ({"gap": 0.1, "secret": [Secret.joint(secret, Secret.label(2)), secret]}, ValueError, "'secret' shares columns"),
        ({"gap": 0.1, "secret": [secret, Secret.function(lambda r: r, 2)]}, ValueError, "function of the whole record"),
        ({"gap": 0.1, "secret": "age"}, TypeError, "must be a Secret"),
        ({"gap": 0.1, "criterion": 3}, TypeError, "criterion must be callable"),
        ({"gap": 0.1, "secret": Secret.column(1, [*VALUES, 99.0], name="s")}, ValueError, r"no record holds the value 99\.0"),
        ({"gap": 0.1, "secret": Secret.column(1, VALUES[:-1], name="s")}, ValueError, "never takes the value"),
    ):
        given = {"module": clone(module, "tanh"), "data": data, "secret": secret, **options}
        with pytest.raises(problem, match=message):
            gapped(**given)
    parts, criterion = gapped(module, data, secret, gap=0.1)
    with pytest.raises(ValueError, match="clips gaps"):
        AttributeMonitor(*parts, criterion, secret)


def test_more_combinations_than_fit_are_refused() -> None:
    module, data, _ = build("tanh")
    grid = torch.linspace(-9.0, 9.0, 7)
    generator = torch.Generator().manual_seed(0)
    data.tensors[0][:, :] = grid[torch.randint(7, (120, 6), generator=generator)]
    parts = [Secret.column(k, grid.tolist(), name=f"c{k}") for k in range(5)]
    for secret, memory, message in (
        (
            Secret.joint(*parts),
            1 << 20,
            r"16807 values or combinations of them, of which \d+ fit into \d+ bytes: raise memory",
        ),
        (parts[:4], 1 << 24, r"2401 values or combinations of them, of which 723 fit"),
    ):
        with pytest.raises(ValueError, match=message):
            gapped(clone(module, "tanh"), data, secret, gap=0.1, memory=memory)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.head, self.reentrant = nn.Linear(6, 9), nn.Linear(9, 2), reentrant

    def forward(self, x: Any) -> Any:
        return self.head(checkpoint(lambda z: torch.tanh(self.first(z)), x, use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize(("reentrant", "why"), [(False, "the backward pass calls it again"), (True, "it is called without them")])
def test_gradient_checkpointing_is_refused(reentrant: bool, why: str) -> None:
    message = rf"gradients of first \(Linear\) cannot be computed: {why}\. Switch off gradient checkpointing"
    secret = Secret.column(1, VALUES)
    with pytest.raises(GradientError, match=message):
        gapped(Checkpointed(reentrant), table(), secret, gap=0.1)
    with pytest.raises(GradientError, match=message):
        AttributeMonitor(*private(Checkpointed(reentrant), table()), nn.CrossEntropyLoss(), secret)


def second_optimizer(parts: Any, criterion: Any) -> None:
    fit(parts, criterion, 1)
    torch.optim.SGD(parts[1].params, lr=1.0).step()


def descent_by_hand(parts: Any, criterion: Any) -> None:
    fit(parts, criterion, 1)
    for p in parts[1].params:
        p.data -= p.summed_grad.to(p.dtype)


def records_twice(parts: Any, criterion: Any) -> None:
    fit((parts[0], parts[1], ((torch.cat([x, x]), torch.cat([y, y])) for x, y in parts[2])), criterion, 1)


def larger_batches(parts: Any, criterion: Any) -> None:
    fit((parts[0], parts[1], DataLoader(parts[2].dataset, batch_size=100, shuffle=True)), criterion, 1)


def noise_removed(parts: Any, criterion: Any) -> None:
    inner = parts[1].add_noise

    def bare() -> None:
        inner()
        for p in parts[1].params:
            p.grad = p.summed_grad.to(p.dtype)

    parts[1].add_noise = bare
    fit(parts, criterion, 1)


def noise_repeated(parts: Any, criterion: Any) -> None:
    for _ in range(2):
        parts[1].generator.manual_seed(7)
        fit(parts, criterion, 1)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (second_optimizer, "the parameters 2, of which 1 are covered"),
        (descent_by_hand, "the weights were changed since the last step"),
        (records_twice, "a record occurs more than once"),
        (larger_batches, "the batch has 100 records"),
        (noise_removed, "the noise on 0.weight has standard deviation"),
        (noise_repeated, "the noise is that of an earlier step again"),
    ],
)
def test_training_otherwise_leaves_nothing_promised(attack: Any, message: str) -> None:
    module, data, secret = build("tanh")
    parts, criterion = gapped(module, data, secret, gap=0.1)

    def train_and_promise() -> None:
        attack(parts, criterion)
        parts[1].gap_clipping.promise()

    with pytest.raises((ValueError, RuntimeError), match=message):
        train_and_promise()
    with pytest.raises(ValueError, match="nothing is proved"):
        parts[1].gap_clipping.promise()


def test_the_loss_is_compared_at_every_step() -> None:
    module, data, secret = build("tanh")
    parts, criterion = gapped(module, data, secret, gap=0.1)
    for step in range(20):
        x, y = next(iter(parts[2]))
        parts[1].zero_grad()
        ((1.0 if step < 7 else 1.5) * criterion(parts[0](x), y)).backward()
        if step < 7:
            parts[1].step()
            continue
        with pytest.raises(GradientError, match="not the criterion's"):
            parts[1].step()
        return


def test_the_sum_of_many_like_records_keeps_the_gap() -> None:
    """16,384 like records add up to a long vector, whose rounding in single precision is wider than the gap."""
    module, _, _ = build("tanh")
    x = torch.zeros(16384, 6)
    x[:, 0], x[:, 1] = 1.0, VALUES[0]
    secret, gap, sums = Secret.column(1, VALUES, name="secret", unseen=True), 1e-4, []
    parts, _ = gapped(module, TensorDataset(x, torch.zeros(len(x)).long()), secret, batch=16384, gap=gap, max_grad_norm=0.5)
    for value in (VALUES[0], VALUES[-1]):
        x[0, 1] = value
        total = parts[1].gap_clipping.clipped_sum.total(Records((x,), torch.zeros(len(x)).long())).clipped
        sums.append(torch.cat([total[p].flatten() for p in parts[1].params]))
    assert float(sums[0].norm()) > 1000.0
    assert 0.5 * gap * 0.5 < float((sums[0] - sums[1]).norm()) <= parts[1].gap_clipping.distance() * 0.5
