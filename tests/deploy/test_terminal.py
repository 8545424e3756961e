"""The terminal without a window shows what a real one would, and its pictures are whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.etree import ElementTree as XML

import pytest

from deploy.pictures import FOLDER, NAMES
from deploy.terminal import COLUMNS, LINES, Screen, Style, draw, record

ROOT = Path(__file__).parents[2]


def shown(*parts: str) -> str:
    screen = Screen()
    for part in parts:
        screen.feed(part)
    return screen.text()


def test_letters_go_where_the_cursor_is() -> None:
    assert shown("one\r\ntwo") == "one\ntwo"
    assert shown("abc\rX") == "Xbc"
    assert shown("abc\x1b[2DX") == "aXc"
    assert shown("abc\bX") == "abX"
    assert shown("a\x1b[3Cb") == "a   b"
    assert shown("x" * COLUMNS + "y") == "x" * COLUMNS + "\ny"


def test_what_moves_is_drawn_over_what_was() -> None:
    """As rich does for a bar: up, erase, write again."""
    assert shown("line\r\nbar 1\r\n", "\x1b[1A\x1b[2K", "more\r\nbar 2") == "line\nmore\nbar 2"
    assert shown("bar 100\r\x1b[Kbar 2") == "bar 2"
    assert shown("a\r\nb\r\nc\x1b[2A\r\x1b[J") == ""


def test_sequences_may_arrive_in_pieces() -> None:
    assert shown("a\x1b", "[3", "1mb", "\x1b[0mc\x1b]0;title\x07d\x1b[?25l") == "abcd"


def test_styles_begin_and_end() -> None:
    screen = Screen()
    screen.feed("a\x1b[1;32mb\x1b[22mc\x1b[38;2;1;2;3md\x1b[0me\x1b[38;5;196mf\x1b[38;5;244mg")
    styles = [style for _, style in screen.lines[0]]
    assert styles[0] == styles[4] == Style()
    assert (styles[1].bold, styles[2].bold) == (True, False)
    assert styles[1].colour == styles[2].colour
    assert [style.colour for style in (styles[3], styles[5], styles[6])] == ["#010203", "#ff0000", "#808080"]


def test_a_window_has_the_first_lines_or_the_last() -> None:
    screen = Screen()
    screen.feed("\r\n".join(map(str, range(40))) + "\r\n\r\n")

    def lines(top: bool) -> list[str]:
        return ["".join(letter for letter, _ in line) for line in screen.window(top=top)]

    assert lines(True) == [str(number) for number in range(LINES)]
    assert lines(False) == [str(number) for number in range(40 - LINES, 40)]


def test_a_picture_has_the_letters_and_no_mark_up_of_theirs() -> None:
    screen = Screen()
    screen.feed("\x1b[31m<b>&\x1b[0m plain")
    found = XML.fromstring(draw(screen, title="a < b", top=True))
    texts = ["".join(one.itertext()) for one in found if one.tag.endswith("text")]
    assert texts == ["<b>&", " plain"]


@pytest.mark.integration
def test_a_command_runs_in_a_terminal_of_80_by_24(tmp_path: Path) -> None:
    code = "import os, sys; print(os.isatty(1), tuple(os.get_terminal_size())); sys.exit(3)"
    line = [sys.executable, "-c", code]
    screen, code_of_exit = record(line, shown="it", folder=tmp_path, environment={"PATH": os.environ["PATH"]})
    assert screen.text() == f"$ it\nTrue ({COLUMNS}, {LINES})\n"
    assert code_of_exit == 3


@pytest.mark.integration
def test_a_screen_can_be_kept_before_the_end(tmp_path: Path) -> None:
    code = "import time\nfor i in range(3): print(i, flush=True); time.sleep(0.2)"
    line = [sys.executable, "-c", code]
    screen, _ = record(
        line, shown="it", folder=tmp_path, environment={"PATH": os.environ["PATH"]}, enough=lambda it: "1" in it.text()
    )
    assert "1" in screen.text()
    assert "2" not in screen.text()


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_there_and_on_a_page(name: str) -> None:
    found = XML.fromstring((FOLDER / f"{name}.svg").read_text())
    lines = {one.get("y") for one in found if one.tag.endswith("text")}
    assert 5 < len(lines) <= LINES
    pages = [page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    assert any(f"pictures/{name}.svg" in page for page in pages)
