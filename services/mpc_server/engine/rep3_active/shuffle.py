"""A shuffle of rows by a permutation that no party knows, with a tag for every row by which a change is found.

Rows are moved as in `engine.rep3`, where a party could send other rows than it received. So each row w of 8 r bits is
given a tag t = M w of 64 bits first, where M is a random matrix over Z_2 that is shared and that nobody knows; rows and
tags are moved together; and then M is opened, and M w = t is checked for all rows on shares.

*What is found.* Whatever one party does wrong, in the tags or in the move, adds an error to the shared rows and tags
that it knows beforehand: it multiplies, masks and permutes only its own components, and the others do the same to
theirs. So it sends what it should, XOR something that follows from what it knows. M is uniformly random given that: the
party lacks a component of it, and all it receives before M is opened is masked. If the errors of some row and its tag
are d and s, not both 0, the check of this row passes only if M d = s, which has probability 2^-64 for d != 0, and 0 for
d = 0. M is opened when nobody waits for a message of the move any more: S1 and S2 have each other's last message then,
and S3, which would not have to wait, is told so by both, with digests that it compares.

*What is told.* With v = M w ^ t in components v_0, v_1, v_2, which add up to zero, party i tells the others a digest of
v_i ^ v_{i+1}; both know the third component, and compare. So in an honest run they learn nothing. If errors were added,
digests are those of components that the cheating party knows, XOR errors that it knows, in an order that it may not
know: whether the check fails, and all that is told, depends on errors, M and permutations, never on rows. The digests
that S3 is told are keyed by what S1 and S2 have in common, for S3 could otherwise try out rows.
"""

from __future__ import annotations

import numpy as np

from caps.errors import CheatingDetected
from caps.shares.ring import PLANE, Z8, Z64, Words, pack_bits
from services.mpc_server.engine import size, verbs
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost, OfParty
from services.mpc_server.engine.rep3.local import DIGEST_BYTES, following, masks, previous
from services.mpc_server.engine.rep3.opening import digest_of
from services.mpc_server.engine.rep3.shuffle import shuffle as moved
from services.mpc_server.engine.rep3_active.local import NAME
from services.mpc_server.engine.rep3_active.opening import others_differ
from services.mpc_server.engine.shares import BShare, RowShare

TAG_BYTES = 8
LAST = OfParty("last", lambda party: int(party == 2))
"""1 for S3 and 0 for the others."""
_BLOCK_ROWS = 1 << 13
"""Rows whose tags are made together, so that they stay in cache."""


@verbs.shuffle.of(
    NAME,
    "Araki et al. 2021, three-party shuffle, over Z_2; tags as in IPA's malicious shuffle, by a random matrix",
    Cost(
        rounds=6,
        sent=(1 + FIRST) * size.table_bytes
        + (2 + FIRST - LAST) * TAG_BYTES * size.rows
        + 8 * TAG_BYTES * size.row_bytes
        + (4 - LAST) * DIGEST_BYTES * size.tables,
    ),
)
async def shuffle(ctx: Context, rows: RowShare) -> RowShare:
    """One round for tags, two for the move, then it is sealed, M is opened, and digests are compared."""
    ctx.own(rows)
    # One long plane, so that its words are the columns of M.
    matrix = ctx.step("matrix").fresh_bits(1, (8 * TAG_BYTES * 8 * rows.shape[1],))
    tags = await _tags(ctx.step("tags"), rows, matrix)
    tagged = ctx.rows(
        *(
            np.concatenate([words, part[:, None].view(np.uint8)], axis=1)
            for words, part in zip(rows.components, tags, strict=True)
        )
    )
    result = await moved(ctx.step("move"), tagged)
    await _seal(ctx.step("seal"), result)
    opened = await verbs.reveal_bits(ctx.step("open"), matrix, ring=Z8)
    await _compare(ctx.step("compare"), result, pack_bits(opened))
    return result.part(slice(None), slice(0, rows.shape[1]))


async def _tags(ctx: Context, rows: RowShare, matrix: BShare) -> tuple[Words, Words]:
    """A party's components of M w, one word a row: bit products are summed before they are sent.

    S2 moves only what it receives then, so S3 need not send it component 2, for which it has zeros.
    """
    (mine, next_), (matrix_mine, matrix_next) = rows.components, matrix.components
    local = products(matrix_mine[0], mine ^ next_)
    local ^= products(matrix_next[0], mine)
    for mask in masks(ctx, local.shape, Z64):
        local ^= mask
    if ctx.party == 2:
        (theirs,) = await ctx.exchange([], [(0, local.nbytes)])
    elif ctx.party == 0:
        (theirs,) = await ctx.exchange([(2, local)], [(1, local.nbytes)])
    else:
        await ctx.exchange([(0, local)], [])
        return local, np.zeros_like(local)
    return local, np.frombuffer(theirs, PLANE)


def products(columns: Words, rows: Words) -> Words:
    """A matrix over Z_2 times each row, as words: `columns` has the matrix's column for each bit of a row.

    For each byte of a row, a table has what its values add.
    """
    tables = [_sums(part) for part in columns.reshape(-1, 8)]
    out = np.zeros(len(rows), PLANE)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        for table, values in zip(tables, np.ascontiguousarray(rows[block].T).astype(np.intp), strict=True):
            out[block] ^= table[values]
    return out


def _sums(columns: Words) -> Words:
    """The XOR of columns, for every set of them: the bits of its place."""
    table = np.zeros(1, PLANE)
    for column in columns:
        table = np.concatenate([table, table ^ column])
    return table


async def _seal(ctx: Context, moved_rows: RowShare) -> None:
    """S3 returns when both S1 and S2 have put component 1 together, and it is the same."""
    both = (0, 1)
    if ctx.party in both:
        key = ctx.prss.component(1, ctx.path + b"#key", (4,), Z64).tobytes()
        component = moved_rows.components[1 - ctx.party]
        await ctx.exchange([(2, np.frombuffer(digest_of(component, key), np.uint8))], [])
        return
    one, other = await ctx.exchange([], [(party, DIGEST_BYTES) for party in both])
    if bytes(one) != bytes(other):
        raise CheatingDetected(both)


async def _compare(ctx: Context, moved_rows: RowShare, columns: Words) -> None:
    """Return if M w = t for all rows."""
    mine, next_ = (
        products(columns, words[:, :-TAG_BYTES]) ^ np.ascontiguousarray(words[:, -TAG_BYTES:]).view(PLANE)[:, 0]
        for words in moved_rows.components
    )
    before, after = previous(ctx.party), following(ctx.party)
    told = np.frombuffer(digest_of(mine ^ next_), np.uint8)
    # The sum of the previous party's components is this party's second one, that of the next party's its first.
    expected = digest_of(next_), digest_of(mine)
    replies = await ctx.exchange([(before, told), (after, told)], [(before, DIGEST_BYTES), (after, DIGEST_BYTES)])
    if tuple(map(bytes, replies)) != expected:
        raise others_differ(ctx)
