"""An owner's table as it was sent: read as `caps.study.table` does, recognised by its fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from email.message import Message
from functools import partial
from pathlib import Path
from typing import Self

from caps.data.schema import Limits, files
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.study import Holder, Manifest, table
from caps.study.table import Counted, Rows, TableDoesNotFit
from caps.wire import media
from caps.wire.holder import TableReport
from caps.wire.problems import Kind
from services.holder.fingerprint import Fingerprint

_FORMATS = {
    media.CSV: files.CSV,
    media.GZIP: files.GZIP,
    media.PARQUET: files.PARQUET,
    media.XLSX: files.XLSX,
}
_BETWEEN = "; "
SOURCE = "source"
"""What a record has in place of a format if the table is read from a source."""


@dataclass(frozen=True)
class Sent:
    """How a table was sent. encoding: what its owner says. ignore_extra: whether it may have other columns."""

    format: str
    encoding: str | None = None
    ignore_extra: bool = False

    @classmethod
    def of(cls, content_type: str, *, ignore_extra: bool = False) -> Self:
        """As a Content-Type says. Raises a problem (415) for what is not read."""
        message = Message()
        message["content-type"] = content_type
        found = _FORMATS.get(message.get_content_type())
        charset = message.get_param("charset")
        if found is None:
            raise Problem(Kind.UNSUPPORTED, f"send the table as {', '.join(_FORMATS)}")
        if charset is None:
            return cls(found, None, ignore_extra)
        if found not in (files.CSV, files.GZIP):
            raise Problem(Kind.UNSUPPORTED, f"{found} has no charset")
        try:
            return cls(found, files.encoding_named(str(charset)), ignore_extra)
        except DomainError as error:
            raise Problem(Kind.UNSUPPORTED, str(error)) from None

    @classmethod
    def recognised(cls, path: Path, *, encoding: str | None = None, ignore_extra: bool = False) -> Self:
        """As the file itself tells; text may be in this encoding. Raises a problem if the file is not read."""
        try:
            found = files.format_of_file(path)
            text = encoding is not None and found in (files.CSV, files.GZIP)
            return cls(found, files.encoding_named(encoding) if text and encoding else None, ignore_extra)
        except DomainError as error:
            raise Problem(Kind.TABLE_REFUSED, str(error)) from None

    @classmethod
    def kept_as(cls, text: str) -> Self:
        """As a record has it. What was checked once is not checked again, and may have other columns."""
        found, _, encoding = text.partition(_BETWEEN)
        return cls(found, encoding or None, True)

    @property
    def kept(self) -> str:
        """For a record."""
        return _BETWEEN.join(filter(None, (self.format, self.encoding)))


class TableRefusal(Problem):
    """The problem of a table that the study does not take, with what only its owner may see: `error` has numbers of
    rows, `near` names of the file's columns that may be meant by missing ones. The document has neither.
    """

    def __init__(self, error: TableDoesNotFit, near: Mapping[str, list[str]]) -> None:
        members = {} if error.report is None else {"report": report_of(error.report).model_dump(mode="json")}
        super().__init__(Kind.TABLE_REFUSED, str(error), **members)
        self.error, self.near = error, near


def read_table(
    path: Path, sent: Sent, manifest: Manifest, holder: Holder, limits: Limits, *, recognise: bool = False
) -> tuple[Rows, TableReport]:
    """The table in a file, which is read once. Raises a Problem, with a report if it could be read, if it does not fit.

    recognise: whether the report has the fingerprint of the rows, and the file must be in the format it was sent as.
    """
    seen = Fingerprint() if recognise else None
    others = partial(table.other_names, path, manifest, holder, encoding=sent.encoding, limits=limits)
    with refusing(others):
        if recognise and files.format_of_file(path) != sent.format:
            raise TableDoesNotFit("the file is not in the format that it was sent as")
        rows, counted = table.read_table(
            path,
            manifest,
            holder,
            limits,
            encoding=sent.encoding,
            extra="ignore" if sent.ignore_extra else "refuse",
            folder=path.parent,
            watch=None if seen is None else seen.add,
        )
    return rows, report_of(counted, None if seen is None else seen.hex())


@contextmanager
def refusing(others: Callable[[], Sequence[str]] = tuple) -> Iterator[None]:
    """Turns what is wrong with a table into a Problem, with a report if it could be read.

    others: the names of its columns that the study does not ask for, among which may be those that are missing.
    """
    try:
        yield
    except TableDoesNotFit as error:
        near = table.close_names(error.missing, others()) if error.missing else {}
        raise TableRefusal(error, near) from None
    except DomainError as error:
        raise Problem(Kind.TABLE_REFUSED, str(error)) from None


def report_of(counted: Counted, fingerprint: str | None = None) -> TableReport:
    """What was counted, for the owner."""
    return TableReport.model_validate({**asdict(counted), "fingerprint": fingerprint})
