"""The holder as people use it: its routes over TLS, what it refuses and how quietly, and kill -9 of the process."""

from __future__ import annotations

import io
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest

from caps.basics import canonical
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.trust.denials import revoke
from caps.wire.problems import Kind
from tests.kit.holder import HolderBench
from tests.kit.study import COLUMNS
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

CANARY = "c4n4ry-7391"
HEADER = b"age,smoker,region,diagnosis\n"
TABLE = HEADER + b"30,no,north,A\n79,yes,south,\n5,no,north,C\n"
CODES = np.array([[1, 0, 0, 1], [3, 1, 2, -1], [0, 0, 0, 3]])
CSV, PARQUET = {"content-type": "text/csv"}, {"content-type": "application/vnd.apache.parquet"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HolderBench]:
    world = HolderBench(tmp_path, "clinic-a")
    with world.others():
        yield world


def invite(world: HolderBench, url: str | None = None, study: str | None = None) -> httpx.Response:
    body = {"coordinator": url or world.urls["coordinator"], "study": study or world.study}
    with world.person(Scope.OPERATOR) as operator:
        return operator.post("/v1/studies", json=body)


def approved(world: HolderBench, client: httpx.Client) -> str:
    assert invite(world).status_code == 201
    path = f"/v1/studies/{world.study}"
    assert client.post(f"{path}/approval").json()["state"] == "approved"
    return path


def problem(response: httpx.Response, kind: Kind) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert document["type"] == kind.urn, document
    assert CANARY not in response.text
    return document


def complete(client: httpx.Client, path: str) -> dict[str, Any]:
    until(lambda: client.get(f"{path}/contribution").json()["state"] == "complete")
    found: dict[str, Any] = client.get(f"{path}/contribution").json()
    return found


def test_from_invitation_to_withdrawal(world: HolderBench) -> None:
    with world.client() as client:
        path = approved(world, client)
        assert invite(world).status_code == 200
        report = client.put(f"{path}/table", content=TABLE, headers=CSV)
        assert report.status_code == 200
        assert report.json()["rows"] == 3
        assert [column["missing"] for column in report.json()["columns"]] == [0, 0, 0, 1]
        stored = list((world.data / "studies").glob("*/table-*"))
        assert [one.stat().st_mode & 0o777 for one in stored] == [0o600]
        assert stored[0].parent.stat().st_mode & 0o777 == 0o700
        preview = client.get(f"{path}/preview").json()
        assert [len(server["components"]) for server in preview["servers"]] == [2, 2, 2]
        told = client.get(path).json()
        assert (told["state"], told["views"]) == ("loaded", preview["views"])
        assert "the run ends and says so" in told["views"][-1]
        begun = client.put(f"{path}/contribution")
        assert begun.status_code == 202
        assert begun.headers["location"] == f"{path}/contribution"
        found = complete(client, path)
        assert [one["receipt"]["document"]["event"] for one in found["servers"]] == ["accepted"] * 3
        assert [one["sent"] == one["of"] for one in found["servers"]] == [True] * 3
        assert client.put(f"{path}/contribution").status_code == 200
        assert np.array_equal(world.reconstructed(), world.manifest.layout.marginals(CODES))
        assert client.put(f"{path}/table", content=TABLE, headers=CSV).json() == report.json()
        problem(client.put(f"{path}/table", content=TABLE + b"7,no,north,A\n", headers=CSV), Kind.CONFLICT)
        assert client.delete(f"{path}/table").status_code == 204
        assert client.delete(f"{path}/table").status_code == 204
        assert world.files() == []
        gone = client.delete(f"{path}/contribution")
        assert gone.status_code == 200
        assert [one["withdrawal"]["document"]["event"] for one in gone.json()["servers"]] == ["withdrawn"] * 3
        assert client.get(path).json()["state"] == "withdrawn"
        assert [one["study"] for one in client.get("/v1/studies").json()] == [world.study]


def test_a_study_in_a_scheme_that_the_holder_does_not_know_is_refused_with_the_reason(world: HolderBench) -> None:
    """As by a holder that is older than the scheme: nothing is approved, and nothing is sent."""
    later = world.document | {"scheme": "rep5"}
    world.answer = canonical.dump(later)
    study = canonical.digest("manifest", later).hex()
    with world.client() as client:
        said = problem(invite(world, study=study), Kind.INVALID)
        assert "scheme is 'rep5', which this holder does not know; it knows rep3, rep3-active, rep4" in said["detail"]
        assert "upgrade the holder" in said["detail"]
        assert client.get("/v1/studies").json() == []
    assert world.approvals == []
    assert all(server.requests == [] for server in world.servers)


