"""One release for all tests that look at releases in a browser, made by a federation as people would make it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from caps.basics.uniform import Uniform
from caps.client import Client
from caps.federation.local import LocalFederation
from caps.federation.parties import POPULATIONS, manifest_parties
from caps.study import Manifest

HOSTILE = '<img src=x onerror="alert(1)">'
"""A category of the study that is released."""
COLUMNS = ("age", "smoker", "region", "diagnosis", "visits", "insured")


@dataclass(frozen=True)
class Released:
    """A study that has been released, with its release."""

    manifest: Manifest
    release: str

    @property
    def path(self) -> str:
        """Its page."""
        return f"/ui/releases/{self.release}"


def person(federation: LocalFederation, name: str, scope: str) -> Client:
    """Somebody who calls a service by REST."""
    return Client(federation.places[name].url, token=federation.token(name, scope), authority=federation.authority)


def _table(holder: str) -> str:
    drawn = Uniform(holder).floats(6 * 400).reshape(400, 6)
    lines = [",".join(COLUMNS)]
    for years, habit, place, illness, often, paid in drawn:
        age = int(100 * years**1.3)
        smoker = "no" if age < 16 or habit < 0.5 else "former" if habit < 0.75 else "yes"
        risk = 0.1 + 0.004 * age + (0.3 if smoker == "yes" else 0.0)
        diagnosis = "none" if illness > risk else "COPD" if illness < 0.6 * risk else "asthma"
        visits = int(12 * often * (0.4 if diagnosis == "none" else 1))
        region = ("north", "east", HOSTILE)[int(3 * place)].replace('"', '""')
        lines.append(f'{age},{smoker},"{region}",{diagnosis},{visits},{"yes" if paid < 0.8 else "no"}')
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def released(federation: LocalFederation, tmp_path_factory: pytest.TempPathFactory) -> Released:
    """A category tries to be a script. The federation's holders bring rows."""
    holders = [name for name, place in federation.places.items() if place.role == "holder"]
    schema = {
        "columns": [
            {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40, 65, 100]},
            {"name": "smoker", "kind": "categorical", "categories": ["no", "former", "yes"]},
            {"name": "region", "kind": "categorical", "categories": ["north", "east", HOSTILE]},
            {"name": "diagnosis", "kind": "categorical", "categories": ["none", "asthma", "COPD"]},
            {"name": "visits", "kind": "numeric", "integer": True, "bin_edges": [0, 2, 5, 12]},
            {"name": "insured", "kind": "boolean", "false": "no", "true": "yes"},
        ]
    }
    manifest = Manifest.from_json(
        {
            "title": "Smoking, diagnoses and visits",
            "purpose": "To see a release in a browser.",
            "schema": schema,
            "algorithm": {"name": "aim", "parameters": {"rounds": 6}},
            "privacy": {"epsilon": "2", "delta": "1e-9", "population": next(iter(POPULATIONS))},
            **manifest_parties(
                federation.places, federation.scheme, [{"name": name, "brings": "rows"} for name in holders]
            ),
        }
    )
    with person(federation, "coordinator", "operator") as operator:
        operator.propose(manifest)
        for name in holders:
            path = tmp_path_factory.mktemp(name) / "table.csv"
            path.write_text(_table(name))
            with person(federation, name, "owner") as owner:
                owner.fetch(manifest.coordinator.url, manifest.study_id)
                owner.approve(manifest.study_id)
                owner.put_table(manifest.study_id, path)
                owner.contribute(manifest.study_id)
                while not all(one.receipt for one in owner.contribution(manifest.study_id).servers):
                    time.sleep(0.05)
        run = operator.start(manifest.study_id).run
        for _ in operator.watch(run):
            pass
        ended = operator.run(run)
        assert ended.state == "released", ended.reason
    return Released(manifest, run)
