"""`caps study`: write, check and plan a study in files; propose it, approve it, follow it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.cli.connection import Given
from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group, matching
from caps.cli.output import Output, as_document, facts, listing, short, views

if TYPE_CHECKING:
    from caps.client import Client
    from caps.study import Manifest
    from caps.wire.coordinator import ParticipationView

File = Annotated[Path, typer.Argument(help="The study's manifest, YAML or JSON.", exists=True, dir_okay=False)]
SIMULATED_PERSONS = 10_000
Addressed = Annotated[
    str,
    typer.Argument(
        metavar="STUDY", help="The study's id, or its beginning; SITE/STUDY or URL/STUDY at another service."
    ),
]
StudyId = Annotated[str, typer.Argument(metavar="STUDY", help="The study's id, or its beginning.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    study = group(app, "study", "Studies: the agreements of all parties.")
    _add_files(study)
    _add_services(study)


def read_manifest(path: Path) -> "Manifest":
    """The manifest in a file. Raises DomainError with every error and its line."""
    from caps.study.authoring import load

    return load(path.read_text(encoding="utf-8", errors="replace"), str(path))


def _add_files(study: typer.Typer) -> None:
    @command(study, "new")
    def new(
        out: Output,
        schema: Annotated[Path, typer.Argument(help="The schema of the joint table.", exists=True, dir_okay=False)],
        to: Annotated[Path, typer.Option("--out", "-o", help="Where to write the manifest.")] = Path("study.yaml"),
        cards: Annotated[
            Path | None, typer.Option("--cards", help="A folder with the parties' cards.", exists=True, file_okay=False)
        ] = None,
        title: Annotated[str, typer.Option("--title", help="The study's title.")] = "",
        population: Annotated[str, typer.Option("--population", help="The group of persons it is about.")] = "",
        holder: Annotated[
            list[str] | None,
            typer.Option("--holder", help="A data owner whose card is missing; repeat for more."),
        ] = None,
        algorithm: Annotated[str, typer.Option("--algorithm", help="aim, mwem, mst, swift or gaussian.")] = "aim",
        scheme: Annotated[
            str, typer.Option("--scheme", help="rep3, rep3-active or rep4: how many servers, and what they may do.")
        ] = "rep3",
    ) -> None:
        """Write a commented manifest as a starting point, from a schema and the parties' cards."""
        from caps.study.authoring import template
        from caps.trust.cards import read_bundle

        text = template(
            read_schema(schema),
            read_bundle(cards) if cards is not None else [],
            title=title,
            population=population,
            holders=holder or [],
            algorithm=algorithm,
            scheme=scheme,
        )
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
        out.show({"manifest": str(to)}, f"{to} is written. Fill in what is in <brackets>, then: caps study check {to}")

    @command(study, "check")
    def check(out: Output, file: File) -> None:
        """List every error in a manifest, with its line. Exit code 1 if there is one."""
        from caps.study.authoring import examined

        remarks, manifest = examined(file.read_text(encoding="utf-8", errors="replace"))
        errors = sum(remark.severity == "error" for remark in remarks)
        identity = None if manifest is None else manifest.study_id
        words = [remark.render(str(file)) for remark in remarks]
        words.append(f"{errors} errors, {len(remarks) - errors} warnings" + (f"; study {identity}" if identity else ""))
        out.show({"valid": not errors, "study": identity, "findings": [asdict(one) for one in remarks]}, *words)
        if errors:
            raise Stop(Exit.REFUSED)

    @command(study, "plan")
    def plan(
        out: Output,
        file: File,
        persons: Annotated[
            int | None, typer.Option("--persons", min=1, help="Show errors relative to so many persons.")
        ] = None,
        error: Annotated[
            float | None,
            typer.Option(
                "--error",
                help="Find the epsilon at which only so large a part of --persons, as 0.05, is in a wrong cell.",
            ),
        ] = None,
        simulate: Annotated[
            bool,
            typer.Option(
                "--simulate",
                help="Also run the algorithm, in the clear, on so many invented persons; 10,000 unless --persons.",
            ),
        ] = False,
        full: Annotated[bool, typer.Option("--full", help="Show every figure: noise, traffic, who sees what.")] = False,
    ) -> None:
        """Show what a study will do and cost before anybody agrees: guarantee, errors, time, memory, traffic."""
        from caps.cli.plans import plan_views, wished_words
        from caps.errors import DomainError
        from caps.study.planning import declared_costs, epsilon_for, plan_study

        manifest = read_manifest(file)
        if error is not None:
            if persons is None:
                raise DomainError("--error is a part of all persons: say of how many, with --persons")
            found = epsilon_for(manifest, error, persons)
            wished = {"persons": persons, "error": error, "found": None if found is None else asdict(found)}
            out.show({"wished": wished}, *wished_words(error, persons, found))
            return
        planned = plan_study(manifest, declared_costs(manifest))
        document = planned.to_json()
        errors = None if persons is None else planned.relative_errors(persons)
        if errors is not None and persons is not None:
            marginals = [asdict(one) for one in errors]
            document["relative_errors"] = {"persons": persons, "marginals": marginals}
            document["advice"] = planned.advice(persons)
        simulation = None
        if simulate:
            from caps.study.simulation import simulate as simulated

            simulation = simulated(manifest, persons or manifest.privacy.rows or SIMULATED_PERSONS)
            document["simulation"] = asdict(simulation)
        out.show(document, *plan_views(planned, errors, simulation, persons=persons, full=full))


