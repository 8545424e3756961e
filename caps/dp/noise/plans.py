"""The tables, coefficients and cells that yield a given noise with the fewest ANDs, and their guarantee.

Parameters are exact fractions. Every plan states the total variation distance of one sample from the law it is named
after, and is refused if that exceeds 2^-80. `gaussian_exists`, `geometric_exists` and `gumbel_exists`, each true on an
interval, say which plans exist without building them.

Convolution. Let X_1, X_2 be discrete Gaussians of parameters v_1, v_2 (about their variances), and Y = X_1 + k X_2.
Completing the square, P(Y = y) is proportional to exp(-y^2 / 2(v_1 + k^2 v_2)) times the sum of exp(-(z - c)^2 / 2s^2)
over all integers z, where c depends on y and s^2 = v_1 v_2 / (v_1 + k^2 v_2). By Poisson summation that sum is
s sqrt(2 pi) (1 + theta) with |theta| <= h = 2 sum of exp(-2 pi^2 m^2 s^2), m >= 1. So Y is the discrete Gaussian of
parameter v_1 + k^2 v_2 but for a factor within exp(+-tau), tau = ln((1 + h) / (1 - h)), and within tau in total
variation.

Selection. Let V_i = u_i + beta G_i with Gumbel G_i, of which i is the largest with the exponential mechanism's
probability p_i, and let |V'_i - V_i| <= e. If i wins by V', then V_i >= V_j - 2e for all j; and if V_i > V_j + 2e for
all j, then i wins by V'. Both events have the probability of i after moving u_i by 2e, so i wins by V' with probability
p_i but for a factor within exp(+-kappa), kappa = 2e / beta, however ties are broken.

Stretch. Let the noise have a distribution function F whose f / F is that of beta * Gumbel, exp(-t / beta) / beta, but
for factors between m and stretch * m. Between scores that differ by at most Delta, the logarithms of the probabilities
then differ within a range of stretch * eps, eps = 2 Delta / beta, where exact noise has eps (docs/privacy.md has the
proof). This needs no finer cells for smaller eps, unlike closeness to the exponential mechanism.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import product
from math import floor, isqrt
from typing import TypeAlias

from caps.dp.bounds import NOISE_BITS
from caps.dp.noise.fixed import EXP_ERROR, ONE, PRECISION, exp_doublings, exp_minus, exp_tables
from caps.dp.noise.tables import (
    CONTEXT,
    DIGITS,
    ERROR,
    GRAIN_BITS,
    GRAINS,
    LIMIT,
    VERSION,
    AliasTable,
    alias_table,
    decimal,
    digest,
    draw_ands,
    upward,
)
from caps.errors import DomainError

MAX_INDEX_BITS = 10
"""Larger one-hot vectors cost more than another coefficient or digit."""

FINEST = Fraction(1, 1800)
"""The least error of Gumbel noise in units of beta: it needs at most 1,982 cells, however they are cut, so 2^11 do.

