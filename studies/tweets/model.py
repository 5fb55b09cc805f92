"""The model of texts: a transformer that is built from its shape, pre-trained on public texts, and fine-tuned with LoRA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from betastar.runs import StudyError
from studies.tweets.encoder import BEGIN, PAD, TextEncoder

if TYPE_CHECKING:
    from transformers import GPT2Model

#: Pre-training: epochs, texts of a batch, and learning rate.
EPOCHS, BATCH, RATE = 4, 64, 5e-3
#: The standard deviation of the entries of embeddings before pre-training.
SPREAD = 0.05


class TextClassifier(nn.Module):
    """Gives a number for each class of a text: a linear layer of the mean over the tokens of a transformer's outputs.

    The transformer's own weights are frozen. LoRA adapters of its attention are trained, and the linear layer.

    Parameters
    ----------
    encoder : TextEncoder
        It knows the tokens, the shape and the classes.
    gpt : GPT2Model
        The transformer.
    """

    def __init__(self, encoder: TextEncoder, gpt: GPT2Model) -> None:
        from peft import LoraConfig, get_peft_model

        super().__init__()
        rank = encoder.shape.rank
        adapters = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=["c_attn"], fan_in_fan_out=True)
        self.transformer = get_peft_model(gpt, adapters)
        self.head = nn.Linear(encoder.shape.features, len(encoder.classes))

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != PAD).long()
        tokens = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.head((tokens * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1, keepdim=True))


def text_model(encoder: TextEncoder, public: Tensor) -> TextClassifier:
    """The model with new weights, pre-trained on public texts, given as tokens."""
    gpt = _transformer(encoder)
    _pretrain(gpt, public)
    return TextClassifier(encoder, gpt)


def _transformer(encoder: TextEncoder) -> GPT2Model:
    try:
        import peft  # noqa: F401
        from transformers import GPT2Config, GPT2Model
    except ImportError as missing:
        raise StudyError(
            f'a model of texts needs the package {missing.name}, which is not installed: pip install -e ".[studies]".'
        ) from None
    shape = encoder.shape
    config = GPT2Config(  # type: ignore[call-arg]
        vocab_size=encoder.vocabulary_size,
        n_positions=encoder.width,
        n_embd=shape.features,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_inner=2 * shape.features,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=BEGIN,
        eos_token_id=PAD,
        attn_implementation="eager",
    )
    gpt = GPT2Model(config)  # type: ignore[no-untyped-call]
    nn.init.normal_(gpt.wte.weight, std=SPREAD)
    return gpt


def _pretrain(gpt: GPT2Model, public: Tensor) -> None:
    """Train the transformer to predict the next token of each text; tokens differ by their embeddings."""
    batches = -(-len(public) // BATCH)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * batches)
    embeddings = gpt.wte.weight
    gpt.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(public)).split(BATCH):
            ids = public[rows]
            ids = ids[:, : int((ids != PAD).sum(dim=1).max())]
            outputs = gpt(input_ids=ids, attention_mask=(ids != PAD).long()).last_hidden_state
            next_ids, known = ids[:, 1:], ids[:, 1:] != PAD
            optimizer.zero_grad()
            functional.cross_entropy(outputs[:, :-1][known] @ embeddings.T, next_ids[known]).backward()
            optimizer.step()
            schedule.step()
