"""Texts that a spreadsheet would take for formulas, and how they are escaped.

The adversary writes a category such as `=HYPERLINK(...)` into a study; the victim opens the published CSV in a
spreadsheet. An apostrophe in front makes it a text. No two texts become the same: what begins like an escaped text is
itself escaped.
"""

from __future__ import annotations

import re

_FORMULA = re.compile(r"""[\s'"]*[=+\-@\t\r\n＝＋－＠]""")
"""Spreadsheets trim blanks and take off quotes; some read wide signs as the narrow ones."""
_HARMLESS = re.compile(r"[+-]([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?)?")
"""A number, or a lone sign, as which a missing value is often written."""


def is_formula(text: str) -> bool:
    """Whether a spreadsheet might compute the text."""
    return _FORMULA.match(text) is not None and _HARMLESS.fullmatch(text) is None


def escaped(text: str) -> str:
    """The text for a spreadsheet."""
    return f"'{text}" if is_formula(text) else text
