"""The file of a model: a line that names the format, a line of JSON, then the potentials. Nothing in it is executed.

    caps-model/v2
    {"attributes": [...], "cliques": [[...], ...], "groups": [[...], ...], "sha256": "...", "total": "0x1.8p+9"}
    potentials, clique after clique, as little-endian float64, row-major in the order of the wide domain

What the potentials do not say, the marginals and the tree, follows from them; the wide domain (`absence`) follows from
the attributes and from the groups that a person may lack together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from caps.data.domain import MAX_ATTRIBUTES, Attribute, Clique, Domain
from caps.data.junction import FLOAT_BYTES, model_bytes
from caps.errors import DomainError
from services.coordinator.estimation import Floats
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.fitting import check_size

MAGIC = b"caps-model/v2\n"
MAX_HEADER = 1 << 24
_MAX_CLIQUES = 1 << 16
_FIELDS = {"attributes", "cliques", "groups", "sha256", "total"}


def save_model(path: str | PathLike[str], absence: Absence, total: float, potentials: Mapping[Clique, Floats]) -> None:
    """Write the file; it appears whole or not at all."""
    body = b"".join(np.ascontiguousarray(table, "<f8").tobytes() for table in potentials.values())
    header = {
        "attributes": absence.domain.to_json(),
        "cliques": [list(clique) for clique in potentials],
        "groups": [list(group) for group in absence.groups],
        "sha256": hashlib.sha256(body).hexdigest(),
        "total": total.hex(),
    }
    text = json.dumps(header, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    target = Path(path)
    draft = target.with_name(target.name + ".part")
    draft.write_bytes(MAGIC + text + b"\n" + body)
    draft.replace(target)


def read_model(path: str | PathLike[str], limit: int) -> tuple[Absence, float, dict[Clique, Floats]]:
    """What `save_model` was given. Raises DomainError as `load_model` does."""
    with Path(path).open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise DomainError("this is not a model file of a version known here")
        absence, cliques, digest, total = _header(file)
        check_size(model_bytes(absence.wide, cliques), limit)
        sizes = [absence.wide.cells(clique) for clique in cliques]
        body = file.read(FLOAT_BYTES * sum(sizes) + 1)
    if len(body) != FLOAT_BYTES * sum(sizes):
        raise DomainError("the model file is cut short, or has extra bytes at the end")
    if hashlib.sha256(body).hexdigest() != digest:
        raise DomainError("the model file was altered: its digest does not match")
    values = np.frombuffer(body, "<f8").astype(np.float64)
    if not np.isfinite(values).all():
        raise DomainError("a potential of the model is not a number")
    tables = np.split(values, np.cumsum(sizes)[:-1]) if sizes else []
    return absence, total, dict(zip(cliques, tables, strict=True))


def _header(file: BinaryIO) -> tuple[Absence, list[Clique], str, float]:
    line = file.readline(MAX_HEADER)
    try:
        header: Any = json.loads(line)
        if not line.endswith(b"\n") or header.keys() != _FIELDS or len(header["attributes"]) > MAX_ATTRIBUTES:
            raise DomainError("the header does not have the expected fields")
        if any(attribute.keys() != {"name", "nullable", "size"} for attribute in header["attributes"]):
            raise DomainError("an attribute does not have the expected fields")
        domain = Domain(tuple(Attribute(**attribute) for attribute in header["attributes"]))
        groups = tuple(domain.clique(group) for group in header["groups"])
        if len(set().union(*groups)) != sum(map(len, groups)):
            raise DomainError("an attribute is in two groups")
        absence = Absence(domain, groups)
        cliques = [absence.wide.clique(clique) for clique in header["cliques"]]
        if cliques != [tuple(clique) for clique in header["cliques"]] or len(set(cliques)) != len(cliques):
            raise DomainError("a clique is repeated, or not in domain order")
        total = float.fromhex(header["total"])
        if len(cliques) > _MAX_CLIQUES or not (isfinite(total) and total > 0) or not isinstance(header["sha256"], str):
            raise DomainError("a field is out of range")
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError, DomainError) as error:
        raise DomainError(f"the model's header cannot be read: {error}") from error
    return absence, cliques, header["sha256"], total
