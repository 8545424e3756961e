"""Secret-shared arrays as one party holds them. Inert: no truth value, no contents in repr, no pickle.

A value is the sum (for bits, the XOR) of components, of which each party holds some: the scheme says how many there
are, and who holds which. Everything here is local, and the same for every scheme: adding shares, scaling by public
numbers and rearranging are linear, so each is done to every component that a party holds. What needs the peers, or the
product of two shares, is a verb (`engine.verbs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.basics.schemes import Scheme
from caps.errors import DomainError, ShareError, party_name
from caps.shares.ring import (
    PLANE,
    Z8,
    Ring,
    Words,
    pack_bits,
    plane_words,
    planes_to_words,
    ring_of,
    unpack_bits,
    words_to_planes,
)

Shape: TypeAlias = tuple[int, ...]
Indices: TypeAlias = npt.NDArray[np.intp]
Linear: TypeAlias = Callable[..., Words]
"""A function of words, one array or several, that is linear in all of them together."""

_CONSTANTS = 0
"""The component that public constants are added to."""
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose share it is: a party of one study's session. Shares of different owners never mix."""

    party: int
    study: bytes
    scheme: Scheme

    def constants(self) -> list[bool]:
        """For each component that the party holds, whether public constants are added to it."""
        return [component == _CONSTANTS for component in self.scheme.held[self.party]]

    def __repr__(self) -> str:
        return f"{party_name(self.party)} of study {self.study.hex()[:12]}"


class _Inert:
    """What no share may do."""

    __slots__ = ()
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise ShareError(
            "a shared value has no truth value; compare it with a protocol, and reveal the result if that is allowed"
        )

    def __eq__(self, other: object) -> NoReturn:
        raise ShareError("use the protocol `equal`, not ==, to compare shared values")

    def __iter__(self) -> NoReturn:
        raise ShareError("a shared array cannot be iterated; write the protocol on the whole array")

    def __reduce__(self) -> NoReturn:
        raise ShareError("shares must not be pickled")

    def __format__(self, spec: str) -> str:
        return repr(self)


