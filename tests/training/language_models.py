"""Small transformers over tokens, built from their configurations, and texts for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import peft
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from betastar.training import NextTokenLoss, Secret

logging.getLogger("transformers").setLevel(logging.ERROR)

VOCABULARY, WIDTH, CLASSES, PLACE = 23, 16, 3, 1
VALUES = [3, 5, 8, 13, 21]
GPT2 = {"vocab_size": VOCABULARY, "n_positions": 48, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 48, "num_labels": CLASSES, "pad_token_id": None, "initializer_range": 0.3,
}  # fmt: skip


class Numbered(nn.Module):
    """Calls a model of Hugging Face with the numbers of positions, one row for each text, and gives its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]).repeat(len(ids), 1)
        logits: Tensor = self.model(input_ids=ids, position_ids=places, attention_mask=(ids != 0).long()).logits
        return logits


class Encoder(nn.Module):
    """One layer of attention and one of two linear layers, both with layer norms, on (batch, positions, features)."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(48, WIDTH)
        self.project, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)
        self.wide, self.narrow, self.last = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH, bias=False), nn.LayerNorm(WIDTH)
        self.head, self.dropout = nn.Linear(WIDTH, CLASSES), nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.dropout(self.words(ids) + self.places(torch.arange(ids.shape[1]).repeat(len(ids), 1)))
        q, k, v = self.project(self.norm(x)).chunk(3, dim=2)
        x = x + self.dropout(self.dropout((q @ k.transpose(1, 2) / WIDTH**0.5).softmax(dim=2)) @ v)
        x = x + self.dropout(self.narrow(functional.gelu(self.wide(self.last(x)))))
        return self.head(x.mean(dim=1))


def bert(dropout: float = 0.0, **options: Any) -> nn.Module:
    config = BertConfig(**BERT, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **options)
    return BertForSequenceClassification(config)


def gpt2(tied: bool = False, dropout: float = 0.0, **options: Any) -> nn.Module:
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(**GPT2, **rates, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, **options))


def lora(dropout: float = 0.0, **options: Any) -> nn.Module:
    """GPT-2 whose attention has adapters. They do not start at zero, so that all of them have a gradient."""
    config = peft.LoraConfig(
        r=3, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, init_lora_weights=False, lora_dropout=dropout
    )
    made: nn.Module = peft.get_peft_model(gpt2(dropout=dropout, **options), config)
    return made


#: Models that map token ids to logits, and whether they predict the next tokens.
MODELS: dict[str, tuple[Callable[..., nn.Module], bool]] = {
    "encoder": (Encoder, False),
    "bert": (lambda **options: Numbered(bert(**options)), False),
    "gpt2": (lambda **options: Numbered(gpt2(**options)), True),
    "gpt2-tied": (lambda **options: Numbered(gpt2(tied=True, **options)), True),
    "lora": (lambda **options: Numbered(lora(**options)), True),
}


def model(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0](**options).train()


def criterion(name: str) -> nn.Module:
    return NextTokenLoss() if MODELS[name][1] else nn.CrossEntropyLoss()


def texts(name: str, length: int, number: int = 40) -> TensorDataset:
    """Texts with one of VALUES at PLACE, some of them padded."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(1, VOCABULARY, (number, length), generator=generator)
    ids[:, PLACE] = torch.tensor(VALUES)[torch.arange(number) % len(VALUES)]
    if length > 3:
        ids[::3, -1] = 0
    labels = ids.masked_fill(ids == 0, -100)
    return TensorDataset(ids, labels if MODELS[name][1] else torch.randint(CLASSES, (number,), generator=generator))


def secret() -> Secret:
    """The token at PLACE. The labels of a language model keep the true token."""
    return Secret.column(PLACE, VALUES, name="word")
