"""Rows of bytes in XOR shares, and their shuffle by a permutation that no party knows.

The permutation is the composition of three, each drawn by the two parties that hold one component's key; the third
party lacks that one, so to it the order of the result is uniformly random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caps.errors import ShareError
from caps.shares.ring import PLANE, Z8, Z64, Words, plane_words, planes_to_words, words_to_planes
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import BShare, Indices, Owner, _freeze, _Inert

_WORD_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RowShare(_Inert):
    """XOR share of n rows of r bytes each: the form in which rows are moved. To compute on them, take their planes."""

    owner: Owner
    mine: Words
    next: Words

    def __post_init__(self) -> None:
        if not self.mine.dtype == self.next.dtype == Z8.dtype or self.mine.ndim != 2:
            raise ShareError(f"rows are matrices of bytes, not {self.mine.shape} of {self.mine.dtype}")
        if self.mine.shape != self.next.shape:
            raise ShareError(f"components differ: {self.mine.shape} and {self.next.shape}")
        _freeze(self.mine)
        _freeze(self.next)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and bytes of a row."""
        rows, width = self.mine.shape
        return rows, width

    def __len__(self) -> int:
        return len(self.mine)

    def __repr__(self) -> str:
        return f"<RowShare {self.shape}, {self.owner!r}>"

    def bits(self, rows: slice | Indices, octets: slice) -> BShare:
        """The bits of some bytes of some rows: bit j of byte i (of those taken) is plane 8i + j."""
        mine, next_ = (
            part[rows] if isinstance(rows, slice) else part.take(rows, axis=0) for part in (self.mine, self.next)
        )
        return BShare(self.owner, (len(mine),), _planes(mine[:, octets]), _planes(next_[:, octets]))


def _planes(octets: Words) -> Words:
    rows, width = octets.shape
    words = np.zeros((rows, -(-width // _WORD_BYTES)), PLANE)
    words.view(np.uint8)[:, :width] = octets
    planes = np.empty((8 * width, plane_words(rows)), PLANE)
    for column in range(words.shape[1]):
        part = planes[64 * column : 64 * (column + 1)]
        part[...] = words_to_planes(words[:, column], len(part))
    return planes


def rows_of(x: BShare) -> RowShare:
    """Elements of 64 w bits as rows of 8 w bytes: the inverse of `RowShare.bits`."""
    return RowShare(x.owner, *(_octets(part, x.size) for part in (x.mine, x.next)))


def _octets(planes: Words, rows: int) -> Words:
    words = [planes_to_words(planes[start : start + 64], rows) for start in range(0, len(planes), 64)]
    return np.stack(words, axis=1).view(np.uint8)


def concatenate_rows(parts: Sequence[RowShare]) -> RowShare:
    """Some rows after others. Local."""
    mine, next_ = (np.concatenate([getattr(part, name) for part in parts]) for name in ("mine", "next"))
    return RowShare(parts[0].owner, mine, next_)


def widened(rows: RowShare, width: int) -> RowShare:
    """The same rows with zeros behind them, up to a number of bytes. Local."""
    more = ((0, 0), (0, width - rows.shape[1]))
    return RowShare(rows.owner, np.pad(rows.mine, more), np.pad(rows.next, more))


def own_rows(ctx: Context, rows: RowShare) -> None:
    """Refuse rows of another study or another party."""
    if rows.owner != ctx.owner:
        raise ShareError(f"{rows!r} was given to a protocol of {ctx.owner!r}")


class _Pair:
    """What this party draws together with the other holder of one component; the third party knows none of it."""

    def __init__(self, ctx: Context, component: int, shape: tuple[int, int]) -> None:
        self._draw = ctx.prss.mine_only if component == ctx.party else ctx.prss.next_only
        self._label = b"%b#component%d/" % (ctx.path, component)
        self._shape = shape

    def octets(self, name: bytes) -> Words:
        """Uniformly random rows."""
        return self._draw(self._label + name, self._shape, Z8)

    def order(self) -> Indices:
        """A uniformly random permutation: the order of random 64-bit keys, drawn anew until no two are equal.

        Given that keys differ, every order of them is equally likely, so there is no bias at all. Both parties draw
        the same keys and so agree on the number of attempts; a second one has probability below n^2 / 2^65.
        """
        attempt = 0
        while True:
            keys = self._draw(b"%border%d" % (self._label, attempt), self._shape[:1], Z64)
            order = np.argsort(keys)
            ranked = keys[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order
            attempt += 1

    def move(self, rows: Words) -> Words:
        """Mask the rows and permute them. Done to both halves of a sharing, the masks cancel."""
        return (rows ^ self.octets(b"mask")).take(self.order(), axis=0)


@protocol(
    "Araki et al. 2021, three-party shuffle, over Z_2",
    rep3=Cost(rounds=2, sent=(1 + FIRST) * size.rows * size.row_bytes),
)
async def shuffle(ctx: Context, rows: RowShare) -> RowShare:
    """[[the n rows of r bytes in a random order]] that no party knows.

    S3 knows the XOR of components 2 and 0, S1 and S2 know component 1. Both halves are moved by the pairs of components
    0, 2 and 1, in this order, and on its way each is hidden from its receiver by the mask of the pair that the receiver
    is not in. Component 1 of the result is what S1 and S2 then have, each masked by a fresh component: 2 or 0.

    Pre-conditions: the shape is public.
    Leaks: nothing.
    """
    own_rows(ctx, rows)
    shape, size = rows.shape, rows.mine.nbytes
    second = ctx.step("second")

    def pair(component: int) -> _Pair:
        return _Pair(ctx, component, shape)

    def received(octets: memoryview) -> Words:
        return np.frombuffer(octets, Z8.dtype).reshape(shape)

    if ctx.party == 2:
        await ctx.exchange([(0, pair(2).move(pair(0).move(rows.mine ^ rows.next)))], [])
        await second.exchange([], [])
        return RowShare(ctx.owner, pair(2).octets(b"fresh"), pair(0).octets(b"fresh"))
    if ctx.party == 0:
        (half,) = await ctx.exchange([(1, pair(0).move(rows.next))], [(2, size)])
        fresh = pair(0).octets(b"fresh")
        part = pair(1).move(received(half)) ^ fresh
        (rest,) = await second.exchange([(1, part)], [(1, size)])
        return RowShare(ctx.owner, fresh, part ^ received(rest))
    (half,) = await ctx.exchange([], [(0, size)])
    fresh = pair(2).octets(b"fresh")
    part = pair(1).move(pair(2).move(received(half))) ^ fresh
    (rest,) = await second.exchange([(0, part)], [(0, size)])
    return RowShare(ctx.owner, part ^ received(rest), fresh)
