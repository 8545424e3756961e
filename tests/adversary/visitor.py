"""Somebody with a browser: without a session, with a forged one, with another role's, and with one of their own.

Routes come from the tables of `tests.kit.callers`, so a page that is added is tried, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import httpx

from caps.service.pages.sessions import MOST as MOST_SESSIONS
from caps.service.pages.sessions import csrf_of
from deploy.federation import COORDINATOR
from services.coordinator.authoring.drafts import MOST as MOST_DRAFTS
from tests.adversary.lies import JSON
from tests.adversary.stage import Broken, Catalogue, Stage, Variant, pick, text
from tests.kit.attacks import BODIES
from tests.kit.callers import COMMON, PEOPLE, TABLES

SERVICES = {"S1": "mpc-server", COORDINATOR: "coordinator", "north": "holder"}
"""One party of each kind, with the kind of its routes."""
SCOPES = {
    "S1": ("operator", "auditor"),
    COORDINATOR: ("analyst", "operator", "auditor"),
    "north": ("owner", "operator"),
}
"""The scopes of people that there are at it."""
AT_ONCE = 5
"""Routes that a move tries."""
FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class Route:
    """A route, and the people who may call it."""

    method: str
    path: str
    people: frozenset[str]


def routes(name: str, *, pages: bool | None = None) -> list[Route]:
    """Of a service; only its pages, or only the others, if that is asked."""
    found = []
    for route, who in {**COMMON, **TABLES[SERVICES[name]]}.items():
        method, _, path = route.partition(" ")
        if pages is None or path.startswith("/ui") is pages:
            found.append(Route(method, path, frozenset(who) & set(PEOPLE)))
    return found


def some(found: list[Route], variant: Variant) -> list[Route]:
    """As many as a move tries, beginning anywhere."""
    begin = variant * AT_ONCE % len(found)
    return [*found[begin:], *found[:begin]][:AT_ONCE]


def address(stage: Stage, path: str) -> str:
    """A route's address, of what exists where it matters who asks."""
    known = {"study": stage.open.identity, "run": stage.released.run, "release": stage.released.run, "holder": "north"}
    known |= {"contribution": "0" * 64, "session": "0" * 64, "draft": "0" * 32, "sample": "0" * 32}
    return path.format(
        **known, step="0" if "/steps/" in path else "about", key=1, number=0, first=0, second=1, form="csv"
    )


def turned_away(stage: Stage, name: str, route: Route, **options: Any) -> None:
    """Ask for what must not be given; being asked to sign in is no."""
    response = stage.ask(name, route.method, address(stage, route.path), **options)
    if response is not None and response.status_code < 400:
        if response.status_code == 303 and response.headers["location"].startswith("/ui/sign-in"):
            return
        raise Broken(f"{stage.seen[-1]}, and should be refused")


@dataclass(frozen=True)
class Browser:
    """Somebody who is signed in."""

    stage: Stage
    name: str
    cookie: str

    @property
    def csrf(self) -> str:
        """What this session's forms repeat."""
        return csrf_of(self.cookie.partition("=")[2])

    def headers(self, **others: str) -> dict[str, str]:
        return {"cookie": self.cookie, "origin": self.stage.federation.places[self.name].url, **others}

    def get(self, path: str) -> httpx.Response | None:
        return self.stage.ask(self.name, "GET", path, headers=self.headers())

    def post(
        self, path: str, fields: Mapping[str, Any] | None = None, *, csrf: str | None = None
    ) -> httpx.Response | None:
        body = urlencode({"csrf": self.csrf if csrf is None else csrf, **(fields or {})}, doseq=True)
        return self.stage.ask(self.name, "POST", path, headers=self.headers(**FORM), content=body)

    def put(self, path: str, content: bytes, kind: str) -> httpx.Response | None:
        headers = self.headers(**{"content-type": kind, "x-csrf-token": self.csrf})
        return self.stage.ask(self.name, "PUT", path, headers=headers, content=content)


def signed_in(stage: Stage, name: str, scope: str) -> Browser:
    """A person of this scope opens the pages of a service."""
    response = stage.ask(
        name,
        "POST",
        "/ui/sign-in",
        data={"token": stage.token(name, scope)},
        headers={"origin": stage.federation.places[name].url},
    )
    if response is None or response.status_code != 303:
        raise Broken(f"{stage.seen[-1]}: {scope} cannot sign in")
    return Browser(stage, name, response.headers["set-cookie"].partition(";")[0])


