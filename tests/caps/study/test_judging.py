"""A manifest is what a stranger may send: judging one costs at most linear time in what it says will be done.

No clock is read. Bytecodes are counted for a manifest and for one that is twice as large, and those for each unit of
what the manifest says must not grow. What C functions do inside is not counted, so what they could scan is bounded by
figures, each of which has a test here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from caps.data.domain import MAX_ATTRIBUTES, MAX_PARTS
from caps.data.schema.columns import MAX_TOKENS
from caps.dp.privacy.schedule import MAX_ROUNDS
from caps.study import Policy
from caps.study.account import Account
from caps.study.authoring import check
from caps.study.manifest import MAX_PARAMETERS, Manifest
from caps.study.planning import declared_costs, plan_study
from tests.kit.operations import operations
from tests.kit.study import Keys, example_json, honest_walk, make_keys

POLICY = Policy(largest_epsilon=20.0, populations={"patients": 12.0}, largest_memory=10**15)
MOST_HOLDERS = 64


@pytest.fixture(scope="module")
def keys() -> Keys:
    return make_keys(["S1", "S2", "S3", "coordinator", *(f"h{i}" for i in range(MOST_HOLDERS))])


def document(
    keys: Keys,
    *,
    columns: int = 4,
    categories: int = 2,
    holders: int = 2,
    algorithm: str = "aim",
    rounds: int | None = 3,
    spread: bool = False,
    **others: Any,
) -> dict[str, Any]:
    names = [f"c{i}" for i in range(columns)]
    values = [f"v{value}" for value in range(categories)]
    schema = {"columns": [{"name": name, "kind": "categorical", "categories": values} for name in names]}
    brought = [(f"h{i}", names if spread else None) for i in range(holders)]
    parameters = {} if rounds is None else {"rounds": rounds}
    choice = {"name": algorithm, "parameters": parameters}
    found, _ = example_json(schema=schema, holders=brought, algorithm=choice, epsilon="10", keys=keys, **others)
    return found


def judged(found: dict[str, Any]) -> Callable[[], None]:
    """Everything that is done with a manifest before a run: by a server, by an author, and by whoever verifies."""

    def work() -> None:
        manifest = Manifest.from_json(found)
        POLICY.judge(manifest)
        check(json.dumps(found))
        plan_study(manifest, declared_costs(manifest)).to_json()
        Account(manifest, [holder.name for holder in manifest.holders])

    return work


def growth(small: dict[str, Any], large: dict[str, Any], least: dict[str, Any]) -> float:
    """How much more the large manifest costs than the small one, both beyond what the least costs."""
    for one in (least, small, large):
        judged(one)()  # noise tables and schemas are made once in a process, and not again
    base, few, many = (operations(judged(one)) for one in (least, small, large))
    return (many - base) / (few - base)


@pytest.mark.parametrize("algorithm", ["aim", "mwem", "gaussian"])
def test_work_is_linear_in_the_queries(keys: Keys, algorithm: str) -> None:
    rounds = None if algorithm == "gaussian" else 3
    columns = (6, 24, 48)
    least, small, large = (document(keys, columns=n, algorithm=algorithm, rounds=rounds) for n in columns)
    queries = [n * (n - 1) / 2 for n in columns]
    assert growth(small, large, least) < 1.1 * (queries[2] - queries[0]) / (queries[1] - queries[0])


def test_work_is_linear_in_the_pairs_of_a_tree(keys: Keys) -> None:
    columns = (6, 20, 40)
    least, small, large = (document(keys, columns=n, algorithm="mst", rounds=None) for n in columns)
    pairs = [n * (n - 1) / 2 for n in columns]
    assert growth(small, large, least) < 1.1 * (pairs[2] - pairs[0]) / (pairs[1] - pairs[0])


def test_work_is_linear_in_the_categories(keys: Keys) -> None:
    choices: dict[str, Any] = {"columns": 2, "algorithm": "gaussian", "rounds": None}
    least, small, large = (document(keys, categories=n, **choices) for n in (4, 100, 200))
    assert growth(small, large, least) < 1.1 * 196 / 96


@pytest.mark.parametrize("spread", [False, True], ids=["rows", "columns"])
def test_work_is_linear_in_the_holders(keys: Keys, spread: bool) -> None:
    least, small, large = (document(keys, holders=n, spread=spread) for n in (2, 32, 64))
    assert growth(small, large, least) < 1.1 * 62 / 30


def test_work_is_linear_in_the_columns_that_holders_bring(keys: Keys) -> None:
    workload = [{"attributes": ["c0"]}]
    choices: dict[str, Any] = {"spread": True, "holders": 8, "workload": workload}
    least, small, large = (document(keys, columns=n, **choices) for n in (4, 40, 80))
    assert growth(small, large, least) < 1.1 * 76 / 36


@pytest.mark.parametrize("algorithm", ["aim", "mwem"])
@pytest.mark.parametrize("accounting", ["zcdp", "pure"])
def test_rounds_are_not_walked(keys: Keys, algorithm: str, accounting: str) -> None:
    if (algorithm, accounting) == ("aim", "pure"):
        return
    few, many = (document(keys, algorithm=algorithm, rounds=n) for n in (100, MAX_ROUNDS // 10))
    for one in (few, many):
        one["privacy"]["accounting"] = accounting
        judged(one)()
    assert operations(judged(many)) < 1.2 * operations(judged(few))  # numbers have more digits, and that is all


def test_weights_with_many_digits_cost_what_others_do(keys: Keys) -> None:
    def weighted(weight: int) -> dict[str, Any]:
        return document(keys, workload=[{"attributes": [f"c{i}"], "weight": weight + i} for i in range(4)])

    small, large = weighted(1), weighted(1 << 19)
    judged(small)(), judged(large)()
    assert operations(judged(large)) < 1.1 * operations(judged(small))


@pytest.mark.parametrize(("algorithm", "walked"), [("mwem", "rounds"), ("aim", "rounds"), ("gaussian", "queries")])
def test_enforcing_a_run_is_linear_in_its_steps(keys: Keys, algorithm: str, walked: str) -> None:
    def walk(size: int) -> tuple[int, int]:
        if walked == "rounds":
            found = document(keys, columns=3, algorithm=algorithm, rounds=size)
        else:
            workload = [{"attributes": [f"c{i}", f"c{i + 1}"]} for i in range(size)]
            found = document(keys, columns=size + 1, algorithm=algorithm, rounds=None, workload=workload)
        manifest = Manifest.from_json(found)
        steps = len(honest_walk(manifest)[1])
        return steps, operations(lambda: honest_walk(manifest))

    (few, cost), (many, more) = walk(16), walk(64)
    assert many > 3 * few
    assert more / many < 1.15 * cost / few


def test_what_an_enforcer_keeps_does_not_grow_with_rounds(keys: Keys) -> None:
    account, _ = honest_walk(Manifest.from_json(document(keys, columns=3, algorithm="mwem", rounds=40)))
    assert (account.enforcer._offered, account.enforcer._measured) == ((), ())


def refusal(found: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Manifest.from_json(found)
    return str(caught.value)


def _columns(count: int) -> dict[str, Any]:
    return {"columns": [{"name": f"c{i}", "kind": "boolean"} for i in range(count)]}


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        pytest.param({"schema": _columns(MAX_ATTRIBUTES + 1)}, "at most 1024 columns, not 1,025", id="columns"),
        pytest.param({"schema": _columns(MAX_ATTRIBUTES)}, "1024 columns have 523,776 pairs, too many", id="pairs"),
        pytest.param(
            {"schema": _columns(40), "workload": [{"attributes": [f"c{i}" for i in range(40)]}]},
            "a query has 40 attributes; at most 19 are allowed",
            id="attributes",
        ),
        pytest.param(
            {"schema": _columns(20), "workload": [{"attributes": [f"c{i}" for i in range(19)]}] * 2},
            f"the 2 queries have 1,048,574 parts; at most {MAX_PARTS:,} are allowed",
            id="parts",
        ),
        pytest.param(
            {"algorithm": {"name": "aim", "parameters": {"rounds": MAX_ROUNDS + 1}}},
            f"an algorithm must have 1 to {MAX_ROUNDS} rounds",
            id="rounds",
        ),
        pytest.param(
            {"algorithm": {"name": "aim", "parameters": {f"p{i}": 1 for i in range(MAX_PARAMETERS + 1)}}},
            "at most 32 items",
            id="parameters",
        ),
        pytest.param({"algorithm": {"name": "a" * 65}}, "at most 64 characters", id="algorithm"),
        pytest.param(
            {"privacy": {"epsilon": "1" + "0" * 100, "delta": "1e-6", "population": "patients"}},
            "must be a decimal number of at most 64 characters",
            id="digits",
        ),
        pytest.param(
            {
                "schema": {
                    "columns": [
                        {"name": "a", "kind": "boolean", "missing_values": [f"m{i}" for i in range(MAX_TOKENS + 1)]}
                    ]
                }
            },
            "must be at most 1000, not 1001",
            id="missing values",
        ),
    ],
)
def test_what_is_too_large_is_refused_by_its_figure_before_it_is_worked_on(
    keys: Keys, change: dict[str, Any], refused: str
) -> None:
    found = document(keys) | change
    assert refused in refusal(found)
    assert operations(lambda: refusal(found)) < 4_000_000  # columns are read; no pair or part is made


def test_remarks_on_many_members_are_found_without_a_search_for_each(keys: Keys) -> None:
    def remarked(count: int) -> Callable[[], object]:
        text = json.dumps(document(keys) | {f"unknown{i}": 1 for i in range(count)})
        return lambda: check(text)

    assert len(remarked(8)()) == 8  # type: ignore[arg-type]
    least, few, many = (operations(remarked(count)) for count in (8, 100, 200))
    assert (many - least) / (few - least) < 1.1 * 192 / 92
