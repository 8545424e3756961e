"""The public description of a table's columns, and the conversion between an owner's rows and category numbers.

All parties agree on a schema; it is never inferred from data. `encode` turns a table into codes and counts what it
found; `decode` turns codes, usually synthetic ones, into a table that looks like the owners' tables. For each schema
and all codes of its domain, encode(decode(codes)) == codes. docs/schema.md describes the format for data owners.

Messages and reports name columns of the schema and give counts. They never quote a value, nor a header that the schema
does not have, because the first line of a file without a header is data.
"""

from caps.data.schema.columns import Boolean, Categorical, Column, Date, Draws, Numeric
from caps.data.schema.limits import Limits
from caps.data.schema.schema import VERSION, Block, ColumnReport, Report, Schema, TableRefused, Tally

__all__ = [
    "VERSION",
    "Block",
    "Boolean",
    "Categorical",
    "Column",
    "ColumnReport",
    "Date",
    "Draws",
    "Limits",
    "Numeric",
    "Report",
    "Schema",
    "TableRefused",
    "Tally",
]
