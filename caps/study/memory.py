"""The memory that a study needs at a server, for the plan and for the limit in the server's policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caps.basics.schemes import REP3_ACTIVE, Scheme
from caps.data.domain import Layout
from caps.study.manifest import Holder, Manifest, columns_bits, held_bytes

MOST_HELD = 1 << 29
"""Bytes of a component of columns that a server holds in memory; a larger one is made or read in blocks of rows.

That takes up to twice the processor time, as there are three passes, so what fits is held: a few components of this
size are well below the memory that a policy admits by default.
"""
_JOINED_BYTES, _COUNT_BYTES = 2, 8
_GROUP_ROWS, _WIDE_GROUP_ROWS = 65_535, (1 << 22) - 1
_BLOCK_ROWS, _BLOCK_WORDS = 1024, 1 << 22
_JOINED_WORDS = 1 << 24
_MOVED = 3  # copies of each row of a component: with dummies, shuffled, and on its way
_MATCHED_ROW = 24  # bytes of a row's place in an order, and in the joint table
_EXPANDED = 5  # copies of each word of a group that is expanded: shares of bits, masks, messages, joined columns
_PROVED_ROW, _PROVED = 6_500, 6 << 27  # bytes of claims for a row, and for all that are in flight at once
_MULTIPLIED = 4  # copies of each word during a multiplication: both factors, the product, masks
_LIFTED = 12  # words per count while it is lifted, including its bits and messages in flight
_DRAW_WORKSPACE = 64 << 20  # one chunk of draws: bit planes of both components


@dataclass(frozen=True, slots=True)
class Memory:
    """Roughly the bytes that a server needs at its peak, besides those of the program itself."""

    inputs: int
    working: int
    counts: int
    noise: int

    @property
    def total(self) -> int:
        """The sum of all four."""
        return self.inputs + self.working + self.counts + self.noise


def memory_of(manifest: Manifest) -> Memory:
    """Memory for the inputs; the rows processed at once, some as floats; counts and their bits; noise."""
    spends, parts = manifest.forecast.spends, _parts(manifest)
    draws = max((spend.draws // spend.requests for spend in spends), default=0)
    return Memory(
        parts * sum(_held(manifest, holder) for holder in manifest.holders),
        _working(manifest),
        parts * (_COUNT_BYTES * manifest.layout.cells + 32 * (manifest.layout.cells // 8 + 8)),
        parts * _COUNT_BYTES * draws * 4 + _DRAW_WORKSPACE,
    )


def _held(manifest: Manifest, holder: Holder) -> int:
    """Bytes of a component that are in memory. Of long columns, those that others bring too: these are merged."""
    form = manifest.form_of(holder)
    if form.form != "columns" or form.held_bytes <= MOST_HELD:
        return form.held_bytes
    domain = manifest.columns_of(holder).domain()
    merged = sum(size for name, size in zip(domain.names, domain.sizes, strict=True) if manifest.brought[name] > 1)
    return form.shape[0] * merged * held_bytes(form.bits)


def _parts(manifest: Manifest) -> int:
    """Components of every share that a server holds."""
    return max(map(len, manifest.sharing.held))


def _working(manifest: Manifest) -> int:
    parts = _parts(manifest)
    if manifest.slots is not None:
        # If several holders bring an attribute, all its rows are merged.
        word = held_bytes(columns_bits(manifest.slots))
        merged = _MULTIPLIED * parts * word * manifest.slots * _brought_again(manifest)
        return merged + counting_memory(manifest.slots, manifest.layout, parts)
    if manifest.join is not None:
        tables = [(manifest.shuffled_rows(holder), manifest.form_of(holder).shape[1]) for holder in manifest.joined]
        return joining_memory(tables, manifest.layout, manifest.sharing)
    return 0


def joining_memory(tables: Sequence[tuple[int, int]], layout: Layout, scheme: Scheme) -> int:
    """Bytes that a join needs besides its inputs, for the rows of each table, dummies included, and bytes of a row.

    Rows with dummies, shuffled, and on their way; their order and their match; a group of joint rows that is expanded;
    in `rep3-active`, what is filed to be proved. `bench scaling --parts join` compares this with a run.
    """
    width, parts = layout.domain.width, max(map(len, scheme.held))
    rows = sum(count for count, _ in tables)
    records = sum(count * octets for count, octets in tables)
    expanded = _EXPANDED * parts * _JOINED_BYTES * min(rows * width, _JOINED_WORDS)
    proved = min(rows * _PROVED_ROW, _PROVED) if scheme == REP3_ACTIVE else 0
    return _MOVED * parts * records + _MATCHED_ROW * rows + expanded + proved + _products(width)


def counting_memory(rows: int, layout: Layout, parts: int = 2) -> int:
    """Bytes that counting needs besides the columns: a block of rows, also as floats; products of columns; counts.

    parts: the components of a share that a server holds.
    """
    bits, width = columns_bits(rows), layout.domain.width
    group = _GROUP_ROWS if bits == 16 else _WIDE_GROUP_ROWS
    block = min(rows, _BLOCK_ROWS) * width
    multiplied = 0
    if max(map(len, layout.cliques)) > 2:
        words = min(max(_BLOCK_WORDS, block), rows * (width + layout.cells))
        multiplied = _MULTIPLIED * parts * held_bytes(bits) * words
    lifted = parts * _LIFTED * _COUNT_BYTES * -(-rows // group) * layout.cells
    return 5 * 8 * block + multiplied + lifted + _products(width)


def _products(width: int) -> int:
    return 3 * 8 * width * width


def _brought_again(manifest: Manifest) -> int:
    """One-hot columns that holders bring beyond the first holder of each attribute."""
    sizes = dict(zip(manifest.domain.names, manifest.domain.sizes, strict=True))
    return sum((count - 1) * sizes[name] for name, count in manifest.brought.items())


def size_shown(octets: int) -> str:
    """A number of bytes in readable units."""
    size, units = float(octets), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"
