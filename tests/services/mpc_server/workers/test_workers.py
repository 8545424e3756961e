"""Workers of one party: they compute what the leader would, peers see no difference, and failures are found."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from caps.basics.schemes import REP3, REP3_ACTIVE, REP4, Scheme
from caps.data.domain import Attribute, Domain, Layout
from caps.errors import DomainError, LocalError
from caps.shares.ring import SHARED_RINGS, Z16, Z22, Z32, Ring, Words
from caps.shares.sharing import DealtShare, Explicit, Seeded, deal
from caps.study.manifest import columns_bits
from services.mpc_server.engine.compute import ColumnsInput, compute_answers
from services.mpc_server.engine.jobs import Job
from services.mpc_server.engine.long import Origin, SeededOrigin, long_words
from services.mpc_server.engine.shares import AShare, Owner
from services.mpc_server.engine.workers import IN_PROCESS, Workers
from services.mpc_server.testing.world import STUDY, PerParty, Recorder, World, uniform_words
from services.mpc_server.workers import cluster, leader
from services.mpc_server.workers.leader import Crew
from services.mpc_server.workers.pool import Pool
from services.mpc_server.workers.settings import WorkersSettings
from services.mpc_server.workers.tasks import told
from tests.kit.jobs import ROWS, deviations, grams
from tests.kit.rogue_worker import Mixed

pytestmark = pytest.mark.integration


class Written(Origin):
    """A component as it would be on disk."""

    def __init__(self, words: Words, ring: Ring) -> None:
        rows, columns = words.shape
        super().__init__((rows, columns), ring)
        self._octets = ring.to_bytes(words)

    def octets(self, start: int, stop: int) -> bytes:
        return self._octets[start:stop]


def long_share(owner: Owner, dealt: DealtShare) -> AShare:
    """A share none of whose components are in memory."""

    def words(part: Seeded | Explicit) -> Words:
        rows, columns = dealt.shape
        if isinstance(part, Seeded):
            return long_words(SeededOrigin(part, (rows, columns), dealt.ring))
        return long_words(Written(part.vector, dealt.ring))

    return AShare(owner, *map(words, dealt.parts))


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of rows to a range."""
    monkeypatch.setattr(leader, "RANGE_WORDS", 1)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    found = Pool(2)
    yield found
    found.close()


JOBS = [grams(Z22), grams(Z16), deviations(Z32), deviations(Z16)]
NAMES = ["grams in Z_2^22", "grams in Z_2^16", "deviations in Z_2^24", "deviations in Z_2^16"]


@pytest.mark.parametrize("job", JOBS, ids=NAMES)
def test_workers_find_what_the_leader_would(job: Job, pool: Pool) -> None:
    found = Crew(pool, pays=0).totals(job)
    assert all(map(np.array_equal, found, job.totals()))


def test_gram_matrices_and_deviations_are_those_of_numpy() -> None:
    """Modulo 2^k, in the clear."""
    job = grams(Z22)
    x = [np.hstack([np.asarray(part[c]) for part in job.parts]) for c in (0, 1)]
    for total, mixed in zip(job.totals(), (x[0] + x[1], x[1], x[0] - x[1]), strict=True):
        assert np.array_equal(Z22.reduce(total.astype(np.uint32)), Z22.reduce(mixed.T @ mixed))
    other = deviations(Z32)
    v = [
        np.vstack([c.T, c[:, :4].sum(axis=1, dtype="<u4"), c[:, 4:].sum(axis=1, dtype="<u4")]) for c in other.components
    ]
    coins = np.vstack([other.row_coins(start, min(1024, ROWS - start)) for start in range(0, ROWS, 1024)])
    for total, values in zip(other.totals(), (v[0] * (v[0] + 2 * v[1] - 1), (v[0] - v[1]) ** 2), strict=True):
        assert np.array_equal(total.astype(np.uint32), values @ coins.astype(np.uint32))


@pytest.mark.parametrize("job", JOBS, ids=NAMES)
def test_one_wrong_bit_in_one_sum_is_found(job: Job) -> None:
    """Every bit that matters, in every matrix; what is right passes under every secret."""
    part = job.part(slice(0, 1024))
    totals = part.totals()
    for seed in range(40):
        secret = uniform_words(seed, (job.secret_words,), SHARED_RINGS[64])
        foretold = part.foretold(secret)
        assert part.right(totals, secret, foretold)
        for place, total in enumerate(totals):
            row, column = seed % len(total), (7 * seed) % total.shape[1]
            wrong = total.copy()
            wrong[row, column] ^= np.uint64(1 << seed % 24)
            assert not part.right([*totals[:place], wrong, *totals[place + 1 :]], secret, foretold)
    assert not part.right(totals[:-1], secret, foretold[:-1])
    assert not part.right([total[:-1] for total in totals], secret, [told[:-1] for told in foretold])


