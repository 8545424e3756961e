"""How often a holder reads the owner's file: once for each time that it is needed, whatever is read from it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caps.data.schema import tables
from caps.wire.media import CSV
from services.holder import table
from services.holder.service import HolderService
from services.holder.state import Goal
from services.holder.store import ContributionRecord
from services.holder.table import Sent
from tests.kit.holder import HolderBench
from tests.kit.study import COLUMNS, ROWS
from tests.kit.waiting import until

CAPACITY = 8
KEY: dict[str, Any] = {"columns": [{"name": "number", "kind": "text"}]}
WIDE = "age,smoker,region,diagnosis\n" + "33,yes,north,A\n" * 5
ALIGNED = "age,smoker,slot\n33,yes,4\n12,no,1\n"
JOINED = "age,smoker,number\n33,yes,4711\n12,no,17\n"
STUDIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rows": (ROWS[0][0], WIDE, {"holders": ROWS}),
    "slots": (COLUMNS[0][0], ALIGNED, {"holders": COLUMNS, "alignment": {"slots": CAPACITY, "column": "slot"}}),
    "shuffle": (COLUMNS[0][0], JOINED, {"holders": COLUMNS, "join": {"key": KEY}}),
    "oprf": (COLUMNS[0][0], JOINED, {"holders": COLUMNS, "join": {"key": KEY, "protocol": "oprf"}}),
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done with the owner's file: each pass that checks its bytes, and each that parses it."""
    done: list[str] = []
    inner = {"checked": tables.opened, "parsed": tables._blocks}

    def counting(name: str) -> Any:
        def read(source: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "parsed" or isinstance(source, Path):
                done.append(name)
            return inner[name](source, *args, **kwargs)

        return read

    monkeypatch.setattr(tables, "opened", counting("checked"))
    monkeypatch.setattr(tables, "_blocks", counting("parsed"))
    for name in ("opened", "scan_csv", "scan_parquet"):
        assert not hasattr(table, name), "the holder reads files by the schema alone"
    return done


@pytest.fixture(params=STUDIES)
def study(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, HolderBench, str]]:
    name, text, choices = STUDIES[request.param]
    if "join" in choices:
        choices = {"capacity": CAPACITY, **choices}
    world = HolderBench(tmp_path, name, **choices)
    with world.others():
        yield request.param, world, text


def uploaded(holder: HolderService, world: HolderBench, text: str) -> tuple[str, Path, str, str]:
    path = holder.upload_path(world.study)
    path.write_text(text)
    return world.study, path, Sent.of(CSV), sha256(text.encode()).hexdigest()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("at_once", [True, False], ids=["POST contribution", "PUT table, PUT contribution"])
def test_the_table_is_read_once_for_each_purpose(study: Any, reads: list[str], at_once: bool) -> None:
    kind, world, text = study
    with world.running() as holder:
        holder.know(world.urls["coordinator"], world.study)
        holder.approve(world.study)
        holder.matcher.positions = lambda *_: np.arange(CAPACITY)
        if at_once:
            holder.load_and_contribute(*uploaded(holder, world, text))
        else:
            holder.load(*uploaded(holder, world, text))
            holder.contribute(world.study)
        until(lambda: isinstance(holder.progress(world.study), ContributionRecord))
        until(lambda: holder.progress(world.study).goal is Goal.COMPLETE)
    # To check it and to share it: the same rows if one request asks for both. Positions take a while to come, and no
    # row is kept in memory or anywhere else meanwhile.
    expected = (1 if at_once else 2) + (kind == "oprf")
    assert reads == ["checked", "parsed"] * expected


def test_the_same_table_is_not_read_again(study: Any, reads: list[str]) -> None:
    _, world, text = study
    with world.running() as holder:
        holder.know(world.urls["coordinator"], world.study)
        holder.approve(world.study)
        holder.matcher.positions = lambda *_: np.arange(CAPACITY)
        first = holder.load_and_contribute(*uploaded(holder, world, text))
        until(lambda: isinstance(holder.progress(world.study), ContributionRecord))
        before = list(reads)
        again = holder.load_and_contribute(*uploaded(holder, world, text))
        assert reads == before
        assert isinstance(again, ContributionRecord)
        assert first.study == again.study
