"""Gap clipping: the gap holds for every record and value at every step, and nothing else of the training changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import betastar as bs
from betastar.calibrate import enforced
from betastar.training import Records, Secret
from betastar.training.gap_clipping import weights_in_turn
from betastar.training.gradients.factors import Factor, Gradients

from .private import VALUES, build, clipped, clipped_sum, clone, diameters, sum_of, table, training, weighed

pytestmark = pytest.mark.filterwarnings("ignore:gradients are computed by:UserWarning")  # of the DPLSTM


def weights(module: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def whole(data: TensorDataset, number: int | None = None) -> Records:
    return Records((data.tensors[0][:number],), data.tensors[1][:number])


def pulled(points: Tensor, gap: float) -> Tensor:
    """ĝ for each value that a record may hold, by the formula: (n, a, d) -> (n, a, d)."""
    mean = points.mean(dim=1, keepdim=True)
    away = points - mean
    return mean + away * (0.5 * gap / away.norm(dim=2, keepdim=True)).clamp(max=1.0)


@pytest.mark.parametrize(
    ("name", "gap"),
    [
        *(("tanh", gap) for gap in (0.3, 0.02, 1e-4, 0.0)),
        *((name, 0.02) for name in ("relu3", "conv", "embedding", "layernorm", "lstm", "twice")),
    ],
)
def test_every_record_and_value_keeps_the_gap_at_every_step(name: str, gap: float) -> None:
    module, data, secret = build(name, classes=3)
    made, records = training(module, data, secret, gap=gap), whole(data, 12)
    for _ in range(3):
        points = clipped(clone(module, name, classes=3), records, secret)
        _, own, used = weighed(clipped_sum(made), records)
        gap_clipped = torch.bmm(used, points)
        assert float(diameters(gap_clipped).max()) <= gap * (1.0 + 1e-6) + 1e-7  # the oracle's own rounding: gradients in float32
        assert float(gap_clipped.norm(dim=2).max()) <= 1.0 + 1e-6
        torch.testing.assert_close(gap_clipped, pulled(points, gap), rtol=2e-4, atol=1e-6)
        torch.testing.assert_close(sum_of(made, records), gap_clipped[range(12), own].sum(dim=0), rtol=1e-4, atol=2e-6)
        assert float(diameters(points).max()) > 0.02  # there is something to clip
        made.step()


def test_the_gap_is_exact_where_gradients_are() -> None:
    """In float64 the oracle's rounding does not hide what the weights do."""
    module, data, secret = build("tanh", classes=3)
    module.double()
    data = TensorDataset(data.tensors[0].double(), data.tensors[1])
    points = clipped(clone(module, "tanh", classes=3).double(), whole(data), secret)
    for gap in (0.5, 1e-3, 1e-6):
        made = training(clone(module, "tanh", classes=3).double(), data, secret, gap=gap)
        gap_clipped = torch.bmm(weighed(clipped_sum(made), whole(data))[2], points)
        assert gap * 0.9 < float(diameters(gap_clipped).max()) <= gap * (1.0 + 1e-6)


def test_the_sum_of_many_like_records_keeps_the_gap() -> None:
    """16,384 like records add up to a long vector, whose rounding in single precision is wider than the gap."""
    module, _, _ = build("tanh")
    x, y = torch.zeros(16384, 6), torch.zeros(16384).long()
    x[:, 0], x[:, 1] = 1.0, VALUES[0]
    secret, gap, sums = Secret.column(1, VALUES, name="secret", unseen=True), 1e-4, []
    made = training(module, TensorDataset(x, y), secret, gap=gap)
    for value in (VALUES[0], VALUES[-1]):
        x[0, 1] = value
        sums.append(sum_of(made, Records((x,), y)))
    assert float(sums[0].norm()) > 1000.0
    assert 0.5 * gap < float((sums[0] - sums[1]).norm()) <= enforced(gap)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_gap_of_two_is_plain_dpsgd(make: Any) -> None:
    ends = []
    for options in ({}, {"gap": 2.0}, {"gap": 1.99}, {"gap": 0.0}):
        module, data, secret = build("tanh")
        made = training(module, data, secret if options else None, optimizer=make, steps=6, **options)
        ends.append(weights(made.fit(progress=False).model))
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[2], ends[0], rtol=1e-4, atol=1e-5)
    assert float((ends[3] - ends[0]).norm()) > 1e-4


def test_parts_of_a_batch_change_nothing() -> None:
    ends = []
    for memory in (1 << 27, 1 << 20):
        module, data, secret = build("conv")
        ends.append(weights(training(module, data, secret, gap=0.1, memory=memory, steps=4).fit(progress=False).model))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-6)


