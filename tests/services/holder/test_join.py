"""A holder whose rows are joined by a key: from a file to hashed identifiers and shares; reports have counts only."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from caps.basics.schemes import REP3
from caps.data.domain import MISSING
from caps.data.joinkey import ID_BYTES, hashed_ids, random_ids
from caps.data.linkage import ID_BYTES, ORDERED, RowFormat
from caps.data.schema import Limits
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.shares.ring import RINGS
from caps.shares.sharing import Algebra, Explicit, Seeded, reconstruct
from caps.study import Manifest
from caps.study.manifest import Form
from caps.study.table import Rows
from caps.wire.holder import TableReport
from caps.wire.media import CSV, PARQUET
from caps.wire.problems import Kind
from services.holder import sharing
from services.holder.ledger import study_loss
from services.holder.preview import preview
from services.holder.sharing import Secrets
from services.holder.table import Sent, read_table
from tests.kit.holder import HolderBench
from tests.kit.study import COLUMNS, example_json, make_keys
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

CANARY = "c4n4ry-7391"
KEY: dict[str, Any] = {
    "columns": [
        {"name": "number", "kind": "text", "remove": "-", "whitespace": "remove", "missing_values": ["n/a"]},
        {"name": "born", "kind": "date", "formats": ["%Y-%m-%d", "%d.%m.%Y"]},
    ]
}
KEYS = make_keys(["S1", "S2", "S3", "coordinator", *(name for name, _ in COLUMNS)])
HEADER = "smoker,number,age,born\n"


def records(*args: Any) -> Any:
    return np.concatenate(list(sharing.record_pieces(*args)))


def choices_of(key: dict[str, Any] | None = None, *, capacity: int = 8) -> dict[str, Any]:
    """Members of a manifest in which the registry and the lab are joined."""
    document, _ = example_json(holders=COLUMNS, keys=KEYS)
    holders = [holder | {"capacity": capacity} for holder in document["holders"]]
    return {"holders": holders, "alignment": None, "join": {"key": KEY | (key or {})}}


def study(key: dict[str, Any] | None = None, **choices: int) -> Manifest:
    document, _ = example_json(holders=COLUMNS, keys=KEYS)
    return Manifest.from_json(document | choices_of(key, **choices))


def loaded(path: Path, text: str, manifest: Manifest | None = None) -> tuple[Rows, TableReport]:
    """The registry's table, as CSV."""
    manifest = manifest or study()
    path.write_text(text)
    return read_table(path, Sent.of(CSV), manifest, manifest.holders[0], Limits())


def ids_of(manifest: Manifest, *keys: tuple[str, str]) -> list[bytes]:
    """Hashed identifiers of normalised keys."""
    assert manifest.join is not None
    encoded = [f"caps/v1/key:{len(a)}:{a},{len(b)}:{b},".encode() for a, b in keys]
    return [one.tobytes() for one in hashed_ids(manifest.study_id, manifest.join.key.digest, encoded)]


def as_bytes(rows: Rows) -> list[bytes]:
    assert rows.ids is not None
    return [one.tobytes() for one in rows.ids]


