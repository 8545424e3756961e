"""Names that cannot be seen or told apart."""

from __future__ import annotations

import itertools
import string

import pytest

from caps.basics.naming import alike, alike_in_ascii, fault, shown, skeleton, text_fault

UNSEEN = {
    "a newline": "a\nb",
    "an escape": "a\x1b[2Jb",
    "a control of 8 bits": "a\x9b2Jb",
    "zero width space": "a\u200bb",
    "zero width joiner": "a\u200db",
    "right to left": "a\u202eb",
    "isolate": "a\u2066b",
    "soft hyphen": "a\u00adb",
    "byte order mark": "a\ufeffb",
    "filler": "a\u3164b",
    "variation selector": "a\ufe0fb",
    "tag": "a\U000e0061b",
    "private": "a\ue000b",
    "noncharacter": "a\ufdd0b",
    "line separator": "a\u2028b",
}


@pytest.mark.parametrize("name", UNSEEN.values(), ids=UNSEEN)
def test_letters_that_are_not_seen(name: str) -> None:
    assert "which is not seen" in (fault(name) or "")
    assert shown(name).isprintable()
    assert (text_fault(name) is None) == (name == "a\nb")


def test_other_faults() -> None:
    assert "normal form C" in (fault("e\u0301") or "")
    assert "joins" in (fault("\u0301e") or "")
    for good in ("", "age", "Größe", "日本", "возраст", "ηλικία", "a b", "🙂", "हिन्दी", "#1 (%)"):
        assert fault(good) is None, good


ALIKE = [
    ("age", "аge"),
    ("paypal", "раураl"),
    ("A", "Α"),
    ("fi", "ﬁ"),
    ("H", "ℌ"),
    ("m", "ｍ"),
    ("rn", "ｍ"),
    ("o", "ο"),
    ("l", "Ӏ"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_that_look_alike(one: str, other: str) -> None:
    assert skeleton(one) == skeleton(other)
    assert alike(["x", one, "y", other]) == (one, other)
    assert alike([other, one]) == (other, one)
    assert alike([other, other, "x"]) is None


def test_names_that_do_not() -> None:
    assert alike(["l1", "I1", "ll", "rn", "m", "0", "O"]) is None  # codes in ASCII
    assert alike(["ü", "u", "ö", "o", "é", "e", "ж", "日", "曰"]) is None
    many = ["".join(letters) for letters in itertools.product("Il1", repeat=8)]
    assert alike([*many, "ж"]) is None  # and soon
    assert alike([*many, "ӀIllIllI"]) == (many[0], "ӀIllIllI")


def test_names_of_parties() -> None:
    for one, other in (("north", "North"), ("h0", "hO"), ("h1", "hl"), ("hI", "h1"), ("born", "bom"), ("BORN", "bom")):
        assert alike_in_ascii([one, "x", other]) is not None, one
    assert alike_in_ascii(["S1", "S2", "S3", "mail", "mall", "S1"]) is None


def test_the_short_table_for_ascii_is_unicodes() -> None:
    letters = string.ascii_letters + string.digits + "._-"
    for one, other in itertools.combinations(letters, 2):
        looks = [skeleton(letter).replace("I", "l").casefold() for letter in (one, other)]
        same = looks[0] == looks[1] or one.casefold() == other.casefold()
        assert (alike_in_ascii([f"x{one}", f"x{other}"]) is not None) == same, (one, other)
    assert skeleton("m") == "rn"
