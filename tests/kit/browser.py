"""A browser for tests of pages: Debian's Chromium, driven by Playwright as a person would use it.

Whatever a visitor's browser complains about fails the test: an error in the console, a violation of the security
policy, a request to another host. `visitor.check()` lets axe-core look for what people with disabilities could not use.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "scripts" / "browser"
PICTURES = "CAPS_PICTURES"
"""The directory in which visitors leave pictures of pages; without it, they take none. `make pictures` sets it."""
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
_STATUS = re.compile(r"Failed to load resource: the server responded with a status of [45]\d\d")
"""What Chromium says of an answer that a test may expect; tests look at statuses themselves."""
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


_EXACT = 8
"""Colours of pictures that are kept as they are, such as the paper's: those of the most pixels."""
_PATIENCE = 120_000
"""Milliseconds that anything on a page may take: machines that test are busy, and only what is broken takes so long."""
expect.set_options(timeout=_PATIENCE)


class Visitor:
    """A person at a browser of their own, with an address, and perhaps signed in."""

    def __init__(self, browser: Browser, url: str, *, dark: bool = False, narrow: bool = False) -> None:
        self.url = url
        self.complaints: list[str] = []
        self._context = browser.new_context(
            base_url=url,
            ignore_https_errors=True,
            color_scheme="dark" if dark else "light",
            viewport=NARROW if narrow else WIDE,  # type: ignore[arg-type]
            locale="en-GB",
            accept_downloads=True,
        )
        self._context.set_default_timeout(_PATIENCE)
        self.page: Page = self._context.new_page()
        self._watch(self.page)

    def _watch(self, page: Page) -> None:
        page.on("console", lambda said: self._complain(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self._complain(f"script: {error}"))
        page.on("request", self._on_request)

    def _on_request(self, request: Any) -> None:
        asked = urlsplit(request.url)
        if asked.scheme not in ("data", "blob") and asked.netloc != urlsplit(self.url).netloc:
            self._complain(f"a request to {request.url}")

    def _complain(self, text: str) -> None:
        if not _STATUS.match(text):
            self.complaints.append(text)

    def go(self, path: str) -> Page:
        """Open a page of this service."""
        self.page.goto(path)
        return self.page

    def sign_in(self, token: str, path: str = "/ui") -> Page:
        """Open a page, and sign in on the way."""
        page = self.go(path)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda found: "/sign-in" not in found)
        return page

    def drop(self, file: Path) -> None:
        """Drop a file on the page's box for files, as from the desktop, once its script is there."""
        box = self.page.locator(".drop[data-ready]")
        box.wait_for()
        data = self.page.evaluate_handle(
            "([name, text]) => { const all = new DataTransfer(); all.items.add(new File([text], name)); return all; }",
            [file.name, file.read_text()],
        )
        box.dispatch_event("drop", {"dataTransfer": data})

    def cookies(self) -> list[Any]:
        """What the browser keeps."""
        return list(self._context.cookies())

    def check(self) -> None:
        """Nothing on this page is seriously hard to use for somebody."""
        found = Axe().run(self.page).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        told = [f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes'][:3]]}" for one in serious]
        assert not told, f"{self.page.url}: {told}"

    def picture(self, name: str, *, whole: bool = True) -> None:
        """Keep a picture of the page, if pictures are asked for."""
        if PICTURES in os.environ:
            folder = Path(os.environ[PICTURES])
            folder.mkdir(parents=True, exist_ok=True)
            # Hiding the caret would take an inline style, which the policy forbids.
            taken = BytesIO(self.page.screenshot(full_page=whole, caret="initial"))
            # Of the ways to choose 256 colours, this one keeps those of small things, such as a legend's.
            seen = Image.open(taken).convert("RGB")
            few = seen.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            palette, colours, numbers = few.getpalette() or [], np.array(seen), np.array(few)
            frequent: Any = sorted(seen.getcolors(1 << 24) or [])[-_EXACT:]
            for _, colour in frequent:
                number = 3 * int(numbers[(colours == colour).all(axis=-1)][0])
                palette[number : number + 3] = colour
            few.putpalette(palette)
            few.save(folder / f"{name}.png", optimize=True)

    def close(self) -> list[str]:
        """Close the browser; what it complained about."""
        self._context.close()
        return self.complaints


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. Skipped with a reason where it cannot be had, except in CI, where that is a failure.

    For one module: as long as it is there, Playwright's event loop runs in this thread, and tests can start no other.
    """
    found = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=600, check=False)
    if found.returncode:
        why = f"Chromium cannot be had here: {found.stderr.strip()[-300:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with sync_playwright() as playwright:
        yield from _launched(playwright, found.stdout.strip())


def _launched(playwright: Playwright, program: str) -> Iterator[Browser]:
    launched = playwright.chromium.launch(executable_path=program, headless=True, args=list(_FLAGS))
    try:
        yield launched
    finally:
        launched.close()


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Makes visitors: `visit(url)`, `visit(url, dark=True, narrow=True)`."""
    made: list[Visitor] = []

    def visitor(url: str, **choices: bool) -> Visitor:
        made.append(Visitor(browser, url, **choices))
        return made[-1]

    yield visitor
    complaints = [one.close() for one in made]  # all are closed, whatever one says
    assert not any(complaints), complaints
