"""The light join: a pseudorandom function of ids that a holder can only compute with the help of all three servers.

This is the OPRF of RFC 9497, base mode, with SHA-512, in the subgroup of prime order of edwards25519, under the key
k = k_1 + k_2 + k_3. Only server i knows k_i, which is fresh for each study. A holder blinds H(id) with a random scalar,
sends the same element to all servers, adds up what they return, removes the blind and hashes. The result is the tag:
equal ids of all holders have equal tags. One server then gets the tags of all holders and returns to each the
`positions` of its rows in a common, random order.

docs/joining.md says what each party learns, which is more than with the default protocol, the join on shares. In short:
the matching server sees who has which pseudonym; together with a holder it can tell which of that holder's persons are
in the other tables. Two servers' keys reveal nothing about the third's, and so nothing about the tags of guessed ids.
Servers are semi-honest: nothing proves that a server used the same key for all holders.

The group is ristretto255's: each of its elements is a coset that has exactly one member in the subgroup. It comes from
PyNaCl, which has no ristretto255 (docs/adr/0019). The curve has points outside the subgroup, so every element from
elsewhere is multiplied only by `_multiply`, which checks that it is inside.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from nacl import bindings as sodium
from nacl.exceptions import RuntimeError as SodiumError

from caps.basics.uniform import Uniform
from caps.data.linkage import ELEMENT_BYTES, TAG_BYTES
from caps.errors import DomainError, PeerViolation

Tags: TypeAlias = npt.NDArray[np.uint8]
"""Shape (n, 16)."""

SERVERS = 3
SEED_BYTES = 32
MAX_INPUT = (1 << 16) - 1
_IDENTITY = b"\1" + bytes(ELEMENT_BYTES - 1)
_LIKE_IDENTITY = frozenset(
    (y + (sign << 255)).to_bytes(ELEMENT_BYTES, "little") for y in (1, 2**255 - 18) for sign in (0, 1)
)
"""All that `_add` takes for the identity: with either sign of its x, which is 0, and with its y, 1, reduced or not."""
_ZERO = bytes(32)
_SUITE = b"caps/v2/oprf/OPRFV1-\x00-edwards25519-SHA512"
_TO_GROUP = b"HashToGroup-" + _SUITE
_BLIND = b"caps/v1/oprf/blind/"
_ORDER = b"caps/v1/oprf/order/"
_NO_ELEMENT = "is the identity or not in the subgroup of prime order of edwards25519"

_multiply = sodium.crypto_scalarmult_ed25519_noclamp
"""Raises SodiumError if the point is not in the subgroup, is the identity, or its multiple would be. Constant time."""
_add = sodium.crypto_core_ed25519_add
"""Raises SodiumError if one of the two is no point of the curve. It need not be in the subgroup."""
_is_member = sodium.crypto_core_ed25519_is_valid_point
"""Whether the bytes are an element of the subgroup other than the identity."""
_map = sodium.crypto_core_ed25519_from_uniform
"""Elligator 2 and a sign, times the cofactor: not uniform, so `element_of` adds two."""
_invert = sodium.crypto_core_ed25519_scalar_invert
_reduce = sodium.crypto_core_ed25519_scalar_reduce
_product = sodium.crypto_core_ed25519_scalar_mul


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
            except SodiumError:  # raised for nothing else
                raise DomainError(f"element {number} of the batch {_NO_ELEMENT}") from None
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
        rows = list(_rows(ids, first))
        inverses = inverted([self._blind(content, row) for row, content in rows])
        tags = bytearray()
        for (_, content), element, inverse in zip(rows, _split(sums), inverses, strict=True):
            try:
                tags += output(content, _multiply(inverse, element))[:TAG_BYTES]
            except SodiumError:
                raise _blamed(evaluations) from None
        return np.frombuffer(tags, np.uint8).reshape(-1, TAG_BYTES)

    def _blind(self, content: bytes, row: int) -> bytes:
        return _scalar(hashlib.sha512(_BLIND + self.seed + row.to_bytes(8, "big") + content).digest())


def element_of(content: bytes) -> bytes:
    """HashToGroup of RFC 9497, section 4: the element whose multiples become tags.

    As in ristretto255, it is the sum of the images of two uniform field elements, which is indistinguishable from a
    random oracle (Brier et al., CRYPTO 2010; Farashahi et al., Math. Comp. 2013).
    """
    uniform = expanded(content, _TO_GROUP)
    return _add(_map(uniform[:32]), _map(uniform[32:]))


def blinded(content: bytes, blind: bytes) -> bytes:
    """Blind of RFC 9497, section 3.3.1, with the given blind."""
    return _multiply(blind, element_of(content))


def inverted(scalars: Sequence[bytes]) -> list[bytes]:
    """The inverses of nonzero scalars, with one inversion for all (Montgomery's trick): it costs as much as a point's
    multiple.
    """
    if not scalars:
        return []
    products = [scalars[0]]
    for scalar in scalars[1:]:
        products.append(_product(products[-1], scalar))
    inverse = _invert(products[-1])
    inverses = []
    for scalar, before in zip(reversed(scalars[1:]), reversed(products[:-1]), strict=True):
        inverses.append(_product(inverse, before))
        inverse = _product(inverse, scalar)
    return [inverse, *reversed(inverses)]


def output(content: bytes, element: bytes) -> bytes:
    """The hash that ends Finalize of RFC 9497, section 3.3.1: 64 bytes."""
    if len(content) > MAX_INPUT:
        raise DomainError(f"an input must have at most {MAX_INPUT} bytes")
    framed = len(content).to_bytes(2, "big") + content + ELEMENT_BYTES.to_bytes(2, "big") + element
    return hashlib.sha512(framed + b"Finalize").digest()


def combined(evaluations: Sequence[bytes], count: int) -> bytes:
    """Sums of the three servers' elements: the batch evaluated under the whole key. Raises PeerViolation.

    That a sum is in the subgroup is left to its multiplication: checking each of the three would cost more than all
    else here, and points outside whose sum is inside are as good as others inside with this sum.
    """
    if len(evaluations) != SERVERS:
        raise DomainError(f"a batch needs {SERVERS} evaluations, one from each server")
    for party, batch in enumerate(evaluations):
        if len(batch) != ELEMENT_BYTES * count:
            raise PeerViolation(party, f"returned {len(batch)} bytes instead of {count} elements")
        if not _LIKE_IDENTITY.isdisjoint(_split(batch)):
            raise _blamed(evaluations)
    try:
        sums = [
            _add(_add(first, second), third) for first, second, third in zip(*map(_split, evaluations), strict=True)
        ]
    except SodiumError:
        raise _blamed(evaluations) from None
    if _IDENTITY in sums:
        raise _blamed(evaluations)
    return b"".join(sums)


def _blamed(evaluations: Sequence[bytes]) -> PeerViolation | DomainError:
    """Who is to blame that a sum is not an element: the first server with an answer that is none."""
    for party, batch in enumerate(evaluations):
        if not all(map(_is_member, _split(batch))):
            return PeerViolation(party, f"returned an evaluation that {_NO_ELEMENT}")
    return DomainError("the servers' keys cancel out")


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


def expanded(content: bytes, label: bytes) -> bytes:
    """expand_message_xmd of RFC 9380, section 5.3.1, with SHA-512, to 64 bytes: one block, so b_1 is the result."""
    suffix = label + bytes([len(label)])
    b_0 = hashlib.sha512(bytes(128) + content + (64).to_bytes(2, "big") + b"\x00" + suffix).digest()
    return hashlib.sha512(b_0 + b"\x01" + suffix).digest()
