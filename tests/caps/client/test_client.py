"""The client against a service over real TLS: problems, retries, ranges, events, trust."""

from hashlib import sha256

import httpx
import pytest

from caps.client import AnswerRefused, Client, Event, ProblemError, Unreachable
from caps.client.calls import TIMEOUT
from caps.client.client import ATTEMPTS, parse_events
from caps.errors import DomainError
from caps.wire import holder, server
from caps.wire.coordinator import RunChanged, RunProgress, StudyView
from tests.kit.client import ROWS, RUN, STUDY, Flaky, make_home

pytestmark = pytest.mark.integration


@pytest.fixture
def client(service):
    with service.client() as found:
        yield found


def test_a_problem_keeps_its_document(client):
    with pytest.raises(ProblemError) as caught:
        client.study("00" * 32)
    error = caught.value
    assert (error.status, error.type, error.retryable) == (404, "urn:caps:problem:not-found", False)
    assert error.document["study"] == "00" * 32
    assert "this coordinator has no such study" in str(error)


def test_without_a_token_nothing_is_told(service):
    with service.client(token=None) as client, pytest.raises(ProblemError) as caught:
        client.studies()
    assert caught.value.status == 401
    assert caught.value.hint


def test_an_error_that_is_no_problem_document_is_one_all_the_same():
    transport = httpx.MockTransport(lambda _: httpx.Response(502, text="<html>"))
    with Client("https://proxy", transport=transport) as client, pytest.raises(ProblemError) as caught:
        client.studies()
    assert (caught.value.status, caught.value.type) == (502, "about:blank")


@pytest.mark.parametrize("content", [b"", b"[1]", b"not json"])
def test_an_answer_of_another_shape_is_refused(content):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content or b"7"))
    with Client("https://odd", transport=transport) as client, pytest.raises(AnswerRefused):
        client.study(STUDY)


STUDIES = {
    StudyView: {
        **{key: [] for key in ("servers", "holders", "missing", "runs", "releases")},
        **{"study": STUDY, "title": "One", "state": "approved", "proposed_at": "2030-05-17T12:00:00Z"},
    },
    holder.StudyView: {
        **{"study": STUDY, "title": "One", "state": "known", "holder": "clinic-a", "approval": None},
        **{"approval_sent": False, "problem": None, "table": False, "views": [], "loss": None, "key_warnings": []},
        **{"decline": None, "decline_sent": False},
    },
    server.StudyState: {"study": STUDY, "state": "judged", "approval": None, "seal": None, "decline": None},
}


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.__module__)
def test_a_study_is_told_as_the_service_that_is_asked_sees_it(kind):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=STUDIES[kind]))
    with Client("https://one", transport=transport) as client:
        found = client.study(STUDY)
    assert type(found) is kind
    assert found.model_dump(mode="json") == STUDIES[kind]


def test_an_answer_that_lacks_a_member_is_refused_and_says_which():
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"run": RUN, "state": "released"}))
    with (
        Client("https://odd", transport=transport) as client,
        pytest.raises(AnswerRefused, match="study: Field required"),
    ):
        client.run(RUN)


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (lambda client, _: client.use_source(STUDY, "registry"), 600.0),
        (lambda client, _: client.contribute(STUDY), 600.0),
        (lambda client, file: client.contribute(STUDY, file), 600.0),
        (lambda client, file: client.put_table(STUDY, file), 600.0),
        (lambda client, _: client.table_report(STUDY), TIMEOUT),
    ],
)
def test_what_makes_a_holder_read_a_whole_table_is_waited_for(tmp_path, asked, waits):
    file, found = tmp_path / "table.csv", []
    file.write_text("a\n0\n")

    def answered(request):
        found.append(request.extensions["timeout"])
        return httpx.Response(403, json={})

    with Client("https://holder", transport=httpx.MockTransport(answered)) as client, pytest.raises(ProblemError):
        asked(client, file)
    assert [(one["connect"], one["read"]) for one in found] == [(TIMEOUT, waits)]


