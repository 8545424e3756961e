"""Every exception CaPS raises on purpose. The first branch says who is to blame.

    CapsError
    +-- LocalError              this process was asked for something it must not do
    |   +-- ShareError          shapes, dtypes, rings or owners of shares that do not fit together
    |   +-- LabelReused         a message or random draw was named twice
    |   +-- DomainError         a public parameter outside the range a protocol is defined on
    |   |   +-- TableRefused    rows that the schema does not admit (caps.data.schema)
    |   +-- SessionClosed       use of a channel after it was closed or aborted
    |   +-- NotDue              a step that the schedule does not allow now
    |   +-- BudgetExceeded      a charge that does not fit into what is left (caps.dp.privacy.filter)
    +-- PeerError               another party failed or misbehaved; `.party` says which
        +-- PeerUnreachable     no connection could be made within the time allowed
        +-- PeerLost            the connection ended before the protocol did
        +-- PeerStalled         nothing arrived for longer than the time allowed
        +-- PeerRefused         the certificate presented is not that of the party expected
        +-- PeerDisagrees       Hello differs; `.field` says where
        +-- PeerViolation       bytes that the protocol does not allow at this point
        +-- PeerAborted         the peer gave up, and said why; `.cause`, and `.blames` if it names another party

Messages carry names of parties, steps and fields; never a value of private data.
"""

from __future__ import annotations


class CapsError(Exception):
    """Base of all errors raised on purpose."""


class LocalError(CapsError):
    """The caller in this process is to blame."""


class ShareError(LocalError):
    """Shares, shapes, dtypes, rings or owners that do not fit together."""


class LabelReused(LocalError):
    """A message or a random draw was named twice: each label is for one use."""


class DomainError(LocalError):
    """A public parameter outside the range a protocol is defined on."""


class SessionClosed(LocalError):
    """The channel was closed or aborted before this use."""


class NotDue(LocalError):
    """A step that the schedule does not allow now. Nothing was charged."""


class PeerError(CapsError):
    """Party `party` (0, 1 or 2; shown as S1, S2, S3) is to blame."""

    def __init__(self, party: int, what: str) -> None:
        super().__init__(f"{party_name(party)}: {what}")
        self.party = party
        self.what = what


class PeerUnreachable(PeerError):
    """No connection could be made within the time allowed."""


class PeerLost(PeerError):
    """The connection ended before the protocol did."""


class PeerStalled(PeerError):
    """Nothing arrived for longer than the time allowed."""


class PeerRefused(PeerError):
    """The certificate presented is not that of the party expected."""


class PeerDisagrees(PeerError):
    """Hello differs from ours in `field`."""

    def __init__(self, party: int, field: str, ours: str, theirs: str) -> None:
        super().__init__(party, f"disagrees on {field}: ours is {ours}, theirs is {theirs}")
        self.field = field


class PeerViolation(PeerError):
    """Bytes that the protocol does not allow at this point."""


class PeerAborted(PeerError):
    """The peer gave up and said why; `blames` is the party it names, if it names one."""

    def __init__(self, party: int, cause: str, blames: int | None = None) -> None:
        super().__init__(party, f"aborted: {cause}")
        self.cause = cause
        self.blames = blames


def party_name(party: int) -> str:
    """The paper's name of a party: S1, S2, S3 for 0, 1, 2."""
    return f"S{party + 1}"
