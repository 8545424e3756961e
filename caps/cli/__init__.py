"""The `caps` command: for data owners, operators, analysts and auditors. It uses the public REST interfaces only."""

import sys
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from caps.cli import audit, doctor, federation, owner, pki, policy, release, run, schema, study, token
from caps.cli.exits import MEANINGS, Exit

__all__ = ["Exit", "app", "main"]

_EPILOG = "Exit codes: " + "; ".join(f"{int(code)} {meaning}" for code, meaning in MEANINGS.items()) + "."

app = typer.Typer(
    name="caps",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Private synthetic data from data that may not leave its owners.",
)


def _version(asked: bool) -> None:
    if asked:
        from caps import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


for _part in (federation, pki, policy, token, schema, study, owner, run, release, audit, doctor):
    _part.add_to(app)


def _unforeseen(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print where an unexpected error occurred, but no values, because they may be data."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = None if trace is None else trace.tb_frame.f_code
    where = "" if code is None or trace is None else f" at {Path(code.co_filename).name}:{trace.tb_lineno}"
    sys.stderr.write(f"caps failed with an unexpected {kind.__name__}{where}; please report it.\n")


def narrow(asked: str) -> None:
    """Leave only the group or command of this name, if there is one: to build all takes longer than most commands."""
    groups = [one for one in app.registered_groups if one.name == asked]
    commands = [one for one in app.registered_commands if one.name == asked]
    if groups or commands:
        app.registered_groups, app.registered_commands = groups, commands


def main() -> None:
    """The entry point."""
    sys.excepthook = _unforeseen
    if len(sys.argv) > 1:
        narrow(sys.argv[1])
    app(prog_name="caps")
