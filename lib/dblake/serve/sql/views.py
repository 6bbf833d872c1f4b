"""Views of one source in a Spark session's catalog, created for the names that a query uses.

Place: between ``read`` and ``sql.query``. ``names`` defines the names, but in Spark a view's name has only the
characters ``A-Z``, ``a-z``, ``0-9`` and ``_``: each other one is written ``_``. Guarantee: each view is pinned when it
is created, so one query reads one consistent point. Plain tables, and all tables as of a point, come from a reading.
Live and history views, and points between two versions of state, are left to the default engine: the fold exists once,
in process (``state.fold``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dblake.base.core.errors import UsageError
from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import read_schemas
from dblake.base.lake.tables import has_table, open_table
from dblake.serve.read.reading import LakeReading, open_reading
from dblake.serve.sql.names import HISTORY, LIVE, SYSTEM_SCHEMA, TableNames, TableView, spelled, sql_name
from dblake.serve.sql.spark_reading import reading_rows_sql
from dblake.serve.sql.state_rows import plain_sql, state_rows_sql
from dblake.serve.sql.system import SYSTEM_TABLES, SystemTable
from dblake.transform.spark.sql_literals import delta, identifier, literal, position
from dblake.transform.state.shape import shape_of


class Views:
    """Creates views on demand, with ``at`` as of a point.

    Reads the schemas once; later tables need a new instance. Raises UsageError and PointOutOfRange as ``open_reading``.
    """

    def __init__(self, spark: SparkSession, paths: Paths, at: str | None = None) -> None:
        self._spark, self._paths, self._at = spark, paths, at
        known = read_schemas(paths)
        tables = known if at is None else self.reading.tables
        self._schemas: dict[str, list[TableSchema]] = {
            table: [v.schema for v in (known[table] if at is None else self.reading.schemas(table))] for table in tables
        }
        self.names = TableNames(self._schemas)
        self._databases: dict[str, tempfile.TemporaryDirectory[str]] = {}
        self._default = spelled(self.names.default).lower() if self.names.default else None
        for database in [*{spelled(schema).lower() for schema in self.names.schemas}, SYSTEM_SCHEMA]:
            self._create_database(database)
        if self._default:
            spark.catalog.setCurrentDatabase(self._default)

    @cached_property
    def reading(self) -> LakeReading:
        """The reading of the plain tables."""
        return open_reading(self._paths, self._at)

    @property
    def schemas(self) -> dict[str, TableSchema]:
        """The schema of every table, as of the point or the newest one."""
        return {table: versions[-1] for table, versions in self._schemas.items()}

    def create(self, names: Iterable[Sequence[str]]) -> None:
        """Create the views for names, each given in parts as in the query; an unknown one of one part is ignored.

        That may be a WITH clause's; with more parts it may be a path, such as text.`/etc/passwd`. Raises UsageError for
        it, an ambiguous name, one that Spark does not accept, one of another source, and a view that folds events.
        """
        for parts in names:
            if len(parts) == 1:
                self._create_unqualified(parts[0].lower())
            elif len(parts) == 3:
                raise UsageError(f"{'.'.join(parts)}: Spark reads one source at a time",
                                 next_step="join sources with the default engine")
            elif len(parts) == 2 and parts[0].lower() == SYSTEM_SCHEMA and parts[1].lower() in SYSTEM_TABLES:
                name = parts[1].lower()
                self._replace(f"VIEW {SYSTEM_SCHEMA}.{name}", f"SELECT * FROM {self._system_sql(SYSTEM_TABLES[name])}")
            else:
                view = self._find(*parts) if len(parts) == 2 else None
                if view is None:
                    raise UsageError(f"there is no table {'.'.join(parts)}", next_step=self.names.suggest(parts[-1]))
                self._replace(f"VIEW {identifier(parts[0])}.{identifier(parts[1])}", self._sql(view))

    def find(self, parts: Sequence[str]) -> TableView | None:
        """Return the view that a name in parts means; None for another name. Raises UsageError as ``create``."""
        if len(parts) == 2:
            return self._find(*parts)
        schemas = [self.names.default] if self.names.default else self.names.schemas
        return next((view for schema in schemas if (view := self._find(schema, parts[-1]))), None)

    def read_plain(self, table: str) -> DataFrame:
        """Return the rows of the plain view of a table, given by its qualified name."""
        return self.read(TableView(table))

    def read(self, view: TableView) -> DataFrame:
        """Return the rows of a view."""
        return self._spark.sql(self._sql(view))

    def _create_unqualified(self, name: str) -> None:
        self._spark.catalog.dropTempView(name)
        schemas = {spelled(schema).lower() for schema in self.names.schemas}
        views = {schema: v for schema in schemas if (v := self.names.find_spelled(schema, name))}
        if self._default in views:
            self._replace(f"VIEW {identifier(self._default or '')}.{identifier(name)}", self._sql(views[self._default]))
        elif len(views) > 1:
            raise UsageError(f"{name} is a table of {', '.join(sorted(views))}", next_step=f"write schema.{name}")
        elif views:
            self._replace(f"TEMPORARY VIEW {identifier(name)}", self._sql(*views.values()))
        else:
            self._reject_real_name(None, name)

    def _find(self, schema: str, name: str) -> TableView | None:
        view = self.names.find_spelled(schema, name)
        if view is None:
            self._reject_real_name(schema, name)
        return view

    def _reject_real_name(self, schema: str | None, name: str) -> None:
        """Raise UsageError if the name is a table's at the source that Spark does not accept."""
        view = self.names.find(schema, name)
        if view:
            own_schema, own_name = (spelled(part) for part in split_qualified(view.table))
            raise UsageError(
                f"Spark accepts no view named {sql_name(view.table)}{view.kind}",
                next_step=f"write {own_schema}.{own_name}{view.kind}, or use the default engine",
            )

    def _sql(self, view: TableView) -> str:
        if view.kind == HISTORY or (view.kind == LIVE and self._at is None):
            raise _no_such_view(f"{sql_name(view.table)}{view.kind} folds events")
        if view.table not in self.reading.tables:
            return plain_sql(shape := shape_of(self._schemas[view.table]), state_rows_sql(shape, None, set()))
        reading = self.reading.table(view.table)
        if reading.changes is not None:
            raise _no_such_view(f"table {view.table} as of this point is a version of state and newer events")
        return plain_sql(reading.shape, reading_rows_sql(reading))

    def _system_sql(self, table: SystemTable) -> str:
        """Return a system table as a relation, as of now or of the point; empty if it does not exist yet."""
        path = table.path(self._paths)
        if not has_table(path):
            fields: StructType = from_arrow_schema(table.schema)
            columns = ", ".join(f"CAST(NULL AS {f.dataType.simpleString()}) AS {identifier(f.name)}" for f in fields)
            return f"(SELECT {columns} WHERE false)"
        pinned = delta(path, open_table(path).version())
        if self._at is None:
            return pinned
        until = self._until(table)
        at = f"named_struct('incarnation', incarnation, 'lsn', {table.lsn}, 'seq', {table.seq})"
        return f"(SELECT * FROM {pinned} WHERE {f'{at} <= {position(until)}' if until else 'false'})"

    def _until(self, table: SystemTable) -> Position | None:
        """Return the position up to which a system table is read as of the point."""
        if table is SYSTEM_TABLES["events"]:
            events = self.reading.events()
            return events.until if events else None
        return self.reading.position

    def _create_database(self, name: str) -> None:
        # Spark requires a folder for every database. These hold only views, so the folder is temporary.
        self._databases[name] = tempfile.TemporaryDirectory(prefix="dblake-views-")
        self._spark.sql(
            f"CREATE DATABASE IF NOT EXISTS {identifier(name)} LOCATION {literal(self._databases[name].name)}"
        )

    def _replace(self, view: str, text: str) -> None:
        self._spark.sql(f"CREATE OR REPLACE {view} AS {text}")


def _no_such_view(cause: str) -> UsageError:
    return UsageError(f"{cause}, which the Spark engine does not", next_step="omit --engine spark")
