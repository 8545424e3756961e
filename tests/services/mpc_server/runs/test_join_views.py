"""What one server receives, stores and logs of a joined run does not depend on who the persons are, nor on which rows
match: only on how many rows tables have and how many persons which of them have in common, with noise.

Everything that comes in is recorded, on servers that are processes of their own, during runs on two sets of tables: of
the same sizes and overlaps, with other persons, other values, and other rows that match. The messages are the same in
number, order and length, and their bytes are uniform in both.

A server that colludes with a holder knows its identifiers, and two of the three parts of which each permutation
of the shuffle and the cipher's key are made. It lacks the third: without it the permutation and the key are uniform. So
nothing in its view can be compared with the identifier of somebody it guesses. What is left are the numbers that opened
tags show. Where a holder brings somebody to see whether another one has that person, they follow the law that the
study is charged for.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from caps.data.domain import Layout
from caps.data.joinkey import ID_BYTES, JoinKey
from caps.dp.oracle import overlaps_plan
from caps.dp.privacy import GaussianOverlaps
from caps.shares.prss import expand
from caps.shares.ring import Z64, planes_to_words
from caps.study import Manifest
from deploy.federation import POLICY, SERVERS, Federation
from services.mpc_server.engine import alignment, join
from services.mpc_server.engine.alignment import Dummies
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.join import JoinInput, Mode, compute_joined_answers
from services.mpc_server.engine.steps import draw_noise, noise_context
from services.mpc_server.testing.world import World
from tests.kit.cases.join import Table, dealt, person_id, received, times_in_tables
from tests.kit.federation import POPULATIONS, RunBits, manifest_of
from tests.kit.join import KEY, NUMBER, SCHEMA, JoinDriver, Owner, Record
from tests.kit.recording import Received, forget, read
from tests.kit.study import example_json
from tests.kit.views import (
    CONTROL,
    UNLIKELY,
    alike,
    ask,
    by_source,
    settle,
    shares,
    uniform,
)

pytestmark = [pytest.mark.statistical, pytest.mark.integration]

CAPACITIES = {"north": 72, "south": 156}
"""With dummies, whole words of 64: else what fills up the last word, public zeros, stands among opened shares."""
COLUMNS = {"north": ("age", "smoker"), "south": ("illness", "plan")}
ROUNDS = 2
KEY_LABEL = b"/compute/join/key"
"""Under which the servers draw the key of the cipher."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    policy = POLICY + "least_capacity: 1\n"
    places = tmp_path_factory.mktemp("views")
    with Federation(
        places, ("north", "south"), policy=policy, populations=POPULATIONS, environment={"CAPS_STALL": "20"}
    ) as found:
        found.start(*SERVERS, under=("tests.kit.recording",))
        found.wait_ready(*SERVERS)
        yield found


def owners(which: int) -> list[Owner]:
    """40 and 50 persons, of whom 30 are the same: without values, or with values, and then others at other rows."""
    draws = np.random.default_rng(which)
    persons = {"north": np.arange(40), "south": np.arange(10, 60)}
    found = []
    for place, (name, columns) in enumerate(COLUMNS.items()):
        codes = np.full((len(persons[name]), 2), -1) if not which else draws.integers(1, 2, (len(persons[name]), 2))
        order = np.arange(len(codes)) if not which else draws.permutation(len(codes))
        records = [Record(int(persons[name][i]), tuple(codes[i].tolist())) for i in order]
        found.append(Owner(name, columns, records, spelling=place, salt=f"{7351 + 111 * which}"))
    return found


