"""A table in a database or a query engine, by Ibis: rows are encoded, checked and counted there, by SQL Ibis writes.

    table -> codes: one CASE for each column -> one aggregate that counts faults
                                             -> GROUP BYs whose cells add up to all marginals of a layout

What comes out are counts. Where rows are needed, or a column is of a type whose conversion engines do not agree on, the
columns asked for are streamed and encoded as those of a file are. Identifiers and values are quoted by Ibis; nobody's
SQL is run. Errors of engines may quote data or credentials, so none is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.domain import MISSING, Clique, Layout
from caps.data.schema import Report, Schema, Tally
from caps.data.schema.columns import Boolean, Categorical, Column, Fault, Numeric
from caps.data.schema.limits import Limits
from caps.data.schema.tables import BLOCK, LONG_FIELD, Opened, Source, check_header, plain_values
from caps.errors import DomainError

if TYPE_CHECKING:
    import ibis.expr.types as ir

MOST_CELLS = 1 << 16
"""The most cells of a GROUP BY that serves several marginals: at some 100 bytes a group its hash table then fits into
the 8 MB that PostgreSQL gives one by default."""
MOST_CASES = 1000
"""The most texts of a column that are told apart by a CASE; a column with more is streamed."""
_CHANGED = "the table changed while it was counted; try again, or use a copy that does not change"
_COUNT = "n"
_DUCKDB_MEMORY = "512MB"


@contextmanager
def told(name: str, doing: str) -> Iterator[None]:
    """Raises DomainError with the source's name and the kind of error, in place of whatever a driver raises."""
    try:
        yield
    except DomainError:
        raise
    except Exception as error:  # noqa: BLE001  drivers of many engines raise errors of their own
        what = f"could not {doing} ({type(error).__name__}); the engine's own log may say why"
        raise DomainError(f"source {name}: {what}") from None


def location(address: str) -> str:
    """An engine's address without credentials or options: what names the place of its tables. Raises DomainError."""
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.scheme:
            return f"{parts.scheme}:{parts.hostname or ''}:{parts.port or ''}{parts.path}"
    raise DomainError("the address is not a url of an engine")


@contextmanager
def connected(name: str, address: str, table: str, schema: str | None = None) -> Iterator[EngineTable]:
    """A table of an engine, while it is used. address: a url for Ibis; `pyspark:` is followed by Spark's master.

    Where the engine allows that, the connection can only read.
    """
    if find_spec("ibis") is None:
        raise DomainError(f"source {name}: to read tables of engines, install caps[sql] at the holder")
    import ibis

    scheme, _, rest = address.partition(":")
    with told(name, "connect to the engine"):
        backend: Any
        if scheme == "duckdb":
            # It runs in this process.
            backend = ibis.duckdb.connect(urlsplit(address).path, read_only=True, memory_limit=_DUCKDB_MEMORY)
        elif scheme == "pyspark":
            backend = _spark(rest)
        else:
            backend = ibis.connect(address)
            if backend.name == "postgres":
                backend.raw_sql("SET default_transaction_read_only = on").close()
    try:
        with told(name, "find the table"):
            found = backend.table(table, database=schema)
        yield EngineTable(name, found)
    finally:
        if backend.name != "pyspark":  # there is one session in a process, whoever uses it
            with suppress(Exception):
                backend.disconnect()


def _spark(master: str) -> Any:
    import ibis
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("caps-holder").config("spark.ui.enabled", "false")
    session = (builder.remote(master) if master.startswith("sc://") else builder.master(master)).getOrCreate()
    if not master.startswith("sc://"):
        session.sparkContext.setLogLevel("OFF")  # what it logs may quote data
    return ibis.pyspark.connect(session)


@dataclass(frozen=True)
class Grouping:
    """A GROUP BY: the attributes by which it groups, and the marginals that follow from its cells."""

    attributes: Clique
    cliques: tuple[Clique, ...]


