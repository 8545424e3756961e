"""One run, alive: a session with the two peers, opened again whenever it is lost, in which steps are computed.

A step, on every server: compare the digest of the request with the peers' (nothing is charged if they differ); write
it down and charge; exchange signed acknowledgements of the charge; compute; write them and the answer down.

A session begins by agreeing on the secrets of the pairs (`services.mpc_server.pairs`) and by comparing records. Servers
may have stopped one step apart: what all have charged and not all have answered is computed again there and then.
Randomness follows from these secrets, the run, the build and the request, so the second computation repeats the first,
message by message, and opens the same value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from time import perf_counter
from typing import NoReturn, Protocol, TypeAlias

import numpy as np

from caps.basics import canonical
from caps.basics.schemes import SCHEMES
from caps.dp.oracle import Integers, Measurement, Request, Selection, overlaps_plan
from caps.dp.privacy import Gaussian
from caps.errors import (
    LocalError,
    PeerAborted,
    PeerDisagrees,
    PeerError,
    PeerRefused,
    PeerUnreachable,
    SessionClosed,
    party_name,
)
from caps.service import logs
from caps.service.metrics import Metrics
from caps.shares.ring import Z64, Words
from caps.trust import signing
from caps.wire import Answer, Signed
from services.mpc_server.channel import swap
from services.mpc_server.engine.alignment import Dummies, sets_of
from services.mpc_server.engine.compute import ColumnsInput, HorizontalInput, compute_answers
from services.mpc_server.engine.context import Runtime
from services.mpc_server.engine.join import JoinInput, Mode, compute_joined_answers
from services.mpc_server.engine.paper import VARIANTS
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.steps import Steps, Wanted, draw_noise, noise_context, request_context
from services.mpc_server.pairs import Pairs, agree, scope_of
from services.mpc_server.runs.record import Record, Recorded, value_of
from services.mpc_server.transport.hello import Agreement
from services.mpc_server.transport.keeper import MeshKeeper
from services.mpc_server.transport.session import Session

log = logging.getLogger("caps.runs")

_SYNC = Struct("<BII32s32s")
_FRAC = 16
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 3.0
POOLED = 1 << 18
"""Noise values drawn beforehand, at most: beyond that, drawing twice what is needed costs more than it saves."""

Share: TypeAlias = tuple[Words, ...]
Verdicts: TypeAlias = tuple[int, ...]
View: TypeAlias = tuple[int, int, int, bytes, bytes]
"""Of a record: whether counts are kept, steps charged, steps answered, the head of the record and the one before."""


class RequestsDiffer(LocalError):
    """The servers were sent different requests for one step. Nothing was charged."""


class Material(Protocol):
    """What a live run needs of the server's stores. Shares are pairs of components."""

    def inputs(self) -> Sequence[tuple[str, str, tuple[str, ...], Share]]:
        """For each sealed contribution, in order: holder, form, attributes, this server's share."""

    def counts(self) -> tuple[Share, Verdicts] | None:
        """The counts that an earlier session computed, and which contributions it accepted, if they were kept."""

    def keep_counts(self, counts: Share, verdicts: Verdicts) -> None:
        """Keep them for a later session."""


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


