"""The samplers on shares: exact circuits, and the numbers of their clear twins."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from caps.dp.noise import clear
from caps.dp.noise.plans import gaussian_plan, half_gaussian, laplace_plan, selection_plan
from caps.dp.noise.tables import DIGITS
from caps.errors import DomainError, LabelReused
from caps.shares.ring import Z8, Z64, pack_bits
from services.mpc_server.engine import sampling
from services.mpc_server.engine.shares import stack_planes
from services.mpc_server.testing.world import Bits, Failed, World
from tests.kit.cases.sampling import LABEL, WorldBits

pytestmark = pytest.mark.property


async def draw_with(ctx: Any, index: Any, low: Any, high: Any, *, table: Any) -> Any:
    return await sampling._draw(ctx, table, index, stack_planes([low, high]))


def test_every_bucket_and_every_position_of_the_first_zero() -> None:
    """The whole coin, exhaustively: after j ones and a zero, digit j + 1 of the threshold chooses code or alias."""
    table = half_gaussian(Fraction(25))
    ones, index = (grid.reshape(-1) for grid in np.indices((DIGITS + 1, 1 << table.index_bits)))
    noise = np.random.default_rng(5).integers(0, 2, (DIGITS, ones.size), np.uint8)
    position = np.arange(DIGITS)[:, None]
    digits = np.where(position < ones, 1, np.where(position == ones, 0, noise)).astype(np.uint8)
    words = [
        (part << np.arange(len(part), dtype=np.uint64)[:, None]).sum(0, dtype=np.uint64)
        for part in (digits[:64], digits[64:])
    ]
    threshold = np.concatenate([table.thresholds, np.zeros_like(table.thresholds[:1])])[ones, index]
    expect = np.where(threshold == 1, table.codes[index], table.aliases[index])

    args = (Bits(index.astype(np.uint64), table.index_bits), Bits(words[0], 64), Bits(words[1], DIGITS - 64))
    assert np.array_equal(World(7).run(draw_with, *args, table=table).value, expect)
    planes = pack_bits((index >> np.arange(table.index_bits)[:, None] & 1).astype(np.uint8))
    assert np.array_equal(clear.alias_codes(table, planes, pack_bits(digits), ones.size), expect)


PLANS = {
    "discrete_gaussian": gaussian_plan(Fraction("73.1") ** 2),
    "discrete_laplace": laplace_plan(Fraction(50)),
    "geometric": laplace_plan(Fraction(50)).geometric,
    "gumbel": selection_plan(Fraction(448), Fraction(1, 2)),
}


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("chunk_words", [1 << 22, 1 << 11])
def test_same_bits_same_noise(name: str, chunk_words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, whether the draws fit in one chunk or take many."""
    monkeypatch.setattr(sampling, "CHUNK_WORDS", chunk_words)
    plan, shape = PLANS[name], (3, 333)
    kwargs = {"ring": Z64} if name in ("discrete_gaussian", "discrete_laplace") else {}
    outcome = World(11).run(getattr(sampling, name), plan=plan, shape=shape, **kwargs)
    bits = plan.width if name == "gumbel" else 64
    expect = getattr(clear, name)(WorldBits(World(11)), LABEL, plan, shape).view(np.uint64) & np.uint64(2**bits - 1)
    assert np.array_equal(outcome.value, expect)
    assert len(np.unique(outcome.value)) > 50


def test_chunks_take_their_rounds_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CHUNK_WORDS", 1 << 11)
    table = half_gaussian(Fraction(25))
    assert sampling.chunk_size(table.index_bits) == 9 * 64
    outcome = World(1).run(sampling.alias_draw, table=table, shape=(2000,))
    assert outcome.rounds == sampling.draw_rounds(2000, 6) == 4 * 8


def test_numbers_keep_their_value_when_widened() -> None:
    plan = PLANS["gumbel"]

    async def widened(ctx: Any) -> Any:
        return sampling.sign_extended(await sampling.gumbel(ctx, plan=plan, shape=(500,)), 64)

    expect = clear.gumbel(WorldBits(World(3)), LABEL, plan, (500,))
    assert np.array_equal(World(3).run(widened).value.view(np.int64), expect)
    assert expect.min() < 0 < expect.max()


def test_noise_that_does_not_fit_the_ring_is_refused() -> None:
    with pytest.raises(Failed) as caught:
        World(1).run(sampling.discrete_gaussian, plan=gaussian_plan(Fraction(400)), shape=(3,), ring=Z8)
    assert all(isinstance(error, DomainError) for error in caught.value.errors)


def test_fresh_bits_serve_a_label_once_and_differ() -> None:
    source = clear.FreshBits()
    first = source.bits(b"/a", 3, (1000,))
    assert not np.array_equal(first, source.bits(b"/b", 3, (1000,)))
    assert not np.array_equal(first, clear.FreshBits().bits(b"/a", 3, (1000,)))
    with pytest.raises(LabelReused):
        source.bits(b"/a", 3, (1000,))