def test_one_call_from_parquet_to_contribution(world: HolderBench) -> None:
    body = io.BytesIO()
    pl.read_csv(TABLE, schema_overrides={"smoker": pl.Categorical()}).write_parquet(body)
    with world.client() as client:
        path = approved(world, client)
        assert client.post(f"{path}/contribution", content=body.getvalue(), headers=PARQUET).status_code == 202
        complete(client, path)
        assert client.post(f"{path}/contribution", content=body.getvalue(), headers=PARQUET).status_code == 200
        problem(client.post(f"{path}/contribution", content=TABLE, headers=CSV), Kind.CONFLICT)
        assert np.array_equal(world.reconstructed(), world.manifest.layout.marginals(CODES))


def parquet(**columns: Any) -> bytes:
    body = io.BytesIO()
    frame = pl.DataFrame({"age": [1], "smoker": ["no"], "region": ["north"], "diagnosis": ["A"]} | columns)
    frame.write_parquet(body, compression="zstd", use_pyarrow=False)
    return body.getvalue()


BOMB = parquet(
    **{
        name: [value] * 200_000
        for name, value in zip(("age", "smoker", "region", "diagnosis"), (1, "no", "north", CANARY * 100), strict=True)
    }
)
REFUSED: dict[str, tuple[bytes, dict[str, str], Kind]] = {
    "outside the domain": (HEADER + f"30,no,{CANARY},A\n".encode(), CSV, Kind.TABLE_REFUSED),
    "not a number": (HEADER + f"{CANARY},no,north,A\n".encode(), CSV, Kind.TABLE_REFUSED),
    "missing column": (b"age,smoker,region\n1,no,north\n", CSV, Kind.TABLE_REFUSED),
    "unknown column": (f"age,smoker,region,diagnosis,{CANARY}\n1,no,north,A,1\n".encode(), CSV, Kind.TABLE_REFUSED),
    "no header": (f"30,no,{CANARY},A\n".encode() * 2, CSV, Kind.TABLE_REFUSED),
    "empty": (b"", CSV, Kind.TABLE_REFUSED),
    "header only": (HEADER, CSV, Kind.TABLE_REFUSED),
    "cut off": (HEADER + f"30,no,north,A\n30,{CANARY}".encode(), CSV, Kind.TABLE_REFUSED),
    "open quote": (HEADER + f'30,no,"{CANARY},A\n'.encode(), CSV, Kind.TABLE_REFUSED),
    "not UTF-8": (HEADER + f"30,no,{CANARY}".encode() + b"\xff\xfe,A\n", CSV, Kind.TABLE_REFUSED),
    "too large": (HEADER + f"30,no,{CANARY},A\n".encode() * 30_000, CSV, Kind.TOO_LARGE),
    "octets": (TABLE, {"content-type": "application/octet-stream"}, Kind.UNSUPPORTED),
    "no type": (TABLE, {}, Kind.UNSUPPORTED),
    "another charset": (TABLE, {"content-type": "text/csv; charset=koi8-r"}, Kind.UNSUPPORTED),
    "compressed": (TABLE, CSV | {"content-encoding": "gzip"}, Kind.UNSUPPORTED),
    "Parquet as CSV": (parquet(), CSV, Kind.TABLE_REFUSED),
    "CSV as Parquet": (TABLE, PARQUET, Kind.TABLE_REFUSED),
    "half of a Parquet": (parquet(diagnosis=[CANARY])[:-200], PARQUET, Kind.TABLE_REFUSED),
    "Parquet without a footer": (b"PAR1" + CANARY.encode() + b"PAR1", PARQUET, Kind.TABLE_REFUSED),
    "Parquet with a value outside": (parquet(diagnosis=[CANARY]), PARQUET, Kind.TABLE_REFUSED),
    "Parquet with a date": (parquet(age=pl.Series([1]).cast(pl.Date)), PARQUET, Kind.TABLE_REFUSED),
    "Parquet with lists": (parquet(age=[[1]]), PARQUET, Kind.TABLE_REFUSED),
    "Parquet bomb": (BOMB, PARQUET, Kind.TABLE_REFUSED),
}


def test_tables_that_are_refused_leave_nothing(world: HolderBench, caplog: pytest.LogCaptureFixture) -> None:
    assert len(BOMB) < 100_000
    with world.client(max_upload=300_000) as client:
        path = approved(world, client)
        for content, headers, kind in REFUSED.values():
            for method, route in (("PUT", "table"), ("POST", "contribution")):
                document = problem(client.request(method, f"{path}/{route}", content=content, headers=headers), kind)
                if "report" in document:
                    assert sum(column["refused"] for column in document["report"]["columns"]) == 1
            assert world.files() == []
            assert client.get(path).json()["state"] == "approved"
        assert client.put(f"{path}/table", content=TABLE, headers=CSV).status_code == 200
        for content, headers, kind in REFUSED.values():
            problem(client.put(f"{path}/table", content=content, headers=headers), kind)
        assert world.files() == ["table"]
        assert client.get(path).json()["state"] == "loaded"
        endless = (b"x" * 100_000 for _ in range(10))
        problem(client.put(f"{path}/table", content=endless, headers=CSV), Kind.TOO_LARGE)
    assert not any(server.requests for server in world.servers)
    assert CANARY not in caplog.text