class LiveRun:
    """Lives in the event loop of the engine's thread; `step` is the only entrance."""

    def __init__(
        self,
        record: Record,
        seat: Seat,
        material: Material,
        keeper: MeshKeeper,
        *,
        patience: float,
        metrics: Metrics | None = None,
    ) -> None:
        self.record = record
        self._metrics = metrics or Metrics()
        self._seat = seat
        self._material = material
        self._keeper = keeper
        self._patience = patience
        self._open = asyncio.Event()
        self._session: _RunSession | None = None
        self._asked: dict[int, tuple[str, asyncio.Task[Recorded]]] = {}
        self._trouble: PeerError = PeerUnreachable((seat.party + 1) % 3, "no session yet")
        self._rounds = self._sent = 0
        self._heard = False
        """Whether a session stood since the log last said that the run waits."""

    @property
    def trouble(self) -> PeerError | None:
        """Why the run waits; None while it has a session."""
        return None if self._open.is_set() else self._trouble

    @property
    def traffic(self) -> tuple[int, int]:
        """Rounds, and bytes sent, of all sessions since this process began."""
        live = self._session.channel.traffic if self._session is not None else None
        return self._rounds + (live.rounds if live else 0), self._sent + (live.sent if live else 0)

    async def live(self) -> NoReturn:
        """Keep a session open until cancelled, which is when this server attests the run.

        Not only until its own last answer: a peer that fell just before it wrote that answer down needs both others.
        """
        pause, said = _FIRST_PAUSE, ""
        while True:
            try:
                await self._live_once()
                pause = _FIRST_PAUSE
            except PeerError as error:
                self._trouble = _to_blame(error, self._seat.party)
                self._metrics.count("caps_retries", party=party_name(self._trouble.party))
                if str(self._trouble) != said or self._heard:
                    said, self._heard = str(self._trouble), False
                    logs.say(log, "waiting", party=party_name(self._trouble.party), reason=said)
            except SessionClosed:
                pass
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def step(self, number: int, request: Request | None, digest: str) -> Recorded:
        """The step's record, with its answer. Asked again while it is computed, waits for the same computation."""
        recorded = self.record.find(number, digest)
        if recorded is not None and recorded.answer is not None:
            return recorded
        if number in self._asked:
            other, task = self._asked[number]
            if other != digest:
                raise RequestsDiffer(f"step {number} is being asked for with another request")
        else:
            if recorded is None:
                self.record.account.check(request)
            task = asyncio.create_task(self._step(number, request, digest))
            self._asked[number] = digest, task
            task.add_done_callback(lambda _: self._asked.pop(number, None))
        return await asyncio.shield(task)

    async def _step(self, number: int, request: Request | None, digest: str) -> Recorded:
        try:
            async with asyncio.timeout(self._patience):
                await self._open.wait()
        except TimeoutError:
            raise self._trouble from None
        session = self._session
        if session is None:
            raise self._trouble
        started, kind = perf_counter(), _kind(request)
        try:
            done = await session.step(number, request, digest)
            seconds = perf_counter() - started
            self._metrics.count("caps_steps", kind=kind)
            self._metrics.observe("caps_step_seconds", seconds, kind=kind)
            with logs.bound(run=self.record.run, study=self.record.manifest.study_id, step=number):
                logs.say(log, "answered", kind=kind, seconds=round(seconds, 3))
            return done
        except PeerAborted as error:
            raise _to_blame(error, self._seat.party) from None
        except SessionClosed:  # who ended it was told to another, such as who draws noise ahead
            reason = await session.channel.ended()
            raise _to_blame(reason, self._seat.party) if isinstance(reason, PeerError) else reason from None

    async def _live_once(self) -> None:
        mesh = await self._keeper.ready(self._patience)
        manifest = self.record.manifest
        for peer, server in enumerate(manifest.servers):
            if peer != self._seat.party and mesh.pin(peer).hex() != server.pin:
                raise PeerRefused(peer, "has another key than the study's")
        agreement = Agreement(
            bytes.fromhex(manifest.study_id),
            bytes.fromhex(self.record.inputs),
            self._seat.build,
            canonical.digest("budget", {"privacy": manifest.privacy.to_json()}),
        )
        channel = await mesh.open(f"run/{self.record.run}", agreement)
        scope = scope_of(manifest.study_id, self.record.inputs, self.record.run, self._seat.build.hex())
        try:
            secrets = await agree(channel, self._seat.pairs, scope)
            session = _RunSession(channel, self.record, self._seat, self._material, secrets)
            await session.begin()
            self._session = session
            self._heard = True
            self._open.set()
            logs.say(log, "session opened", answered=self.record.answered)
            error = await channel.ended()
            if isinstance(error, PeerError):
                raise error
        except PeerError as error:
            await channel.abort(str(error), error.party)
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await channel.abort(type(error).__name__)
            raise
        finally:
            self._open.clear()
            self._session = None
            self._rounds += channel.traffic.rounds
            self._sent += channel.traffic.sent
            await channel.close()


