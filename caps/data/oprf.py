"""The light join: a pseudorandom function of ids that a holder can only compute with the help of all three servers.

This is RFC 9497's OPRF(ristretto255, SHA-512), base mode, under the key k = k_1 + k_2 + k_3. Only server i knows k_i,
which is fresh for each study. A holder blinds H(id) with a random scalar, sends the same element to all servers, adds
up what they return, removes the blind and hashes. The result is the tag: equal ids of all holders have equal tags.
One server then gets the tags of all holders and returns to each the `positions` of its rows in a common, random order.

docs/joining.md says what each party learns, which is more than with the default protocol, the join on shares. In short:
the matching server sees who has which pseudonym; together with a holder it can tell which of that holder's persons are
in the other tables. Two servers' keys reveal nothing about the third's, and so nothing about the tags of guessed ids.
Servers are semi-honest: nothing proves that a server used the same key for all holders.

`rbcl` contains libsodium and unpacks it to a temporary file when imported: import this module only where it is needed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import rbcl  # type: ignore[import-untyped]

from caps.basics.uniform import Uniform
from caps.data.linkage import ELEMENT_BYTES, TAG_BYTES
from caps.errors import DomainError, PeerViolation

Tags: TypeAlias = npt.NDArray[np.uint8]
"""Shape (n, 16)."""

SERVERS = 3
SEED_BYTES = 32
MAX_INPUT = (1 << 16) - 1
_IDENTITY = bytes(ELEMENT_BYTES)
_ZERO = bytes(32)
_SUITE = b"OPRFV1-\x00-ristretto255-SHA512"
_TO_GROUP = b"HashToGroup-" + _SUITE
_BLIND = b"caps/v1/oprf/blind/"
_ORDER = b"caps/v1/oprf/order/"

_multiply: Callable[[bytes, bytes], bytes] = rbcl.crypto_scalarmult_ristretto255
"""Raises RuntimeError if the input is not a group element or the result would be the identity."""
_add: Callable[[bytes, bytes], bytes] = rbcl.crypto_core_ristretto255_add
"""Needs valid elements: for others it silently returns the identity."""
_is_valid: Callable[[bytes], bool] = rbcl.crypto_core_ristretto255_is_valid_point
"""The identity is valid."""
_from_hash: Callable[[bytes], bytes] = rbcl.crypto_core_ristretto255_from_hash
_invert: Callable[[bytes], bytes] = rbcl.crypto_core_ristretto255_scalar_invert
_reduce: Callable[[bytes], bytes] = rbcl.crypto_core_ristretto255_scalar_reduce


@dataclass(frozen=True)
class ServerKey:
    """A server's additive part of the key: a scalar below the group's order, little-endian, not zero."""

    scalar: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.scalar) != 32 or self.scalar == _ZERO or _reduce(self.scalar + bytes(32)) != self.scalar:
            raise DomainError("a key must be a reduced, nonzero scalar of 32 bytes")

    @classmethod
    def fresh(cls) -> ServerKey:
        """A new key, for one study."""
        return cls(_scalar(secrets.token_bytes(64)))

    def evaluate(self, elements: bytes) -> bytes:
        """k_i times each element of 32 bytes. Raises DomainError if one is the identity or not a group element.

        This is a pure function of each element, so a batch may be repeated or split differently after an interruption.
        A caller that chooses the elements can test guesses of ids one by one: limit and log their number.
        """
        evaluated = []
        for number, element in enumerate(_split(elements)):
            try:
                evaluated.append(_multiply(self.scalar, element))
            except RuntimeError:  # libsodium raises it for nothing else
                raise DomainError(
                    f"element {number} of the batch is the identity or not an element of ristretto255"
                ) from None
        return b"".join(evaluated)


@dataclass(frozen=True)
class Client:
    """The holder's side. All blinds follow from the seed, so 32 stored bytes suffice to resume after an interruption.

    A blind depends on the seed, the row's number and its id. A repeated batch repeats its elements and reveals nothing
    new; a row that changed gets an unrelated blind. The seed is fresh for each study and stays with the holder.
    """

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != SEED_BYTES:
            raise DomainError(f"a seed must have {SEED_BYTES} bytes")

    @classmethod
    def fresh(cls) -> Client:
        """A client with a new seed."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def blind(self, ids: Tags, *, first: int = 0) -> bytes:
        """Blinded elements of a batch whose first row has the number `first`."""
        return b"".join(blinded(content, self._blind(content, row)) for row, content in _rows(ids, first))

    def finalise(self, ids: Tags, evaluations: Sequence[bytes], *, first: int = 0) -> Tags:
        """Tags of the batch, from the answers of S1, S2 and S3, in this order. Raises PeerViolation if one is wrong."""
        sums = combined(evaluations, len(ids))
        tags = bytearray()
        for (row, content), element in zip(_rows(ids, first), _split(sums), strict=True):
            tags += output(content, unblinded(element, self._blind(content, row)))[:TAG_BYTES]
        return np.frombuffer(tags, np.uint8).reshape(-1, TAG_BYTES)

    def _blind(self, content: bytes, row: int) -> bytes:
        return _scalar(hashlib.sha512(_BLIND + self.seed + row.to_bytes(8, "big") + content).digest())


def element_of(content: bytes) -> bytes:
    """HashToGroup of RFC 9497, section 4.1: the element whose multiples become tags."""
    uniform = _expand(content, _TO_GROUP)
    return _from_hash(uniform)


def blinded(content: bytes, blind: bytes) -> bytes:
    """Blind of RFC 9497, section 3.3.1, with the given blind."""
    return _multiply(blind, element_of(content))