def test_an_upload_that_breaks_off_leaves_nothing(world: HolderBench) -> None:
    with world.client() as client:
        path = approved(world, client)
        for framing in ("content-length: 100000", "transfer-encoding: chunked"):
            context = ssl.create_default_context(cafile=world.folder / "holder" / "authority.pem")
            port = int(world.urls["holder"].rpartition(":")[2])
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
            ):
                head = f"PUT {path}/table HTTP/1.1\r\nhost: x\r\ncontent-type: text/csv\r\n{framing}\r\n"
                head += f"authorization: Bearer {world.tokens[Scope.OWNER]}\r\n\r\n"
                stream.sendall(head.encode())
                stream.sendall(b"4\r\nage,\r\n" if "chunked" in framing else TABLE)
                until(lambda: world.files() == ["upload"])
            until(lambda: world.files() == [])
        assert client.get(path).json()["state"] == "approved"


def test_order_matters(world: HolderBench) -> None:
    with world.client() as client:
        path = f"/v1/studies/{world.study}"
        for method, route in (("GET", ""), ("POST", "/approval"), ("GET", "/preview"), ("PUT", "/contribution")):
            problem(client.request(method, path + route), Kind.NOT_FOUND)
        problem(client.put(f"{path}/table", content=TABLE, headers=CSV), Kind.NOT_FOUND)
        assert invite(world).status_code == 201
        assert client.get(f"{path}/preview").json()["loaded"] is False
        problem(client.put(f"{path}/table", content=TABLE, headers=CSV), Kind.NOT_READY)
        problem(client.put(f"{path}/contribution"), Kind.NOT_READY)
        client.post(f"{path}/approval")
        assert client.post(f"{path}/approval").status_code == 200
        problem(client.put(f"{path}/contribution"), Kind.NOT_READY)
        problem(client.get(f"{path}/contribution"), Kind.NOT_FOUND)
        problem(client.delete(f"{path}/contribution"), Kind.NOT_FOUND)


def test_who_may_do_what(world: HolderBench) -> None:
    with world.client() as owner, world.person(Scope.OPERATOR) as operator, world.person(Scope.ANALYST) as analyst:
        path = approved(world, owner)
        body = {"coordinator": world.urls["coordinator"], "study": world.study}
        assert owner.post("/v1/studies", json=body).status_code == 200
        problem(analyst.post("/v1/studies", json=body), Kind.FORBIDDEN)
        for method, route in (
            ("POST", "/approval"),
            ("PUT", "/table"),
            ("DELETE", "/table"),
            ("GET", "/preview"),
            ("PUT", "/contribution"),
            ("POST", "/contribution"),
            ("DELETE", "/contribution"),
        ):
            problem(operator.request(method, path + route), Kind.FORBIDDEN)
            problem(analyst.request(method, path + route), Kind.FORBIDDEN)
        problem(analyst.get(path), Kind.FORBIDDEN)
        assert operator.get(path).status_code == 200
        with world.person(None) as nobody:
            problem(nobody.get(path), Kind.UNAUTHENTICATED)


def test_invitations_that_are_refused(world: HolderBench) -> None:
    original = world.answer
    others = Manifest.from_json(world.document | {"holders": world.document["holders"][1:]})
    own = dict(world.document["holders"][0])
    other_key = Manifest.from_json(
        world.document | {"holders": [own | {"pin": "ab" * 32}, *world.document["holders"][1:]]}
    )
    moved = Manifest.from_json(
        world.document | {"coordinator": world.document["coordinator"] | {"url": "https://elsewhere.example"}}
    )
    pinned = Manifest.from_json(world.document | {"coordinator": world.document["coordinator"] | {"pin": "cd" * 32}})
    with world.client() as client:
        problem(invite(world, study="f" * 64), Kind.NOT_FOUND)
        problem(invite(world, study="e" * 64), Kind.INVALID)
        problem(invite(world, study="not-hex"), Kind.INVALID)
        problem(invite(world, url="http://127.0.0.1:1"), Kind.INVALID)
        problem(invite(world, url="https://127.0.0.1:1"), Kind.PEER_FAILED)
        problem(invite(world, url=world.urls["S1"]), Kind.INVALID)
        for answer in (b"", b"[]", CANARY.encode(), original.replace(b"Smoking", b"Smiling"), original[:-1]):
            world.answer = answer
            problem(invite(world), Kind.INVALID)
        for manifest in (others, other_key, moved, pinned):
            world.answer = manifest.canonical_bytes()
            problem(invite(world, study=manifest.study_id), Kind.INVALID)
        world.answer = b" " * (9 << 20)
        problem(invite(world), Kind.PEER_FAILED)
        assert client.get("/v1/studies").json() == []


