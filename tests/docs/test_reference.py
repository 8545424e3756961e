"""docs/reference.md is what the models say, and lists every environment variable that anything reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import services.coordinator.settings as coordinator
import services.holder.settings as holder
import services.mpc_server.settings as server
from caps.service import news, site
from caps.service.environment import Variable
from caps.study import Policy
from deploy import reference

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference.md"
SOURCES = ("caps/**/*.py", "services/**/*.py", "deploy/**/*", "bench/**/*.py", "docker-compose.yml", "Makefile")


class Recorder(Mapping[str, str]):
    """An environment that notes what is asked for."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given, self.asked = given, set[str]()

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return self.given[name]

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("settings ask for variables by name")

    def __len__(self) -> int:
        raise AssertionError("settings ask for variables by name")


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    assert reference.main(["--check", str(PAGE)]) == 0
    (tmp_path / "old.md").write_text(PAGE.read_text().replace("largest_epsilon", "largest_delta", 1))
    assert reference.main(["--check", str(tmp_path / "old.md")]) == 1


@pytest.mark.parametrize(
    ("read", "variables"),
    [
        (site.Settings.from_environment, site.VARIABLES),
        (news.NewsSettings.from_environment, news.VARIABLES),
        (holder.Options.from_environment, (*holder.VARIABLES, *news.VARIABLES)),
        (coordinator.Quotas.from_environment, coordinator.VARIABLES),
        (server.ServerSettings.from_environment, (*site.VARIABLES, *server.VARIABLES, *news.VARIABLES)),
    ],
)
def test_settings_read_the_variables_that_are_listed_and_no_others(
    read: Callable[[Mapping[str, str]], object], variables: tuple[Variable, ...]
) -> None:
    environment = Recorder({"CAPS_HOME": "home", "CAPS_MESH": "a:1 b:1 c:1"})
    read(environment)
    assert environment.asked == {one.name for one in variables}


def test_every_variable_in_the_tree_is_on_the_page() -> None:
    page = set(re.findall(r"^\| `(CAPS_[A-Z_]+)` \|", PAGE.read_text(), re.MULTILINE))
    files = {path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"}
    named = {name for path in files for name in re.findall(r"\bCAPS_[A-Z_]*[A-Z]\b", path.read_text())}
    assert named - page == set()
    assert page - named == set()


def test_every_member_of_a_policy_is_explained() -> None:
    assert [name for name, field in Policy.model_fields.items() if not field.description] == []
    assert [name for name in Policy.model_fields if f"| `{name}` |" not in PAGE.read_text()] == []


def test_a_stall_that_is_no_time_is_refused() -> None:
    for text in ("soon", "-1", "nan", "inf"):
        with pytest.raises(server.DomainError, match="CAPS_STALL"):
            server.ServerSettings.from_environment(
                {"CAPS_HOME": "home", "CAPS_MESH": "a:1 b:1 c:1", "CAPS_STALL": text}
            )
