"""Approving with open eyes: what is shown, who is asked, and that what is signed is what was shown."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from caps.cli import Exit, app
from caps.cli.consent import HEIGHT, WIDTH, harmless, holder_screen, server_screen, wrapped
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.wire import Approval, Signed
from caps.wire.holder import Loss, ServerBudget, StudyBudget, StudyLoss
from caps.wire.server import PopulationState
from services.holder.service import HolderService
from tests.kit.holder import HolderBench
from tests.kit.study import COLUMNS, ROWS, example_manifest, joined_manifest

pytestmark = pytest.mark.integration
LOSS = Loss(studies=1, rho=0.1, epsilon=0.5, delta=1e-6, relation="unbounded", multiplicity=1)
LEFT = PopulationState(server="S1", population="patients", epsilon=5.0, delta=1e-6, used=0.5, left=4.2)
BUDGET = StudyBudget(
    loss=StudyLoss(population="patients", before=LOSS, after=LOSS, warnings=[]),
    servers=[
        ServerBudget(server="S1", state=LEFT, problem=None),
        ServerBudget(server="S2", state=LEFT.model_copy(update={"epsilon": None}), problem=None),
        ServerBudget(server="S3", state=None, problem="S3: out of reach"),
    ],
)


def screen_of(manifest: Manifest, *warnings: str) -> list[str]:
    return holder_screen(manifest, manifest.holders[0], BUDGET, warnings, 123_456)


# The screen.


@pytest.mark.parametrize(
    "manifest",
    [
        example_manifest()[0],
        example_manifest(scheme="rep4", purpose="One line.\nAnother. " * 200)[0],
        example_manifest(scheme="rep3-active", holders=COLUMNS, title="x" * 200)[0],
        joined_manifest(),
        joined_manifest(join={"protocol": "oprf"}),
        example_manifest(holders=tuple((f"a-hospital-with-a-long-name-{n}", None) for n in range(200)))[0],
    ],
    ids=["plain", "long purpose", "long title", "joined", "tags", "many holders"],
)
@pytest.mark.parametrize("warnings", [0, 30])
def test_it_is_one_screen(manifest: Manifest, warnings: int) -> None:
    for lines in (screen_of(manifest, *["a key has changed " * 20] * warnings), server_screen(manifest, LEFT, [])):
        assert len(lines) <= HEIGHT - 1  # the question is the last line
        assert max(map(cell_len, lines)) <= WIDTH
        assert lines[0] == f"Study {manifest.study_id}"
    assert any(line.startswith("WARNING") for line in screen_of(manifest, *["so"] * warnings)) == bool(warnings)


def test_it_says_what_there_is_to_know() -> None:
    manifest, _ = example_manifest(purpose="To learn who falls ill.", inputs={"refused": "leave-out"})
    words = " ".join(" ".join(screen_of(manifest)).split())
    for said in (
        "Smoking and diagnoses",
        "To learn who falls ill.",
        "coordinator coordinator, https://coordinator.example:8443",
        "S1 s1.example:8443, S2",
        "rep3: three honest servers",
        "4 columns: age, smoker, region, diagnosis",
        "123 KB to 3 servers; no row, value or count in the clear",
        "epsilon 1, delta 1e-06: nothing anybody concludes is more than 2.72 times as likely",
        "cost at your site: epsilon 0.5 in 1 study; with this study epsilon 0.5",
        "S1: epsilon 4.2 of 5; S2 refuses this population; S3 does not say",
        "everybody sees whose data fail the servers' checks; the owner is left out",
    ):
        assert said in words, said
    assert "NO proven guarantee" not in words
    tags = " ".join(screen_of(joined_manifest(join={"protocol": "oprf"})))
    assert "NOT" in " ".join(tags.split())


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2J\x1b[31mred",
        "a\x07b\rc",
        "title\u202egnp.exe",
        "a" + "\u0301" * 500,
        "漢" * 300,
        "שלום " * 90,
        "x" * 10**6,
        "\u2028\u200b",
    ],
)
def test_foreign_text_does_no_harm(text: str) -> None:
    line = harmless(text, 40)
    assert cell_len(line) <= 40
    assert line.isprintable()
    assert line.count("\u0301") <= 2
    for one in wrapped(f"{text} {text}", 3):
        assert cell_len(one) <= WIDTH - 12
        assert one.isprintable()
    assert len(wrapped(text, 3)) <= 3


def test_texts_from_right_to_left_stand_at_the_end_of_their_lines() -> None:
    manifest, _ = example_manifest(title="מחקר 1", purpose="למד " * 300)
    lines = [line for line in screen_of(manifest) if any("\u0590" <= letter <= "\u05ff" for letter in line)]
    assert [line.split()[0] for line in lines][:2] == ["Title", "Purpose"]
    for line in lines:
        first = next(at for at, letter in enumerate(line) if "\u0590" <= letter <= "\u05ff")
        assert not any(letter.isascii() and letter.isalpha() for letter in line[first:])


# At a holder.


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HolderBench]:
    for name in [name for name in os.environ if name.startswith("CAPS_")]:
        monkeypatch.delenv(name)
    made = HolderBench(tmp_path, ROWS[0][0], purpose="To learn.")
    lines = []
    for site, scope in (("holder", Scope.OWNER), ("operator", Scope.OPERATOR)):
        (tmp_path / f"{site}.token").write_text(made.tokens[scope])
        lines += [f"[sites.{site}]", f'url = "{made.urls["holder"]}"', f'token_file = "{site}.token"']
        lines += [f'authority = "{tmp_path}/holder/authority.pem"']
    (tmp_path / "config.toml").write_text("\n".join(lines))
    monkeypatch.setenv("CAPS_CONFIG", str(tmp_path / "config.toml"))
    with made.others():
        yield made


def caps(*arguments: object, expect: Exit = Exit.OK) -> Any:
    found = CliRunner().invoke(app, [*map(str, arguments)])
    assert found.exit_code == expect, found.output
    return found


def approve(*arguments: object, expect: Exit = Exit.OK) -> Any:
    return caps("study", "approve", *arguments, expect=expect)


def test_an_owner_approves_at_the_coordinators_address_what_the_holder_did_not_know(world: HolderBench) -> None:
    address = f"{world.urls['coordinator']}/{world.study}"
    with world.client() as client:
        assert client.get("/v1/studies").json() == []
        shown = json.loads(
            approve(address, "--authority", world.folder / "holder" / "authority.pem", "--yes", "--json").stdout
        )
    assert shown["state"] == "approved"


def test_every_way_to_name_a_study(world: HolderBench) -> None:
    with world.client():
        approve(world.study, "--coordinator", world.urls["coordinator"], "--yes")
        holder = world.urls["holder"]
        for name in (world.study, world.study[:8], f"holder/{world.study[:8]}", f"{holder}/{world.study[:8]}"):
            at = () if "/" in name else ("--site", "operator")
            assert json.loads(caps("study", "show", name, *at, "--json").stdout) == world.manifest.to_json()
            assert world.study in approve(name, "--yes").stdout
        words = approve(f"nowhere/{world.study}", "--yes", expect=Exit.USAGE)
        assert "has no site nowhere" in words.output


def test_without_somebody_to_ask_nothing_is_signed(world: HolderBench) -> None:
    with world.client() as client:
        for more in ([], ["--json"]):
            found = approve(world.study, "--coordinator", world.urls["coordinator"], *more, expect=Exit.REFUSED)
            assert "nobody to ask" in found.stderr
        assert client.get(f"/v1/studies/{world.study}").json()["state"] == "known"


@pytest.mark.parametrize(("answer", "state"), [("y", "approved"), ("", "known")])
def test_on_a_terminal_it_is_shown_and_asked(world: HolderBench, answer: str, state: str) -> None:
    with world.client() as client:
        client.post("/v1/studies", json={"coordinator": world.urls["coordinator"], "study": world.study})
        ours, theirs = pty.openpty()
        os.write(ours, f"{answer}\n".encode())
        command = [sys.executable, "-m", "caps.cli", "study", "approve", world.study[:12]]
        done = subprocess.run(
            command,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "COLUMNS": "80"},
        )
        os.close(ours)
        os.close(theirs)
        assert done.returncode == (Exit.OK if state == "approved" else Exit.REFUSED), done.stderr
        shown, asked, _ = done.stdout.partition("Approve this study? [y/N] ")
        assert asked
        assert len(shown.splitlines()) < HEIGHT
        assert "To learn." in shown
        assert "S1 does not say" in " ".join(shown.split())  # stand-ins keep no ledger
        assert client.get(f"/v1/studies/{world.study}").json()["state"] == state


def test_another_manifest_than_the_id_says_is_not_shown(world: HolderBench, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.client() as client:
        client.post("/v1/studies", json={"coordinator": world.urls["coordinator"], "study": world.study})
        other = Manifest.from_json(world.document | {"title": "Another"})
        monkeypatch.setattr(Manifest, "canonical_bytes", lambda _: json.dumps(other.to_json()).encode())
        found = approve(world.study, "--yes", expect=Exit.NOT_VERIFIED)
        assert "manifest of another study" in found.stderr
        monkeypatch.undo()
        assert client.get(f"/v1/studies/{world.study}").json()["state"] == "known"


def test_another_signature_than_of_what_was_shown_is_found(world: HolderBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that is asked to sign one study, and signs another."""
    genuine, swaps = HolderService.approve, iter(("study", "signature", "role"))

    def signs_another(service: HolderService, study: str) -> Any:
        record, swapped = genuine(service, study), next(swaps)
        assert record.approval is not None
        change = {"study": {"study": "0" * 64}, "role": {"role": "mpc-server"}, "signature": {}}[swapped]
        document = record.approval.document.model_copy(update=change)
        key = world.keys["S1"].signing if swapped == "signature" else service.site.signing_key
        return replace(record, approval=Signed[Approval].by(document, service.site.name, key))

    with world.client() as client:
        client.post("/v1/studies", json={"coordinator": world.urls["coordinator"], "study": world.study})
        monkeypatch.setattr(HolderService, "approve", signs_another)
        for _ in range(3):
            approve(world.study, "--yes", expect=Exit.NOT_VERIFIED)