def read_schema(path: Path) -> Any:
    """The schema in a YAML or JSON file. Raises DomainError."""
    import yaml

    from caps.data.schema import Schema
    from caps.errors import DomainError

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        raise DomainError(f"{path}: neither YAML nor JSON") from None
    if not isinstance(value, Mapping):
        raise DomainError(f"{path}: a schema must be an object with `columns`")
    return Schema.from_json(value)


def _add_services(study: typer.Typer) -> None:
    @command(study, "propose", site="coordinator")
    def propose(out: Output, client: "Client", file: File) -> None:
        """Operator: propose a study to its coordinator, which passes it to the servers."""
        out.tell(client.propose(read_manifest(file)))

    @command(study, "approve", site=lambda asked: "server" if asked["server"] else "holder")
    def approve(
        out: Output,
        client: "Client",
        given: Given,
        study: Addressed,
        coordinator: Annotated[
            str | None,
            typer.Option("--coordinator", help="Let the holder fetch the study from this coordinator first."),
        ] = None,
        server: Annotated[bool, typer.Option("--server", help="You are the operator of an MPC server.")] = False,
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="Do not ask: for scripts, after somebody has read it.")
        ] = False,
    ) -> None:
        """Owner: read what a study asks of you, then let your holder sign it. Operators of MPC servers: likewise.

        STUDY is an id, or its beginning, at your own holder; SITE/STUDY or https://host:port/STUDY is one at another
        service. At a coordinator's address, your holder fetches the study from there.
        """
        from caps.cli.approving import Approving

        with Approving(out, client, given, study, coordinator=coordinator, server=server) as found:
            if not yes:
                found.ask()
            out.show(as_document(found.approve()), f"The study is approved here: {found.study}")
            tell_warnings(out, found.warnings)

    @command(study, "decline", site=lambda asked: "server" if asked["server"] else "holder")
    def decline(
        out: Output,
        client: "Client",
        given: Given,
        study: Addressed,
        reason: Annotated[
            str, typer.Option("--reason", help="Why, in a line, for the coordinator's operators and auditors.")
        ],
        coordinator: Annotated[
            str | None,
            typer.Option("--coordinator", help="Let the holder fetch the study from this coordinator first."),
        ] = None,
        server: Annotated[bool, typer.Option("--server", help="You are the operator of an MPC server.")] = False,
    ) -> None:
        """Owner: do not take part in a study, and say why. Operators of MPC servers: likewise.

        It is signed, and the coordinator shows it to its operators. Approving the study takes it back; an approval
        cannot be taken back.
        """
        from caps.cli.approving import Approving

        with Approving(out, client, given, study, coordinator=coordinator, server=server) as found:
            document = as_document(found.decline(reason))
            out.show(
                document,
                f"The study is declined here: {found.study}",
                f"To take it back: caps study approve {short(found.study)}",
            )

    @command(study, "fetch", site="holder")
    def fetch(
        out: Output,
        client: "Client",
        study: Annotated[str, typer.Argument(metavar="STUDY", help="The study's full id.")],
        coordinator: Annotated[str, typer.Option("--coordinator", help="The coordinator's URL.")],
    ) -> None:
        """Operator: let your holder fetch a study from its coordinator."""
        found = client.fetch(coordinator, study)
        out.tell(found)
        tell_warnings(out, found.key_warnings)

    @command(study, "list", site="coordinator")
    def listed(out: Output, client: "Client") -> None:
        """List a service's studies with their states."""
        items = [as_document(one) for one in client.studies()]
        rows = [{**one, "study": short(one["study"]), **_open_points(one)} for one in items]
        columns = ["study", "title", "state", "waits_for", "declined_by"]
        for column in ("waits_for", "declined_by"):
            if not any(one[column] for one in rows):
                columns.remove(column)
        if not any(one.get("title") for one in rows):  # at an MPC server
            columns.remove("title")
        out.show({"studies": items}, listing(rows, columns) if rows else "There is no study here yet.")

    @command(study, "status", site="coordinator")
    def status(out: Output, client: "Client", study: StudyId) -> None:
        """Show a study's progress: who has approved, who has contributed, who is missing."""
        identity = matching(study, client.studies, "study")
        document = as_document(client.study(identity))
        participation = _participation(client, identity)
        if participation is not None:
            document["participation"] = as_document(participation)
        out.show(document, *_progress(document))

    @command(study, "refresh", site="coordinator")
    def refresh(out: Output, client: "Client", study: StudyId) -> None:
        """Operator: let the coordinator ask the servers again."""
        out.tell(client.refresh(matching(study, client.studies, "study")))

    @command(study, "show", site="coordinator")
    def show(
        out: Output,
        client: "Client",
        study: Addressed,
        to: Annotated[Path | None, typer.Option("--out", "-o", help="Write the canonical JSON here.")] = None,
    ) -> None:
        """Show a study's manifest, after checking that its digest is the study's id. Every service has it."""
        manifest = client.manifest(matching(study, client.studies, "study"))
        if to is not None:
            to.write_bytes(manifest.canonical_bytes())
        document = manifest.to_json()
        out.show(document, *views(document))