def without_a_session(stage: Stage, variant: Variant) -> None:
    """Any route, by nobody."""
    name = pick(tuple(SERVICES), variant)
    for route in some(routes(name), variant // 3):
        turned_away(
            stage, name, route, content=b"" if route.method == "GET" else b"{}", headers=pick(({}, FORM, JSON), variant)
        )


def forged_session(stage: Stage, variant: Variant) -> None:
    """A page with a cookie that stands for nobody: invented, altered, another service's, or hardly a cookie."""
    name = pick(tuple(SERVICES), variant)
    mine = signed_in(stage, name, SCOPES[name][0]).cookie
    key, _, secret = mine.partition("=")
    others = signed_in(stage, "north" if name != "north" else "S1", "operator").cookie.partition("=")[2]
    cookies = (
        f"{key}={secrets.token_urlsafe(32)}", f"{key}={secret[:-1]}", f"{key}={secret}x", f"{key}={others}", f"{key}=",
        f"{key}=\"{secret[1:]}\"", f"{key}={'0' * 20_000}", f"{key.lower()}={secret}", f"x{key}={secret}",
        ";".join(f"{key}={number}" for number in range(400)), f"{key}={secret[:-1]}%00", f"{key}\t={secret[1:]}",
        f"{key}[]={secret}", "=" * 5000, f"$Version=1; {key}=' OR 1=1 --",
    )  # fmt: skip
    for route in some(routes(name, pages=True), variant // 5):
        headers = {"cookie": pick(cookies, variant), "origin": stage.federation.places[name].url}
        turned_away(stage, name, route, headers=headers)


def another_role(stage: Stage, variant: Variant) -> None:
    """Somebody who is signed in, at pages for others."""
    name = pick(tuple(SERVICES), variant)
    scope = pick(SCOPES[name], variant // 3)
    me = signed_in(stage, name, scope)
    for route in some([one for one in routes(name) if scope not in one.people], variant // 2):
        turned_away(stage, name, route, headers=me.headers(**FORM, **{"x-csrf-token": me.csrf}), content=b"")


def form_of_another_session(stage: Stage, variant: Variant) -> None:
    """What changes something, with a cookie, and without what the forms of its session repeat."""
    name = pick(tuple(SERVICES), variant)
    scope = SCOPES[name][0] if name == "north" else "operator"
    me, other = signed_in(stage, name, scope), signed_in(stage, name, scope)
    wrong = pick(("", "0" * 64, other.csrf, me.csrf[:-1], me.csrf.upper(), "\u00e9" * 64, "x" * 10_000), variant // 3)
    changing = [one for one in routes(name, pages=True) if one.method != "GET" and scope in one.people]
    for route in some(changing, variant // 2):
        answer = me.stage.ask(
            name,
            route.method,
            address(stage, route.path),
            headers=me.headers(**FORM),
            content=urlencode({"csrf": wrong}) if wrong else b"",
        )
        if answer is None or answer.status_code != 403:
            raise Broken(f"{stage.seen[-1]}: a form of another session")
    elsewhere = pick(("https://elsewhere.example", "null", "http://127.0.0.1", ""), variant)
    for route in some(changing, variant):
        headers = {"cookie": me.cookie, "origin": elsewhere, "x-csrf-token": me.csrf, **FORM}
        answer = stage.ask(name, route.method, address(stage, route.path), headers=headers, content=b"")
        if answer is None or answer.status_code != 403:
            raise Broken(f"{stage.seen[-1]}: a form of another site")


def odd_forms(stage: Stage, variant: Variant) -> None:
    """Forms that no page has: huge, of many fields, of other kinds, deep."""
    name = pick(tuple(SERVICES), variant)
    scope = "owner" if name == "north" else "operator"
    me = signed_in(stage, name, scope)
    csrf = urlencode({"csrf": me.csrf}).encode()
    bodies = (
        (FORM, csrf + b"&title=" + b"x" * (1 << 20)), (FORM, csrf + b"&a=" * 40_000), (FORM, csrf + b"&" + csrf),
        (FORM, csrf + b"&title=%ff%fe"), (FORM, csrf + b"&title=\xff"), (FORM, b"%" * 200_000),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n" * 20_000), (JSON, b"[" * 200_000),
        (JSON, b'{"csrf":"%s"}' % me.csrf.encode()), (FORM, csrf + b"&reason=" + b"%00" * 3000),
        (FORM, csrf + b"&reason=" + b"%E2%80%AE" * 3000), (FORM, csrf + b"&reason="),
    )  # fmt: skip
    kind, body = pick(bodies, variant // 3)
    targets = {
        "S1": ("/ui/studies/{study}/decline",),
        COORDINATOR: (
            "/ui/drafts/{draft}/{step}/save",
            "/ui/drafts/{draft}/columns/{key}/save",
            "/ui/sessions/{session}/end",
        ),
        "north": ("/ui/studies/{study}/decline", "/ui/fetch"),
    }[name]
    for path in targets:
        answer = stage.ask(name, "POST", address(stage, path), headers=me.headers(**kind), content=body)
        if answer is not None and answer.status_code < 300:
            raise Broken(f"{stage.seen[-1]}, and should be refused")


WHERE: tuple[Any, ...] = (
    {"nothing": ["x"]}, {"smoker": ["perhaps"]}, {"smoker": []}, {"smoker": ["yes"] * 100_000}, {"smoker": "yes"},
    {"smoker": [None]}, {"smoker": [["yes"]]}, {"": [""]}, {"smoker": ["\ud800"]}, {"smoker": [1e308]}, [], "x", 5,
    {f"c{number}": ["x"] for number in range(5000)}, {"smoker": ["x" * 100_000]}, {"__class__": ["yes"]},
)  # fmt: skip


def odd_samples(stage: Stage, variant: Variant) -> None:
    """An analyst asks for rows that meet what cannot be met, or cannot be read."""
    path, token = f"/v1/releases/{stage.released.run}/samples", stage.token(COORDINATOR, "analyst")
    asked = text({"rows": 3, "where": pick(WHERE, variant)})
    stage.refused(COORDINATOR, "POST", path, token=token, content=asked, headers=JSON)
    deep = b'{"rows":3,"where":' + b'{"smoker":' * 5000 + b"1" + b"}" * 5001
    body = pick((deep, *(made() for name, made in BODIES.items() if name != "nothing")), variant)
    stage.refused(COORDINATOR, "POST", path, token=token, content=body, headers=JSON)
    me = signed_in(stage, COORDINATOR, "analyst")
    ticked = pick(
        (["0.99"], ["99.0"], ["-1.0"], ["0"], ["0.0.0"], ["\u0660.\u0661"], ["9" * 5000], ["a.b"] * 1500), variant
    )
    rows = pick(("1", "-1", "1e9", "9" * 9, "\u0661", "0", "1.5", ""), variant // 2)
    answer = me.post(f"/ui/releases/{stage.released.run}/samples/draw", {"rows": rows, "where": ticked})
    if answer is not None and answer.status_code < 400:
        raise Broken(f"{stage.seen[-1]}, and should be refused")
    me.post(
        f"/ui/releases/{stage.released.run}/samples/delete",
        {"sample": pick(("0" * 32, "../x", "'", "x" * 9000), variant)},
    )


def odd_questions(stage: Stage, variant: Variant) -> None:
    """Pages of a release, with addresses that no link has."""
    base, me = f"/ui/releases/{stage.released.run}", signed_in(stage, COORDINATOR, "analyst")
    asked = (
        "/count?where=0.99",
        "/count?where=9999999999.0",
        "/count?where=0.0" + "&where=0.1" * 3000,
        "/count?by=0&by=0&by=0",
        "/count?by=-1",
        "/count?by=0&by=0",
        "/count?level=100&where=0.0",
        "/count?where=%ff",
        "/pairs/0/99",
        "/pairs/0/0",
        "/pairs/1/0",
        "/pairs/x/1",
        f"/pairs/{'9' * 5000}/1",
        "/pairs/0/1?page=-1",
        "/columns?page=999999999999",
        "/columns?page=x",
        "/columns?show=nothing",
        "/pairs?page=%00",
        "/data/exe",
        "/data/csv%2f..%2f..",
        "/rounds?page=0",
        f"/samples/{'0' * 32}/data/csv",
        "/correlations?" + "a=b&" * 2000,
        "/residuals?x=" + "y" * 20_000,
        "/../../v1/releases",
        "/count?by=0&where=0.0&where=1.0&where=1.1",
    )
    for number in range(AT_ONCE):
        me.get(f"{base}{pick(asked, variant * AT_ONCE + number)}")
    others = (
        "/ui/releases?sort=x&search=" + "%25" * 2000,
        "/ui/releases?page=-5",
        "/ui/runs?page=0",
        "/ui/studies?page=x",
    )
    me.get(pick(others, variant))


def many_questions(stage: Stage, variant: Variant) -> None:
    """What takes a page long to compute, many times at once; meanwhile everybody is alive."""
    me = signed_in(stage, COORDINATOR, "analyst")
    page = pick(("count?by=0&by=1&where=2.0", "residuals", "correlations", "columns", "pairs/0/1", "report"), variant)
    calls: list[Callable[[], object]] = [lambda: me.get(f"/ui/releases/{stage.released.run}/{page}")] * 20
    stage.at_once([*calls, stage.alive])


def odd_uploads(stage: Stage, variant: Variant) -> None:
    """An owner's files that are none, sources that nobody declared, and coordinators that are none."""
    me, study = signed_in(stage, "north", "owner"), stage.open.identity
    kind, content = pick(
        (
            ("text/csv", b"\0" * 1000),
            ("text/csv", b'"' * 100_000),
            ("text/csv", b"," * 200_000),
            ("text/csv", b""),
            ("application/vnd.apache.parquet", b"PAR1" + b"\xff" * 1000 + b"PAR1"),
            ("application/gzip", b"\x1f\x8b" * 99),
            ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", b"PK\3\4" + b"\0" * 500),
            ("text/csv; charset=utf-7", b"a\n1\n"),
            ("text/html", b"<script>"),
        ),
        variant,
    )
    for path in ("release", "table"):
        answer = me.put(f"/ui/studies/{study}/{path}", content, kind)
        if answer is not None and answer.status_code < 300 and path == "table":
            raise Broken(f"{stage.seen[-1]}: what was contributed is replaced")
    source = pick(("registry", "", "../x", "x" * 5000, "postgresql://elsewhere", {"sql": "select 1"}, None), variant)
    owner = stage.token("north", "owner")
    stage.refused("north", "PUT", f"/v1/studies/{study}/table/source", token=owner, json={"source": source})
    place = stage.federation.places[COORDINATOR].url
    where = (
        "file:///etc/passwd",
        "https://127.0.0.1:1",
        "http://127.0.0.1:1",
        place + "/x?y#z",
        "x" * 9000,
        place + "@x",
        "",
    )
    answer = me.post(
        "/ui/fetch", {"coordinator": pick(where, variant), "study": pick((study, "0" * 64, "x"), variant // 2)}
    )
    if answer is not None and answer.status_code < 300:
        raise Broken(f"{stage.seen[-1]}: a study of nowhere")


def drafts_without_end(stage: Stage, variant: Variant) -> None:
    """As many drafts as a person may have, and then some; one of them as large as it gets. All are removed again."""
    me, made, full = signed_in(stage, COORDINATOR, "operator"), list[str](), False
    for _ in range(2 * MOST_DRAFTS):
        answer = me.post("/ui/drafts/new")
        assert answer is not None
        if full := answer.status_code >= 400:
            break
        made.append(answer.headers["location"].rsplit("/", 1)[0])
    if not full:
        raise Broken(f"one person has {len(made)} drafts, and may have more")
    words = {"purpose": "x" * 200_000, "title": "y" * 30_000}
    for path in made[:3]:
        me.post(f"{path}/about/keep", words)
        me.get(f"{path}/about")
        me.get(f"{path}/review")
        me.get(f"{path}/columns/{'9' * pick((3, 30, 5000), variant)}")
    for path in made:
        gone = me.post(f"{path}/remove")
        if gone is None or gone.status_code != 303:
            raise Broken(f"{stage.seen[-1]}: a draft cannot be removed")


def sessions_without_end(stage: Stage, variant: Variant) -> None:
    """One token signs in again and again: the oldest session gives way, and the latest works."""
    name = pick(tuple(SERVICES), variant)
    scope = SCOPES[name][0]
    opened = [signed_in(stage, name, scope) for _ in range(MOST_SESSIONS + 2)]
    first, last = opened[0].get("/ui/sessions"), opened[-1].get("/ui/sessions")
    if first is None or last is None or (first.status_code, last.status_code) != (401, 200):
        raise Broken(f"{name} keeps {len(opened)} sessions of one token")


def wrong_tokens(stage: Stage, variant: Variant) -> None:
    """Guesses at the door for people: soon told to wait, while somebody with a token comes in."""
    name = pick(tuple(SERVICES), variant)
    guess = pick(("x", "caps_" + "0" * 60, "", "\0", "x" * 100_000, f"caps_{'0' * 12}_{'A' * 43}"), variant // 3)
    for _ in range(4):
        stage.refused(
            name,
            "POST",
            "/ui/sign-in",
            data={"token": guess, "next": pick(("//elsewhere", "/ui", "javascript:x"), variant)},
            headers={"origin": stage.federation.places[name].url},
        )
    signed_in(stage, name, SCOPES[name][0])


MOVES: Catalogue = {
    move.__name__: move
    for move in (
        without_a_session, forged_session, another_role, form_of_another_session, odd_forms, odd_samples, odd_questions,
        many_questions, odd_uploads, wrong_tokens,
    )
}  # fmt: skip
HEAVY: Catalogue = {move.__name__: move for move in (drafts_without_end, sessions_without_end)}
"""Moves for literal cases and long sequences alone."""
