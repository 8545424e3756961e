"""Tables in any order, joined by tags: three holders and three servers over TLS, up to what servers hold together."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caps.data.domain import MISSING
from caps.service.app import create_app
from caps.service.database import open_database, sqlite_url
from caps.service.identity import Caller, Machine
from caps.service.problems import Problem
from caps.service.site import Settings, Site
from caps.shares.sharing import reconstruct
from caps.study import Policy
from caps.wire.holder import Goal, State
from caps.wire.media import CSV
from caps.wire.problems import Kind
from services.holder import matching
from services.holder.retry_queue import Stopped
from services.holder.service import HolderService
from services.holder.settings import Options
from services.holder.table import Sent
from services.mpc_server.intake import matching_api, studies_api
from services.mpc_server.intake.contributions import Contributions
from services.mpc_server.intake.matching import Matching
from services.mpc_server.intake.studies import Studies
from services.mpc_server.storage import tables
from services.mpc_server.storage.shares import ShareStore, Vault
from tests.kit.holder import QUICK, HolderBench
from tests.kit.study import POPULATIONS, SERVERS, write_site
from tests.kit.tls import serving
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

HOLDERS = (("registry", ("age", "smoker")), ("lab", ("region", "diagnosis")), ("clinic", ("smoker", "region")))
CAPACITY = 24
JOIN: dict[str, Any] = {
    "key": {
        "columns": [{"name": "number", "kind": "text", "remove": "-"}],
        "missing": "alone",
    },
    "protocol": "oprf",
}
VALUES: dict[str, tuple[str, ...]] = {
    "age": ("5", "25", "45", "65"),
    "smoker": ("no", "yes"),
    "region": ("north", "east", "south"),
    "diagnosis": ("none", "A", "B", "C", ""),
}
Person = dict[str, int]
"""Codes by column; a value that is missing is not there."""


def table_of(columns: tuple[str, ...], numbers: list[int], seed: int) -> tuple[str, dict[str, Person]]:
    """A file in an order of its own, with spellings of its own, and what it says of whom. The first has no number."""
    draw = random.Random(seed)
    draw.shuffle(numbers)
    lines, known = [",".join(("number", *columns))], dict[str, Person]()
    for i, number in enumerate([-1, *numbers]):
        codes = {name: draw.randrange(len(VALUES[name])) for name in columns}
        written = "" if number < 0 else f"{number:04}" if seed % 2 else f" {number // 100:02}-{number % 100:02}"
        lines.append(",".join([written, *(VALUES[name][code] for name, code in codes.items())]))
        name = f"{i}/{seed}" if number < 0 else f"{number:04}"
        known[name] = {column: code for column, code in codes.items() if VALUES[column][code]}
    return "\n".join(lines) + "\n", known


TABLES = {
    "registry": table_of(HOLDERS[0][1], list(range(18)), 1),
    "lab": table_of(HOLDERS[1][1], list(range(9, 28)), 2),
    "clinic": table_of(HOLDERS[2][1], [*range(5, 12), *range(25, 34)], 3),
}


class Parties(HolderBench):
    """All servers with their own routes, and holders by name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "registry", holders=HOLDERS, capacity=CAPACITY, join=JOIN)
        for name, _ in HOLDERS:
            write_site(folder / name, self.authority, self.keys[name], "holder", now=datetime.now(UTC))
        self.desks: dict[str, tuple[Studies, Contributions, Matching]] = {}

    @contextmanager
    def serving(self) -> Iterator[None]:
        with ExitStack() as stack:
            site = self.site("coordinator", "coordinator")
            stack.enter_context(serving(self.coordinator_app(), site.credentials, self.sockets["coordinator"]))
            for name in SERVERS:
                self._serve(name, stack)
            yield
        for one in self.sockets.values():
            one.close()

    def _serve(self, name: str, stack: ExitStack) -> None:
        site = self.site(name, "mpc-server")
        database = open_database(site.settings.database, tables.metadata)
        stack.callback(database.dispose)
        store = ShareStore(site.settings.data / "shares", Vault(site.settings.home))
        studies = Studies(
            site, Policy(populations=POPULATIONS, approval="automatic", least_capacity=1), database, store, mesh=3
        )
        contributions = Contributions(site, studies, database, store)
        found = Matching(site, studies, database, store)
        coordinator = self.manifest.coordinator
        studies.receive(self.study, self.manifest, Caller(Machine("coordinator", coordinator.name, coordinator.pin)))
        self.desks[name] = studies, contributions, found
        app = create_app(
            service="mpc-server",
            name=name,
            description="",
            routers=[studies_api.router(studies, contributions), matching_api.router(found)],
            tokens=site.tokens,
            limits=(*studies_api.limits(studies, contributions), *matching_api.limits(found)),
        )
        stack.enter_context(serving(app, site.credentials, self.sockets[name]))

    def service(self, name: str) -> HolderService:
        home = self.folder / name
        data = home / "state"
        settings = Settings(home, data, "127.0.0.1", 0, sqlite_url(data / "state.db"))
        return HolderService(Site(settings, role="holder"), Options(backoff=QUICK))

    @contextmanager
    def at(self, *names: str) -> Iterator[list[HolderService]]:
        """Holders' services; another on the same folder is a restart."""
        services = [self.service(name) for name in names]
        for one in services:
            one.start()
        try:
            yield services
        finally:
            for one in services:
                one.close()

    def contribution(self, name: str) -> object:
        """What a holder has contributed, by its own records."""
        holder = self.service(name)
        try:
            return holder.store.contribution(self.study)
        finally:
            holder.close()

    def columns(self, name: str) -> np.ndarray:
        """What the servers hold together of a holder's contribution."""
        loaded = []
        for server in SERVERS:
            with self.desks[server][0]._database.begin() as connection:
                found = connection.execute(tables.contributions.select()).all()
            (row,) = (one for one in found if one.holder == name and one.state == "complete")
            loaded.append(self.desks[server][1].load(row.contribution))
        return np.asarray(reconstruct(loaded))

    def codes(self) -> np.ndarray:
        """The joint table, from what servers hold, by precedence."""
        domain = self.manifest.domain
        slots = self.manifest.slots
        assert slots == CAPACITY * len(HOLDERS)
        joint = np.full((slots, len(domain.names)), MISSING, np.int64)
        for holder in self.manifest.holders:
            own, columns = self.manifest.columns_of(holder).domain(), self.columns(holder.name)
            for name in own.names:
                block = columns[:, own.columns(name)]
                assert set(np.unique(block)) <= {0, 1}
                assert block.sum(axis=1).max() <= 1
                place = domain.names.index(name)
                fresh = (joint[:, place] == MISSING) & (block.sum(axis=1) == 1)
                joint[fresh, place] = block[fresh].argmax(axis=1)
        return joint


