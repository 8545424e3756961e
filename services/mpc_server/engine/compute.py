"""COMPUTE ANSWERS, pi_COMP: the marginals of the joint table as shares over Z_2^64, however the table is divided.

Rows that one holder has completely are counted by the holder, which shares marginals. Rows that are spread over holders
come as one-hot columns: an attribute with s categories is a block of s columns of 0 and 1, at most one of them 1; a
missing value and a padding row are zeros. One-hot columns make counting a matrix product, and a product of shared
matrices sends its result, not its rows. So what crosses the network is as large as the answers, whatever the number of
rows is; only marginals of three and more attributes need products of columns first, which are sent.

What holders send is checked before it is used, for an entry of 2^15 or a count that wraps would give one row the weight
of thousands, and the noise would no longer hide it. A contribution that fails is named and left out.

Columns are words of Z_2^16, or of 32 bits for tables of more than 65,535 rows: what was shared in Z_2^24 is computed on
modulo 2^32, for then it is right modulo 2^24. Counts are taken modulo 2^22 of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.data.domain import Clique, Domain, Layout
from caps.dp.bounds import COUNT_BITS, MOST_COUNTED, ONE_HOT_COMBINATIONS, counted_bits, largest_sum
from caps.errors import DomainError, ShareError
from caps.shares.prss import expand
from caps.shares.ring import RINGS, Z8, Z16, Z22, Z24, Z32, Z64, Ring, Words
from services.mpc_server.engine import size
from services.mpc_server.engine.arithmetic import multiply, reshare, reveal
from services.mpc_server.engine.boolean import carry_ands
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.conversion import lift
from services.mpc_server.engine.cost import FIRST, Cost, Expr, Size, Sizes, formula, largest, log2, plane, smallest
from services.mpc_server.engine.kernels import BLOCK_ROWS, gram_of_parts, matmul_mod, subset_sums
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, Shape, concatenate

Indices: TypeAlias = npt.NDArray[np.intp]
Flags: TypeAlias = npt.NDArray[np.bool_]
Part: TypeAlias = tuple[int, ...]
"""Attributes by their position in the domain, ascending."""

SOUNDNESS_BITS = 40
"""A contribution that is not valid passes its check with probability at most 2^-40."""
COMBINATIONS = ONE_HOT_COMBINATIONS
"""Of rows, and of columns, in `check_one_hot`: 2 * 2^-48 < 2^-40, and 48 coins are whole bytes."""
GROUP_ROWS = 65_535
"""Rows that are counted in Z_2^16 together: no count of them can wrap."""
WIDE_GROUP_ROWS = (1 << 22) - 1
"""The same for words of 32 bits, whose counts are taken modulo 2^22."""
BLOCK_WORDS = 1 << 22
"""Elements of one row block where rows are multiplied: 8 MiB per component and buffer in Z_2^16."""
MAX_DEGREE = 8
_COINS = b"caps/v1/compute/coins"


def lifted_bytes(counts: Expr | int, bits: Expr | int) -> Expr:
    """Bytes of `lift` to Z_2^64."""
    return (1 + FIRST) * counts * 8 + ((1 + FIRST) * bits + carry_ands(bits)) * plane(counts)


ADD_ROUNDS = 7 + log2(size.count_bits)
ADD_SENT = lifted_bytes(size.marginal_cells, size.count_bits) + 64 + 16 * size.marginal_inputs * size.combinations
_CHECK_SENT = 64 + size.column_inputs * (3 * COMBINATIONS**2) * size.word_bits // 8


@protocol("PRSS words, opened", rep3=Cost(rounds=1, sent=48))
async def toss(ctx: Context) -> Words:
    """Four public random words, which no party could know before this round: a seed of 32 bytes.

    Pre-conditions: whatever the coins are to judge was fixed before, under keys of this session.
    Leaks: the seed, which depends on nothing.
    """
    return await reveal(ctx, ctx.share(*ctx.prss.replicated(ctx.path + b"#coins", (4,), Z64)))


def _coins(seed: bytes, label: bytes, count: int) -> npt.NDArray[np.uint8]:
    """`count` rows of COMBINATIONS public random bits."""
    octets = expand(seed, _COINS + label, (count, COMBINATIONS // 8), Z8)
    return np.unpackbits(octets.view(np.uint8), axis=1)


async def _all_zero(ctx: Context, deviations: AShare) -> Flags:
    """For each row of a shared matrix, whether all its elements are zero. Two rounds.

    Each element is opened times a random odd number that nobody knows. So a zero stays zero, and of any other element
    nothing but the power of two that divides it is seen.
    """
    mask = ctx.share(*ctx.prss.replicated(ctx.path + b"#mask", deviations.shape, deviations.ring)) * 2 + 1
    opened = await reveal(ctx.step("open"), await multiply(ctx.step("mask"), deviations, mask))
    return np.asarray(~opened.any(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class HorizontalInput:
    """What a holder counted itself: the marginals of `cliques` (of the whole layout if None), flat, over its own rows.

    They are shared over Z_2^16 or Z_2^32 and taken modulo a power of two, so that every word is a possible count, and
    those of all holders add up to less than 2^32.
    """

    holder: str
    marginals: AShare
    cliques: tuple[Clique, ...] | None = None

    def layout(self, whole: Layout) -> Layout:
        """Where the cells of this contribution lie in it."""
        return whole if self.cliques is None else Layout(whole.domain, self.cliques)


def _check_marginals(
    ctx: Context, contributions: Sequence[HorizontalInput], layout: Layout
) -> tuple[list[Layout], Ring]:
    layouts = [contribution.layout(layout) for contribution in contributions]
    ring = contributions[0].marginals.ring
    for contribution, own in zip(contributions, layouts, strict=True):
        marginals = contribution.marginals
        ctx.own(marginals)
        if marginals.ring not in (Z16, Z32) or marginals.ring != ring:
            raise ShareError(f"marginals of {contribution.holder} must be in Z_2^16 or Z_2^32, and all in one ring")
        if marginals.shape != (own.cells,):
            raise ShareError(f"marginals of {contribution.holder} must be {own.cells} cells, not {marginals.shape}")
        layout.positions(own.cliques)  # refuses cliques that the whole layout lacks
    return layouts, ring


@protocol(
    "random linear combinations, as in Prio (Corrigan-Gibbs and Boneh 2017)",
    rep3=Cost(rounds=3, sent=64 + 16 * size.marginal_inputs * size.combinations),
)
async def check_totals(ctx: Context, contributions: Sequence[AShare], *, layouts: Sequence[Layout], bits: int) -> Flags:
    """Which contributions of marginals are consistent: each table has one number of rows, so one total.

    Compared are the marginals whose attributes cannot be missing. With totals T_0, T_1, ... of a contribution, public
    random words r and i = 1, 2, ..., the sum of r_i (T_i - T_0) is zero if all are equal. Otherwise some difference is
    d != 0 with |d| < 2^b, b = bits + log2(cells of the largest marginal), so 2^b does not divide it and r_i d is
    uniform on at least 2^(65-b) values: the sum is zero with probability at most 2^-(65-b). As many sums are opened
    as make that 2^-40.

    Pre-conditions: elements are integers of `bits` bits lifted to Z_2^64, in the order of each contribution's layout.
    Leaks: which contributions are accepted; of those nothing else. Of a refused one, the power of two that divides
        each sum.
    """
    j = combinations_of_totals(layouts, bits)
    if not contributions or len(contributions) != len(layouts):
        raise ShareError(f"{len(contributions)} contributions do not go with {len(layouts)} layouts")
    for share, layout in zip(contributions, layouts, strict=True):
        ctx.own(share)
        if share.shape != (layout.cells,) or share.ring != Z64:
            raise ShareError(f"{share!r} is not the {layout.cells} cells of its layout, lifted to Z_2^64")
    seed = (await toss(ctx.step("toss"))).tobytes()
    sums = []
    for number, (share, layout) in enumerate(zip(contributions, layouts, strict=True)):
        full = _full_cliques(layout)
        starts = np.array(layout.offsets)
        totals = ctx.share(np.add.reduceat(share.mine, starts), np.add.reduceat(share.next, starts))[full]
        weights = expand(seed, b"%b/totals/%d" % (_COINS, number), (max(len(full) - 1, 0), j), Z64)
        sums.append((totals[1:] - totals[:1]).weigh(weights).reshape(1, j))
    return await _all_zero(ctx, concatenate(sums))


def _full_cliques(layout: Layout) -> Indices:
    """The marginals in which every row counts: those without a nullable attribute."""
    nullable = {attribute.name for attribute in layout.domain.attributes if attribute.nullable}
    return np.array([i for i, clique in enumerate(layout.cliques) if nullable.isdisjoint(clique)], np.intp)


def combinations_of_totals(layouts: Sequence[Layout], bits: int) -> int:
    """How many sums `check_totals` opens per contribution."""
    room = 65 - bits - log2(max(size for layout in layouts for size in layout.sizes))
    if room < 1:
        raise DomainError(f"totals of counts of {bits} bits do not fit in Z_2^64")
    return -(-SOUNDNESS_BITS // room)


def own_bits(contributions: Sequence[HorizontalInput], rows: int = 0) -> int:
    """The most bits that holders' own counts can have: with so many joined rows, no sum reaches 2^32."""
    return min(counted_bits(len(contributions), rows), contributions[0].marginals.ring.bits)


