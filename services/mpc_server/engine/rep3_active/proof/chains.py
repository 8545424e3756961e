"""Carries: their bits, which the two verifiers share, and what each bit counts in the sum of all equations.

A bit is (1 - s s')/2 of a sign that the left verifier knows and one that the right one knows; so carries join the
inner product, and that a number has so many bits needs no other proof.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.field import ZERO, Scalar, scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, doubled, scale, signed, total
from services.mpc_server.engine.rep3_active.proof.sizes import Equations, limb_count, widths_of

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


def limbs_of(words: Words, bits: int) -> npt.NDArray[np.uint16]:
    """The limbs of numbers modulo 2^bits: a row for each number."""
    size = 2 if bits <= 16 else 4 if bits <= 32 else 8
    whole = words.astype(f"<u{size}")
    if bits < 8 * size:
        whole &= whole.dtype.type((1 << bits) - 1)
    return np.ascontiguousarray(whole.reshape(-1, 1).view("<u2")[:, : limb_count(bits)])


def bits_of(equations: Equations, sums: Integers) -> Bits:
    """The bits of carries, and of what stages leave, for the integers of each stage, equation and limb."""
    widths, stages = widths_of(equations.bits), equations.stages
    carries, rests = np.empty_like(sums), np.zeros_like(sums)
    before: Integers = np.zeros_like(sums[0])
    for stage in range(stages):
        carry: Integers = np.zeros_like(sums[0, :, 0])
        for limb, width in enumerate(widths):
            value = sums[stage, :, limb] + before[:, limb] + carry
            if stage < stages - 1:
                rests[stage, :, limb] = value & ((1 << width) - 1)
            carry = carries[stage, :, limb] = value >> width
        before = rests[stage]
    found = []
    for limb, (width, rest) in enumerate(zip(equations.carry_widths(), widths, strict=True)):
        offset = 1 << (width - 1) if equations.negative else 0
        found.append(_bits(carries[:, :, limb].reshape(-1) + offset, width))
        found.append(_bits(rests[:-1, :, limb].reshape(-1), rest))
    return np.concatenate(found)


def bit_weights(equations: Equations, weights: Elements, q: int) -> tuple[Elements, Scalar]:
    """What each of those bits counts, for the weights of the equations; and a constant, for carries below 0."""
    widths = widths_of(equations.bits)
    weights = weights.reshape(equations.stages, equations.count, equations.limbs, 2)
    found, constant = [], ZERO
    for limb, (width, rest) in enumerate(zip(equations.carry_widths(), widths, strict=True)):
        of_carry = _times(weights[:, :, limb], -(1 << rest), q)
        if limb + 1 < equations.limbs:
            of_carry = (of_carry + weights[:, :, limb + 1].reshape(-1, 2)) % np.uint64(q)
        found.append(doubled(of_carry, width, q))
        if equations.negative:
            offset = Scalar(-(1 << (width - 1)) % q, 0)
            constant = constant.plus(scalar(total(of_carry, q)).times(offset, q), q)
        of_rest = (_times(weights[:-1, :, limb], -1, q) + weights[1:, :, limb].reshape(-1, 2)) % np.uint64(q)
        found.append(doubled(of_rest, rest, q))
    return np.concatenate(found), constant


def left_signs(bits: Bits, q: int) -> Elements:
    """1 or -1 for each bit."""
    out = np.zeros((len(bits), 2), np.uint64)
    out[:, 0] = np.where(bits, np.uint64(q - 1), np.uint64(1))
    return out


def right_signs(weights: Elements, bits: Bits, q: int) -> tuple[Elements, Scalar]:
    """-w/2 or w/2 for each bit, and the sum of all w/2: so that w (1 - s s')/2 is a constant and a product of signs."""
    halves = weights.copy()
    scale(halves, Scalar((q + 1) // 2, 0).words(), q)
    return signed(halves, 1 - bits, q), scalar(total(halves, q))


def _bits(values: Integers, width: int) -> Bits:
    return ((values[:, None] >> np.arange(width)) & 1).astype(np.uint8).reshape(-1)


def _times(weights: Elements, factor: int, q: int) -> Elements:
    out = weights.reshape(-1, 2).copy()
    scale(out, Scalar(factor % q, 0).words(), q)
    return out
