"""LOCAL_COMPUTE: all marginals of a study's layout, counted at the owner's site."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from caps.data.domain import MISSING, Layout
from caps.data.kept import give_back
from caps.dp.bounds import MOST_COUNTED
from caps.errors import DomainError

_ROWS = 1 << 16
"""Rows counted at a time: a few columns of 64-bit codes then stay in the cache."""


def count_columns(sizes: Iterable[int], codes: npt.NDArray[np.integer]) -> list[npt.NDArray[np.int64]]:
    """How many rows have each code of each column; missing values are not counted."""
    found = []
    for place, size in enumerate(sizes):
        column = codes[:, place]
        found.append(np.bincount(column[column != MISSING], minlength=size).astype(np.int64))
    return found


def count_marginals(layout: Layout, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """What `layout.marginals` returns, as words of Z_2^32; computed fast, one block of rows at a time."""
    if len(codes) > MOST_COUNTED:
        raise DomainError("the table has 2^32 rows or more, which is too many to count in Z_2^32")
    domain = layout.domain
    counts = np.zeros(layout.cells, np.uint32)
    cliques = [tuple(domain.position(name) for name in clique) for clique in layout.cliques]
    rows = max(_ROWS, *layout.sizes)  # bincount makes an array of all cells for each block
    index = np.empty(min(rows, len(codes)), np.int64)
    for start in range(0, len(codes), rows):
        block = domain.check_codes(codes[start : start + rows])
        # Missing values get a category of their own, which is dropped afterwards: no row has to be filtered out.
        columns = [np.array(column) for column in block.T]
        extents = list(domain.sizes)
        for position, column in enumerate(columns):
            missing = column == MISSING
            if missing.any():
                column[missing] = domain.sizes[position]
                extents[position] += 1
        cells = index[: len(block)]
        for clique, offset, size in zip(cliques, layout.offsets, layout.sizes, strict=True):
            cells[:] = columns[clique[0]]
            for position in clique[1:]:
                cells *= extents[position]
                cells += columns[position]
            shape = [extents[position] for position in clique]
            found = np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)
            known = found[tuple(slice(domain.sizes[position]) for position in clique)]
            counts[offset : offset + size] += known.reshape(-1).astype(np.uint32)
        give_back(codes)
    return counts