@protocol("CaPS Protocol 2, lines 1-5", rep3=Cost(rounds=ADD_ROUNDS, sent=ADD_SENT))
async def add_marginals(
    ctx: Context, contributions: Sequence[HorizontalInput], *, layout: Layout, bits: int
) -> tuple[AShare, Flags]:
    """[[the sum of the contributions]] in the order of `layout`, over Z_2^64, and which of them were accepted.

    Each contribution is lifted from Z_2^k, k = bits: what a holder says beyond 2^k - 1 is cut off, whatever it sends.

    Deviation: the paper adds what holders share over Z_2^64. There a holder could share counts that wrap, and so break
    the bound on what one row can change.

    Pre-conditions: all contributions are in one ring; servers compared their copies of them on receipt.
    Leaks: which contributions are accepted (see check_totals).
    """
    if not contributions:
        raise ShareError("there is no contribution to add")
    layouts, ring = _check_marginals(ctx, contributions, layout)
    if not 1 <= bits <= ring.bits or largest_sum(len(contributions), bits, 0) > MOST_COUNTED:
        raise DomainError(f"{len(contributions)} counts of {bits} bits could add up to 2^{COUNT_BITS} or more")
    combinations_of_totals(layouts, bits)
    stacked = concatenate([contribution.marginals for contribution in contributions])
    wide = await lift(ctx.step("lift"), stacked, ring=Z64, modulo=Ring(bits, ring.dtype))
    ends = np.cumsum([own.cells for own in layouts])
    parts = [wide[end - own.cells : end] for end, own in zip(ends, layouts, strict=True)]
    accepted = await check_totals(ctx.step("check"), parts, layouts=layouts, bits=bits)
    mine, next_ = np.zeros(layout.cells, Z64.dtype), np.zeros(layout.cells, Z64.dtype)
    for index in np.flatnonzero(accepted):
        positions = layout.positions(layouts[index].cliques)
        mine[positions] += parts[index].mine
        next_[positions] += parts[index].next
    return ctx.share(mine, next_), accepted


