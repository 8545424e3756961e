"""What the soak calls flat, and what it calls growth."""

from __future__ import annotations

import numpy as np
import pytest

from tests.adversary.flatness import WARM, Sample, Tolerance, fit, growing


def series(
    slope: float, *, noise: float = 1.0, studies: int = 240, lives: int = 1, caches: float = 50.0
) -> list[Sample]:
    """What a service holds that begins anew so many times, fills its caches, and grows by `slope` per study."""
    draws = np.random.default_rng(3).normal(0, noise, studies)
    life = studies // lives
    samples = []
    for number, draw in enumerate(draws):
        stretch, age = divmod(number, life)
        samples.append(Sample(number, stretch, 100 * stretch + caches * min(age, WARM) + slope * age + draw))
    return samples


@pytest.mark.parametrize("lives", [1, 5])
def test_growth_is_found_and_noise_is_not(lives: int) -> None:
    found = fit(series(0.5, lives=lives))
    assert found is not None
    assert found.slope == pytest.approx(0.5, abs=3 * found.error)
    assert found.exceeds(0.2)
    flat = fit(series(0.0, lives=lives))
    assert flat is not None
    assert not flat.exceeds(0.2)


def test_a_service_that_is_restarted_cannot_hide_its_growth() -> None:
    """All lives together look flat: each begins where the last one began."""
    samples = [Sample(one.study, one.stretch, one.value - 100 * one.stretch) for one in series(2.0, lives=6)]
    together = fit([Sample(one.study, 0, one.value) for one in samples])
    assert together is not None
    assert not together.exceeds(0.5)
    apart = fit(samples)
    assert apart is not None
    assert apart.exceeds(0.5)


def test_too_little_is_no_verdict() -> None:
    assert fit([]) is None
    assert fit(series(5.0, studies=WARM + 1)) is None
    assert fit([Sample(1, 0, 1.0)] * 20) is None


def test_what_grows_is_named() -> None:
    seen = {("S1", "memory"): series(3.0), ("S2", "memory"): series(0.0), ("S1", "threads"): series(3.0)}
    (words,) = growing(seen, {"memory": Tolerance(1.0, 20.0), "threads": Tolerance(100.0, 20.0)})
    assert words.startswith("S1: memory grows by 3")


def test_a_pool_that_reaches_its_size_does_not_grow() -> None:
    steps = {("S1", "descriptors"): [Sample(number, 0, 25.0 + 2 * (number > 25)) for number in range(40)]}
    assert growing(steps, {"descriptors": Tolerance(0.05, 0.0)})
    assert growing(steps, {"descriptors": Tolerance(0.05, 16.0)}) == []