def test_a_worker_is_told_seeds_and_rows_of_its_range_and_nothing_else() -> None:
    """Rows of a component that has a seed are not sent; of others, those of the range."""
    task = told(grams().part(slice(1024, 2048)))
    assert [len(octets) for octets in task.sent] == [1024 * 4 * 4, 1024 * 5 * 4]
    (seeded,) = [operand for operand in task.header["operands"] if "seed" in operand]
    assert seeded["rows"] == [1024, 2048]
    assert seeded["seed"] == bytes(range(32)).hex()
    assert set(task.header) == {"kind", "parts", "mixes", "modulo", "operands"}


WRONG = {
    "lies": "it returned a wrong result",
    "dies": "its process",
    "babbles": "it says what no worker says",
    "raises": "its process",
}


@pytest.mark.chaos
def test_a_worker_that_fails_is_named_and_its_range_redone(caplog: pytest.LogCaptureFixture) -> None:
    """One of each kind beside an honest one; the result is right, and each is dismissed for what it did."""
    job, staff = grams(), Mixed("honest", *WRONG)
    with caplog.at_level(logging.ERROR, "caps.workers"):
        try:
            found = Crew(staff, pays=0).totals(job)
        finally:
            reasons = dict(staff.dismissed)
            staff.close()
    assert all(map(np.array_equal, found, job.totals()))
    expected = {f"worker {place + 2}": reason for place, reason in enumerate(WRONG.values())}
    assert set(reasons) == set(expected)
    for worker, reason in expected.items():
        assert reasons[worker].startswith(reason), reasons
        assert any(worker in record.getMessage() for record in caplog.records)


