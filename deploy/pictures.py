"""Pictures of a terminal, from real output: `python -m deploy.pictures [FOLDER]`, docs/pictures by default.

They are of the demonstration, and of the commands for its study: plan, preview, watch and verify, each in a terminal of
80 columns and 24 lines. The patients are invented. It takes a minute or two.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caps.client import Client
from caps.study import Manifest
from deploy import example
from deploy.federation import COORDINATOR, ROOT, Federation
from deploy.terminal import Screen, draw, record

FOLDER = ROOT / "docs" / "pictures"
NAMES = ("demo", "plan", "preview", "watch", "verify")
OWNER = "north-hospital"


class Pictures:
    """Takes them, in a working folder, and puts them into another."""

    def __init__(self, working: Path, to: Path) -> None:
        self.working = working
        self.to = to
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.environment = kept | {"PYTHONPATH": str(ROOT), "CAPS_CONFIG": str(working / "config.toml")}

    def take(
        self,
        name: str,
        *arguments: str,
        module: str = "caps.cli",
        shown: str | None = None,
        folder: Path | None = None,
        top: bool = False,
        enough: Callable[[Screen], bool] = lambda _: False,
    ) -> None:
        """Run a command and draw what it shows. Raises SystemExit if it fails."""
        typed = shown or " ".join(("caps", *arguments))
        line = [sys.executable, "-m", module, *arguments]
        where = folder or self.working
        screen, code = record(line, shown=typed, folder=where, environment=self.environment, enough=enough)
        if code != 0:
            raise SystemExit(f"{typed} ended with {code}:\n{screen.text()}")
        self.to.mkdir(parents=True, exist_ok=True)
        (self.to / f"{name}.svg").write_text(draw(screen, title=typed, top=top), encoding="utf-8")
        print(self.to / f"{name}.svg")

    def all(self) -> None:
        """Every picture."""
        self.take("demo", module="deploy.demo", shown="make demo", folder=ROOT, enough=_summarised)
        files = example.write_tables(self._made("tables"))
        with Federation(self.working / "federation", list(files)) as federation:
            federation.start()
            federation.wait_ready()
            self._configure(federation)
            self._study(federation, files)

    def _study(self, federation: Federation, files: dict[str, Path]) -> None:
        manifest = Manifest.from_json(
            {
                "title": "Patients and what they cost",
                "purpose": "Pictures for the docs, with invented patients.",
                "schema": example.SCHEMA,
                "join": example.JOIN,
                "algorithm": {"name": "aim"},
                "privacy": {"epsilon": "1", "delta": "1e-9", "population": "invented-patients"},
                **federation.parties(example.HOLDERS),
            }
        )
        (self.working / "study.json").write_text(json.dumps(manifest.to_json()))
        self.take("plan", "study", "plan", "study.json", "--persons", "5000", top=True)
        study, short = manifest.study_id, manifest.study_id[:12]
        with self._client(federation, COORDINATOR, "operator") as operator:
            operator.propose(manifest)
            for holder, table in files.items():
                with self._client(federation, holder, "operator") as person:
                    person.fetch(manifest.coordinator.url, study)
                with self._client(federation, holder, "owner") as owner:
                    owner.approve(study)
                    owner.put_table(study, table)
            self.take("preview", "preview", short, top=True)
            for holder in files:
                with self._client(federation, holder, "owner") as owner:
                    owner.contribute(study)
                    while owner.contribution(study).state != "complete":
                        time.sleep(0.1)
            run = operator.start(study).run
            self.take("watch", "run", "watch", run[:12], enough=lambda screen: "round 5:" in screen.text())
            (self.working / "certificate.json").write_bytes(operator.document(run, "certificate"))
            (self.working / "measurements.json").write_bytes(operator.document(run, "measurements"))
            operator.transcript(run, self.working / "transcript.ndjson")
            operator.download(run, self.working / "synthetic.parquet")
        opened = ("--transcript", "transcript.ndjson", "--measurements", "measurements.json")
        rows = ("--data", "synthetic.parquet", "--cards", "cards")
        self.take("verify", "verify", "certificate.json", *opened, *rows)

    def _made(self, name: str) -> Path:
        (self.working / name).mkdir()
        return self.working / name

    def _configure(self, federation: Federation) -> None:
        """The sites of a person at the coordinator and at a hospital; and everybody's cards."""
        from caps.trust.home import card

        lines = []
        for site, name, scope in (("coordinator", COORDINATOR, "operator"), ("holder", OWNER, "owner")):
            place = federation.places[name]
            token = place.home / f"{scope}.token"
            lines += [f"[sites.{site}]", f'url = "{place.url}"', f'token_file = "{token}"']
            lines += [f'authority = "{federation.authority}"']
        (self.working / "config.toml").write_text("\n".join(lines))
        cards = self._made("cards")
        parties: dict[str, Any] = federation.parties(example.HOLDERS)
        addresses = {one["name"]: one for one in (*parties["servers"], parties["coordinator"])}
        for name, place in federation.places.items():
            own = addresses.get(name, {})
            card(place.home, url=own.get("url"), mesh=own.get("mesh")).write(cards / f"{name}.json")

    def _client(self, federation: Federation, name: str, scope: str) -> Client:
        place = federation.places[name]
        return Client(place.url, token=federation.token(name, scope), authority=federation.authority)


def _summarised(screen: Screen) -> bool:
    """Whether the demonstration's summary is complete."""
    _, summary, rest = screen.text().partition("one synthetic dataset")
    return bool(summary) and "\n╰" in rest


def main(arguments: list[str]) -> int:
    """Take all pictures."""
    to = Path(arguments[0]).resolve() if arguments else FOLDER
    with TemporaryDirectory(prefix="caps-") as working:
        Pictures(Path(working), to).all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