def _progress(document: Mapping[str, Any]) -> Iterator[Any]:
    """Who has done what, and what is missing."""
    essentials = {name: document[name] for name in ("study", "title", "state") if document.get(name)}
    yield facts(essentials | ({"waits_for": document["missing"]} if document.get("missing") else {}))
    if servers := document.get("servers"):
        rows = [{**one, "why": _refused(one) or one["objections"] or one["reason"]} for one in servers]
        yield ""
        yield listing(rows, ("server", "state", "why"))
    parts = {one["holder"]: one for one in document.get("participation", {}).get("holders", ())}
    if holders := document.get("holders"):
        rows = [
            {**one, "held_by": parts.get(one["holder"], {}).get("held_by"), "why": _refused(one)} for one in holders
        ]
        columns = ["holder", "approved", *(("held_by",) if parts else ()), "why"]
        yield ""
        yield listing(rows, columns if any(one["why"] for one in rows) else columns[:-1])
    for name, why in document.get("participation", {}).get("unreached", {}).items():
        yield f"{name} could not be asked: {why}"
    if document.get("runs"):
        yield ""
        yield facts({"runs": [short(one) for one in document["runs"]]})
    if not servers:
        yield from views({name: value for name, value in document.items() if name not in essentials})


def _refused(party: Mapping[str, Any]) -> str | None:
    """That somebody declined, and why, if this caller may know."""
    declined = party.get("declined")
    return declined and (f"declined: {declined['reason']}" if declined["reason"] else "declined")


def _open_points(study: Mapping[str, Any]) -> dict[str, Any]:
    """Who has yet to approve a study, and who declined it."""
    parties = [*study.get("servers", ()), *study.get("holders", ())]
    no = [one.get("server") or one["holder"] for one in parties if one.get("declined")]
    return {"waits_for": [one for one in study.get("missing", ()) if one not in no], "declined_by": no}


def tell_warnings(out: Output, warnings: Sequence[str]) -> None:
    """Say what the owner should look at before going on."""
    for words in warnings:
        out.note(f"WARNING: {words}")


def _participation(client: "Client", study: str) -> "ParticipationView | None":
    """Who has contributed; None if the service does not offer it or the token does not allow it."""
    from caps.client import ProblemError

    try:
        return client.participation(study)
    except ProblemError as error:
        if error.status in {403, 404}:
            return None
        raise
