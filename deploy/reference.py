"""Writes docs/reference.md from the models: `python -m deploy.reference [--check] FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import typer.main
import yaml

import services.coordinator.settings
import services.holder.settings
import services.mpc_server.settings
from caps.cli import app
from caps.cli.reference import main as write_page
from caps.service import news, site
from caps.service.environment import Variable
from caps.study import Policy
from caps.trust.denials import Denial
from services.holder.sources import Declared

_HEAD = """\
# Reference: policy.yaml, sources.toml and the environment

Generated from the models by `make docs`; `make check` compares. [cli.md](cli.md) has the commands,
[study.md](study.md) the manifest, [operations.md](operations.md) how to work with all of it.

## policy.yaml

The rules of an MPC server, in its home (`CAPS_HOME`). `caps policy new HOME` writes a commented file,
`caps policy check HOME` checks it. It is read when the service starts; only `denied` is followed while it runs. Unknown
members are refused. The home of a holder or a coordinator may have a policy.yaml with `denied` alone.
"""
_DENIED = """\
Each entry of `denied` has these members; `caps pki revoke` writes them:
"""
_SOURCES = """\
## sources.toml

The tables that a holder can read where they are, in its home (`CAPS_HOME`): one section for each, whose name owners
give to `caps table put --source` ([holder.md](holder.md#tables-that-stay-where-they-are)). It is read whenever a source
is asked for. A section has one of `url`, `url_env`, `url_file`, with a `table`, or a `file`. Unknown members are
refused.
"""
_SERVICES = """\
## Environment of services

A variable without a default is required. Only these are read; whatever else a study may do is in policy.yaml.
"""
_COMMAND = """\
## Environment of the `caps` command

An option on the command line takes precedence.
"""
_OTHER = """\
## Environment of containers, tests and benchmarks

Compose reads these from the environment or from `.env` beside docker-compose.yml.
"""
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
OTHERS = (
    Variable("CAPS_IMAGE", "kits: the image of the service", "caps-holder, caps-mpc-server, caps-coordinator"),
    Variable("CAPS_PUBLISH", "kits: address and port of the host for REST", "127.0.0.1:8443; servers 0.0.0.0:8443"),
    Variable("CAPS_PUBLISH_MESH", "server kit: address and port of the host for the other servers", "0.0.0.0:9443"),
    Variable("CAPS_IMAGES", "docker-compose.yml: prefix of image names", "caps"),
    Variable("CAPS_BASE", "docker-compose.yml: base image", "python:3.12-slim, by its digest"),
    Variable("CAPS_BUILDER", "docker-compose.yml: image in which wheels are installed", "as CAPS_BASE"),
    Variable("CAPS_REQUESTS", "docker-compose.yml: folder with requests for the authority", "./requests"),
    Variable("CAPS_OUTSIDE", "deploy/compose/guest.yml: the network of guests", "caps_outside"),
    Variable("CAPS_SERVERS", "deploy/compose/provision.py: how many MPC servers there are", "3"),
    Variable("CAPS_COMPOSE_CACHE", "make test-compose: folder for wheels", "/var/cache/caps-compose"),
    Variable("CAPS_TEST_EXAMPLES", "tests: inputs drawn for each protocol in each scheme", "6"),
    Variable("CAPS_TEST_DRAW", "tests: chooses cases of large families, as `make test` prints it", "all cases"),
    Variable("CAPS_PICTURES", "tests of pages: folder for pictures of them", "none are taken"),
    Variable("CAPS_TEST_POSTGRES", "tests: URL of a PostgreSQL to use", "one is started, or its tests are skipped"),
    Variable("CAPS_BENCH_RESULTS", "benchmarks: folder for results that are kept", "bench/results"),
    Variable("CAPS_BENCH_DOCS", "benchmarks: folder for the page and its pictures", "docs"),
    Variable("CAPS_DATA", "benchmarks: folder with the public tables", "they are fetched from their sources"),
)


def render() -> str:
    """The whole page."""
    parts = [_HEAD, _members(Policy), _DENIED, _members(Denial), _SOURCES, _members(Declared), _SERVICES]
    for title, variables in (
        ("Every service", site.VARIABLES),
        ("News, in every service", news.VARIABLES),
        ("Holder", services.holder.settings.VARIABLES),
        ("MPC server", services.mpc_server.settings.VARIABLES),
        ("Coordinator", services.coordinator.settings.VARIABLES),
    ):
        parts += [f"### {title}\n", _variables(variables)]
    parts += [_COMMAND, _variables(_of_command()), _OTHER, _variables(OTHERS)]
    return "\n".join(parts)


def _members(model: type[Any]) -> str:
    schema = model.model_json_schema()
    required = schema.get("required", [])
    lines = ["| member | what | values | default |", "|---|---|---|---|"]
    for name, part in schema["properties"].items():
        default = "required" if name in required else f"`{_written(part.get('default', {}))}`"
        lines.append(f"| `{name}` | {_cell(part.get('description', ''))} | {_cell(_values(part))} | {default} |")
    return "\n".join(lines) + "\n"


def _values(part: dict[str, Any]) -> str:
    """What a member may be, in words."""
    if "anyOf" in part:
        return " or ".join(_values(one) for one in part["anyOf"])
    if "enum" in part:
        return ", ".join(f"`{one}`" for one in part["enum"])
    match part.get("type"):
        case "array":
            return f"list: {_values(part['items'])}"
        case "object":
            (member,) = part["patternProperties"].values()
            return f"names, each with a {_values(member)}"
        case "integer" | "number" as kind:
            told = [f"{words} {part[bound]:g}" for bound, words in _BOUNDS.items() if bound in part]
            return ", ".join(["whole number" if kind == "integer" else "number", *told])
        case "string":
            return "text"
        case "boolean":
            return "`true`, `false`"
        case "null":
            return "`null`"
    return "see below"


def _written(value: object) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=1000)).removesuffix("...\n").strip()


def _variables(variables: Iterable[Variable]) -> str:
    lines = ["| variable | what | default |", "|---|---|---|"]
    lines += [f"| `{one.name}` | {_cell(one.meaning)} | {_cell(one.default)} |" for one in variables]
    return "\n".join(lines) + "\n"


def _of_command() -> list[Variable]:
    found = {one.name: one for one in _options(typer.main.get_command(app))}
    return [found[name] for name in sorted(found)]


def _options(command: Any) -> Iterator[Variable]:
    for option in command.params:
        if option.envvar:
            yield Variable(str(option.envvar), str(option.help or ""), "none")
    for one in getattr(command, "commands", {}).values():
        yield from _options(one)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


main = partial(write_page, render=render)
"""Write the page, or with --check report whether it is up to date."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
