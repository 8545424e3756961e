"""`caps policy`: an MPC server's own rules, which no study can change."""

from pathlib import Path
from typing import Annotated

import typer

from caps.cli.kit import command, group
from caps.cli.output import Output, facts

Place = Annotated[Path, typer.Argument(metavar="FILE", help="The policy.yaml, or the server's home.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    policy = group(app, "policy", "An MPC server's own rules: the studies in which it takes part.")

    @command(policy, "new")
    def new(
        out: Output,
        file: Place,
        population: Annotated[
            list[str] | None,
            typer.Option("--population", help="NAME=EPSILON: a population, with epsilon over all its studies; repeat."),
        ] = None,
        member: Annotated[
            list[str] | None, typer.Option("--set", help="MEMBER=VALUE, for instance approval=automatic; repeat.")
        ] = None,
    ) -> None:
        """Write a commented policy with every member. The defaults are those of a careful operator."""
        from caps.study.policy import policy_yaml

        changes = dict(_pair(one, "--set") for one in member or [])
        if population:
            changes["populations"] = dict(_pair(one, "--population") for one in population)
        text, path = policy_yaml(changes), _path(file)
        with path.open("x", encoding="utf-8") as written:
            written.write(text)
        out.show({"policy": str(path)}, f"{path} is written. Read it, change it, then: caps policy check {path}")

    @command(policy, "check")
    def check(out: Output, file: Place) -> None:
        """Say what is wrong with a policy, or what it allows. The service reads it when it starts."""
        from caps.study.policy import Policy

        found = Policy.read(_path(file)).model_dump(mode="json")
        out.show({"policy": str(_path(file)), **found}, facts(found))


def _path(file: Path) -> Path:
    from caps.trust import home as party

    return file / party.POLICY if file.is_dir() else file


def _pair(text: str, option: str) -> tuple[str, object]:
    import yaml

    name, equals, value = text.partition("=")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        equals = ""
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint=option)
    return name, parsed
