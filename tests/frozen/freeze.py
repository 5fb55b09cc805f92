"""Freeze the numbers of betastar and some seeded trainings, and see that they are still the same, bit for bit.

    python -m tests.frozen.freeze --sample            # compare a sample, which takes seconds; exits with 1 if something changed
    python -m tests.frozen.freeze --write             # before work on the code: write all of numbers.json and trainings.json
    python -m tests.frozen.freeze                     # after each step: compare all of it, which takes a minute or two
    python -m tests.frozen.freeze --write --sample numbers    # when the work is done: write the sample, which is committed

`numbers` or `trainings` after it: only these. Bits depend on the processor and on the versions of NumPy, SciPy and torch, which
the files say. Where these are others, numbers are compared up to small errors, and trainings are not compared: trainings.json
belongs to one machine and is not committed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from math import isclose
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KINDS = ("numbers", "trainings")
PACKAGES = {"numbers": ("numpy", "scipy"), "trainings": ("numpy", "scipy", "torch", "opacus", "pandas", "scikit-learn")}
#: Relative and absolute difference that another processor may make.
RELATIVE, ABSOLUTE = 1e-6, 1e-9

Key = tuple[str, str]
Answers = dict[Key, Any]


def environment(kind: str) -> dict[str, Any]:
    """What bits depend on."""
    import numpy as np

    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    packages = {name: version(name) for name in PACKAGES[kind]}
    return {"packages": packages, "simd": simd.get("found", []), "processor": processor()}


def processor() -> str:
    """The name of the processor: libraries choose their code by it, even where the instructions are the same."""
    told = Path("/proc/cpuinfo")
    names = [line for line in told.read_text().splitlines() if line.startswith("model name")] if told.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor()


def asked(kind: str, sample: bool) -> list[Key]:
    """(group, expression) of the numbers, or ("trainings", name)."""
    if kind == "numbers":
        from tests.frozen import numbers

        chosen = numbers.sample() if sample else numbers.questions()
        return [(group, expression) for group, expressions in chosen.items() for expression in expressions]
    from tests.frozen import trainings

    return [("trainings", name) for name in (trainings.SAMPLE if sample else trainings.TRAININGS)]


def answered(key: Key) -> Any:
    group, question = key
    if group == "trainings":
        from tests.frozen import trainings

        return trainings.hashes(question)
    from tests.frozen import numbers

    return numbers.answer(question)


def compute(keys: list[Key], processes: int = 2) -> Answers:
    if processes == 1:
        return {key: answered(key) for key in keys}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return dict(zip(keys, pool.map(answered, keys), strict=True))


def read(kind: str) -> tuple[dict[str, Any], Answers]:
    """The environment of a file, and its answers."""
    kept = json.loads((HERE / f"{kind}.json").read_text())
    answers = {(group, question): one for group, every in kept["answers"].items() for question, one in every.items()}
    return kept["environment"], answers


def write(kind: str, answers: Answers) -> None:
    groups: dict[str, dict[str, Any]] = {}
    for (group, question), one in answers.items():
        groups.setdefault(group, {})[question] = one
    lines = [f'{{"environment": {json.dumps(environment(kind))},', '"answers": {']
    for i, (group, every) in enumerate(groups.items()):
        lines.append(f"{json.dumps(group)}: {{")
        entries = [f"{json.dumps(question)}: {json.dumps(one)}" for question, one in every.items()]
        lines += [entry + ("," if j < len(entries) - 1 else "") for j, entry in enumerate(entries)]
        lines.append("}," if i < len(groups) - 1 else "}")
    (HERE / f"{kind}.json").write_text("\n".join([*lines, "}}"]) + "\n")


def differences(kept: Any, new: Any, bitwise: bool = True, path: tuple[str, ...] = ()) -> Iterator[str]:
    """A line for each number, hash or error that changed."""
    if isinstance(kept, dict) and isinstance(new, dict):
        for name in [*kept, *(name for name in new if name not in kept)]:
            yield from differences(kept.get(name, "nothing"), new.get(name, "nothing"), bitwise, (*path, name))
    elif isinstance(kept, list) and isinstance(new, list) and len(kept) == len(new):
        ends = ("lower", "estimate", "upper", "regret", "smallest_fpr")
        names = ends if not path[1:] and len(kept) in (3, 5) else tuple(map(str, range(len(kept))))
        for name, one, other in zip(names, kept, new, strict=False):
            yield from differences(one, other, bitwise, (*path, name))
    elif kept != new and (bitwise or not _near(kept, new)):
        yield f"{', '.join(path)}: was {_shown(kept)}, is {_shown(new)}"


def _number(text: Any) -> float | None:
    try:
        return float.fromhex(text) if isinstance(text, str) and len(text) < 40 else None
    except ValueError:
        return None


def _near(kept: Any, new: Any) -> bool:
    a, b = _number(kept), _number(new)
    return a is not None and b is not None and isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _shown(value: Any) -> str:
    number = _number(value)
    return str(value) if number is None else f"{number!r} ({value})"


def check(kind: str, sample: bool) -> list[str]:
    """What changed, in lines."""
    told, kept = read(kind)
    bitwise = told == environment(kind)
    if not bitwise:
        print(f"{kind} were frozen in another environment: {told}, which is now {environment(kind)}.")
        if kind == "trainings":
            print("They are not compared.")
            return []
    keys = asked(kind, sample)
    changed = [f"{group}: {question}\n    is not in {kind}.json" for group, question in keys if (group, question) not in kept]
    if not sample:
        missing = kept.keys() - set(keys)
        changed += [
            f"{group}: {question}\n    is in {kind}.json, and is not asked any more" for group, question in sorted(missing)
        ]
    for (group, question), new in compute([key for key in keys if key in kept], 1 if sample else 2).items():
        lines = list(differences(kept[group, question], new, bitwise))
        changed += ["\n    ".join([f"{group}: {question}", *lines])] if lines else []
    print(f"{kind}: {len(keys)} compared {'bit for bit' if bitwise else 'up to small errors'}, {len(changed)} changed.")
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="numbers|trainings", help="what is compared or written (default: both)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the files anew")
    what.add_argument("--check", action="store_true", help="compare with the files (the default)")
    parser.add_argument("--sample", action="store_true", help="compare or write a sample only")
    options = parser.parse_args()
    kinds = options.kinds or list(KINDS)
    if set(kinds) - set(KINDS):
        parser.error("kinds are numbers and trainings.")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # before NumPy is imported: bits depend on the number of threads
    changed: list[str] = []
    for kind in kinds:
        start = time.monotonic()
        if options.write:
            answers = compute(asked(kind, options.sample))
            write(kind, answers)
            print(f"{kind}.json has {len(answers)} answers.")
        else:
            changed += check(kind, options.sample)
        print(f"{kind} took {time.monotonic() - start:.0f} s.", flush=True)
    print("\n".join(changed))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