def test_an_empty_batch_is_noise_only() -> None:
    module, data, secret = build("tanh")
    made = training(module, data, secret, gap=0.1, batch_size=1, seed=1)
    sizes = []
    for _ in range(8):
        before = weights(module)
        sizes.append(made.step().batch_size)
        assert float((weights(module) - before).norm()) > 0.0
    assert 0 in sizes
    assert weights(module).isfinite().all()


@pytest.mark.parametrize("gaps", [(0.3, 0.05), (0.05, 0.3), (0.01, 2.0)])
def test_several_secrets_keep_their_own_gaps(gaps: tuple[float, float]) -> None:
    data = table(60)
    data.tensors[0][:, 3] = torch.tensor([-2.0, 0.5, 3.0])[torch.arange(60) % 3]
    first, second = Secret.column(1, VALUES, name="first"), Secret.column(3, [-2.0, 0.5, 3.0], name="second")
    module, _, _ = build("tanh", classes=2)
    made = training(module, data, [first, second], gap=list(gaps), lr=1.0, steps=5).fit(progress=False)
    both = clipped_sum(made).secret
    gap_clipped = torch.bmm(weighed(clipped_sum(made), whole(data))[2], clipped(clone(module, "tanh"), whole(data), both))
    if max(gaps) < 2.0:  # the smaller gap comes last and varies fastest
        sizes = [secret.count for secret in sorted((first, second), key=lambda s: -made.gaps[s.name])]
        grid, ordered = gap_clipped.unflatten(1, sizes), sorted(gaps, reverse=True)
        for gap, others in zip(ordered, (grid.transpose(1, 2), grid), strict=True):
            assert float(diameters(others.flatten(0, 1)).max()) <= gap * (1.0 + 1e-6) + 1e-7
        assert float(diameters(grid.flatten(0, 1)).max()) > 0.5 * ordered[1]
    assert float(gap_clipped.norm(dim=2).max()) <= 1.0 + 1e-6
    for name, gap in zip(("first", "second"), gaps, strict=True):
        wanted = bs.analyze(made.run, bs.AttributeInference(enforced(gap)), "certified").bayes_security.lower
        assert made.guarantee.attributes[name].bayes_security.lower == wanted
    assert made.guarantee.attribute is None


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


def test_an_earlier_secret_is_clipped_to_less_for_that() -> None:
    """The worst case of the lemma: of nine values of the second secret, one moves across and eight along, by the first's gap."""
    gap, values = 1e-3, 9
    still = torch.tensor([[0.5, 0.0]] + [[-0.5 / (values - 1), 0.0]] * (values - 1)).double()
    moved = still + gap * torch.tensor([[0.0, 1.0]] + [[-1.0, 0.0]] * (values - 1)).double()
    points = torch.cat([still, moved])[None].expand(2, -1, -1)
    shares = [torch.full((2, count), 1.0 / count, dtype=torch.float64) for count in (2, values)]
    used = weights_in_turn(Gradients((Factor(points.contiguous()),)), torch.tensor([0, values]), shares, [gap, 1.0])
    first, second = torch.einsum("na,nae->ne", used, points)
    assert 0.9 * gap < float((first - second).norm()) <= gap * (1.0 + 1e-9)


def few() -> TensorDataset:
    data = table(30)
    data.tensors[0][:, 1] = torch.tensor([0.0, 0.25, 1.0])[torch.arange(30) % 3]
    return data


def test_each_candidate_of_a_function_counts_once() -> None:
    """The mean must not depend on the order or the number of times in which the function lists the candidates."""

    def candidates(record: Records) -> Records:
        here = float(record.inputs[0][0, 1])
        others = [v for v in (0.0, 0.25, 1.0) if v != here] if here in (0.0, 0.25, 1.0) else [here]
        listed = [here, *others] if here > 0.1 else [*others, here]  # the order depends on the secret
        rows = record.inputs[0].repeat(len(listed), 1)
        rows[:, 1] = torch.tensor(listed)
        return Records((rows,), record.target.repeat(len(listed)))

    module, _, _ = build("tanh")
    function, column = Secret.function(candidates, 5, name="few"), Secret.column(1, [0.0, 0.25, 1.0], name="few")
    sums = [sum_of(training(clone(module, "tanh"), few(), one, gap=0.05), whole(few())) for one in (function, column)]
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-7)


def test_candidates_that_differ_by_rounding_are_refused() -> None:
    """The record itself beside all values computed again: its own value would count twice in the mean."""

    def candidates(record: Records) -> Records:
        values = torch.cat([record.inputs[0][:, 1], torch.tensor([0.0, 0.25, 1.0]) * (1 + 1e-6) + 1e-7])
        rows = record.inputs[0].repeat(4, 1)
        rows[:, 1] = values
        return Records((rows,), record.target.repeat(4))

    made = training(build("tanh")[0], few(), Secret.function(candidates, 4), gap=0.05)
    with pytest.raises(ValueError, match="the same records again, bit for bit"):
        made.step()


