"""The coordinator over HTTP: who may ask, formats, validators, ranges, samples, events, problems."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256

import httpx
import polars as pl
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from caps.audit.verification import verify
from caps.service.identity import CERTIFICATE, Caller
from caps.service.tokens import Person, Scope
from caps.trust.denials import revoke
from caps.wire import Certificate, TranscriptStep
from services.coordinator.events import stream
from services.coordinator.settings import Quotas
from services.coordinator.states import RunEvent
from services.coordinator.streams import FAREWELL, Streams
from tests.kit.coordinator_servers import Bench
from tests.kit.study import NOW, certificate_of, make_keys
from tests.kit.tls import make_authority

pytestmark = pytest.mark.integration

AUTHORITY = make_authority(NOW)


class Client:
    """Calls an application in this process; returns when the whole answer is there."""

    def __init__(self, app, headers=None) -> None:
        self._app, self._headers = app, headers

    def _call(self, method: str, url: str, **content) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            base = {"transport": transport, "base_url": "https://coordinator", "headers": self._headers}
            async with httpx.AsyncClient(**base) as client:
                return await client.request(method, url, **content)

        return asyncio.run(call())

    def get(self, url: str, **content) -> httpx.Response:
        return self._call("GET", url, **content)

    def head(self, url: str) -> httpx.Response:
        return self._call("HEAD", url)

    def post(self, url: str, **content) -> httpx.Response:
        return self._call("POST", url, **content)

    def delete(self, url: str) -> httpx.Response:
        return self._call("DELETE", url)

    def put(self, url: str, **content) -> httpx.Response:
        return self._call("PUT", url, **content)


class Http:
    """Clients of one coordinator: people by scope, holders by certificate."""

    def __init__(self, bench: Bench, coordinator) -> None:
        self.bench, self.coordinator = bench, coordinator
        self.app = coordinator.app()

    def token(self, *scopes: Scope) -> str:
        return self.coordinator.site.tokens.create("somebody", scopes, expires=NOW + timedelta(days=1))

    def person(self, *scopes: Scope) -> Client:
        return Client(self.app, {"Authorization": f"Bearer {self.token(*scopes)}"})

    def machine(self, keys, role: str) -> Client:
        certificate = certificate_of(AUTHORITY, keys, role).public_bytes(Encoding.DER)

        async def app(scope, receive, send):
            scope[CERTIFICATE] = certificate
            await self.app(scope, receive, send)

        return Client(app)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A coordinator with one release; tests only read it, or add samples."""
    bench = Bench(tmp_path_factory.mktemp("released"))
    coordinator, run = bench.started()
    coordinator.runs.perform(run)
    return Http(bench, coordinator), run


@pytest.fixture
def analyst(released):
    return released[0].person(Scope.ANALYST)


@pytest.fixture
def data_url(released):
    return f"/v1/releases/{released[1]}/data"


def test_the_way_of_a_study(tmp_path):
    bench = Bench(tmp_path)
    http = Http(bench, bench.coordinator())
    operator, study = http.person(Scope.OPERATOR), bench.manifest.study_id
    proposed = operator.post("/v1/studies", json=bench.manifest.to_json())
    assert proposed.status_code == 201
    assert proposed.headers["location"] == f"/v1/studies/{study}"
    assert operator.post("/v1/studies", json=bench.manifest.to_json()).status_code == 200
    view = operator.get(f"/v1/studies/{study}").json()
    assert (view["state"], view["missing"]) == ("approved", ["clinic-a", "clinic-b"])
    manifest = operator.get(f"/v1/studies/{study}/manifest")
    assert manifest.content == bench.manifest.canonical_bytes()

    early = operator.post(f"/v1/studies/{study}/runs")
    assert early.status_code == 409
    assert early.json()["type"] == "urn:caps:problem:not-ready"
    approvals = bench.federation.approvals_of_holders()
    for holder in ("clinic-a", "clinic-b"):
        machine = http.machine(bench.keys[holder], "holder")
        sent = machine.put(f"/v1/studies/{study}/approvals/{holder}", json=approvals[holder].to_json())
        assert sent.json() == {"holder": holder, "approved": True, "declined": None}
    parts = operator.get(f"/v1/studies/{study}/participation").json()["holders"]
    assert [(part["approved"], part["complete"]) for part in parts] == [(True, True)] * 2

    begun = operator.post(f"/v1/studies/{study}/runs")
    assert begun.status_code == 202
    run = begun.json()["run"]
    assert begun.headers["location"] == f"/v1/runs/{run}"
    told = operator.get(f"/v1/runs/{run}/events").text  # ends with the run
    assert "event: progress" in told
    view = operator.get(f"/v1/runs/{run}").json()
    assert (view["state"], view["percent"], view["release"]) == ("released", 100, run)
    assert operator.get(f"/v1/studies/{study}").json()["state"] == "released"
    assert operator.get("/v1/releases").json()[0]["release"] == run
    assert operator.post(f"/v1/studies/{study}/runs").status_code == 409
    http.coordinator.close()


