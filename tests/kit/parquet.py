"""Parquet files written byte by byte, so that they can say what no writer would."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caps.data.schema.parquet import _Thrift

MAGIC = b"PAR1"
PLAIN, RLE, DELTA_PREFIX, RLE_DICTIONARY = 0, 3, 7, 8
BYTE_ARRAY = 6
UNCOMPRESSED, SNAPPY, GZIP, LZO = 0, 1, 2, 3


def varint(number: int) -> bytes:
    """An unsigned integer in groups of seven bits."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def thrift(value: Any) -> bytes:
    """A value in the compact protocol: a struct is a mapping by field number, an int has 64 bits, a list one type."""
    if isinstance(value, int):
        return varint((value << 1) ^ (value >> 63))
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return varint(len(data)) + data
    if isinstance(value, Mapping):
        out, last = b"", 0
        for number, field in sorted(value.items()):
            out += bytes([(number - last) << 4 | _kind(field)]) + thrift(field)
            last = number
        return out + b"\0"
    kind = _kind(value[0]) if value else 12
    written = {one: thrift(one) for one in set(value)} if kind == 6 else None  # millions of equal integers
    members = map(written.__getitem__ if written else thrift, value)
    return bytes([0xF0 | kind]) + varint(len(value)) + b"".join(members)


def _kind(value: Any) -> int:
    return next(
        kind for types, kind in ((int, 6), (str | bytes, 8), (Mapping, 12), (Sequence, 9)) if isinstance(value, types)
    )


@dataclass(frozen=True)
class Page:
    """A page; what is None is told truly."""

    content: bytes
    values: int
    dictionary: bool = False
    encoding: int = PLAIN
    unpacked: int | None = None
    packed: bytes | None = None

    def written(self) -> bytes:
        """Header and content."""
        content = self.content if self.packed is None else self.packed
        size = len(self.content) if self.unpacked is None else self.unpacked
        own = {7: {1: self.values, 2: self.encoding}} if self.dictionary else {}
        data = {} if self.dictionary else {5: {1: self.values, 2: self.encoding, 3: RLE, 4: RLE}}
        return thrift({1: 2 if self.dictionary else 0, 2: size, 3: len(content)} | own | data) + content


def gzipped(page: Page) -> Page:
    """The page compressed; its header tells the truth unless the page lied before."""
    size = len(page.content) if page.unpacked is None else page.unpacked
    return replace(page, packed=gzip.compress(page.content, 9), unpacked=size)


def texts(*values: bytes) -> bytes:
    """Byte arrays in PLAIN encoding."""
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def repeated(count: int, *, width: int = 1) -> bytes:
    """Dictionary indices: one run of zeros."""
    return bytes([width]) + varint(count << 1) + b"\0"


def file(
    pages: Iterable[Page],
    rows: int,
    *,
    columns: Sequence[str] = ("x",),
    codec: int = UNCOMPRESSED,
    chunks: int | None = None,
    total: int | None = None,
    length: int | None = None,
    more: Mapping[int, Any] | None = None,
) -> bytes:
    """A file of one row group in which all columns, required texts, share the same pages."""
    body = b"".join(page.written() for page in pages)
    about = {
        1: BYTE_ARRAY,
        2: [PLAIN],
        4: codec,
        5: rows,
        6: len(body),
        7: len(body) if length is None else length,
        9: 4,
    }
    shared = [{2: 4, 3: {**about, 3: [name]}} for name in columns]
    shared = shared if chunks is None else shared * chunks
    schema = [{4: "table", 5: len(columns)}, *({1: BYTE_ARRAY, 3: 0, 4: name, 6: 0} for name in columns)]
    footer = {1: 1, 2: schema, 3: rows if total is None else total, 4: [{1: shared, 2: len(body), 3: rows}]}
    metadata = thrift(footer | dict(more or {}))
    return MAGIC + body + metadata + len(metadata).to_bytes(4, "little") + MAGIC


def first_page(data: bytes) -> tuple[bytes, int]:
    """The compressed content of a file's first page, and the codec; the file has one column."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    view = memoryview(data)
    codec = _Thrift(view[:-8], start, 1 << 20).struct()[4][0][1][0][3][4]
    header = _Thrift(view, len(MAGIC), 1 << 20)
    size = header.struct()[3]
    return data[header.at : header.at + size], codec
