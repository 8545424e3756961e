"""News for people who are not looking at pages: a webhook and a mail when something waits for them, or is out.

A thread of its own looks at what there is to tell, which a service gives as a function, and tells each thing once by
each channel. What was told is kept in the service's state, so a restart repeats nothing. Attempts are few and spaced
out; then the matter is given up, with a line in the log. No other part of a service waits for any of this.

A message says what happened to which study, in fixed words, with the study's title as the manifest has it. It has no
value of any table, no reason that another party wrote, and no token.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import os
import smtplib
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from caps.basics.files import replace_private
from caps.basics.retry import Backoff, Retries
from caps.errors import DomainError
from caps.service import logs
from caps.service.environment import Variable
from caps.service.site import Site

WEBHOOK = Variable("CAPS_NEWS_WEBHOOK", "https URL to which news are sent, signed", "no webhook")
SECRET = Variable(
    "CAPS_NEWS_SECRET", "the secret that signs webhooks, at least 16 characters", "see CAPS_NEWS_SECRET_FILE"
)
SECRET_FILE = Variable("CAPS_NEWS_SECRET_FILE", "a file with that secret", "CAPS_NEWS_SECRET")
SMTP = Variable("CAPS_NEWS_SMTP", "smtps://host:port, or smtp://host:port for STARTTLS, to send mail by", "no mail")
MAIL_TO = Variable("CAPS_NEWS_MAIL_TO", "who gets mail: addresses, separated by commas", "required with CAPS_NEWS_SMTP")
MAIL_FROM = Variable("CAPS_NEWS_MAIL_FROM", "the sender's address", "the first of CAPS_NEWS_MAIL_TO")
SMTP_USER = Variable("CAPS_NEWS_SMTP_USER", "whom to log in as at the mail server", "nobody")
SMTP_PASSWORD = Variable("CAPS_NEWS_SMTP_PASSWORD", "the password", "see CAPS_NEWS_SMTP_PASSWORD_FILE")
SMTP_PASSWORD_FILE = Variable("CAPS_NEWS_SMTP_PASSWORD_FILE", "a file with the password", "CAPS_NEWS_SMTP_PASSWORD")
ADDRESS = Variable(
    "CAPS_NEWS_ADDRESS", "this service's address for people, for links in news", "links are without a host"
)
VARIABLES = (
    WEBHOOK,
    SECRET,
    SECRET_FILE,
    SMTP,
    MAIL_TO,
    MAIL_FROM,
    SMTP_USER,
    SMTP_PASSWORD,
    SMTP_PASSWORD_FILE,
    ADDRESS,
)
TIMEOUT = 10.0
LOOK_EVERY = 20.0
BACKOFF = Backoff(first=30.0, longest=1800.0, attempts=8)
"""Eight attempts within an hour or so."""
MOST_KEPT = 10_000
LEAST_SECRET = 16
TIMESTAMP, SIGNATURE = "X-CaPS-Timestamp", "X-CaPS-Signature"
_FILE = "news.json"

log = logging.getLogger("caps.news")


class Kind(StrEnum):
    """What happened."""

    APPROVAL = "approval"
    CONTRIBUTION = "contribution"
    WAITING = "waiting"
    RELEASE = "release"


_WORDS = {
    Kind.APPROVAL: "A study awaits approval",
    Kind.CONTRIBUTION: "A study waits for your table",
    Kind.WAITING: "A run waits",
    Kind.RELEASE: "A release is out",
}


@dataclass(frozen=True)
class Item:
    """Something to tell. about: the run or release, or the party that is waited for; part of what makes it one thing.

    path: the page that shows it.
    """

    kind: Kind
    study: str
    title: str
    path: str
    about: str = ""

    @property
    def key(self) -> str:
        """What it is remembered by."""
        return sha256(json.dumps([self.kind, self.study, self.about]).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class NewsSettings:
    """How to tell. Only `from_environment` reads the environment. Nothing is told without a webhook or mail."""

    webhook: str | None = None
    secret: str = field(default="", repr=False)
    smtp: str | None = None
    mail_to: tuple[str, ...] = ()
    mail_from: str = ""
    user: str | None = None
    password: str = field(default="", repr=False)
    address: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> NewsSettings:
        """Reads `VARIABLES`. Raises DomainError, with what to do."""
        webhook, smtp = WEBHOOK.given(environment), SMTP.given(environment)
        secret = _secret(environment, SECRET, SECRET_FILE)
        if webhook is not None:
            _check_webhook(webhook)
            if len(secret) < LEAST_SECRET:
                raise DomainError(f"{SECRET.name} must have at least {LEAST_SECRET} characters: it signs webhooks")
        to = tuple(one.strip() for one in (MAIL_TO.given(environment) or "").split(",") if one.strip())
        sender = MAIL_FROM.given(environment) or (to[0] if to else "")
        if smtp is not None:
            _mail_server(smtp)
            if not to:
                raise DomainError(f"{SMTP.name} needs {MAIL_TO.name}: who gets the mail")
            for one in (*to, sender):
                if "@" not in one or not one.isprintable() or any(letter in one for letter in " <>\r\n"):
                    raise DomainError(f"{MAIL_TO.name} and {MAIL_FROM.name} must be addresses such as a@example.org")
        address = (ADDRESS.given(environment) or "").rstrip("/")
        if address and urlsplit(address).scheme != "https":
            raise DomainError(f"{ADDRESS.name} must begin with https://")
        password = _secret(environment, SMTP_PASSWORD, SMTP_PASSWORD_FILE)
        return cls(webhook, secret, smtp, to, sender, SMTP_USER.given(environment), password, address)


SILENT = NewsSettings()
"""Nobody is told anything."""


class Failed(Exception):
    """A channel did not take a message; the text has no address and no secret."""


class Channel(Protocol):
    """A way to tell people."""

    name: str

    def send(self, item: Item, party: str, at: float) -> None:
        """Tell. Raises Failed."""


class Webhook:
    """A POST of JSON, signed with a secret: see `signature`. Redirects are not followed."""

    name = "webhook"

    def __init__(self, settings: NewsSettings) -> None:
        assert settings.webhook is not None
        self._url, self._secret, self._address = settings.webhook, settings.secret, settings.address

    def send(self, item: Item, party: str, at: float) -> None:
        """Tell. Raises Failed."""
        body = json.dumps(document(item, party, at, self._address)).encode()
        stamp = str(int(at))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "caps-news",
            TIMESTAMP: stamp,
            SIGNATURE: signature(self._secret, stamp, body),
        }
        try:
            with (
                httpx.Client(
                    timeout=TIMEOUT, follow_redirects=False, trust_env=False, verify=ssl.create_default_context()
                ) as http,
                http.stream("POST", self._url, content=body, headers=headers) as answer,
            ):
                status = answer.status_code  # whatever else it says is of no use
        except (httpx.HTTPError, OSError) as error:
            raise Failed(type(error).__name__) from None
        if not 200 <= status < 300:
            raise Failed(f"status {status}")


class Mail:
    """A mail by SMTP: TLS from the beginning (smtps), or STARTTLS. Only a server on this machine may do without."""

    name = "mail"

    def __init__(self, settings: NewsSettings) -> None:
        assert settings.smtp is not None
        self._settings = settings
        self._tls, self._host, self._port = _mail_server(settings.smtp)

    def send(self, item: Item, party: str, at: float) -> None:
        """Tell. Raises Failed."""
        try:
            with self._connected() as server:
                if self._settings.user is not None:
                    server.login(self._settings.user, self._settings.password)
                server.send_message(self._message(item, party, at))
        except (smtplib.SMTPException, OSError) as error:
            raise Failed(type(error).__name__) from None

    def _connected(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if self._tls:
            return smtplib.SMTP_SSL(self._host, self._port, timeout=TIMEOUT, context=context)
        server = smtplib.SMTP(self._host, self._port, timeout=TIMEOUT)
        try:
            server.ehlo()
            if server.has_extn("starttls") or not _is_loopback(self._host):
                server.starttls(context=context)
                server.ehlo()
        except BaseException:
            server.close()
            raise
        return server

    def _message(self, item: Item, party: str, at: float) -> EmailMessage:
        told = document(item, party, at, self._settings.address)
        message = EmailMessage()
        message["From"] = self._settings.mail_from
        message["To"] = ", ".join(self._settings.mail_to)
        message["Subject"] = f"CaPS {party}: {_WORDS[item.kind]}"
        message["Date"] = format_datetime(_time(at))
        message["Message-ID"] = f"<{item.key}.{int(at)}@caps.invalid>"
        lines = [f"{told['words']}.", "", f"Study: {item.title}", f"       {item.study}"]
        lines += [f"About: {item.about}"] if item.about else []
        message.set_content("\n".join([*lines, f"Page:  {told['page']}", ""]))
        return message


def document(item: Item, party: str, at: float, address: str) -> dict[str, str]:
    """What is told, as webhooks have it."""
    words = _WORDS[item.kind]
    if item.kind is Kind.WAITING:
        words = f"{words} for {item.about.rpartition(' ')[2]}"
    return {
        "id": item.key,
        "event": item.kind,
        "words": words,
        "party": party,
        "study": item.study,
        "title": item.title,
        "about": item.about,
        "page": f"{address}{item.path}",
        "at": _time(at).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 over the timestamp, a full stop and the body: `sha256=` and hexadecimal digits."""
    return f"sha256={hmac.new(secret.encode(), timestamp.encode() + b'.' + body, sha256).hexdigest()}"


