"""What is public about proofs: how claims become equations and vectors, and how many bytes that takes.

A number modulo 2^k is cut into limbs of 16 bits. For limb j of an equation, with X the integer that the claims add up
to, X + (carry from limb j - 1) = 2^16 (carry to limb j + 1): the last carry is what is lost modulo 2^k. If an equation
holds in F_q it holds over the integers, since all that enters it is less than 2^60.

Where a sum is too large for that, its terms come in stages: what a stage leaves modulo 2^16 enters the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from caps.errors import DomainError
from services.mpc_server.engine.kernels import BLOCK_ROWS

LIMB = 16
MOST = 1 << 59
"""What the integers of an equation stay below."""
COMBINATIONS = 48
"""Random binary combinations of claims: an error is missed by all with probability 2^-48, and they are whole bytes."""
GROUP = 16
"""Consecutive rows of deviations that are folded into one."""
WORD_BYTES, ELEMENT_BYTES, DIGEST_BYTES = 8, 16, 16
TOSS_BYTES = 4 * WORD_BYTES + DIGEST_BYTES
VERDICT_BYTES = 2 * ELEMENT_BYTES + DIGEST_BYTES
READY_BYTES = 2 * DIGEST_BYTES
ROUNDS = 4
"""Of a validation: all are ready; coins, proofs, verdicts."""
_BLOCKS = ((64, 8), (1 << 10, 16), (1 << 13, 32), (1 << 17, 64))
"""Up to how many words of gates, how many blocks."""
_MOST_BLOCKS = 128


def blocks_of(words: int) -> int:
    """The number of blocks that gates are cut into: more of them take longer to pair, and leave less to fold."""
    return next((blocks for most, blocks in _BLOCKS if words <= most), _MOST_BLOCKS)


def limb_count(bits: int) -> int:
    return -(-bits // LIMB)


def widths_of(bits: int) -> tuple[int, ...]:
    """Of the limbs of a number modulo 2^bits."""
    return (LIMB,) * (limb_count(bits) - 1) + ((bits - 1) % LIMB + 1,)


@dataclass(frozen=True, slots=True)
class Equations:
    """`count` equations modulo 2^bits, in stages, about integers of at most `most[j]` in limb j, or from its negative.

    elements: of each side's vectors, but for the bits of carries.
    """

    count: int
    bits: int
    most: tuple[int, ...]
    elements: int
    stages: int = 1
    negative: bool = False

    def __post_init__(self) -> None:
        if max(self._highest()) >= MOST:
            raise DomainError("a claim has too many summands to be proved over the integers")

    def _highest(self) -> list[int]:
        """What stays below MOST: an integer with all carries."""
        found: list[int] = []
        for most, before in zip(self.most, (0, *widths_of(self.bits)), strict=False):
            carry = (found[-1] >> before) + 1 if found else 0
            found.append(most + carry + (1 << LIMB))
        return found

    @property
    def limbs(self) -> int:
        return len(self.most)

    @property
    def size(self) -> int:
        """How many equations over the integers."""
        return self.stages * self.count * self.limbs

    def carry_widths(self) -> tuple[int, ...]:
        """The bits of the carry out of each limb, its sign included."""
        pairs = zip(self._highest(), widths_of(self.bits), strict=True)
        return tuple((high >> width).bit_length() + self.negative for high, width in pairs)

    @property
    def secret_bits(self) -> int:
        """How many bits the prover shares: of carries, and of what stages leave."""
        carries = self.stages * sum(self.carry_widths())
        return self.count * (carries + (self.stages - 1) * sum(widths_of(self.bits)))


def word_equations(*, claims: int, products: int, bits: int, left_bits: int | None = None) -> Equations:
    """For claims on words, which have so many products in all."""
    widths, lefts = widths_of(bits), widths_of(min(bits, left_bits or bits))
    most = []
    for s, width in enumerate(widths):
        pairs = [(lefts[i], widths[s - i]) for i in range(min(s + 1, len(lefts)))]
        most.append(products * sum(1 << (a + b) for a, b in pairs) + (2 * claims << width))
    return Equations(COMBINATIONS, bits, tuple(most), products * len(lefts))


def _matrix_equations(rows: int, bits: int, step: int) -> Equations:
    widths = widths_of(bits)
    entries = 2 * rows * -(-COMBINATIONS // step)
    most = tuple(
        entries * sum(1 << (widths[i] + widths[s - i]) for i in range(s + 1)) + (2 << width)
        for s, width in enumerate(widths)
    )
    return Equations((COMBINATIONS - 1) * (1 + step) + 1, bits, most, 2 * rows * len(widths))


def gram_equations(*, rows: int, bits: int) -> Equations:
    """For a claim on a Gram matrix of so many rows: entries i + 2 j = s of 48 x 48 combinations are added up."""
    return _matrix_equations(rows, bits, 2)


def matrix_equations(*, rows: int, bits: int) -> Equations:
    """For a claim on products of matrices: entries i + j = s are added up."""
    return _matrix_equations(rows, bits, 1)


def _deviation_most(rows: int, columns: int, bits: int) -> tuple[int, ...]:
    products = rows * columns * 2 << 2 * (LIMB - 1)
    return tuple((s + 1) * products + (2 << width) for s, width in enumerate(widths_of(bits)))


def stage_rows(columns: int, bits: int) -> int:
    """Rows of deviations whose sums are small enough, in whole blocks."""
    return BLOCK_ROWS * max(1, (MOST >> 1) // max(_deviation_most(BLOCK_ROWS, columns, bits)))


def deviation_equations(*, rows: int, columns: int, bits: int) -> Equations:
    """For a claim on deviations: one equation for each of 48 x 48 results; limbs are centred."""
    most_rows = stage_rows(columns, bits)
    stages = max(1, -(-rows // most_rows))
    limbs = limb_count(bits)
    elements = -(-rows // GROUP) * columns * (limbs * (limbs + 1) // 2)
    most = _deviation_most(min(rows, most_rows), columns, bits)
    return Equations(COMBINATIONS**2, bits, most, elements, stages, negative=True)


@dataclass(frozen=True, slots=True)
class Size:
    """Of one prover's claims: words of gates, and the equations of all others; `deviations`: whether some are such."""

    gate_words: int
    equations: tuple[Equations, ...]
    deviations: bool

    @property
    def empty(self) -> bool:
        return not self.gate_words and not self.equations

    @property
    def secret_bits(self) -> int:
        return sum(one.secret_bits for one in self.equations)

    @property
    def carry_bytes(self) -> int:
        return -(-self.secret_bits // 8)

    @property
    def gate_coefficients(self) -> int:
        """Of the polynomial of gates, but for the one that is claimed."""
        return 2 * blocks_of(self.gate_words) - 2 if self.gate_words else 0

    @property
    def gate_bytes(self) -> int:
        """What the prover sends to the left verifier before coins are known."""
        return WORD_BYTES * self.gate_coefficients

    @property
    def elements(self) -> int:
        """Of the vectors, once gates and deviations are folded."""
        gates = 256 * -(-self.gate_words // blocks_of(self.gate_words))
        return gates + self.secret_bits + sum(one.elements for one in self.equations)

    @property
    def halvings(self) -> int:
        """How often the vectors are halved until one element is left."""
        return (self.elements - 1).bit_length()

    @property
    def share_bytes(self) -> int:
        """What the prover sends to the left verifier once coins are known."""
        steps = 2 * self.halvings + 2 + (2 * GROUP - 2 if self.deviations else 0)
        return 0 if self.empty else self.carry_bytes + ELEMENT_BYTES * steps

    @property
    def challenge_bytes(self) -> int:
        """What it sends to the right one."""
        return 0 if self.empty else ELEMENT_BYTES * (1 + self.deviations + self.halvings + 1)


def size_of(
    *,
    gate_words: int = 0,
    words: Iterable[Equations] = (),
    grams: Iterable[Equations] = (),
    matrices: Iterable[Equations] = (),
    deviations: Iterable[Equations] = (),
) -> Size:
    """Of claims of all kinds; those on words of one ring are one set of equations."""
    folded = tuple(deviations)
    return Size(gate_words, (*words, *grams, *matrices, *folded), bool(folded))


def proof_bytes(prover: Size, following: Size, previous: Size) -> int:
    """What a party sends in one validation: that it is ready, coins, its proof, and its verdicts on the other two."""
    if prover.empty and following.empty and previous.empty:
        return 0
    verdicts = VERDICT_BYTES * ((not following.empty) + (not previous.empty))
    proof = prover.gate_bytes + prover.share_bytes + prover.challenge_bytes
    return READY_BYTES + TOSS_BYTES + proof + verdicts
