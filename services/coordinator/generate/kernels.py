"""Belief propagation and mirror descent, compiled. Imported only when a model is fitted or read.

All tables lie in a few flat arrays; a *link* says how the cells of one table map to those of a smaller one. Signatures
are fixed, so nothing is ever recompiled: not for another domain, tree or number of measurements. Compiled code is kept
beside this file, or in the user's cache if that is read-only (NUMBA_CACHE_DIR overrides both); where neither can be
written, every process compiles anew, in some ten seconds.

One pass of belief propagation takes one exponential a cell: upwards, each clique is divided by its separator in log
space, which leaves a conditional distribution; downwards, that is multiplied by the parent's marginal. Neither step
subtracts messages, so potentials of minus infinity (conditioning) are safe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Links = npt.NDArray[np.int64]
Maps = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., object])

LARGE, LARGE_CELLS, SMALL, SMALL_CELLS, BLOCK, ALONG, MAP = range(7)
"""Columns of a link: where the large table begins, its cells, the same of the small one; how many consecutive cells of
the large table map to consecutive cells (ALONG = 1) or to one cell (0) of the small one; where its map begins."""

_CHUNK = 512
_WINDOW = 25
_PATIENCE = 2
_LEAP = 10.0  # most that a step may change a potential
_ROUNDING = 1e-13  # of the loss: less is no improvement, and must not let potentials drift
_LIFTS = 100
_NOTHING = 1e-5
"""A count that does not matter, in units of the noise's standard deviation."""
_SMALLEST_GAIN = 1e-6  # of an exchange: more than rounding could pretend
_FIRST_GROWTH = 1.5
_GROWTH = 1.05
_REORDER = {"reassoc", "nsz", "contract"}  # sums may be vectorised; infinities keep their meaning


def _compiled(
    signature: str, *, fastmath: bool | set[str] = False, error_model: Literal["python", "numpy"] = "python"
) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        options = partial(numba.njit, signature, nogil=True, fastmath=fastmath, error_model=error_model)
        try:
            return cast(F, options(cache=True)(function))
        except RuntimeError:  # no place to keep compiled code
            return cast(F, options()(function))

    return decorate


