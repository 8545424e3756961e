"""Claims as they are filed: references to arrays, and None for what a party does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.sizes import (
    Size,
    deviation_equations,
    gram_equations,
    matrix_equations,
    size_of,
    word_equations,
)

Coins = npt.NDArray[np.uint8]
Starts = npt.NDArray[np.int64]


class Gates(NamedTuple):
    """a & b ^ c & d ^ e ^ f = 0, for planes of one shape."""

    a: Words | None
    b: Words | None
    c: Words | None
    d: Words | None
    e: Words | None
    f: Words | None


class WordClaims(NamedTuple):
    """The sum over t of lefts[t] * rights[t], over segments if there are `starts`, + e + f = 0, elementwise."""

    lefts: Sequence[Words] | None
    rights: Sequence[Words] | None
    e: Words | None
    f: Words | None
    starts: Starts | None

    @property
    def factors(self) -> Sequence[Words]:
        """Those of a side that is known."""
        return self.rights if self.lefts is None else self.lefts  # type: ignore[return-value]

    @property
    def claims(self) -> int:
        return known(self.e, self.f).size

    @property
    def products(self) -> int:
        return sum(one.size for one in self.factors)


class MatrixClaim(NamedTuple):
    """left^T right + right^T left + e + f = 0 for a Gram matrix, A^T B + C^T D + e + f = 0 for (A, D) and (B, C)."""

    bits: int
    lefts: Sequence[Words] | None
    rights: Sequence[Words] | None
    e: Words | None
    f: Words | None

    @property
    def rows(self) -> int:
        return len((self.rights if self.lefts is None else self.lefts)[0])  # type: ignore[index]


class DeviationClaim(NamedTuple):
    """R (2 s(left) o s(right)) C + e + f = 0."""

    bits: int
    left: Words | None
    right: Words | None
    spread: Callable[[Words, Words], Words]
    columns: int
    row_coins: Callable[[int, int], Coins]
    column_coins: Coins
    e: Words | None
    f: Words | None

    @property
    def rows(self) -> int:
        return len(known(self.left, self.right))


@dataclass(slots=True)
class Filed:
    """All that is filed about one prover. Claims on words go by the ring and by the bits of their left factors."""

    gates: list[Gates] = field(default_factory=list)
    words: dict[tuple[int, int], list[WordClaims]] = field(default_factory=dict)
    grams: list[MatrixClaim] = field(default_factory=list)
    matrices: list[MatrixClaim] = field(default_factory=list)
    deviations: list[DeviationClaim] = field(default_factory=list)

    def size(self) -> Size:
        """What is public about them."""
        return size_of(
            gate_words=sum(known(one.e, one.f).size for one in self.gates),
            words=[
                word_equations(
                    claims=sum(one.claims for one in claims),
                    products=sum(one.products for one in claims),
                    bits=bits,
                    left_bits=left_bits,
                )
                for (bits, left_bits), claims in self.words.items()
            ],
            grams=[gram_equations(rows=one.rows, bits=one.bits) for one in self.grams],
            matrices=[matrix_equations(rows=one.rows, bits=one.bits) for one in self.matrices],
            deviations=[
                deviation_equations(rows=one.rows, columns=one.columns, bits=one.bits) for one in self.deviations
            ],
        )


def known(left: Words | None, right: Words | None) -> Words:
    """What a party knows of two arrays of one shape."""
    found = right if left is None else left
    assert found is not None, "a party of a claim knows one side of it"
    return found
