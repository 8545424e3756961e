"""A coordinator's quotas, from its environment."""

from __future__ import annotations

import pytest

from caps.errors import DomainError
from services.coordinator.settings import Quotas


def test_quotas_have_defaults_that_the_environment_replaces() -> None:
    assert Quotas.from_environment({}) == Quotas()
    given = {"CAPS_MOST_SAMPLES": "3", "CAPS_MOST_STREAMS": "2", "CAPS_MOST_TOKEN_STREAMS": "1"}
    assert Quotas.from_environment(given) == Quotas(3, 2, 1)


@pytest.mark.parametrize("text", ["", "-1", "many", "1.5", "\u0661", "1" * 10])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(DomainError, match="CAPS_MOST_STREAMS must be a whole number"):
        Quotas.from_environment({"CAPS_MOST_STREAMS": text})
