"""Canonical JSON: the examples of RFC 8785, a round trip, and what must be refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caps.basics.canonical import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_INTEGER,
    MAX_MEMBERS,
    MAX_NUMBER,
    bound,
    digest,
    dump,
    load,
    parse,
)
from caps.data.domain import Attribute, Domain, Layout, Workload
from caps.errors import DomainError

# RFC 8785, appendix B: a double's bits, and how it is written.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


@pytest.mark.parametrize(("bits", "written"), NUMBERS)
def test_numbers_are_written_as_in_the_rfc(bits: str, written: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert dump(number) == written.encode()
    assert load(written.encode()) == number


def test_names_are_sorted_by_utf_16_code_units() -> None:
    """RFC 8785, section 3.2.3. By code points the emoji would come last."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\u00f6"]
    written = dump(dict.fromkeys(names, 0))
    assert list(json.loads(written)) == ["\r", "1", "\x80", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_the_rfcs_sample_is_written_as_it_shows() -> None:
    """RFC 8785, sections 3.2.2 to 3.2.4."""
    sample = rb"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert dump(parse(sample)) == expected.encode()
    assert parse(sample.decode()) == load(expected.encode())


def test_control_characters_have_one_spelling() -> None:
    assert dump("\b\t\n\f\r\x00\x1f\x7f\u2028") == b'"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f\xe2\x80\xa8"'


@given(values)
def test_what_is_written_is_read_back_and_has_one_spelling(value: object) -> None:
    written = dump(value)
    assert load(written) == parse(written) == value
    assert dump(load(written)) == written
    spaced = json.dumps(value, indent=2, ensure_ascii=True)
    assert dump(parse(spaced)) == written


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_those_that_python_reads(number: float) -> None:
    assert float(dump(number)) == number


def test_tuples_and_subclasses_are_written_as_what_they_are() -> None:
    assert dump((1, np.float64(0.5), [])) == b"[1,0.5,[]]"


@pytest.mark.parametrize(
    "value",
    [
        2**53,
        -(2**53),
        float("nan"),
        float("-inf"),
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        {None: 2},
        b"bytes",
        {1, 2},
        Decimal(1),
        np.int64(1),
        np.zeros(2),
        ...,
    ],
    ids=repr,
)
def test_values_without_a_canonical_form_are_refused(value: object) -> None:
    with pytest.raises(DomainError):
        dump([value])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1,"a":1}', "repeated member"),
        (b"{" + b",".join(b'"%d":0' % n for n in range(MAX_MEMBERS + 1)) + b"}", "more than 16384 members"),
        (b'[{"b":{"a":1,"\\u0061":2}}]', "repeated member"),
        (b"[NaN]", "not a JSON number"),
        (b"[-Infinity]", "not a JSON number"),
        (b"[1e400]", "not a JSON number"),
        (b"9007199254740993", "below 2"),
        (str(2**64).encode(), "below 2"),
        (b"1" * 5000, "number of more than 40"),
        (b"0." + b"1" * 5000, "number of more than 40"),
        (b"[" + b"[]," * MAX_ELEMENTS + b"0]", "elements"),
        (b"[0" + b",0" * MAX_ELEMENTS + b"]", "elements"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udc00\\ud800":1}', "surrogate"),
        (b'"\xff"', "UTF-8"),
        ('"a"'.encode("utf-16"), "UTF-8"),
        ('"a"'.encode("utf-16-be"), "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b"", "not JSON"),
        (b"1 2", "line 1, column 3"),
        (b"[1,]", "not JSON"),
        (b"'a'", "not JSON"),
        (b'"\n"', "not JSON"),
        (b"01", "not JSON"),
        (b"[" * 100_000, "nested"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested"),
    ],
    ids=lambda given: repr(given)[:24],
)
def test_texts_that_readers_may_take_differently_are_refused(text: bytes, reason: str) -> None:
    for read in (parse, load):
        with pytest.raises(DomainError, match=reason):
            read(text)


def test_lone_surrogates_of_a_text_are_refused() -> None:
    with pytest.raises(DomainError, match="surrogate"):
        parse('"\ud800"')


@pytest.mark.parametrize("escape", ["", "\\\\", '\\"', '\\\\\\"'])
def test_what_is_inside_strings_is_not_counted(escape: str) -> None:
    inside = escape + "[{" * MAX_DEPTH + "," * 10 + "9" * (MAX_NUMBER + 1)
    parse(f'["{inside}", ["{inside}"]]', elements=3)
    with pytest.raises(DomainError, match="more than 2 elements"):
        parse(f'["{inside}", ["{inside}"]]', elements=2)
    with pytest.raises(DomainError, match="nested"):
        parse(f'["{escape}", {"[" * MAX_DEPTH}{"]" * MAX_DEPTH}]')
    with pytest.raises(DomainError, match="number"):
        parse(f'["{escape}", {"9" * (MAX_NUMBER + 1)}]')


@given(st.binary(max_size=200))
def test_any_bytes_can_be_bounded(text: bytes) -> None:
    with contextlib.suppress(DomainError):
        bound(text, elements=1000)


def test_as_deep_as_allowed_is_read() -> None:
    text = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert dump(load(text)) == text


@pytest.mark.parametrize(
    "text",
    [b" 1", b"1\n", b"1.0", b"1e2", b"-0", b'{"b":1,"a":2}', b'"\\u0041"', b'"\\/"', b"[1, 2]", b"1E30", b"0.10"],
)
def test_another_spelling_is_parsed_but_not_loaded(text: bytes) -> None:
    parse(text)
    with pytest.raises(DomainError, match="canonical"):
        load(text)


def test_digests_are_of_the_kind_and_the_members() -> None:
    assert digest("x", {"b": 1, "a": "é"}) == hashlib.sha256('{"a":"é","b":1,"type":"caps/v1/x"}'.encode()).digest()
    assert digest("x", {"a": 1}) != digest("y", {"a": 1})
    with pytest.raises(DomainError, match="kind"):
        digest("x", {"type": "caps/v1/y"})


def test_digests_of_the_domain_are_what_they_have_always_been() -> None:
    domain = Domain((Attribute("âge", 3), Attribute("sex", 2, nullable=True)))
    workload = Workload((("âge", "sex"),), (2,))
    assert [item.digest().hex() for item in (domain, Layout(domain, (("sex",),)), workload)] == [
        "ddbd1a4a6491f4a928c186094e77f73b568df343113877d61c47b06b9624dea9",
        "732d3e4ab469d3e0ff96a6f3b67b165c145fdd0246c47061a718e6818bd422cd",
        "c82c2d371ebc1e07be3a6dd350f72e12b75e39df5ff2380a02b78383b50061d7",
    ]