def load(holder: HolderService, study: str, table: str) -> None:
    path = holder.upload_path(study)
    path.write_text(table)
    holder.load(study, path, Sent.of(CSV), sha256(table.encode()).hexdigest())


def begin(holder: HolderService, parties: Parties) -> None:
    holder.know(parties.urls["coordinator"], parties.study)
    holder.approve(parties.study)
    load(holder, parties.study, TABLES[holder.site.name][0])


def reference(parties: Parties, known: Mapping[str, Mapping[str, Person]]) -> np.ndarray:
    """The marginals of the join in the clear: the first holder that has a value of a person decides."""
    joint: dict[str, Person] = {}
    for name, _ in HOLDERS:
        for person, codes in known[name].items():
            joint[person] = codes | joint.get(person, {})
    names = parties.manifest.domain.names
    rows = [[codes.get(name, MISSING) for name in names] for codes in joint.values()]
    return parties.manifest.layout.marginals(np.array(rows))


def right(parties: Parties, known: Mapping[str, Mapping[str, Person]] | None = None) -> bool:
    """Whether servers hold the joint table, in an order of S1's."""
    expected = reference(parties, known or {name: told for name, (_, told) in TABLES.items()})
    return np.array_equal(parties.manifest.layout.marginals(parties.codes()), expected)


def goal(holder: HolderService, study: str) -> Goal:
    return holder.progress(study).goal


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parties]:
    monkeypatch.setattr(matching, "BATCH", 7)
    found = Parties(tmp_path)
    with found.serving():
        yield found