class EngineTable(Source):
    """A table of an engine. name: of the source, for messages. table: as Ibis has it."""

    ordered = False
    """Rows come in any order."""

    def __init__(self, name: str, table: ir.Table) -> None:
        self.name, self._table = name, table

    def open(
        self, columns: Sequence[Column], *, extra: str, limits: Limits, held: ExitStack, days: Collection[str]
    ) -> Opened:
        """Streams the columns asked for. The table may have others whatever `extra` says: they are not read."""
        chosen = self._chosen(columns)
        with told(self.name, "describe the table"):
            schema = cast(pl.DataFrame, pl.from_arrow(chosen.schema().to_pyarrow().empty_table())).schema
        types = {str(place): kind for place, kind in enumerate(schema.values())}
        plain = [
            plain_values(pl.col(str(place)), types[str(place)], column, days).alias(str(place))
            for place, column in enumerate(columns)
        ]
        empty = pl.DataFrame(schema=types).select(plain)
        return Opened(empty.schema, None, partial(self._stream, chosen, types, plain, limits))

    def query(self, columns: Sequence[Column]) -> str:
        """What `open` asks for, as SQL of the engine."""
        import ibis

        with told(self.name, "write the query"):
            return str(ibis.to_sql(self._chosen(columns)))

    def _chosen(self, columns: Sequence[Column]) -> ir.Table:
        check_header(list(self._table.columns), columns, "ignore")
        return self._table.select(**{str(place): self._table[column.name] for place, column in enumerate(columns)})

    def _stream(
        self,
        chosen: ir.Table,
        types: Mapping[str, pl.DataType],
        plain: Sequence[pl.Expr],
        limits: Limits,
        expressions: Sequence[pl.Expr],
    ) -> Iterator[pl.DataFrame]:
        rows = 0
        for frame in self._batches(chosen):
            rows += frame.height
            if rows > limits.rows:
                raise DomainError(f"the table has more than {limits.rows} rows")
            with told(self.name, "read the table"):
                given = frame.cast(pl.Schema(types)).select(plain)
                longest = given.select(pl.selectors.string().str.len_bytes().max())
                computed = given.select(expressions)
            if longest.width and any((found or 0) > limits.field for found in longest.row(0)):
                raise DomainError(LONG_FIELD.format(limits.field))
            yield from computed.iter_slices(BLOCK)

    def _batches(self, chosen: ir.Table) -> Iterator[pl.DataFrame]:
        with told(self.name, "read the table"):
            backend = chosen.get_backend()
            if backend.name == "pyspark":
                yield from _spark_batches(backend, chosen)
            else:
                for batch in chosen.to_pyarrow_batches(chunk_size=BLOCK):
                    yield cast(pl.DataFrame, pl.from_arrow(batch))

    def counter(self, schema: Schema, layout: Layout, lacking: Collection[str] = ()) -> Counter | None:
        """Counts the marginals of a layout in the engine; None if a column must be encoded here."""
        check_header(list(self._table.columns), schema.columns, "ignore")
        raw: dict[str, Any] = {}
        remedied: dict[str, Any] = {}
        with told(self.name, "describe the table"):
            for place, column in enumerate(schema.columns):
                code = coder(column, self._table[column.name])
                if code is None:
                    return None
                remedies = ({Fault.MISSING: MISSING} if column.name in lacking else {}) | column.remedies
                raw[f"c{place}"] = code({})
                remedied[f"c{place}"] = code(remedies)
            return Counter(self.name, schema, layout, self._table.select(**raw), self._table.select(**remedied))


