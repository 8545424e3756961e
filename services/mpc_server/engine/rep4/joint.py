"""Joint input: making a value shared that two parties know, so that neither can change it unnoticed.

The mask of the receiver's component comes from the key that all but the receiver have; the rest, which is component
`other`, goes to the receiver. Sender, backup and receiver then have the same words, or cheating is detected: what the
backup computed and what the receiver received are filed with the guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np

from caps.shares.ring import Ring, Words
from caps.shares.sharing import Algebra
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.rep4.checks import Comparisons, octets
from services.mpc_server.engine.rep4.local import JOINTS, Duties, Joint, duties
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
    joints: tuple[Joint, ...],
    values: Mapping[int, Words],
    shape: Shape,
    ring: Ring,
    algebra: Algebra,
) -> list[Entered]:
    """Make values of one shape shared, each by its two parties. One round.

    values: those that this party knows, by their number among the joints. Those that it backs up are needed only
    when the messages have arrived.
    """
    own, size = duties(joints, ctx.party), prod(shape) * ring.dtype.itemsize
    masks = _masks(ctx, own, shape, ring)
    rest = {number: algebra.remove(values[number], masks[number]) for number in own.sends}
    replies = await ctx.exchange(
        [(joints[number].receiver, rest[number]) for number in own.sends],
        [(joints[number].sender, size) for number in own.awaits],
    )
    filed = {number: algebra.remove(values[number], masks[number]) for number in own.backs}
    for number, reply in zip(own.awaits, replies, strict=True):
        filed[number] = np.frombuffer(reply, ring.dtype).reshape(shape)
    guard = guard_of(ctx)
    guard.file(ctx.path, joints, {number: octets(words) for number, words in filed.items()})
    await guard.settle()
    rest |= filed
    return [Entered(joint, masks.get(number), rest.get(number)) for number, joint in enumerate(joints)]


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


def _masks(ctx: Context, own: Duties, shape: Shape, ring: Ring) -> dict[int, Words]:
    """The masks of all joints that this party does not receive. Those of one receiver are one draw."""
    masks: dict[int, Words] = {}
    for receiver, numbers in own.draws.items():
        drawn = ctx.prss.component(receiver, b"%b#mask%d" % (ctx.path, receiver), (len(numbers), *shape), ring)
        masks.update(zip(numbers, map(np.asarray, drawn), strict=True))
    return masks
