"""Whole AIM studies with the three servers far apart: seconds of an AIM round against its rounds times the round trip.

The servers' connections go through `bench.delays`, relays that hold every byte back: this needs neither root nor netem.
`loopback` is without relays, `relay` with relays that hold nothing back. An AIM round is SELECT, MEASURE, the fit, and
drawing the noise of later rounds; its MPC rounds and bytes are what server S1 counted between COMPUTE ANSWERS and the
last step.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx

from bench import studies
from bench.datasets import load
from caps.federation.ports import free_ports
from deploy.federation import COORDINATOR, SERVERS, Federation

LINES: dict[str, tuple[float, float] | None] = {
    "loopback": None,
    "relay": (0.0, 0.0),
    "20 ms": (0.020, 0.0),
    "80 ms": (0.080, 0.0),
    "20 ms, 100 Mbit/s": (0.020, 100e6 / 8),
    "80 ms, 10 Mbit/s": (0.080, 10e6 / 8),
}
"""Round trip in seconds, and bytes per second in each direction of each connection."""
GOAL = 1.3


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--dataset", default="diabetes.caps")
    parser.add_argument("--setting", default="vertical", choices=studies.SETTINGS)
    parser.add_argument("--repeats", type=int, default=3, help="studies on each line (default 3)")
    parser.add_argument("--lines", nargs="+", default=list(LINES), choices=list(LINES))


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """One key per line: the study with the median time of an AIM round."""
    report: dict[str, Any] = {}
    dataset = load(options.dataset)
    for name in options.lines:
        line = LINES[name]
        with far_apart(line) as federation:
            runs = []
            for i in range(options.repeats + 1):  # the first warms up
                look = Looker(federation)
                _, entry = studies.perform(
                    federation, dataset, algorithm="aim", setting=options.setting, seed=i, watch=look
                )
                runs.append({**entry, **look.counted(), "round_trip": line[0] if line else 0.0})
            found = sorted(runs[1:], key=lambda run: run["loop"] / run["rounds"])[options.repeats // 2]
        report[name] = {
            **found,
            "dataset": options.dataset,
            "setting": options.setting,
            "seconds_per_round": found["loop"] / found["rounds"],
            "mpc_rounds_per_round": found["mpc_rounds"] / found["rounds"],
        }
        _judge(report)
        record(report)
    return report


def _judge(report: dict[str, Any]) -> None:
    """At most GOAL times rounds x round trip, plus the time without a delay."""
    if "loopback" not in report:
        return
    base = report["loopback"]["seconds_per_round"]
    for entry in report.values():
        entry["goal"] = GOAL * entry["mpc_rounds_per_round"] * entry["round_trip"] + base
        entry["met"] = entry["seconds_per_round"] <= entry["goal"]


class Looker:
    """Reads S1's rounds and bytes of a run, again and again while it goes on."""

    def __init__(self, federation: Federation) -> None:
        self._client: httpx.Client = federation.client("S1", "operator")
        self._seen: list[tuple[int, int, int]] = []

    def __call__(self, run: str) -> None:
        """Look once."""
        text = self._client.get("/metrics").text
        found = [re.search(rf"^caps_run_{what}{{[^}}]*{run}[^}}]*}} (\S+)$", text, re.M) for what in _FIGURES]
        if all(found):
            steps, rounds, sent = (int(float(match[1])) for match in found if match)
            self._seen.append((steps, rounds, sent))

    def counted(self) -> dict[str, int]:
        """Rounds and bytes since COMPUTE ANSWERS was answered."""
        self._client.close()
        after = [one for one in self._seen if one[0] >= 1]
        if not after:
            return {"mpc_rounds": 0, "mpc_bytes": 0}
        return {"mpc_rounds": after[-1][1] - after[0][1], "mpc_bytes": after[-1][2] - after[0][2]}

    @property
    def total(self) -> tuple[int, int]:
        """Rounds and bytes of the whole run, as far as they were seen."""
        _, rounds, sent = max(self._seen, default=(0, 0, 0))
        return rounds, sent


_FIGURES = ("steps", "rounds", "sent_bytes")


@contextmanager
def far_apart(line: tuple[float, float] | None) -> Any:
    """A federation whose servers meet through relays."""
    with ExitStack() as stack:

        def start(federation: Federation) -> None:
            if line is None:
                federation.start()
                return
            ports = free_ports(len(SERVERS))
            targets = [federation.places[name].mesh_port for name in SERVERS]
            pairs = [f"{listen}:{target}" for listen, target in zip(ports, targets, strict=True)]
            relays = subprocess.Popen(
                [sys.executable, "-m", "bench.delays", str(line[0] / 2), str(line[1]), *pairs],
                stdout=subprocess.PIPE,
            )
            stack.callback(relays.wait)
            stack.callback(relays.kill)
            assert relays.stdout is not None
            relays.stdout.readline()
            mesh = " ".join(f"127.0.0.1:{port}" for port in ports)
            for name, target in zip(SERVERS, targets, strict=True):
                federation.start(name, environment={"CAPS_MESH": mesh, "CAPS_MESH_LISTEN": f"127.0.0.1:{target}"})
            federation.start(COORDINATOR, *studies.HOLDERS)

        yield stack.enter_context(studies.federation(start=start))


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<22}{'s / AIM round':>14}{'MPC rounds':>12}{'kB':>9}{'goal s':>9}{'study s':>9}"]
    for name, entry in report.items():
        lines.append(
            f"{name:<22}{entry['seconds_per_round']:>14.3f}{entry['mpc_rounds_per_round']:>12.1f}"
            f"{entry['mpc_bytes'] / entry['rounds'] / 1e3:>9.1f}{entry.get('goal', float('nan')):>9.3f}"
            f"{entry['seconds']:>9.2f}  {'' if entry.get('met', True) else 'MISSED'}"
        )
    return "\n".join(lines)
