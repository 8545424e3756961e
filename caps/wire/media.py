"""Media types of what crosses between parties."""

from __future__ import annotations

JSON = "application/json"
PROBLEM = "application/problem+json"
BYTES = "application/octet-stream"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
MARKDOWN = "text/markdown"
CSV = "text/csv"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"

TABLES = {"csv": CSV, "raw.csv": CSV, "parquet": PARQUET, "arrow": ARROW, "ndjson": NDJSON}
"""The formats of rows, by the names that people use."""

JSON_BODY = {"Content-Type": JSON}
BYTES_BODY = {"Content-Type": BYTES}
