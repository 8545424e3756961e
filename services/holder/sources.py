"""Tables that the holder reads where they are: files on its machine, tables of databases and engines.

Its operator declares them in `sources.toml` in the holder's home, and its owner names one of them. Nobody can name
anything else: a request has the name of a source, never an address, a path or a query.

    [registry]                                          # the name
    url = "postgresql://reader@db.example.org/clinic"   # without a password, or else
    url_env = "REGISTRY_URL"                            # the environment variable, or
    url_file = "/run/secrets/registry"                  # the file, in which the whole address is
    table = "patients"                                  # a table or a view: what is in it is all that can be read
    schema = "public"

    [visits]
    file = "/data/visits.parquet"                       # CSV, gzip of it, Excel or Parquet
    encoding = "windows-1252"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from caps.basics import canonical
from caps.basics.document import Name
from caps.data.engine import EngineTable, connected, location
from caps.data.schema import Limits
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.study import Holder, Manifest, table
from caps.study.table import Counted, Rows, TableDoesNotFit, check_counted_rows, check_values, columns_asked
from caps.wire.holder import SourceView
from caps.wire.problems import Kind
from services.holder.fingerprint import Fingerprint
from services.holder.sharing import Counts

FILE = "sources.toml"
_WHERE = ("url", "url_env", "url_file", "file")
_Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Declared(BaseModel):
    """A source as its operator declares it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[_Text | None, Field(description="the engine's address for Ibis, without a password")] = None
    url_env: Annotated[_Text | None, Field(description="or the environment variable that has it, with a password")] = (
        None
    )
    url_file: Annotated[Path | None, Field(description="or the file that has it")] = None
    table: Annotated[_Text | None, Field(description="the table or view of the engine")] = None
    schema_: Annotated[_Text | None, Field(alias="schema", description="the schema that the table is in")] = None
    file: Annotated[Path | None, Field(description="in place of an engine: a file on the holder's machine")] = None
    encoding: Annotated[_Text | None, Field(description="of the file, if it is a CSV and not in UTF-8")] = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum(getattr(self, name) is not None for name in _WHERE) != 1:
            raise ValueError(f"must have one of {', '.join(_WHERE)}")
        if (self.file is None) == (self.table is None):
            raise ValueError("must have a table, and a file must not")
        if self.encoding is not None and self.file is None:
            raise ValueError("only a file has an encoding")
        if self.schema_ is not None and self.table is None:
            raise ValueError("only a table is in a schema")
        if not all(path.is_absolute() for path in (self.file, self.url_file) if path is not None):
            raise ValueError("paths must begin at the root, /")
        if self.url is not None and _secret(self.url):
            raise ValueError("the url has a password: put all of it into a file or a variable, url_file or url_env")
        return self

    def address(self, environment: Mapping[str, str]) -> str:
        """Where the engine is, with credentials."""
        if self.url_env is not None:
            found = environment.get(self.url_env)
            if not found:
                raise DomainError(f"the variable {self.url_env} is not set")
            return found
        if self.url_file is not None:
            try:
                return self.url_file.read_text().strip()
            except (OSError, UnicodeError):
                pass
            raise DomainError(f"{self.url_file} cannot be read")
        assert self.url is not None
        return self.url


def _secret(url: str) -> bool:
    try:
        return urlsplit(url).password is not None
    except ValueError:
        return True


_ALL = TypeAdapter(dict[Name, Declared])


@dataclass(frozen=True)
class Read:
    """What was read of a source. queries: all that was asked of an engine, in its SQL."""

    brought: Rows | Counts | None
    counted: Counted
    fingerprint: str
    queries: list[str]


@dataclass(frozen=True)
class Sources:
    """The sources that the operator declares. The file is read whenever one is asked for."""

    path: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def declared(self) -> dict[str, Declared]:
        """All of them. Raises DomainError that names the place of the first error; nobody's values are in it."""
        if not self.path.exists():
            return {}
        try:
            return _ALL.validate_python(tomllib.loads(self.path.read_text()))
        except (tomllib.TOMLDecodeError, OSError, UnicodeError):
            what = "is not TOML, or cannot be read"
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"] if part != "[key]")
            what = f"{place}: {first['msg']}"
        raise DomainError(f"{self.path}: {what}")

    def views(self) -> list[SourceView]:
        """Their names, for the owner."""
        return [SourceView(source=name, file=one.file is not None) for name, one in sorted(self.declared().items())]

    def find(self, name: str) -> Source:
        """A source. Raises a problem (404) if the operator declares none of this name."""
        found = self.declared().get(name)
        if found is None:
            raise Problem(Kind.NOT_FOUND, "the operator of this holder declares no such source")
        return Source(name, found, self.environment)


