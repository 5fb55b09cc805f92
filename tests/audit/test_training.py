"""Games on real training: canaries, observers, worlds and resume."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.utils.data import DataLoader, TensorDataset

import betastar as bs
from betastar import audit
from betastar.audit.evidence.attackers import CanaryAttacker, Evidence, RecordAttacker, RecordGradients, UpdateAttacker, watching
from betastar.audit.evidence.challenges import Canaries, challenge_of, marks
from betastar.audit.rungs.games import digest
from betastar.training import Records, Secret
from tests.audit.trainings import BATCH, NORM, Listed, claim, factory, make, one_run, play, table


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_canary_pushes_its_own_weight_by_a_clipping_norm(mode: str) -> None:
    """Without noise, each step shows how often canaries were sampled: whole numbers; and nobody else is seen there."""
    data = table()
    made = marks(data.tensors[0], 3, torch.Generator().manual_seed(0))
    model = Canaries(factory(), made, [0, 1, 1], [1.0, 1.0, -1.0])
    assert torch.equal(model(data.tensors[0]), model.model(data.tensors[0]))
    assert model.seen == 0
    whole = TensorDataset(torch.cat([data.tensors[0], made]), torch.cat([data.tensors[1], torch.tensor([0, 1, 1])]))
    seen: list[Tensor] = []

    class Watcher(UpdateAttacker):
        def observe(self, rate: float, noise: float, trained: set[int]) -> tuple[Any, Any]:
            assert model.canary.weight.grad is not None
            seen.append(model.canary.weight.grad[0].clone() * (int(len(whole) / 6) / NORM))
            return np.zeros(2), np.zeros(2)

    torch.manual_seed(0)
    with watching(model, Watcher(Evidence(claim(1.0, 1), np.zeros(2)))):
        make(0.0, 30, grad_sample_mode=mode)(model, whole)
    observed = torch.stack(seen)
    assert len(observed) == 30 * 6
    assert torch.allclose(observed, observed.round(), atol=1e-3)
    assert set(observed[:, 0].round().tolist()) == {0.0, 1.0}
    assert {-1.0, 1.0} <= set(observed[:, 1].round().tolist())
    assert 0.1 < float(observed[:, 0].mean()) < 0.25


def test_attributes_of_the_model_are_found_behind_the_canaries() -> None:
    inner = factory()
    inner.special = 3  # type: ignore[assignment]
    model = Canaries(inner, torch.randn(1, 6), [0], [1.0])
    assert model.special == 3
    with pytest.raises(AttributeError, match="nothing"):
        _ = model.nothing


@pytest.mark.parametrize("shape", [(2,), ()])
def test_canaries_in_an_empty_batch(shape: tuple[int, ...]) -> None:
    """Poisson sampling may draw nobody."""
    model = Canaries(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)) if shape == () else factory(), torch.randn(1, 6), [0], [1.0])
    output = model(torch.empty(0, 6))
    assert output.shape == (0, *shape)
    output.sum().backward()
    assert model.canary.weight.grad is not None
    assert float(model.canary.weight.grad.abs().sum()) == 0.0


def test_canaries_for_whole_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, (200, 8), generator=generator)
    made = marks(tokens, 5, generator)
    assert made.dtype == tokens.dtype
    assert len({tuple(row.tolist()) for row in made}) == 5
    with pytest.raises(ValueError, match="data must have records"):
        marks(torch.zeros(30, 2, dtype=torch.long), 2, generator)


def test_the_observer_weighs_as_the_formula_says() -> None:
    """Against the covariance written out and inverted."""
    data, run = table(12), bs.DPSGD(0.7, 0.3, 5)
    challenge = challenge_of(data, bs.Membership(), 3, None, None, 0)
    model, twin = factory(), factory()
    gradients = RecordGradients(twin, nn.CrossEntropyLoss(), NORM)
    everyone = challenge.others(100, torch.Generator().manual_seed(0))
    evidence = Evidence(run, np.zeros(2))
    attacker = RecordAttacker(evidence, model, gradients, challenge.records(), [True, True], 4.0, lambda: everyone, 11)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    trained = {id(p) for p in model.parameters()}
    towards, squares = attacker.observe(0.3, 0.7, trained)

    weights = {name: p.detach() for name, p in model.named_parameters()}

    def one(x: Tensor, y: Tensor) -> Any:
        def loss(w: dict[str, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(functional_call(model, w, (x[None],)), y[None])

        flat = torch.cat([g.flatten() for g in grad(loss)(weights).values()]).double()
        return (flat / max(float(flat.norm()), NORM)).numpy()

    others = np.stack([one(*data[i]) for i in range(12) if i != 3])
    covariance = 0.49 * np.eye(others.shape[1]) + 0.3 * 0.7 * others.T @ others
    candidates = np.stack([one(*records[0]) for records in challenge.candidates])  # type: ignore[misc]
    seen = 4.0 * torch.cat([p.grad.flatten() for p in model.parameters()]).double().numpy()  # type: ignore[union-attr]
    weighed = np.linalg.solve(covariance, candidates.T).T
    assert np.allclose(towards, weighed @ (seen - 0.3 * others.sum(axis=0)), rtol=1e-4, atol=1e-6)
    assert np.allclose(squares, (weighed * candidates).sum(axis=1), rtol=1e-4)
    attacker.step(trained)
    assert np.allclose(attacker.logs, np.log(0.7 + 0.3 * np.exp(towards - squares / 2)))


def test_layers_that_cannot_be_vectorised_are_taken_one_by_one() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            return out if float(out.sum()) > 1e9 else 2.0 * out  # looks at a value, which vmap forbids

    odd, data = Odd(), table(10)
    records = Records((data.tensors[0],), data.tensors[1])
    gradients = RecordGradients(odd, nn.CrossEntropyLoss(), 1e9).raw(records)
    loss = nn.functional.cross_entropy(odd(data.tensors[0]), data.tensors[1], reduction="sum")
    whole = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(odd.parameters()))])
    assert torch.allclose(gradients.sum(dim=0), whole, atol=1e-5)


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_a_record_as_it_is(relation: str) -> None:
    """48 records: removing one changes neither the number of batches nor the whole part of the expected batch."""
    result = play(threat=bs.Membership(relation), challenge=4, data=table(48), train=make(0.5, 1), run=claim(0.5, 1))
    assert set(result.audits) == {"updates", "weights", "outputs"}
    assert "record 4" in result.challenge
    assert result["weights"].games == 20
    assert result.leakage is not None
    assert result.leakage.games == 40
    assert not result.violated


def test_add_or_remove_with_a_canary() -> None:
    result = play(threat=bs.Membership("add-remove"), train=make(0.5, 1), run=claim(0.5, 1), games=120)
    assert result["updates"].allowed.estimate in result["updates"].success
    assert set(result.audits) == {"updates", "weights"}


def test_the_record_itself_may_be_the_challenge() -> None:
    data = table()
    one, other = (play(challenge=challenge, references=10) for challenge in (4, data[4]))
    assert one.as_dict() == other.as_dict()


def test_a_data_set_of_another_kind() -> None:
    one, other = (play(data=data, challenge=4, references=10) for data in (table(), Listed(table())))
    assert one.as_dict() == other.as_dict()


def test_attribute_inference() -> None:
    """Two values that gradients tell apart, at a prior that is not even; and three, of which one is frequent."""
    data = table()
    secret = Secret.column(1, [-8.0, 0.0, 8.0], unseen=True, name="x")
    lively = {"train": make(0.3, 2, lr=0.5), "run": claim(0.3, 2), "secret": secret, "games": 60}
    two = play(data=data, challenge=7, values=[-8.0, 8.0], prior=0.3, **lively)
    assert two["updates"].threat == bs.AttributeInference(2.0)
    assert not two.violated
    assert two["updates"].success.estimate > 0.75
    assert two["updates"].prior == 0.3
    three = play(data=data, challenge=7, prior=[0.5, 0.25, 0.25], **lively)
    updates = three["updates"]
    assert updates.roc == ()
    assert not three.violated
    assert updates.success.estimate > 0.55
    beta = float(bs.analyze(claim(0.3, 2), bs.AttributeInference(2.0)).bayes_security.lower)
    assert updates.allowed.upper == pytest.approx(1.0 - beta * 0.5)
    assert three.leakage is not None
    assert three.leakage.worlds == 3


def test_a_label_can_be_the_secret() -> None:
    result = play(challenge=4, secret=Secret.label(2), train=make(0.15, 2), run=claim(0.15, 2))
    assert result["updates"].success.estimate > 0.7


def test_it_goes_on_where_it_was_interrupted(tmp_path: Any) -> None:
    whole = play(games=40)

    def stop(done: int, total: int) -> None:
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(games=40, folder=tmp_path, tell=stop)
    kept = sorted(path.name for path in tmp_path.glob("games-*.npz"))
    assert 2 <= len(kept) < 4
    before = (tmp_path / kept[0]).stat().st_mtime_ns
    assert play(games=40, folder=tmp_path, seed=None).as_dict() == whole.as_dict()
    assert (tmp_path / kept[0]).stat().st_mtime_ns == before
    more = play(games=50, folder=tmp_path)
    assert more["updates"].games == 50
    assert more.as_dict() == play(games=50).as_dict()
    with pytest.raises(ValueError, match="holds another audit: its seed is 1, not 2"):
        play(folder=tmp_path, seed=2)
    with pytest.raises(ValueError, match="holds another audit: its weights is 74, not 26"):
        play(folder=tmp_path, factory=lambda: nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 4)))
    with pytest.raises(ValueError, match=r"its lr is None, not 0\.5"):
        play(folder=tmp_path, depends={"lr": 0.5})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(ValueError, match="folder must be new, empty or of an audit"):
        play(folder=tmp_path / "full")


@pytest.mark.slow
def test_processes_change_nothing() -> None:
    """Nor do processes that were there before, without torch: joblib takes what they load for a leak, and replaces them."""
    audit.mechanism(claim(1.0, 1), games=1000, jobs=2)
    assert play(games=40, jobs=2).as_dict() == play(games=40).as_dict()


def test_the_callers_randomness_is_left_alone() -> None:
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    play(games=20)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


@pytest.mark.parametrize("attacker", ["updates", "weights"])
def test_one_run(attacker: str) -> None:
    honest = one_run(attacker=attacker)
    assert not honest.violated
    assert 0.0 <= honest.epsilon <= honest.claimed
    assert honest.canaries == 200
    assert honest == one_run(attacker=attacker)


def test_one_run_finds_noise_that_is_missing() -> None:
    train = make(5.0, 5, scale=0.02)
    told: dict[str, Any] = {"max_grad_norm": NORM, "canaries": 200, "seed": 1}
    result = audit.one_run(factory, train, table(), lambda records: claim(5.0, 5, records), **told)
    assert result.violated
    assert result.sentence.startswith("Bound violated")
    assert result.epsilon > result.claimed


def test_one_run_with_values() -> None:
    """Each canary has one of four values; the attacker guesses which."""
    honest = one_run(values=4, canaries=60)
    assert (honest.values, honest.violated) == (4, False)
    train = make(5.0, 5, scale=0.02)
    told: dict[str, Any] = {"max_grad_norm": NORM, "canaries": 60, "values": 4, "guesses": 60, "seed": 1}
    result = audit.one_run(factory, train, table(), lambda records: claim(5.0, 5, records), **told)
    assert result.violated
    assert result.right > 50


def test_the_canary_eye_reads_the_claim() -> None:
    model = Canaries(factory(), torch.randn(1, 6), [0], [1.0])
    model.canary.weight.grad = torch.full_like(model.canary.weight, 0.2)
    attacker = CanaryAttacker(Evidence(claim(2.0, 1), np.zeros(2)), model, np.array([1.0, -1.0]), BATCH / NORM)
    towards, squares = attacker.observe(0.1, 2.0, {id(model.canary.weight)})
    assert np.allclose(towards, [0.5, -0.5])
    assert np.allclose(squares, 0.25)


def test_the_twin_has_what_is_not_trained() -> None:
    """Weights that are frozen where they were drawn, and buffers: the attacker sees the model as it is."""

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("directions", torch.randn(6, 8))
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(torch.tanh(x @ self.directions))
            return out

    result = play(factory=Features, train=make(0.05, 2), run=claim(0.05, 2), challenge=4)
    assert result["updates"].success.estimate > 0.65


def test_outputs_of_one_number() -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)[:, 0]
            return out

    def train(model: nn.Module, data: Any) -> None:
        engine, loader = PrivacyEngine(), DataLoader(data, batch_size=BATCH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"noise_multiplier": 1.0, "max_grad_norm": NORM}
        private, optimizer, loader = engine.make_private(module=model, optimizer=optimizer, data_loader=loader, **options)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(private(x), y.float()).backward()
            optimizer.step()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(output, target.float())

    assert not play(factory=Score, train=train).violated
    assert not play(factory=Score, train=train, criterion=loss, challenge=4).violated


def test_a_distance_that_is_exceeded_is_said() -> None:
    secret = Secret.column(1, [-8.0, 8.0], unseen=True, name="x")
    lively = {"train": make(0.3, 2, lr=0.5), "run": claim(0.3, 2), "secret": secret, "games": 60, "challenge": 7}
    result = play(threat=bs.AttributeInference(0.05), **lively)
    assert result.violated
    assert result.beyond is not None
    assert result.beyond > 0.05
    assert "it is this distance that is refuted" in result.sentence


def test_streams_have_nothing_in_common() -> None:
    """Starting weights, noise, the attacker's own draws: noise that repeats the starting weights would tell too much."""
    from betastar.audit.evidence.playing import streams

    assert len({*streams(1, 3), *streams(2, 3)}) == 6
    assert streams(1, 3) == streams(1, 3)


