"""Joint input: making a value shared that two parties know, so that neither can change it unnoticed.

The mask of the receiver's component comes from the key that all but the receiver have; the rest, which is component
`other`, goes to the receiver. Sender, backup and receiver then have the same words, or cheating is detected: what the
backup computed and what the receiver received are filed with the guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from caps.shares.ring import Ring, Words
from caps.shares.sharing import Algebra
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.rep4.checks import Comparisons, octets
from services.mpc_server.engine.rep4.local import JOINTS, PARTIES, Joint
from services.mpc_server.engine.shares import Shape


@dataclass(frozen=True, slots=True, repr=False)
class Entered:
    """What a party holds of a jointly entered value."""

    joint: Joint
    mask: Words | None
    """Component `receiver`, at all but the receiver."""
    rest: Words | None
    """Component `other`, at all but the other party."""

    def component(self, number: int) -> Words | None:
        """A component of the shared value; None if it is zero."""
        if number == self.joint.receiver:
            return self.mask
        return self.rest if number == self.joint.other else None


async def enter(
    ctx: Context,
    joints: Sequence[Joint],
    values: Mapping[int, Words],
    shape: Shape,
    ring: Ring,
    algebra: Algebra,
) -> list[Entered]:
    """Make values of one shape shared, each by its two parties. One round.

    values: those that this party knows, by their number among the joints. Those that it backs up are needed only
    when the messages have arrived.
    """
    masks = _masks(ctx, joints, shape, ring)
    party, size = ctx.party, int(np.prod(shape, dtype=int)) * ring.dtype.itemsize
    sent, backed, expected = (
        [number for number, joint in enumerate(joints) if getattr(joint, role) == party]
        for role in ("sender", "backup", "receiver")
    )

    def masked(number: int) -> Words:
        return algebra.remove(values[number], cast(Words, masks[number]))

    rest = {number: masked(number) for number in sent}
    replies = await ctx.exchange(
        [(joints[number].receiver, rest[number]) for number in sent],
        [(joints[number].sender, size) for number in expected],
    )
    rest |= {number: masked(number) for number in backed}
    rest |= {n: np.frombuffer(reply, ring.dtype).reshape(shape) for n, reply in zip(expected, replies, strict=True)}
    guard = guard_of(ctx)
    guard.file(ctx.path, joints, {number: octets(rest[number]) for number in (*backed, *expected)})
    await guard.settle()
    return [Entered(joint, masks[number], rest.get(number)) for number, joint in enumerate(joints)]


async def enter_terms(
    ctx: Context, values: Mapping[int, Words], shape: Shape, ring: Ring, algebra: Algebra
) -> tuple[Words, ...]:
    """This party's components of a sum, given the terms it knows (`local.TERMS`). One round."""
    return held(ctx, await enter(ctx, JOINTS, values, shape, ring, algebra), shape, ring, algebra)


def held(ctx: Context, entered: Iterable[Entered], shape: Shape, ring: Ring, algebra: Algebra) -> tuple[Words, ...]:
    """This party's components of the sum of jointly entered values."""
    parts = list(entered)
    components = []
    for number in ctx.scheme.held[ctx.party]:
        found = [words for one in parts if (words := one.component(number)) is not None]
        components.append(_combined(found, algebra) if found else np.zeros(shape, ring.dtype))
    return tuple(components)


def _combined(parts: Sequence[Words], algebra: Algebra) -> Words:
    """The sum, or XOR, of arrays, with one new array for all."""
    if len(parts) == 1:
        return parts[0]
    add = np.add if algebra is Algebra.ADD else np.bitwise_xor
    total = np.empty_like(parts[0])
    add(parts[0], parts[1], out=total)
    for part in parts[2:]:
        add(total, part, out=total)
    return total


def guard_of(ctx: Context) -> Comparisons:
    """The guard of a session of this scheme."""
    return cast(Comparisons, ctx.guard)


def _masks(ctx: Context, joints: Sequence[Joint], shape: Shape, ring: Ring) -> list[Words | None]:
    """For each joint its mask, None at its receiver. Those of one receiver are one draw."""
    masks: list[Words | None] = [None] * len(joints)
    for receiver in range(PARTIES):
        numbers = [number for number, joint in enumerate(joints) if joint.receiver == receiver]
        if numbers and receiver != ctx.party:
            label = b"%b#mask%d" % (ctx.path, receiver)
            drawn = ctx.prss.component(receiver, label, (len(numbers), *shape), ring)
            for number, words in zip(numbers, drawn, strict=True):
                masks[number] = np.asarray(words)
    return masks
