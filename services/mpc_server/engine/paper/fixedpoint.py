"""Functions of real numbers in fixed point: x is held as round(x * 2^frac) in Z_2^64 (see `fixed`).

All but the polynomial work alike. The bits of a number yield a reduced argument in [0, 1), whose highest bits name one
of a few hundred segments as a shared one-hot vector, and a quadratic in the remaining bits does the rest. Anything that
depends on the segment, or on the exponent of a number in floating point, is a public table against a one-hot vector:
an XOR of planes, which costs nothing. Cutting a number off is choosing planes, which also costs nothing, so the only
truncations left are those of products. One ulp is 2^-frac.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from caps.errors import DomainError, ShareError
from caps.shares.ring import Z64, Words
from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import (
    adder_ands,
    carry_ands,
    chosen,
    positions,
    tournament_rounds,
)
from services.mpc_server.engine.comparison import negative
from services.mpc_server.engine.context import Branch, Context, together
from services.mpc_server.engine.conversion import to_bits
from services.mpc_server.engine.cost import FIRST, Cost, formula, log2, plane
from services.mpc_server.engine.paper.comparison import LARGEST, argmax
from services.mpc_server.engine.paper.fixed import FRAC, encode_fixed
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare, Indices, concatenate, stack_planes
from services.mpc_server.engine.verbs import BitForm, bilinear_bits, conjunction, dot, from_bits, multiply, truncate

FRAC_RANGE = range(8, 25)
"""Fractional bits for which the errors below are proved and tested."""

LEADS = 62
"""Where the highest bit of a number may be, which is what `truncate` allows too."""

INDEX, TURN_INDEX, CELL, COARSE = 8, 9, 24, 13
"""Bits that name a segment (of a turn, for sine and cosine), a place in it, and a place precise enough to square."""

VALUE = 56
"""Fractional bits of a quadratic's value: a logarithm is below 2^6 in size, and `truncate` takes up to 2^62."""

WIDTHS, SCALES = (33, 26, 16), (32, VALUE - (CELL + 1), VALUE - 2 * (COARSE + 1))
"""Bits and fractional bits of the three coefficients; a slope times a place, or a bend times a square, has VALUE."""

MANTISSA = 30
"""Fractional bits of a mantissa that is to be multiplied: two of them, each below 2, fit in 62 bits."""

Powers: TypeAlias = tuple[AShare, AShare]
"""Two powers of two, one to multiply by before a number is rounded and one for after."""

LN2, TURN = Decimal("0.693147180559945309417232121458"), Decimal("6.283185307179586476925286766559")


@dataclass(frozen=True, slots=True)
class Table:
    """A function on [0, 1) as a quadratic per segment: coefficient i is offsets[i] + words[i, segment]."""

    offsets: tuple[int, ...]
    words: Words


def _table(function: Callable[[Decimal], Decimal], index: int) -> Table:
    """Interpolate in the Chebyshev nodes of each of 2^index segments; a place runs from -1/2 to 1/2.

    Decimal arithmetic is specified to the last digit, so all parties hold one table whatever their hardware.
    """
    with localcontext(prec=34):
        reach = Decimal(3).sqrt() / 4
        middles = [segment + Decimal("0.5") for segment in range(1 << index)]
        below, at, above = (
            [function((middle + place) / (1 << index)) for middle in middles] for place in (-reach, Decimal(0), reach)
        )
        slopes = [(c - a) / (2 * reach) for a, c in zip(below, above, strict=True)]
        bends = [(a - 2 * b + c) / (2 * reach**2) for a, b, c in zip(below, at, above, strict=True)]
        rows = [[round(c * 2**scale) for c in row] for row, scale in zip((at, slopes, bends), SCALES, strict=True)]
    offsets = tuple(min(row) for row in rows)
    words = [[c - offset for c in row] for row, offset in zip(rows, offsets, strict=True)]
    if any(max(row) >> width for row, width in zip(words, WIDTHS, strict=True)):
        raise DomainError("a coefficient is wider than WIDTHS allows")
    return Table(offsets, np.array(words, Z64.dtype))


def _sine_of_turn(turn: Decimal) -> Decimal:
    angle = TURN * (turn - (turn > Decimal("0.5")))
    term = total = angle
    for i in range(2, 50, 2):
        term *= -angle * angle / (i * (i + 1))
        total += term
    return total


