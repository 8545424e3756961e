"""Requests on the wire: they come back as they were, and anything else is refused."""

from __future__ import annotations

import copy
import json
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caps.basics import canonical
from caps.dp.oracle import Compute, Measurement, Request, Selection, StepRequest, request_digest, spelled
from caps.dp.privacy import Gaussian, Laplace, NoisyMax, PermuteAndFlip
from caps.errors import DomainError
from caps.wire.steps import request_from_json, request_to_json

pytestmark = pytest.mark.property

ratios = st.fractions(min_value=F(1, 10**6), max_value=10**6, max_denominator=10**9)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
cliques = st.lists(texts, min_size=1, max_size=4).map(tuple)
integers = st.lists(st.integers(-canonical.MAX_INTEGER, canonical.MAX_INTEGER), max_size=8)
arrays = integers.map(lambda numbers: np.array(numbers, np.int64))
selections = st.builds(
    Selection,
    texts,
    st.lists(cliques, max_size=4).map(tuple),
    arrays,
    arrays,
    arrays,
    st.builds(NoisyMax, ratios, ratios) | st.builds(PermuteAndFlip, ratios),
)
measurements = st.builds(
    Measurement,
    texts,
    cliques,
    st.builds(Gaussian, ratios) | st.builds(Laplace, ratios),
    st.none() | st.integers(0, canonical.MAX_INTEGER),
)
SELECT = Selection(
    "round1-select",
    (("a", "b"), ("c",)),
    np.array([1, -2, 3], np.int64),
    np.array([0, 4], np.int64),
    np.array([1, 2], np.int64),
    NoisyMax.of_star(F(1, 3)),
)
MEASURE = Measurement("round1-measure", ("a", "b"), Gaussian(F(7, 2)), 12)


@given(selections | measurements | st.just(Compute()))
def test_requests_survive_json(request: StepRequest) -> None:
    written = canonical.dump(request_to_json(request))
    again = request_from_json(canonical.load(written))
    assert type(again) is type(request)
    assert canonical.dump(request_to_json(again)) == written
    for name, value in vars(request).items():
        read = getattr(again, name)
        if isinstance(value, np.ndarray):
            assert read.dtype == np.int64
            assert np.array_equal(read, value)
        else:
            assert read == value
            assert type(read) is type(value)
    assert request_digest(again) == request_digest(request)


@given(selections | measurements, selections | measurements)
def test_digests_differ_where_requests_do(one: Request, other: Request) -> None:
    same = request_to_json(one) == request_to_json(other)
    assert (request_digest(one) == request_digest(other)) == same


def test_what_is_written_is_json_of_integers_and_text() -> None:
    for request in (SELECT, MEASURE):
        written = request_to_json(request)
        assert json.loads(json.dumps(written)) == written


RATIO = {"kind": "gaussian", "sigma_squared": "7/2"}
BAD = [
    (MEASURE, "kind", ["read", "select", None, 1, ["measure"]]),
    (MEASURE, "step", [None, 1, b"x", ["x"]]),
    (MEASURE, "clique", [None, "ab", {"a": 1}, ["a", 1], ["a", None], [["a"]]]),
    (MEASURE, "mechanism", [None, "gaussian", {}, {"kind": "noisy-max", "epsilon_star": "1/1", "kappa": "0/1"}]),
    (MEASURE, "mechanism", [{**RATIO, "x": 1}, {**RATIO, "sigma_squared": 3.5}, {**RATIO, "sigma_squared": "14/4"}]),
    (MEASURE, "mechanism", [{**RATIO, "sigma_squared": "-1/2"}, {**RATIO, "kind": ["gaussian"]}]),
    (MEASURE, "draws", [1.0, "1", True, 2**53, -(2**70), [1]]),
    (MEASURE, "distributed", [True, False]),
    (SELECT, "kind", ["measure", "Select"]),
    (SELECT, "step", [None, 1.5]),
    (SELECT, "candidates", [None, {}, "ab", ["ab"], [["a"], 1], [["a", 2]]]),
    (SELECT, "mechanism", [RATIO, None]),
    *(
        (
            SELECT,
            name,
            [None, 3, "12", {"0": 1}, [1], "AAAAAA==", "AAAAAAAAAAA", "AAAAAAAAAAB=", " AAAAAAAAAAA=", "é" * 4],
        )
        for name in ("estimate", "bias", "weights")
    ),
]


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63 - 1, -(2**63)])
def test_integers_that_json_could_not_carry_are_refused(number: int) -> None:
    for name in ("estimate", "bias", "weights"):
        with pytest.raises(DomainError, match="2\\*\\*53"):
            request_from_json(request_to_json(SELECT) | {name: spelled([number])})


@pytest.mark.parametrize(("request_", "member", "values"), BAD, ids=lambda given: str(given)[:20])
def test_members_of_a_wrong_kind_are_refused(request_: Request, member: str, values: list) -> None:
    for value in values:
        with pytest.raises(DomainError):
            request_from_json({**copy.deepcopy(request_to_json(request_)), member: value})


@pytest.mark.parametrize("request_", [SELECT, MEASURE], ids=["select", "measure"])
def test_members_are_exactly_those_expected(request_: Request) -> None:
    written = request_to_json(request_)
    request_from_json(written)
    with pytest.raises(DomainError):
        request_from_json({**written, "more": 1})
    for member in written:
        with pytest.raises(DomainError):
            request_from_json({name: value for name, value in written.items() if name != member})


def test_to_compute_is_a_request_of_one_member() -> None:
    assert request_to_json(Compute()) == {"kind": "compute"}
    assert isinstance(request_from_json({"kind": "compute"}), Compute)
    with pytest.raises(DomainError):
        request_from_json({"kind": "compute", "step": "compute"})


@pytest.mark.parametrize("value", [None, [], "select", 1, {}, {"kind": "select"}, b"{}"])
def test_what_is_no_request_is_refused(value: object) -> None:
    with pytest.raises(DomainError):
        request_from_json(value)


def test_integers_that_json_cannot_carry_have_no_digest() -> None:
    with pytest.raises(DomainError, match="2\\*\\*53"):
        request_digest(Measurement("s", ("a",), Gaussian(F(1)), 2**53))
