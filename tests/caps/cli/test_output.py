"""What a terminal gets: no letter that it would act on, whoever wrote it."""

from __future__ import annotations

import json

import pytest

from caps.cli.exits import Exit, Failure
from caps.cli.output import Output, facts, listing, views

EVIL = "a\x1b[2J\x9b2J\u202eb\u200b\x07\x7f[red]"


def is_clean(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


def test_documents_come_back_and_say_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"title": EVIL, EVIL: ["\U000e0001"]}
    Output(True).show(document)
    shown = capsys.readouterr().out
    assert is_clean(shown)
    assert json.loads(shown) == document


def test_tables_show_what_came_from_elsewhere_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    nested = {"of": {EVIL: {"name": EVIL}}, EVIL: EVIL, "rows": [{EVIL: EVIL}]}
    Output(False).show(nested, *views(nested), facts({EVIL: EVIL}, EVIL), listing([{EVIL: EVIL}], [EVIL], EVIL), EVIL)
    shown = capsys.readouterr().out
    assert is_clean(shown)
    assert "[red]" in shown


@pytest.mark.parametrize("as_json", [False, True])
def test_failures_too(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    members = {"errors": [{"place": EVIL, "message": EVIL}], "report": {EVIL: EVIL}}
    Output(as_json).fail(Failure(Exit.REFUSED, EVIL, EVIL, hint=EVIL, document=members))
    assert is_clean(capsys.readouterr().err)


LONG = "a title of a study that goes on and on " * 4


@pytest.mark.parametrize("colour", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}])
def test_views_fit_80_columns_and_have_no_colour_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, colour: dict[str, str]
) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in colour.items():
        monkeypatch.setenv(name, value)
    rows = [{"study": "ab" * 32, "title": LONG, "state": "approved", "waits for": ["north", "south"]}]
    table = listing(rows, ("study", "title", "state", "waits for"))
    Output(False).show({}, facts({"title": LONG, "a long name of a member": "x" * 200}), table, LONG)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert is_clean(shown)


def test_lines_are_shown_at_once_and_programs_do_not_get_them(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).show_line(f"one{EVIL}")
    shown = capsys.readouterr().out
    assert shown.startswith("one")
    assert is_clean(shown)
    Output(True).show_line("two")
    assert capsys.readouterr().out == ""
