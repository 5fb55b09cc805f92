"""Games in several processes: the results do not depend on how many there are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar, TypeVarTuple

import numpy as np

from betastar import validation

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


def spread(function: Callable[[*Arguments], Result], chunks: list[tuple[*Arguments]], jobs: int) -> Iterator[Result]:
    """The results of the function for the arguments of each chunk, in order, from this process or from others."""
    if jobs == 1:
        yield from (function(*chunk) for chunk in chunks)
        return
    try:
        from joblib import Parallel, delayed
    except ImportError:
        raise validation.wrong("jobs", f"must be 1 unless joblib is installed (pip install joblib), got {jobs}.") from None
    with warnings.catch_warnings():  # of a process that has grown and is replaced: where warnings are errors, it hangs
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
        yield from Parallel(n_jobs=jobs, return_as="generator")(delayed(function)(*chunk) for chunk in chunks)


def seed_of(seed: object) -> int:
    """The seed that was given, or one that is drawn."""
    return int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else validation.seed(seed)


def jobs_of(jobs: object) -> int:
    """The number of processes that was given; raises an error unless it is allowed."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or (jobs < 1 and jobs != -1):
        raise validation.wrong("jobs", f"must be a whole number of at least 1, or -1 for all cores, got {jobs!r}.")
    return jobs
