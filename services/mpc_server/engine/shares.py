"""Secret-shared arrays as one party holds them. Inert: no truth value, no contents in repr, no pickle.

Party i holds components i (`mine`) and i+1 (`next`) of x = x_0 + x_1 + x_2, or of x = x_0 ^ x_1 ^ x_2 for bits.
Everything here is local: adding shares, scaling by public numbers, rearranging. What needs the peers is a protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.errors import ShareError, party_name
from caps.shares.ring import (
    PLANE,
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


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose share it is: a party of one study's session. Shares of different owners never mix."""

    party: int
    study: bytes

    def __repr__(self) -> str:
        return f"{party_name(self.party)} of study {self.study.hex()[:12]}"


class _Inert:
    """What no share may do."""

    __slots__ = ()
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise ShareError("a shared value has no truth value: compare with a protocol, then reveal if you may")

    def __eq__(self, other: object) -> NoReturn:
        raise ShareError("shared values are compared with the protocol `equal`, not with ==")

    def __iter__(self) -> NoReturn:
        raise ShareError("a shared array is not iterated: write the protocol on the whole array")

    def __reduce__(self) -> NoReturn:
        raise ShareError("shares are never pickled")

    def __format__(self, spec: str) -> str:
        return repr(self)


def _freeze(words: Words) -> None:
    words.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AShare(_Inert):
    """Arithmetic share of an array over Z_2^k."""

    owner: Owner
    mine: Words
    next: Words

    def __post_init__(self) -> None:
        if self.mine.shape != self.next.shape or self.mine.dtype != self.next.dtype:
            raise ShareError(
                f"components differ: {self.mine.shape} {self.mine.dtype} and {self.next.shape} {self.next.dtype}"
            )
        if not self.mine.shape:  # arithmetic on arrays without axes yields numpy scalars, whose overflow would warn
            object.__setattr__(self, "mine", np.asarray(self.mine))
            object.__setattr__(self, "next", np.asarray(self.next))
        _freeze(self.mine)
        _freeze(self.next)

    @property
    def ring(self) -> Ring:
        """The ring of the elements."""
        return ring_of(self.mine)

    @property
    def shape(self) -> Shape:
        """Shape of the shared array."""
        return self.mine.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.mine.size

    def __len__(self) -> int:
        return len(self.mine)

    def __repr__(self) -> str:
        return f"<AShare {self.shape} of {self.ring!r}, {self.owner!r}>"

    def _with(self, mine: Words, next_: Words) -> AShare:
        return AShare(self.owner, mine, next_)

    def _public(self, public: npt.ArrayLike) -> Words:
        return self.ring.encode(public)

    def _check(self, other: AShare) -> None:
        if self.owner != other.owner:
            raise ShareError(f"a share of {other.owner!r} cannot be used with one of {self.owner!r}")
        if self.mine.dtype != other.mine.dtype:
            raise ShareError(f"{self.ring!r} and {other.ring!r} do not mix: lift the smaller first")

    def __add__(self, other: AShare | npt.ArrayLike) -> AShare:
        if isinstance(other, AShare):
            self._check(other)
            return self._with(self.mine + other.mine, self.next + other.next)
        public = self._public(other)
        # A public constant is the sharing (c, 0, 0): component 0 is `mine` of S1 and `next` of S3.
        return self._with(
            self.mine + public if self.owner.party == 0 else self.mine + np.zeros_like(public),
            self.next + public if self.owner.party == 2 else self.next + np.zeros_like(public),
        )

    __radd__ = __add__

    def __neg__(self) -> AShare:
        return self._with(np.negative(self.mine), np.negative(self.next))

    def __sub__(self, other: AShare | npt.ArrayLike) -> AShare:
        if isinstance(other, AShare):
            self._check(other)
            return self._with(self.mine - other.mine, self.next - other.next)
        return self + np.negative(self._public(other))

    def __rsub__(self, other: npt.ArrayLike) -> AShare:
        return (-self) + other

    def __mul__(self, public: npt.ArrayLike) -> AShare:
        if isinstance(public, AShare):
            raise ShareError("two shared arrays are multiplied with the protocol `multiply`, not with *")
        factor = self._public(public)
        return self._with(self.mine * factor, self.next * factor)

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> AShare:
        return self._with(self.mine[index], self.next[index])

    def reshape(self, *shape: int) -> AShare:
        """The same elements in another shape."""
        return self._with(self.mine.reshape(shape), self.next.reshape(shape))

    def sum(self, axis: int | None = None) -> AShare:
        """pi_SUM: the sum of the elements, modulo 2^k. Local."""
        dtype = self.mine.dtype
        return self._with(self.mine.sum(axis, dtype=dtype), self.next.sum(axis, dtype=dtype))

    def cumsum(self) -> AShare:
        """Running sums of a vector, modulo 2^k. Local."""
        dtype = self.mine.dtype
        return self._with(np.cumsum(self.mine, dtype=dtype), np.cumsum(self.next, dtype=dtype))

    def weigh(self, weights: npt.ArrayLike) -> AShare:
        """Matrix product with public weights on the right. Local."""
        public = self._public(weights)
        return self._with(self.mine @ public, self.next @ public)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BShare(_Inert):
    """XOR share of an array whose elements are `width` bits each, stored plane by plane.

    `mine` and `next` have shape (width, plane_words(size)): plane j holds bit j of every element, 64 elements to the
    word, so one machine instruction serves 64 elements and shifting bits is renaming planes.
    """

    owner: Owner
    shape: Shape
    mine: Words
    next: Words

    def __post_init__(self) -> None:
        expected = (self.mine.shape[0], plane_words(self.size))
        if self.mine.dtype != PLANE or self.next.dtype != PLANE or not self.mine.shape == self.next.shape == expected:
            raise ShareError(f"bit planes of {self.shape} must be {expected} words, not {self.mine.shape}")
        _freeze(self.mine)
        _freeze(self.next)

    @property
    def width(self) -> int:
        """Bits per element."""
        return int(self.mine.shape[0])

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __repr__(self) -> str:
        return f"<BShare {self.shape} of {self.width} bits, {self.owner!r}>"

    def _with(self, mine: Words, next_: Words) -> BShare:
        return BShare(self.owner, self.shape, mine, next_)

    def _check(self, other: BShare) -> None:
        if self.owner != other.owner:
            raise ShareError(f"a share of {other.owner!r} cannot be used with one of {self.owner!r}")
        if self.shape != other.shape:
            raise ShareError(f"bits of shape {self.shape} and {other.shape} do not fit together")

    def __xor__(self, other: BShare) -> BShare:
        self._check(other)
        if self.width != other.width:
            raise ShareError(f"{self.width} and {other.width} bits do not fit together")
        return self._with(self.mine ^ other.mine, self.next ^ other.next)

    def __invert__(self) -> BShare:
        return self.flip(np.ones((self.width, 1), np.uint8))

    def flip(self, bits: npt.NDArray[np.uint8]) -> BShare:
        """XOR with public bits of shape (width, size), or (width, 1) for the same in every element."""
        same = bits.shape == (self.width, 1)
        public = bits * pack_bits(np.ones((1, self.size), np.uint8)) if same else pack_bits(bits)
        return self._with(
            self.mine ^ public if self.owner.party == 0 else self.mine,
            self.next ^ public if self.owner.party == 2 else self.next,
        )

    def planes(self, index: Any) -> BShare:
        """The planes that a slice or index array picks, as a share of fewer, more or reordered bits."""
        return self._with(self.mine[index], self.next[index])

    def take(self, indices: npt.NDArray[np.intp]) -> BShare:
        """The elements at `indices` of the flattened array, in the shape of `indices`."""
        count = self.size
        flat = indices.reshape(-1)
        mine, next_ = (pack_bits(unpack_bits(part, count)[:, flat]) for part in (self.mine, self.next))
        return BShare(self.owner, indices.shape, mine, next_)

    def reshape(self, *shape: int) -> BShare:
        """The same elements in another shape."""
        return BShare(self.owner, shape, self.mine, self.next)


def stack_planes(shares: Sequence[BShare]) -> BShare:
    """Concatenate planes, lowest first: the elements of the result have the sum of the widths."""
    for share in shares[1:]:
        shares[0]._check(share)
    return shares[0]._with(
        np.concatenate([share.mine for share in shares]), np.concatenate([share.next for share in shares])
    )


def concatenate(shares: Sequence[AShare], axis: int = 0) -> AShare:
    """Join shared arrays along an axis. Local."""
    for share in shares[1:]:
        shares[0]._check(share)
    return shares[0]._with(
        np.concatenate([share.mine for share in shares], axis), np.concatenate([share.next for share in shares], axis)
    )


def component_bits(words: Words, width: int) -> Words:
    """The bit planes of one component."""
    return words_to_planes(words.astype(PLANE, copy=False), width)


def bits_of(planes: Words, shape: Shape, ring: Ring) -> Words:
    """Words of `ring` back from the planes of one component."""
    return planes_to_words(planes, prod(shape)).astype(ring.dtype, copy=False).reshape(shape)