@pytest.mark.parametrize("bad", ["http://localhost:1", "localhost", ""])
def test_tokens_do_not_travel_in_the_clear(bad):
    with pytest.raises(DomainError, match="https"):
        Client(bad, token="caps_x")


def test_the_token_is_one_line():
    with pytest.raises(DomainError, match="one line"):
        Client("https://x", token="a\nX-Other: b")


def test_another_authoritys_service_is_not_trusted_and_not_asked_again(service, tmp_path):
    make_home(tmp_path)
    waits = []
    client = service.client(authority=tmp_path / "authority" / "authority.pem", sleep=waits.append)
    with client, pytest.raises(Unreachable, match="not trusted") as caught:
        client.studies()
    assert "--authority" in caught.value.hint
    assert waits == []


def test_a_service_that_is_not_there_is_asked_a_few_times(service):
    waits = []
    client = Client("https://127.0.0.1:1", authority=service.authority, sleep=waits.append)
    with client, pytest.raises(Unreachable, match="cannot be reached"):
        client.studies()
    assert len(waits) == ATTEMPTS - 1
    assert waits == sorted(waits)
    assert waits[0] < waits[-1] <= 4


LOST = httpx.RemoteProtocolError("lost")


def test_what_may_be_repeated_is_repeated(service):
    flaky = Flaky(service, httpx.ConnectError("no"), LOST, httpx.ReadTimeout("slow"))
    with service.client(transport=flaky) as client:
        assert client.study(STUDY).state == "approved"
    assert flaky.attempts == 4


def test_an_upload_that_is_repeated_begins_anew(service, tmp_path):
    table = tmp_path / "table.csv"
    table.write_bytes(ROWS)
    with service.client(transport=Flaky(service, LOST)) as client:
        assert client.put_table(STUDY, table).rows == ROWS.count(b"\n")
    ((_, _, body),) = service.script.met
    assert body == ROWS


def test_a_new_sample_is_not_asked_for_twice_unless_nothing_was_sent(service):
    flaky = Flaky(service, LOST)
    with service.client(transport=flaky) as client, pytest.raises(Unreachable):
        client.sample(RUN)
    assert flaky.attempts == 1
    flaky = Flaky(service, httpx.ConnectError("no"))
    with service.client(transport=flaky) as client, pytest.raises(ProblemError):
        client.sample(RUN)
    assert flaky.attempts == 2


def test_a_started_run_says_where_it_is(client, service):
    found = client.start(STUDY, holders=["clinic-a"])
    assert (found.run, found.state, found.study) == (RUN, "queued", STUDY)
    assert service.script.met[0][2] == b'{"holders":["clinic-a"]}'


@pytest.mark.parametrize(
    ("content", "media"), [(b"PAR1xxPAR1", "application/vnd.apache.parquet"), (b"a,b\n", "text/csv")]
)
def test_an_upload_streams_with_its_size_and_type(client, service, tmp_path, content, media):
    table = tmp_path / "table"
    table.write_bytes(content)
    told = []
    client.put_table(STUDY, table, progress=lambda done, total: told.append((done, total)))
    _, headers, body = service.script.met[0]
    assert (headers["content-type"], headers["content-length"], body) == (media, str(len(content)), content)
    assert told[-1] == (len(content), len(content))


