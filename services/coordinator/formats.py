"""The formats of synthetic data: one table of them, how each is written, and how a request chooses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

import polars as pl

from caps.basics.files import digest_of, sync_path
from caps.basics.uniform import Uniform
from caps.data.domain import Codes
from caps.data.schema import Schema
from caps.service.problems import Problem
from caps.wire import media
from caps.wire.problems import Kind
from caps.wire.releases import ROWS
from services.coordinator.store import FileEntry

_VALUES_LABEL = "caps/v1/synthetic-values/"
_ROW_GROUP = 1 << 17


@dataclass(frozen=True)
class Format:
    """A format: its name in `?format=`, its media type, and how it is written."""

    name: str
    media_type: str
    write: Callable[[pl.DataFrame, Path], None] | None

    @property
    def file(self) -> str:
        """The name of the file in a release."""
        return f"{ROWS}{self.name}"


def _parquet(frame: pl.DataFrame, path: Path) -> None:
    frame.write_parquet(path, compression="zstd", row_group_size=_ROW_GROUP)


def _arrow(frame: pl.DataFrame, path: Path) -> None:
    frame.write_ipc_stream(path)


def _ndjson(frame: pl.DataFrame, path: Path) -> None:
    frame.write_ndjson(path)


CSV = f"{media.CSV}; charset=utf-8; header=present"
FORMATS: tuple[Format, ...] = (
    Format("csv", CSV, None),  # written by the schema, which knows how owners write values
    Format("parquet", media.PARQUET, _parquet),
    Format("arrow", media.ARROW, _arrow),
    Format("ndjson", media.NDJSON, _ndjson),
)
"""In the order of preference."""


def write_all(schema: Schema, codes: Codes, seed: str, folder: Path, lacking: Collection[str] = ()) -> None:
    """Write the rows in every format. Numbers are drawn within their bins from the seed: the same in all formats.

    lacking: columns in which a value may be missing although the schema refuses that (`Schema.frame`).
    """
    schema.write_csv(codes, folder / "data.csv", uniform=Uniform(_VALUES_LABEL + seed).floats, lacking=lacking)
    frame = schema.frame(codes, uniform=Uniform(_VALUES_LABEL + seed).floats, lacking=lacking)
    for form in FORMATS:
        if form.write is not None:
            form.write(frame, folder / form.file)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder that appears whole, and synced to disk, or not at all. One left by a crash is replaced."""
    draft = folder.with_name(folder.name + ".part")
    rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    yield draft
    for path in (*draft.iterdir(), draft):
        sync_path(path)
    rmtree(folder, ignore_errors=True)
    draft.replace(folder)
    sync_path(folder.parent)


def entries(folder: Path) -> dict[str, FileEntry]:
    """Size and digest of every file."""
    return {path.name: FileEntry(path.stat().st_size, digest_of(path)) for path in sorted(folder.iterdir())}


def digest_of_bytes(text: bytes) -> str:
    """SHA-256 of some bytes, in hexadecimal."""
    return sha256(text).hexdigest()


def by_name(name: str) -> Format:
    """The format that `?format=` names. Raises Problem if there is none."""
    for form in FORMATS:
        if form.name == name:
            return form
    raise _unacceptable([form.name for form in FORMATS])


def negotiated(accept: str | None) -> Format:
    """The format that an Accept header prefers (RFC 9110, 12.5.1); the first if it has none. Raises Problem."""
    types = [form.media_type for form in FORMATS]
    return FORMATS[types.index(preferred(accept, types))]


def preferred(accept: str | None, types: Sequence[str]) -> str:
    """The media type that an Accept header prefers; the first among equals. Raises Problem if it accepts none."""
    if accept is None or not accept.strip():
        return types[0]
    ranges = dict(_ranges(accept))
    qualities = [_quality(media_type, ranges) for media_type in types]
    if max(qualities) <= 0:
        raise _unacceptable([media_type.partition(";")[0] for media_type in types])
    return types[qualities.index(max(qualities))]


def _ranges(accept: str) -> Iterator[tuple[str, float]]:
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = min(max(float(parameter[2:]), 0.0), 1.0)
                except ValueError:
                    quality = 0.0
        if name:
            yield name, quality


def _quality(media_type: str, ranges: Mapping[str, float]) -> float:
    """The quality that the most specific matching range gives a media type."""
    plain = media_type.partition(";")[0]
    for candidate in (plain, f"{plain.partition('/')[0]}/*", "*/*"):
        if candidate in ranges:
            return ranges[candidate]
    return 0.0


def _unacceptable(available: list[str]) -> Problem:
    return Problem(
        Kind.NOT_ACCEPTABLE, f"this format is not available; choose one of {', '.join(available)}", available=available
    )