@dataclass(frozen=True, slots=True, eq=False)
class ColumnsInput:
    """One-hot columns of some attributes, in domain order, for the aligned rows of the joined table."""

    holder: str
    attributes: tuple[str, ...]
    columns: AShare


class _Width(NamedTuple):
    """What the words of columns mean: the ring they were shared in, and the one they are counted in."""

    shared: Ring
    counted: Ring


_WIDTHS = {Z16: _Width(Z16, Z16), Z32: _Width(Z24, Z22)}
"""By the ring that servers compute in."""


@protocol("squares as in Prio (2017), combined as by Freivalds 1977", rep3=Cost(rounds=4, sent=_CHECK_SENT))
async def check_one_hot(ctx: Context, contributions: Sequence[AShare], *, blocks: Sequence[Sequence[int]]) -> Flags:
    """Which contributions consist of one-hot or zero blocks; `blocks` gives the sizes of each one's blocks, in order.

    An entry x must satisfy x(x-1) = 0, and so must the sum over each block of a row, in the ring Z_2^s that columns
    were shared in, s = 16 or 24. This is enough: x(x-1) = 0 only for 0 and 1, since of two consecutive numbers one is
    odd and the other must be 0; entries of 0 and 1 in at most 65,535 columns have a sum that does not wrap; and what is
    0 or 1 modulo 2^24 is so modulo 2^22. Let V have one row per row of the table and in it x(x-1) of all entries and
    block sums. Opened is R V C modulo 2^s, with 48 rows of public random bits R and 48 columns C, tossed after the
    contributions were fixed. If some column v of V is not zero then r v is zero with probability at most 1/2 for each
    row r of R, for a non-zero entry of v is added or not; so R V is zero with probability at most 2^-48. If it is not
    zero then R V C is with probability at most 2^-48 again, by the same argument on its rows.

    Words of 32 bits hold elements of Z_2^24, and their high bits are of the shares, not of x. So they are shifted out
    before anything is sent: 2^8 R V C modulo 2^32 is R V C modulo 2^24.

    Squares are local in replicated sharing: x_i (x_i + 2 x_{i+1} - 1) is a summand of x^2 - x. Rows are combined first:
    their number is what costs time, and 48 combinations of them are all that is left to combine by columns.

    Pre-conditions: contributions are matrices in one ring.
    Leaks: which contributions are accepted; of those nothing else. Of a refused one, the power of two that divides
        each combination.
    """
    if not contributions or len(contributions) != len(blocks):
        raise ShareError(f"{len(contributions)} contributions do not go with blocks of {len(blocks)}")
    for share, sizes in zip(contributions, blocks, strict=True):
        ctx.own(share)
        _check_columns(share, sum(sizes), contributions[0].ring)
        if min(sizes) < 1 or max(sizes) > GROUP_ROWS:
            raise DomainError(f"a block has 1 to {GROUP_ROWS} columns")
    seed = (await toss(ctx.step("toss"))).tobytes()
    local = np.stack(
        [
            _one_hot_summand(share, sizes, seed, b"/%d" % number)
            for number, (share, sizes) in enumerate(zip(contributions, blocks, strict=True))
        ]
    )
    products = ctx.step("combinations")
    combinations_ = await reshare(products, local + products.zeros(local.shape, contributions[0].ring))
    return await _all_zero(ctx, combinations_.reshape(len(contributions), -1))


