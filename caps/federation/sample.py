"""A sample study for a new federation: every holder has a small table of persons that a rule invents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from caps.basics import canonical
from caps.basics.schemes import Scheme
from caps.basics.uniform import Uniform
from caps.federation.parties import POPULATIONS, Place, manifest_parties
from caps.study import Manifest

STUDY, SCHEMA_FILE = "study.yaml", "schema.json"
PERSONS = 400
"""Rows of each table."""
SCHEMA: dict[str, Any] = {
    "name": "invented persons",
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 40, 65, 100]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "former", "yes"]},
        {"name": "region", "kind": "categorical", "categories": ["north", "east", "south"]},
        {"name": "diagnosis", "kind": "categorical", "categories": ["none", "asthma", "COPD", "other"]},
    ],
}
_HEAD = "# A sample: all of these persons are invented. Try it out, then change it: docs/study.md.\n"


def table(holder: str) -> str:
    """A holder's CSV, the same whenever it is made: older smokers are ill more often, so there is something to find."""
    drawn = Uniform(holder).floats(4 * PERSONS).reshape(PERSONS, 4)
    lines = ["age,smoker,region,diagnosis"]
    for years, habit, place, illness in drawn:
        age = int(100 * years**1.3)
        smoker = "no" if age < 16 or habit < 0.5 else "former" if habit < 0.75 else "yes"
        region = ("north", "east", "south")[int(3 * place)]
        risk = 0.1 + 0.004 * age + (0.25 if smoker == "yes" else 0.1 if smoker == "former" else 0.0)
        ill = "asthma" if illness < 0.3 * risk else "COPD" if illness < 0.6 * risk else "other"
        lines.append(f"{age},{smoker},{region},{ill if illness < risk else 'none'}")
    return "\n".join(lines) + "\n"


def write(directory: Path, places: dict[str, Place], scheme: Scheme, holders: Sequence[str]) -> Manifest:
    """Write the study, its schema and every holder's table; returns the study."""
    manifest = Manifest.from_json(
        {
            "title": "A sample: smoking and diagnoses",
            "purpose": "To try out CaPS with invented persons.",
            "schema": SCHEMA,
            "algorithm": {"name": "mst"},
            "privacy": {"epsilon": "1", "delta": "1e-9", "population": next(iter(POPULATIONS))},
            **manifest_parties(places, scheme, [{"name": name, "brings": "rows"} for name in holders]),
        }
    )
    (directory / STUDY).write_text(_HEAD + yaml.safe_dump(manifest.to_json(), sort_keys=False, allow_unicode=True))
    (directory / SCHEMA_FILE).write_bytes(canonical.dump(SCHEMA) + b"\n")
    for name in holders:
        (directory / f"{name}.csv").write_text(table(name))
    return manifest
