"""Products of matrices and sums of squares: what is sent is small, what is computed is large.

A narrow Gram matrix is computed by sender and backup of a term alike. A wide one is computed by its sender only. Its
backup gets the whole triangle, in the clear because it could compute it, and checks it by coins of its own: with R of
64 rows of coins and E the error, which is symmetric and not zero modulo 2^k, R E R^T is zero with probability below
2^-56. For let E be divided by the largest power of two that divides it, and be read modulo 2: the first row r of R with
r E != 0 is row p with probability at most 2^-(p-1), and then all later rows are orthogonal to r E with probability
2^-(64-p); with that no row has r E != 0, this is at most 64 * 2^-63 + 2^-64. So a backup needs of the matrix only its
64 combinations of columns, and their Gram matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from caps.basics.schemes import REP4
from caps.errors import CheatingDetected
from caps.shares.ring import Z8, Z32, Ring, Words, ring_of
from caps.shares.sharing import Algebra
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import Cost, formula
from services.mpc_server.engine.jobs import Mix, Quadratic
from services.mpc_server.engine.kernels import BLOCK_ROWS, gram_mod, matmul_mod, subset_sums
from services.mpc_server.engine.products import combinations, gram_mixes
from services.mpc_server.engine.rep4.joint import enter_terms
from services.mpc_server.engine.rep4.local import (
    JOINTS,
    LATTER,
    NAME,
    TERMS,
    Term,
    components_of,
    known_terms,
    product_terms,
)
from services.mpc_server.engine.shares import AShare, Indices
from services.mpc_server.engine.verbs import Coins

CHECK_ROWS = 64
"""Combinations by which a backup checks a wide Gram matrix."""
NARROW = 160
"""The most columns of a Gram matrix that its backup computes: beyond, it takes more products than the check does."""
_LINEAR = (0, 2)
"""Terms v_i + v_j that v^2 - v takes its -v from: together these two have each component once."""


@verbs.cross_cells.of(
    NAME,
    "CaPS Protocol 11, as a product of columns (docs/adr/0003)",
    Cost(rounds=1, sent=(1 + LATTER) * (size.elements * size.ring_bits // 8)),
)
async def cross_cells(ctx: Context, x: AShare, y: AShare, *, cells: tuple[Indices, Indices], modulo: Ring) -> AShare:
    """Like `multiply`, with products of matrices; only the entries that are wanted are sent."""
    ctx.own(x, y)

    def times(left: Words, right: Words) -> Words:
        return matmul_mod(left.T, right, modulo=modulo)[cells]

    return ctx.share(*await enter_terms(ctx, product_terms(x, y, times), cells[0].shape, x.ring, Algebra.ADD))


@formula
def shown_entries(columns: int) -> int:
    """Entries of a Gram matrix that a backup is shown."""
    return columns * (columns + 1) // 2 if columns > NARROW else 0


@verbs.gram_cells.of(
    NAME,
    "CaPS Protocol 2, as a product of one-hot columns (docs/adr/0003), checked as by Freivalds 1977",
    Cost(
        rounds=1,
        sent=(1 + LATTER) * ((size.elements + shown_entries(size.columns)) * size.ring_bits // 8),
    ),
)
async def gram_cells(
    ctx: Context, first: AShare, *others: AShare, cells: tuple[Indices, Indices], modulo: Ring
) -> AShare:
    """A term is Gram(x_i + x_j) or -Gram(x_i - x_j): its sender computes it, its backup too, or checks it."""
    parts = (first, *others)
    ctx.own(*parts)
    if sum(share.shape[1] for share in parts) > NARROW:
        return await _wide_gram_cells(ctx, parts, cells, modulo)
    known = dict(known_terms(ctx.party))
    terms = {number: known[number].signed(gram[cells]) for number, gram in _grams(ctx, parts, known, modulo).items()}
    return ctx.share(*await enter_terms(ctx, terms, cells[0].shape, first.ring, Algebra.ADD))


async def _wide_gram_cells(
    ctx: Context, parts: Sequence[AShare], cells: tuple[Indices, Indices], modulo: Ring
) -> AShare:
    """What goes to backups in the clear must not depend on a message that is not checked yet."""
    await ctx.guard.validate()
    columns, (left, right) = sum(share.shape[1] for share in parts), cells
    picked = left * (2 * columns - left - 1) // 2 + right
    upper = np.triu_indices(columns)
    sent = {number: term for number, term in known_terms(ctx.party) if term.joint.sender == ctx.party}
    triangles = {number: sent[number].signed(gram[upper]) for number, gram in _grams(ctx, parts, sent, modulo).items()}
    terms = {number: triangle[picked] for number, triangle in triangles.items()}

    async def check() -> None:
        for number, triangle in (await _checked(ctx.step("triangles"), parts, triangles, modulo)).items():
            terms[number] = triangle[picked]

    # Backups have what they vouch for when this round is over, and not before.
    _, components = await together(check(), enter_terms(ctx, terms, picked.shape, parts[0].ring, Algebra.ADD))
    return ctx.share(*components)


async def _checked(
    ctx: Context, parts: Sequence[AShare], computed: Mapping[int, Words], modulo: Ring
) -> dict[int, Words]:
    """The triangles of the terms that this party backs up, from their senders, if they are right."""
    columns, dtype = sum(share.shape[1] for share in parts), parts[0].ring.dtype
    backed = [number for number, joint in enumerate(JOINTS) if joint.backup == ctx.party]
    octets = columns * (columns + 1) // 2 * dtype.itemsize
    replies = await ctx.exchange(
        [(JOINTS[number].backup, triangle) for number, triangle in computed.items()],
        [(JOINTS[number].sender, octets) for number in backed],
    )
    found = {number: np.frombuffer(reply, dtype) for number, reply in zip(backed, replies, strict=True)}
    for number, triangle in found.items():
        if not _right(ctx.step(f"coins{number}"), parts, TERMS[number], triangle, modulo):
            raise CheatingDetected((JOINTS[number].sender, ctx.party))
    return found


def _rows_of(share: AShare, rows: slice) -> Callable[[int], Words]:
    held = components_of(share)
    return lambda number: np.asarray(held(number)[rows])


def _grams(ctx: Context, parts: Sequence[AShare], terms: Mapping[int, Term], modulo: Ring) -> dict[int, Words]:
    """The Gram matrices of the factors of some terms, not signed."""
    mixes = tuple(Mix(*_places(ctx.party, term), term.opposite) for term in terms.values())
    return dict(zip(terms, gram_mixes(ctx.workers, parts, mixes, modulo), strict=True))


def _places(party: int, term: Term) -> tuple[int, int]:
    """Where a party keeps the two components that a term is of."""
    held = REP4.held[party]
    return held.index(term.joint.other), held.index(term.joint.receiver)


def _right(ctx: Context, parts: Sequence[AShare], term: Term, triangle: Words, modulo: Ring) -> bool:
    """Whether a triangle that a sender claims is the term's, as far as random combinations of columns tell."""
    columns = sum(share.shape[1] for share in parts)
    coins = _coins(ctx, term.joint.sender, columns)
    whole = np.zeros((columns, columns), triangle.dtype)
    upper = np.triu_indices(columns)
    whole[upper] = whole.T[upper] = triangle
    chosen = coins.astype(triangle.dtype)
    claimed = matmul_mod(matmul_mod(chosen.T, whole, modulo=modulo), chosen, modulo=modulo)
    found = term.signed(_combined_gram(parts, term, coins, modulo))
    return not modulo.reduce(claimed - found).any()