def _one_hot_summand(x: AShare, sizes: Sequence[int], seed: bytes, label: bytes) -> Words:
    """This party's summand of R V C, by row blocks: neither V nor the coins of rows are ever held whole."""
    rows, width = x.shape
    ends = np.cumsum([0, *sizes])
    buffers = np.empty((2, width + len(sizes), min(rows, BLOCK_ROWS)), x.ring.dtype)
    combined = np.zeros((width + len(sizes), COMBINATIONS), x.ring.dtype)

    def with_sums(part: Words, buffer: Words) -> Words:
        """Sums of blocks below the entries, transposed: numpy adds long columns faster than short rows."""
        filled = buffer[:, : len(part)]
        filled[:width] = part.T
        for total, (start, stop) in zip(filled[width:], pairwise(ends), strict=True):
            np.add.reduce(filled[start:stop], axis=0, dtype=part.dtype, out=total)
        return filled

    for start in range(0, rows, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        mine, excess = with_sums(x.mine[block], buffers[0]), with_sums(x.next[block], buffers[1])
        excess <<= 1
        excess += mine
        excess -= 1
        excess *= mine
        combined += subset_sums(excess, _coins(seed, b"%b/rows/%d" % (label, start), excess.shape[1]))
    column_coins = _coins(seed, label + b"/columns", len(combined)).astype(x.ring.dtype)
    product = matmul_mod(combined.T, column_coins)
    product <<= _WIDTHS[x.ring].shared.spare
    return product


@protocol(
    "CaPS App. B, common data: pi_JOIN with a fixed precedence",
    rep3=Cost(rounds=log2(size.most_holders), sent=size.rows * size.lower_columns * size.word_bits // 8),
)
async def coalesce(ctx: Context, stacks: Sequence[Sequence[AShare]]) -> tuple[AShare, ...]:
    """For each attribute, the block of the first holder that has a value in a row; zeros if none has.

    `stacks[a]` holds the blocks of attribute a in order of precedence. Two are merged as
    first + (1 - presence) * second, the presence being the sum of a row of the first. That is associative, so any
    number of holders is merged in a tree, all attributes in one message; lower columns are those
    of all blocks but the first.

    Deviation: the paper joins common data without saying whose value counts when holders differ.

    Pre-conditions: blocks are one-hot or zero, of the same aligned rows, in one ring.
    Leaks: nothing.
    """
    waiting = [list(stack) for stack in stacks]
    for stack in waiting:
        if not stack:
            raise ShareError("an attribute without a block cannot be merged")
        ctx.own(*stack)
        for block in stack:
            _check_columns(block, stack[0].shape[-1], waiting[0][0].ring)
            if block.shape != waiting[0][0].shape[:1] + stack[0].shape[1:]:
                raise ShareError(f"{block!r} and {waiting[0][0]!r} are not of the same rows")
    level = 0
    while any(len(stack) > 1 for stack in waiting):
        pairs = [(stack[i], stack[i + 1]) for stack in waiting for i in range(0, len(stack) - 1, 2)]
        widths = [second.shape[1] for _, second in pairs]
        absent = concatenate([(1 - first.sum(axis=1)).reshape(-1, 1) for first, _ in pairs], axis=1)
        seconds = concatenate([second for _, second in pairs], axis=1)
        spread = np.repeat(np.arange(len(pairs)), widths)
        filled = await multiply(ctx.step(level), absent[:, spread], seconds)
        ends = np.cumsum(widths)
        merged = iter(
            first + filled[:, end - width : end] for (first, _), width, end in zip(pairs, widths, ends, strict=True)
        )
        waiting = [
            [*(next(merged) for _ in range(len(stack) // 2)), *stack[len(stack) - len(stack) % 2 :]]
            for stack in waiting
        ]
        level += 1
    return tuple(stack[0] for stack in waiting)


def _check_columns(share: AShare, width: int, ring: Ring) -> None:
    if ring not in _WIDTHS or share.ring != ring:
        raise ShareError(f"{share!r} is not in Z_2^16 or words of 32 bits, as all columns of a table are")
    if len(share.shape) != 2 or share.shape[1] != width or not share.shape[0]:
        raise ShareError(f"{share!r} is not a matrix of {width} columns with at least one row")


class _Cross(NamedTuple):
    """A product of two column ranges of the pool, and the cells taken from it."""

    left: slice
    right: Indices
    cells: tuple[Indices, Indices]


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How the cells of a layout come out of one-hot columns. Public: it depends on the layout alone.

    The pool starts as the one-hot columns; each level appends products of its columns. Cells of one attribute are sums
    of columns; of two, entries of the Gram matrix of the `paired` columns; of more, products of two parts of the pool.
    """

    width: int
    levels: tuple[tuple[Indices, Indices], ...]
    singles: Indices
    paired: Indices
    pairs: tuple[Indices, Indices]
    crosses: tuple[_Cross, ...]
    order: Indices

    @property
    def products(self) -> int:
        """Product columns: how many elements a row costs."""
        return sum(len(left) for left, _ in self.levels)

    @property
    def cells(self) -> int:
        """Cells that are products of matrices."""
        return len(self.pairs[0]) + sum(len(cross.cells[0]) for cross in self.crosses)


@lru_cache(maxsize=64)
def recipe_of(layout: Layout) -> Recipe:
    """The recipe for a layout, with as few product columns as a greedy choice finds."""
    domain = layout.domain
    parts = [tuple(domain.position(name) for name in clique) for clique in layout.cliques]
    if max(map(len, parts)) > MAX_DEGREE:
        raise DomainError(f"marginals of more than {MAX_DEGREE} attributes are not counted")
    built, splits = _choose_products(domain, [part for part in parts if len(part) > 2])

    start: dict[Part, int] = {(position,): offset for position, offset in enumerate(domain.offsets)}
    levels = []
    end = domain.width
    for level in range(1, 1 + max((level for level, _, _ in built.values()), default=0)):
        lefts, rights = [], []
        for part, (own, left, right) in built.items():
            if own == level:
                start[part] = end
                codes = _codes(domain, part)
                lefts.append(start[left] + _number(domain, left, codes))
                rights.append(start[right] + _number(domain, right, codes))
                end += len(lefts[-1])
        levels.append((np.concatenate(lefts), np.concatenate(rights)))

    where = dict(zip(parts, layout.offsets, strict=True))
    sought: list[Indices] = []  # positions in the layout, in the order in which cells are made

    def seek(part: Part) -> dict[int, Indices]:
        codes = _codes(domain, part)
        sought.append(where[part] + _number(domain, part, codes))
        return codes

    singles = [domain.offsets[part[0]] + seek(part)[part[0]] for part in parts if len(part) == 1]
    twos = [part for part in parts if len(part) == 2]
    used = sorted({position for part in twos for position in part})
    paired = _joined([domain.offsets[position] + np.arange(domain.sizes[position]) for position in used])
    in_paired = dict(zip(used, np.cumsum([0, *(domain.sizes[position] for position in used)]), strict=False))
    rows, columns = [], []
    for part in twos:
        codes = seek(part)
        rows.append(in_paired[part[0]] + codes[part[0]])
        columns.append(in_paired[part[1]] + codes[part[1]])

    crosses = []
    for left in sorted({left for left, _ in splits.values()}):
        partners = sorted({right for one, right in splits.values() if one == left})
        widths = [_cells(domain, right) for right in partners]
        base = dict(zip(partners, np.cumsum([0, *widths]), strict=False))
        cells = []
        for part, (one, right) in splits.items():
            if one == left:
                codes = seek(part)
                cells.append((_number(domain, left, codes), base[right] + _number(domain, right, codes)))
        crosses.append(
            _Cross(
                slice(start[left], start[left] + _cells(domain, left)),
                np.concatenate(
                    [start[right] + np.arange(width) for right, width in zip(partners, widths, strict=True)]
                ),
                (np.concatenate([row for row, _ in cells]), np.concatenate([column for _, column in cells])),
            )
        )
    order = np.empty(layout.cells, np.intp)
    order[_joined(sought)] = np.arange(layout.cells)
    pairs = (_joined(rows), _joined(columns))
    return Recipe(domain.width, tuple(levels), _joined(singles), paired, pairs, tuple(crosses), order)


class _Market:
    """Which parts to multiply: each is priced at its columns, divided among the cliques that could use it."""

    def __init__(self, domain: Domain, cliques: Sequence[Part]) -> None:
        self._domain = domain
        self._wanted = Counter(part for clique in cliques for part in _proper_parts(clique))
        self._prices: dict[Part, float] = {}
        self._splits: dict[Part, list[tuple[Part, Part]]] = {}
        self.built: dict[Part, tuple[int, Part, Part]] = {}

    def price(self, part: Part) -> float:
        """What it takes to have the part among the columns."""
        if len(part) == 1 or part in self.built:
            return 0.0
        if part not in self._prices:
            own = _cells(self._domain, part) / max(self._wanted[part], 1)
            self._prices[part] = self.cheapest(part)[0] + own
        return self._prices[part]

    def cheapest(self, part: Part) -> tuple[float, tuple[Part, Part]]:
        """The price of two parts that make up this one, and the two."""
        if part not in self._splits:
            self._splits[part] = list(_splits(self._domain, part))
        return min((self.price(one) + self.price(other), (one, other)) for one, other in self._splits[part])

    def build(self, part: Part) -> int:
        """Take the part into the columns; the level it is made at."""
        if len(part) == 1:
            return 0
        if part not in self.built:
            _, (one, other) = self.cheapest(part)
            self.built[part] = (1 + max(self.build(one), self.build(other)), one, other)
        return self.built[part][0]

    def served(self, cliques: Sequence[Part]) -> None:
        """Set all prices anew: these cliques want nothing any more."""
        self._wanted.subtract(part for clique in cliques for part in _proper_parts(clique))
        self._prices.clear()


def _choose_products(
    domain: Domain, cliques: Sequence[Part]
) -> tuple[dict[Part, tuple[int, Part, Part]], dict[Part, tuple[Part, Part]]]:
    """Parts to be multiplied, as {part: (level, left, right)}, and the two parts each clique is counted from.

    Greedy: the clique that is cheapest to serve is served, with all others that are then free, and prices are set anew.
    Of the 36 pairs that all triples of nine attributes of one size could use, 16 are multiplied.
    """
    market = _Market(domain, cliques)
    splits: dict[Part, tuple[Part, Part]] = {}
    waiting = list(cliques)
    while waiting:
        _, parts = min(market.cheapest(clique) for clique in waiting)
        for part in parts:
            market.build(part)
        offers = {clique: market.cheapest(clique) for clique in waiting}
        free = {clique: split for clique, (cost, split) in offers.items() if cost == 0}
        market.served(list(free))
        splits |= free
        waiting = [clique for clique in waiting if clique not in free]
    return market.built, splits


def _proper_parts(clique: Part) -> Iterator[Part]:
    for count in range(2, len(clique)):
        yield from combinations(clique, count)


def _splits(domain: Domain, part: Part) -> Iterator[tuple[Part, Part]]:
    """All ways to cut a part in two, the one with more cells first."""
    first, *others = part
    for count in range(len(others)):
        for chosen in combinations(others, count):
            one = (first, *chosen)
            other = tuple(position for position in part if position not in one)
            yield (one, other) if _cells(domain, one) >= _cells(domain, other) else (other, one)


def _cells(domain: Domain, part: Part) -> int:
    return prod(domain.sizes[position] for position in part)


def _codes(domain: Domain, part: Part) -> dict[int, Indices]:
    """For each attribute of a part its code in every cell, row-major."""
    grid = np.indices([domain.sizes[position] for position in part]).reshape(len(part), -1)
    return dict(zip(part, grid, strict=True))


def _number(domain: Domain, part: Part, codes: Mapping[int, Indices]) -> Indices:
    """The number of the cell of `part` that the codes fall into."""
    numbers = np.zeros(len(next(iter(codes.values()))), np.intp)
    for position in part:
        numbers = numbers * domain.sizes[position] + codes[position]
    return numbers


def _joined(parts: Sequence[Indices]) -> Indices:
    return np.concatenate([np.zeros(0, np.intp), *parts])


def _row_slices(rows: int, columns: int) -> list[slice]:
    """Blocks of at most BLOCK_WORDS elements, but not of a few rows each."""
    step = max(BLOCK_ROWS, BLOCK_WORDS // columns)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


@formula
def group_bits(bits: int) -> int:
    """Bits of a group's count, of columns in words of so many."""
    return _WIDTHS[RINGS[bits]].counted.bits


def _group_rows(bits: int) -> int:
    """Rows that `count` counts together, of columns in words of so many bits."""
    return GROUP_ROWS if bits == Z16.bits else WIDE_GROUP_ROWS


@formula
def row_groups(rows: int, bits: int) -> int:
    """Groups of rows that `count` lifts separately."""
    return -(-rows // _group_rows(bits))


@formula
def row_blocks(rows: int, columns: int, bits: int) -> int:
    """Blocks of rows that `count` multiplies one after the other."""
    full, rest = divmod(rows, _group_rows(bits))
    return full * len(_row_slices(_group_rows(bits), columns)) + len(_row_slices(rest, columns))


_COUNT_ROUNDS = (
    size.levels * row_blocks(size.rows, size.pool_columns, size.word_bits)
    + smallest(size.product_cells, 1)
    + 4
    + log2(group_bits(size.word_bits))
)
_COUNT_SENT = (
    size.rows * size.product_columns + row_groups(size.rows, size.word_bits) * size.product_cells
) * size.word_bits // 8 + lifted_bytes(row_groups(size.rows, size.word_bits) * size.cells, group_bits(size.word_bits))


@protocol(
    "CaPS Protocols 2 and 11, as products of one-hot columns (docs/adr/0003)",
    rep3=Cost(rounds=_COUNT_ROUNDS, sent=_COUNT_SENT),
)
async def count(ctx: Context, *columns: AShare, layout: Layout) -> AShare:
    """[[all marginals]] of a layout over Z_2^64, from the one-hot columns of its whole domain, which may come in parts.

    Marginals of one attribute are sums of columns; of two, entries of the Gram matrix; of more, products of two sets of
    columns, at least one of which are products themselves. Only these last have rows to send: n q words, in blocks of
    rows. Everything else is summed at home, and only cells that the layout asks for are sent and lifted. Rows are
    counted in groups, so that no group's count wraps, and groups are added after lifting: in Z_2^16 they have 65,535
    rows; in words of 32 bits 4,194,303, for there counts are taken modulo 2^22, where a product in doubles is exact.

    Deviation: the paper compares every row with every cell. The counts are the same.

    Pre-conditions: blocks of every row are one-hot or zero (check_one_hot); at most 8 attributes to a marginal.
    Leaks: nothing.
    """
    ctx.own(*columns)
    for part in columns:
        _check_columns(part, part.shape[-1], columns[0].ring)
    if len({part.shape[0] for part in columns}) != 1 or sum(part.shape[1] for part in columns) != layout.domain.width:
        raise ShareError(f"{list(columns)!r} are not the {layout.domain.width} columns of the layout's domain")
    recipe = recipe_of(layout)
    ring, counted = columns[0].ring, _WIDTHS[columns[0].ring].counted
    step = _group_rows(ring.bits)
    sums, summands = [], []
    for start in range(0, columns[0].shape[0], step):
        group = [part[start : start + step] for part in columns]
        sums.append(concatenate([part.sum(axis=0) for part in group])[recipe.singles].reshape(1, -1))
        summands.append(await _product_summand(ctx.step(f"rows{start}"), group, recipe, counted))
    cells = concatenate(sums)
    if recipe.cells:
        products = ctx.step("products")
        local = np.stack(summands)
        cells = concatenate([cells, await reshare(products, local + products.zeros(local.shape, ring))], axis=1)
    return (await lift(ctx.step("lift"), cells[:, recipe.order], ring=Z64, modulo=counted)).sum(axis=0)


async def _product_summand(ctx: Context, parts: Sequence[AShare], recipe: Recipe, counted: Ring) -> Words:
    """This party's summand of the cells that are products of matrices, for one group of rows; unmasked.

    Columns are put side by side in blocks of rows, if at all: there is never a second copy of the whole table.
    """
    dtype = parts[0].ring.dtype
    made = []
    if len(recipe.paired):
        paired = _chosen(parts, recipe.paired)
        gram = gram_of_parts([(part.mine, part.next) for part in paired], modulo=counted)
        gram -= gram_of_parts([(part.next,) for part in paired], modulo=counted)
        made.append(gram[recipe.pairs])
    crossed = [np.zeros(len(cross.cells[0]), dtype) for cross in recipe.crosses]
    if recipe.levels:
        for number, rows in enumerate(_row_slices(parts[0].shape[0], recipe.width + recipe.products)):
            pool = parts[0][rows] if len(parts) == 1 else concatenate([part[rows] for part in parts], axis=1)
            for level, (left, right) in enumerate(recipe.levels):
                step = ctx.step(f"block{number}").step(level)
                pool = concatenate([pool, await multiply(step, pool[:, left], pool[:, right])], axis=1)
            for index, cross in enumerate(recipe.crosses):
                x, y = pool[:, cross.left], pool[:, cross.right]
                product = matmul_mod(x.mine.T, y.mine + y.next, modulo=counted)
                product += matmul_mod(x.next.T, y.mine, modulo=counted)
                crossed[index] += product[cross.cells]
    return np.concatenate([np.zeros(0, dtype), *made, *crossed])


def _chosen(parts: Sequence[AShare], columns: Indices) -> list[AShare]:
    """Some columns, ascending, of a table that comes in parts: as parts again, which copy nothing."""
    chosen, start = [], 0
    for part in parts:
        stop = start + part.shape[1]
        own = columns[(columns >= start) & (columns < stop)] - start
        runs = np.split(own, np.flatnonzero(np.diff(own) > 1) + 1) if len(own) else []
        chosen += [part[:, run[0] : run[-1] + 1] for run in runs]
        start = stop
    return chosen


def count_sizes(layout: Layout, rows: int, bits: int = Z16.bits) -> dict[Size, int]:
    """The sizes that the declared cost of `count` is a formula of, for columns in words of `bits`."""
    recipe = recipe_of(layout)
    return {
        size.rows: rows,
        size.word_bits: bits,
        size.cells: layout.cells,
        size.product_cells: recipe.cells,
        size.product_columns: recipe.products,
        size.pool_columns: recipe.width + recipe.products,
        size.levels: len(recipe.levels),
    }


class Answers(NamedTuple):
    """The marginals of a layout, and for each input whether it is part of them."""

    marginals: AShare
    accepted: Flags


_BOTH_ROUNDS = largest(
    smallest(size.marginal_inputs, 1) * ADD_ROUNDS,
    smallest(size.column_inputs, 1) * (4 + log2(size.most_holders) + _COUNT_ROUNDS),
)
_BOTH_SENT = smallest(size.marginal_inputs, 1) * ADD_SENT + smallest(size.column_inputs, 1) * (
    _CHECK_SENT + size.rows * size.lower_columns * size.word_bits // 8 + _COUNT_SENT
)


@protocol("CaPS Protocol 2, pi_COMP", rep3=Cost(rounds=_BOTH_ROUNDS, sent=_BOTH_SENT))
async def compute_answers(
    ctx: Context,
    inputs: Sequence[HorizontalInput | ColumnsInput],
    *,
    layout: Layout,
    counted: Sequence[Clique] | None = None,
    bits: int | None = None,
) -> Answers:
    """[[the marginals of the joint table]] in the order of `layout`, over Z_2^64, and which inputs were accepted.

    Each answer is the sum of what holders counted for its clique and of what is counted from the joined columns:

    - horizontal: every holder brings marginals of the whole layout; there are no columns;
    - vertical: holders bring columns of the same aligned rows; every clique is `counted` from them;
    - mixed: some rows are counted by their holders, others are spread over columns; answers are the sum of both;
    - the paper's vertical case, where a holder counts a clique that lies within its own columns: leave the clique out
      of `counted`, or its rows would count twice.

    By default `counted` is every clique whose attributes are all brought as columns. Where several holders bring an
    attribute as columns, the first in the order of `inputs` that has a value in a row decides. A refused input is left
    out: its rows count nowhere, or its attributes are missing unless another holder has them. The declared cost is that
    of a call in which nothing is refused. `bits` is how many a count of a holder's own has; by default, as many as keep
    every sum below 2^32.

    Pre-conditions: no row is brought twice for a clique; columns are aligned; servers compared their copies on receipt.
    Leaks: which inputs are accepted (see check_totals and check_one_hot).
    """
    horizontal = [i for i, one in enumerate(inputs) if isinstance(one, HorizontalInput)]
    vertical = [i for i, one in enumerate(inputs) if isinstance(one, ColumnsInput)]
    marginals = [one for one in inputs if isinstance(one, HorizontalInput)]
    columns = [one for one in inputs if isinstance(one, ColumnsInput)]
    brought = _check_brought(ctx, columns, layout)
    if counted is None:
        chosen = [clique for clique in layout.cliques if brought.issuperset(clique)]
    else:
        chosen = [layout.cliques[layout.index(clique)] for clique in counted]
    for clique in chosen:
        if not brought.issuperset(clique):
            raise DomainError(f"no holder brings columns of every attribute of {clique}")
    if columns and not chosen:
        raise DomainError("columns are brought, but no clique is to be counted from them")
    if marginals:
        layouts, _ = _check_marginals(ctx, marginals, layout)
        answered = {*chosen, *(clique for own in layouts for clique in own.cliques)}
    else:
        answered = set(chosen)
    if answered != set(layout.cliques):
        raise DomainError(f"nobody brings what {len(layout.cliques) - len(answered)} cliques of the layout need")

    accepted = np.zeros(len(inputs), np.bool_)
    branches = []
    if marginals:
        bits = bits or own_bits(marginals, columns[0].columns.shape[0] if columns else 0)
        branches.append(add_marginals(ctx.step("marginals"), marginals, layout=layout, bits=bits))
    if columns:
        branches.append(_count_joined(ctx.step("columns"), columns, layout, chosen))
    results = await together(*branches)
    for (_, flags), which in zip(results, [which for which in (horizontal, vertical) if which], strict=True):
        accepted[which] = flags
    total = results[0][0] if len(results) == 1 else results[0][0] + results[1][0]
    return Answers(total, accepted)


def _check_brought(ctx: Context, inputs: Sequence[ColumnsInput], layout: Layout) -> set[str]:
    """The attributes that come as columns. Raises before anything is sent if an input is not what it should be."""
    domain = layout.domain
    for one in inputs:
        ctx.own(one.columns)
        if domain.clique(one.attributes) != one.attributes:
            raise DomainError(f"attributes of {one.holder} must be in domain order")
        _check_columns(one.columns, domain.project(one.attributes).width, inputs[0].columns.ring)
        if one.columns.shape[0] != inputs[0].columns.shape[0]:
            raise ShareError(f"{one.holder} and {inputs[0].holder} bring different numbers of rows")
    return {name for one in inputs for name in one.attributes}


async def _count_joined(
    ctx: Context, inputs: Sequence[ColumnsInput], layout: Layout, cliques: Sequence[Clique]
) -> tuple[AShare, Flags]:
    """Check the columns, join them by precedence, and count `cliques`; the other cells of the layout are zero."""
    domain = layout.domain
    used = domain.project({name for clique in cliques for name in clique})
    wanted = Layout(used, tuple(cliques))
    recipe_of(wanted)  # refuses what cannot be counted before anything is sent
    accepted = await check_one_hot(
        ctx.step("check"),
        [one.columns for one in inputs],
        blocks=[domain.project(one.attributes).sizes for one in inputs],
    )
    valid = [one for one, flag in zip(inputs, accepted, strict=True) if flag]
    rows, ring = inputs[0].columns.shape[0], inputs[0].columns.ring
    stacks: list[list[AShare]] = []
    last: tuple[ColumnsInput, slice] | None = None
    for name, width in zip(used.names, used.sizes, strict=True):
        found = [(one, domain.project(one.attributes).columns(name)) for one in valid if name in one.attributes]
        if last is not None and len(found) == 1 and found[0][0] is last[0] and found[0][1].start == last[1].stop:
            # Neighbours that nobody else brings stay one block: narrow blocks are slow to put side by side.
            found = [(last[0], slice(last[1].start, found[0][1].stop))]
            stacks.pop()
        last = found[0] if len(found) == 1 else None
        stacks.append([one.columns[:, where] for one, where in found] or [_zeros(ctx, (rows, width), ring)])
    joined = await coalesce(ctx.step("join"), stacks)
    counts = await count(ctx.step("count"), *joined, layout=wanted)
    mine, next_ = np.zeros(layout.cells, Z64.dtype), np.zeros(layout.cells, Z64.dtype)
    positions = layout.positions(cliques)
    mine[positions], next_[positions] = counts.mine, counts.next
    return ctx.share(mine, next_), accepted


def _zeros(ctx: Context, shape: Shape, ring: Ring) -> AShare:
    return ctx.share(np.zeros(shape, ring.dtype), np.zeros(shape, ring.dtype))


def marginals_sizes(layouts: Sequence[Layout], bits: int) -> dict[Size, int]:
    """The sizes that the declared cost of `add_marginals` is a formula of: a layout for each contribution."""
    cells = sum(layout.cells for layout in layouts)
    return {
        size.marginal_inputs: len(layouts),
        size.marginal_cells: cells,
        size.count_bits: bits,
        size.combinations: combinations_of_totals(layouts, bits),
    }


NO_ANSWERS: Sizes = {
    size.rows: 0,
    size.word_bits: Z16.bits,
    size.cells: 0,
    size.product_cells: 0,
    size.product_columns: 0,
    size.pool_columns: 1,
    size.levels: 0,
    size.column_inputs: 0,
    size.lower_columns: 0,
    size.most_holders: 0,
    size.marginal_inputs: 0,
    size.marginal_cells: 0,
    size.count_bits: 16,
    size.combinations: 0,
}
"""The sizes of `compute_answers` if nobody brings anything: each way of contributing sets its own."""


def answers_sizes(
    inputs: Sequence[HorizontalInput | ColumnsInput],
    layout: Layout,
    counted: Sequence[Clique] | None = None,
    bits: int | None = None,
) -> dict[Size, int]:
    """The sizes that the declared cost of `compute_answers` is a formula of."""
    marginals = [one for one in inputs if isinstance(one, HorizontalInput)]
    columns = [one for one in inputs if isinstance(one, ColumnsInput)]
    sizes = dict(NO_ANSWERS)
    if marginals:
        bits = bits or own_bits(marginals, columns[0].columns.shape[0] if columns else 0)
        sizes |= marginals_sizes([one.layout(layout) for one in marginals], bits)
    if columns:
        brought = Counter(name for one in columns for name in one.attributes)
        cliques = [q for q in layout.cliques if all(name in brought for name in q)] if counted is None else counted
        used = layout.domain.project({name for clique in cliques for name in clique})
        sizes |= {
            size.column_inputs: len(columns),
            size.lower_columns: sum((brought[n] - 1) * width for n, width in zip(used.names, used.sizes, strict=True)),
            size.most_holders: max(brought[name] for name in used.names),
        }
        found = columns[0].columns
        sizes |= count_sizes(Layout(used, tuple(cliques)), found.shape[0], found.ring.bits)
    return sizes
