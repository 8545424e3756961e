"""News: told once by each channel, signed, to real servers on this machine; a dead one is tried a few times only."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from caps.basics.retry import Backoff
from caps.errors import DomainError
from caps.service.news import Item, Kind, News, NewsSettings
from caps.service.site import Settings, Site
from tests.kit.study import NOW, example_manifest, write_site
from tests.kit.tls import make_authority

pytestmark = pytest.mark.integration

SECRET = "a secret of 22 letters"
STUDY = "ab" * 32
APPROVAL = Item(Kind.APPROVAL, STUDY, "Costs\nBcc: thief@example.org", f"/ui/studies/{STUDY}")
RELEASE = Item(Kind.RELEASE, STUDY, "Costs", f"/ui/runs/{'cd' * 16}", "cd" * 16)
WAITING = Item(Kind.WAITING, STUDY, "Costs", f"/ui/runs/{'cd' * 16}", f"{'cd' * 16} S2")
BRISK = Backoff(first=0.001, longest=0.002, attempts=3)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    _, keys = example_manifest()
    write_site(tmp_path / "home", make_authority(NOW), keys["clinic-a"], "holder")
    place = Settings(tmp_path / "home", tmp_path / "home" / "state", "127.0.0.1", 0, "sqlite://")
    return Site(place, role="holder", clock=lambda: NOW)


class Hooked:
    """A web server that takes what it is sent, and answers with this status."""

    def __init__(self) -> None:
        self.status, self.location = 204, ""
        self.taken: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(outer.status)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    made = Hooked()
    thread = Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@contextmanager
def mail_sink(*, starttls: bool = False) -> Iterator[tuple[int, list[str]]]:
    """A mail server in a socket: enough of SMTP to take mails, whose text it keeps. It cannot do TLS."""
    listener = socket.create_server(("127.0.0.1", 0))
    mails: list[str] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), connection, connection.makefile("rwb") as file:

                def say(text: str, file: object = file) -> None:
                    file.write(f"{text}\r\n".encode())  # type: ignore[attr-defined]
                    file.flush()  # type: ignore[attr-defined]

                say("220 sink")
                while line := file.readline().decode(errors="replace").strip():
                    verb = line.partition(" ")[0].upper()
                    if verb == "EHLO":
                        say("250-sink" if starttls else "250 sink")
                        if starttls:
                            say("250 STARTTLS")
                    elif verb == "DATA":
                        say("354 go on")
                        text = []
                        while (part := file.readline().decode(errors="replace").rstrip("\r\n")) != ".":
                            text.append(part)
                        mails.append("\n".join(text))
                        say("250 kept")
                    elif verb == "STARTTLS":
                        say("454 not now")
                    elif verb == "QUIT":
                        say("221 bye")
                        break
                    else:
                        say("250 well")

    thread = Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], mails
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def hook_settings(hooked: Hooked) -> NewsSettings:
    return NewsSettings(webhook=hooked.url, secret=SECRET, address="https://clinic.example")


def mail_settings(port: int) -> NewsSettings:
    return NewsSettings(smtp=f"smtp://127.0.0.1:{port}", mail_to=("o@example.org",), mail_from="caps@example.org")


def test_a_webhook_is_signed_as_the_page_says_and_sent_once(site: Site, hooked: Hooked) -> None:
    News(site, hook_settings(hooked), lambda: [APPROVAL, RELEASE]).look()  # what is out already is no news
    news = News(site, hook_settings(hooked), lambda: [APPROVAL, WAITING])
    news.look()
    news.look()
    News(site, hook_settings(hooked), lambda: [APPROVAL, WAITING, RELEASE]).look()  # after a restart
    told = [json.loads(body) for _, body in hooked.taken]
    assert [one["event"] for one in told] == ["approval", "waiting"]
    assert told[0]["page"] == f"https://clinic.example/ui/studies/{STUDY}"
    assert told[1]["words"] == "A run waits for S2"
    headers, body = hooked.taken[0]
    assert int(headers["x-caps-timestamp"]) == int(NOW.timestamp())
    signed = headers["x-caps-timestamp"].encode() + b"." + body
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["x-caps-signature"] == f"sha256={expected}"
    assert SECRET.encode() not in body
    page = (Path(__file__).parents[3] / "docs" / "news.md").read_text()
    written: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], written)
    genuine = partial(written["is_genuine"], SECRET, headers["x-caps-timestamp"], headers["x-caps-signature"])
    assert not genuine(body)  # it is as old as the tests
    assert genuine(body, tolerance=float("inf"))
    assert not genuine(body + b" ", tolerance=float("inf"))


def test_redirects_are_not_followed_and_a_refusal_is_repeated_a_few_times(site: Site, hooked: Hooked) -> None:
    hooked.status, hooked.location = 307, "/elsewhere"
    news = News(site, hook_settings(hooked), lambda: [APPROVAL], backoff=BRISK)
    for _ in range(8):
        news.look()
        time.sleep(0.005)
    assert len(hooked.taken) == BRISK.attempts


def test_a_mail_has_fixed_words_and_no_header_of_another(site: Site) -> None:
    with mail_sink() as (port, mails):
        News(site, mail_settings(port), lambda: [APPROVAL]).look()
    head, _, text = mails[0].partition("\n\n")
    assert "Subject: CaPS clinic-a: A study awaits approval" in head
    assert "Bcc" not in head
    assert STUDY in text


def test_mail_that_should_be_encrypted_is_not_sent_in_the_clear(site: Site) -> None:
    with mail_sink(starttls=True) as (port, mails):
        news = News(site, mail_settings(port), lambda: [APPROVAL], backoff=BRISK)
        news.look()
        assert mails == []
        secure = replace(mail_settings(port), smtp=f"smtps://127.0.0.1:{port}")
        News(site, secure, lambda: [WAITING], backoff=BRISK).look()
        assert mails == []


def test_a_service_does_not_wait_for_whoever_does_not_answer(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = NewsSettings(webhook=f"http://127.0.0.1:{silent.getsockname()[1]}/", secret=SECRET)
        news = News(site, settings, lambda: [APPROVAL])
        news.open()
        silent.accept()[0].close()  # it has called, from a thread of its own
        news.close()


@pytest.mark.parametrize(
    "given",
    [
        {"CAPS_NEWS_WEBHOOK": "http://example.org/hook", "CAPS_NEWS_SECRET": SECRET},
        {"CAPS_NEWS_WEBHOOK": "https://user:password@example.org/", "CAPS_NEWS_SECRET": SECRET},
        {"CAPS_NEWS_WEBHOOK": "file:///etc/passwd", "CAPS_NEWS_SECRET": SECRET},
        {"CAPS_NEWS_WEBHOOK": "https://example.org:no/", "CAPS_NEWS_SECRET": SECRET},
        {"CAPS_NEWS_WEBHOOK": "https://example.org/hook", "CAPS_NEWS_SECRET": "short"},
        {"CAPS_NEWS_WEBHOOK": "https://example.org/hook"},
        {"CAPS_NEWS_WEBHOOK": "https://example.org/hook", "CAPS_NEWS_SECRET_FILE": "/does/not/exist"},
        {"CAPS_NEWS_SMTP": "smtps://mail.example.org"},
        {"CAPS_NEWS_SMTP": "mail.example.org", "CAPS_NEWS_MAIL_TO": "a@example.org"},
        {"CAPS_NEWS_SMTP": "smtps://me@mail.example.org", "CAPS_NEWS_MAIL_TO": "a@example.org"},
        {"CAPS_NEWS_SMTP": "smtps://mail.example.org", "CAPS_NEWS_MAIL_TO": "a@example.org\nBcc: b@example.org"},
        {"CAPS_NEWS_ADDRESS": "http://clinic.example"},
    ],
)
def test_settings_that_would_tell_strangers_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(DomainError, match="CAPS_NEWS_"):
        NewsSettings.from_environment(given)


def test_secrets_come_from_files_and_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "password").write_text("a password\n")
    found = NewsSettings.from_environment(
        {
            "CAPS_NEWS_WEBHOOK": "https://example.org/hook",
            "CAPS_NEWS_SECRET_FILE": str(tmp_path / "secret"),
            "CAPS_NEWS_SMTP": "smtp://mail.example.org",
            "CAPS_NEWS_MAIL_TO": "a@example.org, b@example.org",
            "CAPS_NEWS_SMTP_USER": "caps",
            "CAPS_NEWS_SMTP_PASSWORD_FILE": str(tmp_path / "password"),
        }
    )
    assert (found.secret, found.password, found.mail_from) == (SECRET, "a password", "a@example.org")
    assert SECRET not in repr(found)
    assert "a password" not in repr(found)
