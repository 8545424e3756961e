"""What crosses between parties.

`documents` has the signed documents, `steps` the requests and answers of a run, and `releases` the published files.
`coordinator`, `holder` and `server` have the other bodies that each service's routes take and return; `health` and
`problems` belong to every service. `media` and `digests` are for the HTTP headers that describe a body.
"""

from caps.wire.documents import (
    Approval,
    Attestation,
    Certificate,
    Commitment,
    Contribution,
    ContributionState,
    Decline,
    Evidence,
    EvidenceRequest,
    LedgerHead,
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
    "Decline",
    "Evidence",
    "EvidenceRequest",
    "LedgerHead",
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
