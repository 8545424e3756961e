"""Parquet files that are small and unfold to much, tell the truth about it or lie; files in formats that are not read.

The adversary wrote the file, and somebody gave it to a data owner.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from caps.data.schema import Categorical, Limits, Schema
from caps.data.schema import limits as limited
from caps.errors import DomainError
from tests.kit import parquet
from tests.kit.parquet import (
    DELTA_PREFIX,
    GZIP,
    LZO,
    RLE_DICTIONARY,
    SNAPPY,
    Page,
    file,
    gzipped,
    repeated,
    texts,
    varint,
)

ALWAYS = 1 << 20
SCHEMA = Schema((Categorical(name="x", categories=("a", "b")),))
TWO = Page(texts(b"a", b"b"), 2)
ENTRY = Page(texts(b"a"), 1, dictionary=True)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds as if files were smaller: the tests need not make large ones."""
    monkeypatch.setattr(limited, "ALWAYS", ALWAYS)


def same(rows: int) -> Page:
    """Rows that all have the dictionary's first entry."""
    return Page(repeated(rows), rows, encoding=RLE_DICTIONARY)


def long_entry(size: int, rows: int) -> bytes:
    return file([gzipped(Page(texts(b"a" * size), 1, dictionary=True)), gzipped(same(rows))], rows, codec=GZIP)


def test_files_that_say_what_they_are() -> None:
    assert SCHEMA.encode(file([TWO], 2))[0].tolist() == [[0], [1]]
    assert SCHEMA.encode(file([gzipped(TWO)], 2, codec=GZIP))[0].tolist() == [[0], [1]]
    assert SCHEMA.encode(file([ENTRY, same(3)], 3))[0].tolist() == [[0]] * 3
    wide = pl.DataFrame({"x": ["a", "b"] * 50_000, **{f"c{i}": range(100_000) for i in range(20)}})
    out = io.BytesIO()
    wide.write_parquet(out)
    assert len(SCHEMA.encode(out.getvalue(), extra="ignore")[0]) == 100_000


