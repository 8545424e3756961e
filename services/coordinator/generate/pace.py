"""How fast this machine fits: what the law says (`caps.dp.effort`), corrected by how long the fits before took."""

from __future__ import annotations

from dataclasses import dataclass

_KEPT = 0.8
"""Of what earlier fits tell, with each new one: other work may come to the machine, and leave it."""


@dataclass
class Pace:
    """The seconds that fits took, and those by the law, later ones counting more; at first, the law is believed."""

    _taken: float = 0.0
    _expected: float = 0.0

    def took(self, seconds: float, expected: float) -> None:
        """A fit is done."""
        self._taken = _KEPT * self._taken + seconds
        self._expected = _KEPT * self._expected + expected

    def seconds(self, expected: float) -> float:
        """About how long a fit will take that has these seconds by the law."""
        return expected * self._taken / self._expected if self._expected else expected