def test_servers_hold_the_join_and_nothing_of_it_is_left_with_holders(
    parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    study = parties.study
    with caplog.at_level("DEBUG"), parties.at("registry", "lab", "clinic") as holders:
        for holder in holders:
            begin(holder, parties)
        for holder in holders[:-1]:
            assert holder.contribute(study).goal is Goal.MATCHING
            assert holder.contribute(study).goal is Goal.MATCHING
        first = holders[0]
        until(lambda: "S1" in first.store.matching(study).problems)  # type: ignore[union-attr]
        waiting = first.progress(study)
        assert waiting.problems["S1"]["retryable"]  # type: ignore[union-attr]
        assert first.evaluated(waiting) == dict.fromkeys(SERVERS, CAPACITY * 32)  # type: ignore[arg-type]
        assert first.store.study(study).state is State.LOADED
        holders[-1].contribute(study)
        for holder in holders:
            until(lambda holder=holder: goal(holder, study) is Goal.COMPLETE)
            folder = next((parties.folder / holder.site.name / "state" / "studies").glob("*/matching-*"))
            assert sorted(path.name for path in folder.iterdir()) == ["ids", "places", "positions"]
            assert folder.stat().st_mode & 0o77 == 0
            ids = (folder / "ids").read_bytes()
            assert all(ids[i : i + 16].hex() not in caplog.text for i in range(0, len(ids), 16))
            holder.erase_table(study)
            assert not list(folder.parent.glob("matching-*"))
    assert right(parties)


def test_a_preview_counts_elements_and_tags(parties: Parties) -> None:
    with parties.at("lab") as (holder,):
        holder.know(parties.urls["coordinator"], parties.study)
        found = holder.preview(parties.study)
        assert [(one.elements, one.tags) for one in found.servers] == [
            (CAPACITY, CAPACITY),
            (CAPACITY, 0),
            (CAPACITY, 0),
        ]
        one, two, _ = found.servers
        assert one.total_bytes == one.offer_bytes + CAPACITY * 48
        assert two.total_bytes == two.offer_bytes + two.vector_bytes + CAPACITY * 32
        assert "blinded" in found.statement


def test_withdrawn_and_brought_again_with_the_same_persons_only(parties: Parties) -> None:
    study = parties.study
    with parties.at("registry", "lab", "clinic") as holders:
        lab = holders[1]
        for holder in holders:
            begin(holder, parties)
            holder.contribute(study)
        until(lambda: all(goal(holder, study) is Goal.COMPLETE for holder in holders))
        assert lab.withdraw(study).goal is Goal.WITHDRAWN
        text, known = TABLES["lab"]
        lines = text.splitlines()
        other = "\n".join([*lines[:2], "9999,north,A"]) + "\n"
        load(lab, study, other)
        with pytest.raises(Problem, match="not in the table first matched") as refused:
            lab.contribute(study)
        assert refused.value.kind is Kind.CONFLICT
        assert lab.store.study(study).state is State.LOADED
        fewer = "\n".join([lines[0], *reversed(lines[3:])]) + "\n"  # without the one that has no number, and another
        load(lab, study, fewer)
        lab.contribute(study)
        until(lambda: goal(lab, study) is Goal.COMPLETE)
        kept = dict(list(known.items())[2:])
        assert right(parties, {name: told for name, (_, told) in TABLES.items()} | {"lab": kept})


def test_a_matching_can_be_given_up(parties: Parties) -> None:
    study = parties.study
    with parties.at("lab") as (lab,):
        begin(lab, parties)
        lab.contribute(study)
        with pytest.raises(Problem, match="another table is being matched"):
            load(lab, study, "number,region,diagnosis\n1,north,A\n")
        with pytest.raises(Problem, match="is being matched"):
            lab.erase_table(study)
        load(lab, study, TABLES["lab"][0])
        assert lab.withdraw(study).goal is Goal.WITHDRAWN
        with pytest.raises(Problem) as none:
            lab.progress(study)
        assert none.value.kind is Kind.NOT_FOUND
        assert lab.contribute(study).goal is Goal.MATCHING


def test_a_second_table_of_evaluations_is_refused_by_the_servers(parties: Parties) -> None:
    study = parties.study
    with parties.at("lab") as (lab,):
        begin(lab, parties)
        lab.contribute(study)
        until(lambda: "S1" in lab.store.matching(study).problems)  # type: ignore[union-attr]
        lab.withdraw(study)
        lab.erase_table(study)  # and with it the seed: what was evaluated cannot be repeated
        load(lab, study, TABLES["lab"][0])
        lab.contribute(study)
        until(lambda: len(lab.store.matching(study).problems) == 3)  # type: ignore[union-attr]
        problems = lab.progress(study).problems  # type: ignore[union-attr]
        assert {one["type"] for one in problems.values()} == {Kind.FORBIDDEN.urn}
        assert all("0 of them are left" in one["detail"] for one in problems.values())


class Lives:
    """A process that may write once to its disk and dies at the next write, of which half gets there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.deaths = 0, 0
        grow, lock = matching._Growing.write, threading.Lock()

        def alive(path: Path) -> bool:
            """Of this holder only; and what is erased already is no write."""
            with lock:
                if "lab" in path.parts:
                    self.left -= 1
                return self.left >= 0 or "lab" not in path.parts

        def write(file: Any, first: int, data: bytes) -> None:
            if not alive(file.path):
                grow(file, first, data[: len(data) // 2])
                raise Stopped  # the task ends as if the process had
            grow(file, first, data)

        def dying(act: Callable[..., Any]) -> Callable[..., Any]:
            def acts(path: Path, *others: Any) -> Any:
                if (path.exists() or others) and not alive(path):
                    raise Stopped
                return act(path, *others)

            return acts

        monkeypatch.setattr(matching._Growing, "write", write)
        for name in ("write_private", "erase"):
            monkeypatch.setattr(matching, name, dying(getattr(matching, name)))

    def live(self, holder: HolderService, study: str) -> None:
        """From a start to a death, or to the end of the matching."""
        self.left = 1
        holder._match_soon(holder.store.study(study))
        holder._retries.wait([(study, "matching")], 30)
        holder.close()
        self.deaths += 1


def test_killed_at_every_write_and_started_again(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    study = parties.study
    with parties.at("registry", "clinic") as others:
        for holder in others:
            begin(holder, parties)
            holder.contribute(study)
        lab = parties.service("lab")
        begin(lab, parties)
        with monkeypatch.context() as patch:
            patch.setattr(HolderService, "_match_soon", lambda *_: None)
            lab.contribute(study)
        lab.close()
        with monkeypatch.context() as patch:
            lives = Lives(patch)
            while parties.contribution("lab") is None:
                lives.live(parties.service("lab"), study)
                assert lives.deaths < 80
        assert lives.deaths > 10
        with parties.at("lab") as (lab,):
            for holder in (*others, lab):
                until(lambda holder=holder: goal(holder, study) is Goal.COMPLETE)
    assert right(parties)
    with parties.desks["S2"][0]._database.begin() as connection:
        counted = connection.execute(tables.evaluations.select()).all()
    assert sum(row.elements for row in counted if row.holder == "lab") == CAPACITY


def test_a_server_that_answers_with_no_elements_is_named_and_asked_again(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = parties.study
    real = Matching.evaluate

    def wrong(self: Matching, study: str, elements: bytes, caller: Caller) -> bytes:
        found = real(self, study, elements, caller)
        return b"\xff" * len(found) if self._site.name == "S2" else found

    monkeypatch.setattr(Matching, "evaluate", wrong)
    with parties.at("registry", "lab", "clinic") as holders:
        lab = holders[1]
        begin(lab, parties)
        lab.contribute(study)
        until(lambda: bool(lab.store.matching(study).problems))  # type: ignore[union-attr]
        (server,) = lab.progress(study).problems  # type: ignore[union-attr]
        assert server == "S2"
        monkeypatch.setattr(Matching, "evaluate", real)
        for holder in holders:
            if holder is not lab:
                begin(holder, parties)
            holder.contribute(study)
        for holder in holders:
            until(lambda holder=holder: goal(holder, study) is Goal.COMPLETE)
    assert right(parties)


@pytest.mark.parametrize("answer", [b"", bytes(4 * CAPACITY), b"\xff\xff\xff\x7f" + bytes(range(4 * CAPACITY - 4))])
def test_positions_that_cannot_be_are_refused(parties: Parties, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr(Matching, "positions", lambda *_: answer)
    with parties.at("lab") as (lab,):
        begin(lab, parties)
        lab.contribute(parties.study)
        until(lambda: "S1" in lab.store.matching(parties.study).problems)  # type: ignore[union-attr]
        problem = lab.progress(parties.study).problems["S1"]  # type: ignore[union-attr]
        assert not problem["retryable"]
        assert "position" in problem["detail"]