class _RunSession:
    """What is done on one channel. One thing at a time: peers do the same things in the same order."""

    def __init__(
        self, channel: Session, record: Record, seat: Seat, material: Material, secrets: Mapping[int, bytes]
    ) -> None:
        self.channel = channel
        self._record = record
        self._seat = seat
        self._material = material
        manifest = record.manifest
        scope = b"run/" + bytes.fromhex(record.run)
        self._party = Runtime(
            channel,
            study=bytes.fromhex(manifest.study_id),
            scheme=SCHEMES[manifest.scheme],
            scope=scope,
            secrets=secrets,
        )
        self._steps: Steps | None = None
        self._verdicts: Verdicts = ()
        self._turn = asyncio.Lock()
        self._idle = False
        """Whether noise may be drawn ahead: nothing is asked for that has no answer, here or at the peers."""

    async def begin(self) -> None:
        """Compare records with the peers, and catch up with what all have charged."""
        async with self._turn:
            charged, counts = len(self._record.steps), self._material.counts()
            heads = self._record.head(charged), self._record.head(max(charged - 1, 0))
            mine: View = (int(counts is not None), charged, self._record.answered, *heads)
            got = await swap(self.channel, "sync", _SYNC.pack(*mine))
            theirs: dict[int, View] = {peer: _SYNC.unpack(payload) for peer, payload in got.items()}
            for peer, their in theirs.items():
                _compare(peer, mine, their)
            everybody = [mine, *theirs.values()]
            common = min(view[1] for view in everybody)
            if not common:
                return
            if counts is not None and all(view[0] for view in everybody):
                await self._resume(*counts)
            else:
                await self._compute()
            if min(view[2] for view in everybody) < common:
                await self._finish(self._record.steps[common - 1])
            self._idle = all(view[1] == common for view in everybody)
        self._draw_soon()

    async def step(self, number: int, request: Request | None, digest: str) -> Recorded:
        """Do a step that the record has no answer for."""
        try:
            async with self._turn:
                await self._draw_ahead()
                done = await self._do(number, request, digest)
        except (PeerError, RequestsDiffer, SessionClosed):
            raise
        except BaseException as error:
            await self.channel.abort(type(error).__name__)
            raise
        self._draw_soon()
        return done

    async def _do(self, number: int, request: Request | None, digest: str) -> Recorded:
        recorded = self._record.find(number, digest)
        if recorded is not None and recorded.answer is not None:
            return recorded
        got = await swap(self.channel, f"step{number}/request", bytes.fromhex(digest))
        different = [party_name(peer) for peer, other in got.items() if other.hex() != digest]
        if different:
            raise RequestsDiffer(f"step {number}: {' and '.join(different)} got another request; nothing is charged")
        if recorded is None:
            recorded = self._record.write(number, request, digest, self._seat.instant())
        if number == 0:
            await self._compute()
        done = await self._finish(recorded)
        self._idle = True
        return done

    async def _finish(self, step: Recorded) -> Recorded:
        """Acknowledge, compute and write the answer of a step that every server has written down.

        None has written down more than this step: for that, all would have had to answer it. So all agree on what may
        come next.
        """
        acknowledgements = await self._acknowledged(step)
        value = self._verdicts if step.request is None else await self._opened(step.request)
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
                raise PeerDisagrees(peer, f"the charge of step {step.number}", "signed", "signed otherwise") from None
        return {servers[peer].name: other.hex() for peer, other in got.items()}

    async def _compute(self) -> None:
        context, manifest = self._party.context, self._record.manifest
        counted: list[HorizontalInput] = []
        columns: list[ColumnsInput] = []
        tables: list[JoinInput] = []
        order: list[str] = []
        for holder, form, attributes, share in self._material.inputs():
            order.append(form)
            if form == "marginals":
                counted.append(HorizontalInput(holder, context.share(*share)))
            elif form == "columns":
                columns.append(ColumnsInput(holder, attributes, context.share(*share)))
            else:
                tables.append(JoinInput(holder, attributes, context.rows(*share)))
        whole, bits = manifest.layout.cliques if columns or tables else None, manifest.counted_bits
        if tables:
            assert manifest.join is not None
            mode = Mode(manifest.join.mode)
            joined: list[HorizontalInput | JoinInput] = [*counted, *tables]
            dummies = await self._dummies(len(tables))
            protocol = compute_joined_answers(
                context.step("compute"),
                joined,
                layout=manifest.layout,
                mode=mode,
                counted=whole,
                bits=bits,
                dummies=dummies,
            )
        else:
            protocol = compute_answers(
                context.step("compute"),
                [*counted, *columns],
                layout=manifest.layout,
                counted=whole,
                bits=bits,
            )
        answers = await self._party.execute(protocol)
        # The engine had the counted contributions first; verdicts are in the order of the seal.
        flags = [int(flag) for flag in answers.accepted]
        first, others = iter(flags[: len(counted)]), iter(flags[len(counted) :])
        verdicts = tuple(next(first if form == "marginals" else others) for form in order)
        counts = answers.marginals.components
        self._material.keep_counts(counts, verdicts)
        await self._resume(counts, verdicts)

    async def _dummies(self, tables: int) -> Dummies | None:
        """Noise for the numbers that a join of so many tables shows."""
        overlaps = self._record.manifest.overlaps
        if overlaps is None or tables < 2:
            return None
        plan = overlaps_plan(overlaps)
        context = noise_context(self._party.context, "compute", plan)
        return Dummies(await self._party.execute(draw_noise(context, plan.noise, len(sets_of(tables)))), plan.reach)

    async def _resume(self, counts: Share, verdicts: Verdicts) -> None:
        """Be ready for selections and measurements on these counts."""
        context, manifest = self._party.context, self._record.manifest
        shared = context.share(*(np.asarray(part, Z64.dtype) for part in counts))
        self._steps = Steps(
            context.step("run"), manifest.layout, manifest.task.neighbouring, shared, manifest.task.largest_count
        )
        self._verdicts = verdicts
        if manifest.program.candidates(manifest.task):
            await self._party.execute(self._steps.prepare())

    async def _opened(self, request: Request) -> int | tuple[int, ...]:
        assert self._steps is not None
        if isinstance(request, Selection):
            # What follows is due already, whatever is selected: a measurement of it, or in MST another selection.
            ahead = self._wanted() if self._pooled else []
            return await self._party.execute(self._steps.select(request, ahead))
        noise = self._record.manifest.algorithm.noise
        if noise != "joint":
            return value_of(await self._paper(request, noise))
        return value_of(await self._party.execute(self._steps.measure(request)))

    async def _paper(self, request: Measurement, noise: str) -> Integers:
        """One of the paper's samplers, without a guarantee; rounded to integers once it is open."""
        assert self._steps is not None
        counts: AShare = self._steps.counts[self._record.manifest.layout.part(request.clique)]
        context = request_context(self._steps.run, request).step("paper")
        assert isinstance(request.mechanism, Gaussian)  # manifests refuse these samplers with other accounting
        scale = float(request.mechanism.sigma_squared) ** 0.5
        opened = await self._party.execute(VARIANTS[noise].function(context, counts, scale=scale, frac=_FRAC))
        return (np.asarray(opened).view(np.int64) + (1 << (_FRAC - 1))) >> _FRAC

    def _draw_soon(self) -> None:
        if self._idle:
            self._drawing = asyncio.create_task(self._draw_in_turn())

    async def _draw_in_turn(self) -> None:
        with suppress(PeerError, SessionClosed):  # whoever waits for the session learns of it from the channel
            async with self._turn:
                await self._draw_ahead()

    async def _draw_ahead(self) -> None:
        """Draw the noise of what may be asked next, while the coordinator fits its model.

        It is done between two steps, once, on all servers: if the next step comes first, it waits for it here.
        """
        idle, self._idle = self._idle, False
        if not idle or self._steps is None or self._record.manifest.algorithm.noise != "joint":
            return
        if wanted := self._wanted():
            await self._party.execute(self._steps.pool.fill(self._steps.run, wanted))

    @property
    def _pooled(self) -> bool:
        """Whether noise is drawn before it is known which marginal it is for.

        Where a measurement draws as much as its marginal has cells, that is known only once it is selected; and noise
        drawn for another number of cells would be other noise, which a repetition after a crash would not repeat.
        """
        manifest = self._record.manifest
        return manifest.algorithm.noise == "joint" and manifest.program.draws(manifest.task) is not None

    def _wanted(self) -> list[Wanted]:
        """All that the step due now may need, as far as it has room."""
        assert self._steps is not None
        pool, enforcer = self._steps.pool, self._record.account.enforcer
        neighbouring, room = self._record.manifest.task.neighbouring, POOLED - len(pool)
        wanted = []
        for one in enforcer.upcoming(enforcer.left):
            noise = Wanted(one.step, one.plan(neighbouring), one.draws)
            if not pool.has(noise):
                room -= noise.draws
                if room < 0:
                    break
                wanted.append(noise)
        return wanted


def _kind(request: Request | None) -> str:
    if request is None:
        return "compute"
    return "select" if isinstance(request, Selection) else "measure"


def _to_blame(error: PeerError, party: int) -> PeerError:
    """The error with the party that the run waits for: of a peer that gave up because of the third, that third."""
    if isinstance(error, PeerAborted) and error.blames not in (None, error.party, party):
        return PeerUnreachable(error.blames, f"given up by {error}")
    return error


def _compare(peer: int, mine: View, theirs: View) -> None:
    """Refuse a peer whose record is not ours, as far as both go: they may be one step apart."""
    heads = [{charged: head, max(charged - 1, 0): before} for _, charged, _, head, before in (mine, theirs)]
    common = min(mine[1], theirs[1])
    if any(common not in one for one in heads) or heads[0][common] != heads[1][common]:
        raise PeerDisagrees(peer, "ledger", f"{mine[1]} steps", f"{theirs[1]} other steps")
