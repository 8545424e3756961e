"""Figures and logs: who may see them, what they say, that they hold no data; and that what watches them fits."""

import asyncio
import io
import json
import logging
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from caps.errors import DomainError
from caps.service import logs
from caps.service.identity import NOBODY
from caps.service.metrics import FAMILIES, MOST, OTHER, Metrics, Reading, exposed_names, sizes_of
from caps.service.tokens import Scope
from tests.kit.service import CANARY, Sample

WATCH = Path(__file__).parents[3] / "deploy" / "observability"
NAMES = re.compile(r"\b(?:caps|process)_[a-z_]+\b")


@pytest.fixture
def sample(tmp_path):
    return Sample(tmp_path)


def ask(sample, path, scope=Scope.OPERATOR, *, method="GET", headers=(), **choices):
    async def call():
        transport = httpx.ASGITransport(sample.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
            given = dict(headers) | ({} if scope is None else {"Authorization": f"Bearer {sample.token(scope)}"})
            return await client.request(method, path, headers=given, **choices)

    return asyncio.run(call())


@pytest.mark.parametrize(
    ("scope", "status"),
    [(None, 401), (Scope.OWNER, 403), (Scope.ANALYST, 403), (Scope.OPERATOR, 200), (Scope.AUDITOR, 200)],
)
def test_figures_are_for_operators_and_auditors(sample, scope, status):
    response = ask(sample, "/metrics", scope)
    assert response.status_code == status
    assert ("caps_build_info" in response.text) == (status == 200)


def test_figures_are_no_part_of_the_contract(sample):
    assert "/metrics" not in ask(sample, "/v1/openapi.json", None).json()["paths"]


def test_requests_are_counted_by_route_and_never_by_path(sample):
    ask(sample, f"/v1/things?most=1&x={CANARY}")
    ask(sample, f"/v1/{CANARY}")
    ask(sample, "/v1/large", method="PUT", content=b"x" * 5000)
    ask(sample, "/v1/broken")
    text = ask(sample, "/metrics").text
    assert 'caps_requests_total{method="GET",route="/v1/things",status="200"} 1.0' in text
    assert 'caps_requests_total{method="GET",route="-",status="404"} 1.0' in text
    assert 'caps_requests_total{method="GET",route="/v1/broken",status="500"} 1.0' in text
    assert 'caps_received_bytes_total{route="/v1/large"} 5000.0' in text
    assert 'caps_request_seconds_count{route="/v1/things"} 1.0' in text
    assert CANARY not in text


def test_labels_are_bounded():
    metrics = Metrics()
    for number in range(MOST + 50):
        metrics.count("caps_retries", party=f"party-{number}")
    metrics.read(lambda: (Reading("caps_run_steps", 1, (f"run-{number}",)) for number in range(MOST + 50)))
    text = metrics.text().decode()
    assert f'caps_retries_total{{party="{OTHER}"}} 50.0' in text
    assert text.count("caps_retries_total{") == MOST + 1
    assert text.count("caps_run_steps{") == MOST


def test_a_source_that_fails_is_counted_and_hides_nothing_else(caplog):
    metrics = Metrics("sample", "one")

    def broken():
        yield Reading("caps_ready", 1)
        raise RuntimeError(CANARY)

    metrics.read(broken)
    metrics.text()
    text = metrics.text().decode()
    assert "caps_metrics_errors_total 1.0" in text
    assert "caps_build_info{" in text
    assert CANARY not in text + caplog.text


def test_sizes_are_those_of_the_files(tmp_path):
    (tmp_path / "state.db").write_bytes(b"x" * 100)
    (tmp_path / "state.db-wal").write_bytes(b"x" * 20)
    (tmp_path / "shares" / "deep").mkdir(parents=True)
    (tmp_path / "shares" / "deep" / "one").write_bytes(b"x" * 7)
    clock = [0.0]
    source = sizes_of(tmp_path, monotonic=lambda: clock[0])
    found = {(one.name, one.labels): one.value for one in source()}
    assert found["caps_state_bytes", ("database",)] == 120
    assert found["caps_state_bytes", ("shares",)] == 7
    assert 0 < found["caps_disk_free_bytes", ()] <= found["caps_disk_bytes", ()]
    (tmp_path / "shares" / "two").write_bytes(b"x")
    assert {one.value for one in source() if one.labels == ("shares",)} == {7}
    clock[0] = 31
    assert {one.value for one in source() if one.labels == ("shares",)} == {8}


def test_families_are_named_once_and_as_prometheus_wants():
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"caps_[a-z_]+", family.name)
        assert not family.name.endswith("_total")
        assert not {"path", "title", "value", "url"} & set(family.labels)


