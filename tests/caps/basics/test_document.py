"""What documents say about their own mistakes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from caps.basics.document import MOST_MISTAKES, Document, first_mistake, mistakes


class One(Document):
    """A document with one member."""

    member: int


def found(unknown: int) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        One.model_validate({"member": 1} | {f"m{number}": 0 for number in range(unknown)})
    return refused.value


def test_every_mistake_is_told_by_its_place() -> None:
    assert [one["loc"] for one in mistakes(found(MOST_MISTAKES))][:2] == [("m0",), ("m1",)]
    assert len(mistakes(found(MOST_MISTAKES))) == MOST_MISTAKES
    assert first_mistake(found(2)) == "m0: Extra inputs are not permitted"


def test_of_thousands_only_the_number_is_told() -> None:
    (only,) = mistakes(found(MOST_MISTAKES + 1))
    assert (only["loc"], only["msg"]) == ((), f"has {MOST_MISTAKES + 1} mistakes")
    assert first_mistake(found(MOST_MISTAKES + 1)) == f"has {MOST_MISTAKES + 1} mistakes"