def _alike(components: tuple[Words, ...]) -> tuple[Words, ...]:
    """The components, frozen. They must have the same shape and type."""
    first = components[0]
    for other in components[1:]:
        if other.shape != first.shape or other.dtype != first.dtype:
            raise ShareError(f"components differ: {first.shape} {first.dtype} and {other.shape} {other.dtype}")
    for words in components:
        words.setflags(write=False)
    return components


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class AShare(_Inert):
    """Arithmetic share of an array over Z_2^k."""

    owner: Owner
    components: tuple[Words, ...]

    def __init__(self, owner: Owner, *components: Words) -> None:
        if not components[0].shape:  # arithmetic on arrays without axes yields numpy scalars, whose overflow would warn
            components = tuple(np.asarray(words) for words in components)
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "components", _alike(components))

    @property
    def scheme(self) -> Scheme:
        """What it is a share of."""
        return self.owner.scheme

    @property
    def ring(self) -> Ring:
        """The ring of the elements."""
        return ring_of(self.components[0])

    @property
    def shape(self) -> Shape:
        """Shape of the shared array."""
        return self.components[0].shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.components[0].size

    def __len__(self) -> int:
        return len(self.components[0])

    def __repr__(self) -> str:
        return f"<AShare {self.shape} of {self.ring!r}, {self.owner!r}>"

    def map(self, function: Linear) -> AShare:
        """A linear function of the array. Local."""
        return AShare(self.owner, *map(function, self.components))

    def combine(self, function: Linear, *others: AShare) -> AShare:
        """A linear function of this array and others. Local."""
        for other in others:
            self._check(other)
        return AShare(self.owner, *map(function, self.components, *(other.components for other in others)))

    def _public(self, public: npt.ArrayLike) -> Words:
        return self.ring.encode(public)

    def _check(self, other: AShare) -> None:
        if self.owner != other.owner:
            raise ShareError(f"a share of {other.owner!r} cannot be used with one of {self.owner!r}")
        if self.components[0].dtype != other.components[0].dtype:
            raise ShareError(f"{self.ring!r} and {other.ring!r} do not mix: lift the smaller first")

    def __add__(self, other: AShare | npt.ArrayLike) -> AShare:
        if isinstance(other, AShare):
            return self.combine(np.add, other)
        public = self._public(other)
        nothing = np.zeros_like(public)
        added = (public if constant else nothing for constant in self.owner.constants())
        return AShare(self.owner, *map(np.add, self.components, added))

    __radd__ = __add__

    def __neg__(self) -> AShare:
        return self.map(np.negative)

    def __sub__(self, other: AShare | npt.ArrayLike) -> AShare:
        if isinstance(other, AShare):
            return self.combine(np.subtract, other)
        return self + np.negative(self._public(other))

    def __rsub__(self, other: npt.ArrayLike) -> AShare:
        return (-self) + other

    def __mul__(self, public: npt.ArrayLike) -> AShare:
        if isinstance(public, AShare):
            raise ShareError("use the protocol `multiply`, not *, to multiply two shared arrays")
        factor = self._public(public)
        return self.map(lambda words: words * factor)

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> AShare:
        return self.map(lambda words: words[index])

    def reshape(self, *shape: int) -> AShare:
        """The same elements in another shape."""
        return self.map(lambda words: words.reshape(shape))

    def sum(self, axis: int | None = None) -> AShare:
        """pi_SUM: the sum of the elements, modulo 2^k. Local."""
        return self.map(lambda words: words.sum(axis, dtype=words.dtype))

    def cumsum(self, axis: int = -1) -> AShare:
        """Running sums along an axis, modulo 2^k. Local."""
        return self.map(lambda words: np.cumsum(words, axis, dtype=words.dtype))

    def weigh(self, weights: npt.ArrayLike) -> AShare:
        """Matrix product with public weights on the right. Local."""
        public = self._public(weights)
        return self.map(lambda words: words @ public)

    def narrow(self, ring: Ring) -> AShare:
        """The same elements modulo a smaller power of two. Local."""
        if ring.bits > self.ring.bits:
            raise ShareError(f"{self!r} cannot be narrowed to {ring!r}; lift it instead")
        return self.map(lambda words: words.astype(ring.dtype))

    def put(self, pieces: Sequence[tuple[Any, AShare]]) -> AShare:
        """The same array with some parts replaced, each given with its index. Local."""

        def changed(words: Words, *parts: Words) -> Words:
            out = words.copy(order="K")
            for (index, _), part in zip(pieces, parts, strict=True):
                out[index] = part
            return out

        return self.combine(changed, *(share for _, share in pieces))

    def scatter(self, positions: Any, shape: Shape) -> AShare:
        """An array of zeros with these elements at some positions. Local."""

        def scattered(words: Words) -> Words:
            out = np.zeros(shape, words.dtype)
            out[positions] = words
            return out

        return self.map(scattered)


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class BShare(_Inert):
    """XOR share of an array whose elements are `width` bits each, stored plane by plane.

    Components have shape (width, plane_words(size)): plane j holds bit j of every element, 64 elements to the word, so
    one machine instruction serves 64 elements and shifting bits is renaming planes.
    """

    owner: Owner
    shape: Shape
    components: tuple[Words, ...]

    def __init__(self, owner: Owner, shape: Shape, *components: Words) -> None:
        expected = (components[0].shape[0], plane_words(prod(shape)))
        if any(words.dtype != PLANE or words.shape != expected for words in components):
            raise ShareError(f"bit planes of {shape} must be {expected} words, not {components[0].shape}")
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "components", _alike(components))

    @property
    def scheme(self) -> Scheme:
        """What it is a share of."""
        return self.owner.scheme

    @property
    def width(self) -> int:
        """Bits per element."""
        return int(self.components[0].shape[0])

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __repr__(self) -> str:
        return f"<BShare {self.shape} of {self.width} bits, {self.owner!r}>"

    def map(self, function: Linear, shape: Shape | None = None) -> BShare:
        """A linear function of the planes, as bits of elements of the same or another shape. Local."""
        return BShare(self.owner, self.shape if shape is None else shape, *map(function, self.components))

    def combine(self, function: Linear, *others: BShare, shape: Shape | None = None) -> BShare:
        """A linear function of these planes and others, as bits of elements of the same or another shape. Local."""
        for other in others:
            if self.owner != other.owner:
                raise ShareError(f"a share of {other.owner!r} cannot be used with one of {self.owner!r}")
        parts = map(function, self.components, *(other.components for other in others))
        return BShare(self.owner, self.shape if shape is None else shape, *parts)

    def __xor__(self, other: BShare) -> BShare:
        if self.shape != other.shape:
            raise ShareError(f"bits of shape {self.shape} and {other.shape} do not fit together")
        if self.width != other.width:
            raise ShareError(f"{self.width} and {other.width} bits do not fit together")
        return self.combine(np.bitwise_xor, other)

    def __invert__(self) -> BShare:
        return self.flip(np.ones((self.width, 1), np.uint8))

    def flip(self, bits: npt.NDArray[np.uint8]) -> BShare:
        """XOR with public bits of shape (width, size), or (width, 1) for the same in every element."""
        same = bits.shape == (self.width, 1)
        return self.flip_planes(bits * pack_bits(np.ones((1, self.size), np.uint8)) if same else pack_bits(bits))

    def flip_planes(self, planes: Words) -> BShare:
        """XOR with public bit planes, or with words that serve whole planes."""
        parts = zip(self.components, self.owner.constants(), strict=True)
        return BShare(self.owner, self.shape, *(words ^ planes if constant else words for words, constant in parts))

    def mask(self, planes: Words) -> BShare:
        """AND with public bit planes. Local."""
        return self.map(lambda words: words & planes)

    def planes(self, index: Any) -> BShare:
        """The planes that a slice or index array picks, as a share of fewer, more or reordered bits."""
        return self.map(lambda words: words[index])

    def replace_planes(self, index: Any, planes: BShare) -> BShare:
        """The same bits, with the planes that an index picks replaced by those given. Local."""

        def replaced(words: Words, new: Words) -> Words:
            out = words.copy()
            out[index] = new
            return out

        return self.combine(replaced, planes)

    def take(self, indices: Indices) -> BShare:
        """The elements at `indices` of the flattened array, in the shape of `indices`."""
        count, flat = self.size, indices.reshape(-1)
        return self.map(lambda words: pack_bits(unpack_bits(words, count)[:, flat]), indices.shape)

    def reshape(self, *shape: int) -> BShare:
        """The same elements in another shape."""
        return BShare(self.owner, shape, *self.components)


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class RowShare(_Inert):
    """XOR share of n rows of r bytes each: the form in which rows are moved. To compute on them, take their planes."""

    owner: Owner
    components: tuple[Words, ...]

    def __init__(self, owner: Owner, *components: Words) -> None:
        for words in components:
            if words.dtype != Z8.dtype or words.ndim != 2:
                raise ShareError(f"rows must be a matrix of bytes, not {words.shape} of {words.dtype}")
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "components", _alike(components))

    @property
    def scheme(self) -> Scheme:
        """What it is a share of."""
        return self.owner.scheme

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and bytes of a row."""
        rows, width = self.components[0].shape
        return rows, width

    def __len__(self) -> int:
        return len(self.components[0])

    def __repr__(self) -> str:
        return f"<RowShare {self.shape}, {self.owner!r}>"

    def part(self, rows: slice, octets: slice) -> RowShare:
        """Some bytes of some rows. Local."""
        return RowShare(self.owner, *(words[rows, octets] for words in self.components))

    def widened(self, width: int) -> RowShare:
        """The same rows, padded with zeros to a number of bytes. Local."""
        more = ((0, 0), (0, width - self.shape[1]))
        return RowShare(self.owner, *(np.pad(words, more) for words in self.components))

    def bits(self, rows: slice | Indices, octets: slice) -> BShare:
        """The bits of some bytes of some rows: bit j of byte i (of those taken) is plane 8i + j."""
        chosen = [words[rows] if isinstance(rows, slice) else words.take(rows, axis=0) for words in self.components]
        return BShare(self.owner, (len(chosen[0]),), *(_planes(words[:, octets]) for words in chosen))


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
    return RowShare(x.owner, *(_octets(words, x.size) for words in x.components))


def _octets(planes: Words, rows: int) -> Words:
    words = [planes_to_words(planes[start : start + 64], rows) for start in range(0, len(planes), 64)]
    return np.stack(words, axis=1).view(np.uint8)


def concatenate_rows(shares: Sequence[RowShare]) -> RowShare:
    """The rows of several shares, one after another. Local."""
    return RowShare(shares[0].owner, *_joined([share.components for share in shares]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Summands(_Inert):
    """Sums of products before they are shared: what a party can add up by itself, in its scheme's own form.

    Sums of them, and linear functions, are local and cost nothing; so a sum of products costs as much as one product,
    namely when it becomes a sharing (`reshare`, `reshare_bits`). Until then it must not leave the party.
    """

    owner: Owner
    parts: tuple[Words, ...]

    @property
    def scheme(self) -> Scheme:
        """What they will become shares of."""
        return self.owner.scheme

    def __repr__(self) -> str:
        return f"<Summands {self.parts[0].shape}, {self.owner!r}>"

    def map(self, function: Linear) -> Summands:
        """A linear function of the sums. Local."""
        return Summands(self.owner, tuple(map(function, self.parts)))

    def combine(self, function: Linear, *others: Summands) -> Summands:
        """A linear function of these sums and others. Local."""
        return Summands(self.owner, tuple(map(function, self.parts, *(other.parts for other in others))))


def lifted_from(x: AShare, ring: Ring, modulo: Ring | None) -> Ring:
    """The ring that x is lifted from: that of its words, or a smaller one. It must be smaller than the other."""
    source = x.ring if modulo is None else modulo
    if source.bits >= ring.bits or source.dtype != x.ring.dtype:
        raise DomainError(f"{source!r} in words of {x.ring!r} cannot be lifted to {ring!r}")
    return source


def check_segments(sign: BShare, y: AShare, starts: Indices) -> None:
    """Refuse signs that are not those of a vector, and segments that are not all of it."""
    if len(y.shape) != 1 or sign.shape != y.shape or sign.width != 1:
        raise ShareError(f"{sign!r} must have one sign for each element of {y!r}")
    if not len(starts) or starts[0] != 0 or np.any(np.diff(starts) < 1) or starts[-1] >= y.size:
        raise DomainError("segments must start at 0, be in order and not be empty")


def stack_planes(shares: Sequence[BShare]) -> BShare:
    """Concatenate planes, lowest first: the elements of the result have the sum of the widths."""
    first, *others = shares
    for share in others:
        if first.shape != share.shape:
            raise ShareError(f"bits of shape {first.shape} and {share.shape} do not fit together")
    return first.combine(lambda *parts: np.concatenate(parts), *others)


def concatenate(shares: Sequence[AShare], axis: int = 0) -> AShare:
    """Join shared arrays along an axis. Local."""
    first, *others = shares
    return first.combine(lambda *parts: np.concatenate(parts, axis), *others)


def _joined(components: Sequence[tuple[Words, ...]]) -> list[Words]:
    return [np.concatenate(parts) for parts in zip(*components, strict=True)]


def component_bits(words: Words, width: int) -> Words:
    """The bit planes of one component."""
    return words_to_planes(words.astype(PLANE, copy=False), width)


def bits_of(planes: Words, shape: Shape, ring: Ring) -> Words:
    """Words of `ring` back from the planes of one component."""
    return planes_to_words(planes, prod(shape)).astype(ring.dtype, copy=False).reshape(shape)
