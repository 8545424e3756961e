"""Names that people must be able to tell apart: which letters they may have, and which names look alike.

The adversary writes a manifest in which a column, a category or a party looks like another and is not: by letters of
another script, by letters that are not seen, by marks that turn the direction of writing. Names are compared by their
skeletons (Unicode Technical Standard 39, section 4) with Unicode's table of confusable letters.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of letters that are not seen: controls, formats (zero width, direction), private or unassigned letters,
separators of lines and paragraphs."""
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0") | {
    chr(code) for first, last in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF)) for code in range(first, last + 1)
}
"""Letters of other categories that are not seen either: fillers, vowels without form, variation selectors."""


_ASCII = str.maketrans("01I", "Oll")


def fault(name: str) -> str | None:
    """What is wrong with a name by itself, as the end of a sentence; None if nothing is."""
    if name.isascii() and name.isprintable():
        return None
    if (unseen := _unseen(name)) is not None:
        return unseen
    if not unicodedata.is_normalized("NFC", name):
        return "must be in Unicode's normal form C"
    if unicodedata.category(name[0]).startswith("M"):
        return "must not begin with a mark that joins the letter before it"
    return None


def text_fault(text: str) -> str | None:
    """What is wrong with a text of several lines that people read: letters that are not seen."""
    return next(filter(None, map(_unseen, text.replace("\t", " ").split("\n"))), None)


def skeleton(name: str) -> str:
    """A text that two names have in common if they look alike."""
    prototypes = _prototypes()
    spelled = "".join(prototypes.get(letter, letter) for letter in unicodedata.normalize("NFD", name))
    return unicodedata.normalize("NFD", spelled)


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two different names that look alike and of which one has letters beyond ASCII.

    Names in ASCII, such as `I1` and `l1`, are often codes that somebody else has chosen.
    """
    listed = list(names)
    if all(name.isascii() for name in listed):
        return None
    return _first_pair(listed, skeleton, also_ascii=False)


def alike_in_ascii(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two different names, of letters in ASCII, that look alike: also those that differ in case only."""
    listed = list(names)
    return _first_pair(listed, str.casefold, also_ascii=True) or _first_pair(listed, _ascii_skeleton, also_ascii=True)


def shown(text: str) -> str:
    """The text for a terminal or a log: letters that are not seen, or that move others, are spelled out."""
    return "".join(letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}" for letter in text)


def _unseen(text: str) -> str | None:
    if text.isascii() and text.isprintable():
        return None
    for letter in text:
        if unicodedata.category(letter) in _UNSEEN or letter in _FILLERS:
            return f"must not contain U+{ord(letter):04X}, which is not seen"
    return None


def _first_pair(names: Iterable[str], key: Callable[[str], str], *, also_ascii: bool) -> tuple[str, str] | None:
    """Only the first name of each key is kept: a later one that counts beside another counts beside it too."""
    first: dict[str, str] = {}
    for name in dict.fromkeys(names):
        other = first.setdefault(key(name), name)
        if other != name and (also_ascii or not (name.isascii() and other.isascii())):
            return other, name
    return None


def _ascii_skeleton(name: str) -> str:
    """The skeleton of letters, digits, dots, dashes and underscores, without the large table, whatever the case."""
    return name.translate(_ASCII).casefold().replace("rn", "m")


@cache
def _prototypes() -> dict[str, str]:
    """Each confusable letter's prototype. The package lists, for each letter, all that look like it, in both
    directions: the prototype of a class is its member of several letters, which is never confused itself,
    or else any: here a letter of ASCII, if it has one.
    """
    raw = json.loads((files("confusable_homoglyphs") / "confusables.json").read_text(encoding="utf-8"))
    table = {_bare(text): {_bare(other["c"]) for other in others} for text, others in raw.items()}
    prototypes: dict[str, str] = {}
    for text, direct in table.items():
        if len(text) == 1 and text not in prototypes:
            family = {text}.union(direct, *(table.get(other, ()) for other in direct))
            prototype = min(family, key=lambda one: (len(one) == 1, not one.isascii() or not one.isalpha(), one))
            prototypes |= {one: prototype for one in family if len(one) == 1}
    wide = {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}  # the table has some of them
    return prototypes | {one: prototypes.get(letter, letter) for one, letter in wide.items()}


def _bare(text: str) -> str:
    """Without the marks of direction that Unicode's file has around letters written from right to left."""
    return text.replace("\u200e", "")
