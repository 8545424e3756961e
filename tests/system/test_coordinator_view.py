"""What the coordinator receives and keeps in a vertical run: public things and noisy answers, and nothing else.

Everything that reaches it is recorded for two studies alike in all that is public, on data that could hardly differ
more. Of what came, each field is accounted for: it is public, it is noise on what it may learn, or it is a signature.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from caps.dp.oracle import Measurement
from caps.wire import Answer, Signed
from caps.wire.steps import request_from_json
from deploy.federation import COORDINATOR, SERVERS
from tests.kit.processes import CANARIES, NAME, NUMBER, Everybody, Study, persons, vertical
from tests.kit.recording_service import FILE, recorded

pytestmark = pytest.mark.e2e

UNDER = ("tests.kit.recording_service",)
HEX = re.compile(r"\b[0-9a-f]{16,}\b")
Record = dict[str, Any]


@pytest.fixture
def overheard(everybody: Everybody) -> Iterator[Everybody]:
    """The federation with a coordinator that writes down what it hears."""
    everybody.stop(COORDINATOR)
    everybody.start(COORDINATOR, under=UNDER)
    everybody.start()
    everybody.wait_ready()
    yield everybody
    everybody.restart(COORDINATOR, under=everybody.under)


def poor(count: int) -> pl.DataFrame:
    """Persons who are all alike, apart from the first."""
    frame = pl.DataFrame({"income": [1.25] * count, "smoker": ["no"] * count, "illness": ["asthma"] * count})
    first = pl.DataFrame({"income": [float(NUMBER)], "smoker": [NAME], "illness": ["none"]}, schema=frame.schema)
    return pl.concat([first, frame[1:]])


def heard(federation: Everybody, folder: Path, data: pl.DataFrame) -> tuple[Study, list[Record]]:
    """A study, and all that the coordinator received from machines while it went on."""
    folder.mkdir()
    home = federation.places[COORDINATOR].home
    (home / FILE).unlink(missing_ok=True)
    study = vertical(federation, folder, data, algorithm="mst")
    study.go()
    return study, recorded(home)


def machines(records: list[Record]) -> list[Record]:
    """What came from servers and holders; people's polling is of no interest."""
    return [one for one in records if one["kind"] == "answer" or "/approvals/" in one["path"]]


def test_the_coordinator_hears_public_things_and_noisy_answers(overheard: Everybody, tmp_path: Path) -> None:
    first = heard(overheard, tmp_path / "first", persons(200, 21))
    second = heard(overheard, tmp_path / "second", poor(37))
    both = first, second
    no_canary_comes_or_stays(overheard, both)
    what_comes_has_the_same_shape_whatever_the_data_are(both)
    every_field_is_accounted_for(both)
    all_numbers_that_depend_on_data_are_the_answers(both)
    how_many_persons_there_are_is_not_told(both)


Both = tuple[tuple[Study, list[Record]], tuple[Study, list[Record]]]


def kept(federation: Everybody) -> bytes:
    """Every byte on the coordinator's disk, its own keys and its log included."""
    home = federation.places[COORDINATOR].home
    return b"\0".join(path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file())


def no_canary_comes_or_stays(overheard: Everybody, both: Both) -> None:
    assert all(value in path.read_text() for study, _ in both for path, value in _homes(study))
    for _, records in both:
        assert records
        for record in records:
            assert not any(value in json.dumps(record) for value in CANARIES), record["path"]
    stored = kept(overheard)
    assert not any(value.encode() in stored for value in CANARIES)


def _homes(study: Study) -> list[tuple[Path, str]]:
    return [(study.files["north"], NUMBER), (study.files["south"], NAME)]


