"""All claims about one prover, as one party knows them, and what is public about them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.mpc_server.engine.rep3_active.proof import bits
from services.mpc_server.engine.rep3_active.proof.chains import Bits, bit_weights, left_signs, right_signs
from services.mpc_server.engine.rep3_active.proof.deviations import DeviationSource
from services.mpc_server.engine.rep3_active.proof.field import ZERO, Q, Scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, scale
from services.mpc_server.engine.rep3_active.proof.sizes import GROUP, Size
from services.mpc_server.engine.rep3_active.proof.source import Source, Toss, Weights


@dataclass(slots=True)
class Statement:
    """All claims about one prover. Planes are (a, c, e) or (b, d, f), cut into blocks; None if a party lacks them."""

    size: Size
    left_planes: Elements | None
    right_planes: Elements | None
    sources: Sequence[Source]
    toss: Toss
    label: bytes
    """Names the prover and the validation."""
    q: int = Q

    def binding(self) -> bytes:
        """The public facts of the statement, and the coins."""
        text = b"%b/%b" % (self.label, repr((self.size, self.q)).encode())
        return hashlib.blake2b(text, key=self.toss.seed, digest_size=32).digest()

    def weights(self, ratio: Scalar) -> list[Weights]:
        """The weights of each source's equations: powers of one challenge, from its first.

        None is 1, so that an error in an equation never meets the lowest coefficient that was sent for gates.
        """
        found, weights = [], Weights(ratio, ratio, self.q)
        for one in self.sources:
            found.append(weights)
            weights = weights.after(one.equations.size)
        return found

    def left(self, signs: Bits, r: Scalar, ratio: Scalar) -> tuple[Elements, Scalar]:
        """The left vector but for deviations, with the left shares of carries; and what is added on the left."""
        found, added = [], ZERO
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            vectors, more = one.left(self.toss, weights)
            found += vectors
            added = added.plus(more, self.q)
        found.append(left_signs(signs, self.q))
        vector, gates = _after_gates(self.left_planes if self.size.gate_words else None, found)
        if self.size.gate_words:
            assert self.left_planes is not None
            bits.fold_left(self.left_planes, r, self.q, gates)
        return vector, added

    def right(self, signs: Bits, r: Scalar, ratio: Scalar) -> tuple[Elements, Scalar]:
        """The same on the right."""
        found, added, at = [], ZERO, 0
        of_bits = []
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            vectors, more = one.right(self.toss, weights)
            found += vectors
            of_equations = weights.spaced(1, one.equations.size, first=True)
            of_carries, constant = bit_weights(one.equations, of_equations, self.q)
            halves, half = right_signs(of_carries, signs[at : at + len(of_carries)], self.q)
            of_bits.append(halves)
            at += len(of_carries)
            for number in (more, constant, half):
                added = added.plus(number, self.q)
        vector, gates = _after_gates(self.right_planes if self.size.gate_words else None, [*found, *of_bits])
        if self.size.gate_words:
            assert self.right_planes is not None
            bits.fold_right(self.right_planes, r, self.q, gates)
        return vector, added

    def with_left(self, vector: Elements, ratio: Scalar, r: Scalar) -> Elements:
        """The left vector with deviations, folded at r."""
        pairs = zip(self.sources, self.weights(ratio), strict=True)
        folded = [one.fold_left(self.toss, w, r) for one, w in pairs if isinstance(one, DeviationSource)]
        return np.concatenate([vector, *folded])

    def with_right(self, vector: Elements, r: Scalar) -> Elements:
        """The right one: what was there before belongs to the middle coefficient."""
        scale(vector, r.power(GROUP - 1, self.q).words(), self.q)
        folded = [one.fold_right(self.toss, r, self.q) for one in self.sources if isinstance(one, DeviationSource)]
        return np.concatenate([vector, *folded])

    def deviation_coefficients(self, ratio: Scalar) -> Elements:
        """The coefficients of the product of the two, but for what belongs to the middle one only."""
        total = np.zeros((2 * GROUP - 1, 2), np.uint64)
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            if isinstance(one, DeviationSource):
                total = (total + one.coefficients(self.toss, weights)) % np.uint64(self.q)
        return total


def _after_gates(planes: Elements | None, others: Sequence[Elements]) -> tuple[Elements, Elements]:
    """A vector with room for folded gates, if there are any, and others after them; and that room."""
    gates = 0 if planes is None else bits.folded_size(planes)
    vector = np.empty((gates + sum(map(len, others)), 2), np.uint64)
    at = gates
    for one in others:
        vector[at : at + len(one)] = one
        at += len(one)
    return vector, vector[:gates]
