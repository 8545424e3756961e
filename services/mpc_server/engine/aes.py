"""AES-128 (FIPS 197) on XOR shares, bit-sliced over all rows, under a key that nobody knows.

The S-box inverts in GF(2^8), here built as GF(2^4)[y] over GF(2^2)[z] over GF(2)[w] (Satoh et al. 2001). In replicated
sharing a sum of products costs one bit, however many products it sums (Araki et al. 2016, section 3.3); so a product of
two field elements sends as many bits as the field has, and an S-box sends 4 + 2 + 4 + 8 = 18 bits in 4 rounds. Circuits
that count single ANDs send 32 bits in 6 rounds or 34 in 4 (Boyar and Peralta 2010, 2012); where each AND has to be sent
by itself, this one sends 9 + 3 + 6 + 18 = 36.

The state of many blocks is one share of bytes of shape (16, rows), rows filled up to whole words of 64: plane j holds
bit j of byte 0 of all rows, then of byte 1, and so on. So moving bytes is moving whole words, and every field operation
is a handful of instructions on 16 planes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from caps.errors import ShareError
from caps.shares.ring import PLANE, Words, pack_bits, plane_words, unpack_bits
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost, plane
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import BShare, Indices, Linear, stack_planes
from services.mpc_server.engine.verbs import BitForm, bilinear_bits

ROUNDS = 10
BLOCK_BYTES = 16
BLOCK_BITS = 8 * BLOCK_BYTES
CACHED_BLOCKS = 1 << 16
"""Blocks that are best encrypted at once: the 16 planes of one bit are 128 KiB, which fits in cache."""

_ONES = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_AFFINE: Words = np.array([_ONES if 0x63 >> i & 1 else 0 for i in range(8)], PLANE)[:, None]
"""The constant of the affine map, as words that serve whole planes."""

Rows: TypeAlias = tuple[int, ...]
"""A matrix over GF(2), one integer per row: bit i of row j says whether output bit j has input bit i as a summand."""

# Of the 64 isomorphisms from GF(2)[x]/(x^8+x^4+x^3+x+1) to the tower with w^2 = w + 1, z^2 = z + w, y^2 = y + l, the
# one whose matrices have the fewest ones: l = wz, and x becomes 0x7a. Bits of the tower: 1, w, z, wz, then the same
# times y.
_TO_TOWER: Rows = (0x05, 0xC2, 0x24, 0xCA, 0xA2, 0x72, 0x7E, 0xA0)
_FROM_TOWER: Rows = (0x35, 0x07, 0x03, 0x75, 0x39, 0x3C, 0xD0, 0x54)
"""Back to the basis of FIPS 197, and its affine map without the constant."""
_NORM: Rows = (0x4B, 0xC6, 0xEC, 0x98)
"""l a^2 + b^2 of a y + b: the linear part of the norm to GF(2^4). The rest is a b."""
_SMALL_NORM: Rows = (0b1011, 0b0110)
"""w c^2 + d^2 of c z + d: the same for the norm to GF(2^2)."""
_SMALL_INVERSE: Rows = (0b11, 0b10)
"""In GF(2^2) the inverse is the square, which is linear."""

_SHIFT_ROWS = np.array([row + 4 * ((column + row) % 4) for column in range(4) for row in range(4)], np.intp)
_ROTATED_LAST_WORD: Indices = np.array([13, 14, 15, 12], np.intp)
_ROUND_CONSTANTS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1B, 0x36)


def _combined(rows: Rows, planes: Words) -> Words:
    """A matrix over GF(2) times the bits of every element."""
    out = np.empty((len(rows), *planes.shape[1:]), PLANE)
    for bit, row in enumerate(rows):
        first, *rest = (i for i in range(len(planes)) if row >> i & 1)
        out[bit] = planes[first]
        for i in rest:
            out[bit] ^= planes[i]
    return out


def _linear(rows: Rows, x: BShare) -> BShare:
    return x.map(partial(_combined, rows))


def _factors4(x: Words) -> Words:
    """The three factors of a Karatsuba product in GF(2^2), of (h w + l)(h' w + l') with w^2 = w + 1."""
    return np.stack([x[0], x[0] ^ x[1], x[1]])


def _sums4(products: Words) -> Words:
    low, middle, high = products
    return np.stack([low ^ high, low ^ middle])


def _factors16(x: Words) -> Words:
    """Those of a product in GF(2^4), by Karatsuba over GF(2^2): (h z + l)(h' z + l') with z^2 = z + w."""
    return np.concatenate([_factors4(x[:2]), _factors4(x[:2] ^ x[2:]), _factors4(x[2:])])


def _sums16(products: Words) -> Words:
    low, middle, high = (_sums4(products[start : start + 3]) for start in (0, 3, 6))
    middle ^= low
    low[0] ^= high[1]
    low[1] ^= high[0]
    low[1] ^= high[1]
    return np.concatenate([low, middle])


def _both(factors: Linear, sums: Linear) -> BitForm:
    """The product of each half of the planes of x with y."""

    def halves(function: Linear) -> Linear:
        return lambda planes: np.concatenate([*map(function, np.split(planes, 2))])

    def twice(planes: Words) -> Words:
        found = factors(planes)
        return np.concatenate([found, found])

    return BitForm(left=halves(factors), right=twice, summed=halves(sums))


_TIMES4 = BitForm(left=_factors4, right=_factors4, summed=_sums4)
_TIMES16 = BitForm(left=_factors16, right=_factors16, summed=_sums16)
_BOTH4, _BOTH16 = _both(_factors4, _sums4), _both(_factors16, _sums16)


@protocol(
    "FIPS 197, SubBytes, by Satoh et al. 2001 on sums of products",
    lambda of: Cost(rounds=4, sent=of.bilinear(18 * plane(size.elements), 36 * plane(size.elements))),
)
async def sub_bytes(ctx: Context, x: BShare) -> BShare:
    """[[the AES S-box of every byte]] of n bytes.

    With x = a y + b over GF(2^4), the norm is N = l a^2 + a b + b^2 and the inverse (a y + a + b) / N. The same step
    takes 1/N to GF(2^2). Only a b, the small product, two times 1/(small norm) and two times 1/N are sent.

    Deviation: 1/N could be multiplied in before it is complete, for 3 rounds and 22 bits; docs/adr/0007 has the times.

    Pre-conditions: x has 8 bits.
    Leaks: nothing.
    """
    ctx.own(x)
    if x.width != 8:
        raise ShareError(f"the S-box needs elements of 8 bits, not {x!r}")
    tower = _linear(_TO_TOWER, x)
    low, high = tower.planes(slice(0, 4)), tower.planes(slice(4, 8))
    norm = _linear(_NORM, tower) ^ await bilinear_bits(ctx.step("norm"), high, low, form=_TIMES16, shape=x.shape)
    norm_low, norm_high = norm.planes(slice(0, 2)), norm.planes(slice(2, 4))
    small = _linear(_SMALL_NORM, norm) ^ await bilinear_bits(
        ctx.step("small"), norm_high, norm_low, form=_TIMES4, shape=x.shape
    )
    inverse = await bilinear_bits(
        ctx.step("invert"),
        stack_planes([norm_high ^ norm_low, norm_high]),
        _linear(_SMALL_INVERSE, small),
        form=_BOTH4,
        shape=x.shape,
    )
    inverted = await bilinear_bits(
        ctx.step("scale"), stack_planes([high ^ low, high]), inverse, form=_BOTH16, shape=x.shape
    )
    return _linear(_FROM_TOWER, inverted).flip_planes(_AFFINE)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RoundKeys:
    """The eleven round keys, each 16 shared bytes."""

    keys: tuple[BShare, ...]


def random_key(ctx: Context) -> BShare:
    """[[16 uniformly random bytes]]: a key that no party knows. Local."""
    return ctx.fresh_bits(8, (BLOCK_BYTES,))


@protocol("FIPS 197, KeyExpansion", lambda of: of(sub_bytes, {size.elements: 4}) * ROUNDS)
async def expand_key(ctx: Context, key: BShare) -> RoundKeys:
    """[[the eleven round keys]] of a shared key of 16 bytes.

    Pre-conditions: none.
    Leaks: nothing.
    """
    ctx.own(key)
    if key.width != 8 or key.shape != (BLOCK_BYTES,):
        raise ShareError(f"{key!r} is not a key of {BLOCK_BYTES} bytes")
    keys = [key]
    for number, constant in enumerate(_ROUND_CONSTANTS):
        word = await sub_bytes(ctx.step(number), keys[-1].take(_ROTATED_LAST_WORD))
        first = np.zeros((8, 4), np.uint8)
        first[:, 0] = [constant >> i & 1 for i in range(8)]
        word = word.flip(first)
        keys.append(keys[-1].combine(_next_key, word))
    return RoundKeys(tuple(keys))


def _next_key(key: Words, word: Words) -> Words:
    """Every word of the next key is the one before it XOR the same word of this key."""
    words = unpack_bits(key, BLOCK_BYTES).reshape(8, 4, 4)
    words[:, 0] ^= unpack_bits(word, 4)
    return pack_bits(np.bitwise_xor.accumulate(words, axis=1).reshape(8, BLOCK_BYTES))


@protocol(
    "FIPS 197, Cipher",
    lambda of: of(sub_bytes, {size.elements: BLOCK_BYTES * 8 * plane(size.elements)}) * ROUNDS,
)
async def encrypt(ctx: Context, x: BShare, keys: RoundKeys) -> BShare:
    """[[AES-128]] of n blocks of 128 bits, all under the same shared key; bit j of byte i is plane 8i + j.

    Pre-conditions: x has 128 bits and one axis. Best in pieces of CACHED_BLOCKS.
    Leaks: nothing.
    """
    ctx.own(x, *keys.keys)
    if x.width != BLOCK_BITS or len(x.shape) != 1:
        raise ShareError(f"{x!r} is not a vector of {BLOCK_BITS}-bit blocks")
    shape = (BLOCK_BYTES, 64 * plane_words(x.size))
    state = x.map(_to_state, shape).combine(_keyed, keys.keys[0])
    for number in range(1, ROUNDS + 1):
        state = await sub_bytes(ctx.step(number), state)
        moved = _shifted if number == ROUNDS else _mixed
        state = state.map(moved).combine(_keyed, keys.keys[number])
    return state.map(_to_blocks, x.shape)


def _to_state(planes: Words) -> Words:
    return planes.reshape(BLOCK_BYTES, 8, -1).swapaxes(0, 1).reshape(8, -1)


def _to_blocks(planes: Words) -> Words:
    return planes.reshape(8, BLOCK_BYTES, -1).swapaxes(0, 1).reshape(BLOCK_BITS, -1)


def _keyed(state: Words, key: Words) -> Words:
    """AddRoundKey: one key for all rows, so a word of zeros or of ones for each bit of each byte."""
    mask = unpack_bits(key, BLOCK_BYTES).astype(PLANE)[:, :, None] * _ONES
    return (state.reshape(8, BLOCK_BYTES, -1) ^ mask).reshape(8, -1)


def _shifted(planes: Words) -> Words:
    """ShiftRows."""
    return planes.reshape(8, BLOCK_BYTES, -1).take(_SHIFT_ROWS, axis=1).reshape(8, -1)


def _mixed(planes: Words) -> Words:
    """ShiftRows, then MixColumns: with t_r = s_r ^ s_{r+1}, byte r becomes 2 t_r ^ s_r ^ the sum of its column."""
    state = _shifted(planes).reshape(8, 4, 4, -1)
    pairs = np.empty_like(state)
    np.bitwise_xor(state[:, :, :3], state[:, :, 1:], out=pairs[:, :, :3])
    np.bitwise_xor(state[:, :, 3], state[:, :, 0], out=pairs[:, :, 3])
    state ^= (pairs[:, :, 0] ^ pairs[:, :, 2])[:, :, None]
    # Times x: bits move up, and the highest comes back at the ones of x^8 = x^4 + x^3 + x + 1.
    state[1:] ^= pairs[:-1]
    for bit in (0, 1, 3, 4):
        state[bit] ^= pairs[7]
    return state.reshape(8, -1)
