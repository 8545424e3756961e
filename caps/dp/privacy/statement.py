"""The privacy statement on a certificate: the guarantee, what was spent, and the assumptions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction

from caps.basics import canonical
from caps.basics.schemes import Scheme
from caps.dp.privacy.allowance import Allowance
from caps.dp.privacy.filter import Filter
from caps.dp.privacy.mechanisms import KINDS
from caps.dp.privacy.neighbouring import Neighbouring, Relation
from caps.dp.privacy.rational import (
    decode_ratio,
    encode_ratio,
    exp_up,
    read_count,
    read_flag,
    read_list,
    read_object,
    read_text,
)
from caps.dp.privacy.zcdp import folded_epsilon, satisfies
from caps.errors import DomainError

VERSION = 1
UNIT = "one person, who is one row of the joined table"
ASSUMPTIONS = (
    "AES-128 and keyed BLAKE2b are indistinguishable from random functions apart from the term of delta for this; "
    "HKDF-SHA256, Ed25519, and X25519 or ML-KEM-768 are secure, and TLS 1.3 protects the connections",
    "honest servers and holders draw random numbers from generators that nobody else can predict",
    "whether the study accepts an honest holder's table does not depend on any one person, because a refusal is seen",
    "nothing else computed from these persons' data is released; anything that is adds to the privacy loss stated here",
)


def server_premise(scheme: Scheme) -> str:
    """What is assumed of servers in a scheme, and what one that is corrupted can and cannot do."""
    corrupted = (
        f"in the scheme {scheme.name}, at most one of the {scheme.parties} servers is corrupted or shares what it sees "
        "with others; the coordinator and any holders may be corrupted with it, and send anything"
    )
    if not scheme.active:
        return f"{corrupted}; that server follows the protocol"
    return (
        f"{corrupted}; that server may send anything too: it can end a run, which shows everybody two servers of which "
        "it is one and nothing about data, but cannot change what is counted, drawn or released, except with the "
        "probability in delta for checks"
    )


RELEASE = "what is published is covered by the stated epsilon and delta"
_SHOWN = Context(prec=4, rounding=ROUND_CEILING)
_WORDS = {
    "gaussian": ("table with Gaussian noise", "tables with Gaussian noise"),
    "laplace": ("table with Laplace noise", "tables with Laplace noise"),
    "gaussian-batch": ("batch of tables with Gaussian noise", "batches of tables with Gaussian noise"),
    "gaussian-errors": ("error of an estimate with Gaussian noise", "errors of estimates with Gaussian noise"),
    "noisy-max": ("private selection", "private selections"),
    "gaussian-overlaps": ("set of numbers of persons in common, with Gaussian noise, seen by servers only", ""),
    "laplace-overlaps": ("set of numbers of persons in common, with Laplace noise, seen by servers only", ""),
    "permute-and-flip": ("private selection (permute-and-flip)", "private selections (permute-and-flip)"),
}


@dataclass(frozen=True, slots=True)
class Releases:
    """How many releases one mechanism made with one sampler."""

    kind: str
    sampler: str
    certified: bool
    count: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.count < 1:
            raise DomainError("releases must be of a known mechanism, and at least one")

    def to_json(self) -> dict[str, object]:
        """Returns an object for canonical JSON."""
        return {"certified": self.certified, "count": self.count, "kind": self.kind, "sampler": self.sampler}

    @classmethod
    def from_json(cls, value: object) -> Releases:
        """The inverse of `to_json`."""
        members = read_object(value, ("certified", "count", "kind", "sampler"))
        kind, sampler = read_text(members["kind"]), read_text(members["sampler"])
        return cls(kind, sampler, read_flag(members["certified"]), read_count(members["count"]))


@dataclass(frozen=True, slots=True)
class PrivacyStatement:
    """The guarantee of one filter. An instance whose epsilon does not follow from its budgets cannot be made.

    The guarantee is that of the budgets `rho` and `allowance`, which were fixed in advance. `rho_spent` and `eta` say
    how much of them was used; they prove nothing by themselves, because a run may stop depending on what it saw.
    """

    epsilon: Fraction
    delta: Fraction
    rho: Fraction
    rho_spent: Fraction
    eta: Fraction
    allowance: Allowance
    pure_epsilon: Fraction | None
    neighbouring: Neighbouring
    releases: tuple[Releases, ...]
    unit: str = UNIT
    assumptions: tuple[str, ...] = ASSUMPTIONS
    views: tuple[str, ...] = (RELEASE,)
    """What is covered, and what is not, of what is published and of what each party sees."""

    def __post_init__(self) -> None:
        if not 0 <= self.rho_spent <= self.rho or not 0 <= self.eta <= self.allowance.eta:
            raise DomainError("more was spent than the budgets allow")
        pure = _pure_holds(self.pure_epsilon, self.allowance, self.delta) and self.epsilon == self.pure_epsilon
        if not pure and not satisfies(self.rho, self.allowance, self.epsilon, self.delta):
            raise DomainError("this epsilon and delta do not follow from the budgets")

    @classmethod
    def of(
        cls,
        spent: Filter,
        delta: Fraction,
        *,
        assumptions: tuple[str, ...] = ASSUMPTIONS,
        views: tuple[str, ...] = (RELEASE,),
    ) -> PrivacyStatement:
        """The statement about everything that a filter has accepted and may still accept, at this delta."""
        pure = spent.pure_epsilon
        try:
            epsilon = folded_epsilon(spent.budget, spent.allowance, delta)
        except DomainError:  # at a large epsilon, delta may only suffice together with the pure figure
            if pure is None or not _pure_holds(pure, spent.allowance, delta):
                raise
            epsilon = pure
        if pure is not None and _pure_holds(pure, spent.allowance, delta):
            epsilon = min(epsilon, pure)
        counts = Counter[tuple[str, str, bool]]()
        for entry in spent.entries:
            counts[entry.mechanism.kind, entry.sampler, entry.certified] += entry.count
        releases = tuple(Releases(*key, count) for key, count in sorted(counts.items()))
        return cls(
            epsilon,
            delta,
            spent.budget,
            spent.spent,
            spent.eta,
            spent.allowance,
            spent.pure_epsilon,
            spent.neighbouring,
            releases,
            assumptions=assumptions,
            views=views,
        )

    @property
    def certified(self) -> bool:
        """Whether every release came from a sampler with a proven distance to its ideal law."""
        return all(release.certified for release in self.releases)

    def paragraph(self) -> str:
        """The statement in plain English."""
        return " ".join([*self._verdict(), self._who(), self._seen(), self._spending(), self._premises()])

    def _verdict(self) -> list[str]:
        figures = f"epsilon = {shown(self.epsilon)} and delta = {shown(self.delta)}"
        secret = self.neighbouring.relation is Relation.UNBOUNDED
        change = "whether a person takes part" if secret else "replacing a person's record by any other"
        meaning = (
            f"{change} changes the probability of any result by a factor of at most "
            f"e^epsilon = {shown(exp_up(self.epsilon))}, apart from an allowance of delta"
        )
        if self.certified:
            return [f"This release is differentially private with {figures}: {meaning}."]
        culprits = ", ".join(sorted({release.sampler for release in self.releases if not release.certified}))
        return [
            f"NOT CERTIFIED: this release carries no proven privacy guarantee, because its noise came from {culprits},",
            "for which no proof exists and attacks may be known; do not rely on it for personal data.",
            f"The nominal figures are {figures}; with ideal noise, which this was not, they would mean that {meaning}.",
        ]

    def _who(self) -> str:
        k = self.neighbouring.multiplicity
        secret = self.neighbouring.relation is Relation.UNBOUNDED
        change = "added or removed, and the row count is secret" if secret else "replaced, and the row count is public"
        rows = "" if k == 1 else f" A person may appear in up to {k} rows."
        hidden = "Where two holders bring one value, the first hides the other, and the noise is wider because of it."
        moves = f" {hidden}" if self.neighbouring.moves else ""
        return f"The protected unit is {self.unit}; a unit may be {change}.{rows}{moves}"

    def _seen(self) -> str:
        return f"Who sees what: {'; '.join(self.views)}."

    def _spending(self) -> str:
        parts = [
            f"{release.count} {_WORDS[release.kind][release.count > 1]} (sampler {release.sampler})"
            for release in self.releases
        ]
        made = f"{_listed(parts)} spent {shown(self.rho_spent)} of it" if parts else "none of it has been spent"
        return (
            f"A budget of rho = {shown(self.rho)} (zero-concentrated differential privacy) was fixed beforehand, and "
            f"{made}. The noise as drawn may differ from the ideal by a statistical distance of {shown(self.eta)}. "
            f"delta is the sum of {self._terms()}."
        )

    def delta_terms(self) -> tuple[tuple[str, Fraction], ...]:
        """The terms of delta; the last one is what the others leave."""
        weight = 1 + exp_up(self.epsilon)
        others = (
            ("for the distance of the noise as drawn from the ideal", weight * self.allowance.eta),
            ("for using pseudorandom in place of random functions", weight * self.allowance.nu),
            ("for checks of inputs and of servers, which may err", self.allowance.soundness),
        )
        return (*others, ("from rho", self.delta - sum(value for _, value in others)))

    def _terms(self) -> str:
        return _listed([f"{shown(value)} {name}" for name, value in reversed(self.delta_terms()) if value])

    def _premises(self) -> str:
        numbered = "; ".join(f"({i}) {text}" for i, text in enumerate(self.assumptions, 1))
        return f"The assumptions are: {numbered}."

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return canonical.dump(
            {
                "allowance": self.allowance.to_json(),
                "assumptions": list(self.assumptions),
                "certified": self.certified,
                "delta": encode_ratio(self.delta),
                "epsilon": encode_ratio(self.epsilon),
                "eta": encode_ratio(self.eta),
                "neighbouring": self.neighbouring.to_json(),
                "paragraph": self.paragraph(),
                "pure_epsilon": None if self.pure_epsilon is None else encode_ratio(self.pure_epsilon),
                "releases": [release.to_json() for release in self.releases],
                "rho": encode_ratio(self.rho),
                "rho_spent": encode_ratio(self.rho_spent),
                "unit": self.unit,
                "version": VERSION,
                "views": list(self.views),
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> PrivacyStatement:
        """The inverse of `to_json`. Raises DomainError if the statement does not follow from its own budgets."""
        value = canonical.load(data)
        ratios = ("epsilon", "delta", "rho", "rho_spent", "eta")
        others = (
            "allowance",
            "assumptions",
            "certified",
            "neighbouring",
            "paragraph",
            "pure_epsilon",
            "releases",
            "unit",
            "version",
            "views",
        )
        members = read_object(value, (*ratios, *others))
        pure = members["pure_epsilon"]
        if read_count(members["version"]) != VERSION:
            raise DomainError("not a privacy statement of this version")
        statement = cls(
            **{name: decode_ratio(members[name]) for name in ratios},
            allowance=Allowance.from_json(members["allowance"]),
            pure_epsilon=None if pure is None else decode_ratio(pure),
            neighbouring=Neighbouring.from_json(members["neighbouring"]),
            releases=tuple(Releases.from_json(release) for release in read_list(members["releases"])),
            unit=read_text(members["unit"]),
            assumptions=tuple(read_text(text) for text in read_list(members["assumptions"])),
            views=tuple(read_text(text) for text in read_list(members["views"])),
        )
        if statement.to_json() != data:
            raise DomainError("the statement contradicts itself")
        return statement


def shown(x: Fraction) -> str:
    """Four significant digits, rounded up."""
    rounded = _SHOWN.divide(Decimal(x.numerator), Decimal(x.denominator)).normalize(_SHOWN)
    return f"{rounded:f}" if x == 0 or Decimal("0.0001") <= rounded < 10**6 else f"{rounded:e}"


def _pure_holds(epsilon: Fraction | None, allowance: Allowance, delta: Fraction) -> bool:
    """Whether a mechanism that differs from an epsilon-DP one by the allowance is (epsilon, delta)-DP."""
    return epsilon is not None and allowance.of_delta(epsilon) <= delta


def _listed(parts: list[str]) -> str:
    return " and ".join([part for part in (", ".join(parts[:-1]), parts[-1]) if part])
