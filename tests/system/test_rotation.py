"""Certificates renewed under running services, one id through several parties' logs, and the doctor's visit."""

import json
import re
import signal
import socket
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography import x509

from caps.service.doctor import Doctor, Status, of_manifest
from caps.service.serve import CertificateWatch
from caps.service.site import Settings, Site
from caps.trust import home as party
from caps.trust import pki
from caps.trust.tls import RenewedContext, client_context
from deploy.federation import COORDINATOR, HOST, SERVERS, Federation, approve_everywhere
from services.coordinator.servers import Servers
from tests.kit.federation import POPULATIONS, manifest_of
from tests.kit.processes import CANARIES, SCHEMA, persons, write
from tests.kit.service import Sample
from tests.kit.tls import HOUR, Authority, calling, serving
from tests.kit.waiting import until

pytestmark = pytest.mark.e2e

SERVICE = "caps:mpc-server/S1"


class Running:
    """A service in this process, whose files may be renewed."""

    def __init__(self, folder):
        self.authority, self.sample = Authority(folder), Sample(folder)
        self.files = self.authority.issue("service", SERVICE)

    def renew(self, *roles, key=None, expires=2 * HOUR):
        """What the authority's answer does to the files: replaced one after the other."""
        key = key or pki.read_key(self.files.private_key)
        fresh = self.authority.issue(f"fresh-{time.monotonic_ns()}", *roles or (SERVICE,), key=key, expires=expires)
        fresh.certificate.replace(self.files.certificate)
        fresh.private_key.replace(self.files.private_key)
        return serial(self.files.certificate)


def serial(path):
    return pki.read_certificate(path).serial_number


def shown(url, root):
    """The serial number of the certificate that a new connection meets."""
    port = int(url.rpartition(":")[2])
    context = client_context(root)
    with context.wrap_socket(socket.create_connection((HOST, port), 10), server_hostname=HOST) as connection:
        return x509.load_der_x509_certificate(connection.getpeercert(True)).serial_number


@pytest.fixture
def running(tmp_path):
    return Running(tmp_path)


def test_new_connections_see_the_new_certificate_and_old_ones_go_on(running):
    with serving(running.sample.app, running.files) as url, calling(url, running.authority.root) as client:
        old = serial(running.files.certificate)

        def stream():
            response = client.get("/healthz")
            assert response.status_code == 200
            return response.extensions["network_stream"].get_extra_info("socket").getsockname()

        first = stream()
        assert shown(url, running.authority.root) == old
        new = running.renew()
        assert new != old
        assert shown(url, running.authority.root) == new
        assert stream() == first, "the connection that stood was dropped"
        with calling(url, running.authority.root, token=running.sample.token("operator")) as operator:
            assert "caps_certificate_renewals_total 1.0" in operator.get("/metrics").text


@pytest.mark.parametrize("fault", ["half written", "other key alone", "other role", "other key", "expired", "gone"])
def test_what_is_not_sound_is_not_taken_into_service(running, fault, caplog):
    with serving(running.sample.app, running.files) as url:
        old, certificate = serial(running.files.certificate), running.files.certificate.read_bytes()
        match fault:
            case "half written":
                running.files.certificate.write_bytes(certificate[: len(certificate) // 2])
            case "other key alone":
                running.files.private_key.unlink()
                pki.write_key(running.files.private_key, pki.generate_key())
            case "other role":
                running.renew("caps:mpc-server/S2")
            case "other key":
                running.renew(key=pki.generate_key())
            case "expired":
                running.renew(expires=-HOUR)
            case "gone":
                running.files.certificate.unlink()
        for _ in range(3):
            assert shown(url, running.authority.root) == old
        complaints = [record for record in caplog.records if "not taken" in record.getMessage()]
        assert len(complaints) == 1
        if fault not in ("other key alone", "other key"):  # the key is the old one: a sound renewal mends it
            assert shown(url, running.authority.root) != running.renew() == shown(url, running.authority.root)


def test_a_certificate_near_its_end_is_spoken_of(running, caplog):
    context = RenewedContext.of(running.files)
    watch = CertificateWatch(context)
    assert watch.warned(datetime.now(UTC))
    assert "expires soon" in caplog.text
    caplog.clear()
    assert watch.warned(datetime.now(UTC) + timedelta(days=400))
    assert "certificate expired" in caplog.text
    assert "soon" not in caplog.text
    assert not watch.warned(context.not_after - timedelta(days=31))


def test_calls_are_made_with_the_new_certificate(running):
    made = []

    def connect(server):
        made.append(running.files.stamp())
        return httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json={})))

    class Server:
        role, pin, url, name = SERVICE, "", "https://s1.example", "S1"

    servers = Servers(connect, stamp=running.files.stamp)
    servers.ask(Server, "GET", "https://s1.example/")
    servers.ask(Server, "GET", "https://s1.example/")
    running.renew()
    servers.ask(Server, "GET", "https://s1.example/")
    servers.close()
    assert len(made) == 2
    assert made[0] != made[1]


