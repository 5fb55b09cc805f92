"""Games on trainings of other kinds: batches that are not Poisson's, gap clipping, persons with several records, texts and
several inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from scipy.special import logsumexp
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import betastar as bs
from betastar import audit
from betastar.audit.evidence.attackers import Evidence, GapClippedGradients, RecordGradients, log_of_hits
from betastar.audit.evidence.challenges import with_arguments
from betastar.training import PrivateTraining, Records, Secret, TextField, by_name, private_loader
from tests.audit.replayed import FLAG, Columns, Text, flags, several_inputs, texts
from tests.audit.trainings import BATCH, NORM, QUICK, RECORDS, Listed, factory, play, table

CAP = 14


def make_sampled(sampling: str, noise: float, epochs: int = 1, scale: float = 1.0) -> Any:
    """A training whose batches are drawn in this way."""

    def train(model: nn.Module, data: Any) -> None:
        loader: Any = DataLoader(data, batch_size=BATCH, shuffle=sampling == "shuffled")
        if sampling != "shuffled":
            loader = private_loader(loader, sampling, max_batch_size=CAP if sampling == "poisson" else None)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=scale * noise,
            max_grad_norm=NORM,
            poisson_sampling=False,
        )
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    return train


def claim_sampled(sampling: str, noise: float, epochs: int = 1) -> bs.DPSGD:
    more = {"poisson": {"max_batch_size": CAP, "dataset_size": RECORDS}, "fixed-size": {"dataset_size": RECORDS}}
    return bs.DPSGD(noise, BATCH / RECORDS, 5 * epochs, sampling, **more.get(sampling, {}))


SAMPLINGS = ("balls-in-bins", "fixed-size", "poisson", "shuffled")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_correct_training_of_any_sampling_is_not_accused(sampling: str) -> None:
    for challenge in ("canary", 4) if sampling == "balls-in-bins" else (4,):
        run = claim_sampled(sampling, 0.7)
        result = play(train=make_sampled(sampling, 0.7), run=run, challenge=challenge, references=20)
        assert not result.violated
        assert result["updates"].run == run
        assert result["weights"].heuristic is None  # which is about Poisson sampling


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_broken_training_of_any_sampling_is_found(sampling: str) -> None:
    result = play(train=make_sampled(sampling, 4.0, scale=0.02), run=claim_sampled(sampling, 4.0), games=60)
    assert result.violated


def test_balls_in_bins_are_weighed_by_epochs() -> None:
    """The attacker on a canary reaches the exact advantage of balls in bins; weighing steps as Poisson's would reach less."""
    run = claim_sampled("balls-in-bins", 0.5)
    result = play(train=make_sampled("balls-in-bins", 0.5), run=run, games=120, confidence=0.999)
    assert result["updates"].allowed.estimate in result["updates"].success


def test_evidence_of_epochs_and_of_copies_by_hand() -> None:
    run = bs.DPSGD(1.0, 0.25, 8, "balls-in-bins")
    random = np.random.default_rng(0)
    towards, squares = random.normal(size=(8, 3)), random.random((8, 3))
    evidence = Evidence(run, np.zeros(3))
    for step in range(8):
        evidence.add(step, towards[step], squares[step])
    ratios = (towards - 0.5 * squares).reshape(2, 4, 3)
    np.testing.assert_allclose(evidence.logs, (logsumexp(ratios, axis=1) - np.log(4.0)).sum(axis=0))
    copies = Evidence(bs.DPSGD(1.0, 0.25, 8), np.zeros(3), copies=2)
    copies.add(0, towards[0], squares[0])
    by_hand = (
        0.75**2 + 2 * 0.25 * 0.75 * np.exp(towards[0] - 0.5 * squares[0]) + 0.25**2 * np.exp(2 * towards[0] - 2 * squares[0])
    )
    np.testing.assert_allclose(copies.logs, np.log(by_hand))
    np.testing.assert_allclose(log_of_hits(towards[0], squares[0], 1.0, 3), 3 * towards[0] - 4.5 * squares[0])