def test_approvals_come_from_the_holder_itself(tmp_path):
    bench = Bench(tmp_path)
    http = Http(bench, bench.coordinator())
    study = bench.manifest.study_id
    http.person(Scope.OPERATOR).post("/v1/studies", json=bench.manifest.to_json())
    approvals = bench.federation.approvals_of_holders()
    own, path = approvals["clinic-a"].to_json(), f"/v1/studies/{study}/approvals/clinic-a"
    assert http.machine(bench.keys["clinic-b"], "holder").put(path, json=own).status_code == 403
    impostor = make_keys(["clinic-a"])["clinic-a"]
    assert http.machine(impostor, "holder").put(path, json=own).status_code == 403
    holder = http.machine(bench.keys["clinic-a"], "holder")
    others = approvals["clinic-b"].to_json()
    assert holder.put(path, json=others).json()["type"] == "urn:caps:problem:signature-refused"
    assert holder.put(path, json=own | {"signature": "0" * 128}).status_code == 403
    assert holder.put(f"/v1/studies/{study}/approvals/nobody", json=own).status_code == 404
    assert holder.put(f"/v1/studies/{'0' * 64}/approvals/clinic-a", json=own).status_code == 404
    assert http.person(Scope.OWNER).put(path, json=own).status_code == 403
    assert holder.put(path, json=own).status_code == 200


def test_a_decline_is_shown_with_its_reason_to_those_it_is_for_until_an_approval(tmp_path):
    bench = Bench(tmp_path)
    http = Http(bench, bench.coordinator())
    study, federation = bench.manifest.study_id, bench.federation
    operator = http.person(Scope.OPERATOR)
    operator.post("/v1/studies", json=bench.manifest.to_json())
    holder, other = (http.machine(bench.keys[name], "holder") for name in ("clinic-a", "clinic-b"))
    path, approval = f"/v1/studies/{study}/declines/clinic-a", federation.approvals_of_holders()["clinic-a"].to_json()
    own = federation.decline("clinic-a", "Consent does not cover it.").to_json()
    assert other.put(path, json=own).status_code == 403
    assert holder.put(path, json=federation.decline("clinic-b", "No.").to_json()).status_code == 403
    for wrong in ({"role": "mpc-server"}, {"study": "0" * 64}):
        assert holder.put(path, json=federation.decline("clinic-a", "No.", **wrong).to_json()).status_code == 422
    for reason in ("", " ", "x" * 501, "\x1b[31mred", "two\nlines", "\u202eright to left"):
        bad = own | {"document": own["document"] | {"reason": reason}}
        assert holder.put(path, json=bad).status_code == 422
    assert holder.put(path, json=own).status_code == 200

    def reasons(who) -> list[str | None]:
        shown = [who.get(f"/v1/studies/{study}").json(), *who.get("/v1/studies").json()]
        return [one["holders"][0]["declined"]["reason"] for one in shown]

    server = http.machine(bench.keys["S1"], "mpc-server")
    for who in (operator, http.person(Scope.AUDITOR), holder):
        assert reasons(who) == ["Consent does not cover it."] * 2
    for who in (http.person(Scope.ANALYST), http.person(Scope.OWNER), other, server):
        assert reasons(who) == [None, None]
    later = federation.decline("clinic-a", "Not this year.", at="2099-01-01T00:00:00Z").to_json()
    for decline in (later, own):  # the old one is sent again
        assert holder.put(path, json=decline).status_code == 200
        assert reasons(operator)[0] == "Not this year."
    assert operator.post(f"/v1/studies/{study}/runs").status_code == 409
    assert holder.put(path.replace("declines", "approvals"), json=approval).status_code == 200
    view = operator.get(f"/v1/studies/{study}").json()["holders"][0]
    assert view == {"holder": "clinic-a", "approved": True, "declined": None}
    assert holder.put(path, json=later).status_code == 409
    assert operator.get(f"/v1/studies/{study}").json()["holders"][0] == view
    http.coordinator.close()


