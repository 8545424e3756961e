"""Studies that exist to be abused: driven by hand to the point where a rogue takes over."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.adversary.stage import Stage
from tests.kit.federation import Driver, manifest_of

Depth = Literal["approved", "contributed", "sealed", "begun"]
HOLDERS = ("north", "south")


@dataclass
class Prey:
    """A study at all servers, with the means to speak for its coordinator and its holders."""

    driver: Driver
    shape: tuple[int, ...]

    @property
    def study(self) -> str:
        return self.driver.study


def prey(stage: Stage, depth: Depth, **choices: object) -> Prey:
    """A study that has come so far. It is made anew: what others did to theirs does not matter here."""
    split = [{"name": name, "brings": "rows"} for name in HOLDERS]
    manifest = manifest_of(stage.federation, split, **{"algorithm": "mst", **choices})  # type: ignore[arg-type]
    driver = stage.held.enter_context(Driver(stage.federation, manifest))
    found = Prey(driver, manifest.form_of(manifest.holder(HOLDERS[0])).shape)
    for server, response in zip(driver.clients, driver.propose(), strict=True):
        response.raise_for_status()
        stage.proposed.add((server, driver.study))
    for name in HOLDERS:
        driver.approve(name)
    if depth == "approved":
        return found
    for name in HOLDERS:
        driver.contribute(name, np.zeros(found.shape, np.int64))
    if depth == "contributed":
        return found
    for response in driver.seal():
        response.raise_for_status()
    if depth == "begun":
        begin(stage, driver)
    return found


def begin(stage: Stage, driver: Driver) -> str:
    """Begin a run, with a new id; it is known to have been accepted."""
    driver.run = secrets.token_hex(16)
    for name, response in zip(driver.clients, driver.begin(), strict=True):
        response.raise_for_status()
        stage.began.add((name, driver.run))
    return driver.run
