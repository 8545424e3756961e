"""The holder's parts without a network: states, counting, sharing, tables, the dry run, the retry queue."""

from __future__ import annotations

import itertools
import secrets
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caps.basics.retry import Backoff
from caps.basics.schemes import REP3
from caps.data.domain import Attribute, Domain, Layout
from caps.data.schema import Limits
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.shares.prss import expand, expand_stream
from caps.shares.ring import RINGS, SHARED_RINGS
from caps.shares.sharing import Explicit, Seeded
from caps.study.manifest import Form
from caps.study.table import Rows
from caps.wire import commitment
from caps.wire.holder import Delivery, Goal, State
from caps.wire.media import CSV, PARQUET
from caps.wire.problems import Kind
from services.holder import counting, sharing
from services.holder.counting import count_marginals
from services.holder.retry_queue import RetryQueue, TryLater
from services.holder.settings import Options
from services.holder.sharing import Secrets
from services.holder.state import GONE, TRANSITIONS, Event, after, settled
from services.holder.table import Sent, read_table
from tests.kit.study import COLUMNS, example_manifest, holder_of

CANARY = "c4n4ry-7391"
ALIGNED = {"alignment": {"slots": 8, "column": "slot"}}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_state_answers_every_event(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert after(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(Problem) as refused:
            after(state, event)
        assert refused.value.kind in (Kind.CONFLICT, Kind.NOT_READY)


def test_nothing_is_contributed_twice_nor_without_approval() -> None:
    assert {state for state, event in TRANSITIONS if event is Event.CONTRIBUTE} == {State.LOADED, State.WITHDRAWN}
    assert (State.KNOWN, Event.LOAD) not in TRANSITIONS
    assert (State.CONTRIBUTED, Event.LOAD) not in TRANSITIONS


@pytest.mark.parametrize("deliveries", list(itertools.product(Delivery, repeat=3)))
def test_a_goal_is_reached_when_all_three_have_signed(deliveries: tuple[Delivery, ...]) -> None:
    three, none = list(deliveries), [False] * 3
    accepted, gone = set(three) == {Delivery.ACCEPTED}, set(three) <= GONE
    assert (settled(Goal.PUSHING, three, none) is Goal.COMPLETE) is accepted
    assert (settled(Goal.WITHDRAWING, three, none) is Goal.WITHDRAWN) is gone
    assert (settled(Goal.WITHDRAWING, three, [True] * 3) is Goal.COMPLETE) is accepted
    pushed_on = not accepted and GONE.isdisjoint(three)
    assert (settled(Goal.WITHDRAWING, three, [True] * 3) is Goal.PUSHING) is pushed_on
    assert settled(Goal.WITHDRAWING, [Delivery.ACCEPTED] * 3, [True, True, False]) is Goal.WITHDRAWING
    for goal in (Goal.COMPLETE, Goal.WITHDRAWN):
        assert settled(goal, three, none) is goal


@given(st.data())
def test_marginals_are_the_layouts(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    domain = Domain(tuple(Attribute(f"a{i}", size, nullable=True) for i, size in enumerate(sizes)))
    layout = Layout(domain, domain.downward_closure([domain.names]))
    rows = data.draw(st.lists(st.tuples(*(st.integers(-1, size - 1) for size in sizes)), max_size=30))
    codes = np.array(rows, np.int64).reshape(len(rows), len(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_ROWS", data.draw(st.integers(1, 40)))
        counts = count_marginals(layout, codes)
    assert counts.dtype == np.uint32
    assert np.array_equal(counts, layout.marginals(codes))


def test_codes_outside_the_domain_are_not_counted() -> None:
    layout = Layout(Domain((Attribute("a", 2),)), (("a",),))
    with pytest.raises(DomainError, match="outside its categories"):
        count_marginals(layout, np.array([[2]]))


@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_a_stream_is_the_expansion_in_pieces(seed: bytes, pieces: list[int]) -> None:
    ring, size = RINGS[16], 2 * sum(pieces)
    read = expand_stream(seed, b"label", size)
    assert b"".join(read(2 * piece) for piece in pieces) == expand(seed, b"label", (sum(pieces),), ring).tobytes()


@pytest.mark.parametrize("words", [3, 1000])
@pytest.mark.parametrize("bits", [16, 32])
def test_components_are_those_of_caps_sharing(tmp_path: Path, words: int, bits: int) -> None:
    ring = RINGS[bits]
    form, drawn = Form("marginals", ring.bits, (words,)), Secrets.draw(secrets.token_bytes, REP3)
    values = ring.encode(np.arange(words))
    pieces = np.array_split(values, 3)
    sharing.write_vector(tmp_path / "v", iter(pieces), form, drawn)
    vector = np.frombuffer((tmp_path / "v").read_bytes(), ring.dtype)
    parts = [Seeded(drawn.seeds[0], 0), Seeded(drawn.seeds[1], 1), Explicit(vector)]
    first, second, third = (part.words((words,), ring) for part in parts)
    assert np.array_equal(first + second + third, values)
    assert (tmp_path / "v").stat().st_mode & 0o777 == 0o600
    with pytest.raises(DomainError, match="size"):
        sharing.write_vector(tmp_path / "w", iter(pieces[:2]), form, drawn)


def test_secrets_are_fresh_quiet_and_survive_a_file() -> None:
    drawn = Secrets.draw(secrets.token_bytes, REP3)
    assert Secrets.from_bytes(drawn.to_bytes(), REP3) == drawn
    assert drawn.seeds[0].hex() not in repr(drawn)
    for entropy in (bytes, lambda n: secrets.token_bytes(n - 1)):
        with pytest.raises(DomainError, match="fresh"):
            Secrets.draw(entropy, REP3)


@pytest.mark.parametrize("slots", [None, [5, 0, 7]])
def test_one_hot_columns_stand_in_their_slots(monkeypatch: pytest.MonkeyPatch, slots: list[int] | None) -> None:
    domain = Domain((Attribute("a", 2), Attribute("b", 3, nullable=True)))
    codes = np.array([[0, 2], [1, -1], [1, 0]])
    rows = Rows(codes, None if slots is None else np.array(slots))
    monkeypatch.setattr(sharing, "_PIECE_BYTES", 20)
    pieces = list(sharing.one_hot_pieces(domain, rows, 8))
    assert len(pieces) == 4
    expected = np.zeros((8, 5), np.uint16)
    expected[[0, 1, 2] if slots is None else slots] = domain.one_hot(codes)
    assert np.array_equal(np.concatenate(pieces), expected)


def test_the_form_tells_nothing_of_the_table() -> None:
    manifest, _ = example_manifest()
    form = manifest.form_of(holder_of(manifest))
    assert (form.form, form.bits, form.shape) == ("marginals", 32, (manifest.layout.cells,))
    vertical, _ = example_manifest(holders=COLUMNS, slots=64)
    form = vertical.form_of(holder_of(vertical, 1))
    assert (form.form, form.bits, form.shape, form.bytes) == ("columns", 16, (64, 7), 2 * 64 * 7)


def test_many_slots_are_shared_in_three_bytes_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces end inside chunks and chunks inside words; what servers make of it are the columns, modulo 2^24."""
    manifest, _ = example_manifest(holders=COLUMNS, slots=70_000)
    form = manifest.form_of(holder_of(manifest, 1))
    assert (form.form, form.bits, form.shape, form.bytes) == ("columns", 24, (70_000, 7), 3 * 70_000 * 7)
    monkeypatch.setattr(sharing, "_PIECE_BYTES", 100_000)
    domain = manifest.columns_of(holder_of(manifest, 1)).domain()
    generator = np.random.default_rng(1)
    codes = generator.integers(0, domain.sizes, (66_000, 2))
    rows = Rows(codes, generator.permutation(70_000)[:66_000])
    drawn = Secrets.draw(secrets.token_bytes, REP3)
    path = tmp_path / "vector"
    committed = sharing.write_vector(path, sharing.one_hot_pieces(domain, rows, 70_000), form, drawn)
    content = path.read_bytes()
    assert committed == commitment(drawn.nonces[2], content)
    chunks = [content[start : start + 65_537] for start in range(0, len(content), 65_537)]
    components = [Seeded(drawn.seeds[i], i).words(form.shape, SHARED_RINGS[form.bits]) for i in range(2)]
    components.append(SHARED_RINGS[form.bits].read(form.shape, chunks))
    expected = np.zeros(form.shape, np.uint32)
    expected[rows.slots] = domain.one_hot(codes)
    assert np.array_equal(SHARED_RINGS[form.bits].reduce(sum(components[1:], start=components[0])), expected)


def test_a_holder_never_has_the_whole_vector_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, _ = example_manifest(holders=COLUMNS, slots=200_000)
    form = manifest.form_of(holder_of(manifest, 1))
    monkeypatch.setattr(sharing, "_PIECE_BYTES", 1 << 16)
    domain = manifest.columns_of(holder_of(manifest, 1)).domain()
    pieces = sharing.one_hot_pieces(domain, Rows(np.zeros((10, 2), np.int64), None), 200_000)
    tracemalloc.start()
    sharing.write_vector(tmp_path / "vector", pieces, form, Secrets.draw(secrets.token_bytes, REP3))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < form.bytes


def aligned(path: Path, text: str) -> tuple[Rows, Any]:
    manifest, _ = example_manifest(holders=COLUMNS, **ALIGNED)
    path.write_text(text)
    return read_table(path, Sent.of(CSV), manifest, holder_of(manifest), Limits())


def test_slot_numbers_are_read_and_may_stand_anywhere(tmp_path: Path) -> None:
    rows, report = aligned(tmp_path / "t", "smoker,slot,age\nno,7,30\nyes,0,79\n")
    assert rows.codes.tolist() == [[1, 0], [3, 1]]
    assert rows.slots is not None
    assert rows.slots.tolist() == [7, 0]
    assert report.alignment.refused == 0
    frame = pl.DataFrame({"smoker": [False, True], "slot": [7, 0], "age": [30, 79]})
    frame.write_parquet(tmp_path / "p")
    manifest, _ = example_manifest(holders=COLUMNS, **ALIGNED)
    again, _ = read_table(tmp_path / "p", Sent.of(PARQUET), manifest, holder_of(manifest), Limits())
    assert again.slots is not None
    assert again.slots.tolist() == [7, 0]


def test_slot_numbers_that_cannot_be_are_counted(tmp_path: Path) -> None:
    numbers = ["0", "0", "8", "-1", "", CANARY, "1.5", "3"]
    text = "age,smoker,slot\n" + "".join(f"30,no,{number}\n" for number in numbers)
    with pytest.raises(Problem) as refused:
        aligned(tmp_path / "t", text)
    report: Any = refused.value.members["report"]
    assert refused.value.kind is Kind.TABLE_REFUSED
    assert report["alignment"] == {
        "name": "slot",
        "missing": 1,
        "out_of_range": 2,
        "unparsable": 2,
        "duplicate": 1,
        "refused": 6,
    }
    assert CANARY not in str(refused.value.document(""))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,smoker\n30,no\n", "missing: slot"),
        (f"age,smoker,slot,{CANARY}\n30,no,1,2\n", "does not have"),
        ("age,smoker,slot\n", "no rows"),
        ("", "empty"),
        (f"age,smoker,slot\n{CANARY},no,1\n", "1 in column age"),
        ("PAR1,age\nPAR1", "not valid Parquet"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Problem, match=message) as refused:
        aligned(tmp_path / "t", text)
    assert CANARY not in str(refused.value)


def test_without_a_column_rows_stand_in_the_order_of_the_file(tmp_path: Path) -> None:
    manifest, _ = example_manifest(holders=COLUMNS, slots=2)
    path = tmp_path / "t"
    path.write_text("age,smoker\n30,no\n50,yes\n")
    rows, report = read_table(path, Sent.of(CSV), manifest, holder_of(manifest), Limits())
    assert rows.slots is None
    assert report.alignment is None
    path.write_text("age,smoker\n" + "30,no\n" * 3)
    with pytest.raises(Problem, match="more rows than the study's 2 slots"):
        read_table(path, Sent.of(CSV), manifest, holder_of(manifest), Limits())


def test_a_table_of_whole_rows_has_no_more_than_the_study_can_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a holder counts beyond 2^k - 1 would be cut off by the servers, so its owner is told before it leaves."""
    manifest, _ = example_manifest()
    path = tmp_path / "t"
    path.write_text("age,smoker,region,diagnosis\n" + "30,no,north,A\n" * 3)
    read_table(path, Sent.of(CSV), manifest, holder_of(manifest), Limits())
    monkeypatch.setitem(manifest.__dict__, "counted_bits", 1)
    with pytest.raises(Problem, match="more rows than the 1 that the study can count"):
        read_table(path, Sent.of(CSV), manifest, holder_of(manifest), Limits())


def test_rows_far_beyond_the_study_are_not_unfolded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, _ = example_manifest(holders=COLUMNS, slots=2)
    path = tmp_path / "t"
    pl.DataFrame({"age": [30], "smoker": ["no"]}).select(pl.all().repeat_by(1_000_001).explode()).write_parquet(path)
    monkeypatch.setattr(pl, "scan_parquet", None)
    with pytest.raises(Problem, match="more than 1000000 rows"):
        read_table(path, Sent.of(PARQUET), manifest, holder_of(manifest), Limits())


@pytest.mark.parametrize("name", ["max_upload", "max_expansion"])
def test_options(name: str) -> None:
    variable = f"CAPS_{name.upper()}"
    assert getattr(Options.from_environment({}), name) == {"max_upload": 16 << 30, "max_expansion": 1000}[name]
    assert getattr(Options.from_environment({variable: "5"}), name) == 5
    for text in ("", "-1", "0", "x"):
        with pytest.raises(DomainError, match=variable):
            Options.from_environment({variable: text})


def test_a_task_is_tried_again_until_it_is_done(caplog: pytest.LogCaptureFixture) -> None:
    retries, done = RetryQueue(Backoff(first=0.001, longest=0.001)), threading.Event()
    failures: list[Exception] = [TryLater(), ValueError(CANARY), TryLater()]

    def work() -> None:
        if failures:
            raise failures.pop()
        done.set()

    retries.start("one", work)
    assert done.wait(10)
    retries.wait(["one"], 10)
    retries.stop()
    assert CANARY not in caplog.text
    retries.start("two", lambda: pytest.fail("started after the end"))


def test_a_nudge_cuts_the_pause_and_is_never_lost() -> None:
    retries, rounds, second = RetryQueue(Backoff(first=1000.0, longest=1000.0)), [], threading.Event()

    def work() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise TryLater
        second.set()

    retries.start("one", work)
    while not rounds:
        pass
    retries.start("one", lambda: pytest.fail("a second task under one key"))
    assert second.wait(10)
    retries.stop()
