"""Which sizes the benchmark of joins measures, without measuring any."""

import pytest

from bench import join, join_tasks, oprf_join


@pytest.fixture
def measured(monkeypatch):
    """Rows at each holder, by protocol."""
    found = {"default": [], "light": []}

    class Nowhere:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def start(self):
            pass

        def wait_ready(self):
            pass

    def task(_, parameters, **__):
        (rows,) = parameters["rows"]
        found["default"].append(rows)
        one = {"walls": [1.0], "cpus": [1.0], "sent": 1, "rounds": 1, "peak_memory": 1, "phases": {"shuffle": 1.0}}
        return [{str(rows): one}] * 3

    def once(_, rows, __):
        found["light"].append(rows)
        return {"matching": 1.0, "seconds": 2.0, "sent_per_row": 3.0, "received_per_row": 4.0}

    monkeypatch.setattr(join, "run_task", task)
    monkeypatch.setattr(oprf_join, "Federation", Nowhere)
    monkeypatch.setattr(oprf_join, "_once", once)
    return found


@pytest.mark.parametrize(("large", "sizes"), [(False, {10_000, 100_000}), (True, {10_000, 100_000, 1_000_000})])
def test_both_protocols_at_the_same_sizes(measured, large, sizes):
    report = join.measure(repeats=1, peers=False, large=large)
    assert set(measured["default"]) == set(measured["light"]) == sizes
    assert set(report) == {*(f"join_n{n}" for n in sizes), "light"}
    assert set(report["light"]) == {f"oprf_join_n{n}" for n in sizes}
    assert "oprf_join_n100000" in join.table(report)


def test_every_phase_is_a_protocol_that_the_join_calls_by_that_name():
    for module, name in join_tasks.PHASES.values():
        assert callable(getattr(module, name))
