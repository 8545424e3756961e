"""The public facts of secret-sharing schemes: the number of servers, and which server holds what.

A value is split into components, and each server receives some of them. Code that deals, sends, stores, plans or
verifies takes these numbers from the study's scheme; `services.mpc_server.engine` computes on shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from caps.errors import party_name

SchemeName = Literal["rep3", "rep3-active", "rep4"]
"""What a study may call its scheme; each is a key of `SCHEMES`."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme's public facts.

    held: for each server, the components it receives, in the order in which it stores them. seeded: the components that
    a dealer sends as seeds of 32 bytes; the others are vectors as long as the data. active: whether a server that
    deviates from the protocol is caught before anything is opened that depends on it.
    """

    name: str
    held: tuple[tuple[int, ...], ...]
    seeded: tuple[int, ...]
    active: bool = False

    @property
    def parties(self) -> int:
        """The number of servers that compute."""
        return len(self.held)

    @property
    def components(self) -> int:
        """The number of components into which a value is split."""
        return 1 + max(max(components) for components in self.held)

    @property
    def vector(self) -> int:
        """The component that a dealer sends as a vector."""
        (component,) = set(range(self.components)) - set(self.seeded)
        return component

    @property
    def server_names(self) -> tuple[str, ...]:
        """What a study calls its servers, in order: S1, S2, ..."""
        return tuple(party_name(party) for party in range(self.parties))

    @property
    def servers_listed(self) -> str:
        """The servers' names in a sentence: S1, S2 and S3."""
        *first, last = self.server_names
        return f"{', '.join(first)} and {last}"

    def holders_of(self, component: int) -> tuple[int, ...]:
        """The servers that receive a component."""
        return tuple(party for party, components in enumerate(self.held) if component in components)

    def peers_of(self, party: int) -> tuple[int, ...]:
        """The other servers, beginning with the next."""
        return tuple((party + step) % self.parties for step in range(1, self.parties))


REP3 = Scheme("rep3", held=((0, 1), (1, 2), (2, 0)), seeded=(0, 1))
"""Replicated sharing among three servers, secure against one semi-honest server (Araki et al. 2016)."""

REP3_ACTIVE = Scheme("rep3-active", held=REP3.held, seeded=REP3.seeded, active=True)
"""The same sharing, secure against one malicious server: each proves its messages (Boyle, Gilboa, Ishai, Nof 2019)."""

REP4 = Scheme("rep4", held=((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)), seeded=(0, 1, 2), active=True)
"""Replicated sharing among four servers, secure against one malicious server (Dalskov, Escudero and Keller 2021)."""

SCHEMES = {scheme.name: scheme for scheme in (REP3, REP3_ACTIVE, REP4)}
"""All schemes, by the name that a study gives."""


def extremes(count: Callable[[Scheme], int]) -> dict[str, int]:
    """The fewest and the most of something in any scheme, as bounds on the length of a field."""
    counts = [count(scheme) for scheme in SCHEMES.values()]
    return {"min_length": min(counts), "max_length": max(counts)}
