"""Gap clipping: the gap holds for every record and value at every step, and nothing else of the training changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import betastar as bs
from betastar.calibrate import enforced
from betastar.training import Records, Secret
from betastar.training.gap_clipping import GapClipping

from .private import VALUES, build, clipped, clone, diameters, fit, gapped, private, table, weighed


def weights(parts: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parts[1].params])


def pulled(points: Tensor, gap: float) -> Tensor:
    """ĝ for each value that a record may hold, by the formula: (n, a, d) -> (n, a, d)."""
    mean = points.mean(dim=1, keepdim=True)
    away = points - mean
    return mean + away * (0.5 * gap / away.norm(dim=2, keepdim=True)).clamp(max=1.0)


def used(clipping: GapClipping, records: Records) -> Tensor:
    """Weights of the variants in ĝ, if each record held each of its values: (n, a, a)."""
    gradients, own, _ = weighed(clipping, records)
    count = clipping._secret.count
    return torch.stack([clipping.clipped_sum.weights(gradients, torch.full_like(own, k), records) for k in range(count)], dim=1)


@pytest.mark.parametrize(
    ("name", "gap"),
    [
        *(("tanh", gap) for gap in (0.3, 0.02, 1e-4, 0.0)),
        *((name, 0.02) for name in ("relu3", "conv", "embedding", "layernorm", "lstm", "twice")),
    ],
)
def test_every_record_and_value_keeps_the_gap_at_every_step(name: str, gap: float) -> None:
    module, data, secret = build(name, classes=3)
    parts, criterion = gapped(module, data, secret, gap=gap)
    records = Records((data.tensors[0][:12],), data.tensors[1][:12])
    largest = []

    def watch(x: Any, y: Any) -> None:
        points = clipped(clone(module, name, classes=3), records, secret)
        gap_clipped = torch.bmm(used(parts[1].gap_clipping, records), points)
        assert float(diameters(gap_clipped).max()) <= gap * (1.0 + 1e-6) + 1e-7  # the oracle's own rounding: gradients in float32
        assert float(gap_clipped.norm(dim=2).max()) <= 1.0 + 1e-6
        torch.testing.assert_close(gap_clipped, pulled(points, gap), rtol=2e-4, atol=1e-6)
        largest.append(float(diameters(points).max()))

    fit(parts, criterion, 3, watch)
    assert min(largest) > 0.02  # there was something to clip


def test_the_gap_is_exact_where_gradients_are(monkeypatch: Any) -> None:
    """In float64 the oracle's rounding does not hide what the weights do."""
    module, data, secret = build("tanh", classes=3)
    module.double()
    data = TensorDataset(data.tensors[0].double(), data.tensors[1])
    for gap in (0.5, 1e-3, 1e-6):
        parts, _ = gapped(clone(module, "tanh", classes=3).double(), data, secret, gap=gap)
        records = Records((data.tensors[0],), data.tensors[1])
        copy = clone(module, "tanh", classes=3).double()
        gap_clipped = torch.bmm(used(parts[1].gap_clipping, records), clipped(copy, records, secret))
        assert gap * 0.9 < float(diameters(gap_clipped).max()) <= gap * (1.0 + 1e-6)


