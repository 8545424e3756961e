"""Who knows what: which two parties make which part of a product, and what that part is.

The product of two shared values is the sum of six terms, one for each pair of components i and j:

    x y = sum of (x_i + x_j)(y_i + y_j) over the pairs (0,1), (1,2), (2,3), (3,0)
          - (x_0 - x_2)(y_0 - y_2) - (x_1 - x_3)(y_1 - y_3)

Each cross product is there once, and each x_i y_i twice with + and once with -. So a term is one product, for words and
bits alike, and it is known to the two parties that hold both components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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

    @property
    def other(self) -> int:
        """The party that is not concerned: it knows the mask only."""
        return sum(range(PARTIES)) - self.sender - self.backup - self.receiver

    def knows(self, party: int) -> bool:
        """Whether a party knows the value."""
        return party in (self.sender, self.backup)


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
    """The same over Z_2, where + and - are XOR."""
    party = x.owner.party
    left, right = ([one(words) for words in share.components] for one, share in ((form.left, x), (form.right, y)))
    found, factor = {}, np.empty_like(right[0])
    for number, term in known_terms(party):
        one, two = (component - (component > party) for component in (term.joint.other, term.joint.receiver))
        both = left[one] ^ left[two]
        np.bitwise_xor(right[one], right[two], out=factor)
        both &= factor
        found[number] = form.summed(both)
    return found
