"""Every exception that CaPS raises on purpose. The first branch says who is to blame.

Exceptions defined in other modules have the module in parentheses; tests/caps/test_errors.py keeps the tree complete.

    CapsError
    +-- LocalError              this process was asked for something it must not do
    |   +-- ShareError          shapes, dtypes, rings or owners of shares do not fit together
    |   +-- LabelReused         a message or random draw was named twice
    |   +-- DomainError         a public parameter is outside the range that a protocol is defined on
    |   |   +-- TableRefused    the schema does not allow values of a table (caps.data.schema.schema)
    |   |   +-- TableDoesNotFit a table is not one that a study takes (caps.study.table)
    |   |   +-- HeaderRefused   a table lacks columns, or has others (caps.data.schema.tables)
    |   |   +-- LineRefused     a line of a CSV cannot be read (caps.data.schema.tables)
    |   |   +-- KeyRefused      the join key does not allow rows of a table (caps.data.joinkey)
    |   |   +-- ManifestRefused the file is not a valid manifest (caps.study.authoring)
    |   |   +-- ImpossibleConditions  no row of a model meets the conditions (services.coordinator.estimation)
    |   +-- SessionClosed       a channel was used after it was closed or aborted
    |   +-- NotDue              the schedule does not allow this step now
    |   +-- BudgetExceeded      a charge exceeds what is left of a budget (caps.dp.privacy.filter)
    |   +-- SignatureRefused    a signature is not that of its expected signer (caps.trust.signing)
    |   +-- NotTheParty         a certificate is not that of the intended party (caps.trust.tls)
    |   +-- DatabaseRefused     the database is out of reach, not durable, or another version (caps.service.migrations)
    |   +-- LedgerBroken        a ledger's record was altered or lost (services.mpc_server.storage.ledger)
    |   +-- HeadRefused         a peer's ledger lacks what the peer has signed (services.mpc_server.storage.heads)
    |   +-- RunAborted          a check on shares failed, so a run is over (services.mpc_server.runs.record)
    |   +-- RequestChanged      a step's request differs from the recorded one (services.mpc_server.runs.record)
    |   +-- RequestsDiffer      servers received different requests for one step (services.mpc_server.runs.session)
    |   +-- NotStarted          a service of a local federation ended, or was not ready in time (caps.federation.local)
    +-- PeerError               another party failed or misbehaved; `.party` says which
    |   +-- PeerUnreachable     no connection could be made in time
    |   +-- PeerLost            the connection ended before the protocol did
    |   +-- PeerStalled         nothing arrived for too long
    |   +-- PeerRefused         the certificate is not that of the expected party
    |   +-- PeerDisagrees       Hello differs; `.field` says where
    |   +-- PeerViolation       the protocol does not allow these bytes at this point
    |   |   +-- CheatingDetected  a check on shares failed; one of the two servers `.pair` cheated
    |   |       +-- CheatingUnresolved  the session ended before two servers could be named
    |   +-- PeerAborted         the peer gave up and said why: `.cause`, and `.blames` if it names another party
    +-- ClientError             a request to a service failed (caps.client.calls)
    |   +-- ProblemError        the service answered with a problem (caps.client.calls)
    |   +-- Unreachable         no answer came; `.hint` says what to check (caps.client.calls)
    |   |   +-- NotTrusted      the certificate is not one of the trusted authority (caps.client.calls)
    |   +-- AnswerRefused       the answer violates the contract (caps.client.calls)
    +-- ServerError             a server failed, or reported another party's failure (services.coordinator.servers)
    |   +-- Unavailable         try again later (services.coordinator.servers)
    |   +-- ServerRefused       the server refused for good (services.coordinator.servers)
    |   +-- Misbehaved          the server sent something unusable (services.coordinator.servers)
    +-- RunFailed               the run cannot continue (services.coordinator.execution)

Messages contain names of parties, steps and fields; never a value of private data.
"""

from __future__ import annotations


class CapsError(Exception):
    """The base of all errors raised on purpose."""


class LocalError(CapsError):
    """The caller in this process is to blame."""


class ShareError(LocalError):
    """Shapes, dtypes, rings or owners of shares do not fit together."""


class LabelReused(LocalError):
    """A message or a random draw was named twice: each label is for one use."""


class DomainError(LocalError):
    """A public parameter is outside the range that a protocol is defined on."""


class SessionClosed(LocalError):
    """The channel was closed or aborted before this use."""


class NotDue(LocalError):
    """The schedule does not allow this step now. Nothing was charged."""


class PeerError(CapsError):
    """Party `party` (counted from 0; shown as S1, S2, ...) is to blame."""

    def __init__(self, party: int, what: str) -> None:
        super().__init__(f"{party_name(party)}: {what}")
        self.party = party
        self.what = what


class PeerUnreachable(PeerError):
    """No connection could be made in time."""


class PeerLost(PeerError):
    """The connection ended before the protocol did."""


class PeerStalled(PeerError):
    """Nothing arrived for too long."""


class PeerRefused(PeerError):
    """The certificate is not that of the expected party."""


class PeerDisagrees(PeerError):
    """Hello differs from ours in `field`."""

    def __init__(self, party: int, field: str, ours: str, theirs: str) -> None:
        super().__init__(party, f"disagrees on {field}: ours is {ours}, theirs is {theirs}")
        self.field = field


class PeerViolation(PeerError):
    """The protocol does not allow these bytes at this point."""


class CheatingDetected(PeerViolation):
    """A check that every honest server passes has failed: one server of `pair` cheated, or its messages were altered.

    The text is the same whatever was altered, so that an abort tells nothing about the data.
    """

    pair: tuple[int, int] | None

    def __init__(self, pair: tuple[int, int]) -> None:
        first, second = self.pair = (min(pair), max(pair))
        super().__init__(
            first, f"or {party_name(second)} has sent something that does not follow from what it was given"
        )


class CheatingUnresolved(CheatingDetected):
    """The same, but `party` ended the session before it was found out which two are in question: `pair` is None."""

    def __init__(self, party: int) -> None:
        PeerViolation.__init__(self, party, "ended the session after a check had failed, before anybody was named")
        self.pair = None


class PeerAborted(PeerError):
    """The peer gave up and said why; `blames` is the party it names, if it names one."""

    def __init__(self, party: int, cause: str, blames: int | None = None) -> None:
        super().__init__(party, f"aborted: {cause}")
        self.cause = cause
        self.blames = blames


def party_name(party: int) -> str:
    """The paper's name of a party: S1, S2, ... for 0, 1, ..."""
    return f"S{party + 1}"
