"""Keeps one party's mesh alive for the life of a process: when a stream is lost, the mesh is closed and made again.

A mesh is whole or useless, so if one party fails, all of them start over: a survivor closes its streams to the others,
which thereby learn of it. They meet again in any order, because a stream lost while a mesh is being made is dialled
again, and the listening socket stays: whoever dials a party that has not noticed yet waits in its backlog.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from types import MappingProxyType
from typing import Literal, NoReturn

from caps.basics.retry import Backoff
from caps.errors import LocalError, PeerError, PeerRefused, PeerUnreachable
from caps.trust.tls import Credentials
from services.mpc_server.transport.tls import Endpoint, Limits, Mesh, Watch, connect, listen

_RECHECK = 1.0
"""Seconds between two looks at whether the key of a connected peer is denied."""
_RECONNECT = Backoff(first=0.05, longest=2.0)


@dataclass(frozen=True)
class MeshState:
    """The state of a mesh, for status pages.

    `since` is when `phase` began, by the keeper's clock if it has one. `troubles` holds the last trouble with each
    peer, or None if there has been a stream to it since. `meshes` counts the meshes made; `local` is what this party
    itself got wrong.
    """

    phase: Literal["connecting", "connected"]
    since: float | None
    troubles: Mapping[int, PeerError | None]
    meshes: int
    local: LocalError | None


class MeshKeeper:
    """Makes a mesh, and another when it is lost, until `run` is cancelled.

    `listener`, a bound and listening socket, serves in place of the party's own endpoint; `run` closes it in the end.
    Pre-conditions: `run` and `ready` are awaited in one event loop; `state` may be read from any thread.
    """

    def __init__(
        self,
        party: int,
        credentials: Credentials,
        endpoints: Sequence[Endpoint],
        limits: Limits | None = None,
        *,
        listener: socket.socket | None = None,
        entropy: Callable[[int], bytes] = token_bytes,
        clock: Callable[[], float] | None = None,
        watch: Watch | None = None,
        denies: Callable[[str], bool] | None = None,
    ) -> None:
        self._watch = watch or Watch()
        self._party = party
        self._credentials = credentials
        self._endpoints = endpoints
        self._limits = limits
        self._listener = listener
        self._entropy = entropy
        self._clock = clock
        self._denies = denies
        self._mesh: Mesh | None = None
        self._changed = asyncio.Event()
        self._since = clock() if clock else None
        self._meshes = 0
        self._local: LocalError | None = None
        self._troubles: dict[int, PeerError | None] = {
            peer: PeerUnreachable(peer, "not connected yet") for peer in range(len(endpoints)) if peer != party
        }

    @property
    def state(self) -> MeshState:
        """A snapshot."""
        return MeshState(
            "connecting" if self._mesh is None else "connected",
            self._since,
            MappingProxyType(dict(self._troubles)),
            self._meshes,
            self._local,
        )

    async def run(self) -> NoReturn:
        """Keep the mesh until cancelled, then close it.

        Raises LocalError if the endpoint or the credentials are unusable from the start; credentials that become
        unusable later, perhaps while they are renewed, are tried again.
        """
        try:
            if self._listener is None and self._party < len(self._endpoints) - 1:
                self._listener = await listen(self._endpoints[self._party])
            await self._keep()
        except LocalError as error:
            self._local = error
            self._changed.set()
            raise
        finally:
            if self._listener is not None:
                self._listener.close()

    async def ready(self, timeout: float) -> Mesh:  # noqa: ASYNC109
        """The complete mesh, within `timeout` seconds. It may be lost at any time: ask again for each run.

        Raises PeerUnreachable naming a peer that is missing, or the LocalError that `run` ended with.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self._changed.wait()
                    if self._mesh is None and self._local is not None:
                        raise self._local
                    if self._mesh is not None and self._mesh.whole:
                        return self._mesh
                    await asyncio.sleep(0)  # just lost: `run` has yet to notice
        except TimeoutError:
            raise self._unready(timeout) from None

    def _unready(self, timeout: float) -> PeerError:
        troubles = [trouble for trouble in self._troubles.values() if trouble is not None]
        peer, what = (troubles[0].party, troubles[0].what) if troubles else (next(iter(self._troubles)), "reconnecting")
        return PeerUnreachable(peer, f"no mesh within {timeout:g} s; {what}")

    async def _keep(self) -> NoReturn:
        loop = asyncio.get_running_loop()
        retries = _RECONNECT.begin()
        while True:
            try:
                mesh = await self._connect()
                born = loop.time()
                await self._guard(mesh)
                if loop.time() - born > _RECONNECT.longest:
                    retries.reset()
            except PeerError as error:
                self._report(error.party, error)
            except LocalError as error:
                if not self._meshes:
                    raise
                self._local = error
            except Exception as error:  # noqa: BLE001  nothing that a peer does, or we did wrong, ends the keeping
                self._watch.supervisor.notice("mesh", error)
            await asyncio.sleep(retries.pause())

    async def _connect(self) -> Mesh:
        return await connect(
            self._party,
            self._credentials,
            self._endpoints,
            self._limits,
            listener=self._listener and self._listener.dup(),
            entropy=self._entropy,
            report=self._report,
            watch=self._watch,
            denies=self._denies,
        )

    async def _guard(self, mesh: Mesh) -> None:
        """Offer a mesh until it is lost."""
        self._meshes += 1
        self._local = None
        self._turn(mesh)
        because = None
        try:
            because = await self._ended(mesh)
            self._report(because.party, because)
        finally:
            self._turn(None)
            await mesh.close(because)

    async def _ended(self, mesh: Mesh) -> PeerError:
        """Wait until a stream is lost, or the key of a peer that is connected is denied."""
        while True:
            try:
                async with asyncio.timeout(_RECHECK):
                    return await mesh.lost()
            except TimeoutError:
                for peer in self._troubles:
                    if self._denies is not None and self._denies(mesh.pin(peer).hex()):
                        return PeerRefused(peer, "its key is denied here")

    def _turn(self, mesh: Mesh | None) -> None:
        self._mesh = mesh
        self._since = self._clock() if self._clock else None
        if mesh is None:
            self._changed.clear()
        else:
            self._changed.set()

    def _report(self, peer: int, trouble: PeerError | None) -> None:
        self._troubles[peer] = trouble