def contribute(world: HolderBench, table: Path, *more: object, expect: Exit = Exit.OK) -> Any:
    at = ("--coordinator", world.urls["coordinator"])
    return caps("contribute", world.study, table, "--approve", *at, *more, expect=expect)


def test_a_table_is_contributed_and_approved_in_one_command(world: HolderBench) -> None:
    table = world.folder / "table.csv"
    with world.client() as client:
        state = f"/v1/studies/{world.study}"
        table.write_text("age,smoker,region\n30,yes,north\n")
        misfit = contribute(world, table, "--yes", expect=Exit.REFUSED)  # it does not fit
        assert "diagnosis" in misfit.stdout
        table.write_text("age,smoker,region,diagnosis\n30,yes,north,A\n")
        assert "nobody to ask" in contribute(world, table, expect=Exit.REFUSED).stderr  # nobody said yes
        assert (client.get(state).json()["state"], world.approvals) == ("known", [])
        assert client.get(f"{state}/table").status_code == 404

        done = json.loads(contribute(world, table, "--yes", "--json").stdout)
        assert done["state"] == "complete"
        assert [one["receipt"]["signer"] for one in done["servers"]] == ["S1", "S2", "S3"]
        assert [one.document.study for one in world.approvals] == [world.study]
    assert len(world.reconstructed()) > 0


def test_nothing_is_sent_if_another_study_was_signed(world: HolderBench, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, table = HolderService.approve, world.folder / "table.csv"

    def signs_another(service: HolderService, study: str) -> Any:
        record = genuine(service, study)
        assert record.approval is not None
        document = record.approval.document.model_copy(update={"study": "0" * 64})
        return replace(record, approval=Signed[Approval].by(document, service.site.name, service.site.signing_key))

    monkeypatch.setattr(HolderService, "approve", signs_another)
    table.write_text("age,smoker,region,diagnosis\n30,yes,north,A\n")
    with world.client() as client:
        contribute(world, table, "--yes", expect=Exit.NOT_VERIFIED)
        assert client.get(f"/v1/studies/{world.study}/table").status_code == 404
    assert [server.requests for server in world.servers] == [[], [], []]


def test_sites_at_one_address_are_not_confused(world: HolderBench) -> None:
    config = world.folder / "config.toml"
    config.write_text(config.read_text().replace("[sites.holder]", "[sites.owner]"))
    found = approve(f"{world.urls['holder']}/{world.study}", "--yes", expect=Exit.USAGE)
    assert "several sites at this address: owner, operator" in " ".join(found.output.replace("│", "").split())
