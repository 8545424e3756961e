"""The fields of a form, as a browser sends them. Files are sent as bodies of their own (static/upload.js)."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from caps.service.problems import Problem
from caps.wire.problems import Kind

MEDIA_TYPE = "application/x-www-form-urlencoded"
CSRF_FIELD = "csrf"
MOST_FIELDS = 2000


class Form:
    """Fields by name; a name may occur more than once."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    @classmethod
    def of(cls, body: bytes) -> Form:
        """The fields in a body. Raises a problem if it is not a form."""
        try:
            pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
        except ValueError:  # not ASCII, not UTF-8 in its escapes, or too many fields
            raise Problem(Kind.MALFORMED, "the form cannot be read") from None
        return cls(pairs)

    def one(self, name: str, default: str = "") -> str:
        """A field's text without spaces around it. Raises a problem if it was sent twice."""
        found = self.many(name)
        if len(found) > 1:
            raise Problem(Kind.MALFORMED, f"the form has the field {name} twice")
        return found[0] if found else default

    def many(self, name: str) -> list[str]:
        """All texts of a field, such as the boxes that are ticked."""
        return [value.strip() for key, value in self._pairs if key == name]

    def has(self, name: str) -> bool:
        """Whether a box is ticked."""
        return any(key == name for key, _ in self._pairs)


def is_form(content_type: str) -> bool:
    """Whether a body claims to be a form."""
    return content_type.partition(";")[0].strip().lower() == MEDIA_TYPE


async def _read(request: Request) -> Form:
    body = await request.body()
    if body and not is_form(request.headers.get("content-type", "")):
        raise Problem(Kind.UNSUPPORTED, f"send the form as {MEDIA_TYPE}")
    return Form.of(body)


Fields = Annotated[Form, Depends(_read)]
"""The form of a request, for a route's parameter."""