class View:
    """What each server saw of one run."""

    def __init__(self, federation: Federation, which: int, folder: Path, manifest: Manifest | None = None) -> None:
        split = [
            {"name": name, "brings": "columns", "columns": list(columns), "capacity": CAPACITIES[name]}
            for name, columns in COLUMNS.items()
        ]
        self.manifest = manifest or manifest_of(
            federation, split, schema=SCHEMA, join={"key": KEY}, parameters={"rounds": 5}
        )
        assert not sum(map(self.manifest.shuffled_rows, self.manifest.holders)) % 64
        self.owners = owners(which)
        rows: dict[str, Any] = {owner.name: owner.read(self.manifest, folder) for owner in self.owners}
        self.ids = {name: found.ids for name, found in rows.items()}
        homes = [federation.places[name].home for name in SERVERS]
        for home in homes:
            forget(home)
        with JoinDriver(federation, self.manifest, folder) as driver:
            driver.ready(rows)
            ask(driver)
            settle(driver)
            self.bits = RunBits(driver)
            self.run = driver.run
        self.messages: list[list[Received]] = []
        self.requests, self.stored = [], []
        for home in homes:
            messages, requests = read(home)
            self.messages.append(messages)
            self.requests.append(requests)
            kept = [path for path in sorted(home.rglob("*")) if path.is_file() and path.name != "received"]
            self.stored.append(b"".join(path.read_bytes() for path in kept))

    def everything(self, server: int, log: str) -> bytes:
        """All that a server has of the run, in one."""
        received = [one.payload for one in self.messages[server]] + [part for _, part in self.requests[server]]
        return b"".join(received) + self.stored[server] + log.encode()

    def cipher_key(self, components: Iterable[int] = range(3)) -> bytes:
        """What the chosen components of the cipher's key add up to: the key, if they are all three."""
        keys = [self.bits._keys[i] for i in components]
        planes = np.bitwise_xor.reduce([expand(key, KEY_LABEL + b"#random", (8, 1), Z64) for key in keys])
        return planes_to_words(planes, ID_BYTES).astype(np.uint8).tobytes()

    def tags(self, key: bytes) -> list[bytes]:
        """The tags of all persons of both tables under a key."""
        encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        everybody = np.concatenate([self.ids[name] for name in COLUMNS])
        out = encryptor.update(everybody.tobytes())
        return [out[i : i + ID_BYTES] for i in range(0, len(out), ID_BYTES)]


Views = tuple[list[View], list[View]]


