"""The benchmarks' tables: where they are looked for, and downloads that are checked before they are there."""

import csv
import hashlib
import json
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread

import httpx
import pytest

from bench import datasets, fetch
from caps.data.schema import Schema

SHARED = datasets.SHARED
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared tables are not here")


@pytest.fixture
def places(tmp_path, monkeypatch):
    """No CAPS_DATA and no tables anywhere; the folders that would have them."""
    monkeypatch.delenv("CAPS_DATA", raising=False)
    monkeypatch.setattr(datasets, "SHARED", tmp_path / "shared")
    monkeypatch.setattr(datasets, "FETCHED", tmp_path / "fetched")
    return tmp_path


def serving(published):
    """Public homes that hold these texts, and nothing else."""
    return httpx.MockTransport(
        lambda asked: httpx.Response(200, text=published[str(asked.url)]) if str(asked.url) in published else _missing()
    )


def _missing():
    return httpx.Response(404)


def known(monkeypatch, name, content):
    """Make this content the one that is expected of a table."""
    table = replace(fetch.TABLES[name], sha256=hashlib.sha256(content.encode()).hexdigest())
    monkeypatch.setitem(fetch.TABLES, name, table)


def published(name, *texts):
    return dict(zip(fetch.TABLES[name].urls, texts, strict=True))


def head(name):
    return fetch.TABLES[name].columns + "\n"


SMALL = {
    "breast-cancer": (
        [
            "'40-49','premeno','15-19','0-2','yes','3','right','left_up','no','recurrence-events'\n"
            "'50-59','ge40','30-34','9-11',nan,'3','left',nan,'yes','no-recurrence-events'"
        ],
        "recurrence-events,40-49,premeno,15-19,0-2,yes,3,right,left_up,no\n"
        "no-recurrence-events,50-59,ge40,30-34,9-11,?,3,left,?,yes\n",
    ),
    "diabetes": (
        ["6,148,72,35,0,33.6,0.627,50,1\n8,125,96,0,0,0.0,0.230,54,1\n2,106,64,35,119,30.5,1.400,34,0\n"],
        "6,148,72,35,0,33.6,0.627,50,1\n8,125,96,0,0,0.0,0.23,54,1\n2,106,64,35,119,30.5,1.4,34,0\n",
    ),
    "adult": (
        [
            "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Husband, White, Male, 2174, 0, 40, Cuba, <=50K\n\n",
            "|1x3 Cross validator\n"
            "25, Private, 226802, 11th, 7, Divorced, Sales, Wife, Black, Male, 0, 0, 40, United-States, >50K.\n\n",
        ],
        "39,State-gov,77516,Bachelors,13,Never-married,?,Husband,White,Male,2174,0,40,Cuba,<=50K\n"
        "25,Private,226802,11th,7,Divorced,Sales,Wife,Black,Male,0,0,40,United-States,>50K\n",
    ),
    "compas-caps": (
        [
            "id,sex,age,race,juv_fel_count,juv_misd_count,juv_other_count,priors_count,c_charge_degree,"
            "c_charge_desc,priors_count,two_year_recid\n"
            '1,Male,69,Other,0,0,0,0,F,"Assault, aggravated",9,0\n'
            "3,Male,34,Caucasian,1,2,3,4,M,Theft,9,1\n"
            "4,Female,24,Caucasian,0,0,1,5,F,Theft,9,0\n",
            ",jfel,two_year_recid\n2,0.0,0\n",
            ",jfel,two_year_recid\n1,1.0,1\n",
        ],
        "0,0,1,5,Female,24,F,Caucasian,0\n1,2,3,4,Male,34,M,Caucasian,1\n",
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_is_published_becomes_our_form(name, tmp_path, monkeypatch):
    texts, rows = SMALL[name]
    known(monkeypatch, name, head(name) + rows)
    fetch.fetch(name, tmp_path, transport=serving(published(name, *texts)))
    assert (tmp_path / f"{name}.csv").read_text() == head(name) + rows


@pytest.mark.parametrize("name", SMALL)
def test_another_table_is_refused_and_nothing_is_left_behind(name, tmp_path):
    texts, _ = SMALL[name]  # a few rows, not the table whose checksum is known
    with pytest.raises(SystemExit) as refused:
        fetch.fetch(name, tmp_path / "new", transport=serving(published(name, *texts)))
    message = str(refused.value)
    assert f"{name}.csv" in message
    assert fetch.TABLES[name].urls[0] in message
    assert fetch.TABLES[name].sha256 in message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", SMALL)
def test_a_page_that_is_no_table_is_refused(name, tmp_path):
    sorry = ["<html>\n<p>gone, gone\n"] * len(fetch.TABLES[name].urls)
    with pytest.raises(SystemExit, match=r"is not the table we know"):
        fetch.fetch(name, tmp_path, transport=serving(published(name, *sorry)))
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_is_gone_says_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match=r"diabetes.csv cannot be downloaded from https://.*404.*CAPS_DATA"):
        fetch.fetch("diabetes", tmp_path, transport=serving({}))
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_a_home_says_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match=r"census.csv is not available for download; .* CAPS_DATA"):
        fetch.fetch("census", tmp_path, transport=serving({}))


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    texts, rows = SMALL["diabetes"]
    known(monkeypatch, "diabetes", head("diabetes") + rows)
    monkeypatch.setattr(Path, "replace", _disk_full)
    with pytest.raises(OSError, match="full"):
        fetch.fetch("diabetes", tmp_path, transport=serving(published("diabetes", *texts)))
    assert list(tmp_path.iterdir()) == []


