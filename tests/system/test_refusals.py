"""What real services refuse over TLS: a problem document of the right type, no private value in it, nothing changed."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import polars as pl
import pytest

from caps.basics.canonical import dump
from caps.trust import signing
from caps.wire import Approval, Signed, media
from caps.wire.problems import Kind
from deploy.federation import COORDINATOR, SERVERS
from tests.kit.federation import manifest_of, now, put_chunk
from tests.kit.processes import (
    CANARIES,
    LARGEST_UPLOAD,
    NAME,
    NUMBER,
    Everybody,
    Study,
    horizontal,
    nobody_wrote,
    persons,
)

pytestmark = pytest.mark.e2e

CSV, GZIP, PARQUET, XLSX = media.CSV, media.GZIP, media.PARQUET, media.XLSX
HEADER = "income,smoker,illness\n"
GOOD = f"{HEADER}{NUMBER},{NAME},none\n12.5,no,asthma\n"


@pytest.fixture(scope="module")
def study(everybody: Everybody, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Approved by all, and nobody has loaded a table. Whoever uses it leaves it so."""
    everybody.start()
    everybody.wait_ready()
    found = horizontal(everybody, tmp_path_factory.mktemp("refusals"), persons(40, 11), algorithm="mst")
    found.agree()
    return found


