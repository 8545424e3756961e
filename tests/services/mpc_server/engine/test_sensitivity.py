"""What one honest person can change, measured on the engine, is what is charged: whatever corrupt parties send.

Drawn are topologies (rows, aligned columns, both, joined rows; columns that several holders bring; persons of several
rows; missing values, padding), tables of honest holders, inputs of corrupt ones (any words, extreme ones often) and
requests of a corrupt coordinator (any that the servers admit). Marginals, scores and what a join shows are computed
with and without one honest person, or with another in place of that one, and compared with the study's sensitivities.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import MISSING, Domain
from caps.data.linkage import ID_BYTES, RowFormat
from caps.dp.bounds import MOST_BIAS, MOST_COUNTED, MOST_ESTIMATED, UNIT_BITS
from caps.dp.oracle import Comparison, Selection
from caps.dp.privacy import GaussianErrors, Neighbouring, NoisyMax, PermuteAndFlip, Relation
from caps.dp.privacy.schedule import Role
from caps.errors import DomainError
from caps.shares.ring import Z16, Z32, Z64
from caps.study.manifest import Manifest
from services.mpc_server.engine import alignment, compute, join
from services.mpc_server.engine.alignment import Dummies, sets_of
from services.mpc_server.engine.compute import ColumnsInput, HorizontalInput, compute_answers
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.join import JoinInput, Mode, compute_joined_answers
from services.mpc_server.engine.release import count_bits, error_scores, noisy_errors
from services.mpc_server.testing.world import Failed, World
from tests.kit.cases.join import dealt, received, times_in_tables
from tests.kit.study import SERVERS, example_json, make_keys

pytestmark = pytest.mark.property

COLUMNS = ("a", "b", "c")
SCHEMA: dict[str, Any] = {
    "columns": [
        {"name": "a", "kind": "categorical", "categories": ["0", "1"], "missing": "null"},
        {"name": "b", "kind": "categorical", "categories": ["0", "1", "2"], "missing": "null"},
        {"name": "c", "kind": "categorical", "categories": ["0", "1"]},
    ]
}
NAMES = [f"h{i}" for i in range(5)]
KEYS = make_keys([*SERVERS, "coordinator", *NAMES])
JOIN_KEY = {"columns": [{"name": "number", "kind": "text"}]}
SLOTS, REACH = 12, 3


@dataclass
class Draws:
    """What a corrupt party may choose, with extremes often."""

    seed: int
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.seed)

    def number(self, low: int, high: int) -> int:
        return int(self.generator.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.generator.random() < probability)

    def among(self, *choices: Any) -> Any:
        return choices[self.number(0, len(choices) - 1)]

    def record(self, domain: Domain) -> list[int]:
        return [
            MISSING if one.nullable and self.chance(0.2) else self.number(0, one.size - 1) for one in domain.attributes
        ]


@dataclass
class Person:
    """Rows of one person: for each, which honest holders have what of it, under which slot or identifier."""

    records: list[list[int]]
    places: list[int]
    """A slot, or the number of an identifier."""
    homes: list[set[str]]
    """The honest holders that have the row."""


@dataclass
class Study:
    """A study with honest and corrupt holders, and what they bring."""

    manifest: Manifest
    corrupt: set[str]
    others: list[Person]
    words: dict[str, Any] = field(default_factory=dict)
    """What corrupt holders send."""

    @property
    def domain(self) -> Domain:
        return self.manifest.domain

    @property
    def joined(self) -> bool:
        return bool(self.manifest.joined)


def drawn_study(draws: Draws) -> tuple[Manifest, set[str]]:
    kind = draws.among("rows", "columns", "mixed", "joined", "joined and rows")
    names = NAMES[: draws.number(2, 5)]
    rows = {"rows": len(names), "columns": 0, "joined": 0}.get(kind, draws.number(1, len(names) - 1))
    brings: list[tuple[str, list[str] | None]] = [(name, None) for name in names[:rows]]
    spread: list[list[str]] = [[] for _ in names[rows:]]
    for column in COLUMNS:
        for own in spread:
            if draws.chance(0.5):
                own.append(column)
        if spread and not any(column in own for own in spread):
            draws.among(*spread).append(column)
    brings += [(name, own or ["c"]) for name, own in zip(names[rows:], spread, strict=True)]
    brings = [brings[i] for i in draws.generator.permutation(len(brings))]
    privacy = {
        "epsilon": "2",
        "delta": "1e-6",
        "population": "p",
        "multiplicity": draws.among(1, 1, 2),
        "neighbouring": draws.among("unbounded", "unbounded", "bounded"),
        "accounting": "zcdp",
    }
    others: dict[str, Any] = {"keys": KEYS, "schema": SCHEMA, "privacy": privacy, "holders": brings, "slots": SLOTS}
    others["algorithm"] = draws.among("mwem", "aim", "mst", "swift")
    if "joined" in kind:
        others |= {"join": {"key": JOIN_KEY, "mode": draws.among("union", "inner")}, "capacity": 20}
    document, _ = example_json(**others)
    for holder in document["holders"]:
        if holder.get("capacity", 0) is None:
            del holder["capacity"]
    corrupt = {name for name in names if draws.chance(0.5)}
    if len(corrupt) == len(names):
        corrupt.remove(draws.among(*sorted(corrupt)))
    return Manifest.from_json(document), corrupt


def drawn_person(draws: Draws, study: Study, taken: set[int], rows: int) -> Person:
    """A person of so many rows, each of them at a holder of whole rows or spread over holders of columns."""
    honest = [one for one in study.manifest.holders if one.name not in study.corrupt]
    whole, parts = ([one for one in honest if one.brings == what] for what in ("rows", "columns"))
    person = Person([], [], [])
    for _ in range(rows):
        person.records.append(draws.record(study.domain))
        free = [slot for slot in range(SLOTS) if slot not in taken]
        person.places.append(draws.among(*free))
        taken.add(person.places[-1])
        if whole and (not parts or draws.chance(0.5)):
            person.homes.append({draws.among(*whole).name})
        else:
            person.homes.append({one.name for one in parts if draws.chance(0.8)} or {parts[0].name})
    return person


def person_id(number: int) -> bytes:
    return bytes([*number.to_bytes(2, "little"), 7, 7, *number.to_bytes(2, "little"), *[3] * 10])


def honest_words(study: Study, name: str, persons: list[Person]) -> Any:
    """What an honest holder sends of these persons."""
    holder = study.manifest.holder(name)
    rows = [(p.places[i], p.records[i]) for p in persons for i in range(len(p.records)) if name in p.homes[i]]
    if holder.brings == "rows":
        codes = np.array([record for _, record in rows], np.int64).reshape(-1, len(COLUMNS))
        return Z32.encode(study.manifest.layout.marginals(codes))
    own = study.manifest.columns_of(holder).domain()
    kept = [study.domain.position(column) for column in own.names]
    if not study.joined:
        codes = np.full((SLOTS, len(kept)), MISSING)
        for slot, record in rows:
            codes[slot] = [record[i] for i in kept]
        return Z16.encode(own.one_hot(codes))
    assert holder.capacity is not None
    ids = [person_id(place) for place, _ in rows]
    # Padding has random identifiers; the same in both runs, but for one more where a row is less.
    ids += [person_id(20_000 + 1000 * NAMES.index(name) + i) for i in range(holder.capacity - len(rows))]
    codes = np.full((holder.capacity, len(kept)), MISSING)
    for i, (_, record) in enumerate(rows):
        codes[i] = [record[j] for j in kept]
    return RowFormat(own).pack(np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ID_BYTES), codes)


def corrupt_words(draws: Draws, study: Study, name: str, persons: list[Person], honest: np.ndarray) -> Any:
    """What a corrupt holder sends: it knows everybody, and what would make a sum wrap."""
    holder, layout = study.manifest.holder(name), study.manifest.layout
    if holder.brings == "rows":
        record = draws.among(*(record for p in persons for record in p.records))
        same = layout.marginals(np.array([record]))
        near = draws.among(1 << 32, 1 << study.manifest.counted_bits, 1 << 31, 1 << 16)
        claimed = draws.among(near - int(draws.among(*honest[same > 0], 1)) + draws.number(-1, 1), draws.number(0, 5))
        if draws.chance(0.2):
            return draws.generator.integers(0, 1 << 32, layout.cells, np.uint32)  # refused, if totals differ
        return (same * claimed % (1 << 32)).astype(np.uint32)
    own = study.manifest.columns_of(holder).domain()
    if not study.joined:
        codes = np.array([[draws.number(-1, size - 1) for size in own.sizes] for _ in range(SLOTS)])
        words = Z16.encode(own.one_hot(codes)).copy()
        if draws.chance(0.15):
            words[draws.number(0, SLOTS - 1), draws.number(0, own.width - 1)] = draws.among(2, 1 << 15, 65_535)
        return words
    assert holder.capacity is not None
    known = [place for p in persons for place in p.places]
    numbers = [draws.among(*known, 5000 + i) for i in range(holder.capacity)]
    if not draws.chance(0.3):  # else somebody is there twice, which is refused
        numbers = [n if n not in numbers[:i] else 6000 + i for i, n in enumerate(numbers)]
    ids = np.frombuffer(b"".join(map(person_id, numbers)), np.uint8).reshape(-1, ID_BYTES)
    rows = RowFormat(own).pack(ids, np.full((len(numbers), len(own.names)), MISSING))
    rows[:, ID_BYTES:] = draws.generator.integers(0, 256, rows[:, ID_BYTES:].shape)
    return rows if draws.chance(0.9) else rows[::-1].copy()


def drawn_request(draws: Draws, study: Study, counts: np.ndarray, honest: np.ndarray) -> Selection | Comparison:
    """A request that servers would admit: its numbers are near counts, near where they wrap, or as large as may be."""
    manifest = study.manifest
    weights = manifest.program.candidates(manifest.task)
    compares = manifest.algorithm.name == "swift"
    chosen = [clique for clique in weights if compares or draws.chance(0.6)] or list(weights)
    cells = manifest.layout.positions(chosen)
    sizes = [manifest.domain.cells(clique) for clique in chosen]
    near = [counts[cells], honest[cells], np.zeros(len(cells)), np.full(len(cells), MOST_COUNTED // max(sizes))]
    estimate = np.rint(np.asarray(draws.among(*near), np.float64)).astype(np.int64) % (1 << 32)
    estimate = (estimate << UNIT_BITS) + draws.generator.integers(-300, 300, len(cells))
    if draws.chance(0.3):
        estimate[:] = 0
        estimate[draws.number(0, len(cells) - 1)] = draws.among(MOST_COUNTED << UNIT_BITS, 1, 256, 255, 257)
    estimate = np.clip(estimate, 0, MOST_COUNTED << UNIT_BITS)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for start, size in zip(starts, sizes, strict=True):
        if estimate[start : start + size].sum() > MOST_ESTIMATED:
            estimate[start : start + size] //= 4
    if compares:
        noise = next(step.mechanism for step in _steps(manifest) if isinstance(step.mechanism, GaussianErrors))
        comparison = Comparison("round1-compare", tuple(chosen), estimate, noise)
        comparison.check(manifest.layout, manifest.task.largest_count)
        return comparison
    bias = np.array([draws.among(0, size << UNIT_BITS, size * MOST_BIAS) for size in sizes])
    mechanism = next(
        step.mechanism
        for step in _steps(manifest)
        if step.role is Role.SELECT and isinstance(step.mechanism, NoisyMax | PermuteAndFlip)
    )
    wanted = np.array([weights[clique] for clique in chosen])
    selection = Selection("round1-select", tuple(chosen), estimate, bias, wanted, mechanism)
    selection.check(manifest.layout, manifest.task.largest_count)
    return selection


def _steps(manifest: Manifest) -> Any:
    schedule = manifest.program.schedule(manifest.task)
    while schedule.step is not None:
        yield schedule.step
        schedule = schedule.after()


async def computed(
    ctx: Context,
    *shares: Any,
    study: Study,
    bits: int | None,
    request: Selection | Comparison | None,
    noise: np.ndarray,
) -> Any:
    """COMPUTE ANSWERS as a server's run does it, and the scores of a selection, or the errors of a comparison."""
    manifest, counted, inputs = study.manifest, [], []
    for holder, share in zip(manifest.holders, shares, strict=True):
        names = manifest.columns_of(holder).domain().names
        if holder.brings == "rows":
            counted.append(HorizontalInput(holder.name, share))
        elif study.joined:
            inputs.append(JoinInput(holder.name, names, received(ctx, share)))
        else:
            inputs.append(ColumnsInput(holder.name, names, share))
    layout = manifest.layout
    whole = layout.cliques if inputs else None
    if study.joined:
        assert manifest.join is not None
        dummies = Dummies(ctx.public(Z64.encode(noise)), REACH) if len(inputs) > 1 else None
        answers = await compute_joined_answers(
            ctx.step("compute"),
            [*counted, *inputs],
            layout=layout,
            mode=Mode(manifest.join.mode),
            counted=whole,
            bits=bits,
            dummies=dummies,
        )
    else:
        answers = await compute_answers(
            ctx.step("compute"), [*counted, *inputs], layout=layout, counted=whole, bits=bits
        )
    if request is None:
        return answers.marginals, answers.accepted
    positions = layout.positions(request.candidates)
    cells = answers.marginals[positions]
    of_cells = (await count_bits(ctx.step("bits"), answers.marginals)).take(positions)
    public: dict[str, Any] = {"estimate": request.estimate, "starts": request.starts(layout)}
    if isinstance(request, Comparison):  # without noise
        silent = ctx.public(np.zeros(len(request.candidates), np.uint64))
        opened = await noisy_errors(ctx.step("errors"), cells, of_cells, silent, **public)
        return answers.marginals, answers.accepted, Z64.encode(opened)
    scores = await error_scores(
        ctx.step("scores"), cells, of_cells, bias=request.bias, weights=request.weights, **public
    )
    return answers.marginals, answers.accepted, scores


