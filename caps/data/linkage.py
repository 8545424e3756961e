"""The format of a row that a holder sends when the servers match persons across holders.

A row is an identifier of 16 bytes, then one code per attribute in as few bits as it needs: 0 for a missing value, 1 +
the category otherwise. Codes follow each other, lowest bit first, and fill whole bytes. Any bits are a valid row: a
code beyond the last category is a missing value. A padding row has a random identifier and no values.

A table is sent in the order of its identifiers: bytes 4 to 15, as a number of 96 bits, lowest byte first, increase from
row to row. Servers can then check, before they compare tables and without seeing any, that no identifier occurs twice.
This matters: a holder that repeats a person could recognise its rows, and the rows of others that match them, by the
repetition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from caps.data.domain import Domain
from caps.errors import DomainError

ID_BYTES = 16
ELEMENT_BYTES, TAG_BYTES, POSITION_BYTES = 32, 16, 4
"""Where rows are joined by tags (`caps.data.oprf`): a blinded identifier, a tag, a row's place in the joint table."""
ORDERED = slice(4, ID_BYTES)
"""The bytes of an identifier by which rows are sorted. Among 2^24 of them, two agree here with probability 2^-49."""

Octets = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RowFormat:
    """How rows with the attributes of a domain are packed."""

    domain: Domain

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Bits of each attribute's code: enough for its size + 1 codes."""
        return tuple(size.bit_length() for size in self.domain.sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First bit of each attribute's code, counted from the end of the identifier."""
        return tuple(int(offset) for offset in np.cumsum([0, *self.widths])[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return ID_BYTES + -(-sum(self.widths) // 8)

    def pack(self, ids: Octets, codes: npt.ArrayLike) -> Octets:
        """Packs identifiers and codes (-1 for missing) into rows, in the order of the identifiers.

        A padding row has only missing values. Raises DomainError unless `ids` is n x 16 bytes and `codes` are n rows of
        the domain.
        """
        table = self.domain.check_codes(codes)
        if ids.dtype != np.uint8 or ids.shape != (len(table), ID_BYTES):
            raise DomainError(f"{len(table)} rows need as many identifiers of {ID_BYTES} bytes")
        bits = np.empty((len(table), sum(self.widths)), np.uint8)
        for position, (width, offset) in enumerate(zip(self.widths, self.offsets, strict=True)):
            bits[:, offset : offset + width] = (table[:, position : position + 1] + 1) >> np.arange(width) & 1
        packed = np.concatenate([ids, np.packbits(bits, axis=1, bitorder="little")], axis=1)
        return packed[in_order(ids)]


def in_order(ids: Octets) -> npt.NDArray[np.int64]:
    """The places of identifiers, in the order in which rows are sent."""
    words = np.ascontiguousarray(ids).view("<u4")
    return np.lexsort((words[:, 1], np.ascontiguousarray(words[:, 2:]).view("<u8")[:, 0]))
