"""Claims on words: sums of products + e + f = 0 modulo 2^k, by 48 random binary combinations of all of them.

If some claim is wrong by d, not 0 modulo 2^k, the power of two that divides all errors is divided out, and each
combination is still odd with probability 1/2: all are 0 with probability 2^-48.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.chains import Integers, limbs_of
from services.mpc_server.engine.rep3_active.proof.field import ZERO, Scalar, embedded, scalar
from services.mpc_server.engine.rep3_active.proof.filed import WordClaims
from services.mpc_server.engine.rep3_active.proof.kernels import (
    Elements,
    gather,
    limb_rights,
    limb_sums,
    row_buckets,
    tables,
    weighted,
)
from services.mpc_server.engine.rep3_active.proof.sizes import COMBINATIONS, Equations, limb_count
from services.mpc_server.engine.rep3_active.proof.source import BYTE_BITS, Source, Toss, Weights

Index = npt.NDArray[np.int64]


class WordSource(Source):
    """All claims on words of one ring whose left factors have so many bits."""

    def __init__(self, claims: Sequence[WordClaims], equations: Equations, left_bits: int, label: bytes) -> None:
        self.equations = equations
        self._claims, self._bits, self._left_bits, self._label = claims, equations.bits, left_bits, label
        self._count = sum(one.claims for one in claims)

    def _index(self) -> Index:
        """The claim that each product belongs to."""
        numbers, parts, first = np.arange(self._count), [], 0
        for one in self._claims:
            part = numbers[first : first + one.claims]
            first += one.claims
            if one.starts is not None:
                part = np.repeat(part, np.diff(one.starts, append=one.factors[0].size))
            parts += [part] * len(one.factors)
        return np.concatenate(parts)

    def _factors(self, parts: Sequence[Sequence[Words] | None], bits: int) -> npt.NDArray[np.uint16]:
        flat = [one.reshape(-1) for part in parts for one in part or ()]
        size = 2 if bits <= 16 else 4 if bits <= 32 else 8
        return limbs_of(np.concatenate(flat, dtype=f"<u{size}", casting="unsafe"), bits)

    def _lefts(self) -> npt.NDArray[np.uint16]:
        return self._factors([one.lefts for one in self._claims], self._left_bits)

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
        # Claims with the same eight coins are added up first. All of them together stay below 2^59.
        buckets = row_buckets(toss.octets(self._label, self._count), of_claims).astype(np.int64)
        return np.concatenate([BYTE_BITS.T @ one for one in buckets])[None]

    def _weights(self, toss: Toss, weights: Weights) -> Elements:
        """What each claim counts in the sum of all equations of its lowest limb."""
        of_equations = weights.spaced(self.equations.limbs, COMBINATIONS, first=True)
        table = tables(of_equations, weights.q)
        return gather(toss.octets(self._label, self._count), table, weights.q)

    def _sum(self, side: str, of_claims: Elements, places: Elements, q: int) -> Scalar:
        total = ZERO
        for limb, place in zip(self._added(side).T.astype(np.uint64), places, strict=True):
            summed = scalar(weighted(np.ascontiguousarray(limb), of_claims, q))
            total = total.plus(summed.times(scalar(place), q), q)
        return total

    def left(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        q = weights.q
        places = weights.spaced(1, self.equations.limbs)
        added = self._sum("e", self._weights(toss, weights), places, q)
        return [embedded(self._lefts().T, q)], added

    def right(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        q = weights.q
        places = weights.spaced(1, self.equations.limbs)
        of_claims = self._weights(toss, weights)
        vector = limb_rights(self._rights(), of_claims, self._index(), places, limb_count(self._left_bits), q)
        return [vector], self._sum("f", of_claims, places, q)
