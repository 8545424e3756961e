"""What a secret-sharing scheme must be able to do. Every other protocol is written on these, once for all schemes.

Linear functions of shares are local and need no verb (`engine.shares`). Here are the verbs that talk, and those that
are local but rest on which components a party holds. Each says what it returns; the scheme that implements it
(`engine.rep3`) says how it is done, what its source is and what it costs. The context or share that a verb is called
with decides which scheme is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from caps.shares.ring import Ring, Words
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.guard import guard
from services.mpc_server.engine.registry import Verb, opening, verb
from services.mpc_server.engine.shares import AShare, BShare, Indices, Linear, RowShare, Shape, Summands

Bilinear: TypeAlias = Callable[[Words, Words], Words]
"""A function of two arrays that is linear in each of them."""
Coins: TypeAlias = npt.NDArray[np.uint8]
"""Public zeros and ones."""


@dataclass(frozen=True, slots=True)
class BitForm:
    """A bilinear function of the planes of x and y over Z_2: `summed(left(x) & right(y))`, each of the three linear."""

    left: Linear
    right: Linear
    summed: Linear


@verb
async def bilinear_bits(ctx: Context, x: BShare, y: BShare, *, form: BitForm, shape: Shape) -> BShare:
    """[[a bilinear function of the bits of x and y]], as bits of elements of a shape.

    The form has `and_planes` ANDs of `and_elements` elements, and its result w planes of n elements. Where a sum of
    products can be sent as one bit, the ANDs cost nothing.

    Pre-conditions: what the form sums up are bit planes of this shape.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def gram_cells(
    ctx: Context, first: AShare, *others: AShare, cells: tuple[Indices, Indices], modulo: Ring
) -> AShare:
    """[[some entries of x^T x]] modulo 2^k of a matrix that comes in parts, side by side; higher bits mean nothing.

    The matrix is never copied as a whole: parts are put side by side in blocks of rows. columns: those of the matrix;
    n: the entries.

    Pre-conditions: parts have the same rows; modulo is a ring that their words hold; cells are in the upper triangle.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def cross_cells(ctx: Context, x: AShare, y: AShare, *, cells: tuple[Indices, Indices], modulo: Ring) -> AShare:
    """[[some entries of x^T y]] modulo 2^k of two matrices with the same rows; higher bits mean nothing.

    Pre-conditions: modulo is a ring that their words hold.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
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
    """[[R V C]] for V of v^2 - v, which is zero for bits, of each element v of what a matrix is spread to.

    spread: a linear function that writes some rows, as `columns` columns or less, transposed, to a buffer and returns
    what it wrote. row_coins: for the number of the first of some rows and their number, these rows of R^T. Results are
    modulo 2^k, shifted to the top of their words, so that nothing of the spare bits is in them.

    Pre-conditions: coins are public, were tossed after x was fixed, and are as many for rows as for columns.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def multiply(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[x * y]], elementwise, modulo 2^k.

    Pre-conditions: x and y have one shape and one ring.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def conjunction(ctx: Context, x: BShare, y: BShare) -> BShare:
    """[[x AND y]], bit by bit, of w-bit elements.

    Pre-conditions: x and y have one shape and one width.
    Leaks: nothing.
    """
    raise NotImplementedError


@opening
async def reveal(ctx: Context, x: AShare) -> Words:
    """x itself, at every party. A message that was changed on its way, here or in the product that made x, is noticed.

    Pre-conditions: x may be known to all parties: it is public, or it carries its differential-privacy noise.
    Leaks: x, to every party. That is its purpose.
    """
    raise NotImplementedError


@opening
async def reveal_bits(ctx: Context, x: BShare, *, ring: Ring) -> Words:
    """The w-bit elements of x as words of `ring`, at every party.

    Pre-conditions: x may be known to all parties, and w <= k.
    Leaks: x, to every party. That is its purpose.
    """
    raise NotImplementedError


@verb
async def addends(ctx: Context, x: AShare, *, width: int) -> tuple[BShare, BShare]:
    """[[the w lowest bits of a]] and of b, two numbers with x = a + b.

    Pre-conditions: 1 <= w <= k.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def alike(ctx: Context, x: AShare) -> tuple[BShare, BShare]:
    """[[the k bits of two numbers]] that are equal exactly where x = 0.

    Pre-conditions: none.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def from_bits(ctx: Context, x: BShare, *, ring: Ring) -> AShare:
    """[[x]] over Z_2^k from its w bits, read as an unsigned number.

    Pre-conditions: none; bits above k are lost, as they should be modulo 2^k.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def lift(ctx: Context, x: AShare, *, ring: Ring, modulo: Ring | None = None) -> AShare:
    """[[x]] over the larger ring Z_2^t from a sharing over Z_2^k, x read as unsigned.

    Z_2^k is the ring of the words, or `modulo`, a smaller one: then x is what their k low bits say.

    Pre-conditions: k < t.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def signed_sums(ctx: Context, sign: BShare, y: AShare, *, starts: Indices) -> AShare:
    """[[sum of (1 - 2 sign) y]] over the m segments of y that begin at `starts`; n counts the elements of y.

    Pre-conditions: y is a vector of n elements, sign one bit for each; starts increase from 0 and none is n.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def shuffle(ctx: Context, rows: RowShare) -> RowShare:
    """[[the n rows of r bytes in a random order]] that no party knows.

    Pre-conditions: the shape is public.
    Leaks: nothing.
    """
    raise NotImplementedError


