from __future__ import annotations

import secrets
import tracemalloc
from functools import partialmethod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from caps.basics.schemes import REP3, Scheme
from caps.errors import DomainError, LabelReused, ShareError
from caps.shares import sharing
from caps.shares.prss import Prss, component_key, expand
from caps.shares.ring import RINGS, Z16, Z24, Z32, Z64
from caps.shares.sharing import Algebra, Explicit, Seeded, deal, reconstruct
from services.mpc_server.engine.keys import randomness
from services.mpc_server.engine.shares import Owner

any_words = st.sampled_from(list(RINGS.values())).flatmap(
    lambda ring: hnp.arrays(ring.dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


@given(any_words, st.sampled_from(Algebra))
def test_three_dealt_shares_give_the_value_back(values: np.ndarray, algebra: Algebra) -> None:
    shares = deal(values, entropy=secrets.token_bytes, algebra=algebra)
    assert np.array_equal(reconstruct([share.components() for share in shares], algebra=algebra), values)


def test_words_of_a_smaller_ring_are_dealt_in_its_bits_alone() -> None:
    """What a server receives has nothing above 24 bits: a borrow there would tell of the value."""
    values = np.arange(3000, dtype=np.uint32).reshape(1000, 3)
    shares = deal(values, entropy=secrets.token_bytes, ring=Z24)
    components = [share.components() for share in shares]
    for words in (one for pair in components for one in pair):
        assert words.dtype == np.uint32
        assert words.max() < 1 << 24
        assert stats.chisquare(np.bincount(words.reshape(-1) >> 16, minlength=256)).pvalue > 1e-9
    assert np.array_equal(Z24.reduce(reconstruct(components)), values)
    assert not np.array_equal(reconstruct(components), values)


@pytest.mark.parametrize("ring", [Z16, Z24, Z32], ids=repr)
@pytest.mark.parametrize("count", [3, 1000])
def test_a_component_is_expanded_in_pieces(monkeypatch: pytest.MonkeyPatch, ring, count: int) -> None:
    """Whatever the pieces are, it is the stream that the holder subtracts."""
    monkeypatch.setattr(sharing, "_PIECE_BYTES", 7)
    found = Seeded(bytes(range(32)), 1).words((count, 2), ring)
    assert np.array_equal(found, expand(bytes(range(32)), sharing.COMPONENT_LABEL + b"\1", (count, 2), ring))


def test_expanding_a_component_holds_its_words_and_little_else() -> None:
    tracemalloc.start()
    words = Seeded(bytes(range(32)), 0).words((10_000, 1000), Z24)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.25 * words.nbytes


def test_two_of_three_components_are_seeds_and_the_vector_goes_to_two_servers() -> None:
    first, second, third = deal(np.zeros(1000, Z64.dtype), entropy=secrets.token_bytes)
    assert [type(part) for part in first.parts] == [Seeded, Seeded]
    assert [type(part) for part in second.parts] == [Seeded, Explicit]
    assert [type(part) for part in third.parts] == [Explicit, Seeded]
    assert second.parts[1] is third.parts[0]


@pytest.mark.parametrize("fill", [0, 1, (1 << 64) - 1])
def test_what_one_server_receives_is_uniform_whatever_the_value(fill: int) -> None:
    for share in deal(np.full(4096, fill, Z64.dtype), entropy=secrets.token_bytes):
        mine, next_ = share.components()
        for words in (mine, next_, mine + next_, mine - next_):
            assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-9


def test_copies_that_differ_are_refused_and_their_holders_named() -> None:
    pairs = [share.components() for share in deal(np.arange(5, dtype=Z64.dtype), entropy=secrets.token_bytes)]
    pairs[1] = (pairs[1][0] + np.uint64(1), pairs[1][1])
    with pytest.raises(ShareError, match="S1 and S2 hold different copies"):
        reconstruct(pairs)
    with pytest.raises(ShareError, match="3 servers"):
        reconstruct(pairs[:2])


@pytest.mark.parametrize("entropy", [bytes, lambda n: secrets.token_bytes(n - 1)])
def test_a_broken_entropy_source_is_refused(entropy) -> None:
    with pytest.raises(DomainError, match="fresh bytes"):
        deal(np.zeros(3, Z64.dtype), entropy=entropy)


def test_an_explicit_component_must_be_what_was_announced() -> None:
    with pytest.raises(ShareError, match="expected"):
        Explicit(np.zeros(4, Z64.dtype)).words((5,), Z64)
    with pytest.raises(ShareError, match="expected"):
        Explicit(np.zeros(4, Z64.dtype)).words((4,), Z16)


def parties() -> list[Prss]:
    return [
        randomness(Owner(p, bytes(32), REP3), {component: bytes([1 + component]) * 32 for component in held}, b"run 1")
        for p, held in enumerate(REP3.held)
    ]


def test_neighbours_draw_the_same_words_and_all_components_differ() -> None:
    pairs = [prss.replicated(b"a", (8,), Z64) for prss in parties()]
    for p in range(3):
        assert np.array_equal(pairs[p][1], pairs[(p + 1) % 3][0])
    assert len({pair[0].tobytes() for pair in pairs}) == 3


@pytest.mark.parametrize("draw", [Prss.replicated, partialmethod(Prss.component, 0), partialmethod(Prss.component, 1)])
def test_a_label_serves_one_draw(draw) -> None:
    prss = parties()[0]
    prss.replicated(b"twice", (1,), Z64)
    with pytest.raises(LabelReused, match="twice"):
        draw.__get__(prss)(b"twice", (1,), Z64)


def test_four_servers_may_hold_three_of_four_components() -> None:
    """Dealing asks the scheme who holds what."""
    scheme = Scheme("rep4", held=((0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1)), seeded=(0, 1, 2))
    values = np.arange(100, dtype=Z64.dtype)
    shares = deal(values, entropy=secrets.token_bytes, scheme=scheme)
    assert [sum(isinstance(part, Explicit) for part in share.parts) for share in shares] == [0, 1, 1, 1]
    assert np.array_equal(reconstruct([share.components() for share in shares], scheme=scheme), values)


def test_streams_of_labels_seeds_and_scopes_are_unrelated() -> None:
    seed = bytes(range(32))
    streams = {
        expand(seed, b"a", (4,), Z64).tobytes(),
        expand(seed, b"b", (4,), Z64).tobytes(),
        expand(component_key(seed, 0, b"s"), b"a", (4,), Z64).tobytes(),
        expand(component_key(seed, 1, b"s"), b"a", (4,), Z64).tobytes(),
        expand(component_key(seed, 0, b"t"), b"a", (4,), Z64).tobytes(),
    }
    assert len(streams) == 5


def test_a_short_seed_is_refused() -> None:
    with pytest.raises(DomainError, match="32 bytes"):
        expand(b"short", b"a", (1,), Z64)


@pytest.mark.parametrize(("count", "first"), [(4, [33909, 14151, 43292, 46843]), (400, [44905, 7592, 11841, 49558])])
def test_expansion_is_pinned(count: int, first: list[int]) -> None:
    """Changing the key schedule changes every stored share: it needs a new version label, not a silent edit."""
    assert expand(bytes(32), b"vector", (count,), Z16)[:4].tolist() == first


@pytest.mark.parametrize("count", [4, 400])
def test_words_of_three_bytes_are_cut_from_the_same_stream(count: int) -> None:
    wide, narrow = expand(bytes(32), b"vector", (2 * count,), Z24), expand(bytes(32), b"vector", (3 * count,), Z16)
    assert Z24.to_bytes(wide) == narrow.tobytes()
