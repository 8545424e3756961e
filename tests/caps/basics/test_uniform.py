import numpy as np
import pytest

from caps.basics.uniform import Uniform
from caps.errors import DomainError


def test_known_answers_for_ever():
    assert Uniform(0).words(2).tolist() == [794085907285131811, 487835861783863272]
    assert Uniform("caps").words(1).tolist() == [12721301926706004369]
    # AES-256 of the zero block under the zero key: FIPS 197, NIST KAT
    assert Uniform(bytes(32)).words(2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


@pytest.mark.parametrize("seed", [0, -1, 2**80, "a", "", bytes(32)])
def test_the_same_seed_draws_the_same_however_it_is_cut(seed):
    one, other = Uniform(seed), Uniform(seed)
    assert np.array_equal(np.concatenate([one.words(3), one.words(5)]), other.words(8))


def test_seeds_of_different_types_differ():
    seeds = [0, 1, "0", "1", bytes(32), None, None]
    assert len({int(Uniform(seed).words(1)[0]) for seed in seeds}) == len(seeds)


def test_floats_lie_in_the_unit_interval_evenly():
    floats = Uniform(1).floats(100_000)
    assert floats.min() >= 0
    assert floats.max() < 1
    assert np.abs(np.bincount((floats * 10).astype(int)) - 10_000).max() < 500


@pytest.mark.parametrize("below", [1, 2, 3, 10, 2**63 - 1, 2**63])
def test_integers_lie_below(below):
    drawn = Uniform(2).integers(1000, below)
    assert drawn.min() >= 0
    assert int(drawn.max()) < below


def test_integers_are_even_where_a_plain_remainder_would_not_be():
    drawn = Uniform(3).integers(30_000, 3 << 61)
    assert abs(np.count_nonzero(drawn < 1 << 61) - 10_000) < 500  # a remainder would give 11,250


def test_a_permutation_holds_every_number_once():
    assert sorted(Uniform(4).permutation(100)) == list(range(100))
    firsts = [int(Uniform(seed).permutation(4)[0]) for seed in range(4000)]
    assert np.abs(np.bincount(firsts) - 1000).max() < 150


@pytest.mark.parametrize("seed", [True, 1.5, b"short"])
def test_other_seeds_are_refused(seed):
    with pytest.raises(DomainError):
        Uniform(seed)


@pytest.mark.parametrize("below", [0, -1, 2**63 + 1])
def test_impossible_ranges_are_refused(below):
    with pytest.raises(DomainError):
        Uniform(0).integers(1, below)