HELPED = """
RATE, SETTINGS = 0.1, {"noise": [1.0, 2.0]}

def helper(x):
    return x * 2

class Loop:
    turns = 3

    def go(self, x):
        return x + self.turns

def train(model, data, scale=1.0):
    return [helper(x) * RATE * SETTINGS["noise"][0] + Loop().go(scale) for x in data]
"""
CHANGES = {"0.1": "0.2", "[1.0, 2.0]": "[1.5, 2.0]", "x * 2": "x * 3", "turns = 3": "turns = 4", "scale=1.0": "scale=2.0"}


def test_kept_games_belong_to_their_code() -> None:
    """Helpers, classes, defaults and globals that a training uses are part of its digest; a comment is not."""
    challenge = challenge_of(table(), bs.Membership(), 3, None, None, 0)

    def of(text: str) -> str:
        names: dict[str, Any] = {"__name__": "mine"}
        exec(compile(text, "mine.py", "exec"), names)
        return digest([names["train"]], challenge)

    own = of(HELPED)
    assert own == of(HELPED + "# a comment")
    changed = [HELPED.replace(a, b) for a, b in CHANGES.items()]
    assert len({own, *map(of, changed)}) == 1 + len(changed)
    assert digest([make(1.0)], challenge) == digest([make(1.0)], challenge) != digest([make(1.1)], challenge)
