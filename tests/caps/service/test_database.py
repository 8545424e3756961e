"""SQLite as the services use it: durable, and transactions one after another."""

import threading

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

import caps.service.database as module
from caps.service.database import is_busy, open_database, sqlite_url
from tests.kit.service import CANARY

metadata = MetaData()
counters = Table("counters", metadata, Column("name", String, primary_key=True), Column("value", Integer))


@pytest.fixture
def database(tmp_path):
    engine = open_database(sqlite_url(tmp_path / "state.db"), metadata)
    with engine.begin() as connection:
        connection.execute(counters.insert().values(name="n", value=0))
    yield engine
    engine.dispose()


def test_it_is_durable(database):
    with database.connect() as connection:
        settings = {name: connection.scalar(text(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous")}
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
    assert settings == {"journal_mode": "wal", "synchronous": 2}


def test_a_transaction_takes_the_write_lock_at_its_beginning(database):
    """What was read stays true until the commit: otherwise two threads would both read n and both write n + 1."""

    def count():
        for _ in range(50):
            with database.begin() as connection:
                value = connection.scalar(select(counters.c.value))
                connection.execute(update(counters).values(value=value + 1))

    failures = []

    def guarded():
        try:
            count()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with database.connect() as connection:
        assert connection.scalar(select(counters.c.value)) == 300


def test_the_second_waits_for_the_first(database):
    order, started = [], threading.Event()

    def second():
        started.set()
        with database.begin() as connection:
            order.append(("second reads", connection.scalar(select(counters.c.value))))

    with database.begin() as connection:
        connection.scalar(select(counters.c.value))
        thread = threading.Thread(target=second)
        thread.start()
        started.wait()
        thread.join(0.3)
        assert thread.is_alive()
        connection.execute(update(counters).values(value=7))
        order.append(("first writes", 7))
    thread.join()
    assert order == [("first writes", 7), ("second reads", 7)]


def test_a_failed_transaction_leaves_nothing(database):
    def fail(connection):
        connection.execute(update(counters).values(value=9))
        raise RuntimeError

    with pytest.raises(RuntimeError), database.begin() as connection:
        fail(connection)
    with database.connect() as connection:
        assert connection.scalar(select(counters.c.value)) == 0


def test_errors_do_not_quote_what_was_to_be_written(database):
    with pytest.raises(IntegrityError) as caught, database.begin() as connection:
        connection.execute(counters.insert(), [{"name": CANARY, "value": 1}, {"name": CANARY, "value": 2}])
    assert CANARY not in str(caught.value)


def test_begin_is_immediate(database):
    statements = []
    event.listen(database, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with database.begin() as connection:
        connection.execute(select(counters))
    assert statements[0] == "BEGIN IMMEDIATE"


def test_who_does_not_get_a_turn_or_a_connection_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0)
    engine = open_database(sqlite_url(tmp_path / "busy.db"), metadata)
    try:
        with engine.begin(), pytest.raises(OperationalError) as refused, engine.begin():
            pass
        assert is_busy(refused.value)
        with pytest.raises(OperationalError) as other, engine.connect() as connection:
            connection.execute(text("SELECT nothing FROM nowhere"))
        assert not is_busy(other.value)
    finally:
        engine.dispose()
    small = create_engine(sqlite_url(tmp_path / "busy.db"), pool_size=1, max_overflow=0, pool_timeout=0.01)
    try:
        with small.connect(), pytest.raises(NoConnection) as exhausted, small.connect():
            pass
        assert is_busy(exhausted.value)
    finally:
        small.dispose()
    assert not is_busy(ValueError("database is locked"))
