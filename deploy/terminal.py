"""A terminal of 80 columns and 24 lines, without a window: runs a command in it, and draws what is to be seen as SVG.

It understands what rich writes: colours and bold, cursor movements, erasing. Lines that scroll away are kept.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

COLUMNS, LINES = 80, 24
_CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b\][^\x07]*\x07|\x1b.")
_UNFINISHED = re.compile(r"\x1b(\[[?\d;]*|\][^\x07]*|[()]?)\Z")
_COLOURS = ("#1d1f21", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0")
_BRIGHT = ("#7f848e", "#ff7a85", "#b5e890", "#ffd58a", "#82c7ff", "#e29bff", "#7fd6e0", "#ffffff")
_PAPER, _INK = "#1d1f21", "#d7dae0"
_CELL_WIDTH, _LINE_HEIGHT, _MARGIN, _FONT = 8.4, 18, 12, 14


@dataclass(frozen=True)
class Style:
    """How a letter looks."""

    colour: str | None = None
    bold: bool = False
    faint: bool = False
    italic: bool = False


@dataclass
class Screen:
    """What a terminal shows: letters with their styles, by line. Lines that scrolled away come first."""

    columns: int = COLUMNS
    height: int = LINES
    lines: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    _row: int = 0
    _column: int = 0
    _style: Style = Style()
    _rest: str = ""

    def feed(self, text: str) -> None:
        """Write a text, which may break off within a control sequence."""
        text, self._rest = self._rest + text, ""
        if unfinished := _UNFINISHED.search(text):
            text, self._rest = text[: unfinished.start()], text[unfinished.start() :]
        place = 0
        while place < len(text):
            if control := _CONTROL.match(text, place):
                self._obey(control.group(1) or "", control.group(2) or "")
                place = control.end()
            else:
                self._write(text[place])
                place += 1

    def text(self) -> str:
        """Everything, without styles."""
        return "\n".join("".join(letter for letter, _ in line).rstrip() for line in self.lines)

    def window(self, *, top: bool) -> list[list[tuple[str, Style]]]:
        """The first lines, as a pager shows them, or the last, as a terminal does."""
        lines = self.lines[:]
        while lines and not "".join(letter for letter, _ in lines[-1]).strip():
            lines.pop()
        return lines[: self.height] if top else lines[-self.height :]

    def _write(self, letter: str) -> None:
        if letter == "\n":
            self._go(self._row + 1, self._column)
        elif letter == "\r":
            self._column = 0
        elif letter == "\b":
            self._column = max(0, self._column - 1)
        elif letter.isprintable():
            if self._column >= self.columns:
                self._go(self._row + 1, 0)
            line = self.lines[self._row]
            line += [(" ", Style())] * (self._column + 1 - len(line))
            line[self._column] = (letter, self._style)
            self._column += 1

    def _go(self, row: int, column: int) -> None:
        self._row, self._column = max(0, row), max(0, column)
        self.lines += [[] for _ in range(self._row + 1 - len(self.lines))]

    def _obey(self, given: str, what: str) -> None:
        numbers = [int(number) if number.isdigit() else 0 for number in given.split(";")]
        count = max(1, numbers[0])
        match what:
            case "m":
                self._restyle(numbers)
            case "A":
                self._go(self._row - count, self._column)
            case "B":
                self._go(self._row + count, self._column)
            case "C":
                self._column += count
            case "D":
                self._column = max(0, self._column - count)
            case "G":
                self._column = count - 1
            case "K":
                line = self.lines[self._row]
                del line[0 if numbers[0] == 2 else self._column :]
            case "J":
                del self.lines[self._row + 1 :]
                del self.lines[self._row][self._column :]

    def _restyle(self, numbers: list[int]) -> None:
        rest = iter(numbers)
        for number in rest:
            match number:
                case 0:
                    self._style = Style()
                case 1:
                    self._style = replace(self._style, bold=True)
                case 2:
                    self._style = replace(self._style, faint=True)
                case 3:
                    self._style = replace(self._style, italic=True)
                case 22:
                    self._style = replace(self._style, bold=False, faint=False)
                case 39:
                    self._style = replace(self._style, colour=None)
                case 38 | 48:
                    colour = _extended(rest)
                    self._style = replace(self._style, colour=colour) if number == 38 else self._style
                case _ if 30 <= number <= 37:
                    self._style = replace(self._style, colour=_COLOURS[number - 30])
                case _ if 90 <= number <= 97:
                    self._style = replace(self._style, colour=_BRIGHT[number - 90])


def _extended(rest: Iterator[int]) -> str | None:
    """A colour of 256, or of red, green and blue, which take all further numbers of a sequence."""
    numbers = list(rest)
    if numbers[:1] == [2] and len(numbers) >= 4:
        return "#{:02x}{:02x}{:02x}".format(*numbers[1:4])
    if numbers[:1] == [5] and len(numbers) >= 2:
        number = numbers[1]
        if number < 16:
            return (*_COLOURS, *_BRIGHT)[number]
        if number >= 232:
            return f"#{8 + 10 * (number - 232):02x}" + 2 * f"{8 + 10 * (number - 232):02x}"
        steps = (0, 95, 135, 175, 215, 255)
        index = number - 16
        return f"#{steps[index // 36]:02x}{steps[index // 6 % 6]:02x}{steps[index % 6]:02x}"
    return None


def draw(screen: Screen, *, title: str, top: bool) -> str:
    """The window of a screen as SVG."""
    width, height = round(COLUMNS * _CELL_WIDTH + 2 * _MARGIN), LINES * _LINE_HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" '
        f'font-size="{_FONT}" fill="{_INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="{_PAPER}"/>',
    ]
    for row, line in enumerate(screen.window(top=top)):
        y = _MARGIN + row * _LINE_HEIGHT + _FONT
        column = 0
        for style, run in groupby(line, key=lambda cell: cell[1]):
            letters = "".join(letter for letter, _ in run)
            if letters.strip():
                x = _MARGIN + column * _CELL_WIDTH
                length = len(letters) * _CELL_WIDTH
                parts.append(
                    f'<text x="{x:.1f}" y="{y}" xml:space="preserve" textLength="{length:.1f}"{_look(style)}>'
                    f"{escape(letters)}</text>"
                )
            column += len(letters)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _look(style: Style) -> str:
    return "".join(
        (
            f' fill="{style.colour}"' if style.colour else "",
            ' font-weight="bold"' if style.bold else "",
            ' font-style="italic"' if style.italic else "",
            ' opacity="0.65"' if style.faint else "",
        )
    )


def record(
    line: Sequence[str],
    *,
    shown: str,
    folder: Path,
    environment: Mapping[str, str],
    enough: Callable[[Screen], bool] = lambda _: False,
) -> tuple[Screen, int]:
    """Run a command in a terminal, to its end. Returns the screen and the exit code.

    shown: the line as a person types it. enough: once it says so, the screen is kept as it is; the command goes on.
    """
    screen, kept = Screen(), None
    screen.feed(f"\x1b[1m$ {shown}\x1b[0m\r\n")
    own, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    variables = {**environment, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with subprocess.Popen(line, stdin=other, stdout=other, stderr=other, cwd=folder, env=variables) as process:
        os.close(other)
        while chunk := _read(own):
            screen.feed(decoder.decode(chunk))
            if kept is None and enough(screen):
                kept = Screen(lines=[row[:] for row in screen.lines])
        os.close(own)
    return kept or screen, process.returncode


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other side is closed
        return b""