@pytest.mark.parametrize("sampling", ["balls-in-bins", "fixed-size"])
def test_one_run_of_another_sampling(sampling: str) -> None:
    def run(records: int) -> bs.DPSGD:
        batches = -(-records // BATCH)
        more = {"dataset_size": records} if sampling == "fixed-size" else {}
        return bs.DPSGD(4.0, records // batches / records if more else 1 / batches, 2 * batches, sampling, **more)

    told: dict[str, Any] = {"max_grad_norm": NORM, "canaries": 100, "seed": 1}
    assert not audit.one_run(factory, make_sampled(sampling, 4.0, 2), table(), run, **told).violated
    assert audit.one_run(factory, make_sampled(sampling, 4.0, 2, scale=0.02), table(), run, **told).violated


@pytest.mark.slow
def test_a_person_with_several_records() -> None:
    """A canary in three copies meets the bound for three records; it refutes the bound for one."""
    from tests.audit.trainings import claim, make

    three = {"train": make(1.0, 1), "run": claim(1.0, 1), "games": 80, "confidence": 0.999}
    for relation in ("substitution", "add-remove"):
        result = play(threat=bs.Membership(relation, records=3), **three)
        assert result.challenge == "a canary in 3 copies"
        assert not result.violated
        assert result["updates"].allowed.estimate in result["updates"].success
    records = play(threat=bs.Membership(records=2), challenge=[3, 7], references=10)
    assert records.challenge == "records 3, 7 of the data"
    assert not records.violated
    removed = play(threat=bs.Membership("add-remove", records=2), challenge=[3, 7], data=table(48), references=10)
    assert not removed.violated
    for wrong in (3, [3, 3], [3]):
        with pytest.raises(ValueError, match='challenge must be "canary" or the numbers of the 2 records'):
            play(threat=bs.Membership(records=2), challenge=wrong)
    with pytest.raises(ValueError, match="data must have more records than the person, 50, got 50"):
        play(threat=bs.Membership(records=50))


def private_training(model: nn.Module, data: Any, secret: Secret, gap: float, noise: float, sampling: str) -> PrivateTraining:
    return PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        nn.CrossEntropyLoss(),
        batch_size=len(data) // 5,
        max_grad_norm=NORM,
        noise_multiplier=noise,
        sampling=sampling,
        secret=secret,
        gap=gap,
        seed=int(torch.randint(2**62, ())),
    )


def gap_clipped(gap: float, noise: float, sampling: str | None = None, secret: Secret = FLAG, epochs: int = 1) -> Any:
    def train(model: nn.Module, data: Any) -> None:
        private_training(model, data, secret, gap, noise, sampling or "poisson").fit(epochs, progress=False)

    return train


@pytest.mark.parametrize("sampling", [pytest.param(None, marks=pytest.mark.slow), "balls-in-bins"])
def test_gap_clipping(sampling: str | None) -> None:
    run = bs.DPSGD(0.3, BATCH / RECORDS, 5, sampling or "poisson")
    given = {"data": flags(RECORDS), "run": run, "secret": FLAG, "challenge": 4, "references": 49}
    kept = play(train=gap_clipped(0.3, 0.3, sampling), gap=0.3, **given)
    assert kept["updates"].threat == bs.AttributeInference(0.3)
    assert (kept.violated, kept.beyond) == (False, None)


def test_a_gap_that_is_not_clipped_is_found() -> None:
    """The training clips to a gap of 1.9, which does little, and 0.02 is promised; the attacker does not believe it."""
    x, y = flags(10).tensors
    x[:, 1] = 16.0 * x[:, 1] - 8.0
    wide = Secret.column(1, values=[-8.0, 8.0], name="wide")
    given = {"data": TensorDataset(x, y), "run": bs.DPSGD(0.1, 0.2, 15), "secret": wide, "challenge": 4}
    promised = bs.AttributeInference(0.02)
    broken = play(train=gap_clipped(1.9, 0.1, secret=wide, epochs=3), threat=promised, references=9, games=60, **given)
    assert broken.violated
    assert broken.beyond is not None
    with pytest.raises(ValueError, match="gap must be left out without a secret"):
        play(gap=0.1)
    with pytest.raises(ValueError, match="gap must be between 0 and 2"):
        play(secret=FLAG, data=flags(RECORDS), gap=3.0)


def test_the_attacker_computes_gap_clipped_gradients() -> None:
    """They are what the optimizer adds up: compared with a training of one record without noise."""
    data, model, criterion = flags(RECORDS), factory(), nn.CrossEntropyLoss()
    totals, _ = private_training(model, data, FLAG, 0.02, 1.0, "poisson")._summed(torch.tensor([3]))
    released = torch.cat([totals[p].flatten() for p in model.parameters()]) / NORM
    records = Records((data.tensors[0][3:4],), data.tensors[1][3:4])
    mine = GapClippedGradients(model, criterion, NORM, FLAG, 0.02)(records)[0]
    torch.testing.assert_close(mine.double(), released.double(), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(mine, RecordGradients(model, criterion, NORM)(records)[0], rtol=1e-2)


class Named(nn.Module):
    """A model of two arguments with names."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = Columns()

    def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        return self.columns(numbers, tokens)


def dictionaries() -> list[dict[str, Any]]:
    return [{"numbers": x, "tokens": t, "labels": int(y)} for x, t, y in several_inputs(RECORDS)]


def make_split(take: Any) -> Any:
    """A training whose batches are what take(batch) makes of them: the arguments of the model by their names, and the target."""

    def train(model: nn.Module, data: Any) -> None:
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=NORM,
        )
        for batch in loader:
            inputs, named, target = take(batch)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(*inputs, **named), target).backward()
            optimizer.step()

    return train


def two_inputs(batch: Any) -> Records:
    return Records((batch[0], batch[1]), batch[2])


BY_NAME = make_split(lambda batch: ((), {"tokens": batch["tokens"], "numbers": batch["numbers"]}, batch["labels"]))
BY_PLACE = make_split(lambda batch: ((batch[0], batch[1]), {}, batch[2]))
ONE_EPOCH = bs.DPSGD(1.0, BATCH / RECORDS, 5)
TOKEN = Secret.tokens(2, [[3], [4, 4]], field=TextField("tokens", pad=0), labels=["yes", "no"], name="word")


def word_in(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each text has the word yes, or no in two tokens, at its third position, and padding at its end."""
    for number, record in enumerate(records):
        text = record["tokens"].clamp(min=5).tolist()
        word, padding = ([3], [0, 0]) if number % 2 else ([4, 4], [0])
        record["tokens"] = torch.tensor([*text[:2], *word, *text[2:4], *padding])
    return records


@pytest.mark.parametrize("challenge", ["canary", 4])
@pytest.mark.parametrize("kind", ["dictionaries", "tuples"])
def test_several_inputs(kind: str, challenge: Any) -> None:
    told: dict[str, Any] = {
        "dictionaries": {"factory": Named, "train": BY_NAME, "data": dictionaries(), "split": by_name()},
        "tuples": {"factory": Columns, "train": BY_PLACE, "data": several_inputs(RECORDS), "split": two_inputs},
    }[kind]
    result = audit.games(**told, run=ONE_EPOCH, challenge=challenge, references=10, **QUICK)
    assert not result.violated
    assert set(result.audits) == {"updates", "weights"} | ({"outputs"} if challenge == 4 else set())


def test_one_run_with_several_inputs() -> None:
    def run(records: int) -> bs.DPSGD:
        return bs.DPSGD(1.0, 1 / -(-records // BATCH), -(-records // BATCH))

    told: dict[str, Any] = {"max_grad_norm": NORM, "canaries": 30, "seed": 1, "split": by_name()}
    assert not audit.one_run(Named, BY_NAME, Listed(dictionaries()), run, **told).violated  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_word_in_a_text_and_a_text_alone() -> None:
    data = word_in(dictionaries())
    told: dict[str, Any] = {"secret": TOKEN, "challenge": 4, "split": by_name(), "references": 10}
    result = audit.games(Named, BY_NAME, data, ONE_EPOCH, **told, **QUICK)
    assert result.challenge == "word of record 4 of the data"
    assert not result.violated
    alone = make_split(lambda batch: ((batch[0],), {}, batch[1]))
    assert not audit.games(Text, alone, texts(RECORDS), ONE_EPOCH, challenge=4, references=10, **QUICK).violated


def test_a_replay_with_a_word_in_a_text() -> None:
    def train(data: Any) -> None:
        BY_NAME(Named(), data)

    result = audit.replay(train, word_in(dictionaries()), secret=TOKEN, split=by_name(), seed=1)
    assert not result.violated
    assert set(result.changes) == {"word yes", "word no"}


def test_records_with_other_arguments() -> None:
    record = {"numbers": torch.zeros(2), "more": [1.5, np.arange(3)], "labels": 1}

    def split(batch: Any) -> Records:
        return Records((batch["numbers"], batch["more"][1]), batch["labels"], {"first": batch["more"][0]})

    made = with_arguments(record, split, {0: torch.ones(2), 1: torch.tensor([5, 6, 7]), "first": torch.tensor(2.5)})
    assert made["numbers"].tolist() == [1.0, 1.0]
    assert made["more"][0] == 2.5
    assert isinstance(made["more"][1], np.ndarray)
    assert made["labels"] == 1
    with pytest.raises(ValueError, match="split must take the arguments of the model out of a batch as they are, got 0"):
        with_arguments(record, lambda batch: Records((batch["numbers"] + 1.0,), batch["labels"]), {0: torch.ones(2)})
