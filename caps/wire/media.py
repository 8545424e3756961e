"""Media types of what crosses between parties."""

from __future__ import annotations

import os
from pathlib import Path

JSON = "application/json"
PROBLEM = "application/problem+json"
BYTES = "application/octet-stream"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
MARKDOWN = "text/markdown"
HTML = "text/html"
CSV = "text/csv"
PARQUET = "application/vnd.apache.parquet"
GZIP = "application/gzip"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
ARROW = "application/vnd.apache.arrow.stream"

TABLES = {"csv": CSV, "raw.csv": CSV, "parquet": PARQUET, "arrow": ARROW, "ndjson": NDJSON}
"""The formats of rows, by the names that people use."""

_MAGIC = {b"PAR1": PARQUET, b"PK\x03\x04": XLSX, b"\x1f\x8b": GZIP}
"""What a table's file begins with; a CSV begins with anything."""


def table_type(path: Path) -> str:
    """The type of an owner's table. A file that only begins like Parquet is a CSV."""
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4))
        end = file.read(4)
    found = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), CSV)
    return CSV if found == PARQUET and end != b"PAR1" else found


JSON_BODY = {"Content-Type": JSON}
BYTES_BODY = {"Content-Type": BYTES}
