"""A thousand candidates for a word: the time and the memory of one monitored step, on the encoder of 5 M weights.

The diameter is an upper bound (centroid), as its passes are the fewest. It takes minutes, and is not a part of `make bench`.
Results are added to benchmarks/results.json.
"""

from __future__ import annotations

import resource
import warnings

import torch

from common import keep
from text_models import SHAPES, clock, step, training

CANDIDATES, DIAMETER = 1000, "centroid"


def peak() -> float:
    """The most memory that the process has taken, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    warnings.filterwarnings("ignore")
    shape = SHAPES["5 M weights"]
    plain = step(training(shape, "plain"))
    before, start = peak(), clock()
    parts = training(shape, "monitored", CANDIDATES, DIAMETER)
    attached, monitored = clock() - start, step(parts)
    times = {"threads": torch.get_num_threads(), "attaching": attached, "step": monitored, "plain": plain}
    result = times | {"MiB beyond": peak() - before}
    print(result)
    keep({"many candidates": result})


if __name__ == "__main__":
    main()