Coarser cells are fewer. Their number depends on beta only through the position of powers of two in units of beta, so
counting over a factor of two of beta was enough.
"""

LEAST_STRETCH = Fraction(111, 100)
"""The least stretch that cells of Gumbel noise are cut to: it needs at most 1,981 of them, so 2^11 do."""

LARGEST_BETA = Fraction(1 << NOISE_BITS - 7)
"""The widest Gumbel noise: its samples are below 61 beta and have a sign."""

NARROWEST, WIDEST = Fraction(1, 100), Fraction(10**7)
"""The limits of a scale; sigma^2 is at least 1/100 too. Narrower noise is almost none, wider noise has no tables."""

LONGEST = Fraction(10**12)
"""The largest scale of geometric noise, which may have more tables than each part of Laplace noise: 46 bits of it."""

MOST_REACH = (1 << 15) - 1
"""The largest reach of a number of dummies: these numbers have 16 bits on shares."""

SMOOTH2 = Fraction(361, 100)
"""The least s^2 of a convolution: s >= 1.9 keeps its error below 2^-100."""

_LN2 = Decimal("0.693147180559945309417232121458176568075500134360255254120680")
_PI2_BELOW = Decimal("9.8696044010893586188344909998761511353136994072407")
_TAIL = ONE >> (DIGITS + 6)
_RARE = ONE >> 100
_UNBOUNDED = GRAINS << 64
_RAISED = GRAINS // 10**19
"""More than the 10^-20 by which a plan's bounds are raised."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianPlan:
    """X = sum of a_j X_j, the X_j independent discrete Gaussians of parameter exactly sigma2 / sum of a_j^2.

    A draw from `table` is |X_j|; `distance` is that of one X from its law, including the error of the convolution.
    """

    sigma2: Fraction
    coefficients: tuple[int, ...]
    table: AliasTable
    distance: Fraction

    @property
    def ands(self) -> int:
        """ANDs of one sample on shares, without the conversion to a ring."""
        return len(self.coefficients) * self.table.ands

    @property
    def bound(self) -> int:
        """The largest absolute value of a sample."""
        return sum(self.coefficients) * ((1 << self.table.width) - 1)

    @property
    def digest(self) -> str:
        """The digest that parties compare before use."""
        return digest(f"{VERSION}/gaussian {self.sigma2} {self.coefficients} {self.table.digest}")


def gaussian_exists(sigma2: Fraction) -> bool:
    """Whether there is a plan for a discrete Gaussian of parameter sigma2."""
    return NARROWEST <= sigma2 <= WIDEST**2


@lru_cache(maxsize=256, typed=True)
def gaussian_plan(sigma2: Fraction) -> GaussianPlan:
    """The cheapest plan for the discrete Gaussian P(X = x) ~ exp(-x^2 / (2 sigma2)), 0.1 <= sigma <= 10^7."""
    if not isinstance(sigma2, Fraction | int) or not gaussian_exists(Fraction(sigma2)):
        raise DomainError(f"sigma^2 must be an exact fraction from 1/100 to 10^14, not {sigma2!r}")
    sigma2 = Fraction(sigma2)
    affordable = []
    for coefficients in _coefficients(sigma2):
        base2 = sigma2 / sum(a * a for a in coefficients)
        index_bits = _reach(base2).bit_length()
        if index_bits <= MAX_INDEX_BITS:
            affordable.append((len(coefficients) * draw_ands(index_bits, index_bits), coefficients))
    _, coefficients = min(affordable, key=lambda found: found[0])
    table = half_gaussian(sigma2 / sum(a * a for a in coefficients))
    distance = len(coefficients) * table.distance + sum(map(_smoothing_error, _smoothness(sigma2, coefficients)))
    return GaussianPlan(sigma2, coefficients, table, _within_limit(distance, f"sigma^2 = {sigma2}"))