def test_a_servers_decline_is_read_only_if_that_server_signed_it_of_this_study(tmp_path):
    bench = Bench(tmp_path)
    http = Http(bench, bench.coordinator())
    study, federation = bench.manifest.study_id, bench.federation
    operator, faults = http.person(Scope.OPERATOR), federation.faults

    def declined(name: str, reason: str = "Not ours.", **given) -> dict:
        return federation.decline(name, reason, **{"role": "mpc-server", **given}).to_json()

    def at_s2(who) -> dict:
        return who.get(f"/v1/studies/{study}").json()["servers"][1]

    own = declined("S2")
    forged = {
        "another server's": declined("S3"),
        "another server's, in its name": declined("S3") | {"signer": "S2"},
        "of another reason": own | {"document": own["document"] | {"reason": "Bribe me."}},
        "of another study": declined("S2", study="0" * 64),
        "of a holder": declined("S2", role="holder"),
        "without a signature": own | {"signature": "0" * 128},
        "of words that no reason has": declined("S2") | {"document": own["document"] | {"reason": "\x1b[2J"}},
        "no document": "No.",
    }
    faults.declines["S2"] = next(iter(forged.values()))
    operator.post("/v1/studies", json=bench.manifest.to_json())
    for what, sent in forged.items():
        faults.declines["S2"] = sent
        operator.post(f"/v1/studies/{study}/refresh")
        seen = at_s2(operator)
        assert (seen["state"], seen["reason"], seen["declined"]) == ("refused", "declined", None), what

    faults.declines["S2"] = own
    view = operator.post(f"/v1/studies/{study}/refresh").json()
    assert (view["state"], view["servers"][1]["reason"]) == ("proposed", "its operator declined the study")
    assert [one["state"] for one in view["servers"]] == ["approved", "refused", "approved"]
    assert "S2" in view["missing"]
    for who in (operator, http.person(Scope.AUDITOR), http.machine(bench.keys["S2"], "mpc-server")):
        assert at_s2(who)["declined"] == {"at": own["document"]["at"], "reason": "Not ours."}
    for who in (http.person(Scope.ANALYST), http.person(Scope.OWNER), http.machine(bench.keys["S1"], "mpc-server")):
        assert at_s2(who)["declined"] == {"at": own["document"]["at"], "reason": None}

    faults.declines.clear()  # the operator thinks better of it
    approved = operator.post(f"/v1/studies/{study}/refresh").json()["servers"][1]
    assert (approved["state"], approved["reason"], approved["declined"]) == ("approved", None, None)
    faults.declines["S2"] = own  # and its approval stands
    assert operator.post(f"/v1/studies/{study}/refresh").json()["servers"][1] == approved
    http.coordinator.close()


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b"[]", 422), (b'{"a": 1, "a": 2}', 400), (b'{"title": "secret-value"}', 422), (b"NaN", 400)],
)
def test_bad_manifests_are_problems_that_repeat_nothing(released, content, status):
    answer = released[0].person(Scope.OPERATOR).post("/v1/studies", content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret-value" not in answer.text


def test_a_manifest_of_another_coordinator(released, tmp_path):
    other = Bench(tmp_path).manifest
    answer = released[0].person(Scope.OPERATOR).post("/v1/studies", json=other.to_json())
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["place"] == "coordinator"


def test_scopes(released):
    http, run = released
    assert Client(http.app).get(f"/v1/releases/{run}").status_code == 401
    owner, analyst, auditor = (http.person(scope) for scope in (Scope.OWNER, Scope.ANALYST, Scope.AUDITOR))
    assert owner.get(f"/v1/releases/{run}/data").status_code == 403
    assert owner.get("/v1/studies").status_code == 200
    assert analyst.post("/v1/studies", json={}).status_code == 403
    assert analyst.get(f"/v1/studies/{http.bench.manifest.study_id}/participation").status_code == 403
    assert auditor.post(f"/v1/releases/{run}/samples", json={}).status_code == 403
    assert auditor.get(f"/v1/releases/{run}/certificate").status_code == 200


def test_a_study_with_a_denied_key_is_not_proposed(tmp_path):
    bench = Bench(tmp_path)
    http = Http(bench, bench.coordinator())
    revoke(bench.home / "policy.yaml", bench.manifest.server("S2").pin, since="2026-11-17T09:00:00Z", reason=None)
    answer = http.person(Scope.OPERATOR).post("/v1/studies", json=bench.manifest.to_json())
    assert (answer.status_code, answer.json()["objections"]) == (403, ["S2 has a key that is denied here"])
    assert http.person(Scope.OPERATOR).get("/v1/studies").json() == []
    keys = bench.keys["S2"]
    assert http.machine(keys, "mpc-server").get("/v1/studies").status_code == 403


def test_things_that_are_not_there(analyst, released):
    for path in ("runs", "releases"):
        assert analyst.get(f"/v1/{path}/{'0' * 32}").status_code == 404
    assert analyst.get(f"/v1/studies/{'0' * 64}").status_code == 404
    assert analyst.get("/v1/runs/..%2f").status_code in (404, 422)
    assert analyst.get(f"/v1/releases/{released[1]}/samples/{'0' * 32}").status_code == 404


def test_all_formats_hold_the_same_rows(analyst, data_url, released):
    frames = {}
    for name, read in (
        ("text/csv", pl.read_csv),
        ("application/vnd.apache.parquet", pl.read_parquet),
        ("application/vnd.apache.arrow.stream", pl.read_ipc_stream),
        ("application/x-ndjson", pl.read_ndjson),
    ):
        answer = analyst.get(data_url, headers={"Accept": name})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(name)
        assert int(answer.headers["content-length"]) == len(answer.content)
        digest = base64.b64encode(sha256(answer.content).digest()).decode()
        assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
        assert answer.headers["etag"] == f'"{sha256(answer.content).hexdigest()}"'
        assert answer.headers["vary"] == "Accept"
        frames[name] = read(io.BytesIO(answer.content))
    csv, parquet, arrow, ndjson = frames.values()
    assert parquet.equals(arrow)
    assert ndjson["age"].equals(parquet["age"])
    assert csv["age"].equals(parquet["age"])
    assert csv["region"].equals(parquet["region"])
    certificate = Certificate.model_validate(analyst.get(f"/v1/releases/{released[1]}/certificate").json())
    assert certificate.release.document.files["data.csv"] == sha256(analyst.get(data_url).content).hexdigest()


def test_formulas_are_escaped_unless_the_exact_rows_are_asked_for(tmp_path):
    evil = '=HYPERLINK("https://evil.example","open")'
    ward = {"name": "ward", "kind": "categorical", "categories": [evil, "-1"]}
    stay = {"name": "@stay", "kind": "numeric", "integer": True, "bin_edges": [-9, 0]}
    bench = Bench(
        tmp_path, schema={"columns": [ward, stay]}, holders=[(name, None) for name in ("clinic-a", "clinic-b")]
    )
    coordinator, run = bench.started()
    coordinator.runs.perform(run)
    analyst = Http(bench, coordinator).person(Scope.ANALYST)
    url = f"/v1/releases/{run}"
    exact = analyst.get(f"{url}/data?format=raw.csv")
    for default in (analyst.get(f"{url}/data"), analyst.get(f"{url}/data?format=csv")):
        assert default.headers["content-type"].startswith("text/csv")
        frame, raw = pl.read_csv(default.content), pl.read_csv(exact.content)
        assert frame.columns == ["ward", "'@stay"]
        assert raw.columns == ["ward", "@stay"]
        assert set(frame["ward"]) == {f"'{evil}", "-1"}
        assert set(raw["ward"]) == {evil, "-1"}
        assert frame["'@stay"].equals(raw["@stay"])
        assert (raw["@stay"] < 0).all()
    listed = {one["format"]: one["sha256"] for one in analyst.get(url).json()["data"]}
    assert list(listed) == ["csv", "raw.csv", "parquet", "arrow", "ndjson"]
    certificate = coordinator.store.release(run).certificate
    for form, answer in (("csv", default), ("raw.csv", exact)):
        assert certificate.release.document.files[f"data.{form}"] == listed[form] == sha256(answer.content).hexdigest()
        (tmp_path / form).write_bytes(answer.content)
        checks = {one.name: one for one in verify(certificate, data=tmp_path / form, now=NOW)}
        assert checks["data"].passed
        assert f"is data.{form} of this release" in checks["data"].explanation
    (tmp_path / "mixed").write_bytes(default.content.replace(b"'=", b"=", 1))
    assert not {one.name: one for one in verify(certificate, data=tmp_path / "mixed", now=NOW)}["data"].passed


def test_without_formulas_there_is_one_csv(analyst, data_url, released):
    assert analyst.get(data_url + "?format=raw.csv").content == analyst.get(data_url).content
    assert "raw.csv" not in [one["format"] for one in analyst.get(f"/v1/releases/{released[1]}").json()["data"]]


def test_formats_by_name_and_none(analyst, data_url):
    assert analyst.get(data_url + "?format=ndjson").headers["content-type"] == "application/x-ndjson"
    assert "filename=" in analyst.get(data_url + "?format=parquet").headers["content-disposition"]
    refused = analyst.get(data_url, headers={"Accept": "image/png"})
    assert refused.status_code == 406
    assert "application/x-ndjson" in refused.json()["available"]
    assert analyst.get(data_url + "?format=xls").status_code == 406


def test_validators(analyst, data_url):
    etag = analyst.get(data_url).headers["etag"]
    for tags in (etag, f'"x", {etag}', f"W/{etag}", "*"):
        answer = analyst.get(data_url, headers={"If-None-Match": tags})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == etag
    assert analyst.get(data_url, headers={"If-None-Match": '"x"'}).status_code == 200


def test_parts(analyst, data_url):
    whole = analyst.get(data_url)
    size, etag = len(whole.content), whole.headers["etag"]
    part = analyst.get(data_url, headers={"Range": "bytes=5-14"})
    assert (part.status_code, part.content) == (206, whole.content[5:15])
    assert part.headers["content-range"] == f"bytes 5-14/{size}"
    assert part.headers["repr-digest"] == whole.headers["repr-digest"]
    assert analyst.get(data_url, headers={"Range": "bytes=-7"}).content == whole.content[-7:]
    assert analyst.get(data_url, headers={"Range": "bytes=0-3", "If-Range": etag}).status_code == 206
    assert analyst.get(data_url, headers={"Range": "bytes=0-3", "If-Range": '"x"'}).content == whole.content
    assert analyst.get(data_url, headers={"Range": "bytes=0-1,3-4"}).content == whole.content
    beyond = analyst.get(data_url, headers={"Range": f"bytes={size}-"})
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == f"bytes */{size}"
    assert beyond.json()["type"] == "urn:caps:problem:range-not-satisfiable"


def test_head(analyst, data_url):
    whole, head = analyst.get(data_url), analyst.head(data_url)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "repr-digest", "content-type", "accept-ranges"):
        assert head.headers[name] == whole.headers[name]