@pytest.fixture
def lines():
    """A logger that writes JSON, and what it wrote."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines("sample", "one"))
    made = []

    def log(name):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        made.append(logger)
        return logger

    yield log, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for logger in made:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_a_line_is_json_with_the_ids_that_are_bound(lines):
    log, written = lines
    with logs.bound(run="r1", study="s1", request_id=None), logs.bound(step=3):
        logs.say(log("caps.test"), "answered", seconds=1)
    logs.say(log("caps.test"), "later")
    first, second = written()[0], written()[-1]
    assert {key: first[key] for key in ("service", "name", "run", "study", "step", "event", "seconds", "level")} == {
        "service": "sample", "name": "one", "run": "r1", "study": "s1", "step": 3, "event": "answered", "seconds": 1,
        "level": "info",
    }  # fmt: skip
    assert not {"run", "step", "request_id"} & set(second)


def test_no_text_of_an_exception_is_written(lines):
    log, written = lines
    try:
        raise ValueError(CANARY)
    except ValueError:
        log("uvicorn.error").exception("Exception in ASGI application\n%s", CANARY)
        log("asyncio").exception("Task exception was never retrieved\nfuture: %s", CANARY)
        log("elsewhere").warning("a row: %s", CANARY)
    found = written()
    assert len(found) == 3
    assert CANARY not in json.dumps(found)
    assert found[0]["error"] == "ValueError"
    assert found[0]["where"][0].startswith("service/test_metrics.py:")


def test_an_outgoing_call_carries_the_id_of_the_work_it_is_part_of():
    seen = []

    def answer(request):
        seen.append(request.headers[logs.HEADER])
        return httpx.Response(200)

    hooks = {"request": [logs.trace]}
    with httpx.Client(transport=httpx.MockTransport(answer), event_hooks=hooks) as client:
        with logs.bound(request_id=logs.new_id("a" * 32)):
            client.get("https://example/")
        with logs.bound(request_id="has\nnewline"):
            client.get("https://example/")
        client.get("https://example/")
        client.get("https://example/", headers={logs.HEADER: "given-already"})
    assert seen[0].startswith("a" * 32 + ".")
    assert all(re.fullmatch(r"[0-9a-f]{16}", one) for one in seen[1:3])
    assert seen[3] == "given-already"


def test_a_handler_works_under_the_id_of_its_request(sample, monkeypatch):
    seen = []

    def caller(_):
        seen.append(logs.request_id())
        return NOBODY

    monkeypatch.setattr("caps.service.identity.caller_of", caller)
    ask(sample, "/v1/who", headers={"X-Request-Id": "followed-1"})
    assert seen == ["followed-1"]
    assert logs.request_id() is None


def test_levels():
    assert logs.level_of("debug") == "DEBUG"
    with pytest.raises(DomainError, match="CAPS_LOG_LEVEL"):
        logs.level_of("loud")


def _queries():
    rules = yaml.safe_load((WATCH / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((WATCH / "grafana" / "dashboards" / "caps.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize(("where", "query"), list(_queries()))
def test_every_figure_that_is_watched_exists(where, query):
    used = set(NAMES.findall(query))
    assert used or query.startswith("up{")
    assert used <= exposed_names()


def test_every_label_that_alerts_speak_of_exists():
    known = {label for family in FAMILIES for label in family.labels} | {"instance"}
    for rule in yaml.safe_load((WATCH / "alerts.yml").read_text())["groups"][0]["rules"]:
        assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) <= known
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert {"summary", "action"} == set(rule["annotations"])


def test_the_dashboard_is_provisioned():
    provisioning = WATCH / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "caps.yml").read_text())["providers"]
    dashboard = json.loads((WATCH / "grafana" / "dashboards" / "caps.json").read_text())
    used = {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    assert used == {source["uid"]}
    assert provider["options"]["path"].endswith("dashboards")
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in dashboard["panels"]]
    assert all(x + w <= 24 for x, _, w, _ in places)
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells)), "panels overlap"


def test_prometheus_scrapes_over_tls_with_a_token():
    config = yaml.safe_load((WATCH / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["scheme"] == "https"
    assert job["metrics_path"] == "/metrics"
    assert "credentials_file" in job["authorization"]
    assert "insecure_skip_verify" not in job["tls_config"]
    assert config["rule_files"] == ["alerts.yml"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of Debian's package prometheus, is not here")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
)
def test_promtool_agrees(arguments):
    done = subprocess.run(["promtool", *arguments], cwd=WATCH, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