@_compiled("void(f8[::1], i8, i8)", fastmath={"contract"}, error_model="numpy")
def _exp(values: Floats, start: int, count: int) -> None:
    """In place, of values from minus infinity to 0: 2^k by exponent bits, the rest by Taylor's series, within 3 ulp.

    Written out because LLVM vectorises this but not the C library's function: a quarter of the time.
    """
    scale = np.empty(_CHUNK)
    bits = scale.view(np.int64)
    for begin in range(start, start + count, _CHUNK):
        size = min(_CHUNK, start + count - begin)
        part = values[begin : begin + size]
        for i in range(size):
            v = part[i]
            x = v if v > -709.0 else -709.0
            shifted = x * 1.4426950408889634 + 6755399441055744.0  # 1.5 * 2^52: the integer part in the low bits
            k = shifted - 6755399441055744.0
            r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
            scale[i] = shifted
            r2 = r * r
            r4 = r2 * r2
            low = (1.0 + r) + r2 * (1 / 2 + r * (1 / 6))
            middle = (1 / 24 + r * (1 / 120)) + r2 * (1 / 720 + r * (1 / 5040))
            high = (1 / 40320 + r * (1 / 362880)) + r2 * (1 / 3628800 + r * (1 / 39916800)) + r4 * (1 / 479001600)
            part[i] = (low + r4 * (middle + r4 * high)) if v > -709.0 else 0.0
        for i in range(size):
            bits[i] = (bits[i] << 52) + (1023 << 52)
        for i in range(size):
            part[i] *= scale[i]


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1])", fastmath=_REORDER)
def _sum(large: Floats, small: Floats, link: Indices, maps: Maps) -> None:
    """The marginal: cells of the small table become sums of the large one's."""
    to, block = link[SMALL], link[BLOCK]
    small[to : to + link[SMALL_CELLS]] = 0.0
    for i in range(link[LARGE_CELLS] // block):
        at, target = link[LARGE] + i * block, to + maps[link[MAP] + i]
        if link[ALONG]:
            for j in range(block):
                small[target + j] += large[at + j]
        else:
            total = 0.0
            for j in range(block):
                total += large[at + j]
            small[target] += total


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1])")
def _maximum(large: Floats, small: Floats, link: Indices, maps: Maps) -> None:
    to, block = link[SMALL], link[BLOCK]
    small[to : to + link[SMALL_CELLS]] = -np.inf
    for i in range(link[LARGE_CELLS] // block):
        at, target = link[LARGE] + i * block, to + maps[link[MAP] + i]
        if link[ALONG]:
            for j in range(block):
                small[target + j] = max(small[target + j], large[at + j])
        else:
            most = small[target]
            for j in range(block):
                most = max(most, large[at + j])
            small[target] = most


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1], f8)")
def _add(large: Floats, small: Floats, link: Indices, maps: Maps, factor: float) -> None:
    block = link[BLOCK]
    for i in range(link[LARGE_CELLS] // block):
        at, source = link[LARGE] + i * block, link[SMALL] + maps[link[MAP] + i]
        if link[ALONG]:
            for j in range(block):
                large[at + j] += factor * small[source + j]
        else:
            value = factor * small[source]
            for j in range(block):
                large[at + j] += value


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1])")
def _multiply(large: Floats, small: Floats, link: Indices, maps: Maps) -> None:
    block = link[BLOCK]
    for i in range(link[LARGE_CELLS] // block):
        at, source = link[LARGE] + i * block, link[SMALL] + maps[link[MAP] + i]
        if link[ALONG]:
            for j in range(block):
                large[at + j] *= small[source + j]
        else:
            value = small[source]
            for j in range(block):
                large[at + j] *= value


@_compiled("f8[::1](f8[::1], i8[::1], i4[::1])")
def project(large: Floats, link: Indices, maps: Maps) -> Floats:
    """One marginal of one table."""
    small = np.empty(link[SMALL_CELLS])
    _sum(large, small, link, maps)
    return small


@_compiled("f8[::1](f8[::1], i8[::1], i4[::1])")
def expand(small: Floats, link: Indices, maps: Maps) -> Floats:
    """The large table whose cells are those of the small one they map to."""
    large = np.zeros(link[LARGE_CELLS])
    _add(large, small, link, maps, 1.0)
    return large


@_compiled("f8(f8[::1], f8, f8[::1], f8[::1], i8[::1], i8[::1], i8[:,::1], i4[::1])", error_model="numpy")
def calibrate(
    theta: Floats,
    total: float,
    cells: Floats,
    seps: Floats,
    parents: Indices,
    starts: Indices,
    links: Links,
    maps: Maps,
) -> float:
    """Fill `cells` with the marginals of all tree cliques of the distribution exp(sum of potentials), times `total`.

    Links: one for each clique to its separator, one for each from the parent to it, then those to the factors whose
    potentials `theta` holds, clique k's from starts[k]. Returns the logarithm of the sum that the exponentials are
    divided by: minus infinity if they are zero everywhere.
    """
    count = len(parents)
    top, messages = np.empty_like(seps), np.empty_like(seps)
    cells[:] = 0.0
    log_sum = 0.0
    for k in range(count - 1, -1, -1):
        own = links[k]
        at, size, sep, sep_size = own[LARGE], own[LARGE_CELLS], own[SMALL], own[SMALL_CELLS]
        for f in range(starts[k], starts[k + 1]):
            _add(cells, theta, links[f], maps, 1.0)
        _maximum(cells, top, own, maps)
        for i in range(sep, sep + sep_size):
            messages[i] = top[i]
            if top[i] == -np.inf:
                top[i] = 0.0
        _add(cells, top, own, maps, -1.0)
        _exp(cells, at, size)
        _sum(cells, seps, own, maps)
        if parents[k] >= 0:
            for i in range(sep, sep + sep_size):
                messages[i] += np.log(seps[i])
            _add(cells, messages, links[count + k], maps, 1.0)
        else:
            log_sum += messages[sep] + np.log(seps[sep])
    for k in range(count):
        own = links[k]
        if parents[k] >= 0:
            _sum(cells, top, links[count + k], maps)
        else:
            top[own[SMALL]] = total
        for i in range(own[SMALL], own[SMALL] + own[SMALL_CELLS]):
            top[i] = top[i] / seps[i] if seps[i] > 0.0 else 0.0
        _multiply(cells, top, own, maps)
    return log_sum


@_compiled("void(f8[::1], f8[::1], i8[::1], i8[:,::1], i4[::1])")
def fold(theta: Floats, folded: Floats, starts: Indices, links: Links, maps: Maps) -> None:
    """Add the potentials of tables within others to those: the links after the cliques', from large to small ones."""
    folded[:] = theta
    for s in range(len(links) - 1, starts[-1] - 1, -1):
        _add(folded, folded, links[s], maps, 1.0)


@_compiled(
    "f8(f8[::1], f8, f8[::1], f8[::1], f8[::1], f8, "
    "f8[::1], f8[::1], f8[::1], f8[::1], i8[::1], i8[::1], i8[:,::1], i4[::1])"
)
def _evaluate(
    theta: Floats,
    total: float,
    target: Floats,
    weight: Floats,
    prior: Floats,
    pull: float,
    mu: Floats,
    folded: Floats,
    cells: Floats,
    seps: Floats,
    parents: Indices,
    starts: Indices,
    links: Links,
    maps: Maps,
) -> float:
    """The loss of the potentials `theta`; leaves the measured marginals in `mu`.

    It is the sum of w/2 (mu - y)^2 and, if there is a `pull`, pull * total * KL(model || the distribution with the
    potentials `prior`, whose exponentials sum to 1).
    """
    fold(theta, folded, starts, links, maps)
    log_sum = calibrate(folded, total, cells, seps, parents, starts, links, maps)
    for f in range(starts[0], starts[-1]):
        _sum(cells, mu, links[f], maps)
    for s in range(starts[-1], len(links)):
        _sum(mu, mu, links[s], maps)
    loss = 0.0
    for i in range(len(mu)):
        loss += 0.5 * weight[i] * (mu[i] - target[i]) ** 2
    if pull > 0.0:
        divergence = -total * log_sum
        for i in range(len(mu)):
            divergence += (theta[i] - prior[i]) * mu[i]
        loss += pull * divergence
    return loss


@_compiled(
    "Tuple((f8, i8))(f8[::1], f8, f8[::1], f8[::1], f8[::1], f8, f8, f8, i8, "
    "f8[::1], f8[::1], i8[::1], i8[::1], i8[:,::1], i4[::1], i8[::1], i8)"
)
def descend(
    theta: Floats,
    total: float,
    target: Floats,
    weight: Floats,
    prior: Floats,
    pull: float,
    step: float,
    tolerance: float,
    iterations: int,
    cells: Floats,
    seps: Floats,
    parents: Indices,
    starts: Indices,
    links: Links,
    maps: Maps,
    offsets: Indices,
    factors: int,
) -> tuple[float, int]:
    """Mirror descent (McKenna, Sheldon, Miklau 2019, algorithm 1) from `theta`, in place; the loss and the iterations.

    A `pull` to the potentials `prior` (see _evaluate) is part of each step, solved for exactly.

    The step grows while the loss falls. Nesterov's momentum, restarted when the loss rises (O'Donoghue and Candes 2015,
    function scheme). Ends when _WINDOW iterations, _PATIENCE times in a row, gained at most `tolerance` of the loss, or
    of 1, which is what one standard deviation of noise in two cells amounts to. Leaves in `cells` the marginals of the
    tree's cliques.

    At last, without a pull, counts of nearly zero are lifted, factor by factor, to a count that changes no loss. Where
    a measurement is negative, descent goes on for ever; a later fit that starts from e^-1000, and measures something
    else there, would never get it back.
    """
    size = len(theta)
    mu, trial_mu, trial, folded = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    moved, last = np.empty(size), theta.copy()
    loss = _evaluate(theta, total, target, weight, prior, pull, mu, folded, cells, seps, parents, starts, links, maps)
    before, age, growth, n, idle = loss, 0, _FIRST_GROWTH, 0, 0
    while n < iterations:
        n += 1
        momentum = age / (age + 3.0)
        steepest = 0.0
        for i in range(size):
            steepest = max(steepest, weight[i] * abs(mu[i] - target[i]))
        if step * steepest > _LEAP:
            step = _LEAP / steepest
        for i in range(size):
            moved[i] = theta[i] - step * (weight[i] * (mu[i] - target[i]) - pull * prior[i])
            moved[i] /= 1.0 + step * pull
            trial[i] = moved[i] + momentum * (moved[i] - last[i])
        risen = _evaluate(
            trial, total, target, weight, prior, pull, trial_mu, folded, cells, seps, parents, starts, links, maps
        )
        if risen < loss * (1 - _ROUNDING):
            loss, age = risen, age + 1
            step *= growth
            theta[:], last[:], mu[:] = trial, moved, trial_mu
        else:
            growth = _GROWTH
            step *= 0.5 if age == 0 else 0.7
            age = 0
            last[:] = theta
        if n % _WINDOW == 0:
            idle = idle + 1 if before - loss <= tolerance * max(loss, 1.0) else 0
            if idle == _PATIENCE:
                break
            before = loss
    for k in range(factors if pull == 0.0 else 0):
        for _ in range(_LIFTS):
            _evaluate(theta, total, target, weight, prior, pull, mu, folded, cells, seps, parents, starts, links, maps)
            lifted = False
            for i in range(offsets[k], offsets[k + 1]):
                if weight[i] == 0.0:  # not measured, so nothing drives it to zero
                    continue
                least = _NOTHING / np.sqrt(weight[i])
                if mu[i] < 0.5 * least:
                    theta[i] += np.log(least / max(mu[i], 1e-300))
                    lifted = True
            if not lifted:
                break
    loss = _evaluate(theta, total, target, weight, prior, pull, mu, folded, cells, seps, parents, starts, links, maps)
    return loss, n


@_compiled("void(i8[:,::1], i8[::1], i8[::1], i8[::1], f8[::1], i8[:,::1])")
def exchange(codes: Links, new: Indices, first: Indices, second: Indices, gaps: Floats, pairs: Links) -> None:
    """Exchange the attributes `new` of two rows, one pair of rows after the other, where that makes `gaps` smaller.

    `gaps` are the differences, in sum of squares, of the counts of pairs of attributes to what they should be. A row of
    `pairs`: an attribute among the new ones, another, the size of that one, and where their table begins.
    """
    for t in range(len(first)):
        i, j = first[t], second[t]
        change = 0.0
        for p in range(len(pairs)):
            a, b = pairs[p, 0], pairs[p, 1]
            if codes[i, a] != codes[j, a] and codes[i, b] != codes[j, b]:
                at, other = pairs[p, 3] + codes[i, a] * pairs[p, 2], pairs[p, 3] + codes[j, a] * pairs[p, 2]
                change += 4.0 - 2.0 * (gaps[at + codes[i, b]] + gaps[other + codes[j, b]])
                change += 2.0 * (gaps[at + codes[j, b]] + gaps[other + codes[i, b]])
        if change < -_SMALLEST_GAIN:
            for p in range(len(pairs)):
                a, b = pairs[p, 0], pairs[p, 1]
                at, other = pairs[p, 3] + codes[i, a] * pairs[p, 2], pairs[p, 3] + codes[j, a] * pairs[p, 2]
                gaps[at + codes[i, b]] -= 1.0
                gaps[other + codes[j, b]] -= 1.0
                gaps[at + codes[j, b]] += 1.0
                gaps[other + codes[i, b]] += 1.0
            for a in new:
                codes[i, a], codes[j, a] = codes[j, a], codes[i, a]
