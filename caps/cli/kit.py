"""How commands are made: each declares its own parameters; output, client and exit codes come from here."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.cli.connection import Given
from caps.cli.exits import Exit, Stop, failure_of
from caps.cli.output import Output
from caps.errors import CapsError, DomainError

if TYPE_CHECKING:
    from typing import TypeGuard

    from pydantic import BaseModel, ValidationError

CONNECTION = "Connection"
Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout and nothing else.")]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="CAPS_URL", help="The service, https://host:port.", rich_help_panel=CONNECTION),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="CAPS_TOKEN",
        help="Your bearer token. Other users of this machine can see a command line; prefer a file.",
        rich_help_panel=CONNECTION,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", envvar="CAPS_TOKEN_FILE", help="A file with your bearer token.", rich_help_panel=CONNECTION
    ),
]
AuthorityFile = Annotated[
    Path | None,
    typer.Option(
        "--authority",
        envvar="CAPS_AUTHORITY",
        help="PEM file of the federation's authority.",
        rich_help_panel=CONNECTION,
    ),
]
SiteName = Annotated[
    str | None,
    typer.Option("--site", envvar="CAPS_SITE", help="A site in the configuration.", rich_help_panel=CONNECTION),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="CAPS_CONFIG",
        help="The configuration file, ~/.config/caps/config.toml by default.",
        rich_help_panel=CONNECTION,
    ),
]
_GIVEN: Mapping[str, Any] = {
    "url": Url,
    "token": Token,
    "token_file": TokenFile,
    "authority": AuthorityFile,
    "site": SiteName,
    "config": Config,
}

_PASSED = frozenset({"out", "client", "given"})
Function = Callable[..., None]
_CANDIDATES = 10
"""The most ids that are listed if a prefix fits several."""
SiteChoice = str | Callable[[Mapping[str, Any]], str]


def command(group: typer.Typer, name: str, *, site: SiteChoice | None = None) -> Callable[[Function], Function]:
    """Register a function as a command; its first parameters are `out`, and `client` if it talks to a site.

    `given`, if it asks for that, is what the command line says of the connection. A study may be named with its
    service, as `https://host:port/STUDY` or `SITE/STUDY`. Its other parameters are the command's own. `--json` is
    added, and the connection options if there is a client. Modules with commands must not postpone annotations, because
    typer reads them.
    """

    def register(function: Function) -> Function:
        own = [one for one in inspect.signature(function).parameters.values() if one.name not in _PASSED]
        wants_given = "given" in inspect.signature(function).parameters
        added = {**(_GIVEN if site is not None else {}), "json_": Json}
        defaults = {key: False if key == "json_" else None for key in added}
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            *(one.replace(kind=keyword) for one in own),
            *(inspect.Parameter(key, keyword, default=defaults[key], annotation=kind) for key, kind in added.items()),
        ]

        def run(**values: Any) -> None:
            out = Output(values.pop("json_"))
            given = Given(**{key: values.pop(key) for key in _GIVEN}) if site is not None else None
            with _ending(out):
                if given is None or site is None:
                    function(out, **values)
                    return
                target = site if isinstance(site, str) else site(values)
                before = given
                if isinstance(values.get("study"), str):
                    given, values["study"] = given.addressed(values["study"])
                with given.connection(target).client() as client:
                    function(out, client, **({"given": before} if wants_given else {}), **values)

        run.__name__, run.__doc__, run.__annotations__ = function.__name__, function.__doc__, {}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        group.command(name)(run)
        return function

    return register


class _ending:  # noqa: N801  reads as a word where it is used
    """Ends a command with an exit code and a message, not a traceback."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Stop):
            raise typer.Exit(error.code) from None
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(Exit.INTERRUPTED) from None
        if isinstance(error, BrokenPipeError):
            return  # the reader has closed the pipe; typer ends quietly
        if error is not None and _is_expected(error):
            failure = failure_of(error)
            self._out.fail(failure)
            raise typer.Exit(failure.exit) from None


def _is_expected(error: BaseException) -> "TypeGuard[CapsError | OSError | ValidationError]":
    from pydantic import ValidationError

    return isinstance(error, CapsError | OSError | ValidationError)


def group(app: typer.Typer, name: str, summary: str) -> typer.Typer:
    """A group of commands."""
    found = typer.Typer(no_args_is_help=True, help=summary, rich_markup_mode=None)
    app.add_typer(found, name=name)
    return found


def matching(asked: str, known: "Callable[[], Sequence[BaseModel]]", member: str, *, digits: int = 64) -> str:
    """The full id that begins with `asked`. Raises DomainError unless exactly one known id does."""
    if len(asked) == digits:
        return asked
    return matching_id(asked, [str(getattr(item, member)) for item in known()], member)


def matching_id(asked: str, known: Iterable[str], what: str) -> str:
    """The one of these ids that begins with `asked`. Raises DomainError, with the candidates, unless exactly one does.

    what: the noun for such an id, which is also the group of commands that lists them.
    """
    found = sorted({one for one in known if one.startswith(asked)})
    if not found:
        raise DomainError(f"no {what} id begins with {asked}; `caps {what} list` shows the ids")
    if len(found) > 1:
        shown = "".join(f"\n  {one}" for one in found[:_CANDIDATES])
        more = f"\n  and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
        raise DomainError(f"{len(found)} {what} ids begin with {asked}; give more digits of one of these:{shown}{more}")
    return found[0]