def test_an_expired_certificate_is_a_reason_not_to_be_ready(tmp_path):
    now = datetime.now(UTC).replace(microsecond=0)
    authority = party.create_authority(tmp_path / "authority", "test", now=now)
    home = tmp_path / "home"
    party.request_party(home, "holder", "north", [HOST])
    asked = party.read_request(home / party.REQUEST)
    certificate = tmp_path / "issued.pem"
    party.write_certificate(certificate, party.approve_request(authority, asked, "holder", "north", [HOST], now=now))
    party.install(home, certificate, tmp_path / "authority" / party.AUTHORITY, now=now)
    clock = [now]
    site = Site(Settings(home, tmp_path / "state", HOST, 0, ""), role="holder", clock=lambda: clock[0])
    assert site.expired() == []
    clock[0] = now + timedelta(days=party.PARTY_DAYS)
    (reason,) = site.expired()
    assert "this party's certificate expired on" in reason
    assert 'caps_certificate_expiry_seconds{certificate="own"} 0' in site.metrics.text().decode()
    later = party.approve_request(authority, asked, "holder", "north", [HOST], now=clock[0])
    party.write_certificate(home / party.CERTIFICATE, later)
    assert site.expired() == []


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("federation"), ["north"], populations=POPULATIONS) as federation:
        federation.start()
        federation.wait_ready(timeout=120)
        yield federation


@pytest.fixture(scope="module")
def manifest(federation):
    return manifest_of(federation, [{"name": "north", "brings": "rows"}])


def lines(federation, name):
    text = federation.log(name)
    found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be on its way
    assert all({"at", "level", "logger", "service", "name"} <= set(line) for line in found)
    return found


def with_id(federation, name, request_id):
    """The lines of a request, which are written when its answer is out."""
    return until(lambda: [line for line in lines(federation, name) if line.get("request_id") == request_id])


def test_one_id_goes_through_the_logs_of_all_parties(federation, manifest):
    canary = "A title that stays out of every log"
    proposed = manifest_of(federation, [{"name": "north", "brings": "rows"}], title=canary)
    with federation.client(COORDINATOR, "operator") as operator:
        sent = operator.post("/v1/studies", json=proposed.to_json(), headers={"X-Request-Id": "followed-0001"})
    assert sent.status_code == 201
    assert sent.headers["x-request-id"] == "followed-0001"
    for name in (COORDINATOR, *SERVERS):
        routes = [line["route"] for line in with_id(federation, name, "followed-0001")]
        assert routes == ["/v1/studies" if name == COORDINATOR else "/v1/studies/{study}"]
        assert canary not in federation.log(name)
    told = {"coordinator": federation.places[COORDINATOR].url, "study": proposed.study_id}
    with federation.client("north", "operator") as person:
        person.post("/v1/studies", json=told, headers={"X-Request-Id": "followed-0002"}).raise_for_status()
    for name in ("north", COORDINATOR):
        assert with_id(federation, name, "followed-0002")


def figures(federation, name):
    with federation.client(name, "operator") as operator:
        response = operator.get("/metrics")
    assert response.status_code == 200
    return response.text