def test_a_download_is_checked_and_named_at_its_end(client, tmp_path):
    target = tmp_path / "rows.csv"
    told = []
    found = client.download(RUN, target, progress=lambda done, total: told.append((done, total)))
    assert target.read_bytes() == ROWS
    assert (found.bytes, found.sha256, found.resumed_from) == (len(ROWS), sha256(ROWS).hexdigest(), 0)
    assert told[-1] == (len(ROWS), len(ROWS))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_download_goes_on_where_the_connection_was_lost(client, service, tmp_path):
    service.script.breaks = 2
    client.download(RUN, tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_bytes() == ROWS
    ranges = [headers.get("range") for _, headers, _ in service.script.met]
    assert ranges[0] is None
    assert len(ranges) == 3
    assert all(one and one.startswith("bytes=") for one in ranges[1:])


def test_a_download_goes_on_in_another_process(client, service, tmp_path):
    (tmp_path / "rows.csv.part").write_bytes(ROWS[:1000])
    (tmp_path / "rows.csv.part.etag").write_text(service.script.tag)
    assert client.download(RUN, tmp_path / "rows.csv").resumed_from == 1000
    assert (tmp_path / "rows.csv").read_bytes() == ROWS


@pytest.mark.parametrize("tag", ['"another"', None])
def test_a_part_of_another_file_is_not_continued(client, service, tmp_path, tag):
    (tmp_path / "rows.csv.part").write_bytes(b"something else")
    if tag is not None:
        (tmp_path / "rows.csv.part.etag").write_text(tag)
    client.download(RUN, tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_bytes() == ROWS


def test_a_part_that_is_too_long_is_thrown_away(client, service, tmp_path):
    (tmp_path / "rows.csv.part").write_bytes(ROWS + b"x")
    (tmp_path / "rows.csv.part.etag").write_text(service.script.tag)
    client.download(RUN, tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_bytes() == ROWS


def test_a_file_with_another_digest_is_not_kept(client, service, tmp_path):
    service.script.digest = bytes(32)
    with pytest.raises(AnswerRefused, match="digest"):
        client.download(RUN, tmp_path / "rows.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_corrupted_part_is_found_out(client, service, tmp_path):
    (tmp_path / "rows.csv.part").write_bytes(b"x" * 1000)
    (tmp_path / "rows.csv.part.etag").write_text(service.script.tag)
    with pytest.raises(AnswerRefused, match="digest"):
        client.download(RUN, tmp_path / "rows.csv")
    assert list(tmp_path.iterdir()) == []


def test_formats_are_those_of_the_table(client, tmp_path):
    with pytest.raises(DomainError, match="csv, parquet, arrow, ndjson"):
        client.download(RUN, tmp_path / "rows", format="xlsx")


def test_events_are_parsed_by_the_standards_rules():
    lines = [": hello", "retry: 5", "", "id: 7", "event: state", "data: a", "data:  b", "", "data", "", "data: open"]
    assert list(parse_events(lines)) == [Event("7", "state", "a\n b"), Event("7", "message", "")]


def test_events_go_on_after_a_lost_connection(client, service):
    service.script.breaks = 1
    assert [event.id for event in client.events(RUN)] == ["1", "2", "3"]
    assert [headers["last-event-id"] for _, headers, _ in service.script.met] == ["", "1"]


def test_events_that_were_told_are_not_told_again(client):
    assert list(client.events(RUN, after="3")) == []


@pytest.mark.parametrize("events", [True, False])
def test_a_run_is_watched_to_its_end_with_events_or_without(client, service, events):
    service.script.events = events
    seen = list(client.watch(RUN))
    assert isinstance(seen[-1], RunChanged)
    assert seen[-1].state == "released"
    assert len(seen) == (3 if events else 1)
    if events:
        assert isinstance(seen[1], RunProgress)
        assert (seen[1].clique, seen[1].rho_spent) == (["age", "smoker"], 0.5)


def test_a_ledger_is_read_line_by_line(client):
    assert [record.number for record in client.ledger()] == [0, 1]


def test_ids_cannot_leave_their_place_in_a_path(client):
    with pytest.raises(ProblemError) as caught:
        client.study("../releases")
    assert caught.value.status in {404, 422}


def test_health_needs_no_token(service):
    with service.client(token=None) as client:
        assert client.health().status == "alive"
        assert client.ready().status == "ready"
