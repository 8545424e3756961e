"""How fast a service says that it lives and is ready, while it has much to do. For `bench load`."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from caps.trust.tls import client_context

PAGES = ("/healthz", "/readyz")


def measure(url: str, authority: Path, *, seconds: float, pause: float = 0.01) -> dict[str, dict[str, float]]:
    """Milliseconds to answer each page, over one connection that is kept: median, 99th percentile, longest."""
    context: ssl.SSLContext = client_context(authority)
    times: dict[str, list[float]] = {page: [] for page in PAGES}
    with httpx.Client(base_url=url, verify=context, timeout=60.0, trust_env=False) as client:
        client.get(PAGES[0])  # the handshake is not measured
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for page in PAGES:
                begun = time.perf_counter()
                client.get(page)
                times[page].append(1000 * (time.perf_counter() - begun))
            time.sleep(pause)
    return {page: _summary(sorted(found)) for page, found in times.items()}


def _summary(found: list[float]) -> dict[str, float]:
    return {
        "p50": found[len(found) // 2],
        "p99": found[min(len(found) - 1, int(0.99 * len(found)))],
        "max": found[-1],
        "requests": len(found),
    }


@contextmanager
def at_once(number: int, request: Callable[[], httpx.Response]) -> Iterator[list[int]]:
    """Keep so many of these requests under way, in threads; yields the statuses of those that were answered."""
    going, answered = [True], list[int]()

    def repeat() -> None:
        while going[0]:
            answered.append(request().status_code)

    with ThreadPoolExecutor(number) as pool:
        try:
            for _ in range(number):
                pool.submit(repeat)
            yield answered
        finally:
            going[0] = False
