"""What claims modulo 2^k have in common: coins, and the places of their equations among the powers of one challenge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from caps.shares.prss import expand
from caps.shares.ring import Z8
from services.mpc_server.engine.rep3_active.proof.chains import Equations, Integers
from services.mpc_server.engine.rep3_active.proof.field import Scalar, geometric
from services.mpc_server.engine.rep3_active.proof.kernels import Elements

COMBINATIONS = 48
"""Random binary combinations of claims: an error is missed by all with probability 2^-48, and they are whole bytes."""
Coins = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Weights:
    """Equation number t of those that begin here counts `first * ratio^t`."""

    first: Scalar
    ratio: Scalar
    q: int

    def spaced(self, step: int, count: int, *, first: bool = False) -> Elements:
        """ratio^0, ratio^step, ratio^(2 step), ..., times `first` if wanted."""
        start = self.first if first else Scalar(1, 0)
        return geometric(start, self.ratio.power(step, self.q), count, self.q)

    def after(self, equations: int) -> Weights:
        """Those of what comes after so many equations."""
        return Weights(self.first.times(self.ratio.power(equations, self.q), self.q), self.ratio, self.q)


@dataclass(slots=True)
class Toss:
    """The coins of one validation, the same for all three provers, and what was computed with them."""

    seed: bytes
    found: dict[Any, Any] = field(default_factory=dict)

    def octets(self, label: bytes, count: int) -> Coins:
        """`count` rows of COMBINATIONS coins, eight in a byte."""
        return expand(self.seed, b"caps/v1/proof/coins/" + label, (count, COMBINATIONS // 8), Z8).view(np.uint8)

    def coins(self, label: bytes, count: int) -> Coins:
        """The same, one in a byte."""
        return np.unpackbits(self.octets(label, count), axis=1, bitorder="little")


class Source(ABC):
    """Claims modulo 2^k of one prover, as one party knows them, brought to a few equations by public coins."""

    equations: Equations
    elements: int
    """Of each side's vectors."""

    @abstractmethod
    def sums(self, toss: Toss) -> Integers:
        """The integers of the equations, by stage, equation and limb: what only the prover knows."""

    @abstractmethod
    def left(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        """Left vectors, and the weighted sum of what the left verifier adds to the equations."""

    @abstractmethod
    def right(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        """Right vectors, which carry the weights, and the weighted sum of what the right verifier adds."""
