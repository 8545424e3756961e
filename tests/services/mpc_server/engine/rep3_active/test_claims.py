"""Validations among three parties: what they cost, what they notice and whom they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from caps.errors import CheatingDetected, DomainError, PeerAborted, PeerError
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.rep3_active import claims as module
from services.mpc_server.engine.rep3_active.claims import Claims
from services.mpc_server.engine.rep3_active.proof.sizes import (
    ROUNDS,
    Size,
    deviation_equations,
    gram_equations,
    proof_bytes,
    size_of,
    word_equations,
)
from services.mpc_server.testing.world import Failed, Recorder, World
from services.mpc_server.transport.memory import Message
from tests.kit.claims import (
    KINDS,
    LEFT,
    PROVER,
    RIGHT,
    Claim,
    bits_claim,
    deviations_claim,
    gram_claim,
    guard_of,
    words_claim,
)


async def validated(ctx: Context, claims: Sequence[Claim], seen: list[Claims]) -> bool:
    """File claims with a guard, and check them."""
    guard = Claims(ctx.step("guard"))
    seen.append(guard)
    for claim in claims:
        claim.file(guard, ctx.party)
    await guard.validate()
    return True


def some(seed: int, provers: Sequence[int]) -> list[Claim]:
    rng = np.random.default_rng(seed)
    names = [*KINDS]
    return [KINDS[names[int(rng.integers(len(names)))]](rng, prover) for prover in provers]


@pytest.mark.parametrize("provers", [(0,), (1, 2), (0, 1, 2), (2, 2, 0), (0, 1, 2, 0, 1, 2, 0), (1,) * 5])
@pytest.mark.parametrize("seed", range(3))
def test_true_claims_pass_and_cost_what_is_declared(provers: tuple[int, ...], seed: int) -> None:
    claims, seen = some(seed, provers), []
    declared = [proof_bytes(*guard_of(claims, party).sizes()) for party in range(3)]
    outcome = World(seed).run(validated, claims, seen)
    assert outcome.rounds == ROUNDS
    assert list(outcome.sent) == declared
    assert sorted(guard.sent for guard in seen) == sorted(declared)
    assert {guard.rounds for guard in seen} == {ROUNDS}
    assert not any(guard.pending or guard.full for guard in seen)


def test_nothing_filed_costs_nothing() -> None:
    outcome = World(1).run(validated, [], [])
    assert outcome.rounds == 0
    assert outcome.sent == (0, 0, 0)
    assert proof_bytes(*[size_of()] * 3) == 0


def test_a_guard_checks_what_is_filed_once() -> None:
    async def twice(ctx: Context, first: Sequence[Claim], second: Sequence[Claim]) -> bool:
        guard = Claims(ctx.step("guard"))
        for claims in (first, second):
            for claim in claims:
                claim.file(guard, ctx.party)
            await guard.validate()
        await guard.validate()
        return True

    assert World(1).run(twice, some(1, (0, 1)), some(2, (1, 2))).rounds == 2 * ROUNDS


def test_what_is_filed_during_a_check_belongs_to_the_next() -> None:
    async def branch(ctx: Context, guard: Claims, claims: Sequence[Claim], delay: int) -> None:
        for number in range(delay):
            await ctx.step(f"wait{number}").exchange([], [])
        for claim in claims:
            claim.file(guard, ctx.party)
        await guard.validate()

    async def beside(ctx: Context, first: Sequence[Claim], second: Sequence[Claim]) -> bool:
        guard = Claims(ctx.step("guard"))
        await together(
            branch(ctx.step("first"), guard, first, 0),
            branch(ctx.step("second"), guard, second, 1),
        )
        return not guard.pending

    assert World(1).run(beside, some(1, (0, 1)), some(2, (1, 2))).value
    wrong = some(2, (1, 2))
    wrong[0].alter((PROVER, LEFT), ("e", None), np.random.default_rng(1), 1)
    with pytest.raises(Failed):
        World(1).run(beside, some(1, (0, 1)), wrong)


def test_a_guard_is_full_when_much_is_filed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def filed(ctx: Context, claims: Sequence[Claim]) -> bool:
        guard = Claims(ctx.step("guard"))
        for claim in claims:
            claim.file(guard, ctx.party)
            await guard.settle()
        return guard.pending

    claims = [bits_claim(np.random.default_rng(1), prover, 64) for prover in (0, 1, 2)] * 4
    assert World(1).run(filed, claims).value
    monkeypatch.setattr(module, "BUDGET", 3000)
    assert World(1).run(filed, claims).rounds >= 2 * ROUNDS


@pytest.mark.parametrize("prover", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_false_claim_is_noticed_and_the_prover_is_named(kind: str, prover: int) -> None:
    rng = np.random.default_rng(prover)
    claims = [*some(1, (0, 1, 2)), KINDS[kind](rng, prover)]
    claims[-1].alter((PROVER, LEFT), ("e", None), rng, claims[-1].public.get("bits", 64))
    with pytest.raises(Failed) as caught:
        World(1).run(validated, claims, [])
    noticed = 0
    for party, error in enumerate(caught.value.errors):
        # Both verifiers conclude the same, but one may hear of the other's end first.
        if isinstance(error, CheatingDetected):
            noticed += 1
            assert party != prover
            assert error.pair == tuple(sorted({0, 1, 2} - {party}))
        else:
            assert isinstance(error, PeerAborted) or (error is None and party == prover)
    assert noticed


def test_the_error_says_nothing_but_the_pair() -> None:
    texts = set()
    for kind in KINDS:
        for name in ("e", "f"):
            rng = np.random.default_rng(5)
            claims = [KINDS[kind](rng, 1)]
            roles = (PROVER, LEFT if name == "e" else RIGHT)
            claims[0].alter(roles, (name, None), rng, claims[0].public.get("bits", 64))
            with pytest.raises(Failed) as caught:
                World(1).run(validated, claims, [])
            texts |= {str(error) for error in caught.value.errors if isinstance(error, CheatingDetected)}
    assert len(texts) <= 2, "one for each verifier, at most"


SMALL = [(bits_claim, {}), (words_claim, {"bits": 16}), (gram_claim, {})]


def small_claims() -> list[Claim]:
    rng = np.random.default_rng(3)
    return [make(rng, prover, **kwargs) for prover in range(3) for make, kwargs in SMALL]  # type: ignore[operator]


def _messages() -> list[Message]:
    recorder = Recorder()
    World(4, interceptor=recorder).run(validated, small_claims(), [])
    return recorder.messages


@pytest.mark.parametrize("number", range(3 * 2 * ROUNDS))
def test_an_altered_message_is_noticed(number: int) -> None:
    """Coins, their digests, carries, coefficients, challenges, values, shares and digests."""
    chosen = sorted(_messages(), key=lambda one: (one.round, one.source, one.dest))[number]
    rng = np.random.default_rng(number)
    size = len(chosen.payload)
    for at in {0, size // 2, size - 1, *(int(x) for x in rng.integers(0, size, 8))}:
        bit = 1 << int(rng.integers(8))

        def altered(message: Message, at: int = at, bit: int = bit) -> bytes:
            payload = bytearray(message.payload)
            if (message.source, message.dest, message.round) == (chosen.source, chosen.dest, chosen.round):
                payload[at] ^= bit
            return bytes(payload)

        with pytest.raises(Failed) as caught:
            World(4, interceptor=altered).run(validated, small_claims(), [])
        assert any(isinstance(error, CheatingDetected) for error in caught.value.errors), at
        for error in caught.value.errors:
            assert error is None or isinstance(error, PeerError)
            if isinstance(error, CheatingDetected):
                # Of two servers that are named, one is the one whose message was altered.
                assert chosen.source in error.pair, (at, error)


def test_received_words_do_not_depend_on_the_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lengths of all messages are those of the claims' shapes."""
    lengths = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        recorder = Recorder()
        claims = [make(rng, prover) for prover in range(3) for make in KINDS.values()]
        World(seed, interceptor=recorder).run(validated, claims, [])
        lengths.append(sorted((one.source, one.dest, one.round, len(one.payload)) for one in recorder.messages))
    assert lengths[0] == lengths[1]


