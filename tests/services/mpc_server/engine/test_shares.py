"""Shares refuse what no share may do, and protocols refuse arguments that do not fit, before anything is sent."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from caps.basics.schemes import REP3
from caps.errors import DomainError, LabelReused, ShareError
from caps.shares.ring import Z16, Z22, Z64
from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import pick, tournament
from services.mpc_server.engine.comparison import equal, less_than
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import FIRST, Cost, Expr, largest, log2, plane
from services.mpc_server.engine.paper.randomness import random_fraction
from services.mpc_server.engine.registry import REGISTRY, protocol
from services.mpc_server.engine.shares import AShare, BShare, Owner, concatenate, stack_planes
from services.mpc_server.engine.verbs import (
    conjunction,
    dot,
    gram,
    lift,
    matmul,
    multiply,
    reveal_bits,
    share_bits_from,
    share_from,
    truncate,
)
from services.mpc_server.testing.world import Bits, Failed, PerParty, Recorder, World

ALICE, BOB = Owner(0, bytes(32), REP3), Owner(0, b"\1" * 32, REP3)


def ashare(*values: int, owner: Owner = ALICE, ring=Z64) -> AShare:
    words = ring.encode(np.array(values))
    return AShare(owner, words, words.copy())


def bshare(count: int, width: int = 1, owner: Owner = ALICE) -> BShare:
    words = np.zeros((width, -(-count // 64)), np.uint64)
    return BShare(owner, (count,), words, words.copy())


@pytest.mark.parametrize("share", [ashare(1, 2), bshare(2)], ids=["arithmetic", "bits"])
def test_shares_are_inert(share) -> None:
    for forbidden in (
        lambda: bool(share),
        lambda: share == share,
        lambda: list(share),
        lambda: pickle.dumps(share),
        lambda: copy.copy(share),
        lambda: hash(share),
    ):
        with pytest.raises((ShareError, TypeError)):
            forbidden()
    with pytest.raises(AttributeError):
        share.components = share.components[:1]
    with pytest.raises(ValueError, match="read-only"):
        share.components[0][0] = 1


def test_no_element_shows_in_repr_or_format() -> None:
    text = f"{ashare(123456789)} {ashare(123456789)!r} {ashare(987654321)!s}"
    assert "123456789" not in text
    assert "987654321" not in text
    assert "Z_2^64" in text


def test_shares_of_different_studies_parties_or_rings_do_not_mix() -> None:
    for operation in (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: concatenate([x, y])):
        with pytest.raises(ShareError, match="study 0101"):
            operation(ashare(1), ashare(1, owner=BOB))
        with pytest.raises(ShareError, match="do not mix"):
            operation(ashare(1), ashare(1, ring=Z16))
    with pytest.raises(ShareError, match="study 0101"):
        bshare(1) ^ bshare(1, owner=BOB)
    with pytest.raises(ShareError, match="do not fit"):
        bshare(1) ^ bshare(2)
    with pytest.raises(ShareError, match="do not fit"):
        bshare(1) ^ bshare(1, width=2)
    with pytest.raises(ShareError, match="do not fit"):
        stack_planes([bshare(1), bshare(2)])


def test_products_of_shares_are_protocols_not_operators() -> None:
    with pytest.raises(ShareError, match="multiply"):
        ashare(1) * ashare(1)
    with pytest.raises(ShareError, match="must be integers"):
        ashare(1) * 0.5
    with pytest.raises(ShareError, match="must be integers"):
        ashare(1) + np.array([1.5])


def test_components_must_fit_together() -> None:
    with pytest.raises(ShareError, match="components differ"):
        AShare(ALICE, np.zeros(2, Z64.dtype), np.zeros(3, Z64.dtype))
    with pytest.raises(ShareError, match="bit planes"):
        BShare(ALICE, (65,), np.zeros((1, 1), np.uint64), np.zeros((1, 1), np.uint64))


def test_a_share_is_narrowed_but_never_widened() -> None:
    narrow = ashare(1 << 20 | 7).narrow(Z16)
    assert narrow.ring == Z16
    assert narrow.components[0].tolist() == [7]
    with pytest.raises(ShareError, match="lift it"):
        narrow.narrow(Z64)


W = np.arange(6, dtype=Z64.dtype)
M = W.reshape(2, 3)
S = np.arange(6, dtype=Z16.dtype)
REFUSED = {
    "multiply, shapes": (multiply, (W, W[:3]), {}, ShareError),
    "multiply, rings": (multiply, (W, S), {}, ShareError),
    "dot, shapes": (dot, (M, W), {}, ShareError),
    "matmul, inner": (matmul, (M, M), {}, ShareError),
    "matmul, vector": (matmul, (W, W), {}, ShareError),
    "gram, vector": (gram, (W,), {}, ShareError),
    "less_than, shapes": (less_than, (W, M), {}, ShareError),
    "equal, rings": (equal, (W, S), {}, ShareError),
    "conjunction, widths": (conjunction, (Bits(W, 3), Bits(W, 4)), {}, ShareError),
    "pick, flags of two bits": (pick, (Bits(W, 2), Bits(W, 4)), {}, ShareError),
    "tournament, matrix": (tournament, (Bits(M, 4),), {}, ShareError),
    "tournament, empty": (tournament, (Bits(W[:0], 4),), {}, ShareError),
    "reveal_bits, too wide": (reveal_bits, (Bits(W, 17),), {"ring": Z16}, ShareError),
    "lift, downwards": (lift, (W,), {"ring": Z16}, DomainError),
    "lift, of other words": (lift, (S,), {"ring": Z64, "modulo": Z22}, DomainError),
    "lift, of fewer bits downwards": (lift, (S.astype(np.uint32),), {"ring": Z16, "modulo": Z22}, DomainError),
    "truncate, nothing": (truncate, (W,), {"bits": 0}, DomainError),
    "truncate, everything": (truncate, (W,), {"bits": 63}, DomainError),
    "random_fraction, too many bits": (random_fraction, (), {"shape": (1,), "ring": Z16, "frac": 16}, DomainError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(name: str) -> None:
    function, args, kwargs, error = REFUSED[name]
    recorder = Recorder()
    with pytest.raises(Failed) as caught:
        World(1, interceptor=recorder).run(function, *args, **kwargs)
    assert any(isinstance(e, error) for e in caught.value.errors)
    assert recorder.messages == []


@pytest.mark.parametrize("function", [multiply, equal])
def test_a_share_of_another_study_or_party_is_refused_before_anything_is_sent(function) -> None:
    for owner in (BOB, Owner(1, bytes(32), REP3)):
        stranger = ashare(1, 2, owner=owner)
        recorder = Recorder()
        with pytest.raises(Failed) as caught:
            World(1, interceptor=recorder).run(function, stranger, stranger)
        assert any(isinstance(e, ShareError) and "was given to a protocol of" in str(e) for e in caught.value.errors)
        assert recorder.messages == []


def test_only_the_dealer_may_and_must_give_values() -> None:
    for given in (PerParty(None, None, None), PerParty(S, None, None), PerParty(W[:2], None, None)):
        with pytest.raises(Failed) as caught:
            World(1).run(share_from, given, dealer=0, shape=(6,), ring=Z64)
        assert isinstance(caught.value.errors[0], ShareError)
    with pytest.raises(Failed) as caught:
        World(1).run(share_bits_from, PerParty(None, None, None), dealer=0, width=4, shape=(6,))
    assert isinstance(caught.value.errors[0], ShareError)


@pytest.mark.parametrize("dealer", [0, 1, 2])
def test_every_party_can_deal(dealer: int) -> None:
    given = [None, None, None]
    given[dealer] = W
    outcome = World(1).run(share_from, PerParty(*given), dealer=dealer, shape=W.shape, ring=Z64)
    assert np.array_equal(outcome.value, W)
    assert outcome.sent[dealer] == W.nbytes
    assert sum(outcome.sent) == W.nbytes


async def same_step_twice(ctx: Context, x: AShare) -> AShare:
    y = await multiply(ctx.step("product"), x, x)
    return await multiply(ctx.step("product"), y, y)


async def same_step_side_by_side(ctx: Context, x: AShare) -> list[AShare]:
    return await together(multiply(ctx.step("product"), x, x), multiply(ctx.step("product"), x, x))


@pytest.mark.parametrize("function", [same_step_twice, same_step_side_by_side])
def test_a_step_used_twice_is_refused(function) -> None:
    with pytest.raises(Failed) as caught:
        World(1).run(function, W)
    assert any(isinstance(e, LabelReused) and "/test/product" in str(e) for e in caught.value.errors)


@pytest.mark.parametrize("name", ["", "a/b", "a#b"])
def test_names_that_could_collide_are_refused(name: str) -> None:
    async def use(ctx: Context) -> None:
        ctx.step(name)

    with pytest.raises(Failed) as caught:
        World(1).run(use)
    assert isinstance(caught.value.errors[0], DomainError)


async def two_depths(ctx: Context, x: AShare) -> AShare:
    async def thrice(ctx: Context) -> AShare:
        y = x
        for i in range(3):
            y = await multiply(ctx.step(i), y, x)
        return y

    square, fourth = await together(multiply(ctx.step("square"), x, x), thrice(ctx.step("fourth")))
    return square + fourth


def test_branches_share_their_rounds_and_frames() -> None:
    recorder = Recorder()
    outcome = World(1, interceptor=recorder).run(two_depths, W)
    assert np.array_equal(outcome.value, W * W + W**4)
    assert outcome.rounds == 3
    assert len(recorder.messages) == 3 * 3


async def failing(ctx: Context, x: AShare) -> AShare:
    async def bad(ctx: Context) -> AShare:
        await multiply(ctx.step(0), x, x)
        raise DomainError("no such branch")

    return (await together(multiply(ctx.step("good"), x, x), bad(ctx.step("bad"))))[0]


def test_an_error_in_a_branch_ends_all_of_them() -> None:
    with pytest.raises(Failed) as caught:
        World(1).run(failing, W)
    assert any(isinstance(e, DomainError) and "no such branch" in str(e) for e in caught.value.errors)


def test_empty_arrays_pass_through_every_elementwise_protocol() -> None:
    empty = W[:0]
    for function in (multiply, less_than, equal):
        outcome = World(1).run(function, empty, empty)
        assert outcome.value.shape == (0,)
        assert outcome.sent == (0, 0, 0)


@pytest.mark.parametrize(
    ("expression", "printed", "number"),
    [
        (size.elements * size.ring_bits // 8 + 16, "elements*ring_bits//8 + 16", 3 * 64 // 8 + 16),
        (2 * (size.elements - (1 - size.width)), "2*(elements - (1 - width))", 2 * (3 - (1 - 5))),
        (size.elements * (size.width // 2), "elements*(width//2)", 3 * 2),
        ((1 + FIRST) * plane(size.elements), "(1 + first)*plane(elements)", 2 * 8),
        (largest(1, log2(size.width - 1)), "max(1, log2(width - 1))", 2),
    ],
)
def test_a_cost_prints_as_the_formula_that_it_is(expression: Expr, printed: str, number: int) -> None:
    sizes = {size.elements: 3, size.ring_bits: 64, size.width: 5}
    assert str(expression) == printed
    assert Cost(rounds=0, sent=expression).sent_by(0, sizes) == number
    namespace = {"log2": log2, "plane": plane, "max": max, "first": 1} | {one.name: n for one, n in sizes.items()}
    assert eval(printed, namespace) == number


def test_a_cost_needs_every_size_that_it_depends_on() -> None:
    with pytest.raises(DomainError, match="width"):
        Cost(rounds=log2(size.width), sent=0).rounds_for({size.elements: 3})
    with pytest.raises(DomainError, match="first"):
        Cost(rounds=1 + FIRST, sent=0).rounds_for({})
    with pytest.raises(TypeError):
        log2(size.width, size.elements)


@pytest.mark.parametrize("value", [1.5, "elements", None])
def test_a_cost_is_made_of_integers_and_sizes_only(value: Any) -> None:
    with pytest.raises(TypeError):
        size.elements + value


def test_a_protocol_must_say_what_it_needs_and_leaks() -> None:
    async def silent(ctx: Context) -> None:
        """Does something.

        Leaks: nothing.
        """

    with pytest.raises(ValueError, match="Pre-conditions"):
        protocol("nowhere", rep3=Cost(rounds=0, sent=0))(silent)
    assert "silent" not in REGISTRY
