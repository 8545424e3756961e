"""The one way to call another service over HTTP, used by the person's client, the holder and the coordinator.

    ClientError                 (a CapsError) `.party` was called, `.blamed` is to blame; `.retryable`, `.retry_after`
    +-- ProblemError            it refused; `.document` is the problem (RFC 9457)
    +-- Unreachable             no answer arrived, or not all of it
    |   +-- NotTrusted          the party at the address is not the intended one
    +-- AnswerRefused           an answer that is not what the contract says

A call is made once. `.retryable` says whether it may be made again, and `.retry_after` how long the other side asks us
to wait; the caller decides how often and with which pauses (`caps.basics.retry`). Answers are read up to a limit and
never decompressed; `parsed` bounds what JSON becomes in memory. Services call each other over `caps.trust.timely`,
which bounds the time.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
from collections.abc import Collection, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from caps.basics import canonical
from caps.errors import CapsError, DomainError
from caps.trust.tls import NotTheParty

TIMEOUT = 30.0
"""Seconds after which a silent service counts as unreachable."""
MAX_ANSWER = 8 << 20
"""The most bytes of an answer, unless the caller expects more."""
_MAX_PROBLEM = 1 << 20
_MAX_TEXT = 500
"""Characters of another party's words that are kept or passed on."""
TOO_MANY_REQUESTS = 429
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class ClientError(CapsError):
    """A call failed."""

    retryable = False
    """Whether the same call may succeed later."""
    retry_after: float | None = None
    """Seconds that the other side asks us to wait, if it does."""

    def __init__(self, message: str, *, party: str = "the service", what: str | None = None) -> None:
        super().__init__(message)
        self.party = party
        self.what = message if what is None else what
        """What went wrong, without the party's name."""

    @property
    def blamed(self) -> str:
        """Who is to blame: the party that was called, unless it names another."""
        return self.party

    def words(self) -> dict[str, Any] | None:
        """Type, title, detail and status of the other side's problem document, shortened; None if it sent none."""
        return None


class ProblemError(ClientError):
    """The service answered with a problem. Without a problem document, as from a proxy, the type is `about:blank`."""

    def __init__(
        self, document: Mapping[str, Any], *, party: str = "the service", retry_after: float | None = None
    ) -> None:
        self.document = dict(document)
        self.retry_after = retry_after
        message = f"{self.title}: {self.detail}" if self.detail else self.title
        super().__init__(message, party=party, what=(self.detail or f"answered with status {self.status}")[:_MAX_TEXT])

    @property
    def type(self) -> str:
        """One of the registered URNs."""
        return str(self.document.get("type", "about:blank"))

    @property
    def status(self) -> int:
        """The status of the response."""
        return int(self.document.get("status", 0))

    @property
    def title(self) -> str:
        """What kind of problem it is."""
        return str(self.document.get("title") or f"The service answered {self.status}")

    @property
    def detail(self) -> str:
        """What is wrong this time."""
        return str(self.document.get("detail") or "")

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        hint = self.document.get("hint")
        return None if hint is None else str(hint)

    @property
    def blamed(self) -> str:
        """The party that the problem names, or the one that was called."""
        named = self.document.get("party")
        return named[:_MAX_TEXT] if isinstance(named, str) and named else self.party

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        """Whether the service says so, failed, or is too busy."""
        return self.document.get("retryable") is True or self.status >= 500 or self.status == TOO_MANY_REQUESTS

    def words(self) -> dict[str, Any] | None:
        """None unless type, title and detail are all there."""
        members = ("type", "title", "detail")
        if not all(isinstance(self.document.get(name), str) for name in members):
            return None
        return {name: self.document[name][:_MAX_TEXT] for name in members} | {"status": self.status}


class Unreachable(ClientError):
    """No answer arrived, or not all of it; `hint` says what to check. `sent`: whether the request may have arrived."""

    retryable = True

    def __init__(self, party: str, what: str, hint: str, *, sent: bool = False, timed_out: bool = False) -> None:
        super().__init__(f"{party} {what}", party=party, what=what)
        self.hint = hint
        self.sent = sent
        self.timed_out = timed_out


class NotTrusted(Unreachable):
    """TLS refused the other end. A retry helps only after somebody has corrected the cause."""


