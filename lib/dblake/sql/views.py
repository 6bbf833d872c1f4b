"""Views of one source in a session's own catalogue, made for the names a statement uses.

``schema.table``, ``schema.table_live``, ``schema.table_history``; ``dblake.events``, ``.schemas``, ``.windows``,
``.frontier``. Each view is pinned to the table versions that were newest when it was made, so one statement reads one
state of things; with ``at``, to those of a row of ``frontier``. Names are matched without regard to case, as Spark
does; a character Spark does not take in a view's name is written ``_``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from dblake.core.errors import StateError, UsageError
from dblake.core.names import split_qualified
from dblake.core.schema import TableSchema
from dblake.events.schema import EVENTS, WINDOWS
from dblake.lake.frontier import FRONTIER, Frontier, read_frontier
from dblake.lake.layout import Paths
from dblake.lake.log import Application
from dblake.lake.schemas import SCHEMAS, read_schemas
from dblake.spark.sql_literals import delta, identifier, literal
from dblake.sql.live import history_sql, live_sql, plain_sql, state_rows
from dblake.state.shape import Shape, shape_of, widened_to_fit
from dblake.state.table import progress

OURS = "dblake"
LIVE, HISTORY = "_live", "_history"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A view to make: ``kind`` is ``""``, ``_live`` or ``_history``."""

    table: str
    kind: str


