"""One session of a run with its peers: agreeing on secrets, comparing records, and doing steps together.

A step, on every server: compare the digest of the request with the peers' (nothing is charged if they differ); record
it and charge; exchange signed acknowledgements of the charge; compute; record them and the answer.

A session begins by agreeing on the secrets of the pairs (`pairs`) and by comparing records. Servers may have stopped
one step apart: what all have charged and not all have answered is computed again there and then. Noise follows from
these secrets, the run, the build and the request, so the second computation opens the same value; masks are fresh in
every session, so that a server that behaves differently the second time has nothing to compare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_bytes
from struct import Struct
from typing import Literal, NamedTuple

from caps.basics import canonical
from caps.dp.oracle import Compute, StepRequest
from caps.errors import CheatingDetected, LocalError, PeerDisagrees, PeerError, PeerRefused, SessionClosed, party_name
from caps.service.supervision import Supervisor
from caps.trust import signing
from caps.wire import Answer, Evidence, Signed
from services.mpc_server.channel import swap
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.workers import IN_PROCESS, Workers
from services.mpc_server.runs.material import ATTEMPT_BYTES, NO_ATTEMPT, Material, attempt_of
from services.mpc_server.runs.pairs import Pairs, agree, scope_of
from services.mpc_server.runs.record import Record, Recorded
from services.mpc_server.runs.steps import Computation
from services.mpc_server.transport.components import component_secrets, session_pairs
from services.mpc_server.transport.hello import Agreement, scheme_field
from services.mpc_server.transport.session import Session
from services.mpc_server.transport.tls import Mesh

_SYNC = Struct("<16s16sII32s32s")


class View(NamedTuple):
    """A record in brief."""

    kept: bytes
    """The attempt at COMPUTE whose counts are kept; zeros if none are."""
    token: bytes
    """This server's part of the next attempt's name."""
    charged: int
    answered: int
    head: bytes
    before: bytes
    """The record's head before the last step that was charged."""


class RequestsDiffer(LocalError):
    """The servers were sent different requests for one step. Nothing was charged."""


@dataclass(frozen=True)
class Seat:
    """Who this server is in the run: its number and name, its signing key, its pairs with the peers, the time."""

    party: int
    name: str
    key: signing.SigningKey
    pairs: Pairs
    instant: Callable[[], str]
    build: bytes
    """Digest of the software: servers of different builds do not compute together."""
    supervisor: Supervisor = field(default_factory=Supervisor)
    workers: Workers = IN_PROCESS
    """Who does the large local work."""


async def open_channel(mesh: Mesh, record: Record, seat: Seat) -> Session:
    """A channel for a run with the study's servers, who must agree on study, inputs, build, budget and scheme."""
    manifest = record.manifest
    for peer in manifest.sharing.peers_of(seat.party):
        if mesh.pin(peer).hex() != manifest.servers[peer].pin:
            raise PeerRefused(peer, "has a different key than the study's manifest says")
    agreement = Agreement(
        bytes.fromhex(manifest.study_id),
        bytes.fromhex(record.inputs),
        seat.build,
        canonical.digest("budget", {"privacy": manifest.privacy.to_json()}),
        scheme_field(manifest.scheme),
    )
    return await mesh.open(f"run/{record.run}", agreement, manifest.sharing.peers_of(seat.party))


