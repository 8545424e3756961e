"""Throw-away certificates for measurements on one host: one authority, and one certificate for each of three parties.

Never for production: the keys of all parties are made in one place and lie unencrypted in a temporary folder.
"""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from caps.trust.pki import Authority, generate_key, write_key, write_pem


@dataclass(frozen=True)
class Credentials:
    """Paths of one party's PEM files."""

    certificate: Path
    key: Path
    ca: Path


def make_credentials(folder: Path, names: tuple[str, ...]) -> tuple[Credentials, ...]:
    """One authority and one certificate per name, valid for localhost, 127.0.0.1 and the name itself, for a day.

    File names are those that MPyC insists on.
    """
    now = dt.datetime.now(dt.UTC)
    not_before, not_after = now - dt.timedelta(minutes=5), now + dt.timedelta(days=1)
    authority = Authority.create("benchmark authority, insecure", not_before=not_before, not_after=not_after)
    write_pem(folder / "mpyc_ca.crt", authority.certificate)
    made = []
    for index, name in enumerate(names):
        key = generate_key()
        certificate = authority.issue(
            key.public_key(),
            subject=name,
            hosts=[name, "localhost", "127.0.0.1"],
            not_before=not_before,
            not_after=not_after,
        )
        credentials = Credentials(folder / f"party_{index}.crt", folder / f"party_{index}.key", folder / "mpyc_ca.crt")
        write_pem(credentials.certificate, certificate)
        write_key(credentials.key, key)
        made.append(credentials)
    return tuple(made)
