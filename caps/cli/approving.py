"""Approving a study, or declining it: fetched, checked, shown, asked, signed; what was signed is what was shown."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel

from caps.cli import consent
from caps.cli.connection import Given
from caps.cli.exits import Exit, Stop
from caps.cli.kit import matching
from caps.cli.output import Output, plain
from caps.client import AnswerRefused, Client
from caps.errors import DomainError
from caps.trust.signing import SignatureRefused
from caps.wire import Approval, Decline, Signed
from caps.wire.holder import StudyBudget, StudyView
from caps.wire.server import PopulationState, StudyState

if TYPE_CHECKING:
    from caps.study import Manifest
    from caps.trust.cards import Party


class Approving:
    """One study at the holder, or the MPC server, that is to approve it."""

    def __init__(
        self, out: Output, client: Client, given: Given, study: str, *, coordinator: str | None, server: bool
    ) -> None:
        self._out, self._client = out, client
        self._given, self._asked = given, study
        self._coordinator, self._server = coordinator, server
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._find(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _find(self, stack: ExitStack) -> None:
        """The service, the study there, its manifest. What was signed before must be signed by whom it says."""
        service = self._client.health().service
        if service == "coordinator":  # of a study that the holder may not know yet
            self._coordinator = self._client.url
            here = self._given.connection("server" if self._server else "holder")
            self._client = stack.enter_context(here.client())
            service = self._client.health().service
        if service not in ("holder", "mpc-server"):
            raise DomainError(f"this is the address of a {service}: studies are approved at holders and MPC servers")
        if self._coordinator is not None and service == "holder":
            self._client.fetch(self._coordinator, self._asked)
        self.study = matching(self._asked, self._client.studies, "study")
        self.manifest: Manifest = self._client.manifest(self.study)
        state = self._client.study(self.study)
        self._budget = self._client.budget(self.study)
        self.warnings: list[str] = []
        self._me: Party
        if isinstance(state, StudyView) and isinstance(self._budget, StudyBudget):
            self._me, self.warnings = self.manifest.holder(state.holder), state.key_warnings
            self._role = "holder"
        elif isinstance(state, StudyState) and isinstance(self._budget, PopulationState):
            self._me, self._role = self.manifest.server(self._budget.server), "mpc-server"
        else:
            raise AnswerRefused("the service answers like two different services")
        if state.study != self.study:
            raise AnswerRefused("the service answered with another study")
        if state.approval is not None:
            self._check(state.approval)

    def _check(self, word: Signed[Approval] | Signed[Decline]) -> None:
        """Require that the party signed this very study."""
        found = word.verify(self._me)
        if (found.study, found.role) != (self.study, self._role):
            raise SignatureRefused("what was signed is not the study that was shown")

    @property
    def party(self) -> str:
        """Who is to approve."""
        return self._me.name

    def screen(self) -> list[str]:
        """What there is to agree to."""
        if isinstance(self._budget, StudyBudget):
            holder = self.manifest.holder(self._me.name)
            sent = self._client.preview(self.study).total_bytes
            return consent.holder_screen(self.manifest, holder, self._budget, self.warnings, sent)
        return consent.server_screen(self.manifest, self._budget, [])

    def ask(self) -> None:
        """Show it, and go on only if somebody says yes."""
        if self._out.as_json or not sys.stdin.isatty():
            raise DomainError("there is nobody to ask: read the study (`caps study show`), then approve it with --yes")
        for line in self.screen():
            sys.stdout.write(f"{plain(line)}\n")
        sys.stdout.write("Approve this study? [y/N] ")
        sys.stdout.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            self._out.note("Nothing is signed.")
            raise Stop(Exit.REFUSED)

    def approve(self) -> BaseModel:
        """Let the service sign, and check what it signed."""
        found = self._client.approve(self.study)
        approval = found if isinstance(found, Signed) else found.approval
        if approval is None:
            raise AnswerRefused("the service does not show its signature")
        self._check(approval)
        return found

    def decline(self, reason: str) -> BaseModel:
        """Let the service sign that it does not take part, and check what it signed."""
        found = self._client.decline(self.study, reason)
        decline = found if isinstance(found, Signed) else found.decline
        if decline is None or decline.document.reason != reason:
            raise AnswerRefused("the service does not show its signature")
        self._check(decline)
        return found