def _disk_full(*_):
    raise OSError("the disk is full")


def test_a_table_is_downloaded_once_over_http(places, monkeypatch):
    texts, rows = SMALL["diabetes"]
    known(monkeypatch, "diabetes", head("diabetes") + rows)
    with a_server(texts[0]) as (url, asked):
        monkeypatch.setitem(fetch.TABLES, "diabetes", replace(fetch.TABLES["diabetes"], urls=(url,)))
        for _ in range(2):
            schema, table = datasets.files("diabetes.caps")
    assert asked == ["/table"]
    assert table == places / "fetched" / "diabetes.csv"
    assert schema.read_bytes() == (fetch.SCHEMAS / "diabetes.caps.schema.json").read_bytes()
    assert len(datasets.load("diabetes.caps").codes) == 3


@contextmanager
def a_server(text):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/table", asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_given_folder_comes_before_the_shared_one_before_downloads(places, monkeypatch):
    assert datasets.folder() == places / "fetched"
    (places / "shared").mkdir()
    assert datasets.folder() == places / "shared"
    monkeypatch.setenv("CAPS_DATA", str(places / "given"))
    assert datasets.folder() == places / "given"


@pytest.mark.parametrize("where", ["given", "shared"])
def test_what_a_folder_lacks_is_named_and_not_downloaded(where, places, monkeypatch):
    (places / where).mkdir()
    if where == "given":
        monkeypatch.setenv("CAPS_DATA", str(places / where))
    monkeypatch.setattr(datasets, "fetch", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(SystemExit, match=rf"no adult.schema.json in .*{where}: set CAPS_DATA"):
        datasets.load("adult")


def test_every_dataset_has_a_home_and_a_schema():
    for name in datasets.NAMES:
        assert name.removesuffix(".caps") in fetch.TABLES
        Schema.from_json((fetch.SCHEMAS / f"{name}.schema.json").read_text())


@needs_shared
def test_our_schemas_and_checksums_are_the_shared_ones():
    for path in fetch.SCHEMAS.iterdir():
        assert json.loads(path.read_text()) == json.loads((SHARED / path.name).read_text())
    lines = (SHARED / "SHA256SUMS").read_text().splitlines()
    sums = {file: checksum for checksum, file in (line.split() for line in lines)}
    for name, table in fetch.TABLES.items():
        assert sums[f"{name}.csv"] == table.sha256


@needs_shared
@pytest.mark.parametrize("name", SMALL)
def test_whole_tables_in_their_published_form_pass_the_check(name, tmp_path):
    texts = AS_PUBLISHED[name](list(csv.reader(StringIO((SHARED / f"{name}.csv").read_text())))[1:])
    fetch.fetch(name, tmp_path, transport=serving(published(name, *texts)))
    assert (tmp_path / f"{name}.csv").read_bytes() == (SHARED / f"{name}.csv").read_bytes()


def _as_breast_cancer(rows):
    quoted = [["nan" if value == "?" else f"'{value}'" for value in [*row[1:], row[0]]] for row in rows]
    return ["\n".join(",".join(row) for row in quoted)]


def _as_diabetes(rows):
    return ["".join(",".join([*row[:6], f"{float(row[6]):.3f}", *row[7:]]) + "\n" for row in rows)]


def _as_adult(rows):
    train, test = rows[:32_561], rows[32_561:]
    remark = "|1x3 Cross validator\n"
    return [
        "".join(", ".join(row) + "\n" for row in train) + "\n",
        remark + "".join(", ".join(row) + ".\n" for row in test) + "\n",
    ]


def _as_compas(rows):
    """Persons in ProPublica's order, and numbers in the authors'."""
    people = sorted(range(len(rows)), key=lambda i: (rows[i], i))
    scores = StringIO()
    writer = csv.writer(scores, lineterminator="\n")
    writer.writerow(["id", "c_charge_desc", *fetch.TABLES["compas-caps"].columns.split(","), "priors_count"])
    writer.writerows([place, "Assault, aggravated", *rows[i], ""] for place, i in enumerate(people))
    numbers = {i: place for place, i in enumerate(people)}
    lines = [f"{numbers[i]},0.0\n" for i in range(len(rows))]
    return [scores.getvalue(), "".join([",jfel\n", *lines[:4120]]), "".join([",jfel\n", *lines[4120:]])]


AS_PUBLISHED = {
    "breast-cancer": _as_breast_cancer,
    "diabetes": _as_diabetes,
    "adult": _as_adult,
    "compas-caps": _as_compas,
}


@needs_shared
@pytest.mark.parametrize(
    ("name", "column", "positive", "share"),
    [
        ("tx10s", "PINCP_DECILE", {"6", "7", "8", "9"}, 0.35),
        ("digits", "digit", {"5", "6", "7", "8", "9"}, 0.5),
        ("wdbc", "benign", {"1"}, 0.63),
        ("compas-caps", "two_year_recid", {"1"}, 0.45),
    ],
)
def test_a_label_is_a_public_recoding_of_a_column(name, column, positive, share):
    found = datasets.load(name)
    assert found.label.column == column
    schema = json.loads(datasets.files(name)[0].read_text())
    (categories,) = [one["categories"] for one in schema["columns"] if one["name"] == column]
    assert {categories[code] for code in found.label.positive} == positive
    codes = found.codes[:, found.domain.position(column)]
    assert abs(sum(code in found.label.positive for code in codes) / len(codes) - share) < 0.05


@needs_shared
def test_every_table_of_the_folder_is_there_in_each_of_its_codings(monkeypatch):
    monkeypatch.delenv("CAPS_DATA", raising=False)
    assert {"adult", "tx10", "tx10s", "wdbc", "digits", "diabetes", "diabetes.caps"} <= set(datasets.present())


def test_what_can_be_downloaded_is_there_where_no_folder_is(places):
    assert datasets.present() == datasets.NAMES


def test_a_schema_without_its_table_is_not_there(places, monkeypatch):
    monkeypatch.setenv("CAPS_DATA", str(places))
    (places / "one.schema.json").write_text("{}")
    assert datasets.present() == ()
    (places / "one.csv").write_text("a\n")
    assert datasets.present() == ("one",)