@dataclass
class Seen:
    """What comes of one run."""

    counts: np.ndarray
    accepted: list[bool]
    scores: np.ndarray
    patterns: Counter[tuple[int, ...]]
    """Of a join: how many tags occur how often in which tables."""


class Runs:
    """Both runs of one example. `wrapping` takes the bound of counts out: they have as many bits as the ring."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, *, wrapping: bool = False) -> None:
        draws = Draws(seed)
        manifest, corrupt = drawn_study(draws)
        self.study = study = Study(manifest, corrupt, [])
        self._bits = 32 if wrapping else manifest.counted_bits
        self._monkeypatch = monkeypatch
        privacy, taken = manifest.privacy, set[int]()
        study.others = [drawn_person(draws, study, taken, 1) for _ in range(draws.number(0, 4))]
        person = drawn_person(draws, study, taken, privacy.multiplicity)
        other = drawn_person(draws, study, taken, privacy.multiplicity)
        everybody = [*study.others, person, other]
        with_person = [*study.others, person]
        honest = self._honest(with_person)
        study.words = {name: corrupt_words(draws, study, name, everybody, honest) for name in sorted(corrupt)}
        self._sets = len(sets_of(len(manifest.joined))) if manifest.joined else 0
        self._noise = draws.generator.integers(-REACH, REACH + 1, self._sets)
        bounded = privacy.neighbouring == "bounded"
        without = [*study.others, other] if bounded else list(study.others)
        first = self._run(with_person, None)
        self.request = drawn_request(draws, study, first.counts.astype(np.int64), honest)
        self.first, self.second = self._run(with_person, self.request), self._run(without, self.request)

    def _honest(self, persons: list[Person]) -> np.ndarray:
        """Marginals of what honest holders of whole rows have: what a corrupt one aims at."""
        codes = [record for p in persons for record in p.records]
        return self.study.manifest.layout.marginals(np.array(codes).reshape(-1, len(COLUMNS)))

    def _run(self, persons: list[Person], request: Selection | Comparison | None) -> Seen:
        study = self.study
        sent = [
            study.words[one.name] if one.name in study.corrupt else honest_words(study, one.name, persons)
            for one in study.manifest.holders
        ]
        arguments = [dealt(words) if words.dtype == np.uint8 else words for words in sent]
        patterns: list[Counter[tuple[int, ...]]] = []
        original = alignment.match

        def watched(tags: Any, *args: Any) -> Any:
            patterns.append(times_in_tables(tags))
            return original(tags, *args)

        with self._monkeypatch.context() as patched:
            patched.setattr(join, "match", watched)
            kwargs: Any = {"study": study, "bits": self._bits, "request": request, "noise": self._noise}
            try:
                value = World(1).run(computed, *arguments, **kwargs).value
            except Failed:  # a tag that occurs twice in a table, seen before it was noticed
                return Seen(np.zeros(study.manifest.layout.cells), [], np.zeros(0), patterns[0])
        scores = Z64.signed(value[2]).astype(object) if request is not None else np.zeros(0)
        return Seen(value[0], value[1].tolist(), scores, patterns[0] if patterns else Counter())

    def violations(self, charged: Neighbouring) -> list[str]:
        """Where one person changed more than is charged for."""
        found, layout = [], self.study.manifest.layout
        if self.first.accepted != self.second.accepted:
            found.append(f"verdicts {self.first.accepted} and {self.second.accepted}")
        changes = self.first.counts.astype(object) - self.second.counts.astype(object)
        for clique in layout.cliques:
            change = changes[layout.part(clique)]
            norms = sum(map(abs, change)), sum(one * one for one in change)
            if norms[0] > charged.l1 or norms[1] > charged.l2_squared:
                found.append(f"{clique} changes by {change.tolist()}")
        moved = [abs(a - b) for a, b in zip(self.first.scores, self.second.scores, strict=True)]
        candidates = self.request.candidates
        weights = self.request.weights if isinstance(self.request, Selection) else [1] * len(candidates)
        for clique, weight, change in zip(candidates, weights, moved, strict=True):
            if change > (abs(int(weight)) << UNIT_BITS) * charged.score_factor:
                found.append(f"the score of {clique} changes by {change / 256} persons of weight {weight}")
        if isinstance(self.request, Comparison):  # the charge is that of a vector of this L2 norm
            rho = self.request.entry().rho(charged) * 2 * self.request.mechanism.sigma_squared
            if sum(change * change for change in moved) > rho * (1 << 2 * UNIT_BITS):
                found.append(f"the score of all candidates changes by {[change / 256 for change in moved]}")
        several = [
            self.first.patterns[pattern] - self.second.patterns[pattern]
            for pattern in {*self.first.patterns, *self.second.patterns}
            if sum(pattern) > 1
        ]
        overlaps = charged.moved
        if sum(map(abs, several)) > overlaps.l1 or sum(one * one for one in several) > overlaps.l2_squared:
            found.append(f"sets of holders change by {several}")
        return found


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_one_person_changes_no_more_than_is_charged(seed: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        runs = Runs(seed, monkeypatch)
        assert runs.violations(runs.study.manifest.neighbouring) == []
        assert all(
            flag or holder.name in runs.study.corrupt
            for holder, flag in zip(_in_order(runs.study.manifest), runs.first.accepted, strict=True)
        ), "an honest holder is never refused"


def _in_order(manifest: Manifest) -> list[Any]:
    """Holders in the order of verdicts: those that count first."""
    return sorted(manifest.holders, key=lambda holder: holder.brings != "rows")


def found_within(examples: int, violated: Any) -> int | None:
    return next((seed for seed in range(examples) if violated(seed)), None)


def test_the_fuzz_finds_counts_that_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """With counts of 32 bits, as many as the ring has, and no bound on what they add up to, somebody is told."""
    monkeypatch.setattr(compute, "MOST_COUNTED", 1 << 62)

    def violated(seed: int) -> bool:
        runs = Runs(seed, monkeypatch, wrapping=True)
        return any("score" in one for one in runs.violations(runs.study.manifest.neighbouring))

    assert found_within(400, violated) is not None


def test_the_fuzz_finds_columns_that_two_holders_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(seed: int) -> bool:
        runs = Runs(seed, monkeypatch)
        privacy = runs.study.manifest.privacy
        uncharged = Neighbouring(Relation(privacy.neighbouring), privacy.multiplicity)
        return bool(runs.study.manifest.shared_columns) and bool(
            [one for one in runs.violations(uncharged) if "sets of" not in one]
        )

    assert found_within(400, violated) is not None


def test_the_fuzz_finds_persons_of_more_rows_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(seed: int) -> bool:
        runs = Runs(seed, monkeypatch)
        charged = runs.study.manifest.neighbouring
        once = Neighbouring(charged.relation, 1, moves=charged.moves)
        return runs.study.manifest.privacy.multiplicity > 1 and bool(runs.violations(once))

    assert found_within(400, violated) is not None


def test_the_fuzz_finds_tables_that_repeat_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of identifiers, a repeated one shows whether others have it: by a pattern without dummies."""

    async def unchecked(ctx: Context, tables: Any) -> Any:
        return np.ones(len(tables), np.bool_)

    monkeypatch.setattr(join, "check_ids", unchecked)

    def violated(seed: int) -> bool:
        runs = Runs(seed, monkeypatch)
        changed = runs.first.patterns - runs.second.patterns
        return any(max(pattern) > 1 and min(filter(None, pattern)) == 1 for pattern in changed)

    assert found_within(200, violated) is not None


def test_requests_that_could_wrap_are_never_admitted() -> None:
    manifest, _ = drawn_study(Draws(3))
    layout, weights = manifest.layout, manifest.program.candidates(manifest.task)
    mechanism = NoisyMax.of_star(1)  # type: ignore[arg-type]
    cells = len(layout.positions(weights))
    asked = Selection(
        "s",
        tuple(weights),
        np.zeros(cells, np.int64),
        np.zeros(len(weights), np.int64),
        np.array(list(weights.values())) << 40,
        mechanism,
    )
    with pytest.raises(DomainError, match="a score could overflow"):
        asked.check(layout, manifest.task.largest_count)