class RunSession:
    """What is done on one channel, one thing at a time: peers do the same things in the same order."""

    def __init__(
        self,
        channel: Session,
        record: Record,
        seat: Seat,
        material: Material,
        secrets: Mapping[int, bytes],
        session: Mapping[int, bytes],
    ) -> None:
        self.channel = channel
        self._record = record
        self._seat = seat
        self._material = material
        manifest = record.manifest
        scope = b"run/" + bytes.fromhex(record.run)
        runtime = Runtime(
            channel,
            study=bytes.fromhex(manifest.study_id),
            scheme=manifest.sharing,
            scope=scope,
            secrets=secrets,
            session=session,
            workers=seat.workers,
        )
        self._computation = Computation(runtime, manifest, record.account, material)
        self._turn = asyncio.Lock()
        self._counted = self._computing = False
        """Whether this session has computed, and whether it does."""
        self._idle = False
        """Whether noise may be drawn ahead: no step is waiting for an answer, here or at the peers."""

    @classmethod
    async def begin(cls, channel: Session, record: Record, seat: Seat, material: Material) -> RunSession:
        """Agree with the peers on secrets and on what is recorded."""
        record.require_sessions()
        scope = scope_of(record.manifest.study_id, record.inputs, record.run, seat.build.hex())
        pairs = await agree(channel, seat.pairs, scope)
        with noticing(record, seat, None, "keys"):
            secrets = await component_secrets(channel, record.manifest.sharing, pairs)
            fresh = await component_secrets(channel, record.manifest.sharing, session_pairs(channel, pairs))
        session = cls(channel, record, seat, material, secrets, fresh)
        await session.compare_records()
        return session

    async def compare_records(self) -> None:
        """Compare records with the peers, and catch up on what all have charged."""
        async with self._turn:
            charged, counts = len(self._record.steps), self._material.counts()
            heads = self._record.head(charged), self._record.head(max(charged - 1, 0))
            kept = counts.attempt if counts is not None else NO_ATTEMPT
            mine = View(kept, token_bytes(ATTEMPT_BYTES), charged, self._record.answered, *heads)
            got = await swap(self.channel, "sync", _SYNC.pack(*mine))
            theirs = {peer: View(*_SYNC.unpack(payload)) for peer, payload in got.items()}
            for peer, their in theirs.items():
                _compare(peer, mine, their)
            everybody = [mine, *theirs.values()]
            self._computation.attempt = attempt_of([view.token for view in everybody])
            common = min(view.charged for view in everybody)
            if not common:
                return
            with self._noticing(common - 1):
                # Counts of different attempts are shared with different masks, and do not fit together.
                if counts is not None and all(view.kept == kept for view in everybody):
                    await self._computation.resume(counts.share, counts.verdicts)
                else:
                    await self._computation.compute()
                if min(view.answered for view in everybody) < common:
                    await self._answer_charged(self._record.steps[common - 1])
            self._idle = all(view.charged == common for view in everybody)
        self._draw_soon()

    async def perform(self, number: int, request: StepRequest, digest: str) -> Recorded:
        """Do a step that has no recorded answer, when its turn comes; then draw noise for the next one."""
        try:
            async with self._turn:
                with self._noticing(number):
                    await self._draw_ahead()
                    done = await self._agree_and_charge(number, request, digest)
        except (PeerError, RequestsDiffer, SessionClosed):
            raise
        except BaseException as error:
            await self.channel.abort(type(error).__name__)
            raise
        self._draw_soon()
        return done

    @contextmanager
    def _noticing(self, step: int) -> Iterator[None]:
        """All that is computed in the session is computed in here.

        It is written down beforehand that the session was interrupted, which `ended` takes back if it was not: whoever
        deviates and then ends the session, or has this server killed, is counted.
        """
        if not self._counted:
            self._record.count_session(1)
            self._counted = True
        self._computing = True
        try:
            with noticing(self._record, self._seat, step):
                yield
        except RequestsDiffer:  # before anything was computed; the session goes on
            self._computing = False
            raise
        self._computing = False

    def ended(self) -> None:
        """To be called when the session is over."""
        if self._counted and not self._computing:
            self._record.count_session(-1)

    async def _agree_and_charge(self, number: int, request: StepRequest, digest: str) -> Recorded:
        """Make sure that all servers got the same request, record it with its charge, and answer it."""
        recorded = self._record.find(number, digest)
        if recorded is not None and recorded.answer is not None:
            return recorded
        got = await swap(self.channel, f"step{number}/request", bytes.fromhex(digest))
        different = [party_name(peer) for peer, other in got.items() if other.hex() != digest]
        if different:
            raise RequestsDiffer(
                f"step {number}: {' and '.join(different)} got a different request; nothing was charged"
            )
        if recorded is None:
            recorded = self._record.write(number, request, digest, self._seat.instant())
        if number == 0:
            await self._computation.compute()
        done = await self._answer_charged(recorded)
        self._idle = True
        return done

    async def _answer_charged(self, step: Recorded) -> Recorded:
        """Acknowledge, compute and record the answer to a step that every server has recorded.

        No server has recorded more than this step, because all would have had to answer it first. So all agree on what
        may come next.
        """
        acknowledgements = await self._acknowledged(step)
        value = (
            self._computation.verdicts
            if isinstance(step.request, Compute)
            else await self._computation.open(step.request)
        )
        manifest = self._record.manifest
        answer = Answer(
            study=manifest.study_id, run=self._record.run, step=step.number, request=step.digest, value=value
        )
        signed = Signed[Answer].by(answer, self._seat.name, self._seat.key)
        return self._record.answer(step.number, signed, acknowledgements)

    async def _acknowledged(self, step: Recorded) -> dict[str, str]:
        """The peers' signatures on the charge of a step."""
        document = {"run": self._record.run, "step": step.number, "request": step.digest}
        signature = signing.sign(self._seat.key, "charge", document)
        got = await swap(self.channel, f"step{step.number}/charged", bytes.fromhex(signature))
        servers = self._record.manifest.servers
        for peer, other in got.items():
            try:
                signing.verify(servers[peer].signing_key, "charge", document, other.hex())
            except signing.SignatureRefused:
                raise PeerDisagrees(peer, f"the charge of step {step.number}", "signed", "not validly signed") from None
        return {servers[peer].name: other.hex() for peer, other in got.items()}

    def _draw_soon(self) -> None:
        if self._idle:
            self._drawing = self._seat.supervisor.task("noise drawn ahead", self._draw_in_turn())

    async def _draw_in_turn(self) -> None:
        try:
            async with self._turn:
                with self._noticing(len(self._record.steps)):
                    await self._draw_ahead()
        except (PeerError, SessionClosed):  # whoever is waiting for the session learns of it from the channel
            pass
        except Exception as error:  # the peers may have drawn more than we have: this session is of no use
            await self.channel.abort(type(error).__name__)
            raise

    async def _draw_ahead(self) -> None:
        """Draw noise while the coordinator fits its model.

        This is done once between two steps, on all servers: a step that comes while noise is drawn waits for it.
        """
        idle, self._idle = self._idle, False
        if idle:
            await self._computation.draw_ahead()