@pytest.mark.parametrize("name", ["tanh", "conv", "lstm", "embedding", "twice"])
def test_the_sum_is_that_of_the_pulled_gradients(name: str) -> None:
    module, data, secret = build(name)
    parts, criterion = gapped(module, data, secret, gap=0.1)
    model, optimizer, _ = parts
    x, y = data.tensors[0][:12], data.tensors[1][:12]
    records = Records((x,), y)
    expected = pulled(clipped(clone(module, name), records, secret), 0.1)[range(12), secret.own(records)].sum(dim=0) * 0.5
    criterion(model(x), y).backward()
    sums = optimizer.gap_clipping.clipped_sum.total(optimizer.gap_clipping._batch().records)
    torch.testing.assert_close(
        torch.cat([sums.clipped[p].flatten() for p in module.parameters()]).double(), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(("name", "options"), [("tanh", {}), ("lstm", {}), ("tanh", {"clipping": "per_layer"})])
def test_a_gap_of_two_is_plain_dpsgd(name: str, make: Any, options: Any) -> None:
    options = {"max_grad_norm": [0.3, 0.2, 0.4, 0.1], **options} if options else {}
    plain_module, data, secret = build(name)
    plain = private(plain_module, data, optimizer=make, **options)
    fit(plain, nn.CrossEntropyLoss(), 8)
    module, _, _ = build(name)
    parts, criterion = gapped(module, data, secret, optimizer=make, gap=2.0, **options)
    fit(parts, criterion, 8)
    torch.testing.assert_close(weights(parts), weights(plain), rtol=1e-5, atol=1e-5)
    other, _, _ = build(name)
    clipped_parts, criterion = gapped(other, data, secret, optimizer=make, gap=0.0, **options)
    fit(clipped_parts, criterion, 8)
    assert float((weights(clipped_parts) - weights(plain)).norm()) > 1e-4


def test_chunks_and_physical_batches_change_nothing() -> None:
    trained = []
    for memory, physical in ((1 << 27, None), (1 << 20, None), (1 << 27, 7)):
        module, data, secret = build("conv")
        parts, criterion = gapped(module, data, secret, gap=0.1, memory=memory)
        if physical is None:
            fit(parts, criterion, 4)
        else:
            with BatchMemoryManager(data_loader=parts[2], max_physical_batch_size=physical, optimizer=parts[1]) as loader:
                fit((parts[0], parts[1], loader), criterion, 4)
        trained.append(weights(parts))
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trained[2], trained[0], rtol=1e-5, atol=1e-6)


def test_an_empty_batch_is_noise_only() -> None:
    module, data, secret = build("tanh")
    parts, criterion = gapped(module, data, secret, batch=2, gap=0.1)
    model, optimizer, _ = parts
    before = weights(parts)
    criterion(model(data.tensors[0][:0]), data.tensors[1][:0]).backward()
    optimizer.step()
    after = weights(parts)
    assert after.isfinite().all()
    assert float((after - before).norm()) > 0.0
    assert int(optimizer.gap_clipping.run.steps) == 1


def two_secrets() -> tuple[TensorDataset, Secret, Secret]:
    data = table(60)
    data.tensors[0][:, 3] = torch.tensor([-2.0, 0.5, 3.0])[torch.arange(60) % 3]
    return data, Secret.column(1, VALUES, name="first"), Secret.column(3, [-2.0, 0.5, 3.0], name="second")


@pytest.mark.parametrize("gaps", [(0.3, 0.05), (0.05, 0.3), (0.1, 0.1), (0.01, 2.0)])
def test_several_secrets_keep_their_own_gaps(gaps: tuple[float, float]) -> None:
    data, first, second = two_secrets()
    module, _, _ = build("tanh", classes=2)
    parts, criterion = gapped(module, data, [first, second], gap=list(gaps), lr=1.0)
    fit(parts, criterion, 5)
    clipping = parts[1].gap_clipping
    records = Records((data.tensors[0],), data.tensors[1])
    both = clipping._secret
    points = clipped(clone(module, "tanh"), records, both)
    gap_clipped = torch.bmm(used(clipping, records), points)
    if max(gaps) < 2.0:  # the smaller gap comes last and varies fastest
        sizes = [secret.count for secret in sorted((first, second), key=lambda s: -clipping.gaps[s.name])]
        grid = gap_clipped.unflatten(1, sizes)
        ordered = sorted(gaps, reverse=True)
        per_first = diameters(grid.transpose(1, 2).flatten(0, 1)).max()
        per_second = diameters(grid.flatten(0, 1)).max()
        assert float(per_first) <= ordered[0] * (1.0 + 1e-6) + 1e-7
        assert float(per_second) <= ordered[1] * (1.0 + 1e-6) + 1e-7
        assert float(per_second) > 0.5 * ordered[1]
    assert float(gap_clipped.norm(dim=2).max()) <= 1.0 + 1e-6
    risks = [clipping.risk(name).bayes_security.lower for name in ("first", "second")]
    wanted = [bs.analyze(clipping.run, bs.AttributeInference(enforced(g)), "certified") for g in gaps]
    assert risks == [risk.bayes_security.lower for risk in wanted]
    with pytest.raises(ValueError, match="each has a gap of its own"):
        clipping.risk()


