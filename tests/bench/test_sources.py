"""Digests of code: what counts, what does not, and that every result has one."""

import numpy as np
import pytest

from bench import report, results, sources
from bench.peers import published
from bench.peers.draws import Draws
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Domain
from services.coordinator.estimation import Measured
from services.coordinator.generate import create_estimator, kernel

MODULE = '''"""What it is."""

# a remark
def double(x):  # why
    """Twice."""

    return "#" + 2 * x  # é


é = """kept"""
'''


def test_what_is_executed_is_left():
    assert sources.executed(MODULE) == 'def double(x):\n    return "#" + 2 * x\né = """kept"""'


def test_docstrings_of_many_lines_and_beside_others():
    text = 'def f():\n    """One\n    two"""; return 1\n'
    assert sources.executed(text) == "def f():\n; return 1"
    assert sources.executed('x = 1\n"""About x,\nin two lines."""\n') == "x = 1"


@pytest.fixture
def tree(tmp_path):
    """A folder and a module beside it."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "one.py").write_text(MODULE)
    (tmp_path / "alone.py").write_text("x = 1\n")
    return tmp_path


def digest(tree):
    sources.digest.cache_clear()
    return sources.digest(("package", "alone.py"), tree)


@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        ("alone.py", "\n# said otherwise\nx = 1", True),
        ("alone.py", "x = 2\n", False),
        ("package/one.py", MODULE.replace("2 * x", "x + x"), False),
        ("package/one.py", MODULE.replace("Twice", "Two times"), True),
        ("package/two.py", "", False),
        ("package/inner/two.py", "y = 1", False),
        ("other.py", "y = 1", True),
    ],
)
def test_a_digest_follows_the_code_and_nothing_else(tree, name, text, same):
    before = digest(tree)
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text(text)
    assert (digest(tree) == before) == same


def test_what_is_left_out_may_change(tree):
    def without():
        sources.digest.cache_clear()
        return sources.digest(("package", "!package/inner", "!package/one.py"), tree)

    (tree / "package" / "inner").mkdir(exist_ok=True)
    for name, text, same in (("inner/two.py", "y = 1", True), ("one.py", "x = 3", True), ("three.py", "z = 1", False)):
        before = without()
        (tree / "package" / name).write_text(text)
        assert (without() == before) == same


def test_a_source_that_is_gone_is_named(tree):
    (tree / "alone.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"alone\.py"):
        digest(tree)


def test_every_section_of_the_page_has_sources_that_are_there():
    assert set(report.SECTIONS) - {results.BY_RUN} <= set(sources.SUBJECTS)
    for paths in (*sources.SUBJECTS.values(), *sources.UTILITY.values()):
        assert len(sources.digest(paths)) == 16


def test_published_mechanisms_execute_nothing_that_their_digest_leaves_out(monkeypatch):
    """Whatever the estimator has from these modules fails; so a run of theirs follows from none of them."""

    def fail(*_, **__):
        raise AssertionError("a published mechanism came by a module that its digest leaves out")

    left = {path[1:].removesuffix(".py").replace("/", ".") for path in sources.UTILITY["original"] if path[0] == "!"}
    assert len(left) == 4
    used = [name for name, value in vars(kernel).items() if getattr(value, "__module__", None) in left]
    assert {"measured_columns", "measured_pairs", "expected_counts", "expected_shares", "prior_weight"} <= set(used)
    for name in used:
        monkeypatch.setattr(kernel, name, fail)
    domain = Domain(tuple(Attribute(name, 3) for name in "abc"))
    codes = np.indices((3, 3, 3)).reshape(3, -1).T.repeat(20, axis=0)
    for perform in published.MECHANISMS.values():
        made = perform(Draws(domain, codes, Uniform(0)), 0.5, lambda domain: create_estimator("kernel", domain))
        assert made.codes.shape[1] == 3
    estimator = create_estimator("kernel", domain)
    measured = [Measured(("a",), np.full(3, 180.0), 1.0)]
    with pytest.raises(AssertionError, match="leaves out"):
        estimator.smoothed(estimator.fit(measured), measured)
