"""`caps pki`: keys made by their owner, certificates, cards and kits. None of it needs a network."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caps.basics.later import Later
from caps.cli.kit import command, group
from caps.cli.output import Output, facts

if TYPE_CHECKING:
    from caps.trust import home as party
else:
    party = Later("caps.trust.home")

Home = Annotated[Path, typer.Argument(help="The party's home, CAPS_HOME.", file_okay=False)]
AuthorityDir = Annotated[Path, typer.Argument(help="The authority's directory.", file_okay=False)]
Role = Annotated[str, typer.Option("--role", help="mpc-server, holder or coordinator.")]
Name = Annotated[str, typer.Option("--name", help="The party's name; servers are called S1, S2 and so on.")]
Hosts = Annotated[list[str], typer.Option("--host", help="A host name or address of the party; repeat for more.")]


PIN_DIGITS = 64


def _now() -> datetime:
    return datetime.now(UTC)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    pki = group(app, "pki", "Certificates: authority, requests, approvals, cards and kits.")

    @command(pki, "init")
    def init(
        out: Output,
        directory: AuthorityDir,
        name: Annotated[str, typer.Option("--name", help="The authority's name.")],
        days: Annotated[int | None, typer.Option("--days", min=1, help="Days until it expires, else 3650.")] = None,
    ) -> None:
        """Create an authority. Its key stays in DIRECTORY; authority.pem goes to all parties."""
        authority = party.create_authority(directory, name, now=_now(), days=days or party.AUTHORITY_DAYS)
        found = {"authority": str(directory / party.AUTHORITY), **party.names_of(authority.certificate).to_json()}
        out.show(found, facts({key: found[key] for key in ("authority", "subject", "pin")}))

    @command(pki, "request")
    def request(out: Output, home: Home, role: Role, name: Name, host: Hosts) -> None:
        """At the party: make its keys in HOME and a request to send to the authority. The keys never leave HOME."""
        names = party.request_party(home, role, name, host)
        path = home / party.REQUEST
        out.show({"request": str(path), **names.to_json()}, facts({"request": path, **names.to_json()}))
        out.note(f"Send {path} to the authority, and tell it the pin by another channel, for example by telephone.")

    @command(pki, "approve")
    def approve(
        out: Output,
        authority: AuthorityDir,
        request: Annotated[Path, typer.Argument(help="The party's request.", exists=True, dir_okay=False)],
        role: Role,
        name: Name,
        host: Hosts,
        days: Annotated[int | None, typer.Option("--days", min=1, help="Days until it expires, else 365.")] = None,
        to: Annotated[Path | None, typer.Option("--out", help="Where to write; by default beside the request.")] = None,
    ) -> None:
        """At the authority: certify a request for exactly the role, name and hosts you state. Compare the pin first."""
        asked = party.read_request(request)
        names = party.names_of(asked)
        if not out.as_json:
            out.screen.print(facts(names.to_json(), title="The request asks for"))
        issuer = party.read_authority(authority)
        issued = party.approve_request(issuer, asked, role, name, host, now=_now(), days=days or party.PARTY_DAYS)
        path = to or request.with_name(f"{role}-{name}.pem")
        party.write_certificate(path, issued)
        until = issued.not_valid_after_utc.isoformat()
        out.show(
            {"certificate": str(path), "until": until, **names.to_json()},
            facts({"certificate": path, "until": until}, title="Approved"),
        )
        out.note(f"Send {path} and {authority / party.AUTHORITY} to the party.")

    @command(pki, "install")
    def install(
        out: Output,
        home: Home,
        certificate: Annotated[Path, typer.Argument(help="The issued certificate.", exists=True, dir_okay=False)],
        authority: Annotated[Path, typer.Argument(help="The authority's certificate.", exists=True, dir_okay=False)],
    ) -> None:
        """At the party: check that the certificate fits this party's key and request, and install it."""
        names = party.install(home, certificate, authority, now=_now())
        out.show({"home": str(home), **names.to_json()}, facts({"home": home, **names.to_json()}))

    @command(pki, "card")
    def card(
        out: Output,
        home: Home,
        url: Annotated[
            str | None, typer.Option("--url", help="Address of its REST interface, https://host:port.")
        ] = None,
        mesh: Annotated[str | None, typer.Option("--mesh", help="Address for its MPC peers, host:port.")] = None,
        to: Annotated[Path | None, typer.Option("--out", help="Where to write; default: HOME/card.json.")] = None,
    ) -> None:
        """Write the party's public card, for authors of studies."""
        found = party.card(home, url=url, mesh=mesh)
        path = to or home / party.CARD
        found.write(path)
        document = found.to_json()
        out.show(document, facts({"card": path, **document}))

    @command(pki, "package")
    def package(
        out: Output,
        home: Home,
        to: Annotated[Path, typer.Option("--out", help="A new directory, or a file ending in .tar.gz.")],
        with_keys: Annotated[
            bool,
            typer.Option(
                "--with-keys", help="Include private keys and tokens; only to move between your own machines."
            ),
        ] = False,
    ) -> None:
        """Pack the party's kit: certificate, authority, card, a server's policy, and instructions."""
        from caps.study.policy import policy_yaml

        files = party.package(home, to, now=_now(), policy=policy_yaml(), with_keys=with_keys)
        out.show({"kit": str(to), "files": files, "private": with_keys}, facts({"kit": to, "files": files}))
        if with_keys:
            out.note("This kit contains private keys. Keep it secret, and erase it after you have moved it.")

    @command(pki, "revoke")
    def revoke(
        out: Output,
        policy: Annotated[
            Path, typer.Argument(help="Your own party's policy.yaml, or its home; the file is made if there is none.")
        ],
        key: Annotated[str, typer.Argument(help="A certificate, a card, or a pin of 64 hexadecimal digits.")],
        reason: Annotated[str | None, typer.Option("--reason", help="Why, for your own record.")] = None,
    ) -> None:
        """At any party: deny a key from now on. A running service follows by itself; every party denies for itself."""
        from caps.trust.denials import read_denials, revoke

        path = policy / party.POLICY if policy.is_dir() else policy
        pin = key if len(key) == PIN_DIGITS and not Path(key).exists() else str(party.describe(Path(key))["pin"])
        new = revoke(path, pin, since=_now().strftime("%Y-%m-%dT%H:%M:%SZ"), reason=reason)
        document = {"policy": str(path), "pin": pin, "new": new, "denied": len(read_denials(path))}
        out.show(document, facts(document))
        out.note("Tell the other parties: each of them must deny the key too. Nobody is told by this command.")

    @command(pki, "show")
    def show(
        out: Output,
        file: Annotated[Path, typer.Argument(help="A certificate, a request or a card.", exists=True, dir_okay=False)],
    ) -> None:
        """Show the party, expiry and pin of a certificate, a request or a card."""
        found = party.describe(file)
        out.show(found, facts(found))
