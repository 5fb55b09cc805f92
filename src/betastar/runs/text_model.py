"""The model of texts: a transformer that is built from its shape, pre-trained on public texts, and fine-tuned with LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from betastar.datasets.errors import StudyError
from betastar.datasets.text_encoder import BEGIN, HIDDEN, PAD, TextEncoder

if TYPE_CHECKING:
    from transformers import BertModel

#: Pre-training: epochs, texts of a batch, learning rate, and the share of the words that is hidden.
EPOCHS, BATCH, RATE, SHARE = 4, 64, 2e-3, 0.15


class TextClassifier(nn.Module):
    """Gives a number for each class of a text: a linear layer of the mean over the tokens of a transformer's outputs.

    The transformer's own weights are frozen. LoRA adapters of its queries and values are trained, and the linear layer.

    Parameters
    ----------
    encoder : TextEncoder
        It knows the tokens, the shape and the classes.
    bert : BertModel
        The transformer.
    """

    def __init__(self, encoder: TextEncoder, bert: BertModel) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__()
        rank = encoder.shape.rank
        adapters = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=["query", "value"])
        self.transformer = get_peft_model(bert, adapters)
        self.head = nn.Linear(encoder.shape.features, len(encoder.classes))

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != PAD).long()
        tokens = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.head((tokens * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True))


def text_model(
    encoder: TextEncoder, public: Tensor | None = None, tell: Callable[[str], None] | None = None
) -> TextClassifier:
    """The model with new weights, pre-trained on public texts if there are any.

    Parameters
    ----------
    encoder : TextEncoder
        What makes texts into inputs.
    public : Tensor, optional
        The tokens of the public texts.
    tell : callable, optional
        Called with a line about the progress.
    """
    bert = _bert(encoder)
    if public is not None:
        _pretrain(bert, public, tell)
    return TextClassifier(encoder, bert)


def _bert(encoder: TextEncoder) -> BertModel:
    try:
        import peft  # noqa: F401
        from transformers import BertConfig, BertModel
    except ImportError as missing:
        raise StudyError(
            f'a model of texts needs the package {missing.name}, which is not installed: pip install "betastar[studies]".'
        ) from None
    shape = encoder.shape
    config = BertConfig(
        vocab_size=encoder.vocabulary_size,
        hidden_size=shape.features,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=2 * shape.features,
        max_position_embeddings=encoder.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
        attn_implementation="eager",
    )
    return BertModel(config, add_pooling_layer=False)


def _pretrain(bert: BertModel, public: Tensor, tell: Callable[[str], None] | None) -> None:
    """Train the transformer to find words that are hidden from it; a word is told from others by its embedding."""
    batches = -(-len(public) // BATCH)
    optimizer = torch.optim.AdamW(bert.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * batches)
    words = bert.get_input_embeddings().weight
    bert.train()
    for epoch in range(EPOCHS):
        for number, rows in enumerate(torch.randperm(len(public)).split(BATCH)):
            if tell and not number % 10:
                tell(f"pre-training on {len(public):,} public texts: {(epoch * batches + number) / (EPOCHS * batches):.0%}")
            ids = public[rows]
            ids = ids[:, : int((ids != PAD).sum(dim=1).max())]
            hidden = (torch.rand(ids.shape) < SHARE) & (ids != PAD) & (ids != BEGIN)
            outputs = bert(input_ids=ids.masked_fill(hidden, HIDDEN), attention_mask=(ids != PAD).long()).last_hidden_state
            optimizer.zero_grad()
            functional.cross_entropy(outputs[hidden] @ words.T, ids[hidden], reduction="sum").div(max(1, int(hidden.sum()))).backward()
            optimizer.step()
            schedule.step()