SPELLINGS = ["P-123 4,1990-01-02", '" p1234",2.1.1990', "ｐ12-34 ,02.01.1990", "p 1 2 3 4,1990-1-2"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_person_has_one_identifier_however_it_is_spelt(tmp_path: Path, spelling: str) -> None:
    number, _, born = spelling.rpartition(",")
    manifest = study()
    rows, report = loaded(tmp_path / "t", f"{HEADER}no,{number},30,{born}\nyes,007,79,1950-12-31\n", manifest)
    assert rows.codes.tolist() == [[1, 0], [3, 1]]
    assert rows.slots is None
    assert as_bytes(rows) == ids_of(manifest, ("p1234", "1990-01-02"), ("007", "1950-12-31"))
    assert report.rows == 2
    assert report.join is not None
    assert (report.join.kept, report.join.alone, report.join.refused) == (2, 0, 0)


@pytest.mark.parametrize(
    ("number", "born"),
    [
        (["P-1234", "007"], [date(1990, 1, 2), date(1950, 12, 31)]),
        (["p1234", "0 0 7"], ["1990-01-02", "31.12.1950"]),
        (
            pl.Series(["P 1234", "007"], dtype=pl.Categorical),
            pl.Series([date(1990, 1, 2), date(1950, 12, 31)]).cast(pl.Datetime("ms")),
        ),
        (["P-1234", "007"], pl.Series([date(1990, 1, 2), date(1950, 12, 31)]).cast(pl.Datetime("us"))),
    ],
    ids=["days", "text", "categories and milliseconds", "microseconds"],
)
def test_parquet_has_the_same_identifiers(tmp_path: Path, number: Any, born: Any) -> None:
    manifest = study()
    frame = pl.DataFrame({"born": born, "age": [30, 79], "number": number, "smoker": [False, True]})
    frame.write_parquet(tmp_path / "p")
    rows, _ = read_table(tmp_path / "p", Sent.of(PARQUET), manifest, manifest.holders[0], Limits())
    assert rows.codes.tolist() == [[1, 0], [3, 1]]
    assert as_bytes(rows) == ids_of(manifest, ("p1234", "1990-01-02"), ("007", "1950-12-31"))


def test_numbers_of_parquet_are_text_and_times_of_day_are_no_days(tmp_path: Path) -> None:
    noon = datetime.datetime(1990, 1, 2, 12)
    frame = pl.DataFrame({"number": [1234, None], "born": [noon, noon], "age": [30, 79], "smoker": [False, True]})
    frame.write_parquet(tmp_path / "p")
    manifest = study({"unparsable": "drop", "missing": "drop"})
    with pytest.raises(Problem, match="no rows"):
        read_table(tmp_path / "p", Sent.of(PARQUET), manifest, manifest.holders[0], Limits())
    frame.with_columns(born=pl.col("born").dt.date()).write_parquet(tmp_path / "p")
    rows, report = read_table(tmp_path / "p", Sent.of(PARQUET), manifest, manifest.holders[0], Limits())
    assert as_bytes(rows) == ids_of(manifest, ("1234", "1990-01-02"))
    assert report.join is not None
    assert report.join.missing == 1


@pytest.mark.parametrize(
    "change",
    [{"born": [True, False]}, {"number": [date(2000, 1, 1)] * 2}, {"age": [date(2000, 1, 1)] * 2}],
    ids=["no day", "a day for text", "a day in the schema"],
)
def test_columns_of_other_types_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    frame = pl.DataFrame(
        {"number": ["1", "2"], "born": ["2000-01-01"] * 2, "age": [30, 79], "smoker": [False, True]} | change
    )
    frame.write_parquet(tmp_path / "p")
    manifest = study()
    with pytest.raises(Problem, match=f"column {next(iter(change))}"):
        read_table(tmp_path / "p", Sent.of(PARQUET), manifest, manifest.holders[0], Limits())


def test_a_table_that_repeats_persons_is_refused_with_counts(tmp_path: Path) -> None:
    lines = [f"no,{CANARY},30,1990-01-02\n", "no,A,30,1990-01-02\n", f"yes,{CANARY.upper()},50,2.1.1990\n"]
    with pytest.raises(Problem) as refused:
        loaded(tmp_path / "t", HEADER + "".join(lines))
    assert refused.value.kind is Kind.TABLE_REFUSED
    report: Any = refused.value.members["report"]
    assert report["join"] == {
        "rows": 3,
        "unparsable": 0,
        "missing": 0,
        "duplicates": 1,
        "refused": 1,
        "kept": 2,
        "alone": 0,
        "columns": [
            {"name": "number", "missing": 0, "unparsable": 0},
            {"name": "born", "missing": 0, "unparsable": 0},
        ],
    }
    told = str(refused.value.document("")) + str(refused.value)
    assert "1 repeat the key of another" in told
    assert CANARY not in told
    assert CANARY.upper() not in told


@pytest.mark.parametrize(("rule", "ages"), [("first", [1, 3]), ("last", [3, 2])])
def test_of_rows_that_repeat_a_person_one_stays_by_the_rule(tmp_path: Path, rule: str, ages: list[int]) -> None:
    manifest = study({"duplicates": rule})
    text = f"{HEADER}no,A,30,1990-01-02\nyes,B,79,1990-01-02\nno,a,50,2.1.1990\n"
    rows, report = loaded(tmp_path / "t", text, manifest)
    assert rows.codes[:, 0].tolist() == ages
    first, second = ids_of(manifest, ("a", "1990-01-02"), ("b", "1990-01-02"))
    assert as_bytes(rows) == ([first, second] if rule == "first" else [second, first])
    assert report.join is not None
    assert (report.join.duplicates, report.join.kept) == (1, 2)


MISHAPS = {"missing": ["no,,30,1990-01-02", "no,n/a,30,1990-01-02", "no,C,30, "], "unparsable": ["no,D,30,31.2.1990"]}


@pytest.mark.parametrize("what", ["missing", "unparsable"])
def test_rows_without_a_good_key(tmp_path: Path, what: str) -> None:
    """Refused by default, with counts; dropped; or kept as persons whom nobody else has."""
    bad = MISHAPS[what]
    text = HEADER + "".join(f"{line}\n" for line in (*bad, "yes,A,79,1990-01-02"))
    with pytest.raises(Problem) as refused:
        loaded(tmp_path / "t", text)
    report: Any = refused.value.members["report"]
    assert (report["join"][what], report["join"]["refused"]) == (len(bad), len(bad))
    dropping = study({what: "drop"})
    rows, _ = loaded(tmp_path / "t", text, dropping)
    assert as_bytes(rows) == ids_of(dropping, ("a", "1990-01-02"))
    assert rows.codes.tolist() == [[3, 1]]
    alone = study({what: "alone"})
    rows, found = loaded(tmp_path / "t", text, alone)
    again, _ = loaded(tmp_path / "t", text, alone)
    assert rows.codes.tolist() == [[1, 0]] * len(bad) + [[3, 1]]
    ids, others = as_bytes(rows), as_bytes(again)
    assert len(set(ids)) == len(bad) + 1
    assert set(ids) & set(others) == {*ids_of(alone, ("a", "1990-01-02"))}
    assert found.join is not None
    assert found.join.alone == len(bad)


def test_rows_beyond_the_capacity(tmp_path: Path) -> None:
    """What the key drops needs no room."""
    lines = [f"no,N{i},30,1990-01-02\n" for i in range(6)]
    manifest = study({"missing": "drop"}, capacity=6)
    rows, _ = loaded(tmp_path / "t", HEADER + "".join(lines) + "no,,30,1990-01-02\n", manifest)
    assert len(rows.codes) == 6
    with pytest.raises(Problem, match="more rows than the 6 that the study has room for") as refused:
        loaded(tmp_path / "t", HEADER + "".join(lines) + "no,M,30,1990-01-02\n", manifest)
    report: Any = refused.value.members["report"]
    assert report["join"]["kept"] == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smoker,age,born\nno,30,1990-01-02\n", "missing: number"),
        ("smoker,number,age\nno,1,30\n", "missing: born"),
        (f"{HEADER[:-1]},{CANARY}\nno,1,30,1990-01-02,5\n", "1 column that the schema does not have"),
        (HEADER, "no rows"),
        (f"{HEADER}{CANARY},1,30,1990-01-02\n", "1 in column smoker"),
        (f"{HEADER}no,1,30,{CANARY}\n", "of 1 rows, 1 have a value that cannot be read"),
        (f"{HEADER}no,1,30,1990-01-02,{CANARY}\n", "4 fields"),
        ("number,number,age,smoker,born\n1,1,30,no,1990-01-02\n", "more than one column number"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Problem, match=message) as refused:
        loaded(tmp_path / "t", text)
    told = str(refused.value)
    if isinstance(refused.value, Problem):
        told += str(refused.value.document(""))
    assert CANARY not in told


def test_a_column_of_the_schema_may_be_part_of_the_key(tmp_path: Path) -> None:
    """The key reads it as it stands in the file, the schema by its bins."""
    columns = [KEY["columns"][0], {"name": "age", "kind": "integer"}]
    manifest = study({"columns": columns})
    rows, _ = loaded(tmp_path / "t", "age,smoker,number\n30,no,A\n031,yes,A\n", manifest)
    assert rows.codes.tolist() == [[1, 0], [1, 1]]
    assert as_bytes(rows) == ids_of(manifest, ("a", "30"), ("a", "31"))


def test_identifiers_belong_to_the_study_and_the_key(tmp_path: Path) -> None:
    text = f"{HEADER}no,A,30,1990-01-02\n"
    studies = [study(), study(capacity=9), study({"missing": "drop"})]
    assert len({as_bytes(loaded(tmp_path / "t", text, one)[0])[0] for one in studies}) == 3


def components(folder: Path, form: Form) -> list[tuple[Any, Any]]:
    """What the three servers would hold of a parcel."""
    drawn = Secrets.from_bytes((folder / "secrets.json").read_bytes(), REP3)
    vector = np.frombuffer((folder / "component-2").read_bytes(), RINGS[form.bits].dtype).reshape(form.shape)
    parts = [Seeded(drawn.seeds[0], 0), Seeded(drawn.seeds[1], 1), Explicit(vector)]
    words = [part.words(form.shape, RINGS[form.bits]) for part in parts]
    return [(words[i], words[(i + 1) % 3]) for i in range(3)]


def test_shares_are_of_rows_and_padding(tmp_path: Path) -> None:
    manifest = study(capacity=20)
    holder = manifest.holders[0]
    text = f"{HEADER}no,A,30,1990-01-02\nyes,B,79,1990-01-02\n"
    rows, _ = loaded(tmp_path / "t", text, manifest)
    form, drawn = manifest.form_of(holder), Secrets.draw(secrets.token_bytes, REP3)
    assert (form.form, RINGS[form.bits], form.shape, form.bytes) == ("records", RINGS[8], (20, 17), 340)
    folder = tmp_path / "parcel"
    folder.mkdir()
    packed = records(manifest, holder, rows)
    sharing.write_vector(folder / "component-2", iter([packed]), form, drawn)
    (folder / "secrets.json").write_bytes(drawn.to_bytes())
    held = components(folder, form)
    table = reconstruct(held, algebra=Algebra.XOR)
    assert np.array_equal(table, packed)
    ids = ids_of(manifest, ("a", "1990-01-02"), ("b", "1990-01-02"))
    own = np.array([row[:ID_BYTES].tobytes() in ids for row in table])
    domain = manifest.columns_of(holder).domain()
    assert np.array_equal(table[own], RowFormat(domain).pack(rows.ids, rows.codes))  # type: ignore[arg-type]
    assert not table[~own, ID_BYTES:].any()  # padding has no values
    assert np.array_equal(np.lexsort(table[:, ORDERED].T), np.arange(20))  # one cannot tell which rows are padding
    assert len({row.tobytes() for row in table[:, :ID_BYTES]}) == 20
    for pair in held:  # no server has a row in the clear
        for part in pair:
            assert not any((part == row).all(axis=1).any() for row in table)


def test_padding_is_fresh_each_time(tmp_path: Path) -> None:
    manifest = study(capacity=400)
    rows, _ = loaded(tmp_path / "t", f"{HEADER}no,A,30,1990-01-02\n", manifest)
    tables = [records(manifest, manifest.holders[0], rows)[:, :ID_BYTES] for _ in range(2)]
    one, other = ({row.tobytes() for row in table} for table in tables)
    assert len(one) == len(other) == 400
    assert one & other == {*as_bytes(rows)}


def test_a_full_table_needs_no_padding() -> None:
    manifest = study(capacity=3)
    rows = Rows(np.array([[0, 0], [1, MISSING], [3, 1]]), ids=random_ids(3))
    assert records(manifest, manifest.holders[0], rows).shape == (3, 17)


@pytest.fixture
def joining(tmp_path: Path) -> Iterator[HolderBench]:
    """A holder, a coordinator and stand-ins for servers, over TLS, for a study that joins."""

    class Joining(HolderBench):
        def __init__(self) -> None:
            super().__init__(tmp_path / "world", "registry", holders=COLUMNS, keys=KEYS)
            self.document |= choices_of({"duplicates": "refuse"}, capacity=16)
            self.manifest = Manifest.from_json(self.document)
            self.answer = self.manifest.canonical_bytes()

    found = Joining()
    with found.others():
        yield found


def test_from_an_upload_to_the_servers(joining: HolderBench) -> None:
    world = joining
    with world.client() as client:
        place = f"/v1/studies/{world.study}"
        with world.person(Scope.OPERATOR) as operator:
            invited = operator.post(
                "/v1/studies", json={"coordinator": world.urls["coordinator"], "study": world.study}
            )
            assert invited.status_code == 201, invited.text
        assert client.post(f"{place}/approval").json()["state"] == "approved"
        twice = f"{HEADER}no,{CANARY},30,1990-01-02\nno,{CANARY},30,2.1.1990\n"
        refused = client.put(f"{place}/table", content=twice, headers={"content-type": CSV})
        assert refused.status_code == 422, refused.text
        assert refused.json()["report"]["join"]["duplicates"] == 1
        assert CANARY not in refused.text
        assert "table" not in world.files()
        frame = pl.DataFrame(
            {"number": [CANARY, "B"], "born": [date(1990, 1, 2)] * 2, "age": [30, 79], "smoker": [False, True]}
        )
        out = BytesIO()
        frame.write_parquet(out)
        accepted = client.put(f"{place}/table", content=out.getvalue(), headers={"content-type": PARQUET})
        assert accepted.is_success, accepted.text
        assert CANARY not in accepted.text
        told = client.get(f"{place}/preview").json()
        assert (told["form"], told["bits"], told["shape"]) == ("records", 8, [16, 17])
        assert told["views"] == list(world.manifest.views)
        assert [one["vector_bytes"] for one in told["servers"]] == [0, 16 * 17, 16 * 17]
        assert client.put(f"{place}/contribution").is_success
        until(lambda: client.get(f"{place}/contribution").json()["state"] == "complete")
        (contribution,) = world.servers[0].receipts
        held = [server.components(contribution) for server in world.servers]
        table = reconstruct(held, algebra=Algebra.XOR)
        ids = [row[:ID_BYTES].tobytes() for row in table]
        normal = CANARY.replace("-", "")
        assert set(ids_of(world.manifest, (normal, "1990-01-02"), ("b", "1990-01-02"))) < set(ids)
        assert len(set(ids)) == 16
        until(lambda: "shares" not in world.files())
        assert client.delete(f"{place}/table").is_success
        assert world.files() == []
        for path in world.data.rglob("*"):
            if path.is_file():
                kept = path.read_bytes()
                assert CANARY.encode() not in kept
                assert ids[0] not in kept


def test_the_preview_says_what_would_leave_and_who_sees_what(joining: HolderBench) -> None:
    manifest = joining.manifest
    loss = study_loss([], manifest, None, loaded=False)
    found = preview(joining.site("holder", "holder"), manifest, manifest.holders[0], loss, loaded=False)
    assert (found.form, found.bits, found.shape) == ("records", 8, [16, 17])
    assert found.views == list(manifest.views)
    assert [part.attributes for part in found.parts] == [["age"], ["smoker"]]
    assert found.total_bytes == sum(one.offer_bytes for one in found.servers) + 2 * 16 * 17
