"""The output of a command: a view for people, or one JSON document; errors go to stderr.

Views fit 80 columns. Colour is for terminals, unless NO_COLOR is set. rich is imported when something is shown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from caps.cli.exits import Failure

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

ID_DIGITS = 12
"""Of an id, in views: commands take the beginning of an id for the whole."""
_PHRASE = 40
"""A list with a member longer than this is printed with one member per line."""
_LABEL = 18
"""Columns of the labels in `facts`."""


def words_of(value: object) -> str:
    """A value in words, without control characters, because it may come from another party."""
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif value is None:
        value = "-"
    elif isinstance(value, float):
        value = f"{value:.6g}"
    elif isinstance(value, Mapping):
        value = ", ".join(f"{key}: {words_of(one)}" for key, one in value.items()) or "-"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        words = [" x ".join(map(str, one)) if isinstance(one, list | tuple) else words_of(one) for one in value]
        value = ("\n" if any(len(one) > _PHRASE for one in words) else ", ").join(words) or "-"
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in str(value))


def plain(value: object) -> Text:
    """A value as text without mark-up or control characters."""
    from rich.text import Text

    return Text(words_of(value))


def short(identity: str | None) -> str:
    """The beginning of an id, which is enough for any command."""
    return (identity or "-")[:ID_DIGITS]


def minute(instant: str) -> str:
    """An ISO 8601 instant, to the minute."""
    return instant[:16].replace("T", " ")


def clock(seconds: float) -> str:
    """A time span like 0:42 or 1:02:03."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def as_json(document: object, indent: int | None = None) -> str:
    """JSON in which letters that a terminal would act on, or not show, are escaped: they may come from elsewhere."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def as_document(model: BaseModel) -> dict[str, Any]:
    """A model as an object of JSON."""
    return model.model_dump(mode="json", by_alias=True)


def facts(members: Mapping[str, Any], title: str | None = None) -> Table:
    """A table of names and values, one pair per line."""
    from rich.table import Table

    table = Table(title=title and plain(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=max((len(key) for key in members), default=0) <= _LABEL)
    table.add_column(overflow="fold")
    for key, value in members.items():
        table.add_row(plain(key.replace("_", " ")), plain(value))
    return table


def listing(
    items: Iterable[Mapping[str, Any]], columns: Sequence[str], title: str | None = None, *, right: Sequence[str] = ()
) -> Table:
    """A table with one line for each item. right: columns of numbers."""
    from rich.table import Table

    table = Table(title=title and plain(title), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        justify = "right" if column in right else "left"
        table.add_column(plain(column.replace("_", " ")), overflow="fold", justify=justify)  # type: ignore[arg-type]
    for item in items:
        table.add_row(*(plain(item.get(column)) for column in columns))
    return table


def heading(text: str) -> Text:
    """A line above what belongs together."""
    from rich.text import Text

    return Text(words_of(text), "bold")


class Output:
    """Writes a command's result, remarks and errors."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    @property
    def screen(self) -> Console:
        """Where results go."""
        return _console(sys.stdout)

    @property
    def aside(self) -> Console:
        """Where remarks and errors go."""
        return _console(sys.stderr)

    @property
    def lively(self) -> bool:
        """Whether progress may be animated on the screen."""
        return not self.as_json and self.aside.is_terminal

    def show(self, document: object, *views: Any) -> None:
        """Print the result: the document as JSON, or its views for people."""
        if self.as_json:
            sys.stdout.write(as_json(document, indent=2) + "\n")
            return
        screen = self.screen
        with screen.capture() as captured:
            for view in views:
                screen.print(plain(view) if isinstance(view, str) else view)
        sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))
        sys.stdout.flush()

    def show_line(self, words: str) -> None:
        """Print a line of something that goes on, at once; programs that asked for JSON get the end of it only."""
        if not self.as_json:
            sys.stdout.write(words_of(words).rstrip() + "\n")
            sys.stdout.flush()

    def tell(self, model: BaseModel) -> None:
        """The result, if it is what a service answered: all of it."""
        document = as_document(model)
        self.show(document, *views(document))

    def note(self, words: str) -> None:
        """Print a remark for people on stderr."""
        if not self.as_json:
            self.aside.print(plain(words))

    def fail(self, failure: Failure) -> None:
        """Print why the command failed."""
        if self.as_json:
            sys.stderr.write(as_json(failure.to_json()) + "\n")
            return
        from rich.text import Text

        aside = self.aside
        aside.print(Text.assemble((words_of(failure.title), "bold red")))
        for words in (failure.detail, f"Hint: {failure.hint}" if failure.hint else ""):
            if words:
                aside.print(plain(words))
        if failure.request is not None:
            aside.print(plain(f"Request id: {failure.request}"))
        for one in (failure.document or {}).get("errors", []):
            if isinstance(one, Mapping):
                aside.print(plain(f"  {one.get('place')}: {one.get('message')}"))
        report = (failure.document or {}).get("report")
        if isinstance(report, Mapping):  # about a refused table: counts, never values
            for view in views(report):
                aside.print(view)

    @contextmanager
    def transfer(self, label: str) -> Iterator[Callable[[int, int | None], None]]:
        """Show a bar for a transfer; call the callback with the bytes sent and their total."""
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.aside, disable=not self.lively, transient=True) as progress:
            task = progress.add_task(label, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    @contextmanager
    def waiting(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Show a bar while waiting; call the callback with the number done and their total."""
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
        with Progress(*columns, console=self.aside, disable=not self.lively, transient=True) as progress:
            task = progress.add_task(label, total=1)
            yield lambda done, total: progress.update(task, completed=done, total=total)


def _console(file: Any) -> Console:
    """As wide as the terminal; without one, 80 columns unless COLUMNS says otherwise, and never a control character."""
    from rich.console import Console

    return Console(file=file, highlight=False, force_terminal=file.isatty())


def views(document: Mapping[str, Any], title: str | None = None) -> Iterator[Any]:
    """A JSON object for display: its plain members, then a table for each list of objects, then nested objects."""
    from rich.text import Text

    tables = {key: value for key, value in document.items() if _is_rows(value)}
    nested = {key: value for key, value in document.items() if isinstance(value, Mapping) and value}
    simple = {key: value for key, value in document.items() if key not in tables and key not in nested}
    if simple:
        yield facts(simple, title)
    for key, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        yield Text()
        yield listing(rows, columns, key.replace("_", " "))
    for key, value in nested.items():
        yield Text()
        yield from views(value, key.replace("_", " ") if title is None else f"{title}, {key.replace('_', ' ')}")


def _is_rows(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)