class News:
    """Tells what there is to tell, by every channel that is set."""

    def __init__(
        self,
        site: Site,
        settings: NewsSettings,
        source: Callable[[], Iterable[Item]],
        *,
        backoff: Backoff = BACKOFF,
        look_every: float = LOOK_EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site, self._source = site, source
        self._channels: list[Channel] = []
        if settings.webhook is not None:
            self._channels.append(Webhook(settings))
        if settings.smtp is not None:
            self._channels.append(Mail(settings))
        self._backoff, self._every, self._clock = backoff, look_every, clock
        self._path = site.settings.data / _FILE
        self._told: dict[str, None] | None = _read(self._path)
        self._failed: dict[str, tuple[Retries, float]] = {}
        self._stop = Event()
        self._thread: Thread | None = None

    def open(self) -> None:
        """Begin, if there is a way to tell anybody."""
        if self._channels:
            self._thread = self._site.supervisor.thread("news", self._work, stopping=self._stop)

    def close(self) -> None:
        """End. A message that is being sent may come again after the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1)

    def look(self) -> None:
        """Tell what is new, once."""
        found = list(self._source())
        if self._told is None:  # what was out before anybody wanted news is none
            old = [item for item in found if item.kind is Kind.RELEASE]
            self._told = {f"{channel.name} {item.key}": None for item in old for channel in self._channels}
            self._keep()
        for item in found:
            for channel in self._channels:
                if self._stop.is_set():
                    return
                self._tell(item, channel)

    def _work(self) -> None:
        while True:
            self.look()
            if self._stop.wait(self._every):
                return

    def _tell(self, item: Item, channel: Channel) -> None:
        name = f"{channel.name} {item.key}"
        retries, due = self._failed.get(name, (self._backoff.begin(), 0.0))
        assert self._told is not None
        if name in self._told or self._clock() < due:
            return
        try:
            channel.send(item, self._site.name, self._site.now().timestamp())
            logs.say(log, "told", channel=channel.name, news=item.kind, study=item.study)
        except Failed as error:
            told = {"channel": channel.name, "news": item.kind, "study": item.study, "reason": str(error)}
            if not retries.exhausted:
                logs.say(log, "not told yet", level=logging.WARNING, **told)
                self._failed[name] = retries, self._clock() + retries.pause()
                return
            logs.say(log, "not told, given up", level=logging.ERROR, **told)
        self._failed.pop(name, None)
        self._told[name] = None
        self._keep()

    def _keep(self) -> None:
        assert self._told is not None
        for name in list(self._told)[: max(len(self._told) - MOST_KEPT, 0)]:
            del self._told[name]
        replace_private(self._path, json.dumps(list(self._told)).encode())


def _read(path: Path) -> dict[str, None] | None:
    """What was told before; None if nothing ever was looked at."""
    try:
        return dict.fromkeys(map(str, json.loads(path.read_bytes())))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise DomainError(f"{path} cannot be read; remove it, and what is pending is told again") from None


def _secret(environment: Mapping[str, str], variable: Variable, file: Variable) -> str:
    path = file.given(environment)
    if path is None:
        return variable.given(environment) or ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise DomainError(f"{file.name}: the file cannot be read") from None


def _check_webhook(url: str) -> None:
    try:
        found = urlsplit(url)
        host, _ = found.hostname or "", found.port
    except ValueError:
        host, found = "", urlsplit("")
    allowed = found.scheme == "https" or (found.scheme == "http" and _is_loopback(host))
    if not host or not allowed or found.username is not None or found.fragment:
        raise DomainError(f"{WEBHOOK.name} must be an https URL without a user; http only to this machine itself")


def _mail_server(url: str) -> tuple[bool, str, int]:
    """Whether TLS begins at once, the host and the port."""
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port
    except ValueError:
        host, port, found = "", None, urlsplit("")
    if found.scheme not in ("smtp", "smtps") or not host or found.username is not None or found.path not in ("", "/"):
        raise DomainError(
            f"{SMTP.name} must be smtps://host:port or smtp://host:port; the user has a variable of its own"
        )
    return found.scheme == "smtps", host, port or (465 if found.scheme == "smtps" else 587)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
