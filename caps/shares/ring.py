"""The rings Z_2^k of shares, as numpy dtypes: arithmetic wraps because machine arithmetic does.

Protocols compute in Z_2^64. The smaller rings are for row-level columns: a count of at most 65,535 rows needs no more
than 16 bits, so uploads, storage and products are four times smaller; 24 bits are enough for larger tables
(docs/adr/0003).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.errors import ShareError

Words: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""Elements of some ring Z_2^k, one unsigned machine word each."""

PLANE = np.dtype("<u8")
"""The word of a bit plane: 64 elements, one bit each."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Z_2^bits, held in little-endian unsigned words of at least that width.

    Higher bits of a word have no meaning: sums and products of words are correct modulo 2^bits whatever they are.
    """

    bits: int
    dtype: np.dtype[np.unsignedinteger[Any]]

    @property
    def itemsize(self) -> int:
        """Bytes of one element on the wire and on disk."""
        return -(-self.bits // 8)

    @property
    def spare(self) -> int:
        """The number of bits of a word that have no meaning."""
        return 8 * self.dtype.itemsize - self.bits

    def encode(self, values: npt.ArrayLike) -> Words:
        """Integers modulo 2^bits. Raises ShareError for anything else, which would be rounded silently."""
        array = np.asarray(values)
        if array.dtype == bool:
            return array.astype(self.dtype)
        if array.dtype.kind not in "iu":
            raise ShareError(f"elements of Z_2^{self.bits} must be integers, not {array.dtype}")
        return self.reduce(array.astype(self.dtype, copy=False))

    def reduce(self, words: Words) -> Words:
        """The same elements with the meaningless bits set to 0."""
        return words & self.dtype.type((1 << self.bits) - 1) if self.spare else words

    def signed(self, words: Words) -> npt.NDArray[np.signedinteger[Any]]:
        """The same elements read as two's complement: -2^(bits-1) .. 2^(bits-1) - 1."""
        signed = words.view(np.dtype(f"<i{self.dtype.itemsize}"))
        if self.spare:
            signed = signed << self.spare
            signed >>= self.spare
        return signed

    def to_bytes(self, words: Words) -> bytes:
        """The elements one after the other, `itemsize` bytes each."""
        if self.itemsize == self.dtype.itemsize:
            return words.tobytes()
        packed = np.empty((words.size, self.itemsize), np.uint8)
        _copy_octets(self._octets(np.ascontiguousarray(words)), packed)
        return packed.tobytes()

    def from_bytes(self, data: bytes | memoryview) -> Words:
        """The inverse of to_bytes(), as a flat array."""
        if self.itemsize == self.dtype.itemsize:
            return np.frombuffer(data, self.dtype)
        return self.read((len(data) // self.itemsize,), [data])

    def read(self, shape: tuple[int, ...], pieces: Iterable[bytes | memoryview]) -> Words:
        """Like from_bytes(), for bytes in pieces cut anywhere: only the words are in memory as a whole."""
        words = np.zeros(shape, self.dtype)
        octets = self._octets(words)
        expected, read, rest = words.size * self.itemsize, 0, b""
        for piece in pieces:
            start, read = read // self.itemsize, read + len(piece)
            if read > expected:
                break
            data = rest + piece if rest else piece
            whole = len(data) // self.itemsize
            rest = bytes(data[whole * self.itemsize :])
            arrived = np.frombuffer(data, np.uint8, whole * self.itemsize).reshape(whole, self.itemsize)
            _copy_octets(arrived, octets[start : start + whole])
        if read != expected:
            raise ShareError(f"an array of shape {shape} over {self!r} has {expected} bytes, not {read}")
        return words

    def _octets(self, words: Words) -> npt.NDArray[np.uint8]:
        """One row for each word: its bytes on the wire."""
        return words.reshape(-1).view(np.uint8).reshape(words.size, self.dtype.itemsize)[:, : self.itemsize]

    def __repr__(self) -> str:
        return f"Z_2^{self.bits}"


def _copy_octets(source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8]) -> None:
    """Copies source to target, by columns if words are wider than on the wire: numpy copies rows of 3 bytes slowly."""
    if source.flags.c_contiguous and target.flags.c_contiguous:
        target[...] = source
    else:
        for place in range(source.shape[1]):
            target[:, place] = source[:, place]


Z8 = Ring(8, np.dtype("<u1"))
Z16 = Ring(16, np.dtype("<u2"))
Z32 = Ring(32, np.dtype("<u4"))
Z64 = Ring(64, np.dtype("<u8"))
RINGS = {ring.bits: ring for ring in (Z8, Z16, Z32, Z64)}
"""Rings with their own machine words, in which protocols compute."""
_BY_DTYPE = {ring.dtype: ring for ring in RINGS.values()}

Z22 = Ring(22, Z32.dtype)
"""The ring in which columns of large tables are counted: a centred word is one exact factor of a product in doubles."""
Z24 = Ring(24, Z32.dtype)
"""The ring in which columns of large tables are shared: whole bytes for Z_2^22. Servers compute in Z_2^32."""
SHARED_RINGS = {**RINGS, Z24.bits: Z24}
"""Rings in which vectors are sent and stored."""


def ring_of(words: Words) -> Ring:
    """The ring of these words."""
    ring = _BY_DTYPE.get(words.dtype)
    if ring is None:
        raise ShareError(f"no ring has words of {words.dtype}; use one of {sorted(d.name for d in _BY_DTYPE)}")
    return ring


def pack_bits(bits: npt.NDArray[np.uint8]) -> Words:
    """Bit planes of the last axis: element e becomes bit e % 64 of word e // 64; padding bits are 0."""
    count = bits.shape[-1]
    packed = np.packbits(bits, axis=-1, bitorder="little")
    padded = np.zeros((*bits.shape[:-1], plane_words(count) * 8), np.uint8)
    padded[..., : packed.shape[-1]] = packed
    return padded.view(PLANE)


def unpack_bits(planes: Words, count: int) -> npt.NDArray[np.uint8]:
    """The inverse of `pack_bits`: one byte, 0 or 1, per element."""
    octets = np.ascontiguousarray(planes).view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=count, bitorder="little")


def plane_words(count: int) -> int:
    """Words in a bit plane of `count` elements."""
    return -(-count // 64)


_SWAPS = [(step, np.uint64(sum(1 << i for i in range(64) if not i & step))) for step in (32, 16, 8, 4, 2, 1)]


def words_to_planes(words: Words, width: int) -> Words:
    """Transpose `count` words into their `width` lowest bit planes, shape (width, plane_words(count)).

    Six rounds of block swaps on 64 x 64 bit matrices (Hacker's Delight, section 7-3), all matrices at once.
    """
    flat = words.reshape(-1)
    blocks = plane_words(flat.size)
    rows = np.zeros((blocks, 64), PLANE)
    rows.reshape(-1)[: flat.size] = flat
    matrix = np.ascontiguousarray(rows.T)
    _transpose_blocks(matrix)
    return matrix[:width]


def planes_to_words(planes: Words, count: int) -> Words:
    """The inverse of `words_to_planes`, for up to 64 planes: missing high planes are 0."""
    matrix = np.zeros((64, planes.shape[1]), PLANE)
    matrix[: planes.shape[0]] = planes
    _transpose_blocks(matrix)
    return np.ascontiguousarray(matrix.T).reshape(-1)[:count]


def _transpose_blocks(matrix: Words) -> None:
    for step, low in _SWAPS:
        view = matrix.reshape(32 // step, 2, step, -1)
        top, bottom = view[:, 0], view[:, 1]
        swap = ((top >> np.uint64(step)) ^ bottom) & low
        bottom ^= swap
        top ^= swap << np.uint64(step)
