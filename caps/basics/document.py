"""Documents: what parties agree on, sign and send, as models whose JSON is the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from itertools import zip_longest
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from caps.basics import canonical, naming
from caps.errors import DomainError

MOST_MISTAKES = 1000
"""Of which each is told by itself."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _checked(fault: Callable[[str], str | None]) -> AfterValidator:
    def check(text: str) -> str:
        if (what := fault(text)) is not None:
            raise ValueError(what)
        return text

    return AfterValidator(check)


Text = Annotated[str, StringConstraints(max_length=4000), _checked(naming.text_fault)]
"""What people read, in lines."""
Title = Annotated[str, StringConstraints(min_length=1, max_length=200), _checked(naming.fault)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"\S"), _checked(naming.fault)]
"""What one person tells another, in one line."""
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=128), _checked(naming.fault)]


def _callable(url: str) -> str:
    """Checks what the pattern does not: the port must exist, and numbers must be a real address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if ":" in host or not host.strip("0123456789."):
            ip_address(host)
        if parts.port == 0:
            raise ValueError
    except ValueError:
        raise ValueError("is not a valid address") from None
    return url


_HOST = r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})"
Url = Annotated[str, StringConstraints(pattern=rf"^https://{_HOST}(:[0-9]{{1,5}})?$"), AfterValidator(_callable)]
Address = Annotated[
    str,
    StringConstraints(pattern=rf"^{_HOST}:[0-9]{{1,5}}$"),
    AfterValidator(lambda address: _callable(f"https://{address}").removeprefix("https://")),
]


def mistakes(error: ValidationError, **included: bool) -> list[ErrorDetails]:
    """What a model found wrong, place by place; of thousands of mistakes only their number.

    Each takes a kilobyte, and a body has room for as many unknown members as a sender likes. included: as in pydantic.
    """
    if (count := error.error_count()) > MOST_MISTAKES:
        return [{"type": "too_many_mistakes", "loc": (), "msg": f"has {count} mistakes", "input": None}]
    return error.errors(include_url=False, **included)


def first_mistake(error: ValidationError) -> str:
    """The first mistake that a model found: its place, and what is wrong."""
    first = mistakes(error, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


class Document(BaseModel):
    """A part of the wire contract: immutable, no unknown members, JSON both ways."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_canonical(cls, data: bytes, *, elements: int = canonical.MAX_ELEMENTS) -> Self:
        """The document in its canonical form. Raises DomainError with the place if the bytes are not canonical.

        elements: the most items and members, of all arrays and objects together.
        """
        canonical.bound(data, elements=elements)
        try:
            found = cls.model_validate_json(data)
        except ValidationError as error:
            raise DomainError(first_mistake(error)) from None
        spelled = canonical.dump(found.to_json())
        if spelled != data:
            place = next(i for i, (a, b) in enumerate(zip_longest(spelled, data)) if a != b)
            raise DomainError(f"byte {place}: not in canonical form")
        return found