VERBS = (guard, *(value for value in list(globals().values()) if isinstance(value, Verb)))
"""All of them: a scheme implements each."""


@verb
def products(x: AShare, y: AShare, *, times: Bilinear = np.multiply) -> Summands:
    """A bilinear function of x and y, by default their elementwise product, to be reshared. Local."""
    raise NotImplementedError


@verb
async def reshare(ctx: Context, summands: Summands) -> AShare:
    """[[the sums]] of products, masked afresh; n counts the sums, however many products each has.

    Pre-conditions: none.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def share_from(ctx: Context, values: Words | None, *, dealer: int, shape: Shape, ring: Ring) -> AShare:
    """[[values]], where `values` is known to party `dealer` (and is None elsewhere).

    The declared bytes are the dealer's; here the dealer is S1.

    Pre-conditions: shape and ring are public and equal at all parties.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def share_bits_from(ctx: Context, planes: Words | None, *, dealer: int, width: int, shape: Shape) -> BShare:
    """[[bits]] of w-bit elements whose planes are known to party `dealer` (None elsewhere).

    The declared bytes are the dealer's; here the dealer is S1.

    Pre-conditions: width and shape are public and equal at all parties.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def dot(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[sum over the last axis of x * y]], modulo 2^k; n counts the sums, however long they are.

    Pre-conditions: x and y have one shape and one ring.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def matmul(ctx: Context, x: AShare, y: AShare) -> AShare:
    """[[x @ y]] of matrices, modulo 2^k; only the r x c result crosses the network.

    Pre-conditions: x is r x m and y is m x c, in one ring.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def gram(ctx: Context, x: AShare) -> AShare:
    """[[x^T x]] of a matrix with w columns, modulo 2^k: for one-hot columns, every two-way marginal at once.

    Pre-conditions: x is a matrix. Counts are exact while they are below 2^k; `lift` then takes them to Z_2^64.
    Leaks: nothing.
    """
    raise NotImplementedError


@verb
async def truncate(ctx: Context, x: AShare, *, bits: int) -> AShare:
    """[[floor(x / 2^f)]], signed and exact.

    Pre-conditions: -2^(k-2) <= x < 2^(k-2), unchecked, for x is secret; 1 <= f <= k - 2.
    Leaks: nothing. A truncation with a random last bit would be cheaper, but that bit depends on x and on shares that
        one party knows (Li et al. 2023), so its result could not be opened safely.
    """
    raise NotImplementedError


COMPARED = tuple(value for value in list(globals().values()) if isinstance(value, Verb) and value not in VERBS)
"""What only `engine.paper` uses, for comparison: schemes that a study can choose need not implement these."""
