"""`caps token`: bearer tokens for people, made on the machine with the service's home."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from caps.cli.kit import command, group
from caps.cli.output import Output, listing

Home = Annotated[Path, typer.Argument(help="The service's home, CAPS_HOME.", exists=True, file_okay=False)]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    token = group(app, "token", "Bearer tokens of owners, analysts, operators and auditors.")

    @command(token, "create")
    def create(
        out: Output,
        home: Home,
        name: Annotated[str, typer.Option("--name", help="The person it is for.")],
        scope: Annotated[
            list[str], typer.Option("--scope", help="owner, analyst, operator or auditor; repeat for more.")
        ],
        days: Annotated[int, typer.Option("--days", min=1, max=3650, help="Days until it expires.")] = 90,
    ) -> None:
        """Make a token. It is only shown once; the service stores only its digest."""
        from caps.service.tokens import Scope, Tokens
        from caps.trust.home import TOKENS

        unknown = [one for one in scope if one not in set(Scope)]
        if unknown:
            raise typer.BadParameter(f"no such scope: {', '.join(unknown)}", param_hint="--scope")
        expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
        made = Tokens(home / TOKENS).create(name, [Scope(one) for one in scope], expires=expires)
        out.show({"token": made, "name": name, "scopes": sorted(set(scope)), "expires": expires.isoformat()}, made)
        out.note(f"This token is for {name}, expires on {expires:%Y-%m-%d}, and is not shown again.")

    @command(token, "list")
    def listed(out: Output, home: Home) -> None:
        """List the tokens: ids, names, scopes, expiry."""
        from caps.service.tokens import Tokens
        from caps.trust.home import TOKENS

        items = [{"id": identity, **record} for identity, record in Tokens(home / TOKENS).listed().items()]
        now = datetime.now(UTC)

        def shown(item: dict[str, object]) -> dict[str, object]:
            end = datetime.fromisoformat(str(item["expires"]))
            return item | {"expires": f"{end:%Y-%m-%d}" if end > now else f"expired on {end:%Y-%m-%d}"}

        out.show({"tokens": items}, listing(list(map(shown, items)), ("id", "name", "scopes", "expires")))

    @command(token, "revoke")
    def revoke(out: Output, home: Home, identity: Annotated[str, typer.Argument(help="The token's id.")]) -> None:
        """Revoke a token; a running service refuses it at once."""
        from caps.service.tokens import Tokens
        from caps.trust.home import TOKENS

        Tokens(home / TOKENS).revoke(identity)
        out.show({"revoked": identity}, f"{identity} is revoked.")