def test_samples_are_a_function_of_rows_and_seed(analyst, released):
    http, run = released
    path = f"/v1/releases/{run}/samples"
    made = analyst.post(path, json={"rows": 25, "seed": "1" * 64})
    assert made.status_code == 201
    assert "costs no privacy" in made.json()["privacy"]
    again = analyst.post(path, json={"rows": 25, "seed": "1" * 64})
    assert (again.status_code, again.json()) == (200, made.json())
    location = made.headers["location"]
    assert analyst.get(location).json() == made.json()
    rows = analyst.get(location + "/data")
    assert len(rows.text.splitlines()) == 26
    assert analyst.get(location + "/data?format=parquet").status_code == 200
    assert analyst.head(location + "/data").headers["content-length"] == str(len(rows.content))
    other = analyst.post(path, json={"rows": 25, "seed": "2" * 64})
    assert analyst.get(other.headers["location"] + "/data").content != rows.content
    assert analyst.post(path).json()["rows"] == analyst.get(f"/v1/releases/{run}").json()["rows"]
    for bad in ({"rows": 0}, {"rows": 1_000_001}, {"seed": "xyz"}, {"where": 1}):
        assert analyst.post(path, json=bad).status_code == 422
    for bad in ({"where": {}}, {"where": {"smoker": []}}, {"where": {"nobody": ["yes"]}}, {"where": {"smoker": ["x"]}}):
        assert analyst.post(path, json=bad).status_code == 422
    smokers = analyst.post(path, json={"rows": 25, "seed": "1" * 64, "where": {"smoker": ["yes"]}})
    assert smokers.json()["where"] == {"smoker": ["yes"]}
    found = analyst.get(smokers.headers["location"] + "/data?format=ndjson").text.splitlines()
    assert [json.loads(row)["smoker"] for row in found] == [True] * 25
    # The release itself is such a sample.
    body = http.coordinator.store.release(run).certificate.release.document
    same = analyst.post(path, json={"rows": body.rows, "seed": body.seed})
    assert analyst.get(same.headers["location"] + "/data").content == analyst.get(f"/v1/releases/{run}/data").content