@contextmanager
def noticing(
    record: Record, seat: Seat, step: int | None, check: Literal["keys", "messages"] = "messages"
) -> Iterator[None]:
    """If a check on shares fails in here, sign evidence of it and end the run durably, before anything else is done."""
    try:
        yield
    except CheatingDetected as error:
        manifest = record.manifest
        named = None
        if error.pair is not None:
            first, second = error.pair
            named = manifest.servers[first].name, manifest.servers[second].name
        evidence = Evidence(
            study=manifest.study_id,
            run=record.run,
            step=step,
            scheme=manifest.scheme,
            pair=named,
            check=check,
            server=seat.name,
            at=seat.instant(),
        )
        record.abort(Signed[Evidence].by(evidence, seat.name, seat.key), seat.instant())
        raise


def _compare(peer: int, mine: View, theirs: View) -> None:
    """Refuse a peer whose record differs from ours, as far as both go: they may be one step apart."""
    heads = [{view.charged: view.head, max(view.charged - 1, 0): view.before} for view in (mine, theirs)]
    common = min(mine.charged, theirs.charged)
    if any(common not in one for one in heads) or heads[0][common] != heads[1][common]:
        raise PeerDisagrees(peer, "ledger", f"{mine.charged} steps", f"{theirs.charged} different steps")
