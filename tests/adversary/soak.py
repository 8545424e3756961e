"""`python -m tests.adversary.soak [--seconds N]`: studies back to back with faults; what services hold must stay flat.

A federation of real processes takes one study after another from CSV files to a verified release, or to the end that
the fault of the study makes right. After each, memory, descriptors, threads and bytes on disk of every service are
printed; at the end a line is fitted to each (`flatness`), and growth beyond the tolerance fails the soak. No time is
judged.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from threading import Thread

import numpy as np

from caps.basics.schemes import REP3_ACTIVE
from caps.client import ClientError, ProblemError
from deploy.federation import COORDINATOR, POLICY
from tests.adversary.flatness import Sample, Tolerance, fit, growing
from tests.kit.cheating_service import arm, cheated, disarm
from tests.kit.federation import Driver, supervised
from tests.kit.processes import CANARIES, Everybody, Study, client, nobody_wrote, persons, vertical
from tests.kit.waiting import until

HOLDERS = ("north", "south")
PATIENCE = 240.0
STALL = 4.0
PERSONS, SLOTS = 60, 64
SESSIONS = 10
"""Sessions that a server breaks, in one study."""
FRAIL = ("S3", "south", COORDINATOR)
"""Who is killed. The others live through the whole soak: a leak has nowhere to hide."""
TOLERANCES = {
    "memory": Tolerance(0.4e6, 16e6),
    "descriptors": Tolerance(0.05, 16),
    "threads": Tolerance(0.05, 16),
    "disk": Tolerance(0.02e6, 1e6),
}
"""Growth that is tolerated, of bytes in memory, descriptors, threads; and of the bytes that a study adds to the disk,
which may not become more from study to study."""
ENDED = ("failed", "released")


@dataclass
class Soak:
    """The studies so far, and what was seen after each."""

    federation: Everybody
    folder: Path
    slots: int
    numbers: Iterator[int] = field(default_factory=count)
    series: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    stretches: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def study(self, fault: str) -> str:
        """One study with a fault; how it ended."""
        number = next(self.numbers)
        folder = self.folder / f"study{number}"
        folder.mkdir()
        study = vertical(
            self.federation,
            folder,
            persons(PERSONS, number),
            slots=self.slots,
            algorithm="aim",
            parameters={"rounds": 3},
            privacy={"population": f"soak{number}"},
        )
        study.patience = PATIENCE
        with supervised(self.federation, *self.federation.places, under=self.federation.under, on_death=self.died):
            state = FAULTS[fault](study)
            until(lambda: all(map(self.federation.running, self.federation.places)), PATIENCE)
        self.federation.wait_ready()
        if state == "released":
            study.fetch(folder / "release")
        nobody_wrote(self.federation, *CANARIES)
        self.look(number, fault, state)
        return state

    def died(self, name: str) -> None:
        """A service begins anew."""
        self.stretches[name] = self.stretches.get(name, 0) + 1

    def look(self, number: int, fault: str, state: str) -> None:
        """Note what every service holds, and print it."""
        print(f"study {number}: {fault}: {state}", flush=True)
        for name, place in self.federation.places.items():
            seen = self.federation.vitals(name)
            disk = stored(place.home / "state")
            added, self.held[name] = disk - self.held.get(name, 0), disk
            values = {"memory": seen.memory, "descriptors": seen.descriptors, "threads": seen.threads, "disk": added}
            stretch = self.stretches.get(name, 0)
            for quantity, value in values.items():
                # What a study adds to the disk does not begin anew with the process.
                one = Sample(number, 0 if quantity == "disk" else stretch, value)
                self.series.setdefault((name, quantity), []).append(one)
            print(
                f"  {name:<12} {seen.memory / 1e6:8.1f} MB {seen.descriptors:5} descriptors {seen.threads:4} threads "
                f"{disk / 1e6:8.2f} MB on disk ({added / 1e3:+.0f} kB)",
                flush=True,
            )

    def verdict(self) -> list[str]:
        """Print the fitted lines; what grows."""
        print("growth per study, with twice its standard error:")
        for (name, quantity), samples in self.series.items():
            fitted = fit(samples)
            words = "too few studies" if fitted is None else f"{fitted.slope:+.4g} +- {2 * fitted.error:.2g}"
            print(f"  {name:<12} {quantity:<12} {words}", flush=True)
        return growing(self.series, TOLERANCES)


def stored(folder: Path) -> int:
    """Bytes of what a service keeps: its files, and the pages of its database, wherever they are at the moment."""
    kept = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a file that was there for a moment
            kept += path.stat().st_size if path.is_file() and not path.name.startswith("state.db") else 0
    with closing(sqlite3.connect(folder / "state.db", timeout=30)) as database:
        ((pages,),), ((size,),) = (
            database.execute(f"PRAGMA {name}").fetchall() for name in ("page_count", "page_size")
        )
    return kept + int(pages) * int(size)


def ended(study: Study) -> str:
    """How the run ended."""

    def over() -> str | None:
        state = study.state().state
        return state if state in ENDED else None

    return until(over, PATIENCE)


def whole(study: Study, *, during: Callable[[], None] = lambda: None) -> str:
    """All of a study, with something that happens while it runs."""
    study.agree()
    study.contribute()
    thread = Thread(target=during)
    study.start()
    thread.start()
    try:
        return ended(study)
    finally:
        thread.join()


def undisturbed(study: Study) -> str:
    return expecting("released", whole(study))


def killed(name: str) -> Callable[[Study], str]:
    """A service dies in the middle of the run, and comes back."""

    def fault(study: Study) -> str:
        def kill() -> None:
            time.sleep(0.3)
            study.federation.kill(name)

        return expecting("released", whole(study, during=kill))

    return fault


def killed_holder(study: Study) -> str:
    """A holder dies while it pushes."""
    study.agree()
    pushing = Thread(target=study.contribute)
    pushing.start()
    time.sleep(0.5)
    study.federation.kill("south")
    pushing.join()
    study.start()
    return expecting("released", ended(study))


def silent(study: Study) -> str:
    """A server says nothing for longer than its peers wait: sessions are lost, and nobody dies."""

    def hush() -> None:
        time.sleep(0.3)
        study.federation.send("S2", signal.SIGSTOP)
        time.sleep(2 * STALL)
        study.federation.send("S2", signal.SIGCONT)

    return expecting("released", whole(study, during=hush))


def refused(study: Study) -> str:
    """A holder's columns are not one-hot: servers find out, and nobody's budget is lost for a wrong release."""
    study.agree()
    study.files.pop("south")
    study.contribute()
    columns = study.manifest.columns_of(study.manifest.holder("south")).domain()
    with Driver(study.federation, study.manifest) as driver:
        driver.contribute("south", np.full((study.manifest.alignment.slots, sum(columns.sizes)), 1))
    study.start()
    return ended(study)


def cheating(study: Study) -> str:
    """A server lies in the middle of the computation: the run ends, and it is named."""
    study.agree()
    study.contribute()
    arm(study.federation.places["S2"].home, "message", r"^/compute/")
    study.start()
    state = expecting("failed", ended(study))
    assert cheated(study.federation.places["S2"].home)
    return state


def breaking(study: Study) -> str:
    """A server breaks one session after the other, in the middle of a measurement, until it stops."""
    study.agree()
    study.contribute()
    home = study.federation.places["S2"].home
    arm(home, "leave", r"-measure/")
    study.start()
    try:
        until(lambda: lost(study) >= SESSIONS, PATIENCE)
    finally:
        disarm(home)
    return expecting("released", ended(study))


def lost(study: Study) -> int:
    """How many sessions of the run ended in the middle of a computation, as a server counts them."""
    try:
        return study.as_person("S1", "auditor", lambda it: it.run_here(study.run)).interrupted
    except ProblemError:  # it has not begun there yet
        return 0


def forsaken(study: Study) -> str:
    """The connections of the people who watch are lost: they hang up in the middle of an event stream."""

    def watch() -> None:
        for _ in range(20):
            with client(study.federation, COORDINATOR, "analyst") as analyst:
                try:
                    next(iter(analyst.events(study.run)), None)
                except ClientError:
                    time.sleep(0.1)

    return expecting("released", whole(study, during=watch))


def expecting(wanted: str, state: str) -> str:
    assert state == wanted, f"the run is {state}, not {wanted}"
    return state


FAULTS: dict[str, Callable[[Study], str]] = {
    "nothing": undisturbed,
    "a server cheats": cheating,
    "a server breaks sessions": breaking,
    "a server is silent": silent,
    "a contribution is refused": refused,
    "watchers hang up": forsaken,
    "a server is killed": killed("S3"),
    "a holder is killed": killed_holder,
    "the coordinator is killed": killed(COORDINATOR),
}
_LIVELY = (
    "nothing",
    "a server cheats",
    "a server breaks sessions",
    "a contribution is refused",
    "watchers hang up",
    "a server is silent",
) * 2
ORDER = tuple(
    fault
    for death in ("a server is killed", "a holder is killed", "the coordinator is killed")
    for fault in (*_LIVELY, death)
)
"""Those who are killed live for three dozen studies in between, most of them when they are warm."""


@contextmanager
def federation(folder: Path) -> Iterator[Everybody]:
    """Three servers that can be told to cheat, a coordinator, two holders; a group of persons for every study."""
    populations = {f"soak{number}": 20.0 for number in range(4000)}
    settings = {"CAPS_STALL": str(STALL)}
    policy = f"{POLICY}most_studies: {len(populations)}\n"
    with Everybody(
        folder, HOLDERS, policy=policy, populations=populations, environment=settings, scheme=REP3_ACTIVE
    ) as found:
        found.under = ("tests.kit.cheating_service",)
        found.start()
        found.wait_ready(timeout=PATIENCE)
        yield found


def main(arguments: list[str]) -> int:
    """Run, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--slots", type=int, default=SLOTS, help="rows of a study's table")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(ORDER), metavar="FAULT")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="caps-soak-") as folder, federation(Path(folder)) as found:
        soak, begun = Soak(found, Path(folder), options.slots), time.monotonic()
        for fault in cycle(options.faults):
            soak.study(fault)
            if time.monotonic() - begun > options.seconds:
                break
        complaints = soak.verdict()
    for complaint in complaints:
        print(complaint)
    print("grows" if complaints else "flat")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