class AnswerRefused(ClientError):
    """An answer that is not what the contract says."""


def send(
    http: httpx.Client,
    party: str,
    method: str,
    path: str,
    *,
    limit: int = MAX_ANSWER,
    also: Collection[int] = (),
    **options: Any,
) -> httpx.Response:
    """Call `party` once; returns the whole answer if it is a success or has a status in `also`. Raises ClientError.

    options: those of `httpx.Client.stream`, such as content, headers and timeout.
    """
    with opened(http, party, method, path, also=also, **options) as response:
        content = read(response, party, limit=limit)
        return httpx.Response(response.status_code, headers=response.headers, content=content, request=response.request)


@contextlib.contextmanager
def opened(
    http: httpx.Client,
    party: str,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    also: Collection[int] = (),
    **options: Any,
) -> Iterator[httpx.Response]:
    """The same, while the answer is arriving. Also raises Unreachable inside the block if the answer breaks off."""
    headers = {"Accept-Encoding": "identity", **(headers or {})}
    try:
        with http.stream(method, path, headers=headers, **options) as response:
            if not response.is_success and response.status_code not in also:
                raise problem_of(response, party)
            if response.headers.get("content-encoding", "identity") != "identity":
                raise AnswerRefused("the answer is compressed, although that was not requested", party=party)
            yield response
    except httpx.RequestError as error:
        raise _unreachable(error, party) from None


def read(response: httpx.Response, party: str, *, limit: int = MAX_ANSWER) -> bytes:
    """The whole body of an open response. Raises AnswerRefused if it is longer than `limit`."""
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > limit:
            raise AnswerRefused(f"the answer is longer than {limit} bytes", party=party)
    return bytes(content)


def parsed(content: bytes, party: str, *, elements: int = canonical.MAX_ELEMENTS) -> Any:
    """The value in an answer of JSON. Raises AnswerRefused if it is not JSON, or more than so many elements.

    Texts with half a surrogate pair or NUL, which only an escape can bring, are refused too: no database takes them.
    """
    try:
        canonical.bound(content, elements=elements)
        value = json.loads(content)
        if b"\\u" in content:
            if _NUL.search(content):
                raise ValueError
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (DomainError, ValueError) as error:
        what = str(error) if isinstance(error, DomainError) else "sent something other than JSON"
        raise AnswerRefused(what, party=party) from None


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of Retry-After (RFC 9110, 10.2.3). A date counts from the answer's own: no clocks are compared."""
    given = response.headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit():
        return float(given[:9])
    try:
        until, sent = (parsedate_to_datetime(text) for text in (given, response.headers.get("date", "")))
        return max(0.0, (until - sent).total_seconds())
    except (ValueError, TypeError):  # not a date, or one of them without a time zone
        return None


def problem_of(response: httpx.Response, party: str) -> ProblemError:
    """The problem in an open response that reports a failure."""
    document: dict[str, Any] = {}
    if "json" in response.headers.get("content-type", "") and "content-encoding" not in response.headers:
        with contextlib.suppress(AnswerRefused):
            found = parsed(read(response, party, limit=_MAX_PROBLEM), party)
            document = found if isinstance(found, dict) else {}
    status = {"status": response.status_code}
    return ProblemError(document | status, party=party, retry_after=retry_after(response))


def _unreachable(error: httpx.RequestError, party: str) -> Unreachable:
    refusal: BaseException | None = error
    while refusal is not None and not isinstance(refusal, NotTheParty | ssl.SSLCertVerificationError):
        refusal = refusal.__cause__ or refusal.__context__
    if isinstance(refusal, NotTheParty):
        return NotTrusted(party, f"cannot be reached: {refusal}", "does the address belong to this party?")
    if refusal is not None:
        hint = "name the federation's authority with --authority, and call the service by a name in its certificate"
        return NotTrusted(party, "is not trusted: its certificate is not valid for the authority", hint)
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    if isinstance(error, httpx.TimeoutException):
        hint = "the service may be busy; try again later"
        return Unreachable(party, "did not answer in time", hint, sent=sent, timed_out=True)
    what = "cannot be reached, or the connection was lost"
    return Unreachable(party, what, "is the service up? is the URL right?", sent=sent)