@pytest.mark.chaos
@pytest.mark.parametrize("wrong", ["lies", "misjudges"])
def test_workers_check_each_other_where_the_leader_cannot_keep_up(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lies, in its sums or in checks of others', is found, and the other is not blamed for it."""
    own, told = leader._Shift._check, leader.checking
    checked: list[object] = []

    def late(shift: leader._Shift) -> None:
        others = {*shift._idle, *shift._given} - {shift._unchecked[0].by}
        if others:
            shift._take(0.05)
        else:
            own(shift)

    monkeypatch.setattr(leader._Shift, "_check", late)
    monkeypatch.setattr(leader, "checking", lambda *given: checked.append(given) or told(*given))
    job, staff = grams(), Mixed("honest", wrong)
    try:
        found = Crew(staff, pays=0).totals(job)
        assert staff.dismissed == {"worker 2": "it returned a wrong result"}
        assert checked
    finally:
        staff.close()
    assert all(map(np.array_equal, found, job.totals()))


@pytest.mark.chaos
def test_a_worker_that_stalls_is_given_up() -> None:
    job, staff = grams(), Mixed("honest", "stalls")
    try:
        found = Crew(staff, stall=1, pays=0).totals(job)
        assert staff.dismissed["worker 2"] == "it has returned nothing for 1 s"
    finally:
        staff.close()
    assert all(map(np.array_equal, found, job.totals()))


@pytest.mark.chaos
def test_if_no_worker_is_left_the_leader_does_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    job, staff = deviations(), Mixed("dies", "lies")
    with caplog.at_level(logging.ERROR, "caps.workers"):
        try:
            found = Crew(staff, stall=30, pays=0).totals(job)
        finally:
            staff.close()
    assert all(map(np.array_equal, found, job.totals()))
    assert any("no workers are left" in record.getMessage() for record in caplog.records)


@pytest.mark.chaos
def test_a_worker_that_was_killed_between_jobs_is_replaced(pool: Pool) -> None:
    crew = Crew(pool, pays=0)
    crew.totals(grams())
    before = pool.processes()
    pool._processes[next(iter(before))].process.kill()
    pool._processes[next(iter(before))].process.wait()
    job = deviations()
    assert all(map(np.array_equal, crew.totals(job), job.totals()))
    after = pool.processes()
    assert len(after) == 2
    assert len(set(before.values()) & set(after.values())) == 1


def test_small_work_stays_with_the_leader() -> None:
    class Nobody(Pool):
        def _start(self) -> None:
            raise AssertionError("a process was started")

    crew = Crew(Nobody(2))
    assert crew.totals(grams())
    crew.close()


def transcript(
    scheme: Scheme, layout: Layout, codes: Words, workers: Workers, *, long: bool
) -> tuple[dict[tuple[int, int], list[bytes]], Words]:
    """What servers say to each other in COMPUTE ANSWERS of two holders' columns, and the marginals."""
    recorder = Recorder()
    world = World(3, scheme=scheme, interceptor=recorder, workers=workers, stall=60)
    ring, names = SHARED_RINGS[columns_bits(len(codes))], layout.domain.names
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    inputs: list[list[ColumnsInput]] = [[] for _ in range(scheme.parties)]
    for number, half in enumerate(halves):
        domain = layout.domain.project(half)
        places = [names.index(name) for name in half]
        entropy = iter(bytes([number, place]) * 16 for place in range(scheme.components))
        dealt = deal(
            ring.encode(domain.one_hot(codes[:, places])),
            entropy=lambda _, e=entropy: next(e),
            ring=ring,
            scheme=scheme,
        )
        for party, one in enumerate(dealt):
            owner = Owner(party, STUDY, scheme)
            share = long_share(owner, one) if long else AShare(owner, *one.components())
            inputs[party].append(ColumnsInput(f"H{number}", half, share))
    outcome = world.run(compute_answers, PerParty(*inputs), layout=layout)
    said: dict[tuple[int, int], list[bytes]] = {}
    for message in recorder.messages:
        said.setdefault((message.source, message.dest), []).append(message.tag + bytes(message.payload))
    assert outcome.value[1].all()
    return said, outcome.value[0]


@pytest.mark.parametrize(
    ("scheme", "attributes", "size", "rows"),
    [(REP3, 4, 3, ROWS), (REP3_ACTIVE, 4, 3, ROWS), (REP4, 4, 3, ROWS), (REP4, 6, 28, 1100), (REP3, 3, 3, 66_000)],
    ids=["rep3", "rep3-active", "rep4", "rep4, wide", "rep3, words of 32 bits"],
)
def test_peers_hear_the_same_whoever_computes(
    scheme: Scheme, attributes: int, size: int, rows: int, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte: with workers on components that are not in memory, and in one process on those that are."""
    domain = Domain(tuple(Attribute(f"a{i}", size) for i in range(attributes)))
    pairs = [(name,) for name in domain.names] + list(combinations(domain.names, 2))
    layout = Layout(domain, (*pairs, *([domain.names[:3]] if size < 5 and rows < 5000 else [])))
    codes = uniform_words(5, (rows, attributes), Z32).astype(np.int64) % size
    if rows > 5000:
        monkeypatch.setattr(leader, "RANGE_WORDS", 1 << 18)
    used = []
    performed = leader._Shift.totals
    monkeypatch.setattr(leader._Shift, "totals", lambda shift: used.append(shift) or performed(shift))
    alone, counts = transcript(scheme, layout, codes, IN_PROCESS, long=False)
    assert not used
    spread, same = transcript(scheme, layout, codes, Crew(pool, pays=0), long=True)
    assert len(used) >= 3 * scheme.parties  # two holders' checks, and the counting
    assert alone == spread
    assert np.array_equal(counts, same)
    assert np.array_equal(counts, layout.marginals(codes).astype(np.uint64))


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = WorkersSettings.from_environment
    assert read({"CAPS_WORKERS": "3"}).processes == 3
    assert read({"CAPS_WORKERS": "0"}).workers() is IN_PROCESS
    for wrong in ("-1", "two", "99999", "1025", ""):
        with pytest.raises(DomainError, match="number of processes"):
            read({"CAPS_WORKERS": wrong})
    for plain in ("tcp://here:8786", "http://here", "TLS://here:1"):
        with pytest.raises(DomainError, match="must begin with tls://"):
            read({"CAPS_WORKERS": plain})
    files = {name: str(tmp_path / name) for name in ("CAPS_WORKERS_CA", "CAPS_WORKERS_CERT", "CAPS_WORKERS_KEY")}
    with pytest.raises(DomainError, match="CAPS_WORKERS_CA must name a file"):
        read({"CAPS_WORKERS": "tls://here:8786", **files})
    for path in files.values():
        Path(path).touch()
    settings = read({"CAPS_WORKERS": "tls://here:8786", "CAPS_WORKERS_STALL": "7", **files})
    assert settings.stall == 7
    assert settings.cluster is not None
    assert settings.cluster.address == "tls://here:8786"
    monkeypatch.setattr(cluster, "find_spec", lambda _: None)
    with pytest.raises(LocalError, match="pip install"):
        settings.workers()
    with pytest.raises(DomainError, match="CAPS_WORKERS_STALL"):
        read({"CAPS_WORKERS_STALL": "0"})
