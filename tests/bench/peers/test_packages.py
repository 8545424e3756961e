"""Mechanisms of other packages: what comes back from their process, and the words for what does not."""

import sys

import numpy as np
import pytest

from bench.peers import packages
from bench.peers.environment import PeersUnavailable
from caps.data.domain import Attribute, Domain
from caps.errors import DomainError

DOMAIN = Domain((Attribute("a", 2), Attribute("b", 3)))
CODES = np.array([[0, 2], [1, 1]])
WRITES = "import sys, numpy as np; np.savez(sys.argv[3], codes=np.array({codes}), times=np.array([2.0, 1.5]))"


@pytest.fixture
def perform(monkeypatch, tmp_path):
    """One run by this interpreter, of a script given."""

    def run(script, limit=60.0):
        path = tmp_path / "task.py"
        path.write_text(script)
        monkeypatch.setattr(packages, "python_of", lambda _: sys.executable)
        monkeypatch.setattr(packages, "TASK", path)
        return packages.perform(
            "opendp-aim", DOMAIN, CODES, epsilon="1", delta="1e-9", rho=0.01, limit=limit, environment={}
        )

    return run


def test_rows_and_times_come_back(perform):
    codes, times = perform(WRITES.format(codes="[[1, 2]]"))
    assert codes.tolist() == [[1, 2]]
    assert times == {"seconds": 2.0, "cpu_seconds": 1.5}


def test_rows_outside_the_domain_are_refused(perform):
    with pytest.raises(DomainError, match="outside its categories"):
        perform(WRITES.format(codes="[[1, 3]]"))


def test_a_process_that_fails_says_why(perform):
    with pytest.raises(packages.Failed, match="no budget for this"):
        perform("import sys; sys.exit('no budget for this\\n\")')")


def test_a_process_that_does_not_end_is_ended(perform):
    with pytest.raises(packages.Failed, match=r"no end within 0.5 s"):
        perform("import time; time.sleep(60)", limit=0.5)


def test_an_environment_that_cannot_be_made_says_so(monkeypatch):
    def unavailable(name):
        raise PeersUnavailable("cannot install the peers: no index")

    monkeypatch.setattr(packages, "python_of", unavailable)
    with pytest.raises(packages.Failed, match="no index"):
        packages.perform("opendp-aim", DOMAIN, CODES, epsilon="1", delta="0", rho=1.0, limit=1.0, environment={})
