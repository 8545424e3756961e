"""A name for the rows of a table, whatever their order and the file they are in.

The values of a study's columns are read as text, numbers in one spelling; every row is hashed with BLAKE2b, and the
hashes are added up modulo 2^256. So a file with its rows or columns in another order, or written as Parquet in place of
CSV, has the same fingerprint. One row more, a column more or a value corrected, and it has another: fingerprints find a
table that is used again, not persons who are in two tables. They never leave the holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b, sha256

import numpy as np
import polars as pl

from caps.basics import canonical

_SLICE = 1 << 16
_SEPARATOR, _MISSING = "\x1f", "\0"
_MODULUS = 1 << 256


class Fingerprint:
    """The fingerprint of a table whose rows come in blocks, each given as its columns by name."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._rows = self._total = 0

    def add(self, columns: Mapping[str, pl.Series]) -> None:
        """Some more rows."""
        self._names = sorted(columns)
        frame = pl.DataFrame([columns[name].alias(str(place)) for place, name in enumerate(self._names)])
        self._rows += frame.height
        for part in frame.iter_slices(_SLICE):
            spelled = part.select(_spelled(pl.col(name), dtype) for name, dtype in part.schema.items())
            texts = spelled.select(pl.concat_str(pl.all(), separator=_SEPARATOR)).to_series()
            hashed = b"".join(map(_hashed, texts.to_list()))
            limbs = np.frombuffer(hashed, "<u4").reshape(-1, 8).sum(axis=0, dtype=np.uint64)
            self._total += sum(int(limb) << (32 * place) for place, limb in enumerate(limbs))

    def hex(self) -> str:
        """The fingerprint of all rows, in hexadecimal."""
        about = canonical.dump({"columns": self._names, "rows": self._rows})
        return sha256(b"caps/v1/table\0" + about + (self._total % _MODULUS).to_bytes(32, "little")).hexdigest()


def fingerprint(columns: Mapping[str, pl.Series]) -> str:
    """The fingerprint of a table, given as its columns by name, in hexadecimal."""
    whole = Fingerprint()
    whole.add(columns)
    return whole.hex()


def _hashed(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=32, person=b"caps/v1/row").digest()


def _spelled(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """A column as text: 33, 33.0 and " 33" are the same, and so are an empty field and a missing value."""
    text = values.cast(pl.String).str.strip_chars()
    number = (values if dtype.is_numeric() else text).cast(pl.Float64, strict=False).cast(pl.String)
    return pl.coalesce(number, pl.when(text != "").then(text), pl.lit(_MISSING))
