"""What parties sign and send about a study: approvals, declines, contributions, receipts, seals, attestations, more.

Every signed document travels as `Signed`: the document, who signed it, and the signature over its canonical form. The
signer's key is in the manifest. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, StringConstraints, model_validator

from caps.basics import canonical
from caps.basics.document import Document, Hex32, Name, Sentence
from caps.basics.schemes import SCHEMES, SchemeName, extremes
from caps.errors import DomainError
from caps.study.manifest import Manifest
from caps.trust import signing
from caps.trust.cards import Party

Signature = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
Instant = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")]
RunId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Index = Annotated[int, Field(ge=0, lt=1 << 31)]

LARGEST_CHUNK = 1 << 26
_COMMITMENT = b"caps/v1/component\0"


class Signable(Document):
    """A document with its own type, which the signature covers."""

    kind: ClassVar[str]

    def digest(self) -> str:
        """SHA-256 of the canonical form with its type, in hexadecimal: the document's name."""
        return canonical.digest(self.kind, {"document": self.to_json()}).hex()


D = TypeVar("D", bound=Signable)


class Signed(Document, Generic[D]):
    """A document and the signature of the party that issues it."""

    document: D
    signer: Name
    signature: Signature

    @classmethod
    def by(cls, document: D, signer: str, key: signing.SigningKey) -> Self:
        """Sign a document."""
        signature = signing.sign(key, document.kind, document.to_json())
        return cls(document=document, signer=signer, signature=signature)

    def verify(self, party: Party) -> D:
        """The document. Raises SignatureRefused unless `party` signed it."""
        if self.signer != party.name:
            raise signing.SignatureRefused(f"this {self.document.kind} names another signer than {party.name}")
        signing.verify(party.signing_key, self.document.kind, self.document.to_json(), self.signature)
        return self.document


class Approval(Signable):
    """A server or a holder agrees to a study. A server adds the digest of its exchange key (`caps.trust.exchange`)."""

    kind: ClassVar[str] = "approval"
    study: Hex32
    role: Literal["mpc-server", "holder"]
    exchange_digest: Hex32 | None = None
    at: Instant


class Decline(Signable):
    """A server or a holder does not take part in a study, and says why. An approval of its own takes this back."""

    kind: ClassVar[str] = "decline"
    study: Hex32
    role: Literal["mpc-server", "holder"]
    reason: Sentence
    at: Instant