@pytest.fixture(scope="module")
def views(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Views:
    folder = tmp_path_factory.mktemp("tables")
    plain, other = ([View(federation, which, folder) for _ in range(ROUNDS)] for which in (0, 1))
    return plain, other


def gathered(views: list[View], server: int) -> np.ndarray:
    return np.concatenate([shares(view.messages[server]) for view in views])


@pytest.mark.drawn(1)
@pytest.mark.parametrize("server", range(3))
def test_number_order_and_length_of_messages_do_not_depend_on_who_and_which(views: Views, server: int) -> None:
    outlines = [
        by_source([one.outline for one in view.messages[server] if one.kind in ("ROUND", "HELLO")])
        for view in (*views[0], *views[1])
    ]
    assert sum(map(len, outlines[0])) > 150
    for outline in outlines[1:]:
        assert outline == outlines[0]


@pytest.mark.parametrize("server", range(3))
def test_what_a_server_receives_is_uniform_whoever_the_persons_are(views: Views, server: int) -> None:
    plain, other = (gathered(found, server) for found in views)
    assert len(plain) > 100_000
    assert uniform(plain) > UNLIKELY
    assert uniform(other) > UNLIKELY
    assert alike(plain, other) > UNLIKELY


@pytest.mark.parametrize("server", range(3))
def test_no_message_has_a_law_that_depends_on_the_data(views: Views, server: int) -> None:
    """Message by message, over all runs: how many of its bits are set."""
    plain, other = (
        [
            {
                one.outline: one.payload
                for one in view.messages[server]
                if one.kind == "ROUND" and one.tag not in CONTROL
            }
            for view in found
        ]
        for found in views
    )
    assert len(plain[0]) > 150
    for outline in plain[0]:
        table = []
        for found in (plain, other):
            payloads = b"".join(view[outline] for view in found)
            ones = int(np.unpackbits(np.frombuffer(payloads, np.uint8)).sum())
            table.append([ones, 8 * len(payloads) - ones])
        assert float(stats.fisher_exact(table).pvalue) > UNLIKELY / len(plain[0])


@pytest.mark.parametrize("server", [1, 2])
def test_uploads_are_of_the_padded_size_and_uniform(views: Views, server: int) -> None:
    vectors = []
    for found in views:
        bodies = [
            [body for path, body in view.requests[server] if "/chunks/" in path and len(body) > 1000] for view in found
        ]
        assert all([len(body) for body in one] == [17 * rows for rows in CAPACITIES.values()] for one in bodies)
        vectors.append(np.frombuffer(b"".join(body for one in bodies for body in one), np.uint8))
    assert uniform(vectors[0]) > UNLIKELY
    assert uniform(vectors[1]) > UNLIKELY
    assert alike(*vectors) > UNLIKELY


def windows_in(haystack: bytes, needles: Iterable[bytes]) -> int:
    """How many places of the bytes have one of the needles, of at least 8 bytes each: every window is compared."""
    wanted = set(needles)
    starts = np.unique(np.array([int.from_bytes(one[:8], "little") for one in wanted], np.uint64))
    octets = np.frombuffer(haystack, np.uint8)
    found = 0
    for shift in range(8):
        part = octets[shift:]
        words = part[: len(part) // 8 * 8].view("<u8")
        for place in np.flatnonzero(np.isin(words, starts)) * 8 + shift:
            found += any(haystack.startswith(one, int(place)) for one in wanted)
    return found


def forms(view: View, name: str) -> Iterator[bytes]:
    """The keys of an owner's persons, and what can be computed of them without a secret, as somebody may write it."""
    owner = next(one for one in view.owners if one.name == name)
    persons = [record.person for record in owner.records if record.person is not None]
    key = JoinKey.from_json(KEY)
    table = dict(zip((NUMBER, "born"), zip(*map(owner.key, persons), strict=True), strict=True))
    keys, _ = key.normalise({column: list(values) for column, values in table.items()})
    for written in table[NUMBER]:
        levelled = written.replace("-", "").replace(" ", "")
        yield from (written.encode(), levelled.encode(), levelled.lower().encode())
    digests = [view.ids[name][i].tobytes() for i in range(len(persons))]
    for encoded in keys.encoded.to_list():
        yield encoded
        digests += [hashlib.new(kind, encoded).digest()[:ID_BYTES] for kind in ("sha256", "md5", "blake2b")]
    for digest in digests:
        yield digest
        yield digest[::-1]
        yield digest.hex().encode()
        yield digest.hex().upper().encode()


@pytest.mark.parametrize("server", range(3))
def test_no_key_and_no_hashed_key_reaches_a_server(federation: Federation, views: Views, server: int) -> None:
    """Nor does any come back: a server that has all of another holder's guesses can compare them with nothing."""
    for view in (views[0][0], views[1][0]):
        everything = view.everything(server, federation.log(SERVERS[server]))
        for name in COLUMNS:
            assert windows_in(everything, forms(view, name)) == 0


@pytest.mark.parametrize("form", range(8))
def test_a_key_that_reached_a_server_would_be_noticed(views: Views, form: int) -> None:
    """The same search, of a view with one form of one key at an odd place."""
    view = views[0][0]
    told = list(forms(view, "south"))[17 * form + 1]
    everything = view.everything(0, "")
    assert windows_in(everything[:1001] + told + everything[1001:], forms(view, "south")) >= 1


def test_tags_of_two_runs_have_nothing_in_common(views: Views) -> None:
    """The same persons of the same tables: the key of the cipher is drawn for every run."""
    one, two = views[0]
    first, second = one.tags(one.cipher_key()), two.tags(two.cipher_key())
    assert len(set(first)) == len(set(second)) == 60  # 40 and 50 persons, 30 of them in both
    assert not set(first) & set(second)
    same_ids = [one.tags(view.cipher_key()) for view in (one, two)]
    assert not set(same_ids[0]) & set(same_ids[1])


@pytest.mark.parametrize("server", range(3))
def test_what_a_server_has_of_the_key_makes_other_tags(views: Views, server: int) -> None:
    """With its two components, or one of them, or none, a guess becomes a tag that no person has."""
    for view in views[0]:
        real = set(view.tags(view.cipher_key()))
        own = (server, (server + 1) % 3)
        for size in (1, 2):
            for known in combinations(own, size):
                assert not real & set(view.tags(view.cipher_key(known)))


@pytest.mark.parametrize("server", range(3))
def test_tags_do_not_travel(federation: Federation, views: Views, server: int) -> None:
    """They are opened from shares, and neither stored nor logged: who gets hold of a disk cannot compare them."""
    view = views[0][0]
    everything = view.everything(server, federation.log(SERVERS[server]))
    tags = view.tags(view.cipher_key())
    assert windows_in(everything, [*tags, *(tag.hex().encode() for tag in tags)]) == 0


def test_sizes_are_those_of_the_manifest_whatever_is_in_the_tables(federation: Federation, tmp_path: Path) -> None:
    """Before the match, nothing that a server receives depends on how many rows there are: one, or as many as fit."""
    outlines = []
    for count in (1, 70):
        split = [
            {"name": name, "brings": "columns", "columns": list(columns), "capacity": CAPACITIES[name]}
            for name, columns in COLUMNS.items()
        ]
        manifest = manifest_of(federation, split, schema=SCHEMA, join={"key": KEY}, parameters={"rounds": 5})
        records = [Record(person, (0, 0)) for person in range(count)]
        rows: dict[str, Any] = {
            name: Owner(name, columns, records, salt=name).read(manifest, tmp_path)  # by the salt, nobody is in both
            for name, columns in COLUMNS.items()
        }
        homes = [federation.places[name].home for name in SERVERS]
        for home in homes:
            forget(home)
        with JoinDriver(federation, manifest, tmp_path) as driver:
            driver.ready(rows)
            assert driver.verdicts() == (1, 1)
            settle(driver)
        outlines.append([by_source([one.outline for one in read(home)[0] if one.kind == "ROUND"]) for home in homes])
    assert outlines[0] == outlines[1]


# What the opened tags show

NEIGHBOURS = (("honest", ("age",)), ("corrupt", ("smoker",)), ("insurer", ("illness",)), ("other", ("plan",)))
LEFT, JOINED = (1, 2), (0, 1, 2)
"""Where the person is without the honest holder, and with it."""
REPEATS = 100


def neighbours() -> Manifest:
    """A weak guarantee, so that dummies are few: what is compared is the law, which is the same for any epsilon."""
    document, _ = example_json(
        holders=NEIGHBOURS, schema=SCHEMA, epsilon="20", capacity=24, join={"key": KEY}, alignment=None
    )
    return Manifest.from_json(document)


def overlaps_seen(manifest: Manifest, present: bool, run: int) -> dict[tuple[int, ...], int]:
    """For every set of holders, how many tags just these have: of 12 persons everywhere, one at both corrupt holders
    who is at the honest one or not, and padding. The noise is drawn as in a study, from keys of this run."""
    assert manifest.overlaps is not None
    plan = overlaps_plan(manifest.overlaps)
    common, padding = [person_id(i) for i in range(12)], iter(range(1000))
    tables = []
    for place, holder in enumerate(manifest.holders):
        ids = [*common, *[person_id(99)] * (place in LEFT or (present and place == 0))]
        ids += [person_id(next(padding), b"padding") for _ in range(24 - len(ids))]
        tables.append(Table(manifest.columns_of(holder).domain().names, ids, np.zeros((24, 1), np.int64)))
    seen: list[Counter[tuple[int, ...]]] = []
    original = alignment.match

    def watched(tags: Any, *args: Any) -> Any:
        seen.append(times_in_tables(tags))
        return original(tags, *args)

    async def computed(ctx: Context, *shares: Any) -> Any:
        inputs = [
            JoinInput("", table.attributes, received(ctx, share)) for table, share in zip(tables, shares, strict=True)
        ]
        noise = await draw_noise(noise_context(ctx, "compute", plan), plan.noise, manifest.overlap_sets)
        dummies = Dummies(noise, plan.reach)
        return (await compute_joined_answers(ctx, inputs, layout=layout, mode=Mode.UNION, dummies=dummies)).accepted

    layout = Layout(manifest.domain, tuple((name,) for name in manifest.domain.names))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(join, "match", watched)
        world = World(1 + run)
        assert world.run(computed, *(dealt(table.rows(manifest.domain)) for table in tables)).value.all()
    assert seen[0] == seen[1] == seen[2]
    return {chosen: seen[0][tuple(int(i in chosen) for i in range(4))] for chosen in alignment.sets_of(4)}


def without_noise(manifest: Manifest, present: bool) -> dict[tuple[int, ...], int]:
    assert manifest.overlaps is not None
    persons = {(0, 1, 2, 3): 12, JOINED if present else LEFT: 1}
    return {chosen: persons.get(chosen, 0) + overlaps_plan(manifest.overlaps).reach for chosen in alignment.sets_of(4)}


def law_fits(noise: np.ndarray, sigma2: float) -> float:
    """The p-value of Pearson's test of integers against the discrete Gaussian; what is rare is one class."""
    values = np.arange(-60, 61)
    weights = np.exp(-(values**2) / (2 * sigma2))
    expected = len(noise) * weights / weights.sum()
    counts = np.bincount(noise + 60, minlength=121)
    often = expected >= 5
    found = [*counts[often], counts[~often].sum()]
    return float(stats.chisquare(found, [*expected[often], expected[~often].sum()]).pvalue)


@pytest.mark.slow
def test_numbers_of_opened_tags_are_those_of_neighbours_with_the_noise_that_is_charged() -> None:
    manifest = neighbours()
    overlaps = manifest.overlaps
    assert isinstance(overlaps, GaussianOverlaps)
    sigma2, sets = float(overlaps.sigma_squared), alignment.sets_of(4)
    charge = float(overlaps.rho(manifest.neighbouring))
    truth, other = (np.array(list(without_noise(manifest, present).values())) for present in (True, False))
    views = np.array([list(overlaps_seen(manifest, True, run).values()) for run in range(REPEATS)])
    # With the same keys, so the same noise, neighbours differ by the person, and by nothing else.
    for run in range(5):
        seen = overlaps_seen(manifest, False, run)
        changes = {chosen: views[run][place] - seen[chosen] for place, chosen in enumerate(sets)}
        assert {chosen: change for chosen, change in changes.items() if change} == {JOINED: 1, LEFT: -1}
    noise = (views - truth).reshape(-1)
    losses = ((views - other) ** 2 - (views - truth) ** 2).sum(axis=1) / (2 * sigma2)
    assert law_fits(noise, sigma2) > UNLIKELY
    assert law_fits(noise, 0.8**2 * sigma2) < UNLIKELY
    assert law_fits(noise, 1.25**2 * sigma2) < UNLIKELY
    # The loss is about Gaussian of mean rho and variance 2 rho, which is what zero-concentrated privacy allows.
    assert 2 / (2 * sigma2) <= charge
    assert abs(np.mean(losses) - charge) < 4.5 * (2 * charge / REPEATS) ** 0.5
    assert np.var(losses) < 2 * charge * (1 + 4.5 * (2 / REPEATS) ** 0.5)
    assert max(losses) < charge + 6 * (2 * charge) ** 0.5
