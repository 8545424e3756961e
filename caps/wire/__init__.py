"""What crosses between parties.

`documents` are signed; `steps` are what servers are asked in a run, and answer; `releases` are published files.
`coordinator`, `holder` and `server` have what the routes of each service take and return beside these; `health` and
`problems` are every service's. `media` and `digests` are what HTTP headers say about a body.
"""

from caps.wire.documents import (
    Approval,
    Attestation,
    Certificate,
    Commitment,
    Contribution,
    ContributionState,
    LedgerRange,
    Offer,
    Opening,
    Receipt,
    ReleaseBody,
    Seal,
    SealRequest,
    Signable,
    Signed,
    commitment,
    inputs_digest,
)
from caps.wire.steps import (
    Answer,
    Computing,
    RunRequest,
    RunStatus,
    TranscriptStep,
    request_from_json,
    request_to_json,
    transcript_digest,
)

__all__ = [
    "Answer",
    "Approval",
    "Attestation",
    "Certificate",
    "Commitment",
    "Computing",
    "Contribution",
    "ContributionState",
    "LedgerRange",
    "Offer",
    "Opening",
    "Receipt",
    "ReleaseBody",
    "RunRequest",
    "RunStatus",
    "Seal",
    "SealRequest",
    "Signable",
    "Signed",
    "TranscriptStep",
    "commitment",
    "inputs_digest",
    "request_from_json",
    "request_to_json",
    "transcript_digest",
]
