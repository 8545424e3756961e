"""The common order of rows against set algebra, and the OPRF for drawn inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.oprf import Client, ServerKey, Tags, positions

pytestmark = pytest.mark.property

holders = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.lists(st.integers(0, 20), unique=True, max_size=12), min_size=1
)


def tags(persons: list[int]) -> Tags:
    """Tags of persons; equal but for one byte at either end, which sorting as bytes must not mistake."""
    table = np.zeros((len(persons), 16), np.uint8)
    table[:, 0] = [person % 3 for person in persons]
    table[:, 15] = persons
    return table


@settings(deadline=None)
@given(holders, st.integers(0, 9), st.binary(min_size=32, max_size=32))
def test_positions_are_the_union(tables: dict[str, list[int]], spare: int, key: bytes) -> None:
    union = set().union(*tables.values())
    match = positions({name: tags(persons) for name, persons in tables.items()}, key, size=len(union) + spare)
    places: dict[int, int] = {}
    for name, persons in tables.items():
        for person, place in zip(persons, match.positions[name].tolist(), strict=True):
            assert places.setdefault(person, place) == place
    assert set(places) == union
    assert len(set(places.values())) == len(union)
    assert all(0 <= place < match.size for place in places.values())
    inner = set.intersection(*map(set, tables.values()))
    assert np.flatnonzero(match.everywhere).tolist() == sorted(places[person] for person in inner)


@settings(deadline=None)
@given(holders, st.binary(min_size=32, max_size=32))
def test_positions_are_repeatable_and_bound_to_all_tags(tables: dict[str, list[int]], key: bytes) -> None:
    given_tags = {name: tags(persons) for name, persons in tables.items()}
    one = positions(given_tags, key, size=100)
    again = positions(dict(reversed(given_tags.items())), key, size=100)
    assert all((one.positions[name] == again.positions[name]).all() for name in tables)
    changed = positions(given_tags | {"e": tags([99])}, key, size=100)
    if len(set().union(*tables.values())) > 8:  # 100^-8 to be equal by chance
        assert any((one.positions[name] != changed.positions[name]).any() for name in tables)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=4), st.binary(min_size=32, max_size=32))
def test_equal_ids_have_equal_tags_and_only_they(ids: list[bytes], seed: bytes) -> None:
    keys = [ServerKey(bytes([1 + number]) + bytes(31)) for number in range(3)]
    client = Client(seed)
    given_ids = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 16)
    batch = client.blind(given_ids)
    found = [bytes(tag) for tag in client.finalise(given_ids, [key.evaluate(batch) for key in keys])]
    assert len(set(zip(ids, found, strict=True))) == len(set(ids)) == len(set(found))
