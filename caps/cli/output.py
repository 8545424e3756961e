"""The output of a command: tables by rich, or one JSON document; progress and errors go to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from caps.cli.exits import Failure

PIPE_WIDTH = 200
"""Columns if the output is not a terminal: enough for an id beside its state."""
_PHRASE = 40
"""A list with a member longer than this is printed with one member per line."""


def plain(value: object) -> Text:
    """A value as text without mark-up or control characters, because it may come from another party."""
    if isinstance(value, bool):
        value = "yes" if value else "no"
    elif value is None:
        value = "-"
    elif isinstance(value, float):
        value = f"{value:.6g}"
    elif isinstance(value, Mapping):
        value = ", ".join(f"{key}: {plain(one)}" for key, one in value.items()) or "-"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        words = [" x ".join(map(str, one)) if isinstance(one, list | tuple) else str(plain(one)) for one in value]
        value = ("\n" if any(len(one) > _PHRASE for one in words) else ", ").join(words) or "-"
    return Text("".join(char if char.isprintable() or char == "\n" else "?" for char in str(value)))


def as_json(document: object, indent: int | None = None) -> str:
    """JSON in which letters that a terminal would act on, or not show, are escaped: they may come from elsewhere."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def as_document(model: BaseModel) -> dict[str, Any]:
    """A model as an object of JSON."""
    return model.model_dump(mode="json", by_alias=True)


def facts(members: Mapping[str, Any], title: str | None = None) -> Table:
    """A table of names and values, one pair per line."""
    table = Table(title=title and plain(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in members.items():
        table.add_row(plain(key.replace("_", " ")), plain(value))
    return table


def listing(items: Iterable[Mapping[str, Any]], columns: Sequence[str], title: str | None = None) -> Table:
    """A table with one line for each item."""
    table = Table(title=title and plain(title), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(plain(column.replace("_", " ")), overflow="fold")
    for item in items:
        table.add_row(*(plain(item.get(column)) for column in columns))
    return table


class Output:
    """Writes a command's result, remarks and errors."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.screen = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
        self.aside = Console(file=sys.stderr, width=None if sys.stderr.isatty() else PIPE_WIDTH, highlight=False)

    @property
    def lively(self) -> bool:
        """Whether progress may be animated on the screen."""
        return not self.as_json and self.aside.is_terminal

    def show(self, document: object, *views: Any) -> None:
        """Print the result: the document as JSON, or its views for people."""
        if self.as_json:
            sys.stdout.write(as_json(document, indent=2) + "\n")
            return
        with self.screen.capture() as captured:
            for view in views:
                self.screen.print(plain(view) if isinstance(view, str) else view)
        sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))

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
        self.aside.print(Text.assemble((f"{plain(failure.title)}", "bold red")))
        for words in (failure.detail, f"Hint: {failure.hint}" if failure.hint else ""):
            if words:
                self.aside.print(plain(words))
        for one in (failure.document or {}).get("errors", []):
            if isinstance(one, Mapping):
                self.aside.print(plain(f"  {one.get('place')}: {one.get('message')}"))
        report = (failure.document or {}).get("report")
        if isinstance(report, Mapping):  # about a refused table: counts, never values
            for view in views(report):
                self.aside.print(view)

    @contextmanager
    def transfer(self, label: str) -> Iterator[Callable[[int, int | None], None]]:
        """Show a bar for a transfer; call the callback with the bytes sent and their total."""
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
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
        with Progress(*columns, console=self.aside, disable=not self.lively, transient=True) as progress:
            task = progress.add_task(label, total=1)
            yield lambda done, total: progress.update(task, completed=done, total=total)


def views(document: Mapping[str, Any], title: str | None = None) -> Iterator[Any]:
    """A JSON object for display: its plain members, then a table for each list of objects, then nested objects."""
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
