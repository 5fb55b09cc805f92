"""Gaussian noise from generators that nobody else can set.

Noise is a function of an entropy and of the number of the step. The entropy comes from the operating system each time a training
is made, so that no noise repeats, whatever a loop seeds and however often a training is resumed. (A generator of PyTorch on the
CPU has 2³² seeds only, which can all be tried.) With a seed, the entropy is the seed.

A generator reaches some floating-point numbers and skips others, which tells the sum that was added. So both are in double
precision, and what is released is rounded to single precision, of which no number is skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Numbers that are drawn from one generator. Each part has a generator of its own, so that threads share the work.
PART = 1 << 20
#: The parts of the key that tell sampling, noise and other uses of the same entropy apart.
SAMPLING, NOISE, CHECKS, MASKS = 0, 1, 2, 3
#: Independent Gaussians that secure noise adds up, as Holohan and Braghin propose: two hide the holes that floating-point
#: arithmetic leaves between the values of one.
SUMMANDS = 4


def fresh_entropy() -> int:
    """Two hundred and fifty-six bits from the operating system."""
    return secrets.randbits(256)


def derived(entropy: int, purpose: str) -> int:
    """Another entropy, from which the first one cannot be computed."""
    return int.from_bytes(sha256(f"{purpose} {entropy}".encode()).digest())


def generator(entropy: int, use: int, step: int, part: int = 0) -> np.random.Generator:
    """A generator for one use at one step."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy, spawn_key=(use, step, part), pool_size=8)))


class GaussianNoise:
    """Standard normal numbers for the parameters of a model.

    Parameters
    ----------
    entropy : int
        What the noise is a function of, besides the number of the step.
    secure : bool
        Whether bits come from a cryptographic generator (ChaCha20) and several Gaussians are added up.
    """

    def __init__(self, entropy: int, secure: bool = False) -> None:
        self._entropy, self.secure = entropy, secure

    @property
    def digest(self) -> str:
        """A hash of the entropy, which distinguishes two seeds without showing them."""
        return sha256(f"entropy {self._entropy}".encode()).hexdigest()

    def like(self, tensors: Sequence[Tensor], step: int) -> list[Tensor]:
        """Independent standard normal numbers in the shapes of some tensors, in double precision and on the CPU.

        Parameters
        ----------
        tensors : sequence of Tensor
            They give shapes.
        step : int
            The number of the step.

        Returns
        -------
        list of Tensor
            The noise.
        """
        sizes = [tensor.numel() for tensor in tensors]
        numbers = torch.from_numpy(self.normal(sum(sizes), step))
        return [part.view(tensor.shape) for part, tensor in zip(numbers.split(sizes), tensors, strict=True)]

    def normal(self, number: int, step: int) -> NDArray[np.float64]:
        """This many standard normal numbers, in double precision."""
        made = np.empty(number)
        pieces = [made[start : start + PART] for start in range(0, number, PART)]

        def fill(part: int) -> None:
            if self.secure:
                _fill_securely(pieces[part], self._key(step, part))
            else:
                generator(self._entropy, NOISE, step, part).standard_normal(out=pieces[part])

        if len(pieces) < 2:
            for part in range(len(pieces)):
                fill(part)
        else:  # NumPy lets other threads run meanwhile
            with ThreadPoolExecutor(torch.get_num_threads()) as threads:
                list(threads.map(fill, range(len(pieces))))
        return made

    def _key(self, step: int, part: int) -> bytes:
        return sha256(f"{self._entropy} {NOISE} {step} {part}".encode()).digest()


def _fill_securely(out: NDArray[np.float64], key: bytes) -> None:
    """Fill an array with sums of Gaussians made from the bits of ChaCha20 by the transform of Box and Muller."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    pairs = -(-len(out) // 2)
    total = torch.zeros(2, pairs, dtype=torch.float64)
    for _ in range(SUMMANDS):
        bits = np.frombuffer(stream.update(bytes(16 * pairs)), dtype=np.uint64)
        whole = torch.from_numpy((bits >> np.uint64(11)).astype(np.float64))
        first, second = whole.add_(1.0).mul_(2.0**-53).split(pairs)  # in (0, 1], so that the logarithm is finite
        radius, angle = first.log_().mul_(-2.0).sqrt_(), second.mul_(2.0 * np.pi)
        total[0].addcmul_(radius, angle.cos())
        total[1].addcmul_(radius, angle.sin_())
    out[:] = total.div_(SUMMANDS**0.5).flatten().numpy()[: len(out)]