def test_frequencies_of_the_values_weigh_the_mean() -> None:
    module, data, plain = build("tanh", classes=3)
    prior = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05, 0.0])
    secret, records = plain.with_prior(prior), whole(data, 20)
    assert plain.prior is None
    points = clipped(clone(module, "tanh", classes=3), records, secret)
    mean = (prior.double()[:, None] * points).sum(dim=1, keepdim=True)
    away = points - mean
    expected = mean + away * (0.05 / away.norm(dim=2, keepdim=True)).clamp(max=1.0)
    gap_clipped = torch.bmm(weighed(clipped_sum(training(module, data, secret, gap=0.1)), records)[2], points)
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
    label, column, records = Secret.label(3), Secret.column(1, VALUES, name="column"), whole(data, 20)
    for secret in (label, Secret.joint(label, column)):
        made = training(clone(module, "tanh", classes=3), data, secret, gap=0.1)
        points = clipped(clone(module, "tanh", classes=3), records, secret)
        gap_clipped = torch.bmm(weighed(clipped_sum(made), records)[2], points)
        assert 0.05 < float(diameters(gap_clipped).max()) <= 0.1 * (1 + 1e-6) + 1e-7
        same = secret.variants(records, range(secret.count))
        rows = torch.arange(20) * secret.count + secret.own(records)
        torch.testing.assert_close(same.take(rows).inputs[0], records.inputs[0])
        assert torch.equal(same.take(rows).target, records.target)


@pytest.mark.parametrize("sampling", ["poisson", "balls-in-bins"])
def test_a_target_sets_the_gap_before_training(sampling: str) -> None:
    module, data, secret = build("tanh")
    target, options = bs.Target(bayes_security=0.97), {"sampling": sampling, "noise_multiplier": 2.0, "epochs": 2}
    made = training(module, data, secret, attribute_target=target, **options)
    promised = made.planned_guarantee().attribute
    assert promised is not None
    assert 0.97 <= promised.bayes_security.lower < 0.971
    assert 0.0 < made.gaps["secret"] < 2.0
    made.fit(progress=False)
    assert made.guarantee.attribute.bayes_security == promised.bayes_security
    assert made.guarantee.membership.bayes_security.upper < promised.bayes_security.lower


def test_more_combinations_than_fit_are_refused() -> None:
    module, data, _ = build("tanh")
    grid = torch.linspace(-9.0, 9.0, 7)
    data.tensors[0][:, :] = grid[torch.randint(7, (120, 6), generator=torch.Generator().manual_seed(0))]
    parts = [Secret.column(k, grid.tolist(), name=f"c{k}") for k in range(5)]
    for secret, memory, message in (
        (Secret.joint(*parts), 1 << 20, r"16807 values or combinations of them, of which \d+ fit into \d+ bytes: raise memory"),
        (parts[:4], 1 << 24, r"2401 values or combinations of them, of which \d+ fit"),
    ):
        with pytest.raises(ValueError, match=message):
            training(clone(module, "tanh"), data, secret, gap=0.1, memory=memory)


def test_autocast_around_a_step_is_not_taken() -> None:
    module, data, secret = build("tanh")
    made = training(module, data, secret, gap=0.001)
    exact = sum_of(made, whole(data, 9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sum_of(made, whole(data, 9)), exact)


def test_bad_input_is_refused() -> None:
    module, data, secret = build("tanh")
    for options, problem, message in (
        ({"gap": 2.5}, ValueError, r"gap must be between 0 and 2.*got 2\.5"),
        ({"gap": -0.1}, ValueError, r"gap must be between 0 and 2.*got -0\.1"),
        ({}, TypeError, "secret needs gap, attribute_target or budget"),
        ({"gap": [0.1, 0.2]}, ValueError, "one for each of the 1 secrets"),
        ({"gap": 0.1, "secret": [secret, secret]}, ValueError, "different names"),
        ({"gap": 0.1, "secret": [Secret.joint(secret, Secret.label(2)), secret]}, ValueError, "'secret' shares columns"),
        ({"gap": 0.1, "secret": [secret, Secret.function(lambda r: r, 2)]}, ValueError, "function of the whole record"),
        ({"gap": 0.1, "secret": [3]}, TypeError, "must be a Secret"),
        ({"gap": 0.1, "secret": Secret.column(1, [*VALUES, 99.0], name="s")}, ValueError, r"no record holds the value 99\.0"),
        ({"gap": 0.1, "secret": Secret.column(1, VALUES[:-1], name="s")}, ValueError, "never takes the value"),
    ):
        given = {"module": clone(module, "tanh"), "data": data, "secret": secret, **options}
        with pytest.raises(problem, match=message):
            training(**given)