@pytest.fixture(scope="module")
def contributed(everybody: Everybody, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """North and south have contributed."""
    everybody.start()
    everybody.wait_ready()
    found = horizontal(everybody, tmp_path_factory.mktemp("contributed"), persons(40, 12), algorithm="mst")
    found.agree()
    found.contribute()
    return found


def state_of(federation: Everybody, name: str) -> dict[str, Any]:
    """All rows of a service's database, and its files apart from the database and the log."""
    folder = federation.places[name].home / "state"
    connection = sqlite3.connect(folder / "state.db", timeout=10)
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {table: sorted(map(repr, connection.execute(f"SELECT * FROM {table}"))) for table in tables}
    finally:
        connection.close()
    files = {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("state.db")}
    return {"rows": rows, "files": files}


def refused(
    federation: Everybody, name: str, kind: Kind | tuple[Kind, ...], ask: Callable[[], httpx.Response]
) -> dict[str, Any]:
    """The service answers with the problem, quietly, and is as it was."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    before = state_of(federation, name)
    response = ask()
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert document["type"] in {one.urn for one in kinds}, document
    assert response.status_code == document["status"]
    assert not any(value in response.text for value in CANARIES)
    assert state_of(federation, name) == before
    return document


def bomb() -> bytes:
    """A small Parquet file that unfolds to far more than a table may have."""
    count = LARGEST_UPLOAD // 2
    frame = pl.DataFrame({"income": [1.0] * count, "smoker": ["no"] * count, "illness": [NAME] * count})
    out = io.BytesIO()
    frame.write_parquet(out, compression="zstd")
    assert len(out.getvalue()) < LARGEST_UPLOAD // 8
    return out.getvalue()


def parquet() -> bytes:
    out = io.BytesIO()
    pl.read_csv(io.StringIO(GOOD)).write_parquet(out)
    return out.getvalue()


REFUSED = Kind.TABLE_REFUSED
UPLOADS = {
    "a category that is none": (REFUSED, CSV, f"{HEADER}{NUMBER},no,{NAME}\n".encode()),
    "a text for a number": (REFUSED, CSV, f"{HEADER}{NAME},no,none\n".encode()),
    "a number that is missing": (REFUSED, CSV, f"{HEADER},{NAME},none\n".encode()),
    "a missing column": (REFUSED, CSV, f"income,smoker\n{NUMBER},{NAME}\n".encode()),
    "a column too many": (REFUSED, CSV, f"income,smoker,illness,{NAME}\n{NUMBER},no,none,1\n".encode()),
    "a column twice": (REFUSED, CSV, f"income,smoker,smoker\n{NUMBER},{NAME},{NAME}\n".encode()),
    "nothing": (REFUSED, CSV, b""),
    "a header alone": (REFUSED, CSV, HEADER.encode()),
    "a row cut off": (REFUSED, CSV, f"{HEADER}{NUMBER},{NAME},none\n{NUMBER},no".encode()),
    "a quote that does not end": (REFUSED, CSV, f'{HEADER}{NUMBER},"{NAME},none\n'.encode()),
    "not UTF-8": (REFUSED, CSV, f"{HEADER}{NUMBER},{NAME}".encode() + b"\xff\xfe,none\n"),
    "a NUL": (REFUSED, CSV, f"{HEADER}{NUMBER},{NAME},none\0\n".encode()),
    "UTF-16 without its mark": (REFUSED, CSV, GOOD.encode("utf-16-le")),
    "one gigantic field": (REFUSED, CSV, HEADER.encode() + NAME.encode() * (1 << 14) + b",no,none\n"),
    "a gigantic table": (Kind.TOO_LARGE, CSV, HEADER.encode() + b"1,no,none\n" * (LARGEST_UPLOAD // 9)),
    "a bomb of Parquet": (REFUSED, PARQUET, bomb),
    "a bomb of gzip": (REFUSED, GZIP, lambda: gzip.compress(HEADER.encode() + b"1,no,none\n" * 10**6)),
    "gzip called CSV": (REFUSED, CSV, lambda: gzip.compress(GOOD.encode())),
    "a workbook that is none": (REFUSED, XLSX, b"PK\x03\x04" + NAME.encode()),
    "Parquet cut off": (REFUSED, PARQUET, lambda: parquet()[:-20]),
    "Parquet's ends alone": (REFUSED, PARQUET, b"PAR1" + NAME.encode() + b"PAR1"),
    "Parquet called CSV": (REFUSED, CSV, parquet),
    "CSV called Parquet": (REFUSED, PARQUET, GOOD.encode()),
    "a spreadsheet": (Kind.UNSUPPORTED, "application/vnd.ms-excel", GOOD.encode()),
    "another charset": (Kind.UNSUPPORTED, f"{CSV}; charset=koi8-r", GOOD.encode("koi8-r")),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_tables_that_are_refused(federation: Everybody, study: Study, name: str) -> None:
    kind, media_type, content = UPLOADS[name]
    body = content() if callable(content) else content
    with federation.client("north", "owner") as owner:
        headers = {"content-type": media_type}
        for method, route in (("PUT", "table"), ("POST", "contribution")):
            path = f"/v1/studies/{study.identity}/{route}"
            refused(
                federation, "north", kind, lambda m=method, p=path: owner.request(m, p, content=body, headers=headers)
            )
        assert owner.get(f"/v1/studies/{study.identity}").json()["state"] == "approved"
    nobody_wrote(federation, *CANARIES)


def test_a_bomb_of_gzip_is_not_unpacked(federation: Everybody, study: Study) -> None:
    body = gzip.compress(HEADER.encode() + b"1,no,none\n" * 10**6)
    headers = {"content-type": CSV, "content-encoding": "gzip"}
    path = f"/v1/studies/{study.identity}/table"
    with federation.client("north", "owner") as owner:
        refused(federation, "north", Kind.UNSUPPORTED, lambda: owner.put(path, content=body, headers=headers))


def test_a_table_without_a_length_that_never_ends_is_cut_off(federation: Everybody, study: Study) -> None:
    def endless() -> Iterator[bytes]:
        yield HEADER.encode()
        for _ in range(20 * LARGEST_UPLOAD // (10 * 10_000)):
            yield b"1,no,none\n" * 10_000

    path = f"/v1/studies/{study.identity}/table"
    with federation.client("north", "owner") as owner:
        before = state_of(federation, "north")
        try:
            response = owner.put(path, content=endless(), headers={"content-type": CSV})
        except httpx.TransportError:
            pass  # the holder hangs up in the middle: httpx does not read the answer then
        else:
            assert response.json()["type"] == Kind.TOO_LARGE.urn
        assert state_of(federation, "north") == before


def test_things_before_their_time_and_people_who_may_not(federation: Everybody, study: Study) -> None:
    path = f"/v1/studies/{study.identity}"
    nowhere = f"/v1/studies/{'0' * 64}"
    with federation.client("north", "owner") as owner, federation.client("north", "operator") as operator:
        headers = {"content-type": CSV}
        refused(federation, "north", Kind.NOT_READY, lambda: owner.put(f"{path}/contribution"))
        refused(federation, "north", Kind.NOT_FOUND, lambda: owner.get(f"{path}/contribution"))
        refused(
            federation, "north", Kind.NOT_FOUND, lambda: owner.put(f"{nowhere}/table", content=GOOD, headers=headers)
        )
        refused(
            federation, "north", Kind.FORBIDDEN, lambda: operator.put(f"{path}/table", content=GOOD, headers=headers)
        )
    with federation.client("north", None) as nobody:
        refused(federation, "north", Kind.UNAUTHENTICATED, lambda: nobody.put(f"{path}/table", content=GOOD))
    with federation.client(COORDINATOR, "operator") as operator:
        refused(federation, COORDINATOR, Kind.NOT_READY, lambda: operator.post(f"{path}/runs", json={}))


def test_another_table_after_the_contribution_is_a_conflict(federation: Everybody, contributed: Study) -> None:
    path = f"/v1/studies/{contributed.identity}"
    headers = {"content-type": CSV}
    with federation.client("north", "owner") as owner:
        had = owner.get(f"{path}/contribution").json()
        other = GOOD.encode()
        refused(federation, "north", Kind.CONFLICT, lambda: owner.put(f"{path}/table", content=other, headers=headers))
        refused(
            federation,
            "north",
            Kind.CONFLICT,
            lambda: owner.post(f"{path}/contribution", content=other, headers=headers),
        )
        before = state_of(federation, "north")
        same = contributed.files["north"].read_bytes()
        assert owner.put(f"{path}/table", content=same, headers=headers).is_success
        assert owner.put(f"{path}/contribution").json()["contribution"] == had["contribution"]
        assert owner.post(f"{path}/contribution", content=same, headers=headers).json() == had
        assert state_of(federation, "north") == before


def test_a_contribution_does_not_go_to_another_study_nor_in_anothers_name(
    federation: Everybody, study: Study, contributed: Study
) -> None:
    with federation.client("north", "owner") as owner:
        statement = owner.get(f"/v1/studies/{contributed.identity}/contribution").json()
    name = statement["contribution"]
    offer = {
        "contribution": statement["statement"],
        "openings": [{"component": one, "nonce": "00" * 32, "seed": "11" * 32} for one in (0, 1)],
    }
    for target, sender, kinds in (
        (study.identity, "north", (Kind.INVALID, Kind.CONFLICT)),  # another study
        (contributed.identity, "south", (Kind.FORBIDDEN, Kind.SIGNATURE_REFUSED)),  # another's contribution
        (contributed.identity, "north", (Kind.INVALID,)),  # other seeds than those committed to
    ):
        path = f"/v1/studies/{target}/contributions/{name}"
        with federation.machine("S1", sender) as machine:
            refused(federation, "S1", kinds, lambda p=path, m=machine: m.put(p, json=offer))
    with federation.machine("S2", "north") as machine:
        path = f"/v1/studies/{contributed.identity}/contributions/{name}/chunks/0"
        refused(federation, "S2", (Kind.CONFLICT, Kind.INVALID), lambda: put_chunk(machine, path, b"\1" * 64))
    with federation.machine("S1", "west") as stranger:
        path = f"/v1/studies/{contributed.identity}/contributions/{name}"
        refused(federation, "S1", Kind.FORBIDDEN, lambda: stranger.delete(path))


def approval_of(federation: Everybody, study: str, signer: str, key_of: str) -> dict[str, Any]:
    key = signing.read_signing_key(federation.places[key_of].home / "signing-key.pem")
    return Signed[Approval].by(Approval(study=study, role="holder", at=now()), signer, key).to_json()


def test_approvals_that_are_not_the_holders(federation: Everybody, study: Study) -> None:
    path = f"/v1/studies/{study.identity}/approvals/north"
    forged = approval_of(federation, study.identity, "north", "south")
    elsewhere = approval_of(federation, "0" * 64, "north", "north")
    unsigned = {key: value for key, value in forged.items() if key != "signature"}
    with federation.machine(COORDINATOR, "north") as north, federation.machine(COORDINATOR, "south") as south:
        for body, kinds in (
            (forged, (Kind.SIGNATURE_REFUSED,)),
            (elsewhere, (Kind.INVALID, Kind.CONFLICT, Kind.SIGNATURE_REFUSED)),
            (unsigned, (Kind.INVALID,)),
        ):
            refused(federation, COORDINATOR, kinds, lambda sent=body: north.put(path, json=sent))
        honest = approval_of(federation, study.identity, "north", "north")
        refused(federation, COORDINATOR, Kind.FORBIDDEN, lambda: south.put(path, json=honest))


def test_manifests_that_are_altered_or_break_a_policy(federation: Everybody, study: Study) -> None:
    document = study.manifest.to_json()
    altered = document | {"title": NAME}
    with federation.machine("S1", COORDINATOR) as machine:
        path = f"/v1/studies/{study.identity}"
        refused(federation, "S1", (Kind.INVALID, Kind.CONFLICT), lambda: machine.put(path, json=altered))
    split = [{"name": "north", "brings": "rows"}]
    greedy = manifest_of(federation, split, privacy={"epsilon": "11"})
    with federation.machine("S1", COORDINATOR) as machine:
        path = f"/v1/studies/{greedy.study_id}"
        document = refused(federation, "S1", Kind.POLICY_REFUSED, lambda: machine.put(path, json=greedy.to_json()))
        assert "epsilon" in json.dumps(document)
    with federation.client(COORDINATOR, "operator") as operator:
        for body in (
            b"{",
            b"[]",
            dump(altered | {"privacy": {}}),
            b"\xff" * 40,
            b'{"title": "' + NAME.encode() + b'"}',
        ):
            refused(
                federation,
                COORDINATOR,
                (Kind.MALFORMED, Kind.INVALID),
                lambda sent=body: operator.post(
                    "/v1/studies", content=sent, headers={"content-type": "application/json"}
                ),
            )
        proposed = operator.post("/v1/studies", json=greedy.to_json()).json()
        assert {one["state"] for one in proposed["servers"]} == {"refused"}
        assert all("epsilon" in " ".join(one["objections"]) for one in proposed["servers"])
        path = f"/v1/studies/{greedy.study_id}/runs"
        refused(federation, COORDINATOR, Kind.NOT_READY, lambda: operator.post(path, json={}))


def test_nobody_but_the_coordinator_drives_a_server(federation: Everybody, contributed: Study) -> None:
    seal = {"contributions": ["0" * 64], "approvals": []}
    run = {"study": contributed.identity, "inputs": "0" * 64}
    path = f"/v1/studies/{contributed.identity}/seal"
    for name in SERVERS:
        with federation.machine(name, "north") as holder, federation.client(name, "operator") as person:
            for caller in (holder, person):
                refused(federation, name, Kind.FORBIDDEN, lambda it=caller: it.put(path, json=seal))
                refused(federation, name, Kind.FORBIDDEN, lambda it=caller: it.put(f"/v1/runs/{'0' * 32}", json=run))
