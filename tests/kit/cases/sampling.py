"""Cases of the samplers and their parts. The oracle is caps.dp.noise.clear, fed the bits that the servers drew."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from caps.basics.schemes import REP3, Scheme
from caps.dp.noise import clear
from caps.dp.noise.plans import (
    GeometricPlan,
    gaussian_plan,
    geometric_plan,
    half_gaussian,
    laplace_plan,
    selection_plan,
)
from caps.shares.prss import expand
from caps.shares.ring import Z32, Z64, Words, plane_words
from services.mpc_server.engine import boolean, sampling, size
from services.mpc_server.engine.cost import Size
from services.mpc_server.testing.world import World
from tests.kit.cases.base import Call, Source, case

LABEL = b"/test"
"""The path of a protocol that World.run starts."""

SIGMA2 = [Fraction(text) ** 2 for text in ("0.3", "0.7", "5", "11.9", "24", "73.1", "1000")]
SCALES = [Fraction(text) for text in ("0.5", "40")]
SELECTIONS = [(Fraction(448), Fraction(1, 2)), (Fraction(2000), Fraction(1, 1000)), (Fraction(100), Fraction(2))]


class WorldBits:
    """The bits that a world's servers draw under a label, put together: what no one of them knows."""

    def __init__(self, world: World) -> None:
        keys = {}
        for channel in world.channels():
            keys |= world.runtime(channel).context.drawn.keys
        self._keys = list(keys.values())

    def bits(self, label: bytes, width: int, shape: tuple[int, ...]) -> Words:
        extents = (width, plane_words(prod(shape)))
        return np.bitwise_xor.reduce([expand(key, label + b"#random", extents, Z64) for key in self._keys])


@case(boolean.prefix_and)
def _(s: Source) -> Call:
    block, blocks = s.count(1, 9), s.count(1, 6)
    x = s.bits(block * blocks, s.shape())
    bits = x.words[..., None] >> np.arange(x.width, dtype=np.uint64) & np.uint64(1)
    runs = np.minimum.accumulate(bits.reshape(*x.words.shape, blocks, block), axis=-1).reshape(bits.shape)
    expect = np.asarray((runs << np.arange(x.width, dtype=np.uint64)).sum(-1, dtype=np.uint64))
    return Call((x,), {size.elements: x.words.size, size.width: x.width, size.block: block}, expect, {"block": block})


@case(boolean.plane_dot)
def _(s: Source) -> Call:
    block, blocks, shape = s.count(1, 5), s.count(1, 12), s.shape()
    x, y = s.bits(block * blocks, shape), s.bits(block * blocks, shape)
    both = np.asarray(x.words & y.words)[..., None] >> (np.arange(blocks, dtype=np.uint64) * np.uint64(block))
    parity = np.bitwise_count(both & np.uint64((1 << block) - 1)).astype(np.uint64) & np.uint64(1)
    expect = np.asarray((parity << np.arange(blocks, dtype=np.uint64)).sum(-1, dtype=np.uint64))
    return Call((x, y), {size.elements: x.words.size, size.width: x.width, size.block: block}, expect, {"block": block})


@case(boolean.one_hot)
def _(s: Source) -> Call:
    x = s.bits(s.count(1, 6), s.shape())
    return Call((x,), {size.elements: x.words.size, size.width: x.width}, np.asarray(np.uint64(1) << x.words))


def drawn(
    protocol: Callable[..., Any], sizes: dict[Size, int], shape: tuple[int, ...], bits: int, **kwargs: Any
) -> Call:
    """A call without secret inputs: test_registry runs it in World(1), whose bits the clear twin is given."""

    def shape_only(value: Words) -> None:
        assert value.shape == shape

    def like_the_twin(value: Words, scheme: Scheme = REP3) -> None:
        twin = getattr(clear, protocol.__name__)
        expect = twin(WorldBits(World(1, scheme=scheme)), LABEL, kwargs.get("plan") or kwargs["table"], shape)
        assert np.array_equal(value.astype(np.uint64), expect.astype(np.uint64) & np.uint64((1 << bits) - 1))

    return Call((), sizes | {size.elements: prod(shape)}, None, kwargs | {"shape": shape}, shape_only, like_the_twin)


@case(sampling.alias_draw)
def _(s: Source) -> Call:
    table = half_gaussian(SIGMA2[s.count(0, 3)])
    return drawn(
        sampling.alias_draw, {size.index_bits: table.index_bits, size.width: table.width}, s.shape(), 64, table=table
    )


@case(sampling.discrete_gaussian)
def _(s: Source) -> Call:
    plan, ring = gaussian_plan(SIGMA2[s.count(0, len(SIGMA2) - 1)]), s.ring(Z32, Z64)
    sizes = {
        size.index_bits: plan.table.index_bits,
        size.width: plan.table.width,
        size.terms: len(plan.coefficients),
        size.ring_bits: ring.bits,
    }
    return drawn(sampling.discrete_gaussian, sizes, s.shape(), ring.bits, plan=plan, ring=ring)


def _digits(plan: GeometricPlan) -> dict[Size, int]:
    return {
        size.index_bits: max(t.index_bits for t in plan.tables),
        size.width: plan.width,
        size.digits: len(plan.tables),
    }


@case(sampling.geometric)
def _(s: Source) -> Call:
    plan = geometric_plan(SCALES[s.count(0, len(SCALES) - 1)])
    return drawn(sampling.geometric, _digits(plan), s.shape(), 64, plan=plan)


@case(sampling.discrete_laplace)
def _(s: Source) -> Call:
    plan, ring = laplace_plan(SCALES[s.count(0, len(SCALES) - 1)]), s.ring(Z32, Z64)
    sizes = _digits(plan.geometric) | {size.ring_bits: ring.bits}
    return drawn(sampling.discrete_laplace, sizes, s.shape(), ring.bits, plan=plan, ring=ring)


@case(sampling.gumbel)
def _(s: Source) -> Call:
    plan = selection_plan(*SELECTIONS[s.count(0, len(SELECTIONS) - 1)])
    sizes = {size.index_bits: plan.table.index_bits, size.width: plan.table.width, size.free_bits: plan.free}
    return drawn(sampling.gumbel, sizes, s.shape(), plan.width, plan=plan)
