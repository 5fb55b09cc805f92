"""The samplings, as people name them: how the batches of a training are drawn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingWord:
    """A sampling. `name` is the argument of `DPSGD`, the value of --sampling and of the page's selector."""

    name: str
    #: What it is, in a few words.
    summary: str
    #: What is assumed.
    assumed: str
    #: The parameters that belong to it.
    takes: tuple[str, ...] = ()
    #: Its exact figures take some tenths of a second, as those of an attacker who adapts.
    slow: bool = False


SAMPLINGS: dict[str, SamplingWord] = {
    sampling.name: sampling
    for sampling in (
        SamplingWord(
            "poisson",
            "each record with the same probability, at each step",
            "Poisson sampling: each step samples every record independently with the same probability",
            takes=("max_batch_size",),
        ),
        SamplingWord(
            "fixed-size",
            "so many records, without replacement, anew at each step",
            "batches of a fixed size: each step draws so many records without replacement, anew",
            slow=True,
        ),
        SamplingWord(
            "balls-in-bins",
            "each record in one random batch of an epoch",
            "balls in bins: each record is in one batch of an epoch, drawn uniformly and independently of the others",
        ),
        SamplingWord(
            "shuffled",
            "a permutation of the records at each epoch, cut into batches",
            "shuffled batches: the records are permuted uniformly at each epoch, and cut into batches",
        ),
    )
}
#: What an attacker may see.
SEES: dict[str, str] = {"updates": "every update", "final-model": "only the final model (a heuristic)"}
