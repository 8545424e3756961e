"""`caps study`: write, check and plan a study in files; propose it, approve it, follow it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caps.cli.exits import Exit, Stop
from caps.cli.kit import command, group, matching
from caps.cli.output import Output, as_document, listing, views

if TYPE_CHECKING:
    from caps.client import Client
    from caps.study import Manifest
    from caps.wire.coordinator import ParticipationView

File = Annotated[Path, typer.Argument(help="The study's manifest, YAML or JSON.", exists=True, dir_okay=False)]
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
        algorithm: Annotated[str, typer.Option("--algorithm", help="aim, mwem, mst or gaussian.")] = "aim",
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
    def plan(out: Output, file: File) -> None:
        """Show what a study will do and cost before anybody agrees: steps, noise, accuracy, traffic, time."""
        from caps.study.planning import declared_costs, plan_study

        manifest = read_manifest(file)
        document = plan_study(manifest, declared_costs(manifest)).to_json()
        out.show(document, *views(document))


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
        study: StudyId,
        coordinator: Annotated[
            str | None, typer.Option("--coordinator", help="Fetch the study from this coordinator first.")
        ] = None,
        server: Annotated[
            bool, typer.Option("--server", help="The service is an MPC server, and you are its operator.")
        ] = False,
    ) -> None:
        """Owner: let your holder sign a study. With --server, operator: let your MPC server take part."""
        if coordinator is not None and not server:
            client.fetch(coordinator, study)
        out.tell(client.approve(matching(study, client.studies, "study")))

    @command(study, "fetch", site="holder")
    def fetch(
        out: Output,
        client: "Client",
        study: Annotated[str, typer.Argument(metavar="STUDY", help="The study's full id.")],
        coordinator: Annotated[str, typer.Option("--coordinator", help="The coordinator's URL.")],
    ) -> None:
        """Operator: let your holder fetch a study from its coordinator."""
        out.tell(client.fetch(coordinator, study))

    @command(study, "list", site="coordinator")
    def listed(out: Output, client: "Client") -> None:
        """List a service's studies with their states."""
        items = [as_document(one) for one in client.studies()]
        out.show({"studies": items}, listing(items, ("study", "title", "state")))

    @command(study, "status", site="coordinator")
    def status(out: Output, client: "Client", study: StudyId) -> None:
        """Show a study's progress: who has approved, who has contributed, who is missing."""
        identity = matching(study, client.studies, "study")
        document = as_document(client.study(identity))
        participation = _participation(client, identity)
        if participation is not None:
            document["participation"] = as_document(participation)
        out.show(document, *views(document))

    @command(study, "refresh", site="coordinator")
    def refresh(out: Output, client: "Client", study: StudyId) -> None:
        """Operator: let the coordinator ask the servers again."""
        out.tell(client.refresh(matching(study, client.studies, "study")))

    @command(study, "show", site="coordinator")
    def show(
        out: Output,
        client: "Client",
        study: StudyId,
        to: Annotated[Path | None, typer.Option("--out", "-o", help="Write the canonical JSON here.")] = None,
    ) -> None:
        """Show a study's manifest, after checking that its digest is the study's id."""
        manifest = client.manifest(matching(study, client.studies, "study"))
        if to is not None:
            to.write_bytes(manifest.canonical_bytes())
        document = manifest.to_json()
        out.show(document, *views(document))


def _participation(client: "Client", study: str) -> "ParticipationView | None":
    """Who has contributed; None if the service does not offer it or the token does not allow it."""
    from caps.client import ProblemError

    try:
        return client.participation(study)
    except ProblemError as error:
        if error.status in {403, 404}:
            return None
        raise
