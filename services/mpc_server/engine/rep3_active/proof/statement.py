"""All claims about one prover, as one party knows them, and what is public about them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.mpc_server.engine.rep3_active.proof import bits
from services.mpc_server.engine.rep3_active.proof.chains import left_signs, right_signs
from services.mpc_server.engine.rep3_active.proof.deviations import GROUP, DeviationSource
from services.mpc_server.engine.rep3_active.proof.field import ELEMENT_BYTES, ZERO, Q, Scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, scale
from services.mpc_server.engine.rep3_active.proof.source import Source, Toss, Weights

WORD_BYTES = 8
Bits = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Shape:
    """What is public about the claims: it says how long a proof is."""

    words: int
    """Words of gates."""
    elements: int
    """Elements of the vectors, once gates and deviations are folded."""
    secret_bits: int
    deviations: bool

    @property
    def folds(self) -> int:
        """How often the vectors are halved, the last masked step included."""
        return max(self.elements - 1, 0).bit_length() + 1

    @property
    def gate_coefficients(self) -> int:
        return 2 * bits.blocks_of(self.words) - 2 if self.words else 0

    @property
    def share_bytes(self) -> int:
        """What the prover sends to the left verifier."""
        carries = -(-self.secret_bits // 8)
        steps = 2 * self.folds + (2 * GROUP - 2 if self.deviations else 0)
        return carries + WORD_BYTES * self.gate_coefficients + ELEMENT_BYTES * steps

    @property
    def challenge_bytes(self) -> int:
        """What it sends to the right one."""
        return ELEMENT_BYTES * (2 + self.deviations + self.folds)


@dataclass(slots=True)
class Statement:
    """All claims about one prover. Planes are (a, c, e) or (b, d, f), cut into blocks; None if a party lacks them."""

    words: int
    left_planes: Elements | None
    right_planes: Elements | None
    sources: Sequence[Source]
    toss: Toss
    label: bytes
    """Names the prover and the validation."""
    q: int = Q
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        blocks = bits.blocks_of(self.words)
        elements = 256 * -(-self.words // blocks) if self.words else 0
        secret = sum(one.equations.secret_bits() for one in self.sources)
        elements += secret + sum(one.elements for one in self.sources)
        folded = any(isinstance(one, DeviationSource) for one in self.sources)
        self.shape = Shape(self.words, elements, secret, folded)

    def binding(self) -> bytes:
        """The public facts of the statement."""
        shape = self.shape
        facts = (self.words, shape.elements, shape.secret_bits, shape.deviations, self.q)
        text = b"%b/%b" % (self.label, repr(facts).encode())
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
        if self.words:
            assert self.left_planes is not None
            found.append(bits.fold_left(self.left_planes, r, self.q))
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            vectors, more = one.left(self.toss, weights)
            found += vectors
            added = added.plus(more, self.q)
        found.append(left_signs(signs, self.q))
        return np.concatenate(found), added

    def right(self, signs: Bits, r: Scalar, ratio: Scalar) -> tuple[Elements, Scalar]:
        """The same on the right."""
        found, added, at = [], ZERO, 0
        of_bits = []
        if self.words:
            assert self.right_planes is not None
            found.append(bits.fold_right(self.right_planes, r, self.q))
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            vectors, more = one.right(self.toss, weights)
            found += vectors
            bit_weights, constant = one.equations.bit_weights(weights.first, weights.ratio, self.q)
            size = len(bit_weights)
            halves, half = right_signs(bit_weights, signs[at : at + size], self.q)
            of_bits.append(halves)
            at += size
            for number in (more, constant, half):
                added = added.plus(number, self.q)
        return np.concatenate([*found, *of_bits]), added

    def with_left(self, vector: Elements, ratio: Scalar, r: Scalar) -> Elements:
        """The left vector with deviations, folded at r."""
        pairs = zip(self.sources, self.weights(ratio), strict=True)
        folded = [one.fold_left(self.toss, w, r) for one, w in pairs if isinstance(one, DeviationSource)]
        return np.concatenate([vector, *folded])

    def with_right(self, vector: Elements, r: Scalar) -> Elements:
        """The right one: what was there before belongs to the middle coefficient."""
        scale(vector, r.power(GROUP - 1, self.q).words(), np.uint64(self.q))
        folded = [one.fold_right(self.toss, r, self.q) for one in self.sources if isinstance(one, DeviationSource)]
        return np.concatenate([vector, *folded])

    def deviation_coefficients(self, ratio: Scalar) -> Elements:
        """The coefficients of the product of the two, but for what belongs to the middle one only."""
        total = np.zeros((2 * GROUP - 1, 2), np.uint64)
        for one, weights in zip(self.sources, self.weights(ratio), strict=True):
            if isinstance(one, DeviationSource):
                total = (total + one.coefficients(self.toss, weights)) % np.uint64(self.q)
        return total