def _root_with_parity(x: Decimal) -> Decimal:
    """sqrt(1 + t) on the lower half, where t = 2x, and sqrt(2 (1 + t)) on the upper, where t = 2x - 1."""
    return (1 + 2 * x if x < Decimal("0.5") else 4 * x).sqrt()


EXP2 = _table(lambda x: (x * LN2).exp(), INDEX)
LOG = _table(lambda x: (1 + x).ln(), INDEX)
ROOT = _table(_root_with_parity, INDEX)
INVERSE = _table(lambda x: 1 / (1 + x), INDEX)
SINE = _table(_sine_of_turn, TURN_INDEX)
COSINE = Table(SINE.offsets, np.roll(SINE.words, -(1 << TURN_INDEX) // 4, axis=1))
NORMALISE_ROUNDS = 4 + log2(size.ring_bits - 1) + log2(LEADS)
ASSEMBLE_ROUNDS = 3 + log2(INDEX) + 4 + log2(VALUE - MANTISSA) + 6 + log2(MANTISSA + 1)
TURN_ROUNDS = 2 + log2(size.ring_bits - 1) + 3 + log2(TURN_INDEX) + 4 + log2(VALUE - size.fraction_bits)


@formula
def truncate_bytes(n: int, bits: int, first: int) -> int:
    """Bytes of `truncate`."""
    return (2 + first) * 8 * n + ((1 + first) * (bits + 1) + carry_ands(bits)) * plane(n)


@formula
def words_bytes(n: int, width: int, first: int) -> int:
    """Bytes of `from_bits` into Z_2^64."""
    return 8 * n * (width if first else 1)


async def _round(ctx: Context, x: AShare, bits: int) -> AShare:
    """x / 2^bits, to the nearest integer. Rounds: those of `truncate`, 4 + log2(bits)."""
    return await truncate(ctx, x + (1 << (bits - 1)), bits=bits)


@protocol(
    "Catrina and Saxena 2010",
    rep3=Cost(
        rounds=5 + log2(size.fraction_bits),
        sent=size.elements * size.ring_bits // 8 + truncate_bytes(size.elements, size.fraction_bits, FIRST),
    ),
)
async def multiply_fixed(ctx: Context, x: AShare, y: AShare, *, frac: int = FRAC) -> AShare:
    """[[x * y]], rounded down.

    Error: below 1 ulp, and never upwards.

    Pre-conditions: |x * y| < 2^(62 - 2f).
    Leaks: nothing.
    """
    _accept(ctx, frac, x, y)
    return await truncate(ctx.step("round"), await multiply(ctx.step("product"), x, y), bits=frac)


@protocol(
    "Catrina and Saxena 2010",
    rep3=Cost(rounds=4 + log2(size.fraction_bits), sent=truncate_bytes(size.elements, size.fraction_bits, FIRST)),
)
async def scale_fixed(ctx: Context, x: AShare, *, factor: npt.ArrayLike, frac: int = FRAC) -> AShare:
    """[[x * factor]], rounded down, for a public real factor or an array of them in the shape of x.

    Error: below 1 ulp, plus |x| / 2 ulp because the factor is rounded to f fractional bits.

    Pre-conditions: |x * factor| < 2^(62 - 2f).
    Leaks: nothing.
    """
    _accept(ctx, frac, x)
    public = encode_fixed(factor, frac=frac)
    if public.shape not in ((), x.shape):
        raise ShareError(f"factors of shape {public.shape} do not fit {x!r}")
    return await truncate(ctx, x * public, bits=frac)


@protocol("y + c (x - y)", rep3=Cost(rounds=1, sent=size.elements * size.ring_bits // 8))
async def select(ctx: Context, condition: AShare, x: AShare, y: AShare) -> AShare:
    """[[x where condition is 1, y where it is 0]], exactly, in any ring.

    Pre-conditions: condition is 0 or 1 (unchecked, because it is secret); all three have one shape and one ring.
    Leaks: nothing.
    """
    if x.shape != y.shape:
        raise ShareError(f"{x!r} and {y!r} differ in shape")
    return y + await multiply(ctx, condition, x - y)


@formula
def polynomial_bytes(n: int, degree: int, frac: int, first: int) -> int:
    """Bytes of `polynomial`."""
    total, known = truncate_bytes(n, frac, first), 1
    while known < degree:
        fresh = n * min(known, degree - known)
        total += 8 * fresh + truncate_bytes(fresh, frac, first)
        known *= 2
    return total


@protocol(
    "CaPS App. A, polynomial expansion; powers by doubling",
    rep3=Cost(
        rounds=log2(size.degree) * (5 + log2(size.fraction_bits)) + 4 + log2(size.fraction_bits),
        sent=polynomial_bytes(size.elements, size.degree, size.fraction_bits, FIRST),
    ),
)
async def polynomial(ctx: Context, x: AShare, *, coefficients: Sequence[float], frac: int = FRAC) -> AShare:
    """[[c_0 + c_1 x + ... + c_d x^d]] for public coefficients, lowest first.

    Each level multiplies the highest power known by all, so that d powers take log2(d) levels; the weighted sum is
    local and truncated once.

    Error: below 1/2 + M^d ((d + 1)/2 + sum of (i - 1) |c_i|) ulp, where M = max(1, |x|): a power x^i is off by up to
    (i - 1) M^i, a coefficient by 1/2.

    Pre-conditions: |x|^i and every partial sum are below 2^(62 - 2f); d >= 1.
    Leaks: nothing.
    """
    _accept(ctx, frac, x)
    public = encode_fixed(np.asarray(coefficients, np.float64), frac=frac)
    if public.ndim != 1 or len(public) < 2:
        raise DomainError("a polynomial needs a list of at least two coefficients")
    degree = len(public) - 1
    powers = x[None]
    while len(powers) < degree:
        step = ctx.step(len(powers))
        known = powers[: degree - len(powers)]
        highest = powers[np.full(len(known), -1)]
        products = await multiply(step.step("product"), known, highest)
        powers = concatenate([powers, await _round(step.step("round"), products, frac)])
    weights = public[1:].reshape(-1, *[1] * len(x.shape))
    return await _round(ctx.step("round"), (powers * weights).sum(0) + (public[0] << np.uint64(frac)), frac)


@formula
def normalise_bytes(n: int, first: int) -> int:
    """Bytes of `normalise`, whose prefix is that of Kogge and Stone 1973."""
    prefix = sum(LEADS - (1 << level) for level in range(log2(LEADS)))
    return (2 * (64 * first + adder_ands(64)) + LEADS + prefix + INDEX + CELL) * plane(n)


@protocol(
    "bit decomposition, then leading bit by parallel prefix; Catrina and Saxena 2010, Norm",
    rep3=Cost(rounds=NORMALISE_ROUNDS, sent=normalise_bytes(size.elements, FIRST)),
)
async def normalise(ctx: Context, x: AShare) -> tuple[BShare, BShare, BShare]:
    """[[sign]], [[one-hot e]] of 62 bits and [[m]] of 32 bits, where |x| = 2^e (1 + m / 2^32) with m rounded down.

    Of x and -x the bits are found side by side, so a sign costs a round, not a comparison. The mantissa is the window
    of bits below the leading one: an inner product over Z_2 with the one-hot vector, and nothing to truncate.
    For x = 0 all bits are 0, the one-hot vector included.

    Pre-conditions: |x| < 2^62.
    Leaks: nothing.
    """
    _accept(ctx, FRAC, x)
    bits, opposite = await together(to_bits(ctx.step("bits"), x), to_bits(ctx.step("opposite"), -x))
    low, sign = slice(0, LEADS), bits.planes(slice(63, 64))
    change = await conjunction(ctx.step("sign"), (bits ^ opposite).planes(low), sign.planes(np.zeros(LEADS, np.intp)))
    size = bits.planes(low) ^ change
    clear = ~size  # plane j becomes 1 where no bit at j or above is set
    for level in range(log2(LEADS)):
        reach = 1 << level
        joined = await conjunction(ctx.step(level), clear.planes(slice(0, -reach)), clear.planes(slice(reach, None)))
        clear = stack_planes([joined, clear.planes(slice(-reach, None))])
    leads = stack_planes([clear.planes(slice(1, None)), ~(sign ^ sign)]) ^ clear
    return sign, leads, await window(ctx.step("window"), leads, size, offsets=range(-INDEX - CELL, 0))


@protocol("inner products over Z_2; Araki et al. 2016", rep3=Cost(rounds=1, sent=size.width * plane(size.elements)))
async def window(ctx: Context, flags: BShare, bits: BShare, *, offsets: range) -> BShare:
    """[[the w bits at e + offsets]] where flag e is the one that is set; bits beyond either end are 0.

    Pre-conditions: flags and bits have one shape; offsets are w consecutive numbers.
    Leaks: nothing.
    """
    ctx.own(flags, bits)
    if flags.shape != bits.shape or offsets.step != 1 or not offsets:
        raise ShareError(f"{flags!r} cannot move a window of {offsets} over {bits!r}")
    before, after = max(0, -offsets.start), max(0, offsets.stop - 1 + flags.width - bits.width)
    padded = bits.map(lambda planes: np.pad(planes, ((before, after), (0, 0))))

    # Plane (e, o) of the products is flag e AND bit e + offset o.
    width = len(offsets)
    flag_of, bit_of = np.indices((flags.width, width)).reshape(2, -1)
    bit_of += flag_of + offsets.start + before
    form = BitForm(
        left=lambda planes: planes[flag_of],
        right=lambda planes: planes[bit_of],
        summed=lambda planes: np.bitwise_xor.reduce(planes.reshape(-1, width, planes.shape[1]), axis=0),
    )
    return await bilinear_bits(ctx, flags, padded, form=form, shape=bits.shape)


async def _one_hot(ctx: Context, groups: list[BShare]) -> BShare:
    """The one-hot vector of a tuple, from those of its parts, lowest first: an outer product in log2(parts) rounds."""
    level = 0
    while len(groups) > 1:
        pairs = list(zip(groups[::2], groups[1::2], strict=False))
        products = await conjunction(
            ctx.step(level),
            stack_planes([low.planes(np.tile(np.arange(low.width), high.width)) for low, high in pairs]),
            stack_planes([high.planes(np.repeat(np.arange(high.width), low.width)) for low, high in pairs]),
        )
        ends = np.cumsum([0, *(low.width * high.width for low, high in pairs)])
        joined = [products.planes(slice(*ends[i : i + 2])) for i in range(len(pairs))]
        groups = joined + groups[2 * len(pairs) :]
        level += 1
    return groups[0]


def one_hot_ands(bits: int, flags: int) -> int:
    """ANDs per element of `_one_hot` for a number of so many bits, and flags that must be set too."""
    widths, total = [2] * bits + [1] * flags, 0
    while len(widths) > 1:
        joined = [low * high for low, high in zip(widths[::2], widths[1::2], strict=False)]
        total += sum(joined)
        widths = joined + widths[2 * len(joined) :]
    return total


def _each_bit(bits: BShare) -> list[BShare]:
    """Every bit as a one-hot vector of two."""
    planes = (bits.planes(slice(i, i + 1)) for i in range(bits.width))
    return [stack_planes([~one, one]) for one in planes]


def _chosen(one_hot: BShare, words: Words, width: int) -> BShare:
    """The public word, of `width` bits, that the shared one-hot vector points at; 0 if it points nowhere. Local."""
    bits = words >> np.arange(width, dtype=np.uint64)[:, None] & np.uint64(1)
    return chosen(one_hot, positions(bits.astype(np.uint8)))


async def _quadratic(ctx: Context, argument: BShare, tables: Sequence[Table], index: int) -> AShare:
    """Functions of one argument of index + CELL bits in [0, 1), stacked, with VALUE fractional bits.

    A place is known to half a cell: as an odd number of half cells, counted from the middle of the segment.

    Rounds: log2(index) + 3. Error: below 2^-28, half of it from interpolation (the third derivative, here at most 6,
    over 24 * 8^(index + 1)), the rest from the coarse square and rounded coefficients. For sines likewise 2^-25.9.
    """

    async def places(ctx: Context) -> tuple[AShare, AShare]:
        split = CELL - COARSE
        fine, high = await together(
            from_bits(ctx.step("fine"), argument.planes(slice(0, split)), ring=Z64),
            from_bits(ctx.step("high"), argument.planes(slice(split, CELL)), ring=Z64),
        )
        coarse = high * 2 + (1 - (1 << COARSE))
        square = await multiply(ctx.step("square"), coarse, coarse)
        return (high * (1 << split) + fine) * 2 + (1 - (1 << CELL)), square

    async def coefficient(ctx: Context, segment: BShare, table: Table, i: int) -> AShare:
        return await from_bits(ctx, _chosen(segment, table.words[i], WIDTHS[i]), ring=Z64) + table.offsets[i]

    async def coefficients(ctx: Context) -> list[AShare]:
        segment = await _one_hot(ctx.step("segment"), _each_bit(argument.planes(slice(CELL, CELL + index))))
        parts = [(i, t) for i in range(3) for t in range(len(tables))]
        return await together(*(coefficient(ctx.step(f"{i}.{t}"), segment, tables[t], i) for i, t in parts))

    (linear, square), found = await together(places(ctx.step("places")), coefficients(ctx.step("coefficients")))
    constants, slopes, bends = (
        concatenate([share[None] for share in found[i : i + len(tables)]]) for i in range(0, len(found), len(tables))
    )
    weights = concatenate([slopes[..., None], bends[..., None]], -1)
    variables = concatenate([linear[..., None], square[..., None]], -1)[None][np.zeros(len(tables), np.intp)]
    return constants * (1 << (VALUE - SCALES[0])) + await dot(ctx.step("sum"), weights, variables)


@formula
def quadratic_bytes(n: int, tables: int, index: int, first: int) -> int:
    """Bytes of `_quadratic`."""
    widths = (CELL - COARSE, COARSE, *WIDTHS * tables)
    return one_hot_ands(index, 0) * plane(n) + sum(words_bytes(n, w, first) for w in widths) + 8 * n * (1 + tables)


async def _mantissa(ctx: Context, argument: BShare, table: Table) -> AShare:
    """One function of the argument, rounded to MANTISSA fractional bits. Rounds: log2(INDEX) + 7 + log2(26)."""
    value = await _quadratic(ctx.step("value"), argument, [table], INDEX)
    return await _round(ctx.step("round"), value[0], VALUE - MANTISSA)


async def _powers(ctx: Context, one_hot: BShare, exponents: Indices, sign: BShare | None = None) -> Powers:
    """2^min(e, 30), negated where the sign is set, and 2^max(e - 30, 0), for the e of `exponents` pointed at.

    Where e < 0, or nothing is pointed at, the first is 0. Rounds: 2, or 3 with a sign.
    """
    lower = np.where(exponents < 0, 0, 1 << exponents.clip(0, MANTISSA)).astype(Z64.dtype)
    upper = (1 << (exponents - MANTISSA).clip(0)).astype(Z64.dtype)
    low, high = (_chosen(one_hot, words, width) for words, width in ((lower, MANTISSA + 1), (upper, MANTISSA + 2)))
    shares = [from_bits(ctx.step("low"), low, ring=Z64), from_bits(ctx.step("high"), high, ring=Z64)]
    if sign is None:
        in_low, in_high = await together(*shares)
        return in_low, in_high
    in_low, in_high, below = await together(*shares, from_bits(ctx.step("sign"), sign, ring=Z64))
    return await multiply(ctx.step("product"), in_low, 1 - below * 2), in_high


async def _assemble(ctx: Context, mantissa: Branch[AShare], powers: Branch[Powers]) -> AShare:
    """round(m * 2^(e - 1)) of a mantissa at most 2 and the powers of e, e <= 61, both still to be computed.

    Counting half units lets one truncation round to nearest. Rounds: those of the slower branch, and 6 + log2(31).
    """
    m, (low, high) = await together(mantissa, powers)
    product = await multiply(ctx.step("lower"), m, low)
    return await multiply(ctx.step("raise"), await _round(ctx.step("round"), product, MANTISSA + 1), high)


@formula
def assemble_bytes(n: int, signs: int, first: int) -> int:
    """Bytes of `_mantissa`, `_powers` and `_assemble`."""
    bits = VALUE - MANTISSA
    powers = words_bytes(n, MANTISSA + 1, first) + words_bytes(n, MANTISSA + 2, first) + signs * 16 * n
    truncations = truncate_bytes(n, bits, first) + truncate_bytes(n, MANTISSA + 1, first)
    return quadratic_bytes(n, 1, INDEX, first) + powers + truncations + 16 * n


@formula
def exponential_bytes(n: int, first: int) -> int:
    """Bytes of `exponential`."""
    bits = 64 * first + adder_ands(64)
    low = 63 + 64 * first + carry_ands(63)
    return (bits + low + one_hot_ands(6, 1)) * plane(n) + assemble_bytes(n, 0, first)


@protocol(
    "CaPS App. A, pi_EXP; base 2: exponent and table",
    rep3=Cost(rounds=2 + log2(size.ring_bits - 1) + ASSEMBLE_ROUNDS, sent=exponential_bytes(size.elements, FIRST)),
)
async def exponential(ctx: Context, x: AShare, *, frac: int = FRAC) -> AShare:
    """[[e^x]]; 0 where that is below half an ulp, however low x is.

    Deviation: the paper computes exponentials by way of its logarithm.

    Error: below 1/2 ulp, which is the final rounding, plus 2^-27 e^x: the table is within 2^-29, the mantissa 2^-30.

    Pre-conditions: e^x < 2^(61 - f), so x < 0.693 (61 - f); x >= -2^(62 - f).
    Leaks: nothing.
    """
    _accept(ctx, frac, x)
    return await _exponential(ctx, x, frac, frac)


async def _exponential(ctx: Context, x: AShare, frac: int, out: int) -> AShare:
    """e^x with `out` fractional bits. The exponent to base 2, counted from half a unit, must be in 0 .. 61."""
    places = 64 - 6
    factor = round(2 ** (places - frac) / Fraction(LN2))
    lowest = -(((out + 1) << places) // factor)
    bits, too_low = await together(
        to_bits(ctx.step("bits"), x * factor + ((out + 1) << places)), negative(ctx.step("low"), x - lowest)
    )

    async def powers(ctx: Context) -> Powers:
        one_hot = await _one_hot(ctx.step("exponent"), [*_each_bit(bits.planes(slice(places, 64))), ~too_low])
        return await _powers(ctx.step("powers"), one_hot, np.arange(64))

    fraction = bits.planes(slice(places - INDEX - CELL, places))
    return await _assemble(ctx, _mantissa(ctx.step("mantissa"), fraction, EXP2), powers(ctx.step("scale")))


@protocol(
    "CaPS App. A, pi_LN; exponent and table",
    rep3=Cost(
        rounds=NORMALISE_ROUNDS + 3 + log2(8) + 4 + log2(56 - size.fraction_bits),
        sent=normalise_bytes(size.elements, FIRST)
        + quadratic_bytes(size.elements, 1, 8, FIRST)
        + words_bytes(size.elements, 6, FIRST)
        + truncate_bytes(size.elements, 56 - size.fraction_bits, FIRST),
    ),
)
async def logarithm(ctx: Context, x: AShare, *, frac: int = FRAC) -> AShare:
    """[[ln x]], with ln 2^-f for x = 0.

    Error: below 1/2 ulp, which is the final rounding, plus 2^-28, which is the table.

    Pre-conditions: 0 <= x < 2^(62 - f).
    Leaks: nothing.
    """
    _accept(ctx, frac, x)
    _, leads, argument = await normalise(ctx.step("normalise"), x)
    exponent_bits = _chosen(leads, np.arange(LEADS, dtype=Z64.dtype), 6)
    value, exponent = await together(
        _quadratic(ctx.step("value"), argument, [LOG], INDEX), from_bits(ctx.step("exponent"), exponent_bits, ring=Z64)
    )
    total = value[0] + (exponent - frac) * round(2**VALUE * Fraction(LN2))
    return await _round(ctx.step("round"), total, VALUE - frac)


@protocol(
    "CaPS App. A, pi_SQRT; exponent, its parity, and table",
    rep3=Cost(
        rounds=NORMALISE_ROUNDS + ASSEMBLE_ROUNDS,
        sent=normalise_bytes(size.elements, FIRST) + assemble_bytes(size.elements, 0, FIRST),
    ),
)
async def square_root(ctx: Context, x: AShare, *, frac: int = FRAC) -> AShare:
    """[[the square root of x]], exactly 0 for 0.

    Error: below 1/2 ulp plus 2^-27 sqrt(x), as in exponential.

    Pre-conditions: 0 <= x < 2^(62 - f).
    Leaks: nothing.
    """
    _accept(ctx, frac, x)
    _, leads, mantissa = await normalise(ctx.step("normalise"), x)
    doubled = np.arange(LEADS) + frac
    parity = _chosen(leads, (doubled % 2).astype(Z64.dtype), 1)
    argument = stack_planes([mantissa.planes(slice(1, None)), parity])
    return await _assemble(
        ctx,
        _mantissa(ctx.step("mantissa"), argument, ROOT),
        _powers(ctx.step("powers"), leads, doubled // 2 + 1),
    )


@protocol(
    "Catrina and Saxena 2010, by table instead of iteration",
    rep3=Cost(
        rounds=NORMALISE_ROUNDS + ASSEMBLE_ROUNDS,
        sent=normalise_bytes(size.elements, FIRST) + assemble_bytes(size.elements, 1, FIRST),
    ),
)
async def reciprocal(ctx: Context, x: AShare, *, frac: int = FRAC) -> AShare:
    """[[1 / x]], with the sign of x; 0 for x = 0.

    Error: below 1/2 ulp plus 2^-26 / |x|: as in exponential, but the mantissa is only above 1/2.

    Pre-conditions: |x| < 2^(62 - f).
    Leaks: nothing.
    """
    _accept(ctx, frac, x)
    return await _reciprocal(ctx, x, 2 * frac)


async def _reciprocal(ctx: Context, x: AShare, bits: int) -> AShare:
    """2^bits / x of an integer x; bits <= 60."""
    sign, leads, argument = await normalise(ctx.step("normalise"), x)
    return await _assemble(
        ctx,
        _mantissa(ctx.step("mantissa"), argument, INVERSE),
        _powers(ctx.step("powers"), leads, bits + 1 - np.arange(LEADS), sign),
    )


@protocol(
    "floating-point division of normalised numbers",
    rep3=Cost(
        rounds=NORMALISE_ROUNDS + ASSEMBLE_ROUNDS + 5 + log2(30),
        sent=2 * normalise_bytes(size.elements, FIRST)
        + 62 * plane(size.elements)
        + assemble_bytes(size.elements, 1, FIRST)
        + words_bytes(size.elements, 30, FIRST)
        + size.elements * size.ring_bits // 8
        + truncate_bytes(size.elements, 30, FIRST),
    ),
)
async def divide(ctx: Context, x: AShare, y: AShare, *, frac: int = FRAC) -> AShare:
    """[[x / y]], with its sign; 0 for y = 0.

    Both are normalised, so that the quotient is as precise for large numbers as for small ones, which x times the
    reciprocal of y would not be. The exponents are subtracted as one-hot vectors.

    Error: below 1/2 ulp plus 2^-26 |x / y|, as in reciprocal.

    Pre-conditions: |x|, |y| < 2^(62 - f) and |x / y| < 2^(60 - f).
    Leaks: nothing.
    """
    _accept(ctx, frac, x, y)
    (sign_x, leads_x, mantissa_x), (sign_y, leads_y, argument) = await together(
        normalise(ctx.step("x"), x), normalise(ctx.step("y"), y)
    )

    async def mantissa(ctx: Context) -> AShare:
        top = mantissa_x.planes(slice(-MANTISSA, None))
        inverse, fraction = await together(
            _mantissa(ctx.step("inverse"), argument, INVERSE), from_bits(ctx.step("fraction"), top, ring=Z64)
        )
        product = await multiply(ctx.step("product"), inverse, fraction + (1 << MANTISSA))
        return await truncate(ctx.step("round"), product, bits=MANTISSA)

    async def powers(ctx: Context) -> Powers:
        differences = range(-frac - 1, LEADS - frac - 1)
        one_hot = await window(ctx.step("exponent"), leads_y, leads_x, offsets=differences)
        return await _powers(ctx.step("powers"), one_hot, np.arange(LEADS), sign_x ^ sign_y)

    return await _assemble(ctx, mantissa(ctx.step("mantissa")), powers(ctx.step("scale")))


@formula
def turn_bytes(n: int, tables: int, frac: int, first: int) -> int:
    """Bytes of sines and cosines."""
    bits = (64 * first + adder_ands(64)) * plane(n)
    return bits + quadratic_bytes(n, tables, TURN_INDEX, first) + truncate_bytes(tables * n, VALUE - frac, first)


@protocol(
    "CaPS App. A, pi_SIN", rep3=Cost(rounds=TURN_ROUNDS, sent=turn_bytes(size.elements, 1, size.fraction_bits, FIRST))
)
async def sine(ctx: Context, x: AShare, *, frac: int = FRAC) -> AShare:
    """[[sin x]], x in radians.

    Error: below 1/2 ulp plus 2^-25.9 plus |x| 2^(f-62), the last because 1 / (2 pi) is rounded: below 1 ulp for
    |x| <= 1024.

    Pre-conditions: |x| < 2^(62 - f).
    Leaks: nothing.
    """
    return (await _turn(ctx, x, [SINE], frac))[0]


@protocol(
    "CaPS App. A, pi_COS", rep3=Cost(rounds=TURN_ROUNDS, sent=turn_bytes(size.elements, 1, size.fraction_bits, FIRST))
)
async def cosine(ctx: Context, x: AShare, *, frac: int = FRAC) -> AShare:
    """[[cos x]], x in radians.

    Error: as sine.

    Pre-conditions: as sine.
    Leaks: nothing.
    """
    return (await _turn(ctx, x, [COSINE], frac))[0]


@protocol(
    "CaPS App. A, pi_SIN and pi_COS",
    rep3=Cost(rounds=TURN_ROUNDS, sent=turn_bytes(size.elements, 2, size.fraction_bits, FIRST)),
)
async def sine_cosine(ctx: Context, x: AShare, *, frac: int = FRAC) -> tuple[AShare, AShare]:
    """[[sin x]] and [[cos x]], which share all but their coefficients.

    Error: as sine, each.

    Pre-conditions: as sine.
    Leaks: nothing.
    """
    both = await _turn(ctx, x, [SINE, COSINE], frac)
    return both[0], both[1]


async def _turn(ctx: Context, x: AShare, tables: Sequence[Table], frac: int) -> AShare:
    """Functions of an angle. Measured in turns with 64 fractional bits, it loses its whole turns by wrapping."""
    _accept(ctx, frac, x)
    turns = await to_bits(ctx.step("bits"), x * round(2 ** (64 - frac) / Fraction(TURN)))
    value = await _quadratic(ctx.step("value"), turns.planes(slice(-TURN_INDEX - CELL, None)), tables, TURN_INDEX)
    return await _round(ctx.step("round"), value, VALUE - frac)


@protocol(
    "CaPS App. A, pi_SOFTMAX",
    rep3=Cost(
        rounds=4
        + log2(size.ring_bits - 1)
        + tournament_rounds(size.elements, size.ring_bits)
        + 2
        + log2(size.ring_bits - 1)
        + ASSEMBLE_ROUNDS
        + NORMALISE_ROUNDS
        + ASSEMBLE_ROUNDS
        + 5
        + log2(60 - size.fraction_bits),
        sent=(FIRST * size.ring_bits + adder_ands(size.ring_bits)) * plane(size.elements)
        + LARGEST
        + words_bytes(1, size.ring_bits, FIRST)
        + words_bytes(1, log2(size.elements), FIRST)
        + exponential_bytes(size.elements, FIRST)
        + normalise_bytes(1, FIRST)
        + assemble_bytes(1, 1, FIRST)
        + size.elements * size.ring_bits // 8
        + truncate_bytes(size.elements, 60 - size.fraction_bits, FIRST),
    ),
)
async def softmax(ctx: Context, x: AShare, *, frac: int = FRAC) -> AShare:
    """[[e^x_i / sum of e^x_j]] of a vector x.

    The maximum is subtracted first, so that no exponential exceeds 1 and their sum is at least 1. Exponentials and the
    reciprocal of their sum have 30 fractional bits.

    Error: below 1/2 ulp plus 2^-30 plus (2^-25 + n 2^-31) times the entry; the entries sum to 1 within 0.51 n ulp plus
    2^-26. The term with n is the sum's: each exponential is rounded to 30 bits.

    Pre-conditions: |x_i| < 2^(61 - f); 1 <= n < 2^31.
    Leaks: nothing.
    """
    _accept(ctx, frac, x)
    if len(x.shape) != 1 or not x.size:
        raise ShareError(f"softmax needs a vector with at least one element, not {x!r}")
    largest, _ = await argmax(ctx.step("max"), x)
    powers = await _exponential(ctx.step("exponential"), x - largest, frac, MANTISSA)
    inverse = await _reciprocal(ctx.step("inverse"), powers.sum(), 2 * MANTISSA)
    shares = await multiply(ctx.step("product"), powers, inverse[None][np.zeros(len(x), np.intp)])
    return await _round(ctx.step("round"), shares, 2 * MANTISSA - frac)


def _accept(ctx: Context, frac: int, *shares: AShare) -> None:
    """Refuse, before anything is sent, what the protocols here are not defined on."""
    ctx.own(*shares)
    if frac not in FRAC_RANGE:
        raise DomainError(f"fixed point takes 8 to 24 fractional bits here, not {frac}")
    for share in shares:
        if share.ring != Z64 or share.shape != shares[0].shape:
            raise ShareError(f"fixed point needs one shape over {Z64!r}, not {shares[0]!r} and {share!r}")
