"""A client for a site of the configuration, as analysts' programs get one."""

from __future__ import annotations

from pathlib import Path

import pytest

from caps.client import Client
from caps.errors import DomainError
from tests.kit.client import RUN, Service

pytestmark = pytest.mark.integration


@pytest.fixture
def config(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CAPS_CONFIG", raising=False)
    (tmp_path / "ann.token").write_text(service.token + "\n")
    (tmp_path / "authority.pem").write_bytes(service.authority.read_bytes())
    path = tmp_path / "config.toml"
    path.write_text(
        f'[sites.coordinator]\nurl = "{service.url}"\ntoken_file = "ann.token"\nauthority = "authority.pem"\n'
        "[sites.nameless]\n"
    )
    return path


def test_a_site_has_address_token_and_authority(config: Path) -> None:
    with Client.from_site("coordinator", config=config) as client:
        assert [one.release for one in client.releases()] == [RUN]


def test_the_environment_may_name_the_configuration(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPS_CONFIG", str(config))
    with Client.from_site() as client:
        assert client.releases()


@pytest.mark.parametrize(
    ("site", "said"),
    [("elsewhere", "has no site elsewhere; it has coordinator, nameless"), ("nameless", "url is missing")],
)
def test_an_unknown_site_is_refused_with_the_known_ones(config: Path, site: str, said: str) -> None:
    with pytest.raises(DomainError, match=said):
        Client.from_site(site, config=config)


def test_a_configuration_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=r"none\.toml has no site coordinator; it has no sites, or does not exist"):
        Client.from_site(config=tmp_path / "none.toml")