def test_samples_are_kept_up_to_a_number_and_deleted(released, analyst, monkeypatch):
    http, run = released
    path, folder = f"/v1/releases/{run}/samples", http.coordinator.site.settings.data / "samples"
    first = analyst.post(path, json={"rows": 5, "seed": "8" * 64}).json()["sample"]
    kept = len(analyst.get(f"/v1/releases/{run}").json()["samples"])
    monkeypatch.setattr(http.coordinator.publisher, "_most_samples", kept)
    assert analyst.post(path, json={"rows": 5, "seed": "8" * 64}).status_code == 200  # it is here already
    refusal = analyst.post(path, json={"rows": 5, "seed": "9" * 64})
    assert (refusal.status_code, refusal.json()["type"]) == (409, "urn:caps:problem:conflict")
    assert "delete one first" in refusal.json()["detail"]
    assert first in {one.name for one in folder.iterdir()}
    assert http.person(Scope.AUDITOR).delete(f"{path}/{first}").status_code == 403
    assert analyst.delete(f"{path}/{first}").status_code == 204
    assert first not in {one.name for one in folder.iterdir()}
    for gone in (
        analyst.delete(f"{path}/{first}"),
        analyst.get(f"{path}/{first}"),
        analyst.get(f"{path}/{first}/data"),
        analyst.delete(f"/v1/releases/{'0' * 32}/samples/{first}"),
    ):
        assert gone.status_code == 404
    assert first not in analyst.get(f"/v1/releases/{run}").json()["samples"]
    assert analyst.post(path, json={"rows": 5, "seed": "9" * 64}).status_code == 201
    assert analyst.post(path, json={"rows": 5, "seed": "8" * 64}).status_code == 409


