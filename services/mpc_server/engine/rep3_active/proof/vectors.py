"""The vectors of an inner product while it is halved: what is over F_q yet, and what is over F_{q^2}."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.mpc_server.engine.rep3_active.proof import kernels
from services.mpc_server.engine.rep3_active.proof.field import Scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, Numbers


class Vector(NamedTuple):
    """Both parts are halved by themselves, so that products of numbers are never products of elements.

    numbers: an even number of elements of F_q. There are none once the vector has been halved.
    """

    numbers: Numbers
    elements: Elements

    def embedded(self) -> Elements:
        """All of them over F_{q^2}."""
        count = len(self.numbers)
        out = np.zeros((count + len(self.elements), 2), np.uint64)
        out[:count, 0], out[count:] = self.numbers, self.elements
        return out


def of_elements(elements: Elements) -> Vector:
    """A vector that is over F_{q^2} altogether."""
    return Vector(np.empty(0, np.uint64), elements)


def cross(u: Vector, v: Vector, q: int) -> Elements:
    """The outer coefficients of (u_0 + u_1 x)(v_0 x + v_1): the inner products of u_0 with v_1 and of u_1 with v_0."""
    found = kernels.cross(u.elements, v.elements, q)
    if len(u.numbers):
        found = (found + kernels.cross_numbers(u.numbers, v.numbers, q)) % np.uint64(q)
    return found


def fold_left(u: Vector, r: Scalar, q: int) -> Vector:
    """u_0 + r u_1."""
    folded = kernels.fold_left(u.elements, r.words(), q)
    if not len(u.numbers):
        return of_elements(folded)
    half = len(u.numbers) // 2
    out = np.empty((half + len(folded), 2), np.uint64)
    kernels.fold_left_numbers(u.numbers, r.words(), q, out[:half])
    out[half:] = folded
    return of_elements(out)


def fold_right(v: Vector, r: Scalar, q: int) -> Vector:
    """r v_0 + v_1."""
    folded = kernels.fold_right(v.elements, r.words(), q)
    if not len(v.numbers):
        return of_elements(folded)
    half = len(v.numbers) // 2
    out = np.empty((half + len(folded), 2), np.uint64)
    kernels.fold_right_numbers(v.numbers, r.words(), q, out[:half])
    out[half:] = folded
    return of_elements(out)