def _coins(ctx: Context, sender: int, columns: int) -> Coins:
    """Coins for each column that the sender does not know: it lacks the component that has its number."""
    octets = ctx.prss.component(sender, ctx.path + b"#coins", (columns, CHECK_ROWS // 8), Z8)
    return np.unpackbits(octets, axis=1)


def _combined_gram(parts: Sequence[AShare], term: Term, coins: Coins, modulo: Ring) -> Words:
    """Gram(x C) modulo 2^k for x = x_i + x_j or x_i - x_j and a matrix C of coins, in blocks of rows."""
    total: Words | None = None
    for start in range(0, len(parts[0]), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        block = np.concatenate([term.factor(_rows_of(share, rows)) for share in parts], axis=1)
        part = gram_mod(_combined(block, coins), modulo=modulo)
        total = part if total is None else total + part
    assert total is not None
    return total


def _combined(block: Words, coins: Coins) -> Words:
    if ring_of(block).bits > Z32.bits:
        return matmul_mod(block, coins.astype(block.dtype))
    return subset_sums(block, coins)


@verbs.bit_deviations.of(
    NAME,
    "squares as in Prio (2017), combined as by Freivalds 1977",
    Cost(rounds=1, sent=(1 + LATTER) * (size.elements * size.ring_bits // 8)),
)
async def bit_deviations(
    ctx: Context,
    x: AShare,
    *,
    spread: Callable[[Words, Words], Words],
    columns: int,
    row_coins: Callable[[int, int], Coins],
    column_coins: Coins,
    modulo: Ring,
) -> AShare:
    """Squares are products, so the combinations of each term are entered; sender and backup both compute them."""
    ctx.own(x)
    known = dict(known_terms(ctx.party))
    found = combinations(
        ctx.workers,
        x,
        tuple(_square(ctx.party, number, term) for number, term in known.items()),
        spread=spread,
        columns=columns,
        row_coins=row_coins,
        column_coins=column_coins,
    )
    shift = x.ring.dtype.type(modulo.spare)
    terms = {
        number: term.signed(combined) << shift for (number, term), combined in zip(known.items(), found, strict=True)
    }
    shape = (column_coins.shape[1],) * 2
    return ctx.share(*await enter_terms(ctx, terms, shape, x.ring, Algebra.ADD))


def _square(party: int, number: int, term: Term) -> Quadratic:
    """The square of a term's factor; less the factor itself, where that is added."""
    first, second = _places(party, term)
    weights = [0] * len(REP4.held[party])
    weights[first], weights[second] = 1, -1 if term.opposite else 1
    factor = tuple(weights)
    return Quadratic(factor, factor, -1 if number in _LINEAR else 0)
