"""Protocols are written once, above the scheme: nothing outside its package knows who holds which component."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from caps.basics.schemes import REP3, SCHEMES
from caps.errors import DomainError
from caps.shares.ring import Z64
from services.mpc_server import engine
from services.mpc_server.engine import verbs
from services.mpc_server.engine.cost import Cost
from services.mpc_server.engine.registry import REGISTRY, verb
from services.mpc_server.engine.shares import AShare, Owner

FOLDER = Path(engine.__path__[0])
SCHEME_PACKAGES = {name.replace("-", "_") for name in SCHEMES}
ABOVE = sorted(path for path in FOLDER.rglob("*.py") if not SCHEME_PACKAGES & set(path.relative_to(FOLDER).parts))
COMPONENTS = {"mine", "next", "mine_only", "next_only", "previous", "component"}


def objections(source: str) -> Iterator[str]:
    """Where a module says which component, which party, or how many there are."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in COMPONENTS:
                yield f"line {node.lineno}: .{name}"
            case ast.Name(id="mine" | "next_"):
                yield f"line {node.lineno}: {node.id}"
            case ast.Subscript(value=ast.Attribute(attr="components"), slice=ast.Constant(value=int(number))) if number:
                yield f"line {node.lineno}: components[{number}]"
            case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=3)):
                yield f"line {node.lineno}: % 3"
            case ast.Compare(left=ast.Attribute(attr="party"), comparators=[ast.Constant()]):
                yield f"line {node.lineno}: compares the party with a number"
            case ast.ImportFrom(module=str(module), names=names):
                if ".rep" in module or any(one.name.startswith("REP") and one.name != "REGISTRY" for one in names):
                    yield f"line {node.lineno}: imports {module}"


@pytest.mark.parametrize("path", ABOVE, ids=[path.relative_to(FOLDER).as_posix() for path in ABOVE])
def test_no_module_outside_the_scheme_touches_components(path: Path) -> None:
    assert list(objections(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "x.mine + y",
        "ctx.next",
        "ctx.prss.component(1, label)",
        "mine, next_ = x.components",
        "x.components[1]",
        "(party + 1) % 3",
        "if ctx.party == 0: pass",
        "from services.mpc_server.engine.rep3.arithmetic import multiply",
        "from caps.basics.schemes import REP3",
    ],
)
def test_what_touches_components_is_seen(source: str) -> None:
    assert list(objections(source))


def test_what_serves_every_scheme_is_not_objected_to() -> None:
    source = "next(iter(x.components)); x.components[0].shape; x % 8; channel.party != self.context.party"
    assert not list(objections(source))


def test_every_scheme_has_every_verb() -> None:
    assert verbs.VERBS
    for one in verbs.VERBS:
        assert one.schemes == SCHEMES.keys(), one.__name__


def test_every_protocol_has_a_cost_under_every_scheme() -> None:
    compared = {one.__name__ for one in verbs.COMPARED}
    for name, declaration in REGISTRY.items():
        assert set(declaration.costs) == set(declaration.sources), name
        only_compared = name in compared or declaration.module.startswith("paper")
        assert set(declaration.costs) == ({"rep3"} if only_compared else SCHEMES.keys()), name


def test_a_verb_is_that_of_the_scheme_it_is_called_with() -> None:
    other = replace(REP3, name="other")

    @verb
    def name_of(owner: Owner) -> str:
        """Which scheme.

        Pre-conditions: none.
        Leaks: nothing.
        """
        raise NotImplementedError

    try:
        for scheme in (REP3, other):
            name_of.of(scheme.name, "nowhere", Cost(rounds=1, sent=len(scheme.name)))(lambda owner: owner.scheme.name)
        for scheme in (REP3, other):
            assert name_of(Owner(0, bytes(32), scheme)) == scheme.name
            assert REGISTRY["name_of"].costs[scheme.name].sent_by(0, {}) == len(scheme.name)
        with pytest.raises(DomainError, match="third"):
            name_of(Owner(0, bytes(32), replace(REP3, name="third")))
        with pytest.raises(ValueError, match="twice"):
            name_of.of("rep3")(lambda _: "")
    finally:
        REGISTRY.pop("name_of", None)


def test_linear_functions_serve_any_number_of_components() -> None:
    """Of four components a party may hold three: sums, constants and rearrangement ask the scheme."""
    held = ((0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1))
    scheme = replace(REP3, name="rep4", held=held, seeded=(0, 1, 2))
    rng = np.random.default_rng(1)
    parts = rng.integers(0, 1 << 63, (4, 6), np.uint64)
    value = parts.sum(axis=0, dtype=np.uint64)
    for owned in (lambda x: x * 3 + 5, lambda x: 7 - x[::-1], lambda x: x.scatter([1, 0, 2, 3, 5, 4], (6,)) + x):
        shares = [owned(AShare(Owner(p, bytes(32), scheme), *parts[list(held[p])].copy())) for p in range(4)]
        components = {}
        for party, share in enumerate(shares):
            for number, words in zip(held[party], share.components, strict=True):
                assert np.array_equal(components.setdefault(number, words), words)
        expected = owned(AShare(Owner(0, bytes(32), replace(scheme, held=((0,),))), value)).components[0]
        assert np.array_equal(sum(components[i] for i in range(4)), expected)
        assert expected.dtype == Z64.dtype
