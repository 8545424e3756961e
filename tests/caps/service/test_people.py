"""A port for people only: with a certificate of its own, which it follows, and the same application behind it."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import httpx
import pytest

from caps.errors import DomainError
from caps.service.connections import People
from caps.service.serve import make_server
from caps.service.site import Settings
from caps.service.tokens import Scope
from caps.trust.tls import PeopleContext
from tests.kit.service import Sample
from tests.kit.tls import Authority
from tests.kit.waiting import until

pytestmark = pytest.mark.integration


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_people_meet_a_certificate_that_their_browsers_trust(tmp_path: Path) -> None:
    federation, hospital = Authority(tmp_path), Authority(tmp_path, "hospital")
    own, shown = federation.issue("holder", "caps:holder/clinic-a"), hospital.issue("people")
    sample = Sample(tmp_path)
    ports = _free(), _free()
    people = People("127.0.0.1", ports[1], PeopleContext.of(shown.certificate, shown.private_key))
    server = make_server(sample.app, own, host="127.0.0.1", port=ports[0], people=people)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    headers = {"authorization": f"Bearer {sample.token(Scope.OPERATOR)}"}

    def asked(port: int, authority: Path, serial: list[int], path: str = "/v1/who") -> int:
        context = ssl.create_default_context(cafile=str(authority))
        with (
            httpx.Client(verify=context, trust_env=False) as client,
            client.stream("GET", f"https://127.0.0.1:{port}{path}", headers=headers) as answer,
        ):
            certificate = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
            serial.append(int(certificate["serialNumber"], 16))
            return answer.status_code

    try:
        seen: list[int] = []
        assert asked(ports[0], federation.root, seen) == 200
        assert asked(ports[1], hospital.root, seen) == 200
        with pytest.raises(httpx.ConnectError):
            asked(ports[1], federation.root, seen)
        shown.private_key.write_text("half written")
        assert asked(ports[1], hospital.root, seen) == 200
        assert seen[1] == seen[2]
        for path in (shown.certificate, shown.private_key):
            path.unlink()
        hospital.issue("people")  # renewed, with another key
        assert asked(ports[1], hospital.root, seen) == 200
        assert seen[3] != seen[2]
    finally:
        server.should_exit = True
        thread.join(30)


def test_the_setting(tmp_path: Path) -> None:
    given = {"CAPS_HOME": str(tmp_path)}
    assert Settings.from_environment(given).people is None
    assert Settings.from_environment(given | {"CAPS_PEOPLE_LISTEN": "[::]:443"}).people == ("::", 443)
    with pytest.raises(DomainError, match="CAPS_PEOPLE_LISTEN must be host:port"):
        Settings.from_environment(given | {"CAPS_PEOPLE_LISTEN": "443"})