HONEST = {
    "a page": (file([gzipped(Page(bytes(ALWAYS + 1), 2))], 2, codec=GZIP), "unfolds to more than the 1048576"),
    "rows without end": (file([ENTRY, same(ALWAYS // 16)], ALWAYS // 16), "unfolds to more"),
    "more rows than allowed": (file([ENTRY, same(10**9)], 10**9), "more than 100000000 rows"),
    "columns": (file([TWO], 2, columns=[f"c{i}" for i in range(4097)]), "more than 4096 columns"),
    "a long text": (long_entry(1 << 17, 2), "a field has more than 65536 bytes"),
    "a text of every row": (long_entry(60_000, 100), "unfolds to more"),
    "metadata": (file([TWO], 2, more={5: [{1: "k" * 100, 2: "v" * (1 << 24)}]}), "bytes of metadata"),
    "small metadata": (file([TWO], 2, more={9: [1] * ((1 << 21) + 1)}), "not valid"),
    "texts that share prefixes": (file([replace(TWO, encoding=DELTA_PREFIX)], 2), "DELTA_BYTE_ARRAY"),
    "an unknown codec": (file([TWO], 2, codec=LZO), "compressed in a way that is not read"),
}


@pytest.mark.parametrize(("data", "message"), HONEST.values(), ids=HONEST)
def test_what_unfolds_to_too_much_is_refused(data: bytes, message: str) -> None:
    assert len(data) < 20 << 20
    with pytest.raises(DomainError, match=message):
        SCHEMA.encode(data, limits=Limits(expansion=100))


LIES = {
    "the footer counts fewer rows": file([ENTRY, same(3)], 3, total=2),
    "the row group counts fewer rows": file([ENTRY, same(3)], 2),
    "more dictionary entries than bytes": file([replace(ENTRY, values=2**31 - 1), same(3)], 3),
    "more dictionary entries than there are": file([replace(ENTRY, values=5), same(3)], 3),
    "a negative number of values": file([replace(TWO, values=-2)], -2),
    "a negative size": file([replace(TWO, unpacked=-1)], 2),
    "a text longer than the page": file([Page((2**31 - 1).to_bytes(4, "little") + b"a", 1)], 1),
    "the same, compressed": file([gzipped(Page((2**31 - 1).to_bytes(4, "little") + b"a", 1))], 1, codec=GZIP),
    "a length of Snappy's own": file(
        [Page(texts(b"a"), 1, packed=varint((1 << 32) - 1) + b"\x10" + texts(b"a"))], 1, codec=SNAPPY
    ),
    "pages that chunks share": file([TWO], 2, chunks=3),
    "more pages than the file has": file([TWO], 2, length=1 << 40),
    "pages of negative length": file([TWO], 2, length=-1),
    "an encoding that does not exist": file([replace(TWO, encoding=99)], 2),
    "depth": file([TWO], 2, more={9: [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}),
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES)
def test_lies_are_refused(data: bytes) -> None:
    with pytest.raises(DomainError, match="not valid Parquet"):
        SCHEMA.encode(data)


_MEASURED = """
import resource, sys
from caps.data.schema import Categorical, Schema
from caps.errors import DomainError
schema = Schema((Categorical(name="x", categories=("a", "b")),))
schema.encode(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[2:]:
    try:
        schema.encode(path)
        raise SystemExit(f"{path} was read")
    except DomainError:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_page_that_unfolds_to_more_than_it_says_is_not_unfolded(tmp_path: Path) -> None:
    """Every codec: the page says 1,000 bytes and has 128 MB."""
    good = tmp_path / "good"
    good.write_bytes(file([TWO], 2))
    paths = [str(good)]
    for compression in ("gzip", "zstd", "brotli", "lz4", "snappy"):
        size = (8 if compression in ("lz4", "snappy") else 128) << 20  # these two hardly shrink: 8 MB say as much
        out = io.BytesIO()
        frame = pl.DataFrame({"x": [b"\0" * size]}, schema={"x": pl.Binary})
        frame.write_parquet(out, compression=compression, statistics=False)  # type: ignore[arg-type]
        content, codec = parquet.first_page(out.getvalue())
        path = tmp_path / compression
        path.write_bytes(file([Page(b"", 1, packed=content, unpacked=1000)], 1, codec=codec))
        paths.append(str(path))
    done = subprocess.run([sys.executable, "-c", _MEASURED, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert int(done.stdout) < 64


PACKED = {
    "zlib": zlib.compress(b"x\na\n"),
    "zlib, stored": zlib.compress(b"x\na\n", 0),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(20),
    "zip": b"PK\x03\x04" + bytes(20),
    "xls": b"\xd0\xcf\x11\xe0" + bytes(20),
}


@pytest.mark.parametrize("data", PACKED.values(), ids=PACKED)
def test_packed_files_are_refused_with_their_name(data: bytes) -> None:
    with pytest.raises(DomainError, match=r"compressed with|archive|Excel"):
        SCHEMA.encode(data, extra="ignore")


def test_columns_of_a_csv_are_counted_before_they_are_read() -> None:
    with pytest.raises(DomainError, match="more than 4096 columns"):
        SCHEMA.encode(b"x" + b",c" * 5000 + b"\n", extra="ignore")


def test_the_bound_follows_the_file_and_the_settings() -> None:
    half = file([ENTRY, same(ALWAYS // 32)], ALWAYS // 32)
    assert len(SCHEMA.encode(half)[0]) == ALWAYS // 32
    with pytest.raises(DomainError, match="unfolds to more"):
        SCHEMA.encode(half, limits=Limits(bytes=ALWAYS // 4))
    page = gzipped(Page(texts(*[b"b"] * (ALWAYS // 8)), ALWAYS // 8))
    large = file([page, page, page], ALWAYS // 8 * 3, codec=GZIP)
    assert len(SCHEMA.encode(large, limits=Limits(expansion=10_000))[0]) == ALWAYS // 8 * 3
    with pytest.raises(DomainError, match="unfolds to more"):
        SCHEMA.encode(large)
