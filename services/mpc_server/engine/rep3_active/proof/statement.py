"""All claims about one prover, as one party knows them, and what is public about them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.mpc_server.engine.rep3_active.proof import bits
from services.mpc_server.engine.rep3_active.proof.chains import Bits, bit_weights, left_signs, right_signs
from services.mpc_server.engine.rep3_active.proof.deviations import DeviationSource
from services.mpc_server.engine.rep3_active.proof.field import ZERO, Q, Scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, Numbers, scale
from services.mpc_server.engine.rep3_active.proof.sizes import GROUP, Size
from services.mpc_server.engine.rep3_active.proof.source import Source, Toss, Weights
from services.mpc_server.engine.rep3_active.proof.vectors import Vector, of_elements
from services.mpc_server.engine.workers import IN_PROCESS, Workers


@dataclass(slots=True)
class Statement:
    """All claims about one prover."""

    size: Size
    planes: bits.Planes
    sources: Sequence[Source]
    toss: Toss
    label: bytes
    """Names the prover and the validation."""
    q: int = Q
    _gates: tuple[Numbers, Numbers] | None = field(default=None, init=False)

    def binding(self) -> bytes:
        """The public facts of the statement, and the coins."""
        text = b"%b/%b" % (self.label, repr((self.size, self.q)).encode())
        return hashlib.blake2b(text, key=self.toss.seed, digest_size=32).digest()

    def point(self) -> int:
        """Where gates are folded: a coin, since their polynomial is sent before coins are known."""
        return self.toss.number(self.label, self.q)

    def weights(self, ratio: Scalar) -> list[Weights]:
        """The weights of each source's equations: powers of one challenge, from its first.

        None is 1, so that an error in an equation never meets the lowest coefficient that was sent for gates.
        """
        found, weights = [], Weights(ratio, ratio, self.q)
        for one in self.sources:
            found.append(weights)
            weights = weights.after(one.equations.size)
        return found

    def left(self, signs: Bits, ratio: Scalar) -> tuple[Vector, Scalar]:
        """The left vector but for deviations, with the left shares of carries; and what is added on the left."""
        found, added = [], ZERO
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            vectors, more = one.left(self.toss, weights)
            found += vectors
            added = added.plus(more, self.q)
        found.append(left_signs(signs, self.q))
        return Vector(self.gates(IN_PROCESS)[0], np.concatenate(found)), added

    def right(self, signs: Bits, ratio: Scalar) -> tuple[Vector, Scalar]:
        """The same on the right."""
        found, added, at = [], ZERO, 0
        of_bits = [np.empty((0, 2), np.uint64)]
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
        return Vector(self.gates(IN_PROCESS)[1], np.concatenate([*found, *of_bits])), added

    def gates(self, workers: Workers) -> tuple[Numbers, Numbers]:
        """The folded gates, left and right; nothing for a side that is not known. Computed once, whoever asks first."""
        if self._gates is None:
            (left, right), r = self.planes, self.point()
            nothing = np.empty(0, np.uint64)
            self._gates = (
                nothing if left is None else bits.fold_left(left, r, self.q, workers),
                nothing if right is None else bits.fold_right(right, r, self.q, workers),
            )
        return self._gates

    def with_left(self, vector: Vector, ratio: Scalar, r: Scalar) -> Vector:
        """The left vector with deviations, folded at r."""
        pairs = zip(self.sources, self.weights(ratio), strict=True)
        folded = [one.fold_left(self.toss, w, r) for one, w in pairs if isinstance(one, DeviationSource)]
        return of_elements(np.concatenate([vector.embedded(), *folded]))

    def with_right(self, vector: Vector, r: Scalar) -> Vector:
        """The right one: what was there before belongs to the middle coefficient."""
        before = vector.embedded()
        scale(before, r.power(GROUP - 1, self.q).words(), self.q)
        folded = [one.fold_right(self.toss, r, self.q) for one in self.sources if isinstance(one, DeviationSource)]
        return of_elements(np.concatenate([before, *folded]))

    def deviation_coefficients(self, ratio: Scalar) -> Elements:
        """The coefficients of the product of the two, but for what belongs to the middle one only."""
        total = np.zeros((2 * GROUP - 1, 2), np.uint64)
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            if isinstance(one, DeviationSource):
                total = (total + one.coefficients(self.toss, weights)) % np.uint64(self.q)
        return total
