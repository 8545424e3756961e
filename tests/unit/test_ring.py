from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from caps.errors import DomainError, ShareError
from caps.fixed import decode_fixed, encode_fixed
from caps.ring import RINGS, Z16, Z64, pack_bits, planes_to_words, ring_of, unpack_bits, words_to_planes


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
    with pytest.raises(ShareError, match="holds integers"):
        Z64.encode(values)


def test_a_dtype_that_is_no_ring_is_refused() -> None:
    with pytest.raises(ShareError, match="no ring is held in int64"):
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