class Contribution(Signable):
    """What one holder contributes to a study: its form, and a commitment to each component of the study's scheme.

    form, bits and shape are those of `caps.study.manifest.Form`. All components but the last are seeds of 32 bytes;
    the last is a vector of little-endian words of `bits`, with nothing between them. Each commitment uses a nonce that
    only the component's servers learn, so a server without the component learns nothing from it.
    """

    kind: ClassVar[str] = "contribution"
    study: Hex32
    holder: Name
    form: Literal["marginals", "columns", "records"]
    bits: Literal[8, 16, 24, 32]
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=2)]
    commitments: Annotated[tuple[Hex32, ...], Field(**extremes(lambda scheme: scheme.components))]
    chunk_bytes: Annotated[int, Field(ge=1 << 10, le=LARGEST_CHUNK)]
    at: Instant

    @property
    def vector_bytes(self) -> int:
        """The size of the vector in bytes."""
        size = self.bits // 8
        for extent in self.shape:
            size *= extent
        return size

    @property
    def chunks(self) -> int:
        """The number of pieces in which the vector is sent; all but the last have `chunk_bytes`."""
        return -(-self.vector_bytes // self.chunk_bytes)

    def check(self, manifest: Manifest) -> None:
        """Raises DomainError unless the contribution has the form that the manifest demands of the holder."""
        if self.study != manifest.study_id:
            raise DomainError("the contribution is for another study")
        if len(self.commitments) != manifest.sharing.components:
            raise DomainError(f"a contribution in {manifest.scheme} has {manifest.sharing.components} commitments")
        holder = manifest.holder(self.holder)
        form = manifest.form_of(holder)
        if (self.form, self.bits, self.shape) != form:
            sizes = "x".join(map(str, form.shape))
            raise DomainError(f"the study expects {form.form} of shape {sizes} in {form.bits} bits from {self.holder}")


def commitment(nonce: bytes, content: bytes) -> str:
    """The commitment to a component: SHA-256 over a fresh nonce of 32 bytes and the seed or the vector's bytes."""
    return Commitment(nonce).update(content).hex()


class Commitment:
    """The same commitment, for content that arrives in pieces."""

    def __init__(self, nonce: bytes) -> None:
        if len(nonce) != 32:
            raise DomainError(f"a nonce must have 32 bytes, not {len(nonce)}")
        self._hash = sha256(_COMMITMENT + nonce)

    def update(self, part: bytes | memoryview) -> Self:
        """Add the next piece."""
        self._hash.update(part)
        return self

    def hex(self) -> str:
        """The commitment to all pieces so far."""
        return self._hash.hexdigest()

    def opens(self, expected: str) -> bool:
        """Whether the pieces are the content that was committed to."""
        return hmac.compare_digest(self.hex(), expected)


class Opening(Document):
    """A component as its servers receive it: the nonce and, if it has one, the seed. The vector follows in chunks."""

    component: Annotated[int, Field(ge=0, lt=max(scheme.components for scheme in SCHEMES.values()))]
    nonce: Hex32
    seed: Hex32 | None = None


class Offer(Document):
    """A contribution's first message: the signed statement, and the components that the scheme gives the server."""

    contribution: Signed[Contribution]
    openings: Annotated[tuple[Opening, ...], Field(**extremes(lambda scheme: max(map(len, scheme.held))))]

    @model_validator(mode="after")
    def _fits_a_scheme(self) -> Self:
        """As many openings of existing components as a server gets in a scheme with so many components."""
        components = len(self.contribution.document.commitments)
        held = {len(held) for scheme in SCHEMES.values() if scheme.components == components for held in scheme.held}
        if len(self.openings) not in held or any(one.component >= components for one in self.openings):
            raise ValueError(f"a server gets {' or '.join(map(str, sorted(held)))} of {components} components")
        return self


class Receipt(Signable):
    """A server confirms that it accepted, withdrew or erased a contribution."""

    kind: ClassVar[str] = "receipt"
    study: Hex32
    contribution: Hex32
    holder: Name
    server: Name
    event: Literal["accepted", "withdrawn", "erased"]
    at: Instant


class ContributionState(Document):
    """What a server has of a contribution. missing: the ranges of chunks (first, last) that it waits for."""

    contribution: Hex32
    holder: Name
    state: Literal["offered", "complete", "withdrawn", "erased"]
    missing: tuple[tuple[Index, Index], ...] = ()
    receipt: Signed[Receipt] | None = None


class Seal(Signable):
    """A server's inputs to a study are final. `inputs`, the digest of the contributions, is the same on all servers."""

    kind: ClassVar[str] = "seal"
    study: Hex32
    server: Name
    inputs: Hex32
    contributions: tuple[Hex32, ...]
    at: Instant


def inputs_digest(study: str, contributions: Sequence[str]) -> str:
    """The digest of a set of contributions; their order does not matter."""
    return canonical.digest("inputs", {"study": study, "contributions": sorted(contributions)}).hex()


class SealRequest(Document):
    """The contributions to compute on, and the approvals of all servers and of their holders."""

    contributions: tuple[Hex32, ...]
    approvals: tuple[Signed[Approval], ...]


class LedgerRange(Document):
    """The part of a server's ledger that records a run: hashes of the first and last records, and their numbers."""

    first: Index
    last: Index
    first_hash: Hex32
    last_hash: Hex32


class Attestation(Signable):
    """A server's statement about a whole run. All but `server`, `ledger` and `at` are the same on all servers.

    transcript: the digest over the digests of all requests and answers. contributions: all that were sealed, in the
    manifest's order of holders. holders: whose contributions passed the checks, so that their data are in the result.
    refused: whose did not, so that nothing of theirs is. statement: a `PrivacyStatement` as JSON.
    """

    kind: ClassVar[str] = "attestation"
    study: Hex32
    inputs: Hex32
    run: RunId
    server: Name
    transcript: Hex32
    steps: Index
    contributions: tuple[Hex32, ...]
    holders: tuple[Name, ...]
    refused: tuple[Name, ...] = ()
    statement: dict[str, Any]
    ledger: LedgerRange
    software: str
    at: Instant

    def contributors(self, manifest: Manifest) -> list[str]:
        """The holders of `contributions`, in the same order."""
        named = {*self.holders, *self.refused}
        return [holder.name for holder in manifest.holders if holder.name in named]


class LedgerHead(Signable):
    """The last record of a server's ledger when a session of a run begins: its number and its hash.

    The hash covers all records before it. Servers give each other their heads before they compute, and keep them, so a
    ledger that is later cut off or rewritten no longer contains what its server has signed.
    """

    kind: ClassVar[str] = "ledger-head"
    server: Name
    run: RunId
    number: Index
    hash: Hex32
    at: Instant


class Evidence(Signable):
    """A server's statement that a check on shares failed, so that one of a pair of servers deviates from the protocol.

    It ends the run. A server may be of the pair itself, if it alone saw what the other did. pair: None if the session
    ended before this server could tell which two are in question. step: what was being computed or prepared; None if
    the session had only begun. check: `keys` if the two told different keys to a third, `messages` if what they sent
    does not follow from what they were given. It contains no value and nothing that depends on anybody's data.
    """

    kind: ClassVar[str] = "evidence"
    study: Hex32
    run: RunId
    step: Index | None
    scheme: SchemeName
    pair: tuple[Name, Name] | None
    check: Literal["keys", "messages"]
    server: Name
    at: Instant

    @property
    def words(self) -> str:
        """What it says, in a sentence."""
        if self.pair is None:
            return f"{self.server} found that a server deviates from the protocol, but not which"
        first, second = self.pair
        if self.server not in self.pair:
            return f"{self.server} found that {first} or {second} deviates from the protocol"
        other = second if self.server == first else first
        return f"{self.server} found that {other} deviates from the protocol, so that {first} or {second} does"

    def matches(self, manifest: Manifest, run: str) -> None:
        """Raises DomainError unless this is about a run of this study, and about two of its servers."""
        names = manifest.sharing.server_names
        if (self.study, self.scheme, self.run) != (manifest.study_id, manifest.scheme, run):
            raise DomainError("the evidence is about another run")
        named = {self.server, *(self.pair or ())}
        if (self.pair is not None and self.pair[0] == self.pair[1]) or not named <= set(names):
            raise DomainError("the evidence must name two servers of the study")


class EvidenceRequest(Document):
    """Evidence about a run that other servers gave, for a server to keep beside its own."""

    evidence: Annotated[tuple[Signed[Evidence], ...], Field(max_length=max(s.parties for s in SCHEMES.values()))]


class ReleaseBody(Signable):
    """What the coordinator made from the answers: the SHA-256 of every file, and the seed with which rows were drawn.

    transcript: the digest that the servers attest; the transcript itself is one of the files.
    """

    kind: ClassVar[str] = "release"
    study: Hex32
    run: RunId
    transcript: Hex32
    files: dict[Name, Hex32]
    rows: Index
    seed: Hex32
    software: str
    at: Instant


class Certificate(Document):
    """Everything an auditor needs to check who agreed to what and who signed which files: see `caps verify`."""

    version: Literal[1] = 1
    manifest: Manifest
    approvals: tuple[Signed[Approval], ...]
    attestations: tuple[Signed[Attestation], ...]
    release: Signed[ReleaseBody]
