"""`caps schema`: describe a table by its header and public lists, check a description, take one from a code book."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group
from caps.cli.output import Output, listing, plain

if TYPE_CHECKING:
    from caps.data.schema.templates import Draft

To = Annotated[Path, typer.Option("--out", "-o", help="Where to write the schema.")]
_SCHEMA = Path("schema.json")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    schema = group(app, "schema", "Schemas: which values the columns of a table may have.")

    @command(schema, "new")
    def new(
        out: Output,
        table: Annotated[
            Path,
            typer.Argument(
                metavar="TABLE", help="A CSV, of which only the first line is read.", exists=True, dir_okay=False
            ),
        ],
        to: To = _SCHEMA,
        column: Annotated[
            list[str] | None,
            typer.Option("--column", help="NAME=TEMPLATE or NAME=TEMPLATE:DETAIL; repeat it. `caps schema templates`"),
        ] = None,
        suggested: Annotated[
            bool, typer.Option("--suggested", help="Take what a column's name suggests; do not ask.")
        ] = False,
        encoding: Annotated[str | None, typer.Option("--encoding", help="Of the CSV, if it is not UTF-8.")] = None,
    ) -> None:
        """Write a schema from a table's header and public templates, in a dialogue. No value is ever looked at."""
        from caps.data.schema.files import read_header
        from caps.data.schema.templates import Draft, apply

        names = _usable(read_header(table, encoding=encoding))
        chosen = _chosen(column or [], names)
        draft = Draft()
        chosen |= _asked(out, [name for name in names if name not in chosen], suggested=suggested)
        for name in names:
            apply(draft, name, chosen[name])
        _write(out, draft, to)

    @command(schema, "templates")
    def templates(out: Output) -> None:
        """List the templates by which columns can be described."""
        from caps.data.schema.templates import TEMPLATES

        items = [{"template": name, "describes": one.summary} for name, one in TEMPLATES.items()]
        out.show({"templates": items}, listing(items, ("template", "describes")))

    @command(schema, "from-codebook")
    def from_codebook(
        out: Output,
        book: Annotated[
            Path,
            typer.Argument(
                metavar="CODEBOOK", help="A CSV of codes, a Table Schema or a JSON Schema.", exists=True, dir_okay=False
            ),
        ],
        to: To = _SCHEMA,
        most: Annotated[
            int, typer.Option("--most", min=1, max=100_000, help="Codes of a column; the rest is `other`.")
        ] = 100,
    ) -> None:
        """Write a schema from a code book: a CSV of columns and codes, a Frictionless Table Schema or a JSON Schema."""
        from caps.data.schema.codebooks import from_codebook as drafted

        _write(out, drafted(book, most=most), to)

    @command(schema, "check")
    def check(
        out: Output,
        file: Annotated[Path, typer.Argument(help="The schema, JSON or YAML.", exists=True, dir_okay=False)],
    ) -> None:
        """Say what is wrong with a schema, and where; or what its columns are. Exit code 1 if it is not valid."""
        from caps.cli.study import read_schema
        from caps.errors import DomainError

        try:
            found = read_schema(file)
        except DomainError as error:
            out.show({"valid": False, "detail": str(error)}, "The schema is not valid", f"{file}: {error}")
            raise Stop(Exit.REFUSED) from None
        columns = [
            {"column": one.name, "kind": one.kind, "categories": one.size, "missing": one.missing}
            for one in found.columns
        ]
        words = f"The schema is valid: {len(columns)} columns."
        out.show(
            {"valid": True, "columns": columns}, words, listing(columns, ("column", "kind", "categories", "missing"))
        )


def _usable(names: list[str]) -> list[str]:
    from caps.data.schema import Limits
    from caps.errors import DomainError

    if len(names) > Limits().columns:
        raise DomainError(f"the header has more than {Limits().columns} columns")
    if not all(names) or len(set(names)) != len(names):
        raise DomainError("the header has columns without a name, or with the same name")
    return names


def _chosen(options: list[str], names: list[str]) -> dict[str, str]:
    """What the command line says. A name may contain `=`: the last one counts, unless only an earlier one fits."""
    from caps.errors import DomainError

    found = {}
    for option in options:
        parts = [option[:at] for at, letter in enumerate(option) if letter == "="]
        name = next((part for part in parts if part in names), None)
        if name is None:
            raise DomainError(f"{option}: must be NAME=TEMPLATE, with a name of the header")
        found[name] = option[len(name) + 1 :]
    return found


def _asked(out: Output, names: list[str], *, suggested: bool) -> dict[str, str]:
    """A template for each of these columns: suggested by its name, or as somebody says."""
    from caps.data.schema.templates import TEMPLATES, Draft, apply, suggestion
    from caps.errors import DomainError

    hints = {name: suggestion(name) for name in names}
    ready = {name: hint for name, hint in hints.items() if hint is not None and _complete(hint)}
    if suggested or out.as_json or not sys.stdin.isatty():
        open_ = [name for name in names if not suggested or name not in ready]
        if open_:
            words = ", ".join(f"{name}={hints[name] or '?'}" for name in open_[:50])
            raise DomainError(f"say what these columns are, with --column: {words}; `caps schema templates` lists all")
        return ready
    found: dict[str, str] = {}
    for name in names:
        while name not in found:
            hint = f" [{ready[name]}]" if name in ready else ""
            sys.stdout.write(f"{plain(name[:60])}{hint}: ")
            sys.stdout.flush()
            line = sys.stdin.readline()
            if not line:
                raise Stop(Exit.REFUSED)
            answer = line.strip() or ready.get(name, "")
            try:
                if answer in ("", "?"):
                    out.show(
                        {}, listing([{"t": key, "what": one.summary} for key, one in TEMPLATES.items()], ("t", "what"))
                    )
                    continue
                apply(Draft(), name, answer)
            except DomainError as error:
                out.note(str(error))
                continue
            found[name] = answer
    return found


def _complete(template: str) -> bool:
    """Whether a template needs nothing more to be said."""
    from caps.data.schema.templates import TEMPLATES
    from caps.errors import DomainError

    try:
        TEMPLATES[template].make("")
    except DomainError:
        return False
    return True


def _write(out: Output, draft: "Draft", to: Path) -> None:
    """Write a schema that is valid, and say what is not in it."""
    from caps.cli.output import as_json
    from caps.data.schema import Schema

    document: dict[str, Any] = draft.to_json()
    schema = Schema.from_json(document)
    with to.open("x", encoding="utf-8") as file:
        file.write(as_json(document, indent=2) + "\n")
    words = [f"{to} is written: {len(schema.columns)} columns. Read it, then: caps study new {to}"]
    words += [f"Left out: {name}: {why}" for name, why in draft.left_out.items()]
    out.show({"schema": str(to), "columns": len(schema.columns), "left_out": draft.left_out}, *words)