def test_event_streams_are_limited_for_each_token_and_in_total(tmp_path):
    """Each is counted for as long as it is sent."""
    bench = Bench(tmp_path)
    made, run = bench.started()  # nobody performs the run, so that no stream ends by itself
    http = Http(bench, replace(made, quotas=Quotas(streams=3, token_streams=2)))
    ann, bob, eve = (http.token(Scope.ANALYST) for _ in range(3))

    async def opened(token):
        """The status of an answer that is being sent, its Retry-After, and how to leave."""
        sent, left = asyncio.Queue(), asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "https",
            "path": f"/v1/runs/{run}/events",
            "raw_path": b"",
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
        }
        asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive():
            message = next(asked, None)
            if message is None:
                await left.wait()
                return {"type": "http.disconnect"}
            return message

        task = asyncio.create_task(http.app(scope, receive, sent.put))
        start = await sent.get()

        async def leave():
            left.set()
            await task

        return start["status"], dict(start["headers"]).get(b"retry-after"), leave

    async def act():
        first, second, refused = [await opened(ann) for _ in range(3)]
        assert [first[0], second[0], refused[:2]] == [200, 200, (429, b"10")]
        third, refused = await opened(bob), await opened(eve)
        assert (third[0], refused[:2]) == (200, (429, b"10"))
        await first[2]()
        fourth, refused = await opened(eve), await opened(ann)
        assert (fourth[0], refused[0]) == (200, 429)
        for _, _, leave in (second, third, fourth):
            await leave()
        last = await opened(ann)
        assert last[0] == 200
        await last[2]()

    asyncio.run(act())
    made.close()


