"""Checks /readyz of the service in this container, using CAPS_LISTEN and CAPS_HOME. Exit status 0 if ready, else 1."""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from pathlib import Path

_ANYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104


def main() -> int:
    """Send one request. The answer must come with this party's certificate."""
    host, _, port = os.environ.get("CAPS_LISTEN", "127.0.0.1:8443").rpartition(":")
    host = host.strip("[]")
    home = Path(os.environ["CAPS_HOME"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate names the service as others see it; compared as a whole below
    context.load_verify_locations(home / "authority.pem")
    connection = http.client.HTTPSConnection(
        "127.0.0.1" if host in _ANYWHERE else host, int(port), timeout=8, context=context
    )
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        own = ssl.PEM_cert_to_DER_cert((home / "certificate.pem").read_text())
        if connection.sock.getpeercert(binary_form=True) != own:
            print("somebody else answers")
            return 1
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        print(response.read(2000).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        print(error)
        return 1
    return 0 if response.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