@dataclass(frozen=True)
class Source:
    """A declared source."""

    name: str
    declared: Declared
    environment: Mapping[str, str] = field(repr=False)

    @property
    def ordered(self) -> bool:
        """Whether its rows come in the same order each time."""
        return self.declared.file is not None

    def identity(self) -> str:
        """Changes if the source becomes another table; of a file, also if it is written to."""
        return sha256(b"caps/v1/source\0" + canonical.dump(self._about())).hexdigest()

    def _about(self) -> dict[str, Any]:
        path = self.declared.file
        if path is None:
            with self._named():
                address = location(self.declared.address(self.environment))
            return {"address": address, "schema": self.declared.schema_ or "", "table": self.declared.table}
        try:
            found = path.stat()
        except OSError:
            found = None
        if found is None or not path.is_file():
            raise Problem(Kind.NOT_READY, f"source {self.name}: its file is not there, or the holder may not read it")
        return {"file": str(path), "size": str(found.st_size), "written": str(found.st_mtime_ns), "is": found.st_ino}

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except TableDoesNotFit:
            raise
        except DomainError as error:
            what = str(error)
            raise DomainError(what if what.startswith("source ") else f"source {self.name}: {what}") from None

    def read(self, manifest: Manifest, holder: Holder, limits: Limits, folder: Path, *, share: bool) -> Read:
        """Check the table against a study, and if `share`, get what is shared of it. Raises TableDoesNotFit."""
        path = self.declared.file
        if path is None:
            return self._read_engine(manifest, holder, limits, folder, share=share)
        seen = Fingerprint()
        rows, counted = table.read_table(
            path,
            manifest,
            holder,
            limits,
            encoding=self.declared.encoding,
            extra="ignore",
            folder=folder,
            watch=None if share else seen.add,
        )
        return Read(rows if share else None, counted, "" if share else seen.hex(), [])

    def _read_engine(self, manifest: Manifest, holder: Holder, limits: Limits, folder: Path, *, share: bool) -> Read:
        _check_order(manifest, holder)
        declared = self.declared
        with self._named():
            address = declared.address(self.environment)
            assert declared.table is not None
            with connected(self.name, address, declared.table, declared.schema_) as found:
                if holder.brings == "rows":
                    read = self._count(found, manifest, holder, share=share)
                    if read is not None:
                        return read
                rows, counted = table.read_table(found, manifest, holder, limits, folder=folder)
                asked = [found.query(columns_asked(manifest, holder))]
        return Read(rows if share else None, counted, self.identity(), asked)

    def _count(self, found: EngineTable, manifest: Manifest, holder: Holder, *, share: bool) -> Read | None:
        """By the engine; None if it cannot encode every column."""
        counter = found.counter(manifest.columns_of(holder), manifest.layout)
        if counter is None:
            return None
        report = counter.check()
        counted = Counted(report.rows, report.columns)
        check_values(report, counted)
        check_counted_rows(report.rows, manifest, holder, counted)
        brought = Counts(counter.marginals(report.rows)) if share else None
        return Read(brought, counted, self.identity(), counter.queries())


def _check_order(manifest: Manifest, holder: Holder) -> None:
    """A table of an engine has no order, so nothing may depend on it. Raises TableDoesNotFit."""
    if holder.brings == "rows":
        return
    if manifest.join is None:
        if manifest.alignment is None or manifest.alignment.column is None:
            raise TableDoesNotFit("a table of an engine has no order: the study needs a column with numbers of slots")
        return
    key = manifest.join.key
    if key.duplicates != "refuse":
        raise TableDoesNotFit("a table of an engine has no order, and the key keeps the first or last row of a person")
    if manifest.join.protocol == "oprf" and "alone" in (key.missing, key.unparsable):
        raise TableDoesNotFit(
            "rows without a key that stay alone are matched by their order, and a table of an engine has none"
        )