def test_in_turn_is_the_same_as_at_once_for_one_secret() -> None:
    """Two ways to the same weights: sums written out, and all inner products."""
    from betastar.training.gap_clipping import weights_at_once as at_once
    from betastar.training.gap_clipping import weights_in_turn

    module, data, secret = build("tanh", classes=3)
    parts, _ = gapped(module, data, secret, gap=0.1)
    records = Records((data.tensors[0],), data.tensors[1])
    gradients, own, _ = weighed(parts[1].gap_clipping, records)
    shares = secret.shares(records)
    for gap in (1.0, 0.1, 1e-3):
        torch.testing.assert_close(weights_in_turn(gradients, own, [shares], [gap]), at_once(gradients, own, shares, gap))


def test_pulling_for_another_secret_widens_a_gap_by_up_to_root_two() -> None:
    """The lemma's constant is attained, so that it cannot be left out; and never exceeded."""

    def pull(u: Tensor, v: Tensor, radius: float) -> Tensor:
        away = u - v
        return v + away * (radius / away.norm(dim=-1, keepdim=True)).clamp(max=1.0)

    generator = torch.Generator().manual_seed(0)
    u, v, du, dv = (torch.randn(200_000, 3, generator=generator, dtype=torch.float64) for _ in range(4))
    for step in (1e-4, 0.1, 1.0):
        du, dv = (step * d / d.norm(dim=1, keepdim=True) for d in (du, dv))
        moved = (pull(u + du, v + dv, 1.0) - pull(u, v, 1.0)).norm(dim=1).max() / step
        assert float(moved) <= 2.0**0.5 + 1e-9
    worst_u, worst_v = torch.tensor([[1.0 + 1e-6, 0.0]]).double(), torch.zeros(1, 2).double()
    shift_u, shift_v = torch.tensor([[0.0, 1e-3]]).double(), torch.tensor([[-1e-3, 0.0]]).double()
    moved = (pull(worst_u + shift_u, worst_v + shift_v, 1.0) - pull(worst_u, worst_v, 1.0)).norm() / 1e-3
    assert float(moved) > 1.41


def test_each_candidate_of_a_function_counts_once() -> None:
    """The mean must not depend on the order or the number of times in which the function lists the candidates."""

    def candidates(record: Records) -> Records:
        here = float(record.inputs[0][0, 1])
        others = [v for v in (0.0, 0.25, 1.0) if v != here] if here in (0.0, 0.25, 1.0) else [here]
        listed = [here, *others] if here > 0.1 else [*others, here]  # the order depends on the secret
        rows = record.inputs[0].repeat(len(listed), 1)
        rows[:, 1] = torch.tensor(listed)
        return Records((rows,), record.target.repeat(len(listed)))

    data = table(30)
    data.tensors[0][:, 1] = torch.tensor([0.0, 0.25, 1.0])[torch.arange(30) % 3]
    module, _, _ = build("tanh")
    function = Secret.function(candidates, 5, name="few")
    column = Secret.column(1, [0.0, 0.25, 1.0], name="few")
    sums = []
    for secret in (function, column):
        parts, criterion = gapped(clone(module, "tanh"), data, secret, gap=0.05)
        criterion(parts[0](data.tensors[0]), data.tensors[1]).backward()
        total = parts[1].gap_clipping.clipped_sum.total(parts[1].gap_clipping._batch().records).clipped
        sums.append(torch.cat([total[p].flatten() for p in parts[1].params]))
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-7)


