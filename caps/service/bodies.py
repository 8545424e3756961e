"""Bodies that handlers parse themselves, in threads, because they may be large."""

from __future__ import annotations

from typing import TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from caps.basics import canonical
from caps.basics.document import mistakes
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.wire.problems import Kind

M = TypeVar("M", bound=BaseModel)


def parsed(body: bytes, *, elements: int = canonical.MAX_ELEMENTS) -> object:
    """The body as read by our own parser, which refuses what two readers could understand differently."""
    try:
        return canonical.parse(body, elements=elements)
    except DomainError as error:
        raise Problem(Kind.MALFORMED, str(error)) from None


def read(model: type[M], body: bytes) -> M:
    """The document in a body."""
    try:
        return model.model_validate(parsed(body))
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> RequestValidationError:
    """What a handler raises for a body that is not of its model, as FastAPI does where it parses the body."""
    return RequestValidationError(mistakes(error, include_input=False, include_context=False))
