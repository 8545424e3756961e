from dataclasses import replace

import pytest

from caps.errors import DomainError, PeerDisagrees, PeerViolation
from services.mpc_server.transport.hello import Agreement, Hello, meet, scheme_field, session_id

AGREEMENT = Agreement(*(bytes([i]) * 32 for i in range(4)), scheme_field("rep3"))
OURS = Hello(0, 1, "run", AGREEMENT, b"a" * 32)
THEIRS = Hello(1, 0, "run", AGREEMENT, b"b" * 32)
DIGESTS = ["study", "inputs", "build", "ledger"]
FIELDS = [*DIGESTS, "scheme"]


def test_both_ends_leave_with_the_same_secret():
    assert meet(OURS, THEIRS.encode()) == meet(THEIRS, OURS.encode())


@pytest.mark.parametrize(
    "change",
    [
        {"session": "other"},
        {"contribution": b"c" * 32},
        {"agreement": replace(AGREEMENT, ledger=bytes(32))},
        {"party": 2},
    ],
)
def test_the_secret_depends_on_everything_agreed(change):
    def agreed(hello, name):
        return replace(hello, **{name: change[name]}) if name in change else hello

    ours, theirs = OURS, THEIRS
    for name in change:
        theirs = agreed(theirs, name)
        if name in ("session", "agreement"):
            ours = agreed(ours, name)
        if name == "party":
            ours = replace(ours, peer=2)
    assert meet(ours, theirs.encode()) != meet(OURS, THEIRS.encode())


@pytest.mark.parametrize("field", DIGESTS)
def test_a_difference_names_the_field_and_the_party(field):
    theirs = replace(THEIRS, agreement=replace(AGREEMENT, **{field: b"x" * 32}))
    with pytest.raises(PeerDisagrees, match=b"x".hex() * 6) as raised:
        meet(OURS, theirs.encode())
    assert (raised.value.field, raised.value.party) == (field, 1)


@pytest.mark.parametrize(("sent", "shown"), [(scheme_field("rep4"), "'rep4'"), (b"\n\xff" * 16, r"'\n\xff")])
def test_another_scheme_is_named_in_printable_characters(sent, shown):
    theirs = replace(THEIRS, agreement=replace(AGREEMENT, scheme=sent))
    with pytest.raises(PeerDisagrees) as raised:
        meet(OURS, theirs.encode())
    assert (raised.value.field, raised.value.party) == ("scheme", 1)
    assert "ours is 'rep3', theirs is " + shown in str(raised.value)
    assert str(raised.value).isprintable()


def test_the_first_difference_is_named():
    order = ["version", "session", *FIELDS]
    changes = {"version": 7, "session": "else", **dict.fromkeys(FIELDS, b"x" * 32)}
    while order:
        digests = {name: changes[name] for name in order if name in FIELDS}
        others = {name: changes[name] for name in order if name not in FIELDS}
        theirs = replace(THEIRS, agreement=replace(AGREEMENT, **digests), **others)
        with pytest.raises(PeerDisagrees) as raised:
            meet(OURS, theirs.encode())
        assert raised.value.field == order.pop(0)


@pytest.mark.parametrize("change", [{"party": 2}, {"peer": 2}])
def test_hello_between_other_parties_is_a_violation(change):
    with pytest.raises(PeerViolation):
        meet(OURS, replace(THEIRS, **change).encode())


def test_the_contribution_stays_out_of_repr():
    assert "a" * 8 not in repr(OURS)


@pytest.mark.parametrize("name", ["", "x" * 400, "line\nbreak"])
def test_bad_session_names(name):
    with pytest.raises(DomainError):
        replace(OURS, session=name)


def test_bad_digest():
    with pytest.raises(DomainError, match="inputs"):
        replace(AGREEMENT, inputs=b"short")


def test_session_id_is_32_bits_and_never_the_connections_own():
    assert all(0 < session_id(str(i)) < 2**32 for i in range(1000))
