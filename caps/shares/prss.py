"""Pseudorandom secret sharing: randomness that parties share without communication (Cramer, Damgard and Ishai 2005).

Every party that holds a component of sharings also holds that component's key. Expanding the same key under the same
label gives all its holders the same words, so a sharing of a random value costs nothing.

Key schedule: pair secret -> HKDF-SHA256 -> component key -> keyed BLAKE2b of the label -> AES-128-CTR key, counter 0.
One label therefore yields one stream, and two labels never share an AES key. Draws of up to 64 bytes are BLAKE2b's own
output, because setting up a cipher costs more.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from caps.errors import DomainError, LabelReused
from caps.shares.ring import Z64, Ring, Words

SEED_BYTES = 32
_COMPONENT_KEY = b"caps/v1/prss/component-key"
_SHORT_BYTES = 64
_SHORT_PERSON, _LONG_PERSON = b"caps/v1/short", b"caps/v1/long"
_CIPHER_BLOCK = 16
_ZEROS = memoryview(bytes(1 << 16))
"""What is encrypted, a piece at a time that stays in cache."""


def expand(seed: bytes, label: bytes, shape: tuple[int, ...], ring: Ring) -> Words:
    """Uniform ring elements of `shape`, a deterministic function of (seed, label)."""
    if len(seed) != SEED_BYTES:
        raise DomainError(f"a seed must have {SEED_BYTES} bytes, not {len(seed)}")
    size = ring.itemsize * prod(shape)
    if size <= _SHORT_BYTES:
        short = hashlib.blake2b(label, key=seed, digest_size=_SHORT_BYTES, person=_SHORT_PERSON).digest()
        stream = memoryview(short)[:size]
    else:
        stream = np.empty(size, np.uint8).data
        encryptor = _encryptor(seed, label)
        for start in range(0, size, len(_ZEROS)):
            encryptor.update_into(_ZEROS[: size - start], stream[start:])
    return ring.from_bytes(stream).reshape(shape)


def expand_part(seed: bytes, label: bytes, size: int, start: int, stop: int) -> memoryview:
    """The bytes from `start` to `stop` of the `size` bytes of expand()'s words, without those before them."""
    if len(seed) != SEED_BYTES or not 0 <= start <= stop <= size:
        raise DomainError(f"bytes {start} to {stop} of {size}, from a seed of {len(seed)} bytes, cannot be expanded")
    if size <= _SHORT_BYTES:
        return memoryview(expand_stream(seed, label, size)(size))[start:stop]
    block, skipped = divmod(start, _CIPHER_BLOCK)
    stream = np.empty(skipped + stop - start, np.uint8).data
    encryptor = _encryptor(seed, label, block)
    for at in range(0, len(stream), len(_ZEROS)):
        encryptor.update_into(_ZEROS[: len(stream) - at], stream[at:])
    return stream[skipped:]


def _encryptor(seed: bytes, label: bytes, block: int = 0) -> CipherContext:
    """The stream of a seed and a label, from one of the cipher's blocks on."""
    key = hashlib.blake2b(label, key=seed, digest_size=16, person=_LONG_PERSON).digest()
    return Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(_CIPHER_BLOCK, "big"))).encryptor()


def component_key(pair_secret: bytes, component: int, scope: bytes) -> bytes:
    """The key of one component, derived from the secret its two holders share; `scope` names the session."""
    if len(pair_secret) != SEED_BYTES:
        raise DomainError(f"a pair's secret must have {SEED_BYTES} bytes, not {len(pair_secret)}")
    info = _COMPONENT_KEY + bytes([component]) + scope
    return HKDF(algorithm=SHA256(), length=SEED_BYTES, salt=None, info=info).derive(pair_secret)


@dataclass(slots=True, repr=False)
class Prss:
    """One party's keys and the labels it has used. A label is for one draw only.

    keys: of the components that the party holds, in the order in which it keeps them.
    """

    keys: Mapping[int, bytes]
    _used: set[bytes] = field(default_factory=set)

    def claim(self, label: bytes) -> None:
        """Mark a label as used. Raises LabelReused the second time."""
        if label in self._used:
            raise LabelReused(f"label {label.decode()} has already been used")
        self._used.add(label)

    def replicated(self, label: bytes, shape: tuple[int, ...], ring: Ring) -> tuple[Words, ...]:
        """This party's components of a uniformly random shared array."""
        self.claim(label)
        return tuple(expand(key, label, shape, ring) for key in self.keys.values())

    def component(self, number: int, label: bytes, shape: tuple[int, ...], ring: Ring) -> Words:
        """Words known to the holders of one component only: that component of a random sharing."""
        self.claim(label)
        return expand(self.keys[number], label, shape, ring)

    def order(self, number: int, label: bytes, count: int) -> npt.NDArray[np.intp]:
        """A permutation that the holders of one component know: the order of random 64-bit keys, all different.

        Keys are drawn anew until no two are equal. Given that they differ, every order of them is equally likely, so
        there is no bias at all. All holders draw the same keys and so agree on the number of attempts; a second one
        has probability below n^2 / 2^65.
        """
        attempt = 0
        while True:
            keys = self.component(number, b"%b%d" % (label, attempt), (count,), Z64)
            order = np.argsort(keys)
            ranked = keys[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order
            attempt += 1


def expand_stream(seed: bytes, label: bytes, size: int) -> Callable[[int], bytes]:
    """The `size` bytes of expand()'s words, piece by piece: each call returns the next bytes, as many as requested."""
    if len(seed) != SEED_BYTES:
        raise DomainError(f"a seed must have {SEED_BYTES} bytes, not {len(seed)}")
    if size <= _SHORT_BYTES:
        short = hashlib.blake2b(label, key=seed, digest_size=_SHORT_BYTES, person=_SHORT_PERSON).digest()[:size]
        return io.BytesIO(short).read
    encryptor = _encryptor(seed, label)
    return lambda count: encryptor.update(bytes(count))