def shape(value: Any, name: str = "") -> Any:
    """A document without what may differ: numbers, digests, signatures and times keep their kind only."""
    if isinstance(value, dict):
        return {key: shape(one, key) for key, one in sorted(value.items())}
    if isinstance(value, list):
        return [shape(one, name) for one in value]
    if isinstance(value, str):
        found = HEX.sub(lambda match: f"<{len(match[0])} hex>", value)
        return "<time>" if re.fullmatch(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", found) else found
    return "<number>" if isinstance(value, int | float) and not isinstance(value, bool) else value


def sketch(records: list[Record]) -> Counter[str]:
    """What came, how often: method, path and the shape of the body. Waiting (202) is as often as computing takes."""
    told: Counter[str] = Counter()
    for one in machines(records):
        if one.get("status") == 202 or one["path"].endswith("/contributions"):
            continue
        body = json.loads(one["body"]) if one["body"] else None
        told[json.dumps([one["kind"], one["method"], HEX.sub("<id>", one["path"]), shape(body)])] += 1
    return told


def what_comes_has_the_same_shape_whatever_the_data_are(both: Both) -> None:
    """Which columns MST joins, and so the sizes of two answers, are noisy selections: these are set aside."""
    one, other = (sketch(records) for _, records in both)
    chosen = sum(((one - other) + (other - one)).values())
    assert all("/steps/" in line for line in (one - other) + (other - one))
    assert chosen <= 2 * 2 * len(SERVERS)
    assert sum(one.values()) == sum(other.values())


def every_field_is_accounted_for(both: Both) -> None:
    allowed = {
        "PUT /v1/studies/<id>": {"document", "signer", "signature"},
        "GET /v1/studies/<id>/contributions": {"contribution", "holder", "state", "missing", "receipt"},
        "PUT /v1/studies/<id>/seal": {"document", "signer", "signature"},
        "PUT /v1/runs/<id>": {
            "run", "study", "inputs", "state", "reason", "evidence", "party", "position", "due", "rounds", "bytes_sent",
            "interrupted",
        },
        "PUT /v1/runs/<id>/steps/N": {"document", "signer", "signature"},
        "PUT /v1/runs/<id>/attestation": {"document", "signer", "signature"},
        "PUT /v1/studies/<id>/approvals/north": {"document", "signer", "signature"},
        "PUT /v1/studies/<id>/approvals/south": {"document", "signer", "signature"},
    }  # fmt: skip
    for _, records in both:
        seen = set()
        for one in machines(records):
            if one.get("status") in (202, 503):
                continue
            route = f"{one['method']} {re.sub('/steps/[0-9]+', '/steps/N', HEX.sub('<id>', one['path']))}"
            body = json.loads(one["body"])
            for document in body if isinstance(body, list) else [body]:
                assert document.keys() <= allowed[route], route
            seen.add(route)
        assert seen == allowed.keys()


def all_numbers_that_depend_on_data_are_the_answers(both: Both) -> None:
    """The answers of the three servers to each step are one and the same, noisy: the true counts occur nowhere."""
    for study, records in both:
        layout = study.manifest.layout
        counts = layout.marginals(study.codes)
        requests = _requests(study)
        told: dict[int, set[str]] = {}
        for one in machines(records):
            number = re.search(r"/steps/(\d+)$", one["path"])
            if number and one["status"] == 200:
                answer = Signed[Answer].model_validate_json(one["body"]).document
                told.setdefault(int(number[1]), set()).add(json.dumps(answer.value))
                assert one["body"].count("[") <= 1
        assert told.keys() == requests.keys()
        assert all(len(values) == 1 for values in told.values())
        noises = []
        for number, body in requests.items():
            asked = request_from_json(body)
            if isinstance(asked, Measurement):
                true = counts[layout.part(asked.clique)]
                value = np.array(json.loads(next(iter(told[number]))))
                noises.append((value - true) / np.sqrt(float(asked.mechanism.sigma_squared)))
                text = re.sub(r"\s", "", json.dumps(true.tolist()))
                assert not any(text in re.sub(r"\s", "", record["body"]) for record in records)
        noise = np.concatenate(noises)
        assert len(noise) == 27  # of three columns and two pairs
        assert 0.4 < np.sqrt(np.mean(noise**2)) < 1.8  # chance alone is outside once in more than 10**7 times


def _requests(study: Study) -> dict[int, dict[str, Any]]:
    import sqlite3

    home = study.federation.places[COORDINATOR].home
    database = sqlite3.connect(home / "state" / "state.db", timeout=10)
    try:
        rows = database.execute("SELECT step, request FROM steps WHERE run = ?", (study.run,)).fetchall()
    finally:
        database.close()
    return {step: json.loads(text) for step, text in rows}


def how_many_persons_there_are_is_not_told(both: Both) -> None:
    """200 persons and 37 make the same messages."""
    (first, one), (second, other) = both
    assert first.manifest.alignment == second.manifest.alignment
    assert len(first.codes) != len(second.codes)
    sizes = [
        Counter(
            (HEX.sub("<id>", record["path"]), len(shape_text(record["body"])))
            for record in machines(records)
            if record.get("status") in (200, 201) and "/steps/" not in record["path"]
        )
        for records in (one, other)
    ]
    assert sizes[0] == sizes[1]
    assert "released" == first.state().state == second.state().state


def shape_text(body: str) -> str:
    """Without numbers and times: how many digits they have is chance."""
    return json.dumps(shape(json.loads(body)))
