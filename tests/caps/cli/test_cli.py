"""The `caps` command: its output, its exit codes, its connection, its commands on files and on a service."""

import json
import re
import sys
from pathlib import Path
from subprocess import run

import pytest
import typer
import yaml
from typer.testing import CliRunner

import tests.kit.study as study_kit
from caps.basics import canonical
from caps.cli import Exit, _unforeseen, app, reference
from caps.cli.connection import Given
from caps.cli.exits import MEANINGS, failure_of
from caps.client import Client, ProblemError
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.trust.cards import Card
from caps.wire import Evidence, LedgerHead, RunStatus, Signed
from caps.wire.coordinator import HolderView, Judged, ServerView
from caps.wire.holder import HolderLedger, LedgerEntry, Loss, PopulationLoss, TableLoss
from caps.wire.problems import Kind
from caps.wire.server import LedgerRecord
from tests.kit.client import AT, ROWS, RUN, STUDY, make_home, run_view, study_view

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("COLUMNS", raising=False)
    for name in ("CAPS_URL", "CAPS_TOKEN", "CAPS_TOKEN_FILE", "CAPS_AUTHORITY", "CAPS_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CAPS_CONFIG", str(tmp_path / "config.toml"))


def caps(*arguments, expect=Exit.OK):
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == expect, found.output
    if "--json" not in arguments:
        assert max(map(len, found.stdout.splitlines()), default=0) <= 80, found.stdout
    return found


def as_json(*arguments, expect=Exit.OK):
    return json.loads(caps(*arguments, "--json", expect=expect).stdout)


def all_commands():
    return list(reference.walk(typer.main.get_command(app), ()))


# The frame.


def test_the_page_is_up_to_date():
    assert reference.main(["--check", str(ROOT / "docs" / "cli.md")]) == 0


def test_the_page_is_found_out_of_date(tmp_path, capsys):
    path = tmp_path / "cli.md"
    assert reference.main([str(path)]) == 0
    path.write_text(path.read_text() + "x")
    assert reference.main(["--check", str(path)]) == 1
    assert "out of date" in capsys.readouterr().err


def test_every_command_has_json_and_words():
    for path, command in all_commands():
        assert any(option.name == "json_" for option in command.params), path
        assert command.help, path


def test_exit_codes_are_documented_once_each():
    assert set(MEANINGS) == set(Exit)
    words = " ".join(caps("--help").stdout.split())
    assert all(f"{int(code)} {meaning}" in words for code, meaning in MEANINGS.items())


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_every_problem_has_its_exit_code(kind):
    failure = failure_of(ProblemError(Problem(kind, "so").document("request")))
    expected = {
        Kind.UNAUTHENTICATED: Exit.NOT_ALLOWED,
        Kind.FORBIDDEN: Exit.NOT_ALLOWED,
        Kind.NOT_FOUND: Exit.NOT_FOUND,
    }
    retryable = Exit.NOT_YET if kind.value.retryable else Exit.REFUSED
    assert failure.exit == expected.get(kind, retryable)
    assert failure.title == kind.value.title
    assert failure.request == ("request" if kind.value.status >= 500 else None)


def test_an_unforeseen_error_says_where_and_not_what(capsys):
    try:
        raise KeyError("a private value")
    except KeyError as error:
        _unforeseen(type(error), error, error.__traceback__)
    words = capsys.readouterr().err
    assert "KeyError at test_cli.py:" in words
    assert "private" not in words


