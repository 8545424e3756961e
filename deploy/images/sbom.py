"""What is in each image, as a CycloneDX bill of materials in JSON: locked wheels, base image, Debian's packages.

    python -m deploy.images.sbom FOLDER       write FOLDER/caps-IMAGE.cdx.json for every image

Wheels, with the hashes that pip checks, come from deploy/images/requirements; the base image and its interpreter from
the Dockerfile. Debian's packages are only known of an image that has been built: they are listed if this host's engine
has it, and the document says if it has not. It runs in the project's .venv, whose metadata say what needs what.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.images.wheels import COMMON, ROOT, TARGET, locked

DOCKERFILE = Path(__file__).parent / "Dockerfile"
IMAGES: dict[str, tuple[str, ...]] = {
    "holder": (COMMON,),
    "holder-sql": (COMMON, "engines"),
    "mpc-server": (COMMON, "compiler"),
    "coordinator": (COMMON, "compiler"),
    "provision": (COMMON,),
}
"""The files in deploy/images/requirements that each image installs."""
_BASE = re.compile(
    r"^ARG BASE=(?P<name>[a-z0-9./]+):(?P<tag>(?P<python>3\.\d+)[\w.-]*)@sha256:(?P<digest>[0-9a-f]{64})$", re.M
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_QUERY = "${Package}\t${Version}\t${Architecture}\n"
_NOTE = "caps:debian-packages"


@dataclass(frozen=True)
class Base:
    """The base image that the Dockerfile names: its name, tag and digest, and its Python."""

    name: str
    tag: str
    digest: str
    python: str

    @classmethod
    def of(cls, dockerfile: str) -> Base:
        """The default of the argument BASE. Raises ValueError if it has no digest."""
        found = _BASE.search(dockerfile)
        if found is None:
            raise ValueError("the Dockerfile's BASE must be of the form NAME:TAG@sha256:DIGEST, with Python's version")
        return cls(found["name"], found["tag"], found["digest"], found["python"])

    @property
    def environment(self) -> dict[str, str]:
        """Where requirements' markers are evaluated: newer than any patch release of this Python."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.99",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "extra": "",
        }


def bill(image: str, base: Base, packages: Iterable[tuple[str, str, str]] | None) -> Bom:
    """The bill of an image. packages: name, version and architecture of each Debian package; None if not known."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    root = Component(name=f"caps-{image}", version=version, type=ComponentType.CONTAINER, bom_ref=f"caps-{image}")
    system = Component(
        name=base.name,
        version=base.tag,
        type=ComponentType.CONTAINER,
        bom_ref="base",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=base.digest)],
        purl=PackageURL("oci", None, base.name.rpartition("/")[2], f"sha256:{base.digest}", {"tag": base.tag}),
    )
    wheels = {name: _wheel(name, entry) for name, entry in _wheels(image, base)}
    debian = [
        Component(
            name=name,
            version=number,
            type=ComponentType.LIBRARY,
            bom_ref=f"deb/{name}/{architecture}",
            purl=PackageURL("deb", "debian", name, number, {"arch": architecture}),
        )
        for name, number, architecture in packages or ()
    ]
    bom = Bom(components=[system, *wheels.values(), *debian])
    bom.metadata.component = root
    bom.metadata.tools.components.add(this_component())
    known = (
        f"{len(debian)} listed" if packages is not None else "not listed: the image is not on the host that wrote this"
    )
    bom.metadata.properties.add(Property(name=_NOTE, value=known))
    bom.register_dependency(root, [system, *wheels.values()])
    bom.register_dependency(system, debian)
    for name, component in wheels.items():
        bom.register_dependency(
            component, [wheels[needed] for needed in sorted(_needs(name, base)) if needed in wheels]
        )
    return bom


def _wheels(image: str, base: Base) -> Iterable[tuple[str, str]]:
    """Name and entry of each wheel that the base's Python installs."""
    for file in IMAGES[image]:
        for name, entries in sorted(locked((TARGET / f"{file}.txt").read_text()).items()):
            for entry in entries:
                marker = Requirement(_requirement(entry)).marker
                if marker is None or marker.evaluate(base.environment):
                    yield name, entry


def _wheel(name: str, entry: str) -> Component:
    (specifier,) = Requirement(_requirement(entry)).specifier
    version = specifier.version
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"pypi/{name}",
        purl=PackageURL("pypi", None, name, version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in _HASH.findall(entry)],
        licenses=[LicenseFactory().make_from_string(stated)] if (stated := _license(name)) else [],
    )


def _requirement(entry: str) -> str:
    return entry.partition("\\\n")[0].strip()


def _license(name: str) -> str | None:
    try:
        stated: list[str] = metadata(name).get_all("License-Expression") or []
    except PackageNotFoundError:  # of another Python than this one
        return None
    return stated[0] if stated else None


def _needs(name: str, base: Base) -> set[str]:
    try:
        stated = map(Requirement, requires(name) or ())
    except PackageNotFoundError:
        return set()
    return {
        canonicalize_name(one.name) for one in stated if one.marker is None or one.marker.evaluate(base.environment)
    }


def installed(image: str) -> list[tuple[str, str, str]] | None:
    """Debian's packages in an image that this host's engine has; None if it has none."""
    engine = shutil.which("docker")
    if (
        engine is None
        or subprocess.run([engine, "image", "inspect", image], capture_output=True, check=False).returncode
    ):
        return None
    query = [engine, "run", "--rm", "--network", "none", "--entrypoint", "dpkg-query", image, "-W", "-f", _QUERY]
    done = subprocess.run(query, capture_output=True, text=True, check=True)
    return [(name, version, arch) for name, version, arch in (line.split("\t") for line in done.stdout.splitlines())]


def main(folder: Path) -> int:
    """Write a document for each image."""
    base = Base.of(DOCKERFILE.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    for image in IMAGES:
        path = folder / f"caps-{image}.cdx.json"
        bom = bill(image, base, installed(f"caps-{image}"))
        path.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")
        note = next(one.value for one in bom.metadata.properties if one.name == _NOTE)
        print(f"{path}: {len(bom.components)} components; Debian's packages: {note}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
