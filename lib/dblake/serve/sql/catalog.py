"""The tables of one source for DuckDB: their names, their columns, and their rows as SQL.

Place: between ``read`` and ``engine``. Guarantee: everything that one catalog returns is of one reading; live views
have a reading of their own, opened on first use.
"""

from __future__ import annotations

import itertools
from functools import cached_property

import duckdb
from pyarrow import fs

from dblake.base.core.errors import UsageError
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.files import filesystem
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import read_schemas
from dblake.base.lake.tables import has_table, open_table
from dblake.serve.read.points import describe
from dblake.serve.read.reading import EventsReading, LakeReading, open_reading
from dblake.serve.sql.duckdb_history import history_sql, moves_sql
from dblake.serve.sql.listing import describe_columns, list_tables, table_words
from dblake.serve.sql.names import HISTORY, LIVE, SYSTEM_SCHEMA, TableNames, TableView
from dblake.serve.sql.result import TextResult
from dblake.serve.sql.rows import events_sql, table_rows_sql
from dblake.serve.sql.scan import ScannedFiles, empty_rows, no_rows, typed_rows
from dblake.serve.sql.system import SYSTEM_TABLES, as_of_sql
from dblake.transform.state.shape import shape_of

_serial = itertools.count()


class DuckdbCatalog:
    """The tables of one source as of one reading. ``at`` and ``is_live`` are as for ``DuckdbEngine``."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, paths: Paths, at: str | None = None, *, is_live: bool = False
    ) -> None:
        self._connection, self._paths, self._at, self._is_live = connection, paths, at, is_live
        self._others: dict[str, DuckdbCatalog] = {}
        self._empty: list[str] = []
        # A point that cannot be read is refused before any statement is.
        if at is not None:
            _ = self.reading

    @cached_property
    def reading(self) -> LakeReading:
        """The reading of the plain tables."""
        return open_reading(self._paths, self._at, is_live=self._is_live and self._at is None)

    @cached_property
    def live_reading(self) -> LakeReading:
        """The reading of the live views."""
        if self._is_live or self._at is not None:
            return self.reading
        return open_reading(self._paths, is_live=True)

    @cached_property
    def names(self) -> TableNames:
        """The names of the source's tables."""
        return TableNames(self.schemas)

    def find(self, schema: str | None, name: str) -> TableView | None:
        """Return the table or view of a name; without a point also of a table that has landed and no more."""
        found = self.names.find(schema, name)
        if found is None and self._at is None:
            found = TableNames(_newest(self.live_reading)).find(schema, name)
        return found

    def _versions(self, table: str) -> list[TableSchema]:
        known = read_schemas(self._paths).get(table) if self._at is None else self.reading.schemas(table)
        return [version.schema for version in known or self.live_reading.schemas(table)]

    @cached_property
    def schemas(self) -> dict[str, TableSchema]:
        """The newest schema of every reconciled table, or of every table of a point or a live reading."""
        if self._at is None and not self._is_live:
            return {table: versions[-1].schema for table, versions in read_schemas(self._paths).items()}
        return _newest(self.reading)

    def other(self, source: str) -> DuckdbCatalog:
        """Return the tables of another source of the warehouse. Raises UsageError if there is none of that name."""
        if source not in self._others:
            paths = Paths(self._paths.warehouse, source)
            if not has_table(paths.schemas):
                raise UsageError(
                    f"there is no source {source} in the warehouse",
                    next_step=f"write one of {', '.join(sources(self._paths.warehouse)) or 'none yet'}",
                )
            self._others[source] = DuckdbCatalog(self._connection, paths, self._at, is_live=self._is_live)
        return self._others[source]

    def rows_sql(self, view: TableView) -> str:
        """Return a query for a view's rows; what it needs is registered in the connection."""
        name = f"_dblake_{next(_serial)}"
        if view.table.startswith(f"{SYSTEM_SCHEMA}.") and view.table not in self.names.tables:
            return f"SELECT * FROM {self._system_sql(view.table.removeprefix(f'{SYSTEM_SCHEMA}.'), name)}"
        if view.kind == HISTORY:
            events = events_sql(self._connection, self._events(), name, table=view.table)
            shape = shape_of(self._versions(view.table))
            has_moves = bool(shape.primary_key) and bool(self._connection.sql(moves_sql(events)).fetchall())
            return history_sql(shape, events, has_moves=has_moves)
        reading = self.live_reading if view.kind == LIVE else self.reading
        if view.table not in reading.tables:
            # State has not folded its first events yet.
            columns = {column.name: column.type for column in shape_of(self._versions(view.table)).current}
            return f"SELECT * FROM {empty_rows(columns)}"
        table = reading.table(view.table)
        if table.version is None and table.changes is None:
            self._empty.append(view.table)
        return table_rows_sql(self._connection, table, name)

    def is_system(self, schema: str, name: str) -> bool:
        """Return whether a name belongs to one of the source's own tables."""
        return schema.lower() == SYSTEM_SCHEMA and name.lower() in SYSTEM_TABLES

    def list_tables(self) -> TextResult:
        """Return the source's tables."""
        return list_tables(self.schemas)

    def describe(self, view: TableView) -> TextResult:
        """Return the columns of a view."""
        rows = self._connection.sql(self.rows_sql(view))
        columns = [(name, str(kind)) for name, kind in zip(rows.columns, rows.types, strict=True)]
        return describe_columns(columns, self.schemas.get(view.table))

    def words(self) -> list[str]:
        """Return the names of tables and columns."""
        return table_words(self.schemas, self.names.default)

    def summary(self) -> str:
        """Return in one line how many tables there are, as of when."""
        count = len(self.schemas)
        tables = f"source {self._paths.source}: {count} table{'' if count == 1 else 's'}"
        if self.reading.position is None:
            return f"{tables}, nothing folded yet: run reconcile and state"
        return f"{tables} as of {describe(self.reading.position, self.reading.committed_at)}"

    def warnings(self) -> list[str]:
        """Return which tables are read as of an earlier position than the others, and why a live view ends early."""
        readings = [self.__dict__[name] for name in ("reading", "live_reading") if name in self.__dict__]
        found = []
        for reading in readings:
            found += [f"table {table} lags: it is read as of {describe(at)}" for table, at in reading.lagging.items()]
            if reading.is_bounded:
                found.append(f"live views end at {describe(reading.position)}: run reconcile for what landed since")
        for table in self._empty:
            parent = self.names.find_parent(table)
            if parent and self.schemas[parent].names == self.schemas[table].names:
                found.append(f"table {table} has had no rows; if it is a partition, its rows are in {parent}")
        return list(dict.fromkeys(found))

    def _events(self) -> EventsReading | None:
        """Return the events: all, also those that state has not folded yet, or those up to the point."""
        return self.reading.events() if self._at is not None else newest_events(self._paths)

    def _system_sql(self, name: str, registered: str) -> str:
        if name == "events":
            return events_sql(self._connection, self._events(), registered)
        system = SYSTEM_TABLES[name]
        path = system.path(self._paths)
        if not has_table(path):
            return no_rows(system.schema)
        files = ScannedFiles.read(path)
        rows = typed_rows(self._connection, files, files.fields, registered)
        return rows if self._at is None else as_of_sql(rows, system, self.reading.position)


def _newest(reading: LakeReading) -> dict[str, TableSchema]:
    return {table: reading.schemas(table)[-1].schema for table in reading.tables}


def newest_events(paths: Paths) -> EventsReading | None:
    """Return the reading of all events that there are."""
    if not has_table(paths.events):
        return None
    return EventsReading(paths.events, open_table(paths.events).version(), Position.LAST)


def sources(warehouse: str) -> list[str]:
    """Return the names of the sources whose tables a warehouse has."""
    system, base = filesystem(warehouse)
    folders = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
    return sorted(
        folder.base_name for folder in folders
        if folder.type == fs.FileType.Directory
        and has_table(Paths(warehouse, folder.base_name).schemas)
    )