def unblinded(element: bytes, blind: bytes) -> bytes:
    """The evaluated element without its blind."""
    return _multiply(_invert(blind), element)


def output(content: bytes, element: bytes) -> bytes:
    """The hash that ends Finalize of RFC 9497, section 3.3.1: 64 bytes."""
    if len(content) > MAX_INPUT:
        raise DomainError(f"an input must have at most {MAX_INPUT} bytes")
    framed = len(content).to_bytes(2, "big") + content + ELEMENT_BYTES.to_bytes(2, "big") + element
    return hashlib.sha512(framed + b"Finalize").digest()


def combined(evaluations: Sequence[bytes], count: int) -> bytes:
    """Sums of the three servers' elements: the batch evaluated under the whole key. Raises PeerViolation."""
    if len(evaluations) != SERVERS:
        raise DomainError(f"a batch needs {SERVERS} evaluations, one from each server")
    parts = [_checked(party, batch, count) for party, batch in enumerate(evaluations)]
    sums = [_add(_add(first, second), third) for first, second, third in zip(*parts, strict=True)]
    if _IDENTITY in sums:
        raise DomainError("the servers' keys cancel out")
    return b"".join(sums)


@dataclass(frozen=True, eq=False)
class Match:
    """What the matching server found. Positions are from 0 to `size` - 1; those that no holder fills are padding.

    positions: for each holder, the position of each of its rows, in the order of its tags; only that holder learns
    them. everywhere: the positions at which all holders have a row, for an inner join. Only servers learn these: a
    holder would learn which of its persons the others have.
    """

    size: int
    positions: Mapping[str, npt.NDArray[np.int64]] = field(repr=False)
    everywhere: npt.NDArray[np.bool_] = field(repr=False)


def positions(tags: Mapping[str, Tags], key: bytes, *, size: int) -> Match:
    """A common order of all holders' tags, random to all who lack the 32-byte key. size: rows of the joint table.

    The order is a permutation of all `size` positions, so a holder's own positions do not reveal how many are in use.
    It depends on the key and on all tags: the same call returns the same order, and if a holder's tags change the new
    order is independent of the old one. Raises DomainError if a holder has a tag twice, or there are more tags than
    positions; the message names the holder, not the tag.
    """
    if len(key) != 32:
        raise DomainError("the key of an order must have 32 bytes")
    names = sorted(tags)
    words = [_words(tags[name], name) for name in names]
    if not names:
        raise DomainError("there are no holders to join")
    union, ranks = np.unique(np.concatenate(words), return_inverse=True)
    if len(union) > size:
        raise DomainError(f"the holders have more distinct rows than the joint table's {size} positions")
    told = hashlib.sha256(_ORDER + key + size.to_bytes(8, "big"))
    for name, own in zip(names, words, strict=True):
        told.update(len(name.encode()).to_bytes(4, "big") + name.encode() + len(own).to_bytes(8, "big") + own.tobytes())
    order = Uniform(told.digest()).permutation(size).astype(np.int64)
    placed = order[ranks.reshape(-1)]
    everywhere = np.bincount(placed, minlength=size) == len(names)
    parts = np.split(placed, np.cumsum([len(own) for own in words])[:-1])
    return Match(size, dict(zip(names, parts, strict=True)), everywhere)


def _words(tags: Tags, name: str) -> npt.NDArray[np.void]:
    if tags.ndim != 2 or tags.shape[1] != TAG_BYTES or tags.dtype != np.uint8:
        raise DomainError(f"tags of {name} must be rows of {TAG_BYTES} bytes")
    own = np.ascontiguousarray(tags).view(np.dtype((np.void, TAG_BYTES))).reshape(-1)
    if repeats := len(own) - len(np.unique(own)):
        raise DomainError(f"{name} sent {repeats} repeated tags; its keys must be unique")
    return own


def _checked(party: int, batch: bytes, count: int) -> list[bytes]:
    if len(batch) != ELEMENT_BYTES * count:
        raise PeerViolation(party, f"returned {len(batch)} bytes instead of {count} elements")
    elements = list(_split(batch))
    if not all(map(_is_valid, elements)) or _IDENTITY in elements:
        raise PeerViolation(party, "returned an evaluation that is the identity or not an element of ristretto255")
    return elements


def _split(batch: bytes) -> Iterator[bytes]:
    if len(batch) % ELEMENT_BYTES:
        raise DomainError(f"a batch must consist of elements of {ELEMENT_BYTES} bytes")
    return (batch[at : at + ELEMENT_BYTES] for at in range(0, len(batch), ELEMENT_BYTES))


def _rows(ids: Tags, first: int) -> Iterator[tuple[int, bytes]]:
    if ids.ndim != 2 or ids.dtype != np.uint8:
        raise DomainError("ids must be rows of bytes")
    data, width = ids.tobytes(), ids.shape[1]
    return ((first + row, data[width * row : width * (row + 1)]) for row in range(len(ids)))


def _scalar(uniform: bytes) -> bytes:
    """64 uniform bytes modulo the group's order: uniform up to 2^-259, and in practice never zero."""
    return _reduce(uniform)


def _expand(content: bytes, label: bytes) -> bytes:
    """expand_message_xmd of RFC 9380, section 5.3.1, with SHA-512, to 64 bytes: one block, so b_1 is the result."""
    suffix = label + bytes([len(label)])
    b_0 = hashlib.sha512(bytes(128) + content + (64).to_bytes(2, "big") + b"\x00" + suffix).digest()
    return hashlib.sha512(b_0 + b"\x01" + suffix).digest()
