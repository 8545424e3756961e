"""Belief propagation and mirror descent, compiled. Imported only when a model is fitted or read.

All tables lie in a few flat arrays; a *link* says how the cells of one table map to those of a smaller one. Signatures
are fixed, so nothing is ever recompiled: not for another domain, tree or number of measurements. Compiled code is kept
beside this file, or in the user's cache if that is read-only (NUMBA_CACHE_DIR overrides both); where neither can be
written, every process compiles anew, in some ten seconds.

One pass of belief propagation: upwards, each clique is divided by its separator, which leaves a conditional
distribution; downwards, that is multiplied by the parent's marginal. Neither step subtracts messages, so potentials of
minus infinity (conditioning) are safe. A clique is the product of the exponentials of its small tables, each scaled to
at most 1, unless that could be too small for a float: then logarithms are added, and each cell has its exponential.
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
Table = npt.NDArray[np.float64]
Maps = npt.NDArray[np.int32]
Masks = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., object])

MASK_BITS = 64
LARGE, LARGE_CELLS, SMALL, SMALL_CELLS, BLOCK, ALONG, MAP = range(7)
"""Columns of a link: where the large table begins, its cells, the same of the small one; how many consecutive cells of
the large table map to consecutive cells (ALONG = 1) or to one cell (0) of the small one; where its map begins."""

_CHUNK = 512
_PIECE = 4096
_WINDOW = 10
_PATIENCE = 2
_LEAP = 2.0  # most that a step may change a potential
_MEMORY = 20
_RIDGE = 1e-8  # of a scaled diagonal: moves that nearly agree must not cancel
_ROUNDING = 1e-13  # of the loss: less is no improvement, and must not let potentials drift
_LIFTS = 100
_NOTHING = 1e-5
"""A count that does not matter, in units of the noise's standard deviation."""
_SMALLEST_GAIN = 1e-6  # of an exchange: more than rounding could pretend
_FIRST_GROWTH = 1.5
_GROWTH = 1.1
_WIDEST = 500.0  # of the logarithms of products: e^-500 is a float, and so are counts divided by it
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


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1], i8, i8)", fastmath=_REORDER)
def _gather(large: Floats, small: Floats, link: Indices, maps: Maps, begin: int, end: int) -> None:
    """Add the large table's cells from `begin` to `end` to those of the small one they map to.

    Indices are unsigned here and below: loops over signed ones, which might be negative, are not vectorised.
    """
    block, along = link[BLOCK], link[ALONG]
    i, within = begin // block, begin % block
    while begin < end:
        count = min(block - within, end - begin)
        many, at = np.uint64(count), np.uint64(link[LARGE] + begin)
        target = np.uint64(link[SMALL] + maps[link[MAP] + i] + along * within)
        if along:
            for j in range(many):
                small[target + j] += large[at + j]
        else:
            total = 0.0
            for j in range(many):
                total += large[at + j]
            small[target] += total
        begin, i, within = begin + count, i + 1, 0


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1])")
def _sum(large: Floats, small: Floats, link: Indices, maps: Maps) -> None:
    """The marginal: cells of the small table become sums of the large one's."""
    small[link[SMALL] : link[SMALL] + link[SMALL_CELLS]] = 0.0
    _gather(large, small, link, maps, 0, link[LARGE_CELLS])


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1])")
def _maximum(large: Floats, small: Floats, link: Indices, maps: Maps) -> None:
    to, block = link[SMALL], link[BLOCK]
    small[to : to + link[SMALL_CELLS]] = -np.inf
    many = np.uint64(block)
    for i in range(link[LARGE_CELLS] // block):
        at, target = np.uint64(link[LARGE] + i * block), np.uint64(to + maps[link[MAP] + i])
        if link[ALONG]:
            for j in range(many):
                small[target + j] = max(small[target + j], large[at + j])
        else:
            most = small[target]
            for j in range(many):
                most = max(most, large[at + j])
            small[target] = most


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1], f8)")
def _add(large: Floats, small: Floats, link: Indices, maps: Maps, factor: float) -> None:
    block = link[BLOCK]
    many = np.uint64(block)
    for i in range(link[LARGE_CELLS] // block):
        at, source = np.uint64(link[LARGE] + i * block), np.uint64(link[SMALL] + maps[link[MAP] + i])
        if link[ALONG]:
            for j in range(many):
                large[at + j] += factor * small[source + j]
        else:
            value = factor * small[source]
            for j in range(many):
                large[at + j] += value


@_compiled("void(f8[::1], f8[::1], i8[::1], i4[::1], i8, i8, b1)")
def _scatter(large: Floats, small: Floats, link: Indices, maps: Maps, begin: int, end: int, multiply: bool) -> None:
    """Set the large table's cells from `begin` to `end` to those of the small one they map to, or multiply by them."""
    block, along = link[BLOCK], link[ALONG]
    i, within = begin // block, begin % block
    while begin < end:
        count = min(block - within, end - begin)
        many, at = np.uint64(count), np.uint64(link[LARGE] + begin)
        source = np.uint64(link[SMALL] + maps[link[MAP] + i] + along * within)
        if along and multiply:
            for j in range(many):
                large[at + j] *= small[source + j]
        elif along:
            for j in range(many):
                large[at + j] = small[source + j]
        elif multiply:
            value = small[source]
            for j in range(many):
                large[at + j] *= value
        else:
            value = small[source]
            for j in range(many):
                large[at + j] = value
        begin, i, within = begin + count, i + 1, 0


@_compiled("UniTuple(f8, 2)(f8[::1], i8[::1])")
def _extent(small: Floats, link: Indices) -> tuple[float, float]:
    """The least and the greatest value of the small table."""
    low, high = np.inf, -np.inf
    for i in range(link[SMALL], link[SMALL] + link[SMALL_CELLS]):
        low, high = min(low, small[i]), max(high, small[i])
    return low, high


@_compiled("f8(f8[::1], f8[::1], i8[::1])")
def _scaled(logs: Floats, values: Floats, link: Indices) -> float:
    """Exponentials of the small table, divided by the greatest, whose logarithm is returned."""
    _, high = _extent(logs, link)
    for i in range(link[SMALL], link[SMALL] + link[SMALL_CELLS]):
        values[i] = logs[i] - high
    _exp(values, link[SMALL], link[SMALL_CELLS])
    return high


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


@_compiled("f8(f8[::1], f8, f8[::1], f8[::1], f8[::1], i8[::1], i8[::1], i8[:,::1], i4[::1])", error_model="numpy")
def calibrate(
    theta: Floats,
    total: float,
    mu: Floats,
    cells: Floats,
    seps: Floats,
    parents: Indices,
    starts: Indices,
    links: Links,
    maps: Maps,
) -> float:
    """Fill `cells` with the marginals of all tree cliques of the distribution exp(sum of potentials), times `total`.

    And `mu`, unless it is empty, with those of the factors linked to them. Cliques are worked on in pieces that stay in
    the processor's cache.

    Links: one for each clique to its separator, one for each from the parent to it, then those to the factors whose
    potentials `theta` holds, clique k's from starts[k]. Returns the logarithm of the sum that the exponentials are
    divided by: minus infinity if they are zero everywhere.
    """
    count = len(parents)
    top, messages, factors, scaled = np.empty_like(seps), np.empty_like(seps), np.empty_like(theta), np.empty_like(seps)
    log_sum = 0.0
    for k in range(count - 1, -1, -1):
        own = links[k]
        at, size, sep, sep_size = own[LARGE], own[LARGE_CELLS], own[SMALL], own[SMALL_CELLS]
        width = 0.0
        for f in range(starts[k], starts[k + 1]):
            low, high = _extent(theta, links[f])
            width += high - low
        for child in range(k + 1, count):
            if parents[child] == k:
                low, high = _extent(messages, links[child])
                width += high - low
        if width < _WIDEST:
            shift = 0.0
            for f in range(starts[k], starts[k + 1]):
                shift += _scaled(theta, factors, links[f])
            for child in range(k + 1, count):
                if parents[child] == k:
                    shift += _scaled(messages, scaled, links[child])
            seps[sep : sep + sep_size] = 0.0
            for begin in range(0, size, _PIECE):
                end, begun = min(begin + _PIECE, size), False
                for f in range(starts[k], starts[k + 1]):
                    _scatter(cells, factors, links[f], maps, begin, end, begun)
                    begun = True
                for child in range(k + 1, count):
                    if parents[child] == k:
                        _scatter(cells, scaled, links[count + child], maps, begin, end, begun)
                        begun = True
                if not begun:
                    cells[at + begin : at + end] = 1.0
                _gather(cells, seps, own, maps, begin, end)
            messages[sep : sep + sep_size] = shift
        else:
            cells[at : at + size] = 0.0
            for f in range(starts[k], starts[k + 1]):
                _add(cells, theta, links[f], maps, 1.0)
            for child in range(k + 1, count):
                if parents[child] == k:
                    _add(cells, messages, links[count + child], maps, 1.0)
            _maximum(cells, top, own, maps)
            for i in range(sep, sep + sep_size):
                messages[i] = top[i]
                if top[i] == -np.inf:
                    top[i] = 0.0
            _add(cells, top, own, maps, -1.0)
            _exp(cells, at, size)
            _sum(cells, seps, own, maps)
        for i in range(sep, sep + sep_size):
            messages[i] += np.log(seps[i])
        if parents[k] < 0:
            log_sum += messages[sep]
    top[:] = 0.0
    mu[:] = 0.0
    for k in range(count):
        own = links[k]
        if parents[k] < 0:
            top[own[SMALL]] = total
        for i in range(own[SMALL], own[SMALL] + own[SMALL_CELLS]):
            top[i] = top[i] / seps[i] if seps[i] > 0.0 else 0.0
        for begin in range(0, own[LARGE_CELLS], _PIECE):
            end = min(begin + _PIECE, own[LARGE_CELLS])
            _scatter(cells, top, own, maps, begin, end, True)
            for child in range(k + 1, count):
                if parents[child] == k:
                    _gather(cells, top, links[count + child], maps, begin, end)
            for f in range(starts[k], starts[k + 1] if len(mu) else starts[k]):
                _gather(cells, mu, links[f], maps, begin, end)
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
    log_sum = calibrate(folded, total, mu, cells, seps, parents, starts, links, maps)
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


@_compiled("void(f8[:,::1], f8[::1], i8, f8[::1])")
def _solve(matrix: Table, right: Floats, count: int, solution: Floats) -> None:
    """Solve a symmetric system of `count` equations by Cholesky's method, once its diagonal is scaled to 1 + _RIDGE."""
    lower = np.empty((count, count))
    scale = np.empty(count)
    for i in range(count):
        scale[i] = 1.0 / np.sqrt(max(matrix[i, i], 1e-300))
    for i in range(count):
        for j in range(i + 1):
            value = matrix[i, j] * scale[i] * scale[j]
            if i == j:
                value += _RIDGE
            for k in range(j):
                value -= lower[i, k] * lower[j, k]
            lower[i, j] = np.sqrt(max(value, _RIDGE)) if i == j else value / lower[j, j]
    for i in range(count):
        value = right[i] * scale[i]
        for k in range(i):
            value -= lower[i, k] * solution[k]
        solution[i] = value / lower[i, i]
    for i in range(count - 1, -1, -1):
        value = solution[i]
        for k in range(i + 1, count):
            value -= lower[k, i] * solution[k]
        solution[i] = value / lower[i, i]
    for i in range(count):
        solution[i] *= scale[i]


@_compiled(
    "Tuple((f8, i8))(f8[::1], f8, f8[::1], f8[::1], f8[::1], f8, f8, f8, i8, "
    "f8[::1], f8[::1], i8[::1], i8[::1], i8[:,::1], i4[::1], i8[::1], i8)",
    fastmath=_REORDER,
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

    Before each step the loss is minimised over the last _MEMORY moves, as if marginals were linear in potentials: then
    it is a quadratic form in so many numbers, known without another pass over the tree. This is Anderson's acceleration
    (1965), with residuals measured by the loss itself. The step grows while the loss falls; when it rises, the moves
    are forgotten, and without any, the step is halved.

    Ends when _WINDOW iterations, _PATIENCE times in a row, gained at most `tolerance` of the loss, or of 1, which is
    what one standard deviation of noise in two cells amounts to. Leaves in `cells` the marginals of the tree's cliques.

    At last, without a pull, counts of nearly zero are lifted, factor by factor, to a count that changes no loss. Where
    a measurement is negative, descent goes on for ever; a later fit that starts from e^-1000, and measures something
    else there, would never get it back.
    """
    whole, size = len(theta), offsets[factors]  # auxiliary tables have neither measurements nor potentials
    mu, trial_mu, trial, folded = np.empty(whole), np.empty(whole), np.zeros(whole), np.empty(whole)
    moves, changes = np.empty((_MEMORY, size)), np.empty((_MEMORY, size))
    curvature = np.empty((_MEMORY, _MEMORY))
    slope, shares, steepness = np.empty(_MEMORY), np.empty(_MEMORY), np.empty(size)
    loss = _evaluate(theta, total, target, weight, prior, pull, mu, folded, cells, seps, parents, starts, links, maps)
    before, growth, n, idle, known, latest = loss, _FIRST_GROWTH, 0, 0, 0, 0
    while n < iterations:
        n += 1
        for i in range(size):
            trial[i], trial_mu[i] = theta[i], mu[i]
            steepness[i] = weight[i] * (mu[i] - target[i]) + pull * (theta[i] - prior[i])
        for j in range(known):
            value = 0.0
            for i in range(size):
                value -= changes[j, i] * steepness[i]
            slope[j] = value
        _solve(curvature, slope, known, shares)
        for j in range(known):
            for i in range(size):
                trial[i] += shares[j] * moves[j, i]
                trial_mu[i] += shares[j] * changes[j, i]
        steepest = 0.0
        for i in range(size):
            steepest = max(steepest, weight[i] * abs(trial_mu[i] - target[i]))
        if step * steepest > _LEAP:
            step = _LEAP / steepest
        farthest = 0.0
        for i in range(size):
            trial[i] -= step * (weight[i] * (trial_mu[i] - target[i]) - pull * prior[i])
            trial[i] /= 1.0 + step * pull
            farthest = max(farthest, abs(trial[i] - theta[i]))
        if farthest > _LEAP:
            for i in range(size):
                trial[i] = theta[i] + (trial[i] - theta[i]) * (_LEAP / farthest)
        risen = _evaluate(
            trial, total, target, weight, prior, pull, trial_mu, folded, cells, seps, parents, starts, links, maps
        )
        if risen < loss * (1 - _ROUNDING):
            for i in range(size):
                moves[latest, i], changes[latest, i] = trial[i] - theta[i], trial_mu[i] - mu[i]
            known = min(known + 1, _MEMORY)
            for j in range(known):
                value = 0.0
                for i in range(size):
                    both = moves[j, i] * changes[latest, i] + moves[latest, i] * changes[j, i]
                    value += weight[i] * changes[j, i] * changes[latest, i] + 0.5 * pull * both
                curvature[j, latest] = curvature[latest, j] = value
            latest = (latest + 1) % _MEMORY
            loss = risen
            step *= growth
            theta[:], mu[:] = trial, trial_mu
        else:
            growth = _GROWTH
            if known == 0:
                step *= 0.5
            known = latest = 0
        if n % _WINDOW == 0:
            idle = idle + 1 if before - loss <= tolerance * max(loss, 1.0) else 0
            if idle == _PATIENCE:
                break
            before = loss
    for k in range(factors if pull == 0.0 else 0):
        for _ in range(_LIFTS):
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
            _evaluate(theta, total, target, weight, prior, pull, mu, folded, cells, seps, parents, starts, links, maps)
    loss = _evaluate(theta, total, target, weight, prior, pull, mu, folded, cells, seps, parents, starts, links, maps)
    return loss, n


@_compiled("f8(i8[::1], u8[::1])")
def tree_cells(sizes: Indices, neighbours: Masks) -> float:
    """The cells of a junction tree: junction.maximal_masks, compiled, for at most MASK_BITS attributes.

    AIM asks for every candidate in every round. `neighbours` is worked on in place.
    """
    count = len(sizes)
    left, maximal = np.ones(count, np.bool_), np.empty(count, np.uint64)
    found, cells, one = 0, 0.0, np.uint64(1)
    for _ in range(count):
        chosen, fewest, least = -1, False, np.inf
        for i in range(count):
            if left[i]:
                table, fills = float(sizes[i]), False
                for j in range(count):
                    if neighbours[i] >> np.uint64(j) & one:
                        table *= sizes[j]
                        fills = fills or (neighbours[i] & ~neighbours[j] & ~(one << np.uint64(j))) != 0
                if chosen < 0 or (fewest and not fills) or (fewest == fills and table < least):
                    chosen, fewest, least = i, fills, table
        left[chosen] = False
        around = neighbours[chosen]
        clique = around | one << np.uint64(chosen)
        within = False
        for k in range(found):
            within = within or (clique & ~maximal[k]) == 0
        if not within:
            maximal[found] = clique
            found += 1
            cells += least
        for i in range(count):
            if around >> np.uint64(i) & one:
                neighbours[i] = (neighbours[i] | around) & ~(one << np.uint64(chosen) | one << np.uint64(i))
    return cells


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
