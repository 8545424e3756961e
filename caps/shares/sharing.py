"""Dealing a vector to the servers of a scheme, and reconstructing it.

A value is split into components that add up to it (or XOR to it, for bits), and each server receives those that the
scheme says: in rep3, server i components i and i+1 of three, so any two servers can reconstruct and one alone sees
uniform words (Araki et al. 2016; CaPS section 2).

All components but one are expanded from 32-byte seeds, so a dealer sends one explicit vector to its holders and
otherwise only 32 bytes, whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from math import prod

import numpy as np

from caps.basics.schemes import REP3, Scheme
from caps.errors import DomainError, ShareError, party_name
from caps.shares.prss import SEED_BYTES, expand_part, expand_stream
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

    def octets(self, shape: tuple[int, ...], ring: Ring, start: int, stop: int) -> memoryview:
        """Some bytes of the component as a vector of this shape would be sent, without expanding what is before."""
        label = COMPONENT_LABEL + bytes([self.component])
        return expand_part(self.seed, label, prod(shape) * ring.itemsize, start, stop)


@dataclass(frozen=True, slots=True, repr=False)
class Explicit:
    """A component given word by word."""

    vector: Words

    def words(self, shape: tuple[int, ...], ring: Ring) -> Words:
        """The component's words. Raises ShareError if they do not have this shape and ring."""
        if self.vector.shape != shape or self.vector.dtype != ring.dtype:
            raise ShareError(f"expected {shape} elements of {ring!r}, found {self.vector.shape} of {self.vector.dtype}")
        return self.vector


@dataclass(frozen=True, slots=True, repr=False, init=False)
class DealtShare:
    """What a dealer sends to one server: the components of one array that it holds, in the scheme's order."""

    party: int
    shape: tuple[int, ...]
    ring: Ring
    algebra: Algebra
    parts: tuple[Seeded | Explicit, ...]

    def __init__(
        self, party: int, shape: tuple[int, ...], ring: Ring, algebra: Algebra, *parts: Seeded | Explicit
    ) -> None:
        for name, value in zip(self.__slots__, (party, shape, ring, algebra, parts), strict=True):
            object.__setattr__(self, name, value)

    def components(self) -> tuple[Words, ...]:
        """The components, expanded."""
        return tuple(part.words(self.shape, self.ring) for part in self.parts)


def deal(
    values: Words,
    *,
    entropy: Callable[[int], bytes],
    algebra: Algebra = Algebra.ADD,
    ring: Ring | None = None,
    scheme: Scheme = REP3,
) -> tuple[DealtShare, ...]:
    """Split an array, a share for each server. `entropy(n)` returns n fresh random bytes: `secrets.token_bytes`.

    `ring` is by default that of the words' dtype; it may be a smaller one that contains them.
    """
    ring = ring_of(values) if ring is None else ring
    seeds = [entropy(SEED_BYTES) for _ in scheme.seeded]
    if any(len(seed) != SEED_BYTES for seed in seeds) or len(set(seeds)) != len(seeds):
        raise DomainError("the entropy source must return the requested number of fresh bytes")
    (explicit,) = set(range(scheme.components)) - set(scheme.seeded)
    parts: dict[int, Seeded | Explicit] = {}
    rest = values
    for component, seed in zip(scheme.seeded, seeds, strict=True):
        parts[component] = Seeded(seed, component)
        rest = algebra.remove(rest, parts[component].words(values.shape, ring))
    parts[explicit] = Explicit(ring.reduce(rest))
    return tuple(
        DealtShare(party, values.shape, ring, algebra, *(parts[component] for component in held))
        for party, held in enumerate(scheme.held)
    )


def reconstruct(
    components: Sequence[tuple[Words, ...]], *, algebra: Algebra = Algebra.ADD, scheme: Scheme = REP3
) -> Words:
    """The value behind all servers' components, which must agree where they overlap."""
    if len(components) != scheme.parties:
        raise ShareError(f"reconstruction needs the components of {scheme.parties} servers, not of {len(components)}")
    found: list[Words] = []
    for component in range(scheme.components):
        first, *others = scheme.holders_of(component)
        words = components[first][scheme.held[first].index(component)]
        for other in others:
            if not np.array_equal(words, components[other][scheme.held[other].index(component)]):
                raise ShareError(f"{party_name(first)} and {party_name(other)} hold different copies of one component")
        found.append(words)
    return reduce(algebra.combine, found)