class Counter:
    """The queries that count a table, and what they find. raw, remedied: codes, with faults and with their remedies."""

    def __init__(self, name: str, schema: Schema, layout: Layout, raw: ir.Table, remedied: ir.Table) -> None:
        self._name, self._schema, self._layout, self._raw, self._remedied = name, schema, layout, raw, remedied
        self._groupings = groupings(layout)

    @cached_property
    def _checking(self) -> ir.Table:
        """One row: how many rows there are, and how many faults of each kind in each column."""
        counts: dict[str, Any] = {_COUNT: self._raw.count()}
        for place in range(len(self._schema.columns)):
            for fault in Fault:
                counts[f"c{place}_{fault.name.lower()}"] = (self._raw[f"c{place}"] == fault.value).sum()
        return self._raw.aggregate(**counts)

    def _counting(self, grouping: Grouping) -> ir.Table:
        names = [self._place(name) for name in grouping.attributes]
        return self._remedied.group_by(names).aggregate(**{_COUNT: self._remedied.count()})

    def _place(self, name: str) -> str:
        return f"c{self._schema.domain().position(name)}"

    def queries(self) -> list[str]:
        """All that will be asked, as SQL of the engine: first the check, then the counts."""
        import ibis

        with told(self._name, "write the queries"):
            return [str(ibis.to_sql(one)) for one in (self._checking, *map(self._counting, self._groupings))]

    def check(self) -> Report:
        """How many rows there are, and how many values of each column the schema does not admit."""
        with told(self._name, "check the table"):
            found = self._checking.to_pyarrow().to_pylist()[0]
        tally = Tally()
        tally.begin(self._schema.columns)
        tally.rows = int(found[_COUNT])
        for place in range(len(self._schema.columns)):
            tally.count(place, {fault: int(found[f"c{place}_{fault.name.lower()}"] or 0) for fault in Fault})
        return tally.report

    def marginals(self, rows: int) -> npt.NDArray[np.uint32]:
        """The marginals of the layout, as words of Z_2^32. Raises DomainError if these are not of `rows` rows, or some
        queries saw other rows than others did."""
        layout = self._layout
        counts = np.zeros(layout.cells, np.uint32)
        singles: dict[str, npt.NDArray[np.int64]] = {}
        for grouping in self._groupings:
            codes, found = self._cells(grouping)
            if found.sum() != rows:
                raise DomainError(f"source {self._name}: {_CHANGED}")
            for place, name in enumerate(grouping.attributes):
                size = layout.domain.sizes[layout.domain.position(name)]
                if not ((codes[:, place] >= MISSING) & (codes[:, place] < size)).all():
                    raise DomainError(f"source {self._name}: {_CHANGED}")
                single = _added(codes[:, place] + 1, found, size + 1)
                if not np.array_equal(singles.setdefault(name, single), single):
                    raise DomainError(f"source {self._name}: {_CHANGED}")
            for clique in grouping.cliques:
                own = codes[:, [grouping.attributes.index(name) for name in clique]]
                whole = (own != MISSING).all(axis=1)
                cells = np.ravel_multi_index(tuple(own[whole].T), layout.domain.shape(clique))
                part = layout.part(clique)
                counts[part] = _added(cells, found[whole], part.stop - part.start).astype(np.uint32)
        return counts

    def _cells(self, grouping: Grouping) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The combinations of codes that occur, and how often."""
        with told(self._name, "count the table"):
            found = self._counting(grouping).to_pyarrow()
            columns = [
                found[name].to_numpy().astype(np.int64)
                for name in (*(self._place(name) for name in grouping.attributes), _COUNT)
            ]
        return np.stack(columns[:-1], axis=1), columns[-1]


def groupings(layout: Layout) -> list[Grouping]:
    """GROUP BYs from whose cells all marginals follow, few because each reads the table.

    A marginal is a sum over the cells of any GROUP BY that has its attributes. So each starts from a marginal that no
    other gives, the largest first, and takes in the attribute that makes it give the most others, while it has at most
    MOST_CELLS cells.
    """
    domain = layout.domain
    extent = {one.name: one.size + one.nullable for one in domain.attributes}
    with_name: dict[str, set[Clique]] = {name: set() for name in domain.names}
    for clique in layout.cliques:
        for name in clique:
            with_name[name].add(clique)
    left, found = set(layout.cliques), []
    for clique in sorted(layout.cliques, key=lambda one: (-len(one), layout.index(one))):
        if clique not in left:
            continue
        chosen = set(clique)
        while True:
            room = MOST_CELLS // prod(extent[name] for name in chosen)
            gains = [
                (sum(one <= chosen | {name} for one in map(frozenset, with_name[name] & left)), name)
                for name in domain.names
                if name not in chosen and extent[name] <= room
            ]
            gain, best = max(gains, key=lambda one: one[0], default=(0, ""))
            if not gain:
                break
            chosen.add(best)
        given = tuple(one for one in layout.cliques if one in left and chosen.issuperset(one))
        left.difference_update(given)
        found.append(Grouping(domain.clique(chosen), given))
    return found


def coder(column: Column, value: Any) -> Callable[[Mapping[Fault, int]], Any] | None:
    """The code of a column's value as an expression, given the codes that replace faults; those without one keep their
    own. None if engines would not agree with `Column.prepare` and `Column.classify`."""
    kind = value.type()
    if type(column) is Numeric and kind.is_numeric():
        return partial(_binned, column, value)
    if type(column) is Boolean and kind.is_boolean():
        return partial(_truth, value)
    if type(column) in (Boolean, Categorical) and len(column.texts) + len(column.tokens) <= MOST_CASES:
        if kind.is_integer():
            return partial(_looked_up, column, value.cast("string"))
        if kind.is_string():
            return partial(_looked_up, column, value)
    return None


def _looked_up(column: Column, text: Any, remedies: Mapping[Fault, int]) -> Any:
    missing = remedies.get(Fault.MISSING, Fault.MISSING.value)
    unknown = Fault.UNPARSABLE if isinstance(column, Boolean) else Fault.UNKNOWN
    cases = [*((one, code) for code, one in enumerate(column.texts)), *((one, missing) for one in column.tokens)]
    return text.isnull().ifelse(missing, text.cases(*cases, else_=remedies.get(unknown, unknown.value)))


def _truth(value: Any, remedies: Mapping[Fault, int]) -> Any:
    missing = remedies.get(Fault.MISSING, Fault.MISSING.value)
    return value.isnull().ifelse(missing, value.ifelse(1, 0))


def _binned(column: Numeric, value: Any, remedies: Mapping[Fault, int]) -> Any:
    import ibis

    def literal(number: float) -> Any:
        return ibis.literal(float(number), "float64")

    def below(number: float) -> Any:
        return exact < literal(number) if column.side == "right" else exact <= literal(number)

    code = {fault: remedies.get(fault, fault.value) for fault in Fault}
    exact = value.cast("float64")
    missing = value.isnull()
    if value.type().is_floating():
        missing |= exact.isnan()
    if column.numeric_tokens:
        missing |= exact.isin([literal(number) for number in column.numeric_tokens])
    unparsable = exact.isinf()
    if column.integer:
        unparsable |= exact != exact.floor()
    first, *edges = column.bin_edges
    bins = [(below(edge), place) for place, edge in enumerate(edges)]
    return ibis.cases(
        (missing, code[Fault.MISSING]),
        (unparsable, code[Fault.UNPARSABLE]),
        (below(first), code[Fault.LOW]),
        *bins,
        else_=code[Fault.HIGH],
    )


def _spark_batches(backend: Any, chosen: ir.Table) -> Iterator[pl.DataFrame]:
    """Ibis collects all of a Spark table; here one partition is here at a time."""
    frame = backend._session.sql(backend.compile(chosen))
    names, part = list(chosen.columns), []
    schema = cast(pl.DataFrame, pl.from_arrow(chosen.schema().to_pyarrow().empty_table())).schema
    for row in frame.toLocalIterator():
        part.append(tuple(row))
        if len(part) == BLOCK:
            yield pl.DataFrame(part, schema=schema, orient="row")
            part = []
    if part or not names:
        yield pl.DataFrame(part, schema=schema, orient="row")


def _added(cells: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    total = np.zeros(size, np.int64)
    np.add.at(total, cells, counts)
    return total