def test_a_claim_beyond_what_can_be_proved_is_refused() -> None:
    with pytest.raises(DomainError, match="summands"):
        gram_equations(rows=1 << 23, bits=16)
    with pytest.raises(DomainError, match="summands"):
        word_equations(claims=1, products=1 << 28, bits=64)
    # Deviations come in stages instead.
    assert deviation_equations(rows=1 << 24, columns=1000, bits=16).stages > 1


def test_the_proof_of_a_whole_computation_is_short() -> None:
    """One Gram matrix, deviations, a million ANDs and some word products, at 50,000 rows: below 20 kB a server."""
    size = size_of(
        gate_words=10**6 // 64,
        words=[word_equations(claims=30_000, products=60_000, bits=64)],
        grams=[gram_equations(rows=50_000, bits=16)],
        deviations=[deviation_equations(rows=50_000, columns=245, bits=16)],
    )
    assert proof_bytes(size, size, size) < 20_000


def _measured(claims: Sequence[Claim]) -> Any:
    return World(1).run(validated, claims, []).sent


def test_declared_bytes_follow_from_numbers_of_claims() -> None:
    rng = np.random.default_rng(9)
    claims = [
        claim
        for prover in range(3)
        for claim in (
            bits_claim(rng, prover, (10, 9)),
            bits_claim(rng, prover, 11),
            words_claim(rng, prover, 12, bits=64),
            words_claim(rng, prover, 13, bits=64, terms=1, segment=4),
            words_claim(rng, prover, 5, bits=32, narrow=True),
            gram_claim(rng, prover, 33, (4,)),
            deviations_claim(rng, prover, 21, 6),
        )
    ]
    size: Size = size_of(
        gate_words=10 * 9 + 11,
        words=[
            word_equations(claims=12 + 4, products=2 * 12 + 13, bits=64),
            word_equations(claims=5, products=10, bits=32, left_bits=1),
        ],
        grams=[gram_equations(rows=33, bits=16)],
        deviations=[deviation_equations(rows=21, columns=7, bits=16)],
    )
    assert _measured(claims) == (proof_bytes(size, size, size),) * 3
