from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from caps.errors import DomainError, ShareError
from caps.shares.ring import (
    RINGS,
    SHARED_RINGS,
    Z16,
    Z22,
    Z24,
    Z32,
    Z64,
    Ring,
    pack_bits,
    planes_to_words,
    ring_of,
    unpack_bits,
    words_to_planes,
)
from services.mpc_server.engine.paper.fixed import decode_fixed, encode_fixed


@given(hnp.arrays(np.uint64, st.integers(0, 300)), st.integers(1, 64))
def test_planes_hold_the_bits_of_words(words: np.ndarray, width: int) -> None:
    planes = words_to_planes(words, width)
    for bit in range(width):
        expected = (words >> np.uint64(bit) & np.uint64(1)).astype(np.uint8)
        assert np.array_equal(unpack_bits(planes[bit], words.size), expected)
    mask = np.uint64((1 << width) - 1)
    assert np.array_equal(planes_to_words(planes, words.size), words & mask)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(0, 200)), elements=st.integers(0, 1)))
def test_packing_is_undone_by_unpacking(bits: np.ndarray) -> None:
    packed = pack_bits(bits)
    assert packed.dtype == np.dtype("<u8")
    assert np.array_equal(unpack_bits(packed, bits.shape[-1]), bits)


@pytest.mark.parametrize("ring", RINGS.values(), ids=repr)
def test_integers_are_taken_modulo_the_ring_and_read_back_signed(ring) -> None:
    values = np.array([-1, 0, 1, -(1 << (ring.bits - 1)), (1 << (ring.bits - 1)) - 1])
    assert np.array_equal(ring.signed(ring.encode(values)), values)
    assert ring_of(ring.encode(values)) == ring


@pytest.mark.parametrize("values", [[0.5], [np.nan], ["1"], [1j], [None]])
def test_anything_but_integers_is_refused(values) -> None:
    with pytest.raises(ShareError, match="must be integers"):
        Z64.encode(values)


def test_a_dtype_that_is_no_ring_is_refused() -> None:
    with pytest.raises(ShareError, match="no ring has words of int64"):
        ring_of(np.zeros(1, np.int64))


@given(st.floats(-(2.0**40), 2.0**40), st.integers(0, 20))
def test_fixed_point_rounds_to_the_nearest_multiple(value: float, frac: int) -> None:
    assert abs(decode_fixed(encode_fixed(value, frac=frac), frac=frac) - value) <= 2.0 ** -(frac + 1)


@pytest.mark.parametrize("value", [2.0**42, -(2.0**42), np.inf, -np.inf, np.nan])
def test_numbers_beyond_fixed_point_are_refused(value: float) -> None:
    with pytest.raises(DomainError, match="below 2\\^42"):
        encode_fixed(value, frac=20)


def test_a_count_of_65535_fits_the_counting_ring() -> None:
    assert Z16.encode(65_535) == 65_535


@pytest.mark.parametrize("ring", [Z22, Z24], ids=repr)
def test_bits_that_mean_nothing_are_not_read(ring: Ring) -> None:
    values = np.array([-1, 0, 1, -(1 << (ring.bits - 1)), (1 << (ring.bits - 1)) - 1])
    words = ring.encode(values)
    assert words.dtype == Z32.dtype
    assert np.array_equal(words, values % (1 << ring.bits))
    dirty = words + (np.arange(1, 6, dtype=np.uint32) << np.uint32(ring.bits))
    assert not np.array_equal(dirty, words)
    assert np.array_equal(ring.signed(dirty), values)
    assert np.array_equal(ring.reduce(dirty), words)
    assert ring_of(words) == Z32


def test_bits_that_mean_nothing_do_not_travel() -> None:
    assert Z24.to_bytes(np.array([0xFF00_0001, 0x0100_0000], np.uint32)) == b"\1\0\0\0\0\0"


rings = st.sampled_from(list(SHARED_RINGS.values()))


@given(rings, st.data())
def test_words_travel_in_as_many_bytes_as_their_ring_has_and_may_be_cut_anywhere(
    ring: Ring, data: st.DataObject
) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=6))
    words = ring.encode(data.draw(hnp.arrays(np.uint64, shape)))
    content = ring.to_bytes(words)
    whole = b"".join(int(word).to_bytes(ring.bits // 8, "little") for word in words.reshape(-1))
    assert content == whole
    assert np.array_equal(ring.from_bytes(content), words.reshape(-1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    pieces = [content[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    found = ring.read(shape, pieces)
    assert found.dtype == ring.dtype
    assert np.array_equal(found, words)


@pytest.mark.parametrize("pieces", [[], [b"12345"], [b"123", b"45"], [b"1234567"], [b"123456", b"7"], [b"123"] * 4])
def test_too_few_or_too_many_bytes_are_refused(pieces: list[bytes]) -> None:
    with pytest.raises(ShareError, match=r"\(2,\) over Z_2\^24 has 6 bytes, not"):
        Z24.read((2,), pieces)
