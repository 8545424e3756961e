"""Claims on words: sums of products + e + f = 0 modulo 2^k, by 48 random binary combinations of all of them.

If some claim is wrong by d, not 0 modulo 2^k, the power of two that divides all errors is divided out, and each
combination is still odd with probability 1/2: all are 0 with probability 2^-48.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.chains import LIMB, Equations, Integers, limbs_of, widths_of
from services.mpc_server.engine.rep3_active.proof.field import Scalar, embedded, scalar
from services.mpc_server.engine.rep3_active.proof.kernels import (
    Elements,
    gather,
    limb_rights,
    limb_sums,
    tables,
    weighted,
)
from services.mpc_server.engine.rep3_active.proof.source import COMBINATIONS, Source, Toss, Weights

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WordClaim:
    """sum over t of lefts[t] * rights[t], over segments if there are `starts`, + e + f = 0, elementwise."""

    lefts: Sequence[Words] | None
    rights: Sequence[Words] | None
    e: Words | None
    f: Words | None
    starts: npt.NDArray[np.integer] | None  # type: ignore[type-arg]

    @property
    def claims(self) -> int:
        return next(one.size for one in (self.e, self.f) if one is not None)

    @property
    def products(self) -> int:
        return sum(one.size for one in self.lefts or self.rights or ())

    def index(self, first: int) -> list[Index]:
        """The claim that each product belongs to, for each t."""
        numbers = np.arange(first, first + self.claims)
        factors = self.lefts or self.rights or ()
        if self.starts is not None:
            lengths = np.diff(self.starts, append=factors[0].size)
            numbers = np.repeat(numbers, lengths)
        return [numbers] * len(factors)


class WordSource(Source):
    """All claims on words modulo 2^bits whose left factors have so many limbs."""

    def __init__(self, claims: Sequence[WordClaim], bits: int, left_limbs: int, label: bytes) -> None:
        self._claims, self._bits, self._left_limbs, self._label = claims, bits, left_limbs, label
        self._count = sum(one.claims for one in claims)
        products = sum(one.products for one in claims)
        self.equations = Equations(COMBINATIONS, bits, most_of(self._count, products, bits, left_limbs))
        self.elements = products * left_limbs

    def _index(self) -> Index:
        firsts = np.cumsum([0, *(one.claims for one in self._claims)])
        parts = [part for one, first in zip(self._claims, firsts, strict=False) for part in one.index(int(first))]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _factors(self, parts: Sequence[Sequence[Words] | None], bits: int) -> npt.NDArray[np.uint16]:
        flat = [one.reshape(-1) for part in parts for one in part or ()]
        size = 2 if bits <= 16 else 4 if bits <= 32 else 8
        words = np.concatenate(flat, dtype=f"<u{size}", casting="unsafe") if flat else np.zeros(0, np.uint16)
        return limbs_of(words, bits)

    def _lefts(self) -> npt.NDArray[np.uint16]:
        return self._factors([one.lefts for one in self._claims], min(self._bits, LIMB * self._left_limbs))

    def _rights(self) -> npt.NDArray[np.uint16]:
        return self._factors([one.rights for one in self._claims], self._bits)

    def _added(self, side: str) -> npt.NDArray[np.uint16]:
        flat = [getattr(one, side).reshape(-1) for one in self._claims]
        return limbs_of(np.concatenate(flat), self._bits)

    def sums(self, toss: Toss) -> Integers:
        limbs = self.equations.limbs
        of_claims = limb_sums(self._lefts(), self._rights(), self._index(), self._count, limbs)
        of_claims += self._added("e")
        of_claims += self._added("f")
        chosen = toss.coins(self._label, self._count).T.astype(np.float64)
        # Both products are exact: all claims together stay below 2^59.
        low = chosen @ (of_claims & np.uint64((1 << 24) - 1)).astype(np.float64)
        high = chosen @ (of_claims >> np.uint64(24)).astype(np.float64)
        return (low.astype(np.int64) + (high.astype(np.int64) << 24))[None]

    def _weights(self, toss: Toss, weights: Weights) -> Elements:
        """What each claim counts in the sum of all equations of its lowest limb."""
        of_equations = weights.spaced(self.equations.limbs, COMBINATIONS, first=True)
        table = tables(of_equations, False, np.uint64(weights.q))
        return gather(toss.octets(self._label, self._count), table, np.uint64(weights.q))

    def _sum(self, side: str, of_claims: Elements, places: Elements, q: int) -> Scalar:
        total = Scalar(0, 0)
        for limb, place in zip(self._added(side).T.astype(np.uint64), places, strict=True):
            summed = scalar(weighted(np.ascontiguousarray(limb), of_claims, np.uint64(q)))
            total = total.plus(summed.times(scalar(place), q), q)
        return total

    def left(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        q = weights.q
        places = weights.spaced(1, self.equations.limbs)
        added = self._sum("e", self._weights(toss, weights), places, q)
        return [embedded(np.ascontiguousarray(self._lefts().T) % q if q < 1 << LIMB else self._lefts().T)], added

    def right(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        q = weights.q
        places = weights.spaced(1, self.equations.limbs)
        of_claims = self._weights(toss, weights)
        vector = limb_rights(self._rights(), of_claims, self._index(), places, self._left_limbs, np.uint64(q))
        return [vector], self._sum("f", of_claims, places, q)


def most_of(claims: int, products: int, bits: int, left_limbs: int) -> tuple[int, ...]:
    """The largest integers of each limb's equations."""
    widths = widths_of(bits)
    lefts = widths_of(min(bits, LIMB * left_limbs))
    most = []
    for s in range(len(widths)):
        pairs = [(lefts[i], widths[s - i]) for i in range(min(s + 1, len(lefts)))]
        most.append(products * sum(1 << (a + b) for a, b in pairs) + (2 * claims << widths[s]))
    return tuple(most)
