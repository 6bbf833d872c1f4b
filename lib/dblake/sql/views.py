"""Views of one source in the session's catalog, created for the names that a query uses.

Place: between ``sql.live`` and ``sql.query``. Names: ``schema.table``, ``schema.table_live``, ``schema.table_history``;
``dblake.events``, ``.schemas``, ``.windows``, ``.frontier``, ``.verifications``. Guarantee: each view is pinned to the
table versions that are newest when it is created, or to those of a frontier row, so one query reads one consistent
point. Names match case-insensitively, as in Spark; a character that Spark rejects in a view's name is written ``_``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
from dblake.lake.tables import has_table, open_table
from dblake.spark.sql_literals import delta, identifier, literal
from dblake.sql.live import history_sql, live_sql, plain_sql, state_rows_sql
from dblake.state.shape import Shape, shape_of, widened_to_fit
from dblake.state.table import progress
from dblake.verification.ledger import VERIFICATIONS

SYSTEM_DATABASE = "dblake"
"""The database of the views over a source's own tables."""
LIVE, HISTORY = "_live", "_history"


@dataclass(frozen=True, slots=True)
class _TableView:
    """A view of a table: ``kind`` is ``""``, ``_live`` or ``_history``."""

    table: str
    kind: str


class Views:
    """Creates views on demand, with ``at`` as of a row of the frontier.

    Reads the schemas once; later tables need a new instance.
    """

    def __init__(self, spark: SparkSession, paths: Paths, at: Frontier | None = None) -> None:
        self._spark, self._paths, self._at = spark, paths, at
        self._schemas: dict[str, list[TableSchema]] = {}
        if has_table(paths.schemas):
            for table, versions in read_schemas(paths).items():
                visible = [v.schema for v in versions if at is None or v.batch <= at.batch]
                if visible:
                    self._schemas[table] = visible
        self._by_name: dict[tuple[str, str], list[str]] = {}
        for table in self._schemas:
            schema, name = split_qualified(table)
            self._by_name.setdefault((_view_name(schema).lower(), _view_name(name).lower()), []).append(table)
        self._databases: dict[str, tempfile.TemporaryDirectory[str]] = {}
        schemas = sorted({schema for schema, _ in self._by_name})
        self._default = schemas[0] if len(schemas) == 1 else "public" if "public" in schemas else None
        for database in [*schemas, SYSTEM_DATABASE]:
            self._create_database(database)
        if self._default:
            spark.catalog.setCurrentDatabase(self._default)

    @property
    def tables(self) -> list[str]:
        """Return the qualified names of all tables."""
        return sorted(self._schemas)

    def create(self, names: Iterable[Sequence[str]]) -> None:
        """Create the views for names, each given in parts as in the query; other names are ignored.

        Raises UsageError for an ambiguous name and StateError if events cannot be folded over a table's state.
        """
        for parts in names:
            if len(parts) == 1:
                self._create_unqualified(parts[0].lower())
            elif len(parts) == 2 and parts[0].lower() == SYSTEM_DATABASE and self._create_system_view(parts[1].lower()):
                continue
            elif len(parts) == 2:
                view = self._resolve(parts[0].lower(), parts[1].lower())
                if view:
                    self._replace(f"VIEW {identifier(parts[0])}.{identifier(parts[1])}", self._sql(view))

    def read_plain(self, table: str) -> DataFrame:
        """Return the rows of the plain view of a table, given by its qualified name."""
        return self._spark.sql(self._sql(_TableView(table, "")))

    def _create_unqualified(self, name: str) -> None:
        self._spark.catalog.dropTempView(name)
        views = {schema: v for schema in {s for s, _ in self._by_name} if (v := self._resolve(schema, name))}
        if self._default in views:
            self._replace(f"VIEW {identifier(self._default or '')}.{identifier(name)}", self._sql(views[self._default]))
        elif len(views) > 1:
            raise UsageError(f"{name} is a table of {', '.join(sorted(views))}", next_step=f"write schema.{name}")
        elif views:
            self._replace(f"TEMPORARY VIEW {identifier(name)}", self._sql(*views.values()))

    def _resolve(self, schema: str, name: str) -> _TableView | None:
        for kind in ("", LIVE, HISTORY):
            tables = self._by_name.get((schema, name.removesuffix(kind)), []) if name.endswith(kind) else []
            if len(tables) > 1:
                raise UsageError(
                    f"{schema}.{name} is ambiguous in Spark: {' or '.join(tables)}",
                    next_step="read the table by its folder under state/ in the warehouse",
                )
            if tables:
                return _TableView(tables[0], kind)
        return None

    def _create_system_view(self, name: str) -> bool:
        tables: Mapping[str, tuple[str, StructType]] = {
            "events": (self._paths.events, EVENTS), "schemas": (self._paths.schemas, from_arrow_schema(SCHEMAS)),
            "windows": (self._paths.windows, WINDOWS), "frontier": (self._paths.frontier, from_arrow_schema(FRONTIER)),
            "verifications": (self._paths.verifications, from_arrow_schema(VERIFICATIONS)),
        }
        if name not in tables:
            return False
        path, schema = tables[name]
        self._replace(f"VIEW {SYSTEM_DATABASE}.{name}", f"SELECT * FROM {self._relation(path, schema)}")
        return True

    def _sql(self, view: _TableView) -> str:
        # Read before the state table: a later frontier could be ahead of it, and the view would miss events.
        frontier = self._at or (read_frontier(self._paths) if view.kind == LIVE else Frontier())
        shape = shape_of(self._schemas[view.table])
        events = self._relation(self._paths.events, EVENTS)
        of_table = f"`table` = {literal(view.table)}"
        if view.kind == HISTORY:
            return history_sql(shape, f"(SELECT * FROM {events} WHERE {of_table})")
        shape, state, folded = self._state(view.table, shape, strict=view.kind == LIVE)
        if view.kind == "":
            return plain_sql(shape, state)
        if view.table not in frontier.behind:
            folded = max(folded, frontier.batch)
        return live_sql(shape, state, f"(SELECT * FROM {events} WHERE {of_table} AND batch > {folded})")

    def _state(self, table: str, shape: Shape, *, strict: bool) -> tuple[Shape, str, int]:
        """Return the shape of state, state as a relation, and the landing batch it holds.

        ``strict`` raises StateError if newer events cannot be folded over state.
        """
        path = self._paths.state(*split_qualified(table))
        if self._at and table in self._at.behind:
            raise UsageError(
                f"table {table} was behind at that point: its state held landing batch {self._at.behind[table]}",
                next_step="choose another point, or omit --at",
            )
        is_folded = self._at is None or table in self._at.versions
        now = progress(path, Application.state(self._paths.source)) if is_folded else None
        if now is None:
            return shape, state_rows_sql(shape, None, set()), 0
        relation = delta(path, self._at.versions[table] if self._at else now.version)
        fields = self._spark.sql(f"SELECT * FROM {relation} LIMIT 0").schema
        existing = {f.name: f.dataType.simpleString().upper() for f in fields}
        if strict:
            now.require_key(shape)
        try:
            shape = widened_to_fit(shape, existing)
        except StateError:
            # The plain view can still be read as of before the change; newer events cannot be folded over it.
            if strict:
                raise
        return shape, state_rows_sql(shape, relation, set(existing)), now.batch or 0

    def _relation(self, path: str, schema: StructType) -> str:
        """Return a system table as a relation, as of now or of the frontier row; empty if it does not exist yet."""
        if not has_table(path):
            columns = ", ".join(f"CAST(NULL AS {f.dataType.simpleString()}) AS {identifier(f.name)}" for f in schema)
            return f"(SELECT {columns} WHERE false)"
        pinned = delta(path, open_table(path).version())
        if self._at and StructField("batch", LongType()) in schema.fields:
            return f"(SELECT * FROM {pinned} WHERE batch <= {self._at.batch})"
        return pinned

    def _create_database(self, name: str) -> None:
        # Spark requires a folder for every database. These hold only views, so the folder is temporary.
        self._databases[name] = tempfile.TemporaryDirectory(prefix="dblake-views-")
        self._spark.sql(
            f"CREATE DATABASE IF NOT EXISTS {identifier(name)} LOCATION {literal(self._databases[name].name)}"
        )

    def _replace(self, view: str, text: str) -> None:
        self._spark.sql(f"CREATE OR REPLACE {view} AS {text}")


def _view_name(part: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", part)