class Views:
    """Makes views on demand. Reads the schemas once; make a new one to see tables that came since."""

    def __init__(self, spark: SparkSession, paths: Paths, at: Frontier | None = None) -> None:
        self._spark, self._paths, self._at = spark, paths, at
        self._schemas: dict[str, list[TableSchema]] = {}
        if DeltaTable.is_deltatable(paths.schemas):
            for table, versions in read_schemas(paths).items():
                seen = [v.schema for v in versions if at is None or v.batch <= at.batch]
                if seen:
                    self._schemas[table] = seen
        self._by_name: dict[tuple[str, str], list[str]] = {}
        for table in self._schemas:
            schema, name = split_qualified(table)
            self._by_name.setdefault((_view_name(schema).lower(), _view_name(name).lower()), []).append(table)
        self._databases: dict[str, tempfile.TemporaryDirectory[str]] = {}
        schemas = sorted({schema for schema, _ in self._by_name})
        self._default = schemas[0] if len(schemas) == 1 else "public" if "public" in schemas else None
        for database in [*schemas, OURS]:
            self._database(database)
        if self._default:
            spark.catalog.setCurrentDatabase(self._default)

    @property
    def tables(self) -> list[str]:
        """The qualified names of all tables there are."""
        return sorted(self._schemas)

    def make(self, names: Iterable[Sequence[str]]) -> None:
        """Makes the views these names (in parts, as a statement has them) mean; names not ours are left alone."""
        for parts in names:
            if len(parts) == 1:
                self._make_unqualified(parts[0].lower())
            elif len(parts) == 2 and parts[0].lower() == OURS and self._make_ours(parts[1].lower()):
                continue
            elif len(parts) == 2:
                wanted = self._find(parts[0].lower(), parts[1].lower())
                if wanted:
                    self._create(f"VIEW {identifier(parts[0])}.{identifier(parts[1])}", self._sql(wanted))

    def plain(self, table: str) -> DataFrame:
        """The rows of a table, given by its qualified name, as its view has them."""
        return self._spark.sql(self._sql(_Wanted(table, "")))

    def _make_unqualified(self, name: str) -> None:
        self._spark.catalog.dropTempView(name)
        found = {schema: w for schema in {s for s, _ in self._by_name} if (w := self._find(schema, name))}
        if self._default in found:
            self._create(f"VIEW {identifier(self._default or '')}.{identifier(name)}", self._sql(found[self._default]))
        elif len(found) > 1:
            raise UsageError(f"{name} is a table of {', '.join(sorted(found))}", next_step=f"write schema.{name}")
        elif found:
            self._create(f"TEMPORARY VIEW {identifier(name)}", self._sql(*found.values()))

    def _find(self, schema: str, name: str) -> _Wanted | None:
        for kind in ("", LIVE, HISTORY):
            tables = self._by_name.get((schema, name.removesuffix(kind)), []) if name.endswith(kind) else []
            if len(tables) > 1:
                raise UsageError(
                    f"{schema}.{name} may mean {' or '.join(tables)}, which Spark cannot tell apart",
                    next_step="read the table by its folder under state/",
                )
            if tables:
                return _Wanted(tables[0], kind)
        return None

    def _make_ours(self, name: str) -> bool:
        known: Mapping[str, tuple[str, StructType]] = {
            "events": (self._paths.events, EVENTS), "schemas": (self._paths.schemas, from_arrow_schema(SCHEMAS)),
            "windows": (self._paths.windows, WINDOWS), "frontier": (self._paths.frontier, from_arrow_schema(FRONTIER)),
        }
        if name not in known:
            return False
        path, schema = known[name]
        self._create(f"VIEW {OURS}.{name}", f"SELECT * FROM {self._relation(path, schema)}")
        return True

    def _sql(self, wanted: _Wanted) -> str:
        # Before the state table is looked at: a frontier read later could be ahead of it, and events would be missed.
        frontier = self._at or (read_frontier(self._paths) if wanted.kind == LIVE else Frontier())
        shape = shape_of(self._schemas[wanted.table])
        events = self._relation(self._paths.events, EVENTS)
        own = f"`table` = {literal(wanted.table)}"
        if wanted.kind == HISTORY:
            return history_sql(shape, f"(SELECT * FROM {events} WHERE {own})")
        shape, state, done = self._state(wanted.table, shape, strict=wanted.kind == LIVE)
        if wanted.kind == "":
            return plain_sql(shape, state)
        if wanted.table not in frontier.behind:
            done = max(done, frontier.batch)
        return live_sql(shape, state, f"(SELECT * FROM {events} WHERE {own} AND batch > {done})")

    def _state(self, table: str, shape: Shape, *, strict: bool) -> tuple[Shape, str, int]:
        """The shape state has, state as a relation, and the batch it holds."""
        path = self._paths.state(*split_qualified(table))
        if self._at and table in self._at.behind:
            raise UsageError(
                f"table {table} was behind at that point: its state stood at landing batch {self._at.behind[table]}",
                next_step="ask for another point, or leave out --at",
            )
        if self._at and table not in self._at.versions:
            return shape, state_rows(shape, None, set()), 0
        now = progress(path, Application.state(self._paths.source))
        if now is None:
            return shape, state_rows(shape, None, set()), 0
        relation = delta(path, self._at.versions[table] if self._at else now.version)
        fields = self._spark.sql(f"SELECT * FROM {relation} LIMIT 0").schema
        existing = {f.name: f.dataType.simpleString().upper() for f in fields}
        if strict:
            now.require_key(shape)
        try:
            shape = widened_to_fit(shape, existing)
        except StateError:
            # The table itself can still be read as it was before the change; what is newer cannot be laid over it.
            if strict:
                raise
        return shape, state_rows(shape, relation, set(existing)), now.batch or 0

    def _relation(self, path: str, schema: StructType) -> str:
        """A table of ours as it is now, or as it was at the point asked for; empty if it is not there yet."""
        if not DeltaTable.is_deltatable(path):
            columns = ", ".join(f"CAST(NULL AS {f.dataType.simpleString()}) AS {identifier(f.name)}" for f in schema)
            return f"(SELECT {columns} WHERE false)"
        pinned = delta(path, DeltaTable(path).version())
        upto = StructField("batch", LongType()) in schema.fields and self._at
        return f"(SELECT * FROM {pinned} WHERE batch <= {self._at.batch})" if self._at and upto else pinned

    def _database(self, name: str) -> None:
        # Spark gives every database a folder; ours hold only views, so theirs are thrown away.
        self._databases[name] = tempfile.TemporaryDirectory(prefix="dblake-views-")
        self._spark.sql(
            f"CREATE DATABASE IF NOT EXISTS {identifier(name)} LOCATION {literal(self._databases[name].name)}"
        )

    def _create(self, what: str, text: str) -> None:
        self._spark.sql(f"CREATE OR REPLACE {what} AS {text}")


def _view_name(part: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", part)