def _coefficients(sigma2: Fraction) -> Iterator[tuple[int, ...]]:
    """The candidates of each form with the narrowest base: for every first factor, the largest second one allowed."""
    forms: list[Callable[[int, int], tuple[int, ...]]] = [
        lambda _, k: (1, k),
        lambda j, k: (1, j, j * k),
        lambda j, k: (1, j, k, j * k),
    ]
    yield (1,)
    needed = SMOOTH2 / sigma2  # s^2 is proportional to sigma2, and fractions near 1 are short
    for form, first in product(forms, range(2, 1 << (MAX_INDEX_BITS // 2 + 1))):
        low, high = 1, max(isqrt(int(sigma2)), 1)
        while low < high:
            second = (low + high + 1) // 2
            smooth = min(_smoothness(Fraction(1), form(first, second))) >= needed
            low, high = (second, high) if smooth else (low, second - 1)
        if low > 1:
            yield form(first, low)


def _smoothness(sigma2: Fraction, coefficients: tuple[int, ...]) -> list[Fraction]:
    """s^2 of every convolution: joining X_1 + k X_2 of variances v_1, v_2 has s^2 = v_1 v_2 / (v_1 + k^2 v_2)."""
    base2 = sigma2 / sum(a * a for a in coefficients)
    match coefficients:
        case (1,):
            return []
        case (1, k):
            return [base2 / (1 + k * k)]
        case (1, j, m):
            pair2 = base2 * (1 + j * j)
            return [base2 / (1 + j * j), pair2 * base2 / (pair2 + m * m * base2)]
        case (1, j, k, _):
            inner = base2 / (1 + j * j)
            return [inner, inner, base2 * (1 + j * j) / (1 + k * k)]
    raise DomainError(f"{coefficients} is not a form of convolution")


def _smoothing_error(s2: Fraction) -> Fraction:
    """tau(s) = ln((1 + h) / (1 - h)), h = 2 sum of exp(-2 pi^2 m^2 s^2) over m >= 1: bounds the log-ratio of the laws.

    With x = exp(-2 pi^2 s^2) <= 0.1, h <= 2x (1 + 2 x^3) and tau <= 2h (1 + h), so 4x (1 + 8x) bounds it.
    """
    with localcontext(CONTEXT):
        x = (-2 * _PI2_BELOW * decimal(s2)).exp()
        return upward(4 * x * (1 + 8 * x) * (1 + decimal(ERROR)))


def _reach(sigma2: Fraction) -> int:
    """M = ceil(sigma sqrt(2 ln 2 (80 + 2))) + 1: magnitudes beyond it have probability below 2^-82."""
    with localcontext(CONTEXT):
        return int((decimal(sigma2) * 2 * _LN2 * (DIGITS + 2)).sqrt().to_integral_value(ROUND_CEILING)) + 1


def _exponentials(values: Iterable[int], scale: Fraction) -> list[int]:
    """exp(-value / scale), off by at most EXP_ERROR + 1 units of 2^-240.

    n such values divided by their sum, which is at least 1, are off by less than 2^8 n units: far less than ERROR.
    """
    tables, unit = exp_tables(), scale.denominator << PRECISION
    return [exp_minus(value * unit // scale.numerator, tables) for value in values]


@lru_cache(maxsize=256, typed=True)
def half_gaussian(sigma2: Fraction) -> AliasTable:
    """|X| for X a discrete Gaussian: weights 1 for 0 and 2 exp(-k^2 / (2 sigma2)) for k = 1, 2, .., M."""
    reach = _reach(sigma2)
    # Beyond 2M a weight is below 2^-328, which ERROR covers.
    one, *others = _exponentials([k * k for k in range(2 * reach + 1)], 2 * sigma2)
    weights = [one, *(2 * w for w in others)]
    scale = sum(weights)
    probabilities = [w * ONE // scale for w in weights[: reach + 1]]
    return alias_table(f"half-gaussian sigma2={sigma2}", range(reach + 1), probabilities)


@dataclass(frozen=True, slots=True, eq=False)
class GeometricPlan:
    """P(G = g) ~ exp(-g / scale), g = 0, 1, ..: table i yields the i-th group of bits of G, lowest first.

    In base 2^p the digits of a geometric variable are independent, each geometric itself and cut off at 2^p.
    """

    scale: Fraction
    tables: tuple[AliasTable, ...]
    distance: Fraction

    @property
    def width(self) -> int:
        """Bits of a sample."""
        return sum(table.index_bits for table in self.tables)

    @property
    def ands(self) -> int:
        """ANDs of one sample on shares."""
        return sum(table.ands for table in self.tables)

    @property
    def digest(self) -> str:
        """The digest that parties compare before use."""
        return digest(f"{VERSION}/geometric {self.scale} {[table.digest for table in self.tables]}")


@dataclass(frozen=True, slots=True, eq=False)
class LaplacePlan:
    """X = G_1 - G_2, two geometric variables: P(X = x) ~ exp(-|x| / scale), exactly."""

    geometric: GeometricPlan

    @property
    def scale(self) -> Fraction:
        """The scale b of the discrete Laplace law."""
        return self.geometric.scale

    @property
    def distance(self) -> Fraction:
        """Total variation distance of one sample."""
        return 2 * self.geometric.distance

    @property
    def ands(self) -> int:
        """ANDs of one sample on shares, without the conversion to a ring."""
        return 2 * self.geometric.ands

    @property
    def bound(self) -> int:
        """The largest absolute value of a sample."""
        return (1 << self.geometric.width) - 1

    @property
    def digest(self) -> str:
        """The digest that parties compare before use."""
        return digest(f"{VERSION}/laplace {self.geometric.digest}")


def geometric_exists(scale: Fraction) -> bool:
    """Whether there is a plan for geometric noise of this scale."""
    return NARROWEST <= scale <= LONGEST


def laplace_exists(scale: Fraction) -> bool:
    """Whether there is a plan for Laplace noise of this scale."""
    return NARROWEST <= scale <= WIDEST


@lru_cache(maxsize=256, typed=True)
def geometric_plan(scale: Fraction) -> GeometricPlan:
    """The cheapest plan for geometric noise with P(G >= g) = exp(-g / scale), as permute-and-flip needs it."""
    if not isinstance(scale, Fraction | int) or not geometric_exists(Fraction(scale)):
        raise DomainError(f"the scale must be an exact fraction between 1/100 and 10^12, not {scale!r}")
    return _geometric_plan(Fraction(scale), LIMIT)


@lru_cache(maxsize=256, typed=True)
def laplace_plan(scale: Fraction) -> LaplacePlan:
    """The cheapest plan for discrete Laplace noise of scale b."""
    if not isinstance(scale, Fraction | int) or not laplace_exists(Fraction(scale)):
        raise DomainError(f"the scale must be an exact fraction between 1/100 and 10^7, not {scale!r}")
    plan = LaplacePlan(_geometric_plan(Fraction(scale), LIMIT / 2))
    _within_limit(plan.distance, f"b = {scale}")
    return plan


def _geometric_plan(scale: Fraction, limit: Fraction) -> GeometricPlan:
    with localcontext(CONTEXT):
        top = int((decimal(scale) * _LN2 * (DIGITS + 6)).to_integral_value(ROUND_CEILING))
    width = max(1, (top - 1).bit_length())
    # A table is about 2^-83 from its law, which bounds the number of tables that `limit` allows.
    most = int(limit * 2 ** (DIGITS + 3) * Fraction(9, 10))
    splits = [[(width + i) // count for i in range(count)] for count in range(1, min(width, most) + 1)]
    # Three tables, which Laplace noise may have, reach beyond WIDEST, and five beyond LONGEST.
    allowed = [split for split in splits if max(split) <= MAX_INDEX_BITS]
    split = min(allowed, key=lambda split: sum(draw_ands(p, p) for p in split))
    tables = tuple(_geometric_digit(scale, sum(split[:i]), split[i]) for i in range(len(split)))
    with localcontext(CONTEXT):
        tail = upward((-(1 << width) / decimal(scale)).exp())
    distance = tail + sum(table.distance for table in tables)
    if distance > limit:
        raise DomainError(f"b = {float(scale):.3g} cannot be sampled within 2^-80")
    return GeometricPlan(scale, tables, distance)


def _geometric_digit(scale: Fraction, position: int, bits: int) -> AliasTable:
    """The digit of 2^bits values at 2^position: P(d) ~ exp(-d 2^position / scale)."""
    weights = _exponentials([d << position for d in range(1 << bits)], scale)
    total = sum(weights)
    probabilities = [w * ONE // total for w in weights]
    return alias_table(f"geometric scale={scale} at={position}", range(1 << bits), probabilities)


@dataclass(frozen=True, slots=True, eq=False)
class DummyPlan:
    """The number of dummies for each set of tables in a join: noise + reach, from 0 to 2 reach (`engine.join`).

    distance: that of one number from the law without a cut-off, including the tail beyond `reach`.
    """

    noise: GaussianPlan | LaplacePlan
    reach: int
    distance: Fraction

    @property
    def digest(self) -> str:
        """The digest that parties compare before use."""
        return digest(f"{VERSION}/dummies {self.reach} {self.noise.digest}")


def dummy_plan(noise: GaussianPlan | LaplacePlan) -> DummyPlan:
    """Enough dummies that their noise is cut off with probability below 2^-82. Raises DomainError if too many."""
    if isinstance(noise, GaussianPlan):
        reach = _reach(noise.sigma2)
    else:
        with localcontext(CONTEXT):  # P(|X| > t) < 2 exp(-t / b)
            reach = int((decimal(noise.scale) * _LN2 * (DIGITS + 3)).to_integral_value(ROUND_CEILING)) + 1
    if reach > MOST_REACH:
        raise DomainError(f"a set of tables would need {2 * reach:,} dummies; it can have at most {2 * MOST_REACH:,}")
    return DummyPlan(noise, reach, noise.distance + Fraction(1, 1 << (DIGITS + 2)))


@dataclass(frozen=True, slots=True, eq=False)
class GumbelPlan:
    """Integers that follow beta * Gumbel so closely that a noisy maximum picks like the exponential mechanism.

    Score units are cut into cells [a, a + 2^w), where a is a multiple of 2^w. A draw from `table` names a cell: bits
    0 .. width - least - 1 of the code are a / 2^least in two's complement, the rest are the mask of the free bits above
    `least`. The sample is a with random free bits and random `least` lowest bits.

    This noise is added to integer scores and the maximum taken, with ties broken in any way. Between scores that differ
    by at most Delta = beta * eps / 2, logarithms of the probabilities then differ within a range of stretch * eps +
    4 kappa, up to `distance` per candidate. Either `stretch` is 1 and each probability is within a factor exp(+-kappa)
    of softmax(scores / beta), because every sample can be coupled with a true beta * Gumbel so that, up to one common
    shift, they are at most kappa * beta / 2 apart; or it bounds how unevenly f / F follows that law in a cell, and
    kappa = stretch / beta is for samples being whole numbers.
    """

    beta: Fraction
    stretch: Fraction
    kappa: Fraction
    width: int
    least: int
    table: AliasTable

    @property
    def distance(self) -> Fraction:
        """Total variation distance of one draw of a cell from its law."""
        return self.table.distance

    @property
    def free(self) -> int:
        """The number of masked random bits of a sample, above the `least` bits that are never masked."""
        return self.table.width - (self.width - self.least)

    @property
    def ands(self) -> int:
        """ANDs of one sample on shares."""
        return self.table.ands + self.free

    def range_of(self, eps: Fraction) -> Fraction:
        """The range of log-ratios of probabilities, between scores that differ by at most beta * eps / 2."""
        return self.stretch * eps + 4 * self.kappa

    @property
    def digest(self) -> str:
        """The digest that parties compare before use."""
        parameters = f"{self.beta} {self.stretch} {self.kappa} {self.width} {self.least}"
        return digest(f"{VERSION}/gumbel {parameters} {self.table.digest}")


def selection_plan(delta_u: Fraction, eps: Fraction, *, ratio: Fraction = Fraction(1, 32)) -> GumbelPlan:
    """Noise for scores of sensitivity delta_u: beta = 2 delta_u / eps, and a range of at most eps + 4 ratio * eps."""
    if not eps > 0 or not delta_u > 0:
        raise DomainError("a selection must have a positive sensitivity and a positive eps")
    return gumbel_plan(2 * Fraction(delta_u) / Fraction(eps), Fraction(eps), Fraction(eps) * ratio)


def gumbel_exists(beta: Fraction, eps: Fraction, kappa: Fraction) -> bool:
    """Whether there is a plan for Gumbel noise of scale beta whose range, see GumbelPlan, is at most eps + 4 kappa."""
    return beta <= LARGEST_BETA and (_by_error(beta, kappa) or _stretch(beta, eps, kappa) >= LEAST_STRETCH)


@lru_cache(maxsize=64, typed=True)
def gumbel_plan(beta: Fraction, eps: Fraction, kappa: Fraction) -> GumbelPlan:
    """Gumbel noise of scale beta whose range, see GumbelPlan, is at most eps + 4 kappa, and as much less as there is
    room for in the smallest table.

    Coarse cells are cut by their error, which is enough for the larger eps. There, cells cut by their stretch would be
    more, and for the smaller eps they are fewer.
    """
    if not all(isinstance(value, Fraction | int) and value > 0 for value in (beta, eps, kappa)):
        raise DomainError("beta, eps and kappa must be exact positive fractions")
    if not gumbel_exists(beta, eps, kappa):
        raise DomainError(
            f"kappa = {float(kappa):.2g} of eps = {float(eps):.2g} at beta = {float(beta):.4g} needs finer units, or "
            "more than 2^11 cells, or wider numbers"
        )
    if _by_error(beta, kappa):
        cells: _Cells = _EvenCells(Fraction(beta))
        cells.refine(max(floor(_uneven(beta, kappa) * GRAINS) - _RAISED, 0))
    else:
        cells = _StretchedCells(Fraction(beta))
        cells.refine(isqrt(floor(_stretch(beta, eps, kappa) * GRAINS**2)) - GRAINS - _RAISED)
    cells.fill()
    return cells.plan()


def _by_error(beta: Fraction, kappa: Fraction) -> bool:
    """Whether cells are cut by their error."""
    return _uneven(beta, kappa) >= FINEST * beta


def _uneven(beta: Fraction, kappa: Fraction) -> Fraction:
    """How far samples in a cell may be from the law's quantiles: e = kappa beta / 2 less half a unit.

    Half a unit is lost because samples are whole numbers; measured from the middle of a unit, it is no more.
    """
    return Fraction(kappa) * beta / 2 - Fraction(1, 2)


def _stretch(beta: Fraction, eps: Fraction, kappa: Fraction) -> Fraction:
    """The largest stretch for which stretch * (eps + 4 / beta) is at most eps + 4 kappa."""
    return (Fraction(eps) + 4 * kappa) / (Fraction(eps) + 4 / Fraction(beta))


_Cell: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""(-worst, a, bits, F(a), F(middle), F(end), t at the end nearer to 0, t at the middle), with t(x) = exp(-x / beta)."""


class _Cells(ABC):
    """Cells of a Gumbel law, F(x) = exp(-t(x)), to be split until they are uniform enough.

    How uniform a cell is, `worst` tells, in units of 2^-160; a cell of one unit has one sample and is perfect.

    Errors, in units of 2^-240. t at a middle is t at the end nearer to 0 times a factor of `exp_doublings`, rounded. It
    is exact at 0, so after n halvings it is off by at most 2n where t <= 1, and by 2n t where t >= 1. As t exp(-t) < 1,
    F is off by less than 2n + EXP_ERROR; and t F by 168 times that, because F counts as 0 from t = 167 on.
    """

    def __init__(self, beta: Fraction) -> None:
        size = (64 * int(beta) + 64).bit_length()
        self._beta = beta
        self._tables = exp_tables()
        self._error = 2 * size + EXP_ERROR
        # For a cell of 2^i units: factor i leads from t at the end nearer to 0 to t at its middle, i + 1 to the end.
        self._factors = [exp_doublings(sign / (2 * beta), size + 2) for sign in (-1, 1)]
        self._widths = [(beta.denominator << PRECISION + bits) // beta.numerator for bits in range(size + 1)]
        # The error of a tangent's numerator: 4 errors of F, 2 of the mass, that of t F, and roundings.
        self._slacks = [self._error * (6 + 168 * ((width >> PRECISION) + 1)) + 3 for width in self._widths]
        self._cells: list[_Cell] = []
        middle = exp_minus(ONE, self._tables)
        # 2^size is more than 64 beta, and exp(-exp(64)) is 0 at this precision.
        self._add(-(1 << size), size, 0, middle, ONE)
        self._add(0, size, middle, exp_minus(self._factors[0][-1], self._tables), ONE)

    @abstractmethod
    def _worst(self, a: int, bits: int, below: int, middle: int, above: int, near: int, t: int) -> int:
        """How far from uniform a cell of more than one unit is, at most; the parameters are those of a cell."""

    @abstractmethod
    def _bounds(self, worst: int, a: int, bits: int) -> tuple[Fraction, Fraction]:
        """(stretch, kappa) of a plan of which this cell is the worst.

        The proven bound is `worst`. It is raised to the value at 60 decimal digits plus 10^-20, because these numbers
        are part of a plan's digest, which should not depend on the precision of the search for cells.
        """

    def _add(self, a: int, bits: int, below: int, above: int, near: int) -> None:
        """Keep the cell [a, a + 2^bits) unless its probability is negligible."""
        if above <= _TAIL or below >= ONE - _TAIL:
            return
        if not bits:
            self._cells.append((0, a, 0, below, below, above, near, near))
            return
        t = near * self._factors[a < 0][bits] >> PRECISION
        middle = exp_minus(t, self._tables)
        worst = self._worst(a, bits, below, middle, above, near, t)
        self._cells.append((-worst, a, bits, below, middle, above, near, t))

    def _split(self, cell: _Cell) -> None:
        _, a, bits, below, middle, above, near, t = cell
        left, right = (t, near) if a < 0 else (near, t)
        self._add(a, bits - 1, below, middle, left)
        self._add(a + (1 << (bits - 1)), bits - 1, middle, above, right)

    def refine(self, limit: int) -> None:
        """Halve all cells whose error exceeds the limit, in grains."""
        fine: list[_Cell] = []
        while self._cells:
            cell = self._cells.pop()
            if -cell[0] <= limit:
                fine.append(cell)
            else:
                self._split(cell)
        self._cells = fine

    def fill(self) -> None:
        """Halve the worst cell until their number is a power of two."""
        heap, self._cells = self._cells, []
        heapify(heap)
        while len(heap) & (len(heap) - 1) and heap[0][0]:
            self._split(heappop(heap))
            while self._cells:
                heappush(heap, self._cells.pop())
        self._cells = heap

    def plan(self) -> GumbelPlan:
        """The cells as a table."""
        cells = sorted((a, bits, above - below) for _, a, bits, below, _, above, *_ in self._cells)
        least, most = min(bits for _, bits, _ in cells), max(bits for _, bits, _ in cells)
        low, high = cells[0][0], cells[-1][0] + (1 << cells[-1][1]) - 1
        width = max((~low).bit_length(), high.bit_length()) + 1
        places = width - least
        codes = [(a >> least) % (1 << places) | ((1 << (bits - least)) - 1) << places for a, bits, _ in cells]
        masses = [mass for _, _, mass in cells]
        home = masses.index(max(masses))
        order = [home, *range(home), *range(home + 1, len(cells))]
        table = alias_table(f"gumbel beta={self._beta}", [codes[i] for i in order], [masses[i] for i in order])
        assert table.width == places + most - least
        worst, a, bits, *_ = min(self._cells)
        stretch, kappa = self._bounds(-worst, a, bits)
        return GumbelPlan(self._beta, stretch, kappa, width, least, table)

    def _law(self, a: int, bits: int) -> tuple[list[Decimal], list[Decimal]]:
        """t and F at the beginning, the middle and the end of a cell, in the context of `decimal`."""
        beta = decimal(self._beta)
        t = [(-x / beta).exp() for x in (a, a + Decimal(1 << bits) / 2, a + (1 << bits))]
        return t, [(-value).exp() for value in t]


class _EvenCells(_Cells):
    """Cut by the distance between the law's quantiles and uniform ones, in score units.

    On one side of 0 the density of a Gumbel law is monotone, so within a cell this distance is a concave function (or
    its negative) and lies below its tangent at the middle. `worst` bounds that tangent from above.
    """

    def _worst(self, a: int, bits: int, below: int, middle: int, above: int, near: int, t: int) -> int:
        mass = above - below
        gap = abs(2 * middle - below - above)
        slope = abs(((middle * t >> PRECISION) * self._widths[bits] >> PRECISION) - mass)
        return (gap + slope + self._slacks[bits] << GRAIN_BITS + bits - 1) // (mass - 2 * self._error) + 1

    def _bounds(self, worst: int, a: int, bits: int) -> tuple[Fraction, Fraction]:
        """kappa is 2 e / beta, where e bounds the distance of a sample from a quantile of the law."""
        tangent = Decimal(0)
        with localcontext(CONTEXT):
            if bits:
                t, (below, middle, above) = self._law(a, bits)
                half, share = Decimal(1 << bits) / 2, (1 << bits) / (above - below)
                tangent = (
                    abs(share * (middle - below) - half) + abs(share * middle * t[1] / decimal(self._beta) - 1) * half
                )
            error = upward(tangent + Decimal("0.5") + Decimal("1e-20"))
        return Fraction(1), 2 * max(error, Fraction(worst, GRAINS) + Fraction(1, 2)) / self._beta


class _StretchedCells(_Cells):
    """Cut by how far f / F is from that of the law, exp(-x / beta) / beta = t / beta: a factor between s and 1 / s.

    In a cell from a to b, of width w, f is the mass over w, F rises evenly, and the factor is beta f / (t F). The
    logarithm of 1 / (t F) is convex, so the factor is largest at an end; and nowhere is t F more than t(a) F(b).
    `worst` bounds s - 1 from above. A cell of one unit has no error: the law itself can be rounded down there.
    """

    def _worst(self, a: int, bits: int, below: int, middle: int, above: int, near: int, t: int) -> int:
        far = near * self._factors[a < 0][bits + 1] >> PRECISION
        if below <= _RARE or far <= _RARE:
            return _UNBOUNDED
        first, last = (far, near) if a < 0 else (near, far)
        error, off = self._error, self._error * ((first >> PRECISION) + 1)
        mass, size = (above - below) * self._beta.numerator << PRECISION, self._beta.denominator << bits
        mass_off = 2 * error * self._beta.numerator << PRECISION
        least = size * min((first - off) * (below - error), (last - off) * (above - error))
        most = size * (first + off) * (above + error)
        high = (mass + mass_off << GRAIN_BITS) // least + 1
        low = (most << GRAIN_BITS) // (mass - mass_off) + 1
        return max(high, low) - GRAINS

    def _bounds(self, worst: int, a: int, bits: int) -> tuple[Fraction, Fraction]:
        """The stretch is s^2; kappa is that of rounding to whole numbers."""
        factor = Decimal(1)
        with localcontext(CONTEXT):
            if bits:
                (first, _, last), (below, _, above) = self._law(a, bits)
                even = decimal(self._beta) * (above - below) / (1 << bits)
                factor = max(even / (first * below), even / (last * above), first * above / even)
            stretch = max(upward(factor + Decimal("1e-20")), 1 + Fraction(worst, GRAINS)) ** 2
        return stretch, stretch / self._beta


def _within_limit(distance: Fraction, what: str) -> Fraction:
    if distance > LIMIT:
        raise DomainError(f"{what} cannot be sampled within 2^-80")
    return distance
