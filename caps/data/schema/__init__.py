"""The public description of a table's columns, and the way between an owner's rows and category numbers.

A schema is agreed by all parties and never inferred from data. `encode` turns a table into codes and counts what it
met; `decode` turns codes, synthetic ones as a rule, into a table that looks like those the owners sent. For each schema
and all codes of its domain, encode(decode(codes)) == codes. The format for data owners is in docs/schema.md.

Messages and reports name columns of the schema and give counts; never a value, nor a header the schema does not know,
for the first line of a file without a header is data.
"""

from caps.data.schema.columns import Boolean, Categorical, Column, Draws, Numeric
from caps.data.schema.schema import VERSION, ColumnReport, Report, Schema, TableRefused
from caps.data.schema.tables import Limits, Table

__all__ = [
    "VERSION",
    "Boolean",
    "Categorical",
    "Column",
    "ColumnReport",
    "Draws",
    "Limits",
    "Numeric",
    "Report",
    "Schema",
    "Table",
    "TableRefused",
]