def test_a_run_is_seen_in_figures_and_logs_and_its_data_is_not(federation, tmp_path):
    manifest = manifest_of(federation, [{"name": "north", "brings": "rows"}], schema=SCHEMA)
    table = write(persons(200, 1), tmp_path / "north.csv")
    approve_everywhere(federation, manifest)
    study = f"/v1/studies/{manifest.study_id}"
    with federation.client("north", "owner") as owner:
        owner.put(f"{study}/table", content=table.read_bytes(), headers={"content-type": "text/csv"}).raise_for_status()
        owner.put(f"{study}/contribution", headers={"X-Request-Id": "pushed-0001"}).raise_for_status()
        until(lambda: owner.get(f"{study}/contribution").json()["state"] == "complete")
    with federation.client(COORDINATOR, "operator") as operator:
        begun = operator.post(f"{study}/runs").raise_for_status()
        run = begun.json()["run"]
        federation.kill("S3")
        until(lambda: operator.get(f"/v1/runs/{run}").json()["state"] == "waiting")
        assert f'caps_run_waiting{{party="S3",run="{run}"}} 1.0' in figures(federation, COORDINATOR)
        federation.start("S3")
        state = until(
            lambda: (now := operator.get(f"/v1/runs/{run}").json()["state"]) in ("released", "failed") and now, 200
        )
        assert state == "released", federation.log(COORDINATOR)[-3000:]
    coordinator, server = figures(federation, COORDINATOR), figures(federation, "S1")
    assert 'caps_runs{state="released"} 1.0' in coordinator
    assert 'caps_runs{state="ended"} 1.0' in server
    assert re.search(r'caps_retries_total\{party="S3"\} [1-9]', coordinator)
    assert re.search(r'caps_steps_total\{kind="measure"\} [1-9]', server)
    assert "caps_ledger_sound 1.0" in server
    assert f'caps_ledger_rho_left{{population="{manifest.privacy.population}"}}' in server
    assert "caps_metrics_errors_total 0.0" in coordinator
    assert "caps_metrics_errors_total 0.0" in server
    assert re.search(r'caps_pushed_bytes_total\{party="S2"\} [1-9]', figures(federation, "north"))
    told = [line for line in lines(federation, "S1") if line.get("run") == run]
    assert {"session opened", "answered"} <= {line.get("event") for line in told}
    assert all(line["study"] == manifest.study_id for line in told)
    steps = {line["step"]: line["request_id"] for line in told if line.get("event") == "answered"}
    assert all(one.startswith(run) for one in steps.values())
    asked = {line["request_id"] for line in lines(federation, "S2") if line.get("event") == "answered"}
    assert asked & set(steps.values()), "one id for one step at all servers"
    (waiting, *_) = (line for line in lines(federation, COORDINATOR) if line.get("event") == "waiting")
    assert (waiting["party"], waiting["run"], waiting["study"]) == ("S3", run, manifest.study_id)
    for name in SERVERS:
        assert with_id(federation, name, "pushed-0001")
    everything = "".join(federation.log(name) + figures(federation, name) for name in federation.places)
    assert not [canary for canary in CANARIES if canary in everything]
    assert manifest.title not in everything


def test_a_server_is_renewed_without_a_restart_and_the_mesh_stays(federation):
    place = federation.places["S1"]
    federation.wait_ready(timeout=120)
    meshes = re.search(r"caps_mesh_made_total (\S+)", figures(federation, "S1"))[1]
    before = shown(place.url, federation.authority)
    authority = party.read_authority(federation.directory / "authority")
    asked = party.read_request(place.home / party.REQUEST)
    now = datetime.now(UTC)
    issued = party.approve_request(authority, asked, place.role, place.name, ["localhost", HOST], now=now, days=20)
    path = federation.directory / "renewed.pem"
    party.write_certificate(path, issued)
    party.install(place.home, path, federation.authority, now=now)
    federation.send("S1", signal.SIGHUP)
    assert shown(place.url, federation.authority) == issued.serial_number != before
    assert federation.running("S1")
    with federation.client("S1", "auditor") as auditor:
        text = auditor.get("/metrics").text
        assert auditor.get("/readyz").status_code == 200
    assert "caps_mesh_connected 1.0" in text
    assert re.search(r"caps_mesh_made_total (\S+)", text)[1] == meshes, "the mesh was made anew"
    left = float(re.search(r'caps_certificate_expiry_seconds\{certificate="own"\} (\S+)', text)[1])
    assert 19 * 86400 < left <= 20 * 86400
    assert any(line.get("event") == "certificate renewed" for line in lines(federation, "S1"))


def test_the_doctor_visits_a_federation(federation, manifest, tmp_path):
    others = of_manifest(manifest)

    def visit(name, **choices):
        return list(Doctor(federation.places[name].home, **choices).examine(others))

    well = visit("S3")
    assert [f for f in well if f.status is Status.FAILED] == []
    assert {f.subject for f in well if f.check == "mesh" and f.status is Status.OK} == {
        "mpc-server/S1",
        "mpc-server/S2",
    }
    assert {f.subject for f in well if f.check == "accepted" and f.status is Status.OK} == {
        f"coordinator/{COORDINATOR}"
    }
    assert {f.check for f in visit("north", clock=lambda: datetime.now(UTC) + timedelta(minutes=10))
            if f.status is Status.FAILED} == {"clock"}  # fmt: skip
    federation.kill("S2")
    try:
        ill = [(f.subject, f.check) for f in visit("S3") if f.status is Status.FAILED]
        assert ill == [("mpc-server/S2", "port"), ("mpc-server/S2", "mesh")]
    finally:
        federation.start("S2")
        federation.wait_ready(timeout=120)
