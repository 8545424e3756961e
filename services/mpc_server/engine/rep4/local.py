"""Who knows what: which two parties make which part of a product, and what that part is.

The product of two shared values is the sum of six terms, one for each pair of components i and j:

    x y = sum of (x_i + x_j)(y_i + y_j) over the pairs (0,1), (1,2), (2,3), (3,0)
          - (x_0 - x_2)(y_0 - y_2) - (x_1 - x_3)(y_1 - y_3)

Each cross product is there once, and each x_i y_i twice with + and once with -. So a term is one product, for words and
bits alike, and it is known to the two parties that hold both components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from caps.basics.schemes import REP4
from caps.shares.digests import DIGEST_BYTES
from caps.shares.ring import Words
from services.mpc_server.engine.cost import OfParty, Price
from services.mpc_server.engine.registry import price
from services.mpc_server.engine.shares import AShare, BShare, RowShare
from services.mpc_server.engine.verbs import Bilinear, BitForm

NAME = REP4.name
PARTIES = REP4.parties
LATTER = OfParty("latter", lambda party: int(party >= 2))
"""1 for S3 and S4, which send two of the six terms of a product, and 0 for the others, which send one."""
price(NAME, Price(product=1 + LATTER, sums=True, opened=1, digest=DIGEST_BYTES))


@dataclass(frozen=True, slots=True)
class Joint:
    """Who makes a value shared that two parties know: component `other` is a message, component `receiver` a mask.

    The sender sends, the backup vouches for what is sent, and the receiver, who lacks the mask, learns nothing.
    """

    sender: int
    backup: int
    receiver: int
    other: int = field(init=False)
    """The party that is not concerned: it knows the mask only."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "other", sum(range(PARTIES)) - self.sender - self.backup - self.receiver)

    def knows(self, party: int) -> bool:
        """Whether a party knows the value."""
        return party in (self.sender, self.backup)


@dataclass(frozen=True, slots=True)
class Duties:
    """What one party does for some joints, by their numbers."""

    sends: tuple[int, ...]
    backs: tuple[int, ...]
    awaits: tuple[int, ...]
    draws: Mapping[int, tuple[int, ...]]
    """For each receiver but this party, the joints that it receives: their masks are one draw."""


@cache
def duties(joints: tuple[Joint, ...], party: int) -> Duties:
    """The duties of a party."""

    def numbers(role: str, of: int) -> tuple[int, ...]:
        return tuple(number for number, joint in enumerate(joints) if getattr(joint, role) == of)

    received = {receiver: numbers("receiver", receiver) for receiver in range(PARTIES)}
    awaits = received.pop(party)
    draws = {receiver: some for receiver, some in received.items() if some}
    return Duties(numbers("sender", party), numbers("backup", party), awaits, draws)


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a product, and who makes it shared. It is of the two components that its receiver and `other` lack."""

    joint: Joint
    opposite: bool
    """Whether it is of differences, and subtracted."""

    def factor(self, components: Callable[[int], Words]) -> Words:
        """x_i + x_j, or x_i - x_j."""
        mixed = np.subtract if self.opposite else np.add
        return np.asarray(mixed(components(self.joint.other), components(self.joint.receiver)))

    def signed(self, product: Words) -> Words:
        """The term, given the product of its factors."""
        return np.negative(product) if self.opposite else product


TERMS = (
    *(Term(Joint((i + 2) % PARTIES, (i + 3) % PARTIES, (i + 1) % PARTIES), opposite=False) for i in range(PARTIES)),
    Term(Joint(3, 1, 2), opposite=True),
    Term(Joint(2, 0, 3), opposite=True),
)
"""Every party sends once or twice and has three messages to hash."""
JOINTS = tuple(term.joint for term in TERMS)


def components_of(share: AShare | BShare | RowShare) -> Callable[[int], Words]:
    """The components that a party holds, by number."""
    party, parts = share.owner.party, share.components
    return lambda number: parts[number - (number > party)]


def known_terms(party: int) -> Iterator[tuple[int, Term]]:
    """The terms that a party knows, numbered among all."""
    return ((number, term) for number, term in enumerate(TERMS) if term.joint.knows(party))


def product_terms(x: AShare, y: AShare, times: Bilinear = np.multiply) -> dict[int, Words]:
    """What this party knows of the terms of a bilinear function of x and y."""
    left, right = components_of(x), components_of(y)
    return {
        number: term.signed(np.asarray(times(term.factor(left), term.factor(right))))
        for number, term in known_terms(x.owner.party)
    }


def bit_terms(x: BShare, y: BShare, form: BitForm) -> dict[int, Words]:
    """The same over Z_2, where + and - are XOR: of the sums of two of three components, one is that of the others."""
    left, last_left = map(form.left, _neighbours(x))
    right, last_right = map(form.right, _neighbours(y))
    first = left & right
    left ^= last_left
    right ^= last_right
    left &= right
    last_left &= last_right
    return dict(zip(_BY_PAIR[x.owner.party], map(form.summed, (first, last_left, left)), strict=True))


def _neighbours(share: BShare) -> tuple[Words, Words]:
    """The sum of the first two components, and that of the last two."""
    first, second, third = share.components
    return first ^ second, second ^ third


def _by_pair(party: int) -> list[int]:
    """The terms that a party knows: of its first two components, of the last two, of the first and the last."""
    first, second, third = REP4.held[party]
    pairs = [{first, second}, {second, third}, {first, third}]
    return [next(n for n, joint in enumerate(JOINTS) if {joint.other, joint.receiver} == pair) for pair in pairs]


_BY_PAIR = tuple(map(_by_pair, range(PARTIES)))
