"""Uniform randomness for what is public or local: sampling from a model, shuffling, test data.

It is AES-256 in counter mode under one seed, so the same seed gives the same draws on every machine. It is not for
shares, which the parties derive jointly (caps.shares.prss), nor for noise, which has its own samplers (caps.dp.noise).
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from caps.errors import DomainError

SEED_BYTES = 32
_LABEL = b"caps/v1/uniform/"


class Uniform:
    """A stream of uniform values. A seed is 32 bytes, used as they are; an integer or text, hashed; or None, random."""

    def __init__(self, seed: int | str | bytes | None = None) -> None:
        key = _key(seed)
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` words of 64 uniform bits."""
        if count < 0:
            raise DomainError(f"cannot draw {count} values")
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)

    def floats(self, count: int) -> npt.NDArray[np.float64]:
        """`count` multiples of 2^-53 in [0, 1)."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def integers(self, count: int, below: int) -> npt.NDArray[np.int64]:
        """`count` integers from 0 to `below` - 1, equally probable: words past the last multiple are redrawn."""
        if not 1 <= below <= 1 << 63:
            raise DomainError(f"the bound of random integers must be from 1 to 2^63, not {below}")
        accepted = np.empty(0, np.uint64)
        last = np.uint64((1 << 64) // below * below - 1)
        while len(accepted) < count:
            words = self.words(count - len(accepted))
            accepted = np.concatenate([accepted, words[words <= last]])
        return (accepted % np.uint64(below)).astype(np.int64)

    def permutation(self, count: int) -> npt.NDArray[np.intp]:
        """0 to `count` - 1 in random order. Two of n random words are equal with probability below n^2 / 2^65."""
        return np.argsort(self.words(count), kind="stable")


def _key(seed: int | str | bytes | None) -> bytes:
    match seed:
        case None:
            return secrets.token_bytes(SEED_BYTES)
        case bytes():
            if len(seed) != SEED_BYTES:
                raise DomainError(f"a seed of bytes must have {SEED_BYTES} bytes, not {len(seed)}")
            return seed
        case bool():
            raise DomainError("a seed must be an integer, text or bytes, not a boolean")
        case int():
            return hashlib.sha256(_LABEL + b"int/%d" % seed).digest()
        case str():
            return hashlib.sha256(_LABEL + b"str/" + seed.encode()).digest()
    raise DomainError("a seed must be an integer, text or bytes")
