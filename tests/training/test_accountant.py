"""The accountant that Opacus can use by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, registry
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import DPOptimizer, FSDPOptimizerFastGradientClipping
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import betastar as bs
from betastar.training import BetastarAccountant, private_loader
from betastar.training.opacus.adapter import require_counted, warn_of_shards

from .private import build, fit

#: What the warning of the divisor begins with.
DIVISOR = r"divides each noisy sum by ⌊N·rate⌋ = ⌊120 · 0\.1667⌋ = 20,"


def engine(kind: Any = PrivacyEngine, **options: Any) -> tuple[PrivacyEngine, Any]:
    module, data, _ = build("tanh")
    made = kind(accountant="betastar")
    given = {"noise_multiplier": 1.1, "max_grad_norm": 1.0, "data_loader": DataLoader(data, batch_size=20)} | options
    return made, made.make_private(module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), **given)


def test_epsilon_of_a_training_run() -> None:
    made, parts = engine()
    assert isinstance(made.accountant, BetastarAccountant)
    assert made.get_epsilon(1e-5) == 0.0
    with pytest.raises(ValueError, match="no step was taken yet"):
        made.accountant.bayes_security()
    fit(parts, nn.CrossEntropyLoss(), 30)
    run = bs.DPSGD(1.1, parts[2].sample_rate, 30)
    assert made.accountant.run == run
    assert len(made.accountant) == 30
    add_remove = bs.analyze(run, bs.Membership("add-remove"))
    assert made.accountant.risk().tpr(0.01) == bs.analyze(run).tpr(0.01)  # of substitution: without a warning
    with pytest.warns(UserWarning, match=DIVISOR):
        assert made.get_epsilon(1e-5) == add_remove.epsilon(1e-5).upper
    other = PRVAccountant()
    other.history = list(made.accountant.history)
    assert made.get_epsilon(1e-5) <= other.get_epsilon(1e-5) <= made.get_epsilon(1e-5) + 0.02  # its tolerance is .01
    assert made.accountant.bayes_security() == bs.analyze(run).bayes_security
    assert made.accountant.risk("add-remove").advantage == add_remove.advantage


def test_checkpoints_of_opacus(tmp_path: Path) -> None:
    made, parts = engine()
    fit(parts, nn.CrossEntropyLoss(), 4)
    made.save_checkpoint(path=tmp_path / "run.pt", module=parts[0], optimizer=parts[1])
    again, loaded = engine()
    again.load_checkpoint(path=tmp_path / "run.pt", module=loaded[0], optimizer=loaded[1])
    assert again.accountant.history == made.accountant.history
    assert again.accountant.run == made.accountant.run
    resumed = BetastarAccountant()
    resumed.load_state_dict(made.accountant.state_dict())
    with pytest.warns(UserWarning, match=DIVISOR):
        resumed.get_epsilon(1e-5)
    with pytest.raises(ValueError, match="annot be loaded"):
        PRVAccountant().load_state_dict(made.accountant.state_dict())


def test_states_that_do_not_say_how_batches_were_drawn() -> None:
    other = PRVAccountant()
    other.step(noise_multiplier=1.0, sample_rate=0.1)
    accountant, state = BetastarAccountant(), other.state_dict()
    with pytest.raises(ValueError, match=r"the accountant 'prv' cannot be loaded: .* accountant\.history = state\['history'\]"):
        accountant.load_state_dict(state)
    with pytest.raises(ValueError, match=r"the accountant 'betastar' cannot be loaded: it does not say how batches were drawn"):
        accountant.load_state_dict(state | {"mechanism": "betastar"})
    with pytest.raises(ValueError, match="empty or not the state of an accountant"):
        accountant.load_state_dict({})
    accountant.history = state["history"]
    assert accountant.run == bs.DPSGD(1.0, 0.1, 1)


def test_history_is_what_was_counted() -> None:
    accountant = BetastarAccountant()
    accountant.history = [(2.0, 0.1, 3)]
    accountant.history = [(1.0, 0.1, 3)]  # as Opacus does when it looks for a noise
    for noise in (1.0, 2.0, 1.0):
        accountant.step(noise_multiplier=noise, sample_rate=0.1)
    assert accountant.history == ((1.0, 0.1, 4), (2.0, 0.1, 1), (1.0, 0.1, 1))
    assert len(accountant) == 6
    again = BetastarAccountant()
    again.load_state_dict(accountant.state_dict())
    assert again.run == accountant.run == bs.DPSGD(1.0, 0.1, 4) + bs.DPSGD(2.0, 0.1, 1) + bs.DPSGD(1.0, 0.1, 1)
    for one in (accountant, again):
        with pytest.raises(ValueError, match="history is what was counted and cannot be assigned any more"):
            one.history = []
    with pytest.raises(AttributeError):
        accountant.history.append((9.0, 0.1, 1))  # type: ignore[attr-defined]
    assert accountant.get_epsilon(1e-5) > 0.0  # nothing is divided, and a warning of a divisor would be an error
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == float("inf")


def test_noise_for_a_target() -> None:
    noise = get_noise_multiplier(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.01, steps=500, accountant="betastar")
    wanted = bs.calibrate(bs.Target(epsilon=2.0, delta=1e-5), threat=bs.Membership("add-remove"), sample_rate=0.01, steps=500)
    assert noise == pytest.approx(wanted.noise_multiplier, abs=0.02)


def test_no_warning_of_a_divisor_where_the_loss_is_a_sum() -> None:
    made, parts = engine(loss_reduction="sum")
    fit(parts, nn.CrossEntropyLoss(reduction="sum"), 2)
    assert made.get_epsilon(1e-5) > 0.0  # a warning would be an error


ADAPTIVE = {
    **{"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 10.0, "min_clipbound": 0.1},
    **{"noise_multiplier": 1.0, "unclipped_num_std": 0.55},
}


def test_adaptive_clipping_of_opacus_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"optimizer clips adaptively \(AdaClipDPOptimizer\): .*clipping='flat'.*PrivateTraining"
    ):
        engine(clipping="adaptive", **ADAPTIVE)


def test_why_adaptive_clipping_is_refused() -> None:
    """Opacus counts unclipped gradients as 0 or 1 where the theorem that it cites has ±1/2. See `refuse_adaptive`."""
    module, data, _ = build("tanh")
    parts = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=120),
        **{"clipping": "adaptive", "poisson_sampling": False, "max_grad_norm": 10.0, **ADAPTIVE},  # no gradient is clipped
    )
    model, optimizer, loader = parts
    x, y = next(iter(loader))
    nn.CrossEntropyLoss()(model(x), y).backward()
    optimizer.clip_and_accumulate()
    assert int(optimizer.unclipped_num) == 120
    z, s = ADAPTIVE["noise_multiplier"], ADAPTIVE["unclipped_num_std"]
    joint = 1.0 / sqrt(1.0 / z**2 - 1.0 / (2.0 * s) ** 2 + 1.0 / s**2)  # 1 in the count, of standard deviation s
    alone = bs.analyze(bs.DPSGD(z, 1.0, 1), bs.Membership("add-remove")).advantage
    pair = bs.analyze(bs.DPSGD(joint, 1.0, 1), bs.Membership("add-remove")).advantage
    assert (round(float(alone.upper), 3), round(float(pair.upper), 3)) == (0.383, 0.649)


def test_adaptive_ghost_clipping_is_refused_before_a_step_is_taken() -> None:
    made, (model, optimizer, criterion, loader) = engine(
        PrivacyEngineAdaptiveClipping,
        grad_sample_mode="ghost",
        criterion=nn.CrossEntropyLoss(),
        poisson_sampling=False,
        data_loader=private_loader(DataLoader(build("tanh")[1], batch_size=20), "fixed-size"),
        noise_multiplier=1.0,
    )
    before = [p.detach().clone() for p in optimizer.params]
    with pytest.raises(ValueError, match=r"clips adaptively \(DPOptimizerFastGradientClipping\)"):
        fit((model, optimizer, loader), criterion, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, optimizer.params, strict=True))
    assert len(made.accountant) == 0


def test_an_optimizer_that_is_not_of_opacus_is_refused() -> None:
    class Own(DPOptimizer):  # type: ignore[misc]
        pass

    _, (model, optimizer, loader) = engine()
    own = Own(optimizer.original_optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=20)
    own.attach_step_hook(optimizer.step_hook)
    with pytest.raises(TypeError, match=r"Own is not an optimizer of Opacus whose steps can be counted"):
        fit((model, own, loader), nn.CrossEntropyLoss(), 1)


def test_what_is_counted_of_fully_sharded_training_is_said() -> None:
    sharded = FSDPOptimizerFastGradientClipping.__new__(FSDPOptimizerFastGradientClipping)
    require_counted(sharded)
    with pytest.warns(UserWarning, match=r"noise multiplier and the rate of the loader are counted\. .* is not checked"):
        warn_of_shards(sharded)


def test_random_records_in_place_of_empty_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rand_on_empty=True.* twice the clipping norm"):
        engine(rand_on_empty=True)


class Stream(IterableDataset[Any]):
    def __len__(self) -> int:
        return 120

    def __iter__(self) -> Iterator[Any]:
        return iter(build("tanh")[1])


class Halves(UniformWithReplacementSampler):  # type: ignore[misc]
    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(60)), list(range(60, 120))] * 3)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda data: DataLoader(data, batch_size=20), r"Poisson\), got SequentialSampler"),
        (lambda data: DataLoader(Stream(), batch_size=20), "one of Stream without a batch sampler: how it draws is not known"),
        (lambda data: DataLoader(data, batch_sampler=Halves(num_samples=120, sample_rate=1 / 6)), "got Halves"),
    ],
    ids=["in order", "stream", "own sampler"],
)
def test_a_loader_that_is_not_known_is_not_counted_as_poisson(loader: Any, message: str) -> None:
    made = loader(build("tanh")[1])
    with pytest.raises(ValueError, match=message):
        engine(data_loader=made, poisson_sampling=False)
    with pytest.raises(ValueError, match=message):
        BetastarAccountant().follow(made)
    with pytest.raises(TypeError, match="must be a DataLoader of PyTorch, got list"):
        BetastarAccountant().follow([1])  # type: ignore[arg-type]


def test_without_a_loader_only_what_is_stated_is_counted() -> None:
    _, parts = engine()
    accountant = BetastarAccountant()
    parts[1].attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=1 / 6))
    with pytest.raises(ValueError, match=r"does not know which loader draws the batches: call accountant\.follow\(loader\)"):
        fit(parts, nn.CrossEntropyLoss(), 1)
    assert len(accountant) == 0
    accountant.step(noise_multiplier=1.1, sample_rate=1 / 6)
    assert accountant.run == bs.DPSGD(1.1, 1 / 6, 1)


def test_noise_for_an_epsilon_is_of_poisson_sampling_only() -> None:
    module, data, _ = build("tanh")
    parts = {"module": module, "optimizer": torch.optim.SGD(module.parameters(), lr=0.1), "max_grad_norm": 1.0}
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "epochs": 2}
    bins = private_loader(DataLoader(data, batch_size=20))
    with pytest.raises(
        ValueError, match=r"the noise of Poisson sampling, but the loader draws batches otherwise \('balls-in-bins'\)"
    ):
        PrivacyEngine(accountant="betastar").make_private_with_epsilon(
            data_loader=bins, poisson_sampling=False, **parts, **target
        )


def test_the_rate_is_that_of_the_sampler() -> None:
    """Opacus tells 1/92 of a loader with 93 batches, because 1 / (1 / 93) is rounded to less than 93."""
    made, parts = engine(data_loader=DataLoader(build("tanh")[1], batch_sampler=[[0]] * 93))
    assert len(parts[2]) == 92
    fit(parts, nn.CrossEntropyLoss(), 2)
    assert made.accountant.run == bs.DPSGD(1.1, 1 / 93, 2)


def test_a_batch_in_several_pieces_is_one_step() -> None:
    made, (model, optimizer, loader) = engine()
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=7, optimizer=optimizer) as pieces:
        fit((model, optimizer, pieces), nn.CrossEntropyLoss(), 5)
    assert made.accountant.run == bs.DPSGD(1.1, 1 / 6, 5)


def test_a_name_that_belongs_to_opacus_registers_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing of this package were imported yet."""
    monkeypatch.delitem(registry._ACCOUNTANTS, "betastar")
    for name in [name for name in sys.modules if name.startswith("betastar.training.opacus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("betastar.training.opacus", None)
    assert importlib.import_module("betastar.training").private_loader is not private_loader
    assert PrivacyEngine(accountant="betastar").accountant.mechanism() == "betastar"
