"""What claims modulo 2^k have in common: coins, and the places of their equations among the powers of one challenge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from caps.shares.prss import expand
from caps.shares.ring import Z8, Z64
from services.mpc_server.engine.rep3_active.proof.chains import Integers
from services.mpc_server.engine.rep3_active.proof.field import ONE, Scalar, geometric, scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, weighted
from services.mpc_server.engine.rep3_active.proof.sizes import COMBINATIONS, Equations

Coins = npt.NDArray[np.uint8]
BYTE_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.int64)
"""The eight coins that a byte has, for each byte."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Equation number t of those that begin here counts `first * ratio^t`."""

    first: Scalar
    ratio: Scalar
    q: int

    def spaced(self, step: int, count: int, *, first: bool = False) -> Elements:
        """ratio^0, ratio^step, ratio^(2 step), ..., times `first` if wanted."""
        return geometric(self.first if first else ONE, self.ratio.power(step, self.q), count, self.q)

    def after(self, equations: int) -> Weights:
        """Those of what comes after so many equations."""
        return Weights(self.first.times(self.ratio.power(equations, self.q), self.q), self.ratio, self.q)


@dataclass(slots=True)
class Toss:
    """The coins of one validation, the same for all three provers, and what was computed with them."""

    seed: bytes
    found: dict[Any, Any] = field(default_factory=dict)

    def number(self, label: bytes, q: int) -> int:
        """A number below q; that q itself becomes 0 makes it uniform up to one part in 2^60."""
        drawn = expand(self.seed, b"caps/v1/proof/number/" + label, (1,), Z64)
        return (int(drawn[0]) >> 3) % q

    def octets(self, label: bytes, count: int) -> Coins:
        """`count` rows of COMBINATIONS coins, eight in a byte."""
        return np.array(expand(self.seed, b"caps/v1/proof/coins/" + label, (count, COMBINATIONS // 8), Z8), np.uint8)

    def coins(self, label: bytes, count: int) -> Coins:
        """The same, one in a byte."""
        return np.unpackbits(self.octets(label, count), axis=1, bitorder="little")


class Source(ABC):
    """Claims modulo 2^k of one prover, as one party knows them, brought to a few equations by public coins."""

    equations: Equations

    @abstractmethod
    def sums(self, toss: Toss) -> Integers:
        """The integers of the equations, by stage, equation and limb: what only the prover knows."""

    @abstractmethod
    def left(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        """Left vectors, and the weighted sum of what the left verifier adds to the equations."""

    @abstractmethod
    def right(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        """Right vectors, which carry the weights, and the weighted sum of what the right verifier adds."""


def added_sum(limbs: npt.NDArray[np.uint16], weights: Weights) -> Scalar:
    """The weighted sum of numbers that are added to the first equations, limb by limb."""
    flat = limbs.reshape(-1).astype(np.uint64)
    return scalar(weighted(flat, weights.spaced(1, flat.size, first=True), weights.q))