def test_the_module_is_the_command():
    found = run([sys.executable, "-m", "caps.cli", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.strip()


# The connection.


def test_options_go_before_the_site_and_a_sites_token_goes_to_it_alone(tmp_path):
    config = tmp_path / "config.toml"
    (tmp_path / "a.token").write_text("caps_a\n")
    config.write_text('[sites.coordinator]\nurl = "https://c"\ntoken_file = "a.token"\nauthority = "ca.pem"\n')
    found = Given(config=config).connection("coordinator")
    assert (found.url, found.token, found.authority) == ("https://c", "caps_a", tmp_path / "ca.pem")
    assert Given(config=config, url="https://other").connection("coordinator").token is None
    assert Given(config=config, token="caps_b").connection("coordinator").token == "caps_b"
    assert Given(config=config, site="coordinator").connection("holder").url == "https://c"
    with pytest.raises(typer.BadParameter):
        Given(config=config).connection("holder")
    with pytest.raises(typer.BadParameter):
        Given(config=config, site="nowhere").connection("holder")


@pytest.mark.parametrize("text", ["[sites", "sites = 3", "[sites.a]\ntoken = 'secret'", "[sites.a]\nurl = 7"])
def test_a_configuration_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(DomainError) as caught:
        Given(config=tmp_path / "c.toml").connection("a")
    assert "secret" not in str(caught.value)


def test_without_a_url_a_command_is_not_usable():
    caps("study", "list", expect=Exit.USAGE)


def test_the_environment_says_where_and_as_whom(service, monkeypatch, tmp_path):
    (tmp_path / "token").write_text(service.token + "\n")
    monkeypatch.setenv("CAPS_URL", service.url)
    monkeypatch.setenv("CAPS_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("CAPS_AUTHORITY", str(service.authority))
    assert as_json("study", "list")["studies"][0]["study"] == STUDY


def test_a_token_file_that_is_not_there_is_said(service, tmp_path):
    found = caps("study", "list", "--url", service.url, "--token-file", tmp_path / "none", expect=Exit.REFUSED)
    assert "none" in found.stderr


# Errors.


def test_a_problem_goes_to_stderr_and_stdout_stays_empty(service):
    words = caps("study", "status", "00" * 32, *service.options, expect=Exit.NOT_FOUND)
    assert words.stdout == ""
    assert "Not found" in words.stderr
    document = caps("study", "status", "00" * 32, *service.options, "--json", expect=Exit.NOT_FOUND)
    assert document.stdout == ""
    found = json.loads(document.stderr)
    assert (found["type"], found["exit"]) == ("urn:caps:problem:not-found", 3)


def test_a_wrong_token_is_not_allowed_and_not_shown(service):
    options = ["--url", service.url, "--authority", service.authority, "--token", "caps_secret"]
    found = caps("study", "list", *options, expect=Exit.NOT_ALLOWED)
    assert "secret" not in found.output
    assert "Hint" in found.stderr


def test_a_service_of_another_authority_is_not_used(service, tmp_path):
    make_home(tmp_path)
    options = ["--url", service.url, "--token", service.token]
    found = caps(
        "study", "list", *options, "--authority", tmp_path / "authority/authority.pem", expect=Exit.UNREACHABLE
    )
    assert "not trusted" in found.stderr
    assert service.token not in found.output


def test_control_characters_and_markup_of_others_stay_words(service):
    words = caps("study", "list", *service.options).stdout
    assert "\x1b" not in words
    assert "[red]study" in words


# On a service.


def test_the_beginning_of_an_id_is_enough(service):
    assert as_json("study", "status", STUDY[:6], *service.options)["state"] == "approved"
    found = caps("study", "status", "00", *service.options, expect=Exit.REFUSED)
    assert "no study id begins with 00" in found.stderr


def test_a_beginning_that_fits_several_ids_lists_them(service, monkeypatch):
    run, other = "ab" * 16, "ab" * 15 + "cd"
    several = [
        study_view("One").model_copy(update={"runs": [run]}),
        study_view("Two").model_copy(update={"runs": [other]}),
    ]
    monkeypatch.setattr(Client, "studies", lambda _: several)
    found = caps("run", "show", "abab", *service.options, expect=Exit.REFUSED)
    assert "2 run ids begin with abab" in found.stderr
    assert run in found.stderr
    assert other in found.stderr
    assert as_json("run", "show", other[:31], *service.options)["run"] == other
    assert [one["run"] for one in as_json("run", "list", *service.options)["runs"]] == [run, other]
    words = caps("run", "list", *service.options).stdout
    assert words.count("released") == 2
    monkeypatch.setattr(Client, "studies", lambda _: [])
    assert "No run" in caps("run", "list", *service.options).stdout


def test_a_study_is_shown_with_who_is_missing(service, monkeypatch):
    servers = [
        ServerView(server="S1", state=Judged.APPROVED, reason=None, objections=[]),
        ServerView(server="S2", state=Judged.REFUSED, reason=None, objections=["epsilon 9 exceeds the limit of 1"]),
    ]
    holders = [HolderView(holder="north", approved=True), HolderView(holder="south", approved=False)]
    view = study_view("One").model_copy(update={"servers": servers, "holders": holders, "missing": ["S2", "south"]})
    monkeypatch.setattr(Client, "study", lambda *_: view)
    words = caps("study", "status", STUDY, *service.options).stdout
    for said in ("waits for", "S2, south", "epsilon 9 exceeds", "refused", "north"):
        assert said in words
    monkeypatch.setattr(Client, "studies", lambda _: [view])
    words = caps("study", "list", *service.options).stdout
    assert STUDY[:12] in words
    assert STUDY[:13] not in words


def test_a_table_is_loaded_and_reported(service, tmp_path):
    (tmp_path / "t.csv").write_text("age\n1\n2\n")
    report = as_json("table", "put", STUDY, tmp_path / "t.csv", *service.options)
    assert report["rows"] == 3
    assert "age" in caps("table", "put", STUDY, tmp_path / "t.csv", *service.options).stdout
    caps("table", "erase", STUDY, *service.options)
    caps("table", "put", STUDY, tmp_path / "none.csv", *service.options, expect=Exit.USAGE)


def test_a_refused_table_is_reported_by_counts(service, tmp_path):
    (tmp_path / "t.csv").write_text("age\nnonsense\n")
    found = caps("table", "put", STUDY, tmp_path / "t.csv", *service.options, expect=Exit.REFUSED)
    assert "unparsable" in found.stderr
    assert "nonsense" not in found.output


RECEIPT = {
    "document": {
        "study": STUDY,
        "contribution": "cd" * 32,
        "holder": "clinic-a",
        "server": "S1",
        "event": "accepted",
        "at": "2030-05-17T12:00:00Z",
    },
    "signer": "S1",
    "signature": "00" * 64,
}


def delivery(server, **changes):
    state = {"state": "pending", "sent": 0, "of": 10, "receipt": None, "withdrawal": None, "problem": None}
    return {"server": server, **state, **changes}


def contribution(state, *servers):
    return {"contribution": "cd" * 32, "state": state, "statement": None, "servers": list(servers)}


def test_contribute_waits_for_the_receipts(service, monkeypatch):
    monkeypatch.setattr("caps.cli.owner.POLL", 0)
    done = {"state": "accepted", "sent": 10, "receipt": RECEIPT}
    service.script.answers = [
        contribution("pushing", delivery("S1"), delivery("S2")),
        contribution("pushing", delivery("S1", **done), delivery("S2", problem={"retryable": True, "detail": "away"})),
        contribution("complete", delivery("S1", **done), delivery("S2", **done)),
    ]
    assert as_json("contribute", STUDY, *service.options)["state"] == "complete"


def test_contribute_ends_when_a_server_refuses(service):
    refusal = {"retryable": False, "detail": "the study is sealed"}
    service.script.answers = [contribution("pushing", delivery("S1"), delivery("S2", problem=refusal))]
    found = caps("contribute", STUDY, *service.options, expect=Exit.REFUSED)
    assert "the study is sealed" in found.stdout


def test_a_run_is_started_and_watched(service):
    assert as_json("run", "start", STUDY, "--watch", *service.options)["state"] == "released"
    assert as_json("run", "start", STUDY, *service.options)["state"] == "queued"
    words = caps("run", "watch", RUN, *service.options).stdout
    lines = words.splitlines()
    assert "running" in lines[0]
    assert "round 1: age x smoker" in lines[1]
    assert lines[1].startswith(" 50%")
    assert "released" in lines[2]
    assert all(letter.isprintable() or letter == "\n" for letter in words)


def test_a_sample_is_deleted(service):
    sample = "5" * 32
    found = as_json("release", "delete-sample", RUN[:5], sample, *service.options)
    assert found == {"release": RUN, "deleted": sample}
    assert [what for what, _, _ in service.script.met] == [f"delete {RUN}/{sample}"]


def test_a_release_is_fetched_and_checked(service, tmp_path):
    target = tmp_path / "rows.csv"
    found = as_json("release", "get", RUN[:5], "-o", target, *service.options)
    assert found["bytes"] == len(ROWS)
    assert target.read_bytes() == ROWS
    service.script.digest = bytes(32)
    caps("release", "get", RUN, "-o", tmp_path / "more.csv", *service.options, expect=Exit.NOT_VERIFIED)
    assert not (tmp_path / "more.csv").exists()
    caps("release", "get", RUN, "--format", "xlsx", *service.options, expect=Exit.USAGE)


def test_the_suffix_of_a_file_says_its_format(service, tmp_path):
    caps("release", "get", RUN, "-o", tmp_path / "rows.parquet", *service.options)
    caps("release", "get", RUN, "-o", tmp_path / "rows.csv", "--format", "raw.csv", *service.options)
    found = caps(
        "release", "get", RUN, "-o", tmp_path / "r.csv", "--format", "arrow", *service.options, expect=Exit.REFUSED
    )
    assert "the suffix is that of csv, but arrow is asked for" in " ".join(found.stderr.split())
    caps("release", "get", RUN, "-o", tmp_path / "rows.xlsx", *service.options, expect=Exit.REFUSED)
    asked = [headers["accept"] for what, headers, _ in service.script.met if what == "data"]
    assert asked == ["application/vnd.apache.parquet", "text/csv"]
    assert not (tmp_path / "r.csv").exists()


def test_a_document_is_kept_byte_by_byte(service, tmp_path):
    caps("release", "certificate", RUN, "-o", tmp_path / "c.json", *service.options)
    assert (tmp_path / "c.json").read_bytes() == b'{"a": 1}\n'


def test_a_transcript_is_fetched_and_checked(service, tmp_path):
    found = as_json("release", "transcript", RUN[:5], "-o", tmp_path / "t.ndjson", *service.options)
    assert (tmp_path / "t.ndjson").read_bytes() == ROWS
    assert found["bytes"] == len(ROWS)
    service.script.digest = bytes(32)
    caps("release", "transcript", RUN, "-o", tmp_path / "u.ndjson", *service.options, expect=Exit.NOT_VERIFIED)


def test_the_ledger_is_shown_with_what_was_charged(service):
    assert len(as_json("ledger", "show", *service.options)["records"]) == 2
    words = caps("ledger", "show", *service.options).stdout
    assert "0.25" in words
    assert "geometric" in words


def test_an_owner_sees_what_all_studies_cost_and_where_rows_go_by_two_names(service, monkeypatch):
    loss = Loss(studies=2, rho=0.1, epsilon=1.4375, delta=2e-6, relation="unbounded", multiplicity=1)
    entry = LedgerEntry(
        study=STUDY,
        title="First",
        population="patients",
        contribution="c" * 64,
        at=AT,
        state="complete",
        counted=True,
        fingerprint=None,
        epsilon="1",
        delta="0.000001",
        rho=0.05,
    )
    found = HolderLedger(
        entries=[entry],
        populations=[PopulationLoss(population="patients", loss=loss)],
        tables=[TableLoss(fingerprint="f" * 64, populations=["insured", "patients"], loss=loss)],
        total=loss,
        warnings=["the same rows go by two names"],
    )
    monkeypatch.setattr(Client, "table_ledger", lambda _: found)
    assert as_json("table", "ledger", *service.options) == found.model_dump(mode="json")
    words = caps("table", "ledger", *service.options).stdout
    for said in (
        "unknown",
        "population patients",
        "table ffffffffffff",
        "1.4375",
        "WARNING: the same rows go by two names",
    ):
        assert said in words


def test_a_ledger_is_compared_with_what_its_server_signed_and_others_keep(service, monkeypatch, tmp_path):
    keys = study_kit.make_keys(["S1", "S2"])
    places = {"role": "mpc-server", "url": "https://s1.example:8443", "mesh": "s1.example:9443"}
    Card(**keys["S1"].party(), **places).write(tmp_path / "card.json")
    manifest, _ = study_kit.example_manifest()
    privacy = {"population": "patients", "privacy": manifest.privacy.to_json(), **manifest.reservation.to_json()}
    record = {"number": 0, "previous": "0" * 64, "at": AT, "kind": "reserve", "study": STUDY, "run": RUN, **privacy}
    whole = {**record, "hash": canonical.digest("ledger-record", {"record": record}).hex()}
    monkeypatch.setattr(Client, "ledger", lambda *_: iter([LedgerRecord(**whole)]))

    def head(number, digest, by="S1"):
        document = LedgerHead(server="S1", run=RUN, number=number, hash=digest, at=AT)
        return Signed[LedgerHead].by(document, "S1", keys[by].signing)

    verify = ("ledger", "verify", "--card", tmp_path / "card.json", *service.options)
    service.script.heads = [head(0, whole["hash"])]
    words = caps(*verify).stdout
    assert "The ledger holds. No peer's heads were given" in " ".join(words.split())
    (tmp_path / "policy.yaml").write_text("populations: {patients: 3.0}")
    (population,) = as_json(*verify, "--policy", tmp_path / "policy.yaml")["populations"]
    assert (population["population"], population["runs"], population["limit"]) == ("patients", 1, 3.0)
    assert 0.9 < population["used"] <= 1
    assert 1.5 < population["left"] < 3
    words = caps(*verify, "--summary").stdout
    assert "patients" in words
    assert "--policy" in words
    assert "in the ledger" not in words
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(as_json("ledger", "heads", *service.options)))
    found = as_json(*verify, "--heads", kept)
    assert (found["verified"], found["compared"], [one["holds"] for one in found["heads"]]) == (True, 1, [True, True])
    for heads, expect in (
        ([head(7, "a" * 64)], Exit.NOT_VERIFIED),
        ([head(0, "a" * 64)], Exit.NOT_VERIFIED),
        ([head(7, "a" * 64, by="S2")], Exit.OK),
    ):
        kept.write_text(json.dumps({"heads": [one.to_json() for one in heads]}))
        assert as_json(*verify, "--heads", kept, expect=expect)["verified"] == (expect == Exit.OK)
    for wrong in ("[]", "{}", '{"heads": [{}]}', "{"):
        kept.write_text(wrong)
        caps(*verify, "--heads", kept, expect=Exit.REFUSED)


def test_a_run_that_was_aborted_is_shown_with_its_evidence(service, monkeypatch):
    manifest, keys = study_kit.example_manifest(scheme="rep4")
    members = {"study": manifest.study_id, "run": RUN, "step": 2, "scheme": "rep4", "check": "messages", "at": AT}
    given = [
        Signed[Evidence].by(Evidence(**members, pair=("S1", "S2"), server="S3"), "S3", keys["S3"].signing),
        Signed[Evidence].by(Evidence(**members, pair=("S1", "S3"), server="S4"), "S4", keys["S1"].signing),
    ]
    view = run_view(RUN, "failed").model_copy(update={"evidence": given, "study": manifest.study_id})
    monkeypatch.setattr(Client, "run", lambda *_: view)
    monkeypatch.setattr(Client, "manifest", lambda *_: manifest)
    found = as_json("run", "show", RUN, *service.options)["evidence"]
    assert [one["signature"] == "valid" for one in found] == [True, False]
    assert [Signed[Evidence].model_validate(one["signed"]) for one in found] == given
    words = caps("run", "show", RUN, *service.options).stdout
    assert "S1, S2" in words
    assert "valid" in words
    status = RunStatus(
        run=RUN,
        study=manifest.study_id,
        inputs=STUDY,
        state="aborted",
        position=2,
        due="",
        rounds=0,
        bytes_sent=0,
        evidence=tuple(given[:1]),
    )
    record = {"number": 0, "previous": "0" * 64, "at": AT, "kind": "abort", "study": manifest.study_id, "run": RUN}
    whole = {**record, "hash": canonical.digest("ledger-record", {"record": record}).hex()}
    monkeypatch.setattr(Client, "run_here", lambda *_: status)
    monkeypatch.setattr(Client, "ledger", lambda *_: iter([LedgerRecord(**whole)]))
    audited = as_json("audit", RUN, *service.options)
    assert (audited["state"], audited["ledger"], len(audited["records"])) == ("aborted", True, 1)
    assert [one["signature"] for one in audited["evidence"]] == ["valid"]
    assert "The ledger's chain holds." in caps("audit", RUN, *service.options).stdout
    monkeypatch.setattr(Client, "ledger", lambda *_: iter([LedgerRecord(**whole | {"run": STUDY[:32]})]))
    assert "THE LEDGER'S CHAIN IS BROKEN." in caps("audit", RUN, *service.options, expect=Exit.NOT_VERIFIED).stdout
    monkeypatch.setattr(Client, "ledger", lambda *_: iter([LedgerRecord(**whole)]))
    monkeypatch.setattr(Client, "run_here", lambda *_: status.model_copy(update={"evidence": tuple(given)}))
    caps("audit", RUN, *service.options, expect=Exit.NOT_VERIFIED)


def test_ready_says_so(service):
    assert as_json("ready", *service.options)["status"] == "ready"


# On files.


@pytest.fixture
def manifest_file(tmp_path):
    document, _ = study_kit.example_json()
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_new_study_is_written_from_schema_and_cards(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(study_kit.SCHEMA))
    cards = tmp_path / "cards"
    home = make_home(tmp_path, "mpc-server", "S1")
    cards.mkdir()
    caps("pki", "card", home, "--url", "https://s1:1", "--mesh", "s1:2", "--out", cards / "s1.json")
    options = ["--cards", cards, "--title", "Mine", "--holder", "clinic-a"]
    caps("study", "new", tmp_path / "schema.json", "-o", tmp_path / "study.yaml", *options)
    text = (tmp_path / "study.yaml").read_text()
    assert "https://s1:1" in text
    assert "clinic-a" in text
    found = as_json("study", "check", tmp_path / "study.yaml", expect=Exit.REFUSED)
    assert not found["valid"]
    caps("study", "new", tmp_path / "schema.json", "-o", tmp_path / "study.yaml", expect=Exit.REFUSED)


@pytest.mark.parametrize("text", ["columns: [", "- a", "columns: 3"])
def test_a_schema_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "schema.yaml").write_text(text)
    caps("study", "new", tmp_path / "schema.yaml", "-o", tmp_path / "study.yaml", expect=Exit.REFUSED)
    assert not (tmp_path / "study.yaml").exists()


def test_a_sound_manifest_has_an_id(manifest_file):
    found = as_json("study", "check", manifest_file)
    assert found["valid"]
    assert len(found["study"]) == 64


def test_an_unsound_manifest_is_told_with_lines(manifest_file):
    manifest_file.write_text(manifest_file.read_text().replace("epsilon: '1'", "epsilon: many"))
    found = as_json("study", "check", manifest_file, expect=Exit.REFUSED)
    assert [one["place"] for one in found["findings"]] == ["privacy.epsilon"]
    assert found["findings"][0]["line"] > 0
    words = caps("study", "check", manifest_file, expect=Exit.REFUSED).stdout
    assert f"{manifest_file.name}:{found['findings'][0]['line']}:" in "".join(words.split())


def test_a_plan_is_shown(manifest_file):
    assert as_json("study", "plan", manifest_file)["algorithm"] == "aim"
    words = caps("study", "plan", manifest_file).stdout
    for said in ("epsilon 1", "run time", "fits", "memory", "age x diagnosis", "--persons", "--full"):
        assert said in words
    assert "Who sees what" not in words
    assert "Who sees what" in caps("study", "plan", manifest_file, "--full").stdout


def test_a_plan_says_when_more_budget_or_fewer_columns_are_needed(manifest_file):
    few, some, many = (
        as_json("study", "plan", manifest_file, "--persons", persons)["advice"] for persons in (2, 200, 10**7)
    )
    assert "NOT enough" in few
    assert re.search(r"Epsilon [0-9e+.]+.* or [0-9,]+ persons would be enough for columns", few)
    assert some != many
    assert "enough to tell columns and pairs" in many
    assert few in " ".join(caps("study", "plan", manifest_file, "--persons", 2).stdout.split())


def test_a_plan_for_so_many_persons_has_relative_errors(manifest_file):
    found = as_json("study", "plan", manifest_file, "--persons", 1000)["relative_errors"]
    more = as_json("study", "plan", manifest_file, "--persons", 2000)["relative_errors"]
    assert found["persons"] == 1000
    for one, other in zip(found["marginals"], more["marginals"], strict=True):
        assert one["half_width"] == other["half_width"]
        assert one["of_average_cell"] == pytest.approx(one["half_width"] * one["cells"] / 1000)
        assert other["of_average_cell"] == pytest.approx(one["of_average_cell"] / 2)
    assert "of a mean cell" in " ".join(caps("study", "plan", manifest_file, "--persons", 1000).stdout.split())
    caps("study", "plan", manifest_file, "--persons", 0, expect=Exit.USAGE)


def test_a_plan_finds_the_epsilon_of_a_wished_error(manifest_file):
    found = as_json("study", "plan", manifest_file, "--persons", 2000, "--error", 0.05)["wished"]["found"]
    assert found["error"] <= 0.05
    words = " ".join(caps("study", "plan", manifest_file, "--persons", 2000, "--error", 0.05).stdout.split())
    assert f"Epsilon {found['epsilon']} is the least" in words
    assert as_json("study", "plan", manifest_file, "--persons", 2, "--error", 0.001)["wished"]["found"] is None
    assert "--persons" in caps("study", "plan", manifest_file, "--error", 0.05, expect=Exit.REFUSED).stderr
    caps("study", "plan", manifest_file, "--persons", 10, "--error", 2, expect=Exit.REFUSED)


@pytest.fixture
def certificate_file(tmp_path, monkeypatch):
    monkeypatch.setattr(study_kit, "AT", "2026-01-01T00:00:00Z")
    manifest, keys = study_kit.example_manifest()
    release = study_kit.example_release(manifest, keys)
    release.write(tmp_path)
    path = tmp_path / "certificate.json"
    path.write_bytes(canonical.dump(release.certificate.to_json()))
    return path


def test_a_certificate_is_verified_offline(certificate_file, tmp_path):
    names = {"--transcript": "transcript.ndjson", "--measurements": "measurements.json", "--data": "data.ndjson"}
    files = [part for option, name in names.items() for part in (option, tmp_path / name)]
    found = as_json("verify", certificate_file, *files)
    assert found["verified"]
    assert all(check["passed"] for check in found["checks"])
    words = caps("verify", certificate_file).stdout
    assert "not checked" in words
    assert found["parties"][0]["pin"][:16] in words
    assert found["parties"][0]["pin"] not in words
    assert found["parties"][0]["pin"] in caps("verify", certificate_file, "--full").stdout
    assert "--cards" in words


def test_the_keys_of_a_certificate_are_compared_with_cards(certificate_file, tmp_path):
    cards = tmp_path / "cards"
    cards.mkdir()
    document = json.loads(certificate_file.read_text())["manifest"]
    for server in document["servers"]:
        Card(**{"role": "mpc-server", **server}).write(cards / f"{server['name']}.json")
    found = as_json("verify", certificate_file, "--cards", cards)
    assert [one["card"] for one in found["parties"]] == [True, True, True, None, None, None]
    assert found["checks"][-1]["passed"] is None
    assert "no card of coordinator" in found["checks"][-1]["explanation"]
    server = document["servers"][0]
    Card(**{"role": "mpc-server", **server, "pin": "0" * 64}).write(cards / f"{server['name']}.json")
    words = caps("verify", certificate_file, "--cards", cards, expect=Exit.NOT_VERIFIED).stdout
    assert "DIFFERS" in words
    assert "S1: not the keys on the card" in " ".join(words.split())
    (cards / "broken.json").write_text("{}")
    assert not as_json("verify", certificate_file, "--cards", cards, expect=Exit.NOT_VERIFIED)["verified"]


def test_what_does_not_verify_has_its_own_exit_code(certificate_file, tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"other rows")
    words = caps("verify", certificate_file, "--data", tmp_path / "rows.csv", expect=Exit.NOT_VERIFIED).stdout
    assert "IS NOT VALID" in words
    transcript = tmp_path / "transcript.ndjson"
    transcript.write_bytes(transcript.read_bytes().replace(b'"value":[-1,0', b'"value":[-1,1', 1))
    words = caps("verify", certificate_file, "--transcript", transcript, expect=Exit.NOT_VERIFIED).stdout
    assert "S1 and S2 and S3" in " ".join(words.split())
    document = json.loads(certificate_file.read_text())
    document["release"]["signature"] = "00" * 64
    certificate_file.write_bytes(canonical.dump(document))
    assert not as_json("verify", certificate_file, expect=Exit.NOT_VERIFIED)["verified"]
    certificate_file.write_text("{}")
    words = caps("verify", certificate_file, expect=Exit.NOT_VERIFIED).stdout
    assert "is not a certificate: manifest" in " ".join(words.split())
