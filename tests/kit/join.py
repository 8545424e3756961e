"""Tables of owners who spell keys in ways of their own, taken through the holder's code to three real MPC servers; and
the joint table as dictionaries make it, one person at a time."""

from __future__ import annotations

import csv
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caps.data.domain import MISSING
from caps.data.schema import Limits
from caps.service.site import Settings, Site
from caps.study import Manifest
from caps.wire import Contribution, Offer
from caps.wire.media import CSV
from deploy.federation import Federation
from services.holder import sharing
from services.holder.table import Rows, Sent, read_table
from tests.kit.federation import Driver

NUMBER, BORN = "insurance_no", "born"
KEY: dict[str, Any] = {
    "columns": [
        {"name": NUMBER, "kind": "text", "whitespace": "remove", "remove": "-"},
        {"name": BORN, "kind": "date", "formats": ["%Y-%m-%d", "%d.%m.%Y"]},
    ]
}
SCHEMA: dict[str, Any] = {
    "columns": [
        {"name": "age", "kind": "categorical", "categories": ["young", "middle", "old"], "missing": "null"},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "yes"], "missing": "null"},
        {"name": "illness", "kind": "categorical", "categories": ["none", "asthma", "other"], "missing": "null"},
        {"name": "plan", "kind": "categorical", "categories": ["a", "b", "c", "d"], "missing": "null"},
    ]
}
CATEGORIES: dict[str, list[str]] = {column["name"]: column["categories"] for column in SCHEMA["columns"]}


@dataclass(frozen=True)
class Record:
    """A line of an owner's file: whom it is about, None if it lacks a key; and codes of its columns."""

    person: int | None
    codes: tuple[int, ...]


@dataclass
class Owner:
    """What an owner has, and how it writes keys: its number chooses the spelling."""

    name: str
    columns: tuple[str, ...]
    records: list[Record] = field(default_factory=list)
    spelling: int = 0
    salt: str = ""
    """Makes other persons of the same numbers."""

    def key(self, person: int) -> tuple[str, str]:
        """The key as it stands in the file."""
        digits, year, day = f"{self.salt}{person:07d}", 1930 + person % 80, 1 + person % 28
        number = (f"P-{digits}", f"p {digits[:3]} {digits[3:]}", f"P{digits[:4]}-{digits[4:]}")[self.spelling % 3]
        return number, (f"{year}-03-{day:02d}", f"{day}.3.{year}")[self.spelling % 2]

    def write(self, folder: Path) -> Path:
        """The file: columns in an order of their own too."""
        path = folder / f"{self.name}-{secrets.token_hex(4)}.csv"
        with path.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([BORN, *self.columns, NUMBER])
            for record in self.records:
                number, born = ("", "1950-01-01") if record.person is None else self.key(record.person)
                values = [
                    "" if code == MISSING else CATEGORIES[name][code]
                    for name, code in zip(self.columns, record.codes, strict=True)
                ]
                out.writerow([born, *values, number])
        return path

    def read(self, manifest: Manifest, folder: Path) -> Rows:
        """The file as the holder reads it."""
        return read_table(self.write(folder), Sent.of(CSV), manifest, manifest.holder(self.name), Limits())[0]


def drawn_records(
    draws: np.random.Generator, columns: Sequence[str], persons: Sequence[int], *, twice: int = 0, keyless: int = 0
) -> list[Record]:
    """A record for each person, in a random order; so many persons have a second one, so many lines no key."""
    chosen: list[int | None] = [*persons, *draws.permutation(persons)[:twice].tolist(), *[None] * keyless]
    codes = np.stack([draws.integers(-1, len(CATEGORIES[name]), len(chosen)) for name in columns], axis=1)
    return [Record(chosen[i], tuple(codes[i].tolist())) for i in draws.permutation(len(chosen))]


def joined(manifest: Manifest, owners: Sequence[Owner]) -> np.ndarray:
    """Codes of the joint table, by the manifest's rules, in the clear."""
    join = manifest.join
    assert join is not None
    by_name = {owner.name: owner for owner in owners}
    people: dict[object, dict[str, int]] = {}
    needed = {name for owner in owners for name in owner.columns}
    for holder in manifest.holders:
        if holder.name not in by_name:
            continue
        owner, own = by_name[holder.name], dict[object, Record]()
        for record in owner.records:
            if record.person is None:
                if join.key.missing == "alone":
                    own[object()] = record
            elif record.person not in own or join.key.duplicates == "last":
                own[record.person] = record
        for person, record in own.items():
            values = people.setdefault(person, {})
            for name, code in zip(owner.columns, record.codes, strict=True):
                if values.get(name, MISSING) == MISSING:
                    values[name] = code
    kept = [person for person in people.values() if join.mode == "union" or needed <= person.keys()]
    joint = [[person.get(name, MISSING) for name in manifest.domain.names] for person in kept]
    return np.array(joint, np.int64).reshape(-1, len(manifest.domain.names))


class JoinDriver(Driver):
    """A driver whose holders send rows as `services.holder` makes them of `Rows`."""

    def __init__(self, federation: Federation, manifest: Manifest, folder: Path) -> None:
        super().__init__(federation, manifest)
        self.folder = folder

    def offer(self, holder: str, values: Any, *, study: str | None = None) -> tuple[Contribution, list[Offer], bytes]:
        """As the base class; of rows with identifiers, what the holder's service would send."""
        if not isinstance(values, Rows):
            return super().offer(holder, values, study=study)
        home = self.federation.places[holder].home
        site = Site(Settings(home, home / "state", "", 0, ""), role="holder")
        place = self.folder / secrets.token_hex(8)
        found = self.manifest.holder(holder)
        signed = sharing.prepare(site, self.manifest, found, values, place, secrets.token_bytes)
        parcel, statement = sharing.Parcel(place, self.manifest.sharing), signed.document
        vector = b"".join(parcel.chunk(number, statement.chunk_bytes) for number in range(statement.chunks))
        return statement, [parcel.offer(signed, party) for party in range(3)], vector

    def verdicts(self) -> tuple[int, ...]:
        """Step 0: which contributions are valid, in the order of the manifest's holders."""
        found = self.step(0, {"kind": "compute"})
        assert isinstance(found, tuple)
        return found
