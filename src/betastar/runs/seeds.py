"""The seed of a run: drawn so that nobody guesses it, and spread over all that is random in the run.

Anyone who knows the seed can compute the noise. torch.manual_seed uses 32 bits only, which can be tried one after the other, so a
larger seed fills the whole state of torch's generator, and each use gets a stream of its own, through a hash that has no
inverse: the split or the first weights, which others may see, do not tell the noise. A seed of at most 32 bits is used as torch
and NumPy use it.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np

#: Seeds below this one are given to torch and NumPy as they are.
SMALL = 2**32
#: Somebody may guess a seed below this one, which a person chose: it may be a date or a telephone number, or few enough to try.
GUESSABLE = 2**64
#: Where torch's state of a generator keeps the 624 words of the Mersenne twister, each in eight bytes.
WORDS = slice(24, 24 + 8 * 624)


def draw() -> int:
    """128 bits, all but the first at random."""
    return secrets.randbits(127) | 1 << 127


def guessable(seed: object) -> bool:
    """Whether somebody may find the seed of a run by trying; what is no whole number counts as guessable."""
    return not isinstance(seed, int) or seed < GUESSABLE


def derive(seed: int, use: str) -> int:
    """A seed of at most 32 bits for one use."""
    return seed if seed < SMALL else int.from_bytes(_bytes(seed, use, 4), "little")


def start(seed: int, use: str) -> None:
    """Start torch's generator."""
    import torch

    torch.manual_seed(derive(seed, use))
    if seed < SMALL:
        return
    state = torch.get_rng_state()
    words = state.numpy()[WORDS].view(np.uint64)
    if len(words) != 624 or int(words[0]) != derive(seed, use):
        raise RuntimeError(f"torch {torch.__version__} keeps its random state in an unknown way: give a seed below {SMALL}.")
    words[:] = np.frombuffer(_bytes(seed, f"state of {use}", 4 * 624), dtype="<u4")
    torch.set_rng_state(state)


def _bytes(seed: int, use: str, number: int) -> bytes:
    return hashlib.shake_256(f"betastar {use} {seed}".encode()).digest(number)
