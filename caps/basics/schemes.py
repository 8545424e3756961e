"""The public facts of secret-sharing schemes: the number of servers, and which server holds what.

A value is split into components, and each server receives some of them. Code that deals, sends, stores, plans or
verifies takes these numbers from the study's scheme; `services.mpc_server.engine` computes on shares.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme's public facts.

    held: for each server, the components it receives, in the order in which it stores them. seeded: the components that
    a dealer sends as seeds of 32 bytes; the others are vectors as long as the data.
    """

    name: str
    held: tuple[tuple[int, ...], ...]
    seeded: tuple[int, ...]

    @property
    def parties(self) -> int:
        """The number of servers that compute."""
        return len(self.held)

    @property
    def components(self) -> int:
        """The number of components into which a value is split."""
        return 1 + max(max(components) for components in self.held)

    def holders_of(self, component: int) -> tuple[int, ...]:
        """The servers that receive a component."""
        return tuple(party for party, components in enumerate(self.held) if component in components)

    def peers_of(self, party: int) -> tuple[int, ...]:
        """The other servers, beginning with the next."""
        return tuple((party + step) % self.parties for step in range(1, self.parties))


REP3 = Scheme("rep3", held=((0, 1), (1, 2), (2, 0)), seeded=(0, 1))
"""Replicated sharing among three servers, secure against one semi-honest server (Araki et al. 2016)."""

SCHEMES = {scheme.name: scheme for scheme in (REP3,)}
"""All schemes, by the names that studies use."""
