"""The terms that delta must cover besides the conversion from zCDP."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from caps.dp.privacy.rational import decode_ratio, encode_ratio, exact, exp_up, read_object
from caps.errors import DomainError

ETA_MAX = Fraction(1, 2**60)
NU_MAX = Fraction(1, 2**60)
"""The allowance for the pseudorandom functions of one run: docs/privacy.md says what this covers."""
_MEMBERS = ("eta", "nu", "soundness")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What delta covers besides the conversion from rho: (1 + e**epsilon) (eta + nu) + soundness.

    eta: statistical distance of all noise from its ideal law. nu: distance of the pseudorandom functions' outputs from
    those of random functions. soundness: the probability that a check of somebody's input or messages, or a match of
    identifiers, goes wrong. The allowances of several runs add up.
    """

    eta: Fraction = ETA_MAX
    nu: Fraction = NU_MAX
    soundness: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        if not all(0 <= exact(getattr(self, name)) <= 1 for name in _MEMBERS):
            raise DomainError("distances and probabilities must be from 0 to 1")

    def __add__(self, other: Allowance) -> Allowance:
        return Allowance(self.eta + other.eta, self.nu + other.nu, self.soundness + other.soundness)

    def of_delta(self, epsilon: int | Fraction) -> Fraction:
        """The part of delta that this allowance takes, rounded up."""
        return (1 + exp_up(exact(epsilon))) * (self.eta + self.nu) + self.soundness

    def to_json(self) -> dict[str, object]:
        """Returns an object for canonical JSON."""
        return {name: encode_ratio(getattr(self, name)) for name in _MEMBERS}

    @classmethod
    def from_json(cls, value: object) -> Allowance:
        """The inverse of `to_json`."""
        members = read_object(value, _MEMBERS)
        return cls(*(decode_ratio(members[name]) for name in _MEMBERS))


ALLOWANCE = Allowance()
"""The allowance of one run in which no input is checked."""
NOTHING = Allowance(Fraction(0), Fraction(0))
