"""Images: what they are made from is named by digest, listed, and nothing in them executes what it unpacks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from deploy.images.sbom import DOCKERFILE, IMAGES, Base, bill, main
from deploy.images.wheels import ROOT

BASE = Base.of(DOCKERFILE.read_text())
COMPOSE = [
    ROOT / "docker-compose.yml",
    *sorted((ROOT / "deploy").glob("*/*.yml")),
    *sorted((ROOT / "deploy/party").rglob("*.yml")),
]


def document(image: str, packages: list[tuple[str, str, str]] | None = None) -> dict:  # type: ignore[type-arg]
    return json.loads(JsonV1Dot6(bill(image, BASE, packages)).output_as_string())  # type: ignore[no-any-return]


def test_documents_are_valid_cyclonedx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path) == 0
    assert capsys.readouterr().out.count("components") == len(IMAGES)
    for image in IMAGES:
        text = (tmp_path / f"caps-{image}.cdx.json").read_text()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        broken = text.replace('"type": "library"', '"type": "libary"', 1)
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None


@pytest.mark.parametrize("image", IMAGES)
def test_everything_that_pip_installs_is_listed_once_with_its_hashes(image: str) -> None:
    listed = {one["name"]: one for one in document(image)["components"] if one["bom-ref"].startswith("pypi/")}
    texts = "".join((ROOT / f"deploy/images/requirements/{file}.txt").read_text() for file in IMAGES[image])
    for name, version in re.findall(r"^([a-z0-9-]+)(?:\[[a-z]+\])?==(\S+) \\$", texts, re.MULTILINE):
        assert listed[name]["version"] == version
        assert listed[name]["purl"] == f"pkg:pypi/{name}@{version}"
    for one in listed.values():
        assert all(entry["content"] in texts for entry in one["hashes"])
        assert one["hashes"]
    assert {"cryptography", "pynacl", "polars"} <= set(listed)
    assert "rbcl" not in listed
    assert ("numba" in listed) == (image in ("mpc-server", "coordinator"))


def test_of_several_versions_the_bases_python_decides() -> None:
    listed = {one["name"]: one["version"] for one in document("mpc-server")["components"]}
    numpys = re.findall(
        r"^numpy==(\S+) ; python_full_version >= '3.12'", (ROOT / "requirements.lock").read_text(), re.M
    )
    assert [listed["numpy"]] == numpys


def test_dependencies_and_debians_packages() -> None:
    found = document("holder", [("libc6", "2.36-9+deb12u13", "amd64")])
    depends = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    assert "pypi/cffi" in depends["pypi/pynacl"]
    assert depends["base"] == ["deb/libc6/amd64"]
    (libc,) = (one for one in found["components"] if one["name"] == "libc6")
    assert libc["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64"
    assert found["metadata"]["properties"] == [{"name": "caps:debian-packages", "value": "1 listed"}]
    assert "not listed" in document("holder")["metadata"]["properties"][0]["value"]
    assert found["metadata"]["component"]["name"] == "caps-holder"


@pytest.mark.parametrize(
    "line", ["python:3.12-slim", "python@sha256:" + "a" * 64, "python:3.12-slim@sha256:" + "a" * 63]
)
def test_a_base_without_tag_or_digest_is_no_base(line: str) -> None:
    with pytest.raises(ValueError, match="BASE"):
        Base.of(f"ARG BASE={line}\n")


def test_every_image_begins_with_a_digest() -> None:
    text = DOCKERFILE.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= stages | {"${BASE}", "${BUILDER}"}
    assert "ARG BUILDER=${BASE}\n" in text
    given = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["x-build"]["args"]
    named = f"{BASE.name}:{BASE.tag}@sha256:{BASE.digest}"
    assert given == {"BASE": f"${{CAPS_BASE:-{named}}}", "BUILDER": f"${{CAPS_BUILDER:-{named}}}"}


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_container_may_execute_what_it_writes(path: Path) -> None:
    mounts = [mount for service in _services(path) for mount in service.get("tmpfs", [])]
    for mount in mounts:
        options = set(mount.partition(":")[2].split(",")) - {""}
        assert "exec" not in options
        assert not options or "noexec" in options  # without options, noexec is what the engine does


def _services(path: Path) -> list[dict]:  # type: ignore[type-arg]
    found = yaml.safe_load(path.read_text())
    return [one for name, one in found.items() if name.startswith("x-") and isinstance(one, dict)] + list(
        (found.get("services") or {}).values()
    )


def test_the_resolver_is_locked_with_its_hashes() -> None:
    assert re.search(r"^uv==\S+ \\\n    --hash=sha256:", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert "pip install" not in (ROOT / "Makefile").read_text()