def test_slots_over_http(tmp_path: Path) -> None:
    world = HolderBench(tmp_path, "lab", holders=COLUMNS, alignment={"slots": 4, "column": "slot"})
    with world.others(), world.client() as client:
        path = approved(world, client)
        twice = b"slot,region,diagnosis\n1,east,A\n1,east,A\n"
        document = problem(client.put(f"{path}/table", content=twice, headers=CSV), Kind.TABLE_REFUSED)
        assert document["report"]["alignment"]["duplicate"] == 1
        assert client.get(path).json()["state"] == "approved"
        fine = b"slot,region,diagnosis\n1,east,A\n3,east,A\n"
        assert client.post(f"{path}/contribution", content=fine, headers=CSV).status_code == 202
        complete(client, path)
        assert world.reconstructed().sum(axis=1).tolist() == [0, 2, 0, 2]


def test_the_process_survives_kill_9_in_the_middle_of_a_push(world: HolderBench) -> None:
    def hook(method: str, path: str) -> None:
        raise Problem(Kind.PEER_FAILED, "not now")

    world.servers[1].hook = hook
    listening = world.sockets["holder"].getsockname()[1]
    world.sockets["holder"].close()
    environment = os.environ | {"CAPS_HOME": str(world.folder / "holder"), "CAPS_LISTEN": f"127.0.0.1:{listening}"}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "services.holder"], env=environment)

    def answers(client: httpx.Client) -> bool:
        try:
            return client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    with world.person(Scope.OWNER) as client:
        process = start()
        try:
            until(lambda: answers(client))
            path = approved(world, client)
            first = client.post(f"{path}/contribution", content=TABLE, headers=CSV).json()
            until(lambda: client.get(f"{path}/contribution").json()["servers"][1]["problem"] is not None)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert world.files() == ["shares", "table"]
        world.servers[1].hook = lambda *_: None
        process = start()
        try:
            until(lambda: answers(client))
            assert complete(client, path)["contribution"] == first["contribution"]
            until(lambda: world.files() == ["table"])
        finally:
            process.terminate()
            process.wait(30)
    assert np.array_equal(world.reconstructed(), world.manifest.layout.marginals(CODES))


def test_a_denied_key_stops_approval_and_contribution(world: HolderBench) -> None:
    policy = world.folder / "holder" / "policy.yaml"
    with world.client() as client:
        path = approved(world, client)
        client.put(f"{path}/table", content=TABLE, headers=CSV)
        revoke(policy, world.manifest.server("S2").pin, since="2026-11-17T09:00:00Z", reason=None)
        for method, route in (("POST", "approval"), ("PUT", "contribution")):
            said = problem(client.request(method, f"{path}/{route}"), Kind.POLICY_REFUSED)
            assert said["objections"] == ["S2 has a key that is denied here"]
    assert all(server.requests == [] for server in world.servers)


def test_the_owner_is_warned_of_a_server_with_another_key(world: HolderBench) -> None:
    """A coordinator could put a server of its own in the place of one that the owner trusts."""
    with world.client() as client:
        path = approved(world, client)
        assert client.get(path).json()["key_warnings"] == []
        later = {**world.document, "title": "again"}
        later["servers"] = [dict(one) for one in later["servers"]]
        same = Manifest.from_json(later)
        later["servers"][1]["pin"] = "ab" * 32
        other = Manifest.from_json(later | {"title": "another"})
        for manifest, warned in ((same, []), (other, ["S2"])):
            world.answer = manifest.canonical_bytes()
            fetched = invite(world, study=manifest.study_id).json()
            views = [fetched, client.get(f"/v1/studies/{manifest.study_id}/preview").json()]
            if manifest is other:
                views.append(client.post(f"/v1/studies/{manifest.study_id}/approval").json())
            for view in views:
                assert [words.split()[0] for words in view["key_warnings"]] == warned
        assert (
            f"has the key {'ab' * 8}..., but had {world.manifest.server('S2').pin[:16]}" in views[0]["key_warnings"][0]
        )
        assert client.get(path).json()["key_warnings"] != []