def test_measurements_and_report(analyst, released):
    transcript = analyst.get(f"/v1/releases/{released[1]}/transcript")
    assert transcript.headers["content-type"] == "application/x-ndjson"
    steps = [TranscriptStep.from_line(line) for line in transcript.content.splitlines(keepends=True)]
    assert [one.answer.step for one in steps] == list(range(len(steps)))
    measured = analyst.get(f"/v1/releases/{released[1]}/measurements").json()["measurements"]
    for one in measured:
        cells = 1
        for extent, names in zip(one["shape"], one["categories"], strict=True):
            assert len(names) == extent
            cells *= extent
        assert len(one["values"]) == cells
        assert one["sigma"] > 0
    report = analyst.get(f"/v1/releases/{released[1]}/report")
    assert report.json()["privacy"]["paragraph"].startswith("This release is differentially private")
    text = analyst.get(f"/v1/releases/{released[1]}/report", headers={"Accept": "text/markdown"})
    assert text.headers["content-type"].startswith("text/markdown")
    assert report.json()["privacy"]["paragraph"] in text.text
    assert analyst.get(f"/v1/releases/{released[1]}/report", headers={"Accept": "image/png"}).status_code == 406


def test_what_the_manifest_does_not_publish(tmp_path):
    bench = Bench(tmp_path, publication={"rows": 30, "measurements": False, "resamples": False})
    coordinator, run = bench.started()
    coordinator.runs.perform(run)
    analyst = Http(bench, coordinator).person(Scope.ANALYST)
    assert analyst.get(f"/v1/releases/{run}").json()["rows"] == 30
    assert analyst.get(f"/v1/releases/{run}/measurements").status_code == 403
    assert analyst.get(f"/v1/releases/{run}/transcript").status_code == 403
    assert analyst.post(f"/v1/releases/{run}/samples", json={}).status_code == 403


def parsed(text: str) -> list[tuple[int, str, dict]]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "id" in lines:
            found.append((int(lines["id"]), lines["event"], json.loads(lines["data"])))
    return found


