"""Every shell and Python block of README and docs runs as printed, in order, against one federation that README makes.

Blocks that are not run say why, in a comment above them (`tests.kit.pages`).
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from caps.cli.connection import Given
from caps.federation import sample
from caps.federation.local import LocalFederation
from caps.federation.ports import free_ports
from tests.kit.pages import ROOT, Block, Unclear, blocks, run, script_of
from tests.kit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
BY_HAND = ROOT / "docs" / "first-federation.md"
ALONE = {"adding-a-mechanism.md", "lattice-attack.md"}
"""Pages whose blocks need no federation."""


class Trial:
    """What README makes: a folder, and the environment of the shell that has read trial/env."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        run(blocks(README), folder, {}, seconds=500)
        found = LocalFederation.read(folder / "trial")
        with Given(site="analyst", config=found.config).connection("coordinator").client() as analyst:
            (release,) = analyst.releases()
        self.environment = {**found.variables(), "RELEASE": release.release}


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """README, run once; its services end with the session."""
    folder = tmp_path_factory.mktemp("readme")
    try:
        yield Trial(folder)
    finally:
        if (folder / "trial" / "federation.json").exists():
            LocalFederation.read(folder / "trial").clean()


def test_readme_runs_as_printed(trial: Trial) -> None:
    assert (trial.folder / "synthetic.csv").read_text().startswith("age,smoker,region,diagnosis")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page != BY_HAND], ids=lambda page: page.name)
def test_a_page_runs_as_printed(page: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found = [block for block in blocks(page) if block.runs]
    if not found:
        return  # nothing to run; `test_every_block_says_what_it_is` has read it
    if page.name in ALONE:
        run(found, tmp_path, {}, seconds=500)
    else:
        trial = request.getfixturevalue("trial")
        run(found, trial.folder, trial.environment, seconds=500)


def machines(folder: Path) -> dict[str, dict[str, str]]:
    """What each party of the page has of its own: an address, and a folder in place of a machine."""
    servers, others = ("S1", "S2", "S3"), ("coordinator", "north", "south")
    ports = iter(free_ports(2 * len(servers) + len(others)))
    port = {name: str(next(ports)) for name in (*servers, *others)}
    mesh_port = {name: str(next(ports)) for name in servers}
    common = {
        "HOST": "127.0.0.1",
        "SHARED": str(folder / "shared"),
        "MESH": " ".join(f"127.0.0.1:{mesh_port[name]}" for name in servers),
        "COORDINATOR_URL": f"https://127.0.0.1:{port['coordinator']}",
    }
    values = {name: {**common, "PORT": port[name], "MESH_PORT": mesh_port.get(name, "")} for name in port}
    return {**values, "authority": {**common, **{f"{name.upper()}_HOST": "127.0.0.1" for name in port}}}


@pytest.mark.slow
def test_a_federation_by_hand_runs_as_printed(tmp_path: Path) -> None:
    for name, values in machines(tmp_path).items():
        (tmp_path / name).mkdir()
        lines = [f"{variable}={shlex.quote(value)}" for variable, value in values.items()]
        (tmp_path / name / "values").write_text("\n".join(lines) + "\n")
    for name in ("north", "south"):
        (tmp_path / name / "patients.csv").write_text(sample.table(name))
    try:
        run(blocks(BY_HAND), tmp_path, {}, seconds=550)
    finally:
        kept = {path.parent: int(path.read_text()) for path in tmp_path.glob("*/pid")}
        left = {folder: pid for folder, pid in kept.items() if serves(pid, folder)}
        for pid in left.values():
            os.kill(pid, signal.SIGTERM)
    assert (tmp_path / "coordinator" / "synthetic.csv").read_text().startswith("age,smoker,region,diagnosis")
    until(lambda: not [pid for folder, pid in kept.items() if serves(pid, folder)])


def serves(pid: int, folder: Path) -> bool:
    """Whether a process is the service that was started in this folder."""
    try:
        return f"CAPS_HOME={folder}/home".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.slow
def test_what_readme_ends_with(trial: Trial) -> None:
    """Runs after all pages, because it stands after them."""
    last = [block for block in blocks(README) if block.remark == "last"]
    run([Block(one.page, one.line, one.language, one.text) for one in last], trial.folder, trial.environment)
    assert not (trial.folder / "trial").exists()


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.remark != "skip" or len(block.detail.split()) >= 3, f"{page.name}:{block.line}: say why"


# The reader of pages itself.


def page(folder: Path, text: str) -> list[Block]:
    (folder / "page.md").write_text(text)
    return blocks(folder / "page.md")


def test_blocks_are_found_in_both_forms_with_their_lines(tmp_path: Path) -> None:
    text = "Words:\n\n    echo one\n\n    echo two\n\nMore.\n\n```python\nprint(3)\n```\n\n```json\n{}\n```\n"
    assert [(one.line, one.language, one.text) for one in page(tmp_path, text)] == [
        (3, "sh", "echo one\n\necho two"),
        (10, "python", "print(3)"),
        (14, "json", "{}"),
    ]
    assert [one.runs for one in page(tmp_path, text)] == [True, True, False]


def test_what_goes_on_with_an_item_is_no_block(tmp_path: Path) -> None:
    assert page(tmp_path, "- item\n\n    that goes on\n") == []
    assert page(tmp_path, "text\n    that goes on\n") == []


def test_a_fence_without_a_language_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unclear, match=r"page\.md:1"):
        page(tmp_path, "```\necho\n```\n")


def test_remarks_decide_what_is_run(tmp_path: Path) -> None:
    found = page(
        tmp_path,
        "<!-- skip: it takes hours -->\n\n    false\n\n<!-- each: a b -->\n\n    echo for $NAME\n\n"
        "<!-- file: sub/x.py -->\n```python\nprint('from a file')\n```\n\n    python sub/x.py\n",
    )
    assert [one.remark for one in found] == ["skip", "each", "file", ""]
    assert run(found, tmp_path, {}) == "for a\nfor b\nfrom a file\n"


@pytest.mark.parametrize("text", ["    true\n    false\n    true\n", "    false | true\n", "    echo $UNSET\n"])
def test_a_line_that_fails_is_named(tmp_path: Path, text: str) -> None:
    inside = ROOT / "docs"
    found = [Block(inside / "page.md", one.line, one.language, one.text) for one in page(tmp_path, f"Words\n\n{text}")]
    with pytest.raises(AssertionError, match=r"docs/page\.md:3 ended with 1"):
        run(found, tmp_path, {})
    assert "set -euo pipefail" in script_of(found)
