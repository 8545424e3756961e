"""Writes docs/cli.md from the commands: `python -m caps.cli.reference [--check] FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from caps.cli import app
from caps.cli.exits import MEANINGS
from caps.cli.kit import CONNECTION

_HEAD = """\
# The `caps` command

Generated from the commands by `python -m caps.cli.reference docs/cli.md`; a test fails when it is out of date.

Every command writes a view for people, which fits 80 columns, or with `--json` one JSON document to stdout and nothing
else: that of the route it calls, member by member. Errors go to stderr: the problem's title, detail and hint, or with
`--json` a JSON document with the member `exit`. Colour and bars are for terminals, and `NO_COLOR` turns colour off.
Wherever an id is asked for, its beginning is enough; if it fits several, they are listed.

`caps run watch` writes a line for each round, also into a pipe: the part of the budget that is spent, the time since
the run began, a guess of the time left, and what was measured.

![caps run watch in a terminal](pictures/watch.svg)

## Exit codes

| code | meaning |
|---|---|
{codes}

## Connection

Commands that talk to a service take these options. Without `--url` and `--site`, they use the site in the configuration
that is named after the service: `coordinator`, `holder` or `server`.

| option | environment | meaning |
|---|---|---|
{connection}

```toml
# ~/.config/caps/config.toml
[sites.coordinator]
url = "https://coordinator.example:8443"
token_file = "coordinator.token"      # relative to this file
authority = "authority.pem"
```

The same from Python, using the same routes ([services.md](services.md)):

<!-- skip: this coordinator does not exist; README has commands that run -->
```python
from pathlib import Path
from caps.client import Client

with Client.from_site("coordinator") as client:
    client.download(release, Path("synthetic.parquet"))
```

[analyst.md](analyst.md) has more of it.

## Commands
"""


def render() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    commands = list(walk(root, ("caps",)))
    connection = {
        option.name: option
        for _, command in commands
        for option in command.params
        if getattr(option, "rich_help_panel", None) == CONNECTION
    }
    codes = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items())
    options = "\n".join(
        f"| `{option.opts[0]}` | `{option.envvar}` | {_cell(option.help)} |" for option in connection.values()
    )
    parts = [_HEAD.format(codes=codes, connection=options).strip()]
    parts += ["\n".join(_section(" ".join(path), command)) for path, command in commands]
    return "\n\n".join(parts) + "\n"


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with its path."""
    for name, one in getattr(command, "commands", {}).items():
        if hasattr(one, "commands"):
            yield from walk(one, (*path, name))
        else:
            yield (*path, name), one


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [
        one
        for one in command.params
        if one.param_type_name == "option"
        and getattr(one, "rich_help_panel", None) != CONNECTION
        and one.name not in {"help", "json_"}
    ]
    online = any(getattr(one, "rich_help_panel", None) == CONNECTION for one in command.params)
    usage = " ".join(
        [
            name,
            *(_metavar(one) for one in arguments),
            *(["[OPTIONS]"] if options else []),
            *(["[CONNECTION]"] if online else []),
        ]
    )
    yield f"### {name}\n"
    yield f"`{usage}`\n"
    yield " ".join((command.help or "").split())
    if arguments or options:
        yield "\n| parameter | meaning |\n|---|---|"
        for one in arguments:
            yield f"| {_metavar(one)} | {_cell(one.help)} |"
        for one in options:
            names = ", ".join(f"`{opt}`" for opt in [*one.opts, *one.secondary_opts])
            yield f"| {names}{' (required)' if one.required else ''} | {_cell(one.help)}{_default(one)} |"


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return str(name if argument.required else f"[{name}]")


def _default(option: Any) -> str:
    value = option.default
    if value in (None, False, True) or option.required or isinstance(value, list | tuple) or callable(value):
        return ""
    return f" Default: {value}."


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def main(arguments: list[str], render: Callable[[], str] = render) -> int:
    """Write a page, or with --check report whether it is up to date."""
    check = "--check" in arguments
    (path,) = (Path(argument) for argument in arguments if argument != "--check")
    page = render()
    if not check:
        path.write_text(page, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != page:
        sys.stderr.write(f"{path} is out of date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
