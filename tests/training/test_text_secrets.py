"""Secrets in texts: variants are those of lists that are cut and joined, and bad candidates and texts are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

from betastar import AttributeInference
from betastar.audit.evidence.challenges import challenge_of
from betastar.training import Records, Secret, TextField

PAD, IGNORED = 99, -100
FIELD = TextField("input_ids", labels="labels", along={"attention_mask": 0, "token_type_ids": 0}, pad=PAD)


def numbers(text: str) -> list[int]:
    """A tokenizer of texts such as "7 12 3"."""
    return [int(word) for word in text.split()]


def numbers_after_a_space(text: str) -> list[int]:
    """The same, with other tokens for words that follow a space, as byte-level BPE has them."""
    first, *rest = numbers(text)
    return [first, *(number + 50 for number in rest)]


def padded(row: Sequence[int], filler: int, width: int, side: str) -> list[int]:
    rest = [filler] * (width - len(row))
    return [*row, *rest] if side == "right" else [*rest, *row]


class Text:
    """A text as a list of tokens and spans, with what belongs to each of them."""

    def __init__(self, parts: list[list[int] | None], trained_from: int, kinds: list[int]) -> None:
        self.parts = parts  # None is a span
        self.trained_from, self.kinds = trained_from, kinds  # the first part with labels; token types of parts

    def rows(self, candidate: Sequence[int], width: int, field: TextField) -> dict[str, list[int]]:
        ids, labels, types = [], [], []
        for number, part in enumerate(self.parts):
            tokens = list(candidate) if part is None else part
            ids += tokens
            labels += tokens if number >= self.trained_from else [IGNORED] * len(tokens)
            types += [self.kinds[number]] * len(tokens)
        side = field.padding_side
        predicted = padded(labels, IGNORED, width, side)
        predicted = [*predicted[1:], IGNORED] if field.next_token else predicted
        whole = {"input_ids": padded(ids, PAD, width, side), "labels": predicted}
        return whole | {
            "attention_mask": padded([1] * len(ids), 0, width, side),
            "token_type_ids": padded(types, 0, width, side),
        }


def records(rows: Sequence[dict[str, list[int]]]) -> Records:
    return Records((), None, {name: torch.tensor([row[name] for row in rows]) for name in rows[0]})


def same(some: Records, others: Records) -> bool:
    return all(torch.equal(a, others.named[name]) for name, a in some.named.items()) and some.named.keys() == others.named.keys()


WORDS = st.lists(st.integers(10, 20), min_size=1, max_size=4)
CANDIDATES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), min_size=2, max_size=5, unique=True)


@st.composite
def texts(draw: Any, times: int) -> Text:
    """A text of ordinary tokens with 1 to `times` spans."""
    parts: list[list[int] | None] = [draw(WORDS)]
    for _ in range(draw(st.integers(1, times))):
        parts += [None, draw(WORDS)]
    return Text(parts, draw(st.integers(0, len(parts))), draw(st.lists(st.integers(0, 1), min_size=9, max_size=9)))


@settings(max_examples=50, deadline=None)
@given(CANDIDATES, st.lists(texts(3), min_size=1, max_size=4), st.sampled_from(["right", "left"]), st.integers(0, 3), st.data())
def test_words_are_cut_out_and_joined_as_in_lists(
    candidates: list[tuple[int, ...]], some: list[Text], side: str, spare: int, data: Any
) -> None:
    field = TextField(
        "input_ids", labels="labels", along=FIELD.along, pad=PAD, padding_side=side, next_token=data.draw(st.booleans())
    )  # type: ignore[arg-type]
    longest = max(candidates, key=len)
    width = 1 + spare + max(len(text.rows(longest, 0, field)["input_ids"]) for text in some)
    own = data.draw(st.lists(st.integers(0, len(candidates) - 1), min_size=len(some), max_size=len(some)))
    batch = records([text.rows(candidates[k], width, field) for text, k in zip(some, own, strict=True)])
    secret = Secret.word(numbers, field, [" ".join(map(str, tokens)) for tokens in candidates], unseen=True)
    secret.check(batch, complete=True)
    assert secret.own(batch).tolist() == own
    values = data.draw(st.permutations(range(len(candidates))))
    wanted = records([text.rows(candidates[k], width, field) for text in some for k in values])
    assert same(secret.variants(batch, values), wanted)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple), min_size=2, max_size=4, unique=True),
    st.lists(st.sampled_from([1, 2, 3, 4, 51, 52, 53]), min_size=1, max_size=7),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from(["right", "left"]),
    st.booleans(),
    st.sampled_from([numbers, numbers_after_a_space]),
)
def test_variants_of_a_variant_are_the_same_or_the_text_is_refused(
    candidates: list[tuple[int, ...]], text: list[int], start: int | None, side: Any, keep: bool, tokenizer: Any
) -> None:
    """Candidates that overlap each other and the text. Gap clipping rests on this."""
    field = TextField(0, pad=PAD, padding_side=side)
    ids = torch.tensor([padded(text, PAD, len(text) + 6, side)])
    at = start + (6 if side == "left" else 0) if start is not None else None
    assume(at is None or side == "right" or len({*map(len, candidates)}) == 1)
    words = [" ".join(map(str, tokens)) for tokens in candidates]
    secret = (
        Secret.word(tokenizer, field, words, others="keep" if keep else "refuse", unseen=True)
        if at is None
        else Secret.tokens(at, candidates, field=field, unseen=True)
    )
    batch = Records((ids,), torch.zeros(1))
    try:
        secret.check(batch, complete=True)
    except ValueError:
        assume(False)
    variants = secret.variants(batch, range(secret.count))
    assert torch.equal(variants.inputs[0][int(secret.own(batch))], ids[0])
    for k in range(secret.count):
        again = secret.variants(variants.take([k]), range(secret.count))
        assert torch.equal(again.inputs[0], variants.inputs[0])


def marked(rows: list[list[int]], masks: list[list[int]]) -> Records:
    return Records((torch.tensor(rows),), torch.zeros(len(rows)), {"where": torch.tensor(masks)})


def test_a_mask_marks_the_span_and_moves_with_it() -> None:
    secret = Secret.tokens("where", [[5], [5, 6], [7, 7, 7]], field=TextField(pad=0))
    batch = marked([[1, 5, 6, 2, 5, 6, 0, 0], [5, 6, 6, 3, 0, 0, 0, 0]], [[0, 1, 1, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]])
    secret.check(batch, complete=False)
    assert secret.own(batch).tolist() == [1, 0]  # "5" is followed by a 6 that does not belong to it
    made = secret.variants(batch, range(3))
    assert made.inputs[0].tolist() == [
        [1, 5, 2, 5, 0, 0, 0, 0], [1, 5, 6, 2, 5, 6, 0, 0], [1, 7, 7, 7, 2, 7, 7, 7],
        [5, 6, 6, 3, 0, 0, 0, 0], [5, 6, 6, 6, 3, 0, 0, 0], [7, 7, 7, 6, 6, 3, 0, 0],
    ]  # fmt: skip
    assert made.named["where"][:3].tolist() == [[0, 1, 0, 1, 0, 0, 0, 0], [0, 1, 1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 0, 1, 1, 1]]
    for k in range(6):  # the same variants, whichever of them the record is
        again = secret.variants(made.take([k]), range(3))
        assert torch.equal(again.inputs[0], made.inputs[0][k // 3 * 3 :][:3])


def test_a_position_for_each_record() -> None:
    secret = Secret.tokens("where", [[5], [6]], labels=["Rome", "Oslo"])
    batch = Records((torch.tensor([[1, 5, 1], [6, 1, 1]]),), None, {"where": torch.tensor([1, 0])})
    secret.check(batch, complete=True)
    assert secret.variants(batch, [1, 0]).inputs[0].tolist() == [[1, 6, 1], [1, 5, 1], [6, 1, 1], [5, 1, 1]]
    assert batch.inputs[0].tolist() == [[1, 5, 1], [6, 1, 1]]  # the records themselves stay


def test_records_that_name_nobody_are_refused_or_kept() -> None:
    batch = Records((torch.tensor([[1, 5, 1], [1, 1, 1], [5, 6, 1], [6, 1, 6]]),), torch.zeros(4))
    with pytest.raises(
        ValueError, match=r"candidates of 'who' \('5', '6'\), but record 1 holds none of them\. .*others=\"keep\""
    ):
        Secret.word(numbers, 0, ["5", "6"], name="who").check(batch, complete=True)
    with pytest.raises(ValueError, match="record 0 holds several different ones"):
        Secret.word(numbers, 0, ["5", "6"]).variants(batch.take([2]), [0])
    secret: Any = Secret.word(numbers, 0, ["5", "6"], others="keep")
    secret.check(batch, complete=True)
    made = secret.variants(batch, [0, 1]).inputs[0].tolist()
    assert made == [[1, 5, 1], [1, 6, 1], [1, 1, 1], [1, 1, 1], [5, 6, 1], [5, 6, 1], [5, 1, 5], [6, 1, 6]]
    assert secret.concerned(batch).tolist() == [True, False, False, True]
    assert secret.own(batch).tolist() == [0, 0, 0, 1]


def text(*tokens: int, **named: Tensor) -> Records:
    return Records((torch.tensor([tokens]),), torch.zeros(1), named)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Secret.tokens(0, [[1], []], labels=["a", "b"]), "at least one token, but 'b' of 'span' has none"),
        (lambda: Secret.tokens(0, [[1]]), "candidates must be at least two with one label each, got 1 and 1 labels"),
        (lambda: Secret.tokens(0, [[1], [2]], labels=["a"]), "got 2 and 1 labels"),
        (lambda: Secret.tokens(0, [[1, 2], [1, 2]], labels=["a", "b"]), r"'a' and 'b' of 'span' are the same tokens .*\[1, 2\]"),
        (lambda: Secret.tokens(0, [[1], [2, 3]]), "pad must be the id that fills up short texts.*got None"),
        (lambda: Secret.tokens(0, [[1], [9]], field=TextField(pad=9)), "must not contain pad=9"),
        (lambda: Secret.tokens(0, [[1], [-2]]), r"whole numbers of at least 0, got \(-2,\)"),
        (lambda: Secret.tokens(-1, [[1], [2]]), "start must be a position of at least 0 .* got -1"),
        (lambda: Secret.tokens(3, [[1], [2, 2]], field=TextField(pad=0, padding_side="left")), "start must name a mask .*got 3"),
        (lambda: Secret.tokens(0, ["ab", "cd"]), r"candidates must be sequences of ids of tokens, got 'ab'; see Secret\.word"),
        (lambda: Secret.word(numbers, 0, ["1", "01"]), "'1' and '01' of 'word' are the same tokens"),
        (lambda: Secret.word(numbers, 0, ["1", " 2"]), "words without spaces around them, got ' 2'"),
        (lambda: Secret.word(numbers, 0, ["1", ""]), "words without spaces around them, got ''"),
        (lambda: Secret.word(lambda text: [], 0, ["1", "2"]), "candidates must have at least one token, but '1'"),
        (lambda: Secret.word(numbers, 0, ["1"]), r"candidates must be at least two words, got \['1'\]"),
        (lambda: Secret.word(numbers, 0, "12"), "candidates must be at least two words, got '12'"),
        (lambda: Secret.word(numbers, 0, ["1", "2"], others="drop"), "others must be .*refuse.*keep"),
        (lambda: Secret.word(3, 0, ["1", "2"]), "tokenizer must be one of Hugging Face or a function"),  # type: ignore[arg-type]
        (lambda: Secret.word(lambda text: None, 0, ["1", "2"]), "tokenizer must return ids of tokens, got NoneType"),  # type: ignore
        (lambda: Secret.word(lambda text: [0, *numbers(text), 8], 0, ["1", "2"]), "leave out the tokens that begin and end"),
        (lambda: TextField(0, along={0: 1}), "must name different arguments"),
        (lambda: TextField(padding_side="both"), "padding_side must be 'right' or 'left', got 'both'"),  # type: ignore[arg-type]
        (lambda: Secret.joint(Secret.tokens(0, [[1], [2]]), Secret.column(3, [1, 2])), "must not be in the same text"),
        (lambda: Secret.joint(Secret.tokens(0, [[1], [2]]), Secret.word(numbers, 0, ["3", "4"])), "must not be in the same text"),
    ],
)
def test_bad_descriptions(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


LONG = Secret.tokens(1, [[5], [6, 6]], field=TextField(pad=0), name="who")
LABELLED = Secret.tokens(1, [[5], [6]], field=TextField(labels="labels"), name="who")


@pytest.mark.parametrize(
    ("secret", "batch", "message"),
    [
        (LONG, text(1, 7, 0), r"candidates of 'who' .*, but record 0 holds none of them"),
        (LONG, text(1), "'who' starts at position 1, but texts have positions 0 to 0"),
        (
            LONG,
            text(1, 5, 2),
            "record 0 has no room for the longest candidate of 'who'.* would need 1 more. Pad texts to 4 positions",
        ),
        (
            Secret.tokens(1, [[5], [5, 6]], field=TextField(pad=0), name="who"),
            text(1, 5, 6, 6, 0),
            r"record 0 with \(5,\) as its 'who' would be read as another one",
        ),
        (  # 2 2 2 2 2 would be read as 2 2, 2 2, 2: as many spans, at other places
            Secret.word(numbers, TextField(0, pad=PAD), ["1", "2 2"], name="who", unseen=True),
            text(1, 2, 1, PAD, PAD),
            "record 0 with '2 2' as its 'who' would be read as another one",
        ),
        (LONG, Records((torch.zeros(2, 3),), None), "needs ids of tokens in argument 0, whole numbers .* got float32 of shape"),
        (
            Secret.tokens(0, [[5], [6]], field="ids"),
            text(5),
            "in argument 'ids', which the model is not called with; it is called with 0",
        ),
        (
            Secret.tokens(0, [[5], [6]], field=TextField(along={"attention": 0})),
            text(5),
            "in argument 'attention', which the model is not called with",
        ),
        (LONG, text(1, 5, 0, mask=torch.ones(1, 3)), r"argument 'mask' has shape \(1, 3\).*labels=.*along=.*fixed="),
        (
            Secret.tokens(1, [[5], [6]]),
            Records((torch.tensor([[1, 5, 2]]),), torch.tensor([[1, 5, 2]])),
            "argument 'target' has shape",
        ),
        (
            LABELLED,
            text(1, 5, 2, labels=torch.tensor([[5, 2, 3]])),
            "argument 'labels' must hold the tokens of the span, or -100",
        ),
        (LABELLED, text(1, 5, 2, labels=torch.tensor([[5, 2]])), r"one entry for each token of 0, which has shape \(1, 3\), got"),
        (Secret.tokens("w", [[5], [6]]), text(1, 5, w=torch.tensor([[0, 2]])), "must be 1 at the tokens of the span and 0"),
        (
            Secret.tokens("w", [[5], [6]]),
            text(1, 5, w=torch.tensor([[1, 1]])),
            "but record 0 holds none of them",
        ),
        (Secret.tokens("w", [[5], [6]]), text(1, 5, w=torch.tensor([[0.5]])), "must hold the first position"),
        (
            Secret.tokens("w", [[5], [6]]),
            text(1, 5, w=torch.tensor([7])),
            "starts at position 7, but texts have positions 0 to 1",
        ),
        (Secret.word(numbers, 0, ["5", "6"]), text(5, 1), "no record holds the value '6' of the secret 'word'.*unseen=True"),
    ],
)
def test_texts_that_do_not_fit(secret: Secret, batch: Records, message: str) -> None:
    before = [tensor._version for tensor in batch.rows().values()]
    with pytest.raises(ValueError, match=message):
        secret.check(batch, complete=True)
    assert [tensor._version for tensor in batch.rows().values()] == before


def test_a_digest_tells_places_and_candidates_apart() -> None:
    made = [
        Secret.tokens(0, [[1], [2]], labels="ab"),
        Secret.tokens(1, [[1], [2]], labels="ab"),
        Secret.tokens(0, [[1], [3]], labels="ab"),
        Secret.tokens(0, [[1], [2]], labels="ab", field=TextField(pad=7)),
        Secret.tokens(0, [[1], [2]], labels="ab", field=TextField(labels="target")),
        Secret.tokens(0, [[1], [2]], labels="ab").with_prior([0.2, 0.8]),
    ]
    assert len({secret.digest() for secret in made}) == len(made)
    assert made[0].digest() == Secret.tokens(0, [[1], [2]], labels="ab").digest()


def test_labels_of_the_next_token_may_be_one_fewer_and_have_another_mark() -> None:
    """As `ids`, `ids[:, 1:]` and a loss that ignores the padding."""
    ids = torch.tensor([[1, 5, 2, 0, 0], [1, 6, 6, 2, 0]])
    field = TextField(labels="target", next_token=True, ignored=0, pad=0)
    secret = Secret.tokens(1, [[5], [6, 6]], field=field)
    batch = Records((ids,), ids[:, 1:].clone())
    secret.check(batch, complete=True)
    made = secret.variants(batch, [0, 1])
    assert made.inputs[0].tolist() == [[1, 5, 2, 0, 0], [1, 6, 6, 2, 0]] * 2
    assert torch.equal(made.target, made.inputs[0][:, 1:])
    blind = Secret.tokens(1, [[5], [6, 6]], field=TextField(pad=0))
    with pytest.raises(ValueError, match=r"argument 'target' has shape \(2, 4\)"):
        blind.check(batch, complete=True)
    with pytest.raises(ValueError, match="must not begin with the span if labels are those of the next token"):
        Secret.tokens(0, [[5], [6, 6]], field=field).check(Records((ids[:, 1:4],), ids[:, 2:5]), complete=True)


def test_labels_that_see_one_token_more_need_room_for_it() -> None:
    """Of `text[:-1]` and `text[1:]`, the ids would have to know the last token if the span became shorter."""
    field = TextField(labels="target", next_token=True, pad=0)
    secret = Secret.tokens(1, [[5], [6, 6]], field=field, unseen=True)
    secret.check(Records((torch.tensor([[1, 6, 6, 2]]),), torch.tensor([[6, 6, 2, -100]])), complete=True)
    with pytest.raises(ValueError, match=r"record 0 has no room .* argument 'target' has 4 positions, and the text would need 1"):
        secret.check(Records((torch.tensor([[1, 6, 6, 2]]),), torch.tensor([[6, 6, 2, 3]])), complete=True)
    same = Secret.tokens(1, [[5], [6]], field=field)  # nothing moves
    made = same.variants(Records((torch.tensor([[1, 6, 3, 2]]),), torch.tensor([[6, 3, 2, 3]])), [0])
    assert made.inputs[0].tolist() == [[1, 5, 3, 2]]
    assert made.target.tolist() == [[5, 3, 2, 3]]


def test_what_is_fixed_stays() -> None:
    field = TextField(fixed=("position_ids",), pad=0)
    places = torch.arange(4).expand(1, 4)
    secret = Secret.tokens(0, [[5], [6, 6]], field=field, unseen=True)
    batch = Records((torch.tensor([[5, 1, 0, 0]]),), None, {"position_ids": places})
    secret.check(batch, complete=True)
    assert torch.equal(secret.variants(batch, [1]).named["position_ids"], places)


def test_gap_clipping_refuses_every_batch_whose_variants_depend_on_the_secret() -> None:
    secret = Secret.tokens(0, [[5], [5, 6]], field=TextField(pad=0))
    batch = text(5, 6, 6, 1, 0)
    for one in (secret, Secret.joint(secret, Secret.label([0.0, 1.0])).with_prior([0.25] * 4)):
        with pytest.raises(ValueError, match="would be read as another one"):
            one.shares(batch)
        assert one.shares(text(5, 6, 1, 0)).sum() == 1.0


def test_audits_play_a_word_of_a_record() -> None:
    data = TensorDataset(torch.tensor([[1, 5, 2], [6, 3, 1]]), torch.tensor([0, 1]))
    secret = Secret.word(numbers, 0, ["5", "6"], name="who")
    challenge = challenge_of(data, AttributeInference(distances=1.0), 0, secret, ["6", "5"], seed=0)
    assert [candidate[0][0].tolist() for candidate in challenge.candidates] == [[1, 6, 2], [1, 5, 2]]
