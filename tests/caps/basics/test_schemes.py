"""The public facts of schemes: who holds what, so that one server learns nothing and two learn all."""

from __future__ import annotations

from itertools import combinations
from typing import get_args

import pytest

from caps.basics.schemes import REP3, REP4, SCHEMES, Scheme, SchemeName

ALL = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))


def test_every_scheme_can_be_named_and_every_name_is_a_scheme() -> None:
    assert get_args(SchemeName) == tuple(SCHEMES)
    assert all(name == scheme.name for name, scheme in SCHEMES.items())


@ALL
def test_one_server_lacks_a_component_and_two_have_all(scheme: Scheme) -> None:
    components = set(range(scheme.components))
    assert all(set(held) < components for held in scheme.held)
    assert all(set(one) | set(other) == components for one, other in combinations(scheme.held, 2))


@ALL
def test_all_components_but_one_are_seeds(scheme: Scheme) -> None:
    assert {*scheme.seeded, scheme.vector} == set(range(scheme.components))
    assert scheme.vector not in scheme.seeded


@ALL
def test_who_holds_a_component_is_what_each_server_holds(scheme: Scheme) -> None:
    for component in range(scheme.components):
        holders = scheme.holders_of(component)
        assert all((party in holders) == (component in held) for party, held in enumerate(scheme.held))


def test_servers_are_listed_in_words() -> None:
    assert REP3.servers_listed == "S1, S2 and S3"
    assert REP4.servers_listed == "S1, S2, S3 and S4"
    assert REP4.peers_of(2) == (3, 0, 1)
