"""The engine in three real processes over real TLS: same results, same costs as in memory."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from caps.errors import party_name
from caps.shares.ring import planes_to_words
from caps.shares.sharing import Algebra, reconstruct
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.local import local_servers, run_task
from tests.kit.cases.all import CASES
from tests.kit.cases.base import assert_equal
from tests.kit.tls_tasks import source

pytestmark = pytest.mark.integration


def unpacked(parts):
    if isinstance(parts[0], list):
        return tuple(unpacked(same) for same in zip(*parts, strict=True))
    first = parts[0]
    if first["kind"] == "opened":
        assert parts[0] == parts[1] == parts[2]
        values = np.array(first["values"], dtype=object)
        return values.astype(np.int64 if np.any(values < 0) else np.uint64)
    pairs = [
        tuple(np.frombuffer(base64.b64decode(c), part["dtype"]).reshape(part["rows"]) for c in part["components"])
        for part in parts
    ]
    if first["kind"] == "AShare":
        return reconstruct(pairs)
    planes = reconstruct(pairs, algebra=Algebra.XOR)
    return planes_to_words(planes, int(np.prod(first["shape"], dtype=int))).reshape(first["shape"])


@pytest.mark.parametrize("seed", [1, 2])
def test_every_protocol_gives_the_same_over_tls(seed: int) -> None:
    names = sorted(CASES)
    reports = run_task("tests.kit.tls_tasks:run_cases", {"names": names, "seed": seed}, timeout=280)
    for position, name in enumerate(names):
        parts = [report[position] for report in reports]
        call = CASES[name][1](source(seed))
        value = unpacked([part["result"] for part in parts])
        if call.check is not None:
            call.check(value)
        else:
            assert_equal(value, call.expect)
        cost = REGISTRY[name].costs["rep3"]
        assert {part["rounds"] for part in parts} == {cost.rounds_for(call.sizes)}
        assert [part["sent"] for part in parts] == [cost.sent_by(p, call.sizes) for p in range(3)]


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_party_that_fails_locally_tells_the_others_why(culprit: int) -> None:
    with local_servers("tests.kit.tls_tasks:fail_locally", {"culprit": culprit}) as servers:
        reports = servers.wait(60)
    assert reports[culprit].error["type"] == "ShareError"
    for report in reports:
        if report.party != culprit:
            assert report.error["type"] == "PeerAborted"
            assert culprit in (report.error["party"], report.error["blames"])
            assert "differ in shape or ring" in report.error["message"]
            assert party_name(culprit) in report.error["message"]
