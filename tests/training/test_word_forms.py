"""Words in the tokens of Hugging Face's tokenizers: variants are the tokens of the text with another word in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from betastar.training import Records, Secret, TextField

NAMES = ["Ann", "Zoë", "Barack", "New York", "JoAnn"]
CORPUS = [
    "Ann and Annabel met Barack in New York, and JoAnn was there; Barack left.",
    "Zoë’s friend, Ann, said: @Barack is in York. New York was cold.",
    "A man in the house said that Ann was a friend of Barack.",
] * 3


def trained(kind: str) -> Any:
    """A small tokenizer of this kind, as Hugging Face wraps it."""
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<unk>"]
    if kind == "byte-level BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet)
    elif kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFC(), pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


KINDS = ["byte-level BPE", "WordPiece", "SentencePiece"]


def encoded(tokenizer: Any, texts: list[str]) -> Records:
    made = tokenizer(texts, padding="max_length", max_length=90, return_tensors="pt", add_special_tokens=False)
    return Records((), None, {"input_ids": made["input_ids"], "attention_mask": made["attention_mask"]})


@pytest.mark.parametrize("kind", KINDS)
def test_variants_are_the_tokens_of_the_changed_text(kind: str) -> None:
    tokenizer = trained(kind)
    field = TextField("input_ids", along={"attention_mask": 0}, pad=tokenizer.pad_token_id)
    secret: Any = Secret.word(tokenizer, field, NAMES, name="name", unseen=True)
    texts = [
        "Zoë met a man in the house.",
        "A man said that {} was cold, and {} left.",
        "{}, said a friend: {} is there",
        "in {}",
    ]
    for name in NAMES:
        records = encoded(tokenizer, [text.replace("{}", name).replace("Zoë", name) for text in texts])
        secret.check(records, complete=False)
        assert secret.own(records).tolist() == [NAMES.index(name)] * len(texts)
        wanted = encoded(tokenizer, [text.replace("{}", other).replace("Zoë", other) for text in texts for other in NAMES])
        made = secret.variants(records, range(len(NAMES)))
        for argument in ("input_ids", "attention_mask"):
            assert torch.equal(made.named[argument], wanted.named[argument])


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_within_another_one_does_not_count(kind: str) -> None:
    tokenizer = trained(kind)
    field = TextField("input_ids", along={"attention_mask": 0}, pad=tokenizer.pad_token_id)
    secret: Any = Secret.word(tokenizer, field, ["Ann", "Barack", "York"], others="keep", unseen=True)
    texts = ["Annabel left", "a friend of JoAnn", "Zoë said: York was there", "Ann’s friend", "@Barack left", "Ann met Barack"]
    assert secret.concerned(encoded(tokenizer, texts)).tolist() == [False, False, True, True, True, False]


def test_words_that_a_tokenizer_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match=r"known to the tokenizer, but 'Ωmega' has the token of unknown words, 1"):
        Secret.word(trained("WordPiece"), 0, ["Ann", "Ωmega"])


def test_an_occurrence_after_punctuation_changes_with_the_others() -> None:
    for kind in KINDS:
        tokenizer = trained(kind)
        field = TextField("input_ids", along={"attention_mask": 0}, pad=tokenizer.pad_token_id)
        secret = Secret.word(tokenizer, field, ["Barack", "Ann"], unseen=True)
        made = secret.variants(encoded(tokenizer, ["Barack left, said (Barack) and Barack"]), [1])
        wanted = encoded(tokenizer, ["Ann left, said (Ann) and Ann"])
        assert torch.equal(made.named["input_ids"], wanted.named["input_ids"])
