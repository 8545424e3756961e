"""The one way to call a service: which error an answer is, who is to blame, and whether to ask again."""

import gzip
import json
import ssl
from hashlib import sha256

import httpx
import pytest

from caps.cli.exits import Exit, failure_of
from caps.client import AnswerRefused, ClientError, NotTrusted, ProblemError, Unreachable, calls
from caps.trust.tls import NotTheParty
from caps.wire import digests

PROBLEM = {"type": "urn:caps:problem:conflict", "title": "No", "detail": "x" * 900, "retryable": False, "party": "S2"}


def asked(response, **options):
    """The answer of S1 to a question."""

    def answers(request):
        if isinstance(response, Exception):
            raise response
        return response

    with httpx.Client(base_url="https://s1", transport=httpx.MockTransport(answers)) as http:
        return calls.send(http, "S1", "GET", "/", **options)


def error_of(response, **options):
    with pytest.raises(ClientError) as caught:
        asked(response, **options)
    return caught.value


def caused(error, cause):
    error.__cause__ = cause
    return error


def test_a_problem_names_who_is_to_blame_and_is_passed_on_shortened():
    error = error_of(httpx.Response(409, json=PROBLEM))
    assert isinstance(error, ProblemError)
    assert (error.party, error.blamed, error.status, error.retryable) == ("S1", "S2", 409, False)
    assert error.what == "x" * 500
    assert error.words() == {"type": PROBLEM["type"], "title": "No", "detail": "x" * 500, "status": 409}
    assert error.document == PROBLEM | {"status": 409}


@pytest.mark.parametrize(
    ("status", "said", "retryable"),
    [
        (409, True, True),
        (409, False, False),
        (409, "yes", False),
        (429, False, True),
        (429, None, True),
        (500, False, True),
        (503, None, True),
        (400, None, False),
        (302, None, False),
    ],
)
def test_one_rule_says_what_may_be_asked_again(status, said, retryable):
    assert error_of(httpx.Response(status, json={"retryable": said})).retryable is retryable


@pytest.mark.parametrize(
    "body",
    [
        {"text": "<html>"},
        {"json": [1]},
        {"content": b"{", "headers": {"content-type": "application/json"}},
        {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}},
        {"content": json.dumps({"detail": "x" * (1 << 20)}), "headers": {"content-type": "application/json"}},
        {"content": gzip.compress(b"{}"), "headers": {"content-type": "application/json", "content-encoding": "gzip"}},
    ],
    ids=["html", "list", "cut", "deep", "long", "compressed"],
)
def test_what_is_no_problem_document_is_a_problem_all_the_same(body):
    error = error_of(httpx.Response(502, **body))
    assert isinstance(error, ProblemError)
    assert (error.document, error.type, error.blamed) == ({"status": 502}, "about:blank", "S1")
    assert error.what == "answered with status 502"
    assert error.words() is None
    assert failure_of(error).exit is Exit.NOT_YET


def test_answers_are_bounded_and_not_decompressed():
    assert asked(httpx.Response(200, content=b"12345"), limit=5).content == b"12345"
    error = error_of(httpx.Response(200, content=b"12345"), limit=4)
    assert isinstance(error, AnswerRefused)
    assert (error.blamed, error.retryable) == ("S1", False)
    bomb = httpx.Response(200, content=gzip.compress(bytes(1000)), headers={"content-encoding": "gzip"})
    assert "compressed" in str(error_of(bomb))


def test_a_status_can_be_expected():
    assert asked(httpx.Response(503, json={"status": "starting"}), also=(503,)).json() == {"status": "starting"}


@pytest.mark.parametrize(
    ("error", "sent", "timed_out", "what"),
    [
        (httpx.ConnectError("no"), False, False, "cannot be reached, or the connection was lost"),
        (httpx.ConnectTimeout("no"), False, True, "did not answer in time"),
        (httpx.ReadTimeout("no"), True, True, "did not answer in time"),
        (httpx.RemoteProtocolError("no"), True, False, "cannot be reached, or the connection was lost"),
    ],
)
def test_no_answer(error, sent, timed_out, what):
    found = error_of(error)
    assert isinstance(found, Unreachable)
    assert not isinstance(found, NotTrusted)
    assert (found.sent, found.timed_out, found.what, str(found)) == (sent, timed_out, what, f"S1 {what}")
    assert found.retryable


@pytest.mark.parametrize(
    ("cause", "what"),
    [
        (NotTheParty("the other end is not S1"), "cannot be reached: the other end is not S1"),
        (ssl.SSLCertVerificationError("no"), "is not trusted: its certificate is not valid for the authority"),
    ],
)
def test_a_stranger_at_the_address_is_named_as_such(cause, what):
    found = error_of(caused(httpx.ConnectError("tls"), cause))
    assert isinstance(found, NotTrusted)
    assert (found.what, found.sent, found.retryable) == (what, False, True)


def test_digests_are_spelled_as_the_standard_says():
    digest = sha256(b"").digest()
    assert digests.stated(digests.spelled(digest)) == digest
    assert digests.stated(f"sha-512=:AAAA:, {digests.spelled(digest)}") == digest


@pytest.mark.parametrize(
    "header", ["", "sha-256=", "sha-256=:", "sha-256=::", "sha-256=:AAAA:", "sha-256=:!:", "sha-256=:é:"]
)
def test_other_digests_are_none(header):
    assert digests.stated(header) is None
    assert digests.stated(f"{digests.spelled(bytes(32))}, {digests.spelled(bytes(32))}") is None


@pytest.mark.parametrize("text", [r'{"detail": "\ud800"}', r'["\udc00 x"]', r'{"a": "\u0000"}', r'{"a\u0000": 1}'])
def test_texts_that_no_database_takes_are_no_answer(text):
    with pytest.raises(calls.AnswerRefused):
        calls.parsed(text.encode(), "S1")


@pytest.mark.parametrize(("text", "value"), [(r'"\u00e9\ud83d\ude00"', "é😀"), (r'"\\u0000"', r"\u0000")])
def test_other_escapes_are(text, value):
    assert calls.parsed(text.encode(), "S1") == value
