"""Cases of `services.mpc_server.engine.release`."""

from __future__ import annotations

import numpy as np

from caps.shares.ring import Z32, Z64
from services.mpc_server.engine import release, size, steps, verbs
from services.mpc_server.testing.world import Bits
from tests.kit.cases.base import Call, Source, case


@case(release.count_bits)
def _(s: Source) -> Call:
    x = s.words(Z64, s.shape(), 32)
    return Call((x,), {size.elements: x.size}, x)


@case(release.bits_below)
def _(s: Source) -> Call:
    width, shape = s.count(1, 64), s.shape()
    x = s.bits(width, shape)
    bound = s.words(Z64, shape, width)
    if s.fill == "random":
        bound = np.where(s.values.random(shape) < 0.2, x.words, bound)
    bound = np.asarray(bound)
    return Call((x,), {size.elements: bound.size, size.width: width}, x.words < bound, {"bound": bound})


def _starts(s: Source, count: int) -> np.ndarray:
    chosen = s.sizes.random(count) < 0.2
    chosen[0] = True
    return np.flatnonzero(chosen)


@case(verbs.signed_sums)
def _(s: Source) -> Call:
    ring, count = s.ring(Z32, Z64), s.count()
    sign, y, starts = s.bits(1, (count,)), s.words(ring, (count,)), _starts(s, count)
    turned = np.where(sign.words != 0, np.negative(y), y)
    expect = np.add.reduceat(turned, starts, dtype=ring.dtype)
    return Call(
        (sign, y), {size.elements: count, size.sums: len(starts), size.ring_bits: ring.bits}, expect, {"starts": starts}
    )


@case(release.error_scores)
def _(s: Source) -> Call:
    count = s.count()
    starts = _starts(s, count)
    x = s.words(Z64, (count,), 24)
    integers = s.sizes  # public numbers: drawn with the sizes, so that they stay while secrets change
    estimate = integers.integers(-(1 << 10), 1 << 28, count)
    estimate[::3] = np.int64(1 << 20)
    bias, weights = integers.integers(-1000, 1 << 20, len(starts)), integers.integers(-3, 20, len(starts))
    distance = np.abs(x.astype(np.int64) * 256 - estimate)
    expect = (np.add.reduceat(distance, starts) - bias) * weights
    kwargs = {"estimate": estimate, "starts": starts, "bias": bias, "weights": weights}
    return Call((x, Bits(x, 32)), {size.elements: count, size.sums: len(starts)}, expect, kwargs)


@case(release.noisy_errors)
def _(s: Source) -> Call:
    count = s.count()
    starts = _starts(s, count)
    x, noise = s.words(Z64, (count,), 24), s.signed(Z64, (len(starts),), 40)
    estimate = s.sizes.integers(0, 1 << 28, count)
    estimate[::3] = np.int64(1 << 20)
    sums = np.add.reduceat(np.abs(x.astype(np.int64) * 256 - estimate), starts)
    expect = sums + Z64.signed(np.asarray(noise))
    sizes = {size.elements: count, size.sums: len(starts)}
    return Call((x, Bits(x, 32), noise), sizes, expect, {"estimate": estimate, "starts": starts})


@case(release.noisy_argmax)
def _(s: Source) -> Call:
    count = s.count()
    scores, noise = s.signed(Z64, (count,), 62), s.signed(Z64, (count,), 50)
    if s.fill == "random" and count > 2:
        scores[1], noise[1] = scores[0], noise[0]
    total = Z64.signed(scores + noise)
    return Call((scores, noise), {size.elements: count}, np.uint64(total.argmax()))


@case(release.noisy_counts)
def _(s: Source) -> Call:
    shape = s.shape()
    x, noise = s.words(Z64, shape, 32), s.signed(Z64, shape, 40)
    return Call((x, noise), {size.elements: x.size}, Z64.signed(np.asarray(x + noise)))


@case(steps.signed_from_bits)
def _(s: Source) -> Call:
    width = s.count(1, 64)
    x = s.bits(width, s.shape())
    unused = 64 - width
    signed = Z64.signed(np.asarray(x.words << np.uint64(unused))) >> unused
    return Call((x,), {size.elements: x.words.size, size.width: width}, signed)
