"""Jobs for workers, small ones of a few blocks of rows."""

from __future__ import annotations

from caps.shares.ring import Z16, Z22, Z24, Z32, Ring
from caps.shares.sharing import Seeded
from services.mpc_server.engine.jobs import BlockSums, Deviations, Grams, Mix, Quadratic, RowCoins
from services.mpc_server.engine.long import LongWords, SeededOrigin
from services.mpc_server.testing.world import uniform_words

ROWS = 3 * 1024 + 17


def grams(ring: Ring = Z22) -> Grams:
    """Two parts of two components each, one of them expanded from a seed."""
    shared = {Z22: Z24, Z16: Z16}[ring]
    seeded = LongWords(SeededOrigin(Seeded(bytes(range(32)), 1), (ROWS, 9), shared))
    first = uniform_words(1, (ROWS, 9), ring)
    parts = ((first[:, :4], seeded[:, 2:6]), (first[:, 4:], seeded[:, 4:]))
    return Grams(parts, (Mix(0, 1), Mix(1), Mix(0, 1, opposite=True)), ring)  # type: ignore[arg-type]


def deviations(ring: Ring = Z32) -> Deviations:
    first, second = (uniform_words(seed, (ROWS, 9), ring) for seed in (1, 2))
    forms = Quadratic((1, 0), (1, 2), -1), Quadratic((1, -1), (1, -1))
    return Deviations((first, second), forms, BlockSums((4, 5)), 11, RowCoins(bytes(range(32)), b"/0", 48), 48)
