"""Dealing a vector to three servers, and reconstructing it.

A value x is split into three components, x = x_0 + x_1 + x_2 (or XOR, for bits); server i receives components i and
i+1, so any two servers can reconstruct and one alone sees uniform words (Araki et al. 2016; CaPS section 2).

Components 0 and 1 are expanded from 32-byte seeds, so a dealer sends one explicit vector to two servers and otherwise
only 32 bytes, whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np

from caps.errors import DomainError, ShareError
from caps.shares.prss import SEED_BYTES, expand_stream
from caps.shares.ring import Ring, Words, ring_of

COMPONENT_LABEL = b"caps/v1/deal/component"
_PIECE_BYTES = 3 << 19
"""A whole number of words of every ring."""


class Algebra(Enum):
    """How the components of a sharing combine."""

    ADD = "add"
    XOR = "xor"

    def combine(self, left: Words, right: Words) -> Words:
        """left + right, or left XOR right."""
        return np.asarray(np.add(left, right) if self is Algebra.ADD else np.bitwise_xor(left, right))

    def remove(self, left: Words, right: Words) -> Words:
        """left - right, or left XOR right."""
        return np.asarray(np.subtract(left, right) if self is Algebra.ADD else np.bitwise_xor(left, right))


@dataclass(frozen=True, slots=True, repr=False)
class Seeded:
    """A component given by its seed."""

    seed: bytes
    component: int

    def words(self, shape: tuple[int, ...], ring: Ring) -> Words:
        """The component's words, expanded piece by piece, so nothing else of their size is in memory."""
        size = prod(shape) * ring.itemsize
        stream = expand_stream(self.seed, COMPONENT_LABEL + bytes([self.component]), size)
        starts = range(0, size, _PIECE_BYTES)
        return ring.read(shape, (stream(min(_PIECE_BYTES, size - start)) for start in starts))


@dataclass(frozen=True, slots=True, repr=False)
class Explicit:
    """A component given word by word."""

    vector: Words

    def words(self, shape: tuple[int, ...], ring: Ring) -> Words:
        """The component's words. Raises ShareError if they do not have this shape and ring."""
        if self.vector.shape != shape or self.vector.dtype != ring.dtype:
            raise ShareError(f"expected {shape} elements of {ring!r}, found {self.vector.shape} of {self.vector.dtype}")
        return self.vector


@dataclass(frozen=True, slots=True, repr=False)
class DealtShare:
    """What a dealer sends to one server: components `party` and `party + 1` of one array."""

    party: int
    shape: tuple[int, ...]
    ring: Ring
    algebra: Algebra
    mine: Seeded | Explicit
    next: Seeded | Explicit

    def components(self) -> tuple[Words, Words]:
        """Both components, expanded."""
        return self.mine.words(self.shape, self.ring), self.next.words(self.shape, self.ring)


def deal(
    values: Words, *, entropy: Callable[[int], bytes], algebra: Algebra = Algebra.ADD, ring: Ring | None = None
) -> tuple[DealtShare, DealtShare, DealtShare]:
    """Split an array for the three servers. `entropy(n)` returns n fresh random bytes: `secrets.token_bytes`.

    `ring` is by default that of the words' dtype; it may be a smaller one that contains them.
    """
    ring = ring_of(values) if ring is None else ring
    seeds = [entropy(SEED_BYTES), entropy(SEED_BYTES)]
    if len(seeds[0]) != SEED_BYTES or len(seeds[1]) != SEED_BYTES or seeds[0] == seeds[1]:
        raise DomainError("the entropy source must return the requested number of fresh bytes")
    rest = values
    seeded = [Seeded(seed, component) for component, seed in enumerate(seeds)]
    for part in seeded:
        rest = algebra.remove(rest, part.words(values.shape, ring))
    parts: list[Seeded | Explicit] = [*seeded, Explicit(ring.reduce(rest))]
    shares = [DealtShare(p, values.shape, ring, algebra, parts[p], parts[(p + 1) % 3]) for p in range(3)]
    return shares[0], shares[1], shares[2]


def reconstruct(components: Sequence[tuple[Words, Words]], *, algebra: Algebra = Algebra.ADD) -> Words:
    """The value behind the three servers' pairs of components, which must agree where they overlap."""
    if len(components) != 3:
        raise ShareError(f"reconstruction needs three pairs of components, not {len(components)}")
    for party in range(3):
        if not np.array_equal(components[party][1], components[(party + 1) % 3][0]):
            raise ShareError(f"S{party + 1} and S{(party + 1) % 3 + 1} hold different copies of one component")
    first, second, third = (pair[0] for pair in components)
    return algebra.combine(algebra.combine(first, second), third)
