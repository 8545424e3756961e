"""`python -m services.SERVICE.migrations`: bring a service's database to the revision of this software."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sqlalchemy import MetaData
from sqlalchemy.exc import DBAPIError

from caps.errors import CapsError
from caps.service.database import connect
from caps.service.migrations import draft, upgrade
from caps.service.site import Settings

_DRAFT = "draft"


def main(package: str, metadata: MetaData, arguments: Sequence[str] | None = None) -> int:
    """Migrate the database of CAPS_DATABASE; with `draft TITLE`, only print the revision that changed tables need.

    Returns 2 on failure, which leaves the database unchanged.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [_DRAFT] and len(given) == 2:
        sys.stdout.write(draft(package, metadata, given[1]))
        return 0
    if given:
        sys.stderr.write(f"usage: python -m {package} [{_DRAFT} TITLE]\n")
        return 2
    try:
        settings = Settings.from_environment()
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        engine = connect(settings.database)
        try:
            found, head, copy = upgrade(engine, package)
        finally:
            engine.dispose()
    except DBAPIError as error:
        sys.stderr.write(f"the database cannot be used: {error.orig}\n")
        return 2
    except (CapsError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    told = f"the database is at revision {head}" + ("" if found == head else f"; it was {found or 'empty'}")
    sys.stdout.write(told + ("\n" if copy is None else f". A copy from before is in {copy}\n"))
    return 0
