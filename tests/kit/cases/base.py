"""One case per protocol: how to draw a call, what its sizes are, and what numpy says the answer is.

`tests/services/mpc_server/engine/test_registry.py` runs every case; a protocol without one fails the suite.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from caps.dp.bounds import ONE_HOT_COMBINATIONS
from caps.shares.ring import RINGS, Z8, Z16, Z22, Z24, Z32, Z64, Ring, Words, ring_of
from services.mpc_server.engine import boolean, comparison, conversion, size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Size
from services.mpc_server.engine.paper import comparison as paper
from services.mpc_server.engine.paper import fixedpoint, randomness
from services.mpc_server.engine.shares import AShare, BShare, component_bits
from services.mpc_server.testing.world import Bits, PerParty


@dataclass
class Call:
    """One call of a protocol and what it must return and cost."""

    args: tuple[Any, ...]
    sizes: dict[Size, int]
    expect: Any = None
    """The exact result, or None where `check` judges it."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    in_world: Callable[..., None] | None = None
    """A further check that holds under the keys of World(1) only; it may be given the world's scheme."""


@dataclass
class Source:
    """Where a case draws its sizes and values from; sizes and values separately, so that one can be held fixed."""

    sizes: np.random.Generator
    values: np.random.Generator
    fill: str = "random"

    def count(self, low: int = 1, high: int = 150) -> int:
        return int(self.sizes.integers(low, high + 1))

    def ring(self, *among: Ring) -> Ring:
        choice = among or tuple(RINGS.values())
        return choice[int(self.sizes.integers(len(choice)))]

    def shape(self) -> tuple[int, ...]:
        return tuple(int(e) for e in self.sizes.integers(1, 7, int(self.sizes.integers(0, 4))))

    def words(self, ring: Ring, shape: tuple[int, ...], bits: int | None = None) -> Words:
        """Uniform words of `bits` bits, with the edges of the range among them; or a constant fill."""
        bits = ring.bits if bits is None else bits
        top = (1 << bits) - 1
        if self.fill == "zeros":
            return np.zeros(shape, ring.dtype)
        if self.fill == "ones":
            return np.full(shape, top, ring.dtype)
        words = self.values.integers(0, top, shape, dtype=ring.dtype, endpoint=True)
        edges = np.array([0, 1, top, top >> 1, (top >> 1) + 1], ring.dtype)
        chosen = np.where(self.values.random(shape) < 0.2, self.values.choice(edges, shape), words)
        return np.asarray(chosen).astype(ring.dtype)

    def signed(self, ring: Ring, shape: tuple[int, ...], bits: int) -> Words:
        """Two's complement words of `bits` bits, sign included."""
        words = self.words(ring, shape, bits)
        return np.asarray(words - ring.dtype.type(1 << (bits - 1)))

    def bits(self, width: int, shape: tuple[int, ...]) -> Bits:
        return Bits(self.words(Z64, shape, width), width)


@st.composite
def sources(draw: st.DrawFn) -> Source:
    sizes, values = draw(st.integers(0, 2**32)), draw(st.integers(0, 2**32))
    return Source(np.random.default_rng(sizes), np.random.default_rng(values))


EXAMPLES = int(os.environ.get("CAPS_TEST_EXAMPLES", "6"))
"""Inputs that are drawn for each protocol in each scheme. They differ from run to run; `make test-slow` draws many."""

CASES: dict[str, tuple[Callable[..., Any], Callable[[Source], Call]]] = {}


def case(
    protocol: Callable[..., Any], call: Callable[..., Any] | None = None
) -> Callable[[Callable[[Source], Call]], None]:
    def register(build: Callable[[Source], Call]) -> None:
        CASES[protocol.__name__] = (call or protocol, build)

    return register


async def product_of(ctx: Context, x: AShare, y: AShare) -> AShare:
    return await verbs.reshare(ctx, verbs.products(x, y))


def rotated(planes: Words) -> Words:
    return np.roll(planes, 1, axis=0)


def paired(planes: Words) -> Words:
    """Each plane XOR the first one."""
    return planes ^ planes[:1]


def neighbours(planes: Words) -> Words:
    """Each plane XOR the one before."""
    return planes ^ rotated(planes)


