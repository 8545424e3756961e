"""Signing in to pages, in a real browser over real TLS: what lets somebody in, what keeps them out, what ends it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request, Response
from playwright.sync_api import expect

from caps.service.app import Limit, create_app
from caps.service.pages import sessions as lives
from caps.service.pages.forms import Fields
from caps.service.pages.rate import MOST_FAILURES
from caps.service.pages.rendering import ROOT, Link, Pages, see_other
from caps.service.pages.routes import Signed
from caps.service.pages.sessions import Sessions
from caps.service.problems import Problem
from caps.service.tokens import Scope, Tokens
from caps.wire.problems import Kind
from tests.kit.browser import Visit, browser, visit  # noqa: F401
from tests.kit.tls import Authority, serving

pytestmark = pytest.mark.integration

SCRIPT = "<script>alert(document.domain)</script>"
TEMPLATE = """{% extends "base.html" %}{% from "parts.html" import action %}{% from "plots.html" import bars %}
{% block title %}{{ words }}{% endblock %}{% block main %}<h1>{{ words }}</h1><p id="notes">{{ notes|join(", ") }}</p>
{% call action(root ~ "/note", "Send", csrf) %}<input name="words" aria-label="Words" value="{{ words }}">{% endcall %}
{{ bars(words, [words, "b"], [{"name": words, "values": [1, 2]}, {"name": "two", "values": [3, 4]}], "rows") }}
<button hx-post="{{ root }}/note" hx-target="#told" name="words" value="by htmx">By htmx</button><div id="told"></div>
{% endblock %}"""


@dataclass
class Desk:
    """A service with one page, whose time can be moved."""

    url: str
    root: Path
    tokens: Tokens
    notes: list[str] = field(default_factory=list)
    late: timedelta = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.late

    def token(self, name: str = "Ada") -> str:
        return self.tokens.create(name, [Scope.OWNER], expires=datetime.now(UTC) + timedelta(days=2))

    def client(self, **headers: str) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.root))
        return httpx.Client(base_url=self.url, verify=context, headers=headers, trust_env=False, timeout=20)

    @contextmanager
    def signed_in(self, token: str | None = None) -> Iterator[httpx.Client]:
        with self.client(origin=self.url) as found:
            assert found.post("/ui/sign-in", data={"token": token or self.token()}).status_code == 303
            yield found


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "desk.html").write_text(TEMPLATE)
    authority = Authority(folder)
    made = Desk("", authority.root, Tokens(folder / "tokens.json"))
    sessions = Sessions(folder / "sessions.db", made.tokens, made.now)
    pages = Pages(
        service="holder", name="desk", sessions=sessions, templates=folder, links=[Link.to("Desk", ROOT, Scope.OWNER)]
    )
    routes = APIRouter(prefix=ROOT)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        return pages.page(request, "desk.html", words=SCRIPT, notes=made.notes)

    @routes.post("/note")
    def note(request: Request, form: Fields, caller: Signed) -> Response:
        if not form.one("words"):
            raise Problem(Kind.INVALID, "the note has no words")
        made.notes.append(form.one("words"))
        return Response("noted") if request.headers.get("hx-request") else see_other(ROOT)

    app = create_app(
        service="holder",
        name="desk",
        description="",
        routers=[routes],
        tokens=made.tokens,
        clock=made.now,
        pages=pages,
        limits=[Limit("/ui/note", 1000)],
    )
    with serving(app, authority.issue("desk", "caps:holder/desk")) as url:
        made.url = url
        yield made
    sessions.dispose()


@pytest.fixture(autouse=True)
def on_time(desk: Desk) -> Iterator[None]:
    yield
    desk.late = timedelta()
    desk.notes.clear()


def csrf_in(text: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("dark", [False, True])
def test_a_person_signs_in_sends_a_form_and_signs_out(desk: Desk, visit: Visit, dark: bool) -> None:
    ada = visit(desk.url, dark=dark, narrow=dark)
    page = ada.go("/ui")
    assert page.url.endswith("/ui/sign-in?next=/ui")
    ada.check()
    page.get_by_label("Token").fill("caps_000000000000_" + "x" * 43)
    page.keyboard.press("Enter")
    assert "not valid here" in page.get_by_role("alert").inner_text()
    ada.sign_in(desk.token())
    assert page.get_by_role("heading", level=1).inner_text() == SCRIPT  # shown, not run
    assert page.locator("svg title").first.text_content() is not None
    ada.check()
    (cookie,) = ada.cookies()
    assert cookie["name"] == "__Host-caps-holder.desk"
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"], cookie["path"]) == (True, True, "Strict", "/")
    assert desk.token().partition("_")[0] not in cookie["value"]
    page.get_by_label("Words").fill(f"one {SCRIPT}")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#notes")).not_to_be_empty()
    assert desk.notes == [f"one {SCRIPT}"]
    page.go_back()
    page.reload()
    assert len(desk.notes) == 1  # neither sends the form again
    page.get_by_role("button", name="By htmx").click()
    expect(page.locator("#told")).to_have_text("noted")
    kept = page.evaluate("[...Object.keys(localStorage), ...Object.keys(sessionStorage)]")
    assert set(kept) <= {"htmx-current-path-for-history"}  # no page
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/ui/sign-in")
    assert ada.cookies() == []
    page.go_back()
    page.wait_for_url(lambda found: "/ui/sign-in?" in found)  # nothing was kept for the back button


def test_a_session_that_ended_asks_to_sign_in_and_changes_nothing(desk: Desk, visit: Visit) -> None:
    ada = visit(desk.url)
    token = desk.token()
    page = ada.sign_in(token)
    desk.late = lives.IDLE
    page.get_by_role("button", name="By htmx").click()
    page.wait_for_url("**/ui/sign-in?next=/ui")
    desk.late = timedelta()
    ada.sign_in(token)
    desk.late = lives.IDLE
    page.get_by_role("button", name="Send").click()
    page.get_by_role("link", name="Sign in").click()
    page.wait_for_url("**/ui/sign-in?next=/ui")
    assert desk.notes == []


def test_a_session_ends_with_its_token_when_it_is_idle_and_when_it_is_old(desk: Desk) -> None:
    token = desk.token()
    for end in ("revoked", "idle", "old"):
        with desk.signed_in(token) as ada:
            assert ada.get("/ui").status_code == 200
            if end == "idle":
                desk.late = lives.IDLE - timedelta(minutes=2)
                assert ada.get("/ui").status_code == 200
                desk.late += lives.IDLE - timedelta(minutes=2)
                assert ada.get("/ui").status_code == 200
                desk.late += lives.IDLE
            elif end == "old":
                while desk.late < lives.LONGEST - lives.IDLE:
                    assert ada.get("/ui").status_code == 200, desk.late
                    desk.late += lives.IDLE / 2
                desk.late = lives.LONGEST
            else:
                desk.tokens.revoke(token.split("_")[1])
            assert ada.get("/ui").status_code == 401
            desk.late = timedelta()
            assert ada.get("/ui").status_code == 401  # it does not come back to life
        token = desk.token()


def test_sessions_are_listed_and_ended_by_their_person_only(desk: Desk) -> None:
    token = desk.token()
    with desk.signed_in(token) as here, desk.signed_in(token) as there, desk.signed_in() as other:
        listed = here.get("/ui/sessions").text
        (named,) = re.findall(r"/ui/sessions/([0-9a-f]{64})/end", listed)
        other.post(f"/ui/sessions/{named}/end", data={"csrf": csrf_in(other.get("/ui").text)})
        assert there.get("/ui").status_code == 200
        assert here.post(f"/ui/sessions/{named}/end", data={"csrf": csrf_in(listed)}).status_code == 303
        assert (here.get("/ui").status_code, there.get("/ui").status_code) == (200, 401)


@pytest.mark.parametrize(
    ("headers", "field", "status"),
    [
        ({}, True, 303),
        ({"sec-fetch-site": "same-origin"}, True, 303),
        ({}, False, 403),
        ({"origin": "https://evil.example"}, True, 403),
        ({"origin": "null"}, True, 403),
        ({"sec-fetch-site": "cross-site"}, True, 403),
        ({"sec-fetch-site": "same-site"}, True, 403),
        ({"x-csrf-token": "0" * 64}, True, 403),
        ({"content-type": "text/plain"}, True, 403),
        ({"content-type": "multipart/form-data; boundary=x"}, True, 403),
    ],
)
def test_only_a_form_of_the_session_changes_something(
    desk: Desk, headers: dict[str, str], field: bool, status: int
) -> None:
    with desk.signed_in() as ada, desk.signed_in() as eve:
        token = csrf_in(ada.get("/ui").text)
        body = f"words=x&csrf={token if field else csrf_in(eve.get('/ui').text)}"
        given = {"content-type": "application/x-www-form-urlencoded"} | headers
        assert ada.post("/ui/note", content=body, headers=given).status_code == status
    assert len(desk.notes) == (status == 303)


def test_a_request_that_does_not_say_where_it_comes_from_changes_nothing(desk: Desk) -> None:
    with desk.signed_in() as ada:
        token = csrf_in(ada.get("/ui").text)
        del ada.headers["origin"]
        assert ada.post("/ui/note", data={"words": "x", "csrf": token}).status_code == 403
        assert ada.post("/ui/sign-in", data={"token": desk.token()}).status_code == 403
    assert desk.notes == []


@pytest.mark.parametrize("cookie", ["", "x", "'; --", "\udcff", "a" * 64, "a" * 5000, '"', "=;=;", "A" * 43])
def test_a_forged_cookie_is_nobody(desk: Desk, cookie: str) -> None:
    with desk.client() as eve:
        raw = b"__Host-caps-holder.desk=" + cookie.encode("utf-8", "surrogateescape")
        answer = eve.get("/ui", headers=[(b"cookie", raw), (b"accept", b"text/html")])
        assert (answer.status_code, answer.headers.get("location")) == (303, "/ui/sign-in?next=/ui")
        assert eve.get("/ui", headers=[(b"cookie", raw)]).status_code == 401


def test_a_cookie_opens_pages_and_not_the_rest_interface(desk: Desk) -> None:
    with desk.signed_in() as ada:
        assert ada.get("/metrics").status_code == 401
        assert ada.get("/v1/openapi.json").status_code == 200
        answer = ada.get("/ui/nothing", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "<h1>Not found</h1>" in answer.text


@pytest.mark.parametrize("asked", ["//evil.example", "https://evil.example", "/ui/../x?y", "/v1/x", "/ui/sign-in", ""])
def test_signing_in_leads_to_a_page_of_this_service_only(desk: Desk, asked: str) -> None:
    with desk.client(origin=desk.url) as ada:
        assert "evil" not in ada.get("/ui/sign-in", params={"next": asked}).text
        answer = ada.post("/ui/sign-in", data={"token": desk.token(), "next": asked})
    assert answer.headers["location"] == "/ui"


def test_somebody_whose_token_expired_is_told_so_and_nobody_else(desk: Desk) -> None:
    token = desk.token()
    end = datetime.now(UTC) + timedelta(days=2)
    altered = token[:-1] + ("A" if token[-1] != "A" else "B")
    desk.late = timedelta(days=3)
    with desk.client(origin=desk.url) as ada:
        answers = [ada.post("/ui/sign-in", data={"token": one}) for one in (token, altered)]
        assert [one.status_code for one in answers] == [403, 403]
        assert f"This token expired on {end:%Y-%m-%d}." in answers[0].text
        assert "expired" not in answers[1].text
        asked = [ada.get("/metrics", headers={"authorization": f"Bearer {one}"}) for one in (token, altered)]
    assert [one.status_code for one in asked] == [401, 401]
    said = asked[0].json()
    assert (said["detail"], "caps token create" in said["hint"]) == (f"your token expired on {end:%Y-%m-%d}", True)
    assert "expired" not in asked[1].text


def test_failures_are_limited_and_lock_nobody_out(desk: Desk) -> None:
    with desk.client(origin=desk.url) as eve:
        statuses = [eve.post("/ui/sign-in", data={"token": "x"}).status_code for _ in range(MOST_FAILURES + 2)]
        refused = eve.post("/ui/sign-in", data={"token": "x"})
        assert statuses[-1] == refused.status_code == 429
        assert 0 < int(refused.headers["retry-after"]) <= 61
        assert eve.post("/ui/sign-in", data={"token": desk.token()}).status_code == 303


def test_problems_are_pages_in_the_same_words(desk: Desk) -> None:
    with desk.signed_in() as ada:
        token = csrf_in(ada.get("/ui").text)
        invalid = ada.post("/ui/note", data={"words": "", "csrf": token})
        large = ada.post("/ui/note", data={"words": "x" * 2000, "csrf": token})
        by_htmx = ada.post("/ui/note", data={"words": "", "csrf": token}, headers={"hx-request": "true"})
    for answer, status, words in (
        (invalid, 422, "The note has no words."),
        (large, 413, "The body is larger than the 1000 bytes allowed here."),
        (by_htmx, 422, "The note has no words."),
    ):
        assert answer.status_code == status
        assert words in unescape(answer.text)
        assert answer.headers["x-request-id"] in answer.text
        assert answer.headers["content-type"].startswith("text/html")
    assert "<html" not in by_htmx.text


def test_every_answer_has_the_policy_and_nothing_private_is_kept(desk: Desk) -> None:
    with desk.signed_in() as ada:
        answers: list[Any] = [ada.get(path) for path in ("/ui", "/ui/sign-in", "/ui/sessions", "/ui/nothing")]
        style = re.search(r'href="(/ui/static/style\.[0-9a-f]{16}\.css)"', answers[0].text)
        assert style is not None
        answers.append(ada.get(style[1]))
        assert ada.get("/ui/static/style.css").status_code == 404
        assert ada.get("/ui/static/..%2f..%2fsessions.py").status_code == 404
    for answer in answers:
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert [answer.headers["cache-control"] for answer in answers[:4]] == ["no-store"] * 4
    assert "immutable" in answers[4].headers["cache-control"]


def test_a_link_from_elsewhere_does_not_ask_who_is_signed_in_to_sign_in_again(desk: Desk) -> None:
    with desk.client() as ada:
        answer = ada.get("/ui", headers={"sec-fetch-site": "cross-site", "accept": "text/html"})
    assert answer.status_code == 200
    assert 'content="0; url=/ui"' in answer.text