def test_events_resume(analyst, released):
    path = f"/v1/runs/{released[1]}/events"
    whole = analyst.get(path)
    assert whole.headers["content-type"].startswith("text/event-stream")
    events = parsed(whole.text)
    assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
    assert events[-1][2]["state"] == "released"
    assert parsed(analyst.get(path, headers={"Last-Event-ID": "5"}).text) == events[5:]
    assert analyst.get(path, headers={"Last-Event-ID": str(len(events))}).status_code == 204
    assert analyst.get(path, headers={"Last-Event-ID": "x"}).status_code == 400


def test_a_page_is_told_when_to_ask_no_more(tmp_path):
    coordinator, run = Bench(tmp_path).started()
    coordinator.runs.perform(run)
    streams, caller = Streams(coordinator.store, coordinator.runs, Quotas()), Caller(None, Person("Ann", frozenset()))

    async def heard(answer) -> bytes:
        return b"".join([piece async for piece in answer.body_iterator])

    whole = asyncio.run(heard(streams.of(run, caller, "0", page=True)))
    assert whole.endswith(FAREWELL)
    last = parsed(whole.decode().removesuffix(FAREWELL.decode()))[-1]
    assert (last[1], last[2]["state"]) == ("state", "released")
    assert streams.of(run, caller, str(last[0]), page=True).body == FAREWELL
    assert streams.of(run, caller, str(last[0])).status_code == 204


def test_a_quiet_run_is_heard_of_and_a_stop_ends_the_stream(tmp_path):
    coordinator, run = Bench(tmp_path).started()
    stop = []

    async def listen() -> list[bytes]:
        heard = []
        pace = {"look_every": 0.001, "heartbeat_every": 0.002}
        async for piece in stream(coordinator.store, run, 0, stopping=lambda: bool(stop), **pace):
            heard.append(piece)
            if len(heard) == 5:
                stop.append(True)
        return heard

    heard = asyncio.run(listen())
    assert heard[0].startswith(b"retry:")
    assert parsed(heard[1].decode())[0][2]["state"] == "queued"
    assert heard[2:] == [b": still here\n\n"] * 3


def test_what_is_written_is_told_at_once(tmp_path):
    """The store is looked at because it changed, not because a minute is over."""
    coordinator, run = Bench(tmp_path).started()

    async def listen() -> list[str]:
        heard = []
        pace = {"look_every": 60.0, "heartbeat_every": 60.0}
        async with asyncio.timeout(20):
            async for piece in stream(coordinator.store, run, 0, stopping=lambda: False, **pace):
                heard += [body["state"] for _, _, body in parsed(piece.decode())]
                if after := {"queued": RunEvent.PROCEED, "running": RunEvent.FAIL}.get(heard[-1] if heard else ""):
                    await asyncio.to_thread(coordinator.store.change_state, run, after)
        return heard

    assert asyncio.run(listen()) == ["queued", "running", "failed"]


def test_what_many_listen_to_is_read_once(tmp_path, monkeypatch):
    coordinator, run = Bench(tmp_path).started()
    store, read = coordinator.store, []
    whole = store._all
    monkeypatch.setattr(store, "_all", lambda statement: read.append(str(statement)) or whole(statement))

    async def listen() -> list[str]:
        heard = []
        async for piece in stream(store, run, 0, stopping=lambda: False, look_every=60.0, heartbeat_every=60.0):
            heard += [body["state"] for _, _, body in parsed(piece.decode())]
        return heard

    async def everybody() -> list[list[str]]:
        async with asyncio.timeout(20):
            listeners = [asyncio.create_task(listen()) for _ in range(50)]
            for event in (RunEvent.PROCEED, RunEvent.FAIL):
                await asyncio.sleep(0.1)
                await asyncio.to_thread(store.change_state, run, event)
            return await asyncio.gather(*listeners)

    assert asyncio.run(everybody()) == [["queued", "running", "failed"]] * 50
    assert len([statement for statement in read if "FROM events" in statement]) == 3


def test_the_interface_can_be_described(analyst):
    paths = analyst.get("/v1/openapi.json").json()["paths"]
    assert "/v1/releases/{release}/data" in paths
    assert "requestBody" in paths["/v1/studies"]["post"]