async def inner_product_of(ctx: Context, x: BShare, y: BShare) -> BShare:
    form = verbs.BitForm(left=rotated, right=paired, summed=neighbours)
    return await verbs.bilinear_bits(ctx, x, y, form=form, shape=x.shape)


@case(verbs.share_from)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    x = s.words(ring, shape)
    kwargs = {"dealer": 0, "shape": shape, "ring": ring}
    return Call((PerParty(x, None, None),), {size.elements: x.size, size.ring_bits: ring.bits}, x, kwargs)


@case(verbs.multiply)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    x, y = s.words(ring, shape), s.words(ring, shape)
    return Call((x, y), {size.elements: x.size, size.ring_bits: ring.bits}, np.multiply(x, y))


@case(verbs.dot)
def _(s: Source) -> Call:
    ring, shape = s.ring(), (*s.shape(), s.count(1, 40))
    x, y = s.words(ring, shape), s.words(ring, shape)
    expect = np.asarray(np.multiply(x, y).sum(-1, dtype=ring.dtype))
    return Call((x, y), {size.elements: expect.size, size.ring_bits: ring.bits}, expect)


@case(verbs.matmul)
def _(s: Source) -> Call:
    ring = s.ring()
    rows, inner, columns = s.count(1, 30), s.count(1, 40), s.count(1, 30)
    x, y = s.words(ring, (rows, inner)), s.words(ring, (inner, columns))
    return Call((x, y), {size.rows: rows, size.columns: columns, size.ring_bits: ring.bits}, x @ y)


@case(verbs.gram)
def _(s: Source) -> Call:
    ring, width = s.ring(), s.count(1, 20)
    x = s.words(ring, (s.count(1, 60), width))
    return Call((x,), {size.columns: width, size.ring_bits: ring.bits}, x.T @ x)


@case(verbs.reveal)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    x = s.words(ring, shape)
    return Call((x,), {size.elements: x.size, size.ring_bits: ring.bits}, x)


@case(verbs.reveal_bits)
def _(s: Source) -> Call:
    x = s.bits(s.count(1, 64), s.shape())
    return Call((x,), {size.elements: x.words.size, size.width: x.width}, x.words, {"ring": Z64})


@case(verbs.share_bits_from)
def _(s: Source) -> Call:
    width, shape = s.count(1, 64), s.shape()
    x = s.words(Z64, shape, width)
    kwargs = {"dealer": 0, "width": width, "shape": shape}
    return Call(
        (PerParty(component_bits(x, width), None, None),), {size.elements: x.size, size.width: width}, x, kwargs
    )


def _two_bit_arrays(s: Source, low: int = 1) -> tuple[Bits, Bits, dict[Size, int]]:
    width, shape = s.count(low, 64), s.shape()
    x, y = s.bits(width, shape), s.bits(width, shape)
    if s.fill == "random":  # equal elements are where comparisons go wrong
        same = s.values.random(shape) < 0.2
        y = Bits(np.asarray(np.where(same, x.words, y.words)), width)
    return x, y, {size.elements: x.words.size, size.width: width}


@case(verbs.conjunction)
def _(s: Source) -> Call:
    x, y, sizes = _two_bit_arrays(s)
    return Call((x, y), sizes, x.words & y.words)


@case(verbs.reshare, product_of)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    x, y = s.words(ring, shape), s.words(ring, shape)
    return Call((x, y), {size.elements: x.size, size.ring_bits: ring.bits}, np.multiply(x, y))


@case(verbs.bilinear_bits, inner_product_of)
def _(s: Source) -> Call:
    x, y, _ = _two_bit_arrays(s)
    bits = [np.stack([one.words >> np.uint64(i) & np.uint64(1) for i in range(one.width)]) for one in (x, y)]
    sizes = {
        size.elements: x.words.size,
        size.width: x.width,
        size.and_planes: x.width,
        size.and_elements: x.words.size,
    }
    found = neighbours(rotated(bits[0]) & paired(bits[1]))
    weights = np.left_shift(1, np.arange(x.width, dtype=np.uint64), dtype=np.uint64)
    return Call((x, y), sizes, np.tensordot(weights, found, 1))