def test_frequencies_of_the_values_weigh_the_mean() -> None:
    module, data, plain = build("tanh", classes=3)
    prior = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05, 0.0])
    secret = plain.with_prior(prior)
    assert plain.prior is None
    records = Records((data.tensors[0][:20],), data.tensors[1][:20])
    points = clipped(clone(module, "tanh", classes=3), records, secret)
    mean = (prior.double()[:, None] * points).sum(dim=1, keepdim=True)
    away = points - mean
    expected = mean + away * (0.05 / away.norm(dim=2, keepdim=True)).clamp(max=1.0)
    parts, _ = gapped(module, data, secret, gap=0.1)
    gap_clipped = torch.bmm(used(parts[1].gap_clipping, records), points)
    torch.testing.assert_close(gap_clipped, expected, rtol=1e-4, atol=1e-6)
    assert float(diameters(gap_clipped).max()) <= 0.1 * (1 + 1e-6) + 1e-7
    joint = Secret.joint(secret, Secret.label(3))
    torch.testing.assert_close(joint.shares(records).sum(dim=1), torch.ones(20, dtype=torch.float64))
    assert float(joint.shares(records)[0, 0]) == pytest.approx(0.4 / 3)
    for wrong in ([0.5, 0.5], [0.5] * 7, [1.5, -0.5, 0, 0, 0, 0, 0]):
        with pytest.raises(ValueError, match="prior must be 7 numbers of at least 0 that add up to 1"):
            plain.with_prior(wrong)
    with pytest.raises(ValueError, match="each record has candidates of its own"):
        Secret.function(lambda record: record, 2).with_prior([0.5, 0.5])


def test_labels_and_joint_secrets() -> None:
    module, data, _ = build("tanh", classes=3)
    label, column = Secret.label(3), Secret.column(1, VALUES, name="column")
    for secret in (label, Secret.joint(label, column)):
        records = Records((data.tensors[0][:20],), data.tensors[1][:20])
        parts, _ = gapped(clone(module, "tanh", classes=3), data, secret, gap=0.1)
        points = clipped(clone(module, "tanh", classes=3), records, secret)
        gap_clipped = torch.bmm(used(parts[1].gap_clipping, records), points)
        assert 0.05 < float(diameters(gap_clipped).max()) <= 0.1 * (1 + 1e-6) + 1e-7
        same = secret.variants(records, range(secret.count))
        rows = torch.arange(20) * secret.count + secret.own(records)
        torch.testing.assert_close(same.take(rows).inputs[0], records.inputs[0])
        assert torch.equal(same.take(rows).target, records.target)


def test_a_target_sets_the_gap_before_training() -> None:
    module, data, secret = build("tanh")
    parts, criterion = gapped(module, data, secret, bayes_security=0.95, epochs=2, noise_multiplier=2.0)
    clipping = parts[1].gap_clipping
    steps = 2 * len(parts[2])
    promised = clipping.risk(steps=steps).bayes_security.lower
    assert 0.95 <= promised < 0.951
    assert "Proved in advance" in clipping.promise(steps)
    with pytest.raises(ValueError, match="no step was taken yet"):
        clipping.risk()
    for _ in range(2):
        fit(parts, criterion, len(parts[2]))
    assert clipping.risk().bayes_security.lower == promised
    assert clipping.membership().bayes_security.upper < promised
    run = clipping.run
    assert (run.steps, run.noise_multiplier) == (steps, 2.0)


def test_an_engine_of_ones_own_keeps_the_account() -> None:
    module, data, secret = build("tanh")
    engine = PrivacyEngine(accountant="prv")
    parts, criterion = gapped(module, data, secret, gap=0.1, engine=engine)
    fit(parts, criterion, 5)
    assert engine.accountant.history == [(1.0, parts[2].sample_rate, 5)]
    assert engine.get_epsilon(1e-5) > 0.0
    assert parts[1].gap_clipping.run == bs.DPSGD(1.0, parts[2].sample_rate, 5)


def test_the_state_goes_with_the_accountants() -> None:
    module, data, secret = build("tanh")
    engine = PrivacyEngine(accountant="betastar")
    parts, criterion = gapped(module, data, secret, gap=0.1, engine=engine)
    fit(parts, criterion, 3)
    kept, account = parts[1].gap_clipping.state_dict(), engine.accountant.state_dict()
    again = PrivacyEngine(accountant="betastar")
    resumed, criterion = gapped(clone(module, "tanh"), data, secret, gap=0.1, engine=again)
    again.accountant.load_state_dict(account)
    resumed[1].gap_clipping.load_state_dict(kept)
    fit(resumed, criterion, 2)
    assert int(resumed[1].gap_clipping.run.steps) == 5
    narrower, _ = gapped(clone(module, "tanh"), data, secret, gap=0.001)
    with pytest.raises(ValueError, match=r"its gaps is \{'secret': 0\.1\}, not \{'secret': 0\.001\}"):
        narrower[1].gap_clipping.load_state_dict(kept)
