"""What a run computes on, where it is too long to be held in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caps.errors import LocalError
from caps.shares.ring import Z24
from services.mpc_server.engine.long import LongWords
from services.mpc_server.runs import material
from services.mpc_server.storage import tables
from tests.kit.mpc_server import Parties, dealt
from tests.kit.study import COLUMNS, SERVERS

pytestmark = pytest.mark.integration


def test_long_columns_are_read_where_they_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server's components, in ranges of rows that begin anywhere, are those that it would hold in memory."""
    federation = Parties(tmp_path, holders=COLUMNS, slots=1 << 16)
    one = dealt(federation, "lab", chunk_bytes=(1 << 16) + 1)
    desks = [federation.desk(name) for name in SERVERS]
    for desk in desks:
        desk.propose()
        assert desk.contribute(one).status_code == 200
        held = material.share_of(desk.contributions, one.id)
        assert all(isinstance(words, np.ndarray) for words in held)
        monkeypatch.setattr(material, "MOST_HELD", 4 * 7 * (1 << 16) - 1)
        long = material.share_of(desk.contributions, one.id)
        monkeypatch.undo()
        assert all(isinstance(words, LongWords) for words in long)
        for words, same in zip(long, held, strict=True):
            for rows in (slice(0, 1), slice(1023, 5000), slice(60_001, 1 << 16)):
                assert np.array_equal(np.asarray(words[rows, 2:6]), same[rows, 2:6])
            assert np.array_equal(words.sum(0, dtype=words.dtype), same.sum(0, dtype=same.dtype))
            assert np.array_equal(Z24.reduce(np.asarray(words)), Z24.reduce(same))


def test_a_chunk_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Parties(tmp_path, holders=COLUMNS, slots=1 << 16)
    one = dealt(federation, "lab", chunk_bytes=1 << 16)
    desk = federation.desk("S3")
    desk.propose()
    desk.contribute(one)
    with desk.database.begin() as connection:
        connection.execute(tables.chunks.delete().where(tables.chunks.c.number == 2))
    monkeypatch.setattr(material, "MOST_HELD", 0)
    (vector,) = [w for w in material.share_of(desk.contributions, one.id) if not hasattr(w.origin, "seeded")]
    assert len(np.asarray(vector[:100])) == 100
    with pytest.raises(LocalError, match=f"contribution {one.id}, chunk 2: missing"):
        np.asarray(vector[7000:9000])