@case(verbs.gram_cells)
def _(s: Source) -> Call:
    ring, rows, widths = s.ring(), s.count(1, 40), [s.count(1, 5) for _ in range(s.count(1, 3))]
    parts = [s.words(ring, (rows, width)) for width in widths]
    columns = sum(widths)
    upper = np.triu_indices(columns)
    chosen = np.flatnonzero(np.arange(len(upper[0])) % 3 != 1)
    cells = (upper[0][chosen], upper[1][chosen])
    whole = np.concatenate(parts, axis=1)
    sizes = {size.elements: len(chosen), size.columns: columns, size.ring_bits: ring.bits}
    return Call(tuple(parts), sizes, (whole.T @ whole)[cells], {"cells": cells, "modulo": ring})


@case(verbs.cross_cells)
def _(s: Source) -> Call:
    ring, rows, left, right = s.ring(), s.count(1, 40), s.count(1, 5), s.count(1, 5)
    x, y = s.words(ring, (rows, left)), s.words(ring, (rows, right))
    cells = tuple(index[: left * right - left * right // 3] for index in np.indices((left, right)).reshape(2, -1))
    sizes = {size.elements: len(cells[0]), size.rows: left, size.columns: right, size.ring_bits: ring.bits}
    return Call((x, y), sizes, (x.T @ y)[cells], {"cells": cells, "modulo": ring})


@case(verbs.bit_deviations)
def _(s: Source) -> Call:
    ring, rows, columns, coins = (Z16, Z32)[s.count(0, 1)], s.count(1, 40), s.count(1, 5), ONE_HOT_COMBINATIONS
    shared = {Z16: Z16, Z32: Z24}[ring]
    x = s.words(ring, (rows, columns))
    of_rows = s.words(Z8, (rows, coins)) & 1
    of_columns = s.words(Z8, (columns + 1, coins)) & 1

    def with_total(part: Words, buffer: Words) -> Words:
        filled = buffer[:, : len(part)]
        filled[:-1] = part.T
        np.add.reduce(filled[:-1], axis=0, dtype=part.dtype, out=filled[-1])
        return filled

    spread = np.concatenate([x, x.sum(axis=1, dtype=x.dtype, keepdims=True)], axis=1)
    expect = (of_rows.T.astype(x.dtype) @ (spread * spread - spread)) @ of_columns.astype(x.dtype)
    kwargs = {
        "spread": with_total,
        "columns": columns + 1,
        "row_coins": lambda start, count: of_rows[start : start + count],
        "column_coins": of_columns,
        "modulo": shared,
    }
    return Call(
        (x,), {size.elements: coins**2, size.ring_bits: ring.bits}, expect << x.dtype.type(shared.spare), kwargs
    )


@case(verbs.alike)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    x = s.words(ring, shape) * (s.words(ring, shape) & 1)

    def check(value: tuple[Words, Words]) -> None:
        assert np.array_equal(value[0] == value[1], x == 0)

    return Call((x,), {size.elements: x.size, size.ring_bits: ring.bits}, None, check=check)


@case(verbs.addends)
def _(s: Source) -> Call:
    ring = s.ring()
    width = s.count(1, ring.bits)
    x = s.words(ring, s.shape())

    def check(value: tuple[Words, Words]) -> None:
        a, b = value
        total = a + b
        assert np.array_equal((total ^ x.astype(np.uint64)) & np.uint64((1 << width) - 1), np.zeros_like(total))

    return Call((x,), {size.elements: x.size, size.width: width}, None, {"width": width}, check)


@case(boolean.all_of)
def _(s: Source) -> Call:
    x = s.bits(s.count(1, 64), s.shape())
    full = np.uint64((1 << x.width) - 1)
    return Call((x,), {size.elements: x.words.size, size.width: x.width}, x.words == full)


@case(boolean.carry)
def _(s: Source) -> Call:
    x, y, sizes = _two_bit_arrays(s)
    g, p = np.asarray(x.words & y.words), np.asarray(x.words ^ y.words)
    total = [int(a) + int(b) >> x.width for a, b in zip(x.words.flat, y.words.flat, strict=True)]
    return Call((Bits(g, x.width), Bits(p, x.width)), sizes, np.reshape(np.array(total, np.uint64), x.words.shape))


@case(boolean.add_bits)
def _(s: Source) -> Call:
    x, y, sizes = _two_bit_arrays(s, low=2)
    return Call((x, y), sizes, (x.words + y.words) & np.uint64((1 << x.width) - 1))


@case(boolean.bits_less_than)
def _(s: Source) -> Call:
    x, y, sizes = _two_bit_arrays(s)
    return Call((x, y), sizes, x.words < y.words)


@case(boolean.pick)
def _(s: Source) -> Call:
    width, shape = s.count(1, 64), (*s.shape(), s.count(1, 12))
    values, flags = s.bits(width, shape), s.bits(1, shape)
    expect = np.asarray(np.bitwise_xor.reduce(np.where(flags.words != 0, values.words, np.uint64(0)), axis=-1))
    return Call((flags, values), {size.elements: expect.size, size.columns: shape[-1], size.width: width}, expect)


@case(boolean.tournament)
def _(s: Source) -> Call:
    values = s.bits(s.count(1, 64), (s.count(1, 150),))
    expect = (values.words.max(), np.uint64(values.words.argmax()))
    return Call((values,), {size.elements: values.words.size, size.width: values.width}, expect)


@case(conversion.to_bits)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    x = s.words(ring, shape)
    return Call((x,), {size.elements: x.size, size.ring_bits: ring.bits}, x)


@case(verbs.from_bits)
def _(s: Source) -> Call:
    ring = s.ring()
    x = s.bits(s.count(1, 64), s.shape())
    sizes = {size.elements: x.words.size, size.width: x.width, size.ring_bits: ring.bits}
    return Call((x,), sizes, x.words.astype(ring.dtype), {"ring": ring})


@case(verbs.lift)
def _(s: Source) -> Call:
    pairs = [(Z16, Z32), (Z16, Z64), (Z32, Z64), (RINGS[8], Z16), (Z22, Z64), (Z24, Z64)]
    ring, target = pairs[int(s.sizes.integers(len(pairs)))]
    x = s.words(ring_of(np.zeros(0, ring.dtype)), s.shape())
    sizes = {size.elements: x.size, size.ring_bits: ring.bits, size.target_bits: target.bits}
    kwargs = {"ring": target} | ({"modulo": ring} if ring.spare else {})
    return Call((x,), sizes, ring.reduce(x).astype(target.dtype), kwargs)


@case(verbs.truncate)
def _(s: Source) -> Call:
    ring = s.ring()
    bits = s.count(1, ring.bits - 2)
    x = s.signed(ring, s.shape(), ring.bits - 1)
    sizes = {size.elements: x.size, size.ring_bits: ring.bits, size.dropped_bits: bits}
    return Call((x,), sizes, (ring.signed(x) >> bits).view(ring.dtype), {"bits": bits})


@case(comparison.negative)
def _(s: Source) -> Call:
    ring = s.ring()
    x = s.words(ring, s.shape())
    return Call((x,), {size.elements: x.size, size.ring_bits: ring.bits}, ring.signed(x) < 0)


def _compared(s: Source, numpys: Callable[..., Any]) -> Call:
    ring, shape = s.ring(), s.shape()
    x, y = s.signed(ring, shape, ring.bits - 1), s.signed(ring, shape, ring.bits - 1)
    if s.fill == "random":
        y = np.asarray(np.where(s.values.random(shape) < 0.2, x, y))
    return Call((x, y), {size.elements: x.size, size.ring_bits: ring.bits}, numpys(ring.signed(x), ring.signed(y)))


case(comparison.less_than)(lambda s: _compared(s, np.less))
case(paper.greater_than)(lambda s: _compared(s, np.greater))
case(paper.greater_equal)(lambda s: _compared(s, np.greater_equal))
case(comparison.equal)(lambda s: _compared(s, np.equal))


@case(paper.absolute)
def _(s: Source) -> Call:
    ring = s.ring()
    x = s.signed(ring, s.shape(), ring.bits - 1)
    return Call((x,), {size.elements: x.size, size.ring_bits: ring.bits}, np.abs(ring.signed(x)))


@case(paper.l1_norm)
def _(s: Source) -> Call:
    ring = s.ring(Z32, Z64)
    x = s.signed(ring, (*s.shape(), s.count(1, 30)), ring.bits - 7)
    expect = np.asarray(np.abs(ring.signed(x)).sum(-1))
    return Call((x,), {size.elements: x.size, size.sums: expect.size, size.ring_bits: ring.bits}, expect)


@case(paper.argmax)
def _(s: Source) -> Call:
    ring, count = s.ring(), s.count(1, 150)
    x = s.words(ring, (count,))
    signed = ring.signed(x)
    return Call((x,), {size.elements: count, size.ring_bits: ring.bits}, (signed.max(), signed.argmax()))


@case(randomness.random_bit)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()

    def check(value: Words) -> None:
        assert value.shape == shape
        assert np.all(value <= 1)

    count = int(np.prod(shape, dtype=int))
    return Call((), {size.elements: count, size.ring_bits: ring.bits}, None, {"shape": shape, "ring": ring}, check)


@case(randomness.random_fraction)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    frac = s.count(1, ring.bits - 1)

    def check(value: Words) -> None:
        assert value.shape == shape
        assert np.all(value < 1 << frac)

    count = int(np.prod(shape, dtype=int))
    sizes = {size.elements: count, size.ring_bits: ring.bits, size.fraction_bits: frac}
    return Call((), sizes, None, {"shape": shape, "ring": ring, "frac": frac}, check)


def _frac(s: Source) -> int:
    return s.count(8, 24)


def _close(frac: int, expected: Any, relative: float = 2.0**-20) -> Callable[[Words], None]:
    """Coarse agreement with float64; `test_fixedpoint.py` tests the stated error bounds."""

    def check(value: Words) -> None:
        assert value.shape == np.shape(expected)
        got = Z64.signed(value) * 2.0**-frac
        assert np.all(np.abs(got - expected) <= 2.0 ** (1 - frac) + relative * np.abs(expected) + 2.0**-20)

    return check


def _fixed(s: Source, bits: int, shape: tuple[int, ...] | None = None) -> Words:
    """Positive numbers of up to `bits` bits."""
    return s.words(Z64, s.shape() if shape is None else shape, bits) | np.uint64(1)


def _of_one(s: Source, bits: int, function: Callable[[Any], Any], **kwargs: Any) -> Call:
    frac = _frac(s)
    x = np.asarray(_fixed(s, bits))
    expected = function(x * 2.0**-frac)
    return Call(
        (x,),
        {size.elements: x.size, size.ring_bits: 64, size.fraction_bits: frac},
        None,
        {"frac": frac, **kwargs},
        _close(frac, expected),
    )


case(fixedpoint.exponential)(lambda s: _of_one(s, 10, np.exp))
case(fixedpoint.logarithm)(lambda s: _of_one(s, 36, np.log))
case(fixedpoint.square_root)(lambda s: _of_one(s, 36, np.sqrt))
case(fixedpoint.sine)(lambda s: _of_one(s, 14, np.sin))
case(fixedpoint.cosine)(lambda s: _of_one(s, 14, np.cos))
case(fixedpoint.scale_fixed)(lambda s: _of_one(s, 20, lambda x: 1.5 * x, factor=1.5))


@case(fixedpoint.reciprocal)
def _(s: Source) -> Call:
    frac = _frac(s)
    x = np.asarray(_fixed(s, 20)) + np.uint64(1 << 8)
    check = _close(frac, 1 / (x * 2.0**-frac))
    return Call(
        (x,), {size.elements: x.size, size.ring_bits: 64, size.fraction_bits: frac}, None, {"frac": frac}, check
    )


@case(fixedpoint.sine_cosine)
def _(s: Source) -> Call:
    frac = _frac(s)
    x = np.asarray(_fixed(s, 14))
    angle = x * 2.0**-frac

    def check(value: tuple[Words, Words]) -> None:
        _close(frac, np.sin(angle))(value[0])
        _close(frac, np.cos(angle))(value[1])

    return Call(
        (x,), {size.elements: x.size, size.ring_bits: 64, size.fraction_bits: frac}, None, {"frac": frac}, check
    )


def _of_two(s: Source, function: Callable[[Any, Any], Any]) -> Call:
    frac, shape = _frac(s), s.shape()
    x, y = (np.asarray(_fixed(s, 20, shape)) + np.uint64(1 << 8) for _ in range(2))
    check = _close(frac, function(x * 2.0**-frac, y * 2.0**-frac), 2.0**-19)
    return Call(
        (x, y), {size.elements: x.size, size.ring_bits: 64, size.fraction_bits: frac}, None, {"frac": frac}, check
    )


case(fixedpoint.multiply_fixed)(lambda s: _of_two(s, np.multiply))
case(fixedpoint.divide)(lambda s: _of_two(s, np.divide))


@case(fixedpoint.polynomial)
def _(s: Source) -> Call:
    frac, degree = _frac(s), s.count(1, 6)
    x = np.asarray(s.words(Z64, s.shape(), frac))  # below 1
    coefficients = [(-1.0) ** i * (i + 1) / 4 for i in range(degree + 1)]
    expected = np.polynomial.Polynomial(coefficients)(x * 2.0**-frac)

    def check(value: Words) -> None:
        assert np.all(np.abs(Z64.signed(value) * 2.0**-frac - expected) <= 40 * 2.0**-frac)

    sizes = {size.elements: x.size, size.ring_bits: 64, size.fraction_bits: frac, size.degree: degree}
    return Call((x,), sizes, None, {"frac": frac, "coefficients": coefficients}, check)


@case(fixedpoint.softmax)
def _(s: Source) -> Call:
    frac, count = _frac(s), s.count(1, 60)
    x = s.signed(Z64, (count,), frac + 3)
    real = Z64.signed(x) * 2.0**-frac
    weights = np.exp(real - real.max())
    return Call(
        (x,),
        {size.elements: count, size.ring_bits: 64, size.fraction_bits: frac},
        None,
        {"frac": frac},
        _close(frac, weights / weights.sum()),
    )


@case(fixedpoint.select)
def _(s: Source) -> Call:
    ring, shape = s.ring(), s.shape()
    condition, x, y = s.words(ring, shape, 1), s.words(ring, shape), s.words(ring, shape)
    return Call(
        (condition, x, y), {size.elements: x.size, size.ring_bits: ring.bits}, np.asarray(np.where(condition, x, y))
    )


@case(fixedpoint.normalise)
def _(s: Source) -> Call:
    x = np.asarray(_fixed(s, 61))
    exponent = [int(v).bit_length() - 1 for v in x.flat]
    leads = np.array([1 << e for e in exponent], np.uint64).reshape(x.shape)
    mantissa = [(int(v) << 32 >> e) - (1 << 32) for v, e in zip(x.flat, exponent, strict=True)]
    expected = (np.zeros_like(x), leads, np.array(mantissa, np.uint64).reshape(x.shape))
    return Call((x,), {size.elements: x.size, size.ring_bits: 64}, expected)


@case(fixedpoint.window)
def _(s: Source) -> Call:
    shape, width = s.shape(), s.count(2, 12)
    where = s.words(Z64, shape, 3) % np.uint64(width)
    bits = s.bits(width, shape)
    offsets = range(-s.count(1, 4), s.count(0, 4))
    shifted = (bits.words << np.uint64(-offsets.start)) >> where  # a window from e + start, |start| zeros below
    expected = np.asarray(shifted & np.uint64((1 << len(offsets)) - 1))
    flags = Bits(np.asarray(np.uint64(1) << where), width)
    return Call(
        (flags, bits), {size.elements: bits.words.size, size.width: len(offsets)}, expected, {"offsets": offsets}
    )


def assert_equal(got, expected) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(got, expected, strict=True):
            assert_equal(one, other)
        return
    expected = np.asarray(expected)
    got = np.asarray(got)
    if expected.dtype.kind == "i" and got.dtype.kind == "u":
        got = Z64.signed(got) if got.dtype == Z64.dtype else got.view(f"<i{got.dtype.itemsize}")
    assert got.shape == expected.shape
    assert np.array_equal(got, expected)
