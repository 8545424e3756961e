"""Arithmetic in F_q and F_{q^2}, compiled. Imported only when a proof is made or checked.

q is 2^61 - 1, for which reduction is a shift and a sum, or in tests a small prime that is 3 modulo 4. An element
x + y i of F_{q^2}, i^2 = -1, is a row (x, y) of words below q. Signatures are fixed, so nothing is compiled twice;
compiled code is kept beside this file, or in the user's cache if that is read-only (NUMBA_CACHE_DIR overrides both).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from caps.shares.ring import Words

Elements = npt.NDArray[np.uint64]
"""Elements of F_{q^2}: pairs of words below q along the last axis."""
Numbers = npt.NDArray[np.uint64]
"""Elements of F_q: words below q."""

F = TypeVar("F", bound=Callable[..., object])

MERSENNE = np.uint64((1 << 61) - 1)
_EXPONENT = np.uint64(61)
_REST = np.uint64(3)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_HALF = np.uint64(31)
_LOW = np.uint64((1 << 31) - 1)
_QUARTER, _EIGHTH = np.int64(1 << 30), np.int64(1 << 29)
_TILE = 32
_EXACT = 248
"""Columns of deviations whose weighted sums are exact in doubles."""
_WORDS = 8
"""Words whose signs are folded together."""
_PLANE = types.Array(types.uint64, 2, "C", readonly=True)
"""Words that may be read-only, as received ones are."""
_COLUMNS = 128
"""Words of a plane, or columns of deviations, that are taken together: what there is of them stays in the cache."""


def _compiled(signature: Any, *, reorder: bool = False) -> Callable[[F], F]:
    """reorder: sums of doubles may be vectorised; here all of them are exact."""
    fastmath: set[str] | bool = {"reassoc", "nsz", "contract"} if reorder else False

    def decorate(function: F) -> F:
        try:
            return cast(F, numba.njit(signature, nogil=True, fastmath=fastmath, cache=True)(function))
        except RuntimeError:  # no place to keep compiled code
            return cast(F, numba.njit(signature, nogil=True, fastmath=fastmath)(function))

    return decorate


def _emit_wide(_typing: Any, x: Any, y: Any) -> Any:
    signature = types.UniTuple(types.uint64, 2)(types.uint64, types.uint64)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, double = ir.IntType(64), ir.IntType(128)
        product = builder.mul(builder.zext(args[0], double), builder.zext(args[1], double))
        high = builder.trunc(builder.lshr(product, ir.Constant(double, 64)), word)
        return context.make_tuple(builder, sig.return_type, (high, builder.trunc(product, word)))

    return signature, generate


def _emit_ones(_typing: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


_wide: Any = intrinsic(_emit_wide)
"""The two words, high and low, of a product of words."""
_ones: Any = intrinsic(_emit_ones)
"""The number of ones of a word."""


@numba.njit(inline="always")
def _mod(high: Any, low: Any, q: Any) -> Any:
    """A number below 2^124 modulo q."""
    if q == MERSENNE:
        x = (low & MERSENNE) + ((low >> _EXPONENT) | (high << _REST))
        x = (x & MERSENNE) + (x >> _EXPONENT)
        return x - MERSENNE if x >= MERSENNE else x
    return ((high % q) * ((_ALL % q + _ONE) % q) + low % q) % q


@numba.njit(inline="always")
def _sum(x: Any, y: Any, q: Any) -> Any:
    z = x + y
    return z - q if z >= q else z


@numba.njit(inline="always")
def _times(x: Any, y: Any, q: Any) -> Any:
    high, low = _wide(x, y)
    return _mod(high, low, q)


@numba.njit(inline="always")
def _two(a: Any, b: Any, c: Any, d: Any, q: Any) -> Any:
    """a b + c d."""
    high, low = _wide(a, b)
    more, less = _wide(c, d)
    low += less
    high += more
    if low < less:
        high += _ONE
    return _mod(high, low, q)


@numba.njit(inline="always")
def _product(a: Any, b: Any, c: Any, d: Any, q: Any) -> Any:
    """(a + b i)(c + d i)."""
    return _two(a, c, q - b, d, q), _two(a, d, b, c, q)


@numba.njit(inline="always")
def _lighter(x: Any, q: Any) -> Any:
    """A sum of words modulo q, less than 2^61 + 8 or q."""
    if q == MERSENNE:
        return (x & MERSENNE) + (x >> _EXPONENT)
    return x % q


@numba.njit(inline="always")
def _least(x: Any, q: Any) -> Any:
    x = _lighter(x, q)
    return x - q if x >= q else x


@_compiled("u8[:,::1](u8[::1], u8[::1], i8, u8)")
def powers(first: Elements, ratio: Elements, count: int, q: int) -> Elements:
    """first, first * ratio, first * ratio^2, ..."""
    out = np.empty((count, 2), np.uint64)
    x, y = first[0], first[1]
    for i in range(count):
        out[i, 0], out[i, 1] = x, y
        x, y = _product(x, y, ratio[0], ratio[1], q)
    return out


@_compiled("void(u8[:,::1], u8[::1], u8)")
def scale(x: Elements, factor: Elements, q: int) -> None:
    """x * factor, in place."""
    for i in range(len(x)):
        x[i, 0], x[i, 1] = _product(x[i, 0], x[i, 1], factor[0], factor[1], q)


@_compiled("u8[::1](u8[::1], u8[:,::1], u8)")
def weighted(x: Elements, weights: Elements, q: int) -> Elements:
    """The sum of x * weight, for words x."""
    out = np.zeros(2, np.uint64)
    for i in range(len(x)):
        out[0] = _sum(out[0], _times(x[i], weights[i, 0], q), q)
        out[1] = _sum(out[1], _times(x[i], weights[i, 1], q), q)
    return out


@_compiled("u8[:,::1](u8[:,::1], u8[:,::1], u8)")
def cross(u: Elements, v: Elements, q: int) -> Elements:
    """The sums of u_0 v_1 and of u_1 v_0, for halves of u and v."""
    half = (len(u) + 1) // 2
    a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
    for i in range(len(u) - half):
        j = i + half
        x, y = _product(u[i, 0], u[i, 1], v[j, 0], v[j, 1], q)
        a, b = _sum(a, x, q), _sum(b, y, q)
        x, y = _product(u[j, 0], u[j, 1], v[i, 0], v[i, 1], q)
        c, d = _sum(c, x, q), _sum(d, y, q)
    return np.array([[a, b], [c, d]], np.uint64)


@_compiled("u8[:,::1](u8[:,::1], u8[::1], u8)")
def fold_left(u: Elements, r: Elements, q: int) -> Elements:
    """u_0 + r u_1, in place of u_0."""
    half = (len(u) + 1) // 2
    for i in range(len(u) - half):
        x, y = _product(u[i + half, 0], u[i + half, 1], r[0], r[1], q)
        u[i, 0], u[i, 1] = _sum(u[i, 0], x, q), _sum(u[i, 1], y, q)
    return u[:half]


@_compiled("u8[:,::1](u8[:,::1], u8[::1], u8)")
def fold_right(v: Elements, r: Elements, q: int) -> Elements:
    """r v_0 + v_1, in place of v_0."""
    half = (len(v) + 1) // 2
    for i in range(half):
        x, y = _product(v[i, 0], v[i, 1], r[0], r[1], q)
        if i + half < len(v):
            x, y = _sum(x, v[i + half, 0], q), _sum(y, v[i + half, 1], q)
        v[i, 0], v[i, 1] = x, y
    return v[:half]


@_compiled("u8[:,::1](u8[::1], u8[::1], u8)")
def cross_numbers(u: Numbers, v: Numbers, q: int) -> Elements:
    """As `cross`, of vectors over F_q."""
    half = (len(u) + 1) // 2
    low, high = _ZERO, _ZERO
    for i in range(len(u) - half):
        j = i + half
        low = _sum(low, _times(u[i], v[j], q), q)
        high = _sum(high, _times(u[j], v[i], q), q)
    return np.array([[low, _ZERO], [high, _ZERO]], np.uint64)


@_compiled("void(u8[::1], u8[::1], u8, u8[:,::1])")
def fold_left_numbers(u: Numbers, r: Elements, q: int, out: Elements) -> None:
    """As `fold_left`, of an even number of elements of F_q."""
    half = len(u) // 2
    for i in range(half):
        out[i, 0] = _sum(u[i], _times(u[i + half], r[0], q), q)
        out[i, 1] = _times(u[i + half], r[1], q)


@_compiled("void(u8[::1], u8[::1], u8, u8[:,::1])")
def fold_right_numbers(v: Numbers, r: Elements, q: int, out: Elements) -> None:
    """As `fold_right`, of an even number of elements of F_q."""
    half = len(v) // 2
    for i in range(half):
        out[i, 0] = _sum(_times(v[i], r[0], q), v[i + half], q)
        out[i, 1] = _times(v[i], r[1], q)


@_compiled(types.void(_PLANE, _PLANE, _PLANE, _PLANE, _PLANE, _PLANE, types.int64[::1]))
def pair_counts(a: Words, c: Words, e: Words, b: Words, d: Words, f: Words, counts: npt.NDArray[np.int64]) -> None:
    """For blocks l of (a, c, e) and k of (b, d, f): add the ones of ab ^ cd ^ e ^ f to the count of l - k."""
    blocks, words = e.shape
    for start in range(0, words, _COLUMNS):
        part = slice(start, min(start + _COLUMNS, words))
        for l in range(blocks):
            a_l, c_l, e_l = a[l, part], c[l, part], e[l, part]
            # Four blocks at a time, so that what is loaded is used four times.
            for k in range(0, blocks, 4):
                b_0, d_0, f_0 = b[k, part], d[k, part], f[k, part]
                b_1, d_1, f_1 = b[k + 1, part], d[k + 1, part], f[k + 1, part]
                b_2, d_2, f_2 = b[k + 2, part], d[k + 2, part], f[k + 2, part]
                b_3, d_3, f_3 = b[k + 3, part], d[k + 3, part], f[k + 3, part]
                one, two, three, four = _ZERO, _ZERO, _ZERO, _ZERO
                for j in range(len(e_l)):
                    x, y, z = a_l[j], c_l[j], e_l[j]
                    one += _ones((x & b_0[j]) ^ (y & d_0[j]) ^ z ^ f_0[j])
                    two += _ones((x & b_1[j]) ^ (y & d_1[j]) ^ z ^ f_1[j])
                    three += _ones((x & b_2[j]) ^ (y & d_2[j]) ^ z ^ f_2[j])
                    four += _ones((x & b_3[j]) ^ (y & d_3[j]) ^ z ^ f_3[j])
                at = l - k + blocks - 1
                counts[at] += np.int64(one)
                counts[at - 1] += np.int64(two)
                counts[at - 2] += np.int64(three)
                counts[at - 3] += np.int64(four)


@_compiled("u8[:,:,::1](u8[:,::1], u8)")
def tables(weights: Elements, q: int) -> Elements:
    """For each eight weights and each byte: the sum of those whose bit is set."""
    groups = len(weights) // 8
    out = np.zeros((groups, 256, 2), np.uint64)
    for g in range(groups):
        for byte in range(256):
            for j in range(8):
                if (byte >> j) & 1 == 1:
                    for part in range(2):
                        out[g, byte, part] = _sum(out[g, byte, part], weights[8 * g + j, part], q)
    return out


@_compiled("u8[:,::1](u8[::1], u8)")
def sign_tables(weights: Numbers, q: int) -> Numbers:
    """For each eight weights and each byte: the sum of all, those negative whose bit is set."""
    groups = len(weights) // 8
    out = np.zeros((groups, 256), np.uint64)
    for g in range(groups):
        for byte in range(256):
            for j in range(8):
                w = weights[8 * g + j]
                negative = (byte >> j) & 1 == 1 and w > _ZERO
                out[g, byte] = _sum(out[g, byte], q - w if negative else w, q)
    return out


@_compiled("u8[:,::1](u1[:,::1], u8[:,:,::1], u8)")
def gather(octets: npt.NDArray[np.uint8], table: Elements, q: int) -> Elements:
    """For each row of bytes, the sum of what tables say of them."""
    out = np.zeros((len(octets), 2), np.uint64)
    for i in range(len(octets)):
        x, y = _ZERO, _ZERO
        for g in range(octets.shape[1]):
            x += table[g, octets[i, g], 0]
            y += table[g, octets[i, g], 1]
        out[i, 0], out[i, 1] = _least(x, q), _least(y, q)
    return out


@numba.njit(inline="always")
def _exchange(rows: Any, one: int, distance: int, mask: Any) -> None:
    """Exchange the bits of two rows that are `distance` apart in rows and in place."""
    shift = np.uint64(distance)
    for word in range(_WORDS):
        x, y = rows[one, word], rows[one + distance, word]
        differing = ((x >> shift) ^ y) & mask
        rows[one, word] = x ^ (differing << shift)
        rows[one + distance, word] = y ^ differing


@numba.njit(inline="always")
def _transpose_bits(rows: Any) -> None:
    """Eight rows of words: byte k of row j becomes what the rows have at place 8 k + j (Hacker's Delight, 7-3)."""
    for one in range(4):
        _exchange(rows, one, 4, np.uint64(0x0F0F0F0F0F0F0F0F))
    for one in (0, 1, 4, 5):
        _exchange(rows, one, 2, np.uint64(0x3333333333333333))
    for one in (0, 2, 4, 6):
        _exchange(rows, one, 1, np.uint64(0x5555555555555555))


@_compiled(types.void(_PLANE, _PLANE, _PLANE, types.uint64[:, ::1], types.boolean, types.uint64, types.uint64[:, ::1]))
def fold_signs(a: Words, c: Words, e: Words, table: Numbers, turned: bool, q: int, out: Numbers) -> None:
    """Write the weighted sums over blocks of the signs of e, e ^ a, e ^ c and e ^ a ^ c.

    turned: multiplied by the 4 x 4 Hadamard matrix. Some words at a time, table after table, so that a table and the
    sums stay in the cache. Positions come in an order that depends on the number of words only.
    """
    blocks, words = e.shape
    sums = np.empty((4, 8, 8 * _WORDS), np.uint64)
    rows = np.zeros((3, 8, _WORDS), np.uint64)
    chosen = np.empty((4, 8, _WORDS), np.uint64)
    octets = chosen.view(np.uint8)
    for start in range(0, words, _WORDS):
        many = min(_WORDS, words - start)
        sums[:] = _ZERO
        for g in range(blocks // 8):
            for j in range(8):
                for word in range(many):
                    rows[0, j, word] = a[8 * g + j, start + word]
                    rows[1, j, word] = c[8 * g + j, start + word]
                    rows[2, j, word] = e[8 * g + j, start + word]
            for plane in range(3):
                _transpose_bits(rows[plane])
            for j in range(8):
                for word in range(_WORDS):
                    x, y, z = rows[0, j, word], rows[1, j, word], rows[2, j, word]
                    chosen[0, j, word], chosen[1, j, word] = z, z ^ x
                    chosen[2, j, word], chosen[3, j, word] = z ^ y, z ^ x ^ y
            entries = table[g]
            for which in range(4):
                for j in range(8):
                    total, values = sums[which, j], octets[which, j]
                    for i in range(8 * _WORDS):
                        total[i] += entries[values[i]]
            if g % 4 == 3:
                for which in range(4):
                    for j in range(8):
                        for i in range(8 * _WORDS):
                            sums[which, j, i] = _lighter(sums[which, j, i], q)
        for j in range(8):
            first = 64 * start + 8 * many * j
            for i in range(8 * many):
                s_0, s_1 = _least(sums[0, j, i], q), _least(sums[1, j, i], q)
                s_2, s_3 = _least(sums[2, j, i], q), _least(sums[3, j, i], q)
                if turned:
                    t_0, t_1, t_2, t_3 = (
                        _sum(s_0, s_1, q),
                        _sum(s_0, q - s_1, q),
                        _sum(s_2, s_3, q),
                        _sum(s_2, q - s_3, q),
                    )
                    s_0, s_1, s_2, s_3 = (
                        _sum(t_0, t_2, q),
                        _sum(t_1, t_3, q),
                        _sum(t_0, q - t_2, q),
                        _sum(t_1, q - t_3, q),
                    )
                at = first + i
                out[0, at], out[1, at], out[2, at], out[3, at] = s_0, s_1, s_2, s_3


@_compiled("u8[:,::1](u2[:,::1], u2[:,::1], i8[::1], i8, i8)")
def limb_sums(
    left: npt.NDArray[np.uint16], right: npt.NDArray[np.uint16], index: npt.NDArray[np.int64], claims: int, limbs: int
) -> Elements:
    """For each claim and s, the sum of the products of limbs i and s - i, over the products of the claim."""
    out = np.zeros((claims, limbs), np.uint64)
    for t in range(len(index)):
        for i in range(left.shape[1]):
            x = np.uint64(left[t, i])
            for j in range(min(right.shape[1], limbs - i)):
                out[index[t], i + j] += x * np.uint64(right[t, j])
    return out


@_compiled("u8[:,::1](u2[:,::1], u8[:,::1], i8[::1], u8[:,::1], i8, u8)")
def limb_rights(
    right: npt.NDArray[np.uint16],
    weights: Elements,
    index: npt.NDArray[np.int64],
    places: Elements,
    lefts: int,
    q: int,
) -> Elements:
    """What limb i of left factors is multiplied by: weight * sum over j of places[i + j] right_j; i by i."""
    count, limbs = right.shape[0], len(places)
    out = np.empty((lefts * count, 2), np.uint64)
    for t in range(count):
        g = weights[index[t]]
        for i in range(lefts):
            x, y = _ZERO, _ZERO
            for j in range(min(right.shape[1], limbs - i)):
                b = np.uint64(right[t, j])
                x = _sum(x, _times(b, places[i + j, 0], q), q)
                y = _sum(y, _times(b, places[i + j, 1], q), q)
            out[i * count + t, 0], out[i * count + t, 1] = _product(x, y, g[0], g[1], q)
    return out


@_compiled("u8[:,::1](f8[:,:], u8)")
def joined(parts: npt.NDArray[np.float64], q: int) -> Elements:
    """Elements from low and high sums, 31 bits apart: columns low x, high x, low y, high y."""
    out = np.empty((len(parts), 2), np.uint64)
    for i in range(len(parts)):
        for part in range(2):
            high, low = _wide(np.uint64(parts[i, 2 * part + 1]), _ONE << _HALF)
            total_low = low + np.uint64(parts[i, 2 * part])
            out[i, part] = _mod(high + np.uint64(total_low < low), total_low, q)
    return out


@_compiled("void(u8[:,::1], u8[:,::1], u8[::1], u8)")
def add_scaled(total: Elements, x: Elements, factor: Elements, q: int) -> None:
    """total + factor x, in place."""
    for i in range(len(x)):
        a, b = _product(x[i, 0], x[i, 1], factor[0], factor[1], q)
        total[i, 0], total[i, 1] = _sum(total[i, 0], a, q), _sum(total[i, 1], b, q)


@_compiled("u8[:,::1](u8[:,::1], i8, u8)")
def doubled(weights: Elements, width: int, q: int) -> Elements:
    """weight, 2 weight, 4 weight, ...: `width` elements for each."""
    out = np.empty((len(weights) * width, 2), np.uint64)
    for i in range(len(weights)):
        for part in range(2):
            x = weights[i, part]
            for j in range(width):
                out[i * width + j, part] = x
                x = _sum(x, x, q)
    return out


@_compiled("u8[:,::1](u8[:,::1], u1[::1], u8)")
def signed(weights: Elements, bits: npt.NDArray[np.uint8], q: int) -> Elements:
    """Each weight, or its negative where the bit is set."""
    out = np.empty_like(weights)
    for i in range(len(weights)):
        for part in range(2):
            w = weights[i, part]
            out[i, part] = q - w if bits[i] and w > _ZERO else w
    return out


@_compiled("u8[::1](u8[:,::1], u8)")
def total(x: Elements, q: int) -> Elements:
    """The sum of all elements."""
    out = np.zeros(2, np.uint64)
    for i in range(len(x)):
        out[0], out[1] = _sum(out[0], x[i, 0], q), _sum(out[1], x[i, 1], q)
    return out


@_compiled("void(i2[:,::1], i2[:,::1])")
def transpose(source: npt.NDArray[np.int16], target: npt.NDArray[np.int16]) -> None:
    """The rows of `source` as columns of `target`, tile by tile."""
    for i in range(0, source.shape[0], _TILE):
        for j in range(0, source.shape[1], _TILE):
            for y in range(j, min(j + _TILE, source.shape[1])):
                for x in range(i, min(i + _TILE, source.shape[0])):
                    target[y, x] = source[x, y]


@_compiled("u8[:,:,::1](u1[:,::1], u8[:,::1])")
def row_buckets(octets: npt.NDArray[np.uint8], values: Elements) -> Elements:
    """For each byte of the rows and each of its values: the sum of the rows that have it."""
    out = np.zeros((octets.shape[1], 256, values.shape[1]), np.uint64)
    for t in range(len(octets)):
        for g in range(octets.shape[1]):
            for i in range(values.shape[1]):
                out[g, octets[t, g], i] += values[t, i]
    return out


@_compiled("void(i2[:,::1], i2[:,::1], u1[:,::1], i8[:,:,::1])")
def bucket_sums(
    left: npt.NDArray[np.int16],
    right: npt.NDArray[np.int16],
    octets: npt.NDArray[np.uint8],
    buckets: npt.NDArray[np.int64],
) -> None:
    """Add left * right of each row to the bucket of each of its bytes."""
    columns = left.shape[1]
    products = np.empty(_COLUMNS, np.int64)
    for start in range(0, columns, _COLUMNS):
        size = min(_COLUMNS, columns - start)
        for t in range(len(octets)):
            for u in range(size):
                products[u] = np.int64(left[t, start + u]) * np.int64(right[t, start + u])
            for g in range(octets.shape[1]):
                bucket = buckets[g, octets[t, g], start : start + size]
                for u in range(size):
                    bucket[u] += products[u]


@numba.njit(inline="always")
def _of_signed(low: Any, high: Any, q: Any) -> Any:
    """low + 2^31 high, for numbers of up to 60 bits with a sign."""
    if q == MERSENNE:
        x = _least(np.uint64(low + np.int64(MERSENNE)), q)
        y = _least(np.uint64(high + np.int64(MERSENNE)), q)
    else:
        x, y = np.uint64(low % np.int64(q)), np.uint64(high % np.int64(q))
    wide, narrow = _wide(y, _ONE << _HALF)
    total_low = narrow + x
    return _mod(wide + np.uint64(total_low < narrow), total_low, q)


@_compiled("void(i2[:,::1], u8[:,::1], u8[:,::1], i8, u8, u8[:,::1])")
def fold_rows(
    data: npt.NDArray[np.int16], weights: Elements, columns: Elements, blocks: int, q: int, out: Elements
) -> None:
    """For each `blocks` rows and each column: the sum weighted by rows, times the column's weight if there is one."""
    width = data.shape[1]
    sums = np.empty((4, width), np.int64)
    for g in range(data.shape[0] // blocks):
        sums[:] = 0
        for l in range(blocks):
            row = data[g * blocks + l]
            for part in range(2):
                weight = weights[g * blocks + l, part]
                # As products of 32 bits these take one instruction each.
                low, high = np.int32(weight & _LOW), np.int32(weight >> _HALF)
                x, y = sums[2 * part], sums[2 * part + 1]
                for u in range(width):
                    x[u] += np.int64(row[u]) * np.int64(low)
                    y[u] += np.int64(row[u]) * np.int64(high)
        for u in range(width):
            a, b = _of_signed(sums[0, u], sums[1, u], q), _of_signed(sums[2, u], sums[3, u], q)
            if len(columns):
                a, b = _product(a, b, columns[u, 0], columns[u, 1], q)
            out[g * width + u, 0], out[g * width + u, 1] = a, b


@_compiled("void(i2[::1], i4[::1], i4[::1], f8[::1], f8[::1])")
def _weigh(
    values: npt.NDArray[np.int16],
    lows: npt.NDArray[np.int32],
    highs: npt.NDArray[np.int32],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
) -> None:
    """Values times weights (low + 2^31 high) modulo 2^61 - 1, in two parts of about 2^30 or less in absolute value.

    Weights below 2^15 come out as they are, so that it serves for small fields as well.
    """
    for u in range(len(values)):
        value = np.int64(values[u])
        small = value * np.int64(lows[u])
        carried = (small + _QUARTER) >> np.int64(31)
        large = value * np.int64(highs[u]) + carried
        over = (large + _EIGHTH) >> np.int64(30)
        low[u] = small - (carried << np.int64(31)) + over
        high[u] = large - (over << np.int64(30))


@_compiled("void(i2[:,::1], i2[:,::1], u8[:,::1], u8[:,::1], i8, u8, u8[:,::1])", reorder=True)
def row_products(
    left: npt.NDArray[np.int16],
    right: npt.NDArray[np.int16],
    weights: Elements,
    columns: Elements,
    blocks: int,
    q: int,
    out: Elements,
) -> None:
    """Add to `out` the sums, by l - k, of the weighted products of rows l and k of each `blocks` rows, but for l = k.

    Doubles hold them: sums of up to 248 products of numbers of up to 2^30 + 2^15 and 2^15 are below 2^53.
    """
    width = left.shape[1]
    x_0, x_1, x_2, x_3 = np.empty(_EXACT), np.empty(_EXACT), np.empty(_EXACT), np.empty(_EXACT)
    y, sums = np.empty((blocks, _EXACT)), np.empty((blocks, 4))
    lows, highs = np.empty((2, width), np.int32), np.empty((2, width), np.int32)
    for u in range(width):
        for part in range(2):
            lows[part, u] = np.int32(columns[u, part] & _LOW)
            highs[part, u] = np.int32(columns[u, part] >> _HALF)
    for g in range(left.shape[0] // blocks):
        for start in range(0, width, _EXACT):
            size = min(_EXACT, width - start)
            for k in range(blocks):
                for u in range(size):
                    y[k, u] = right[g * blocks + k, start + u]
            for l in range(blocks):
                row = g * blocks + l
                values, stop = left[row, start : start + size], start + size
                _weigh(values, lows[0, start:stop], highs[0, start:stop], x_0, x_1)
                _weigh(values, lows[1, start:stop], highs[1, start:stop], x_2, x_3)
                # Four rows at a time, so that what is loaded is used four times.
                for k in range(0, blocks, 4):
                    y_0, y_1, y_2, y_3 = y[k], y[k + 1], y[k + 2], y[k + 3]
                    a_0, b_0, c_0, d_0 = 0.0, 0.0, 0.0, 0.0
                    a_1, b_1, c_1, d_1 = 0.0, 0.0, 0.0, 0.0
                    a_2, b_2, c_2, d_2 = 0.0, 0.0, 0.0, 0.0
                    a_3, b_3, c_3, d_3 = 0.0, 0.0, 0.0, 0.0
                    for u in range(size):
                        a, b, c, d = x_0[u], x_1[u], x_2[u], x_3[u]
                        a_0 += a * y_0[u]
                        b_0 += b * y_0[u]
                        c_0 += c * y_0[u]
                        d_0 += d * y_0[u]
                        a_1 += a * y_1[u]
                        b_1 += b * y_1[u]
                        c_1 += c * y_1[u]
                        d_1 += d * y_1[u]
                        a_2 += a * y_2[u]
                        b_2 += b * y_2[u]
                        c_2 += c * y_2[u]
                        d_2 += d * y_2[u]
                        a_3 += a * y_3[u]
                        b_3 += b * y_3[u]
                        c_3 += c * y_3[u]
                        d_3 += d * y_3[u]
                    sums[k, 0], sums[k, 1], sums[k, 2], sums[k, 3] = a_0, b_0, c_0, d_0
                    sums[k + 1, 0], sums[k + 1, 1], sums[k + 1, 2], sums[k + 1, 3] = a_1, b_1, c_1, d_1
                    sums[k + 2, 0], sums[k + 2, 1], sums[k + 2, 2], sums[k + 2, 3] = a_2, b_2, c_2, d_2
                    sums[k + 3, 0], sums[k + 3, 1], sums[k + 3, 2], sums[k + 3, 3] = a_3, b_3, c_3, d_3
                for k in range(blocks):
                    if k == l:
                        continue
                    real, rest = _product(
                        _of_signed(np.int64(sums[k, 0]), np.int64(sums[k, 1]), q),
                        _of_signed(np.int64(sums[k, 2]), np.int64(sums[k, 3]), q),
                        weights[row, 0],
                        weights[row, 1],
                        q,
                    )
                    at = l - k + blocks - 1
                    out[at, 0], out[at, 1] = _sum(out[at, 0], real, q), _sum(out[at, 1], rest, q)
