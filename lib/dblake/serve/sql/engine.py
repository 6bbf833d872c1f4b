"""Queries in process, without a JVM: DuckDB over state tables and events.

Place: behind ``jobs.sql`` and ``dblake.open``; ``spark_engine`` does the same with Spark. ``names`` defines the names;
a table of another source in the warehouse is ``source.schema.table``. Guarantee: each query reads every table as of one
position, which is fixed when the query begins, and only the columns and row groups that it needs. A statement reads
tables and nothing else: ``statements`` rejects what it can name beside them, and the connection opens no file outside
the folders of the warehouse's sources.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import duckdb

from dblake.base.core.errors import UsageError
from dblake.base.lake.files import filesystem
from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import is_local
from dblake.serve.read.reading import LakeReading
from dblake.serve.sql.catalog import DuckdbCatalog, sources
from dblake.serve.sql.duckdb_result import DuckdbResult, NoSuchTable, to_usage_error
from dblake.serve.sql.names import SYSTEM_SCHEMA, TableView, quoted
from dblake.serve.sql.result import QueryResult, TextResult
from dblake.serve.sql.rows import text
from dblake.serve.sql.statements import (
    Name,
    described_name,
    is_explain,
    is_show_tables,
    require_query,
    table_names,
)

_OWN_CATALOG = "_dblake"
_MACROS = (
    # The elements of a PostgreSQL array of one dimension, as text.
    "CREATE MACRO array_of(value) AS CASE WHEN value IS NULL THEN NULL ELSE list_transform("
    r"""regexp_extract_all(regexp_replace(value, '^\[[^=]*\]=', ''), '"(?:[^"\\]|\\.)*"|[^{},]+'), """
    """lambda e: CASE WHEN e = 'NULL' THEN NULL WHEN e[1] = '"' THEN """
    r"""regexp_replace(substr(e, 2, length(e) - 2), '\\(.)', '\1', 'g') ELSE e END) END""",
)


class DuckdbEngine:
    """A DuckDB connection over one source of a warehouse, and its other sources by name.

    ``at`` is a point as ``read.open_reading`` takes it: all queries read as of it. With ``is_live`` plain tables are
    read as their ``_live`` views are. With ``reading``, which was opened so, all queries read it, else each the newest.
    Not safe for several threads, except ``interrupt`` and ``progress``.
    """

    def __init__(
        self, paths: Paths, at: str | None = None, *, is_live: bool = False, reading: LakeReading | None = None
    ) -> None:
        self._paths, self._at, self._is_live, self._reading = paths, at, is_live, reading
        self._folder = tempfile.TemporaryDirectory(prefix="dblake-sql-")
        self._connection = duckdb.connect(config={
            "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
            "python_enable_replacements": "false", "temp_directory": self._folder.name,
        })
        self._connection.execute(
            "SET TimeZone = 'UTC'; SET enable_progress_bar = true; SET enable_progress_bar_print = false; "
            f"SET progress_bar_time = 0; ATTACH ':memory:' AS {quoted(_OWN_CATALOG)}; USE {quoted(_OWN_CATALOG)}"
        )
        for macro in _MACROS:
            self._connection.execute(macro.replace("MACRO ", "TEMP MACRO ", 1))
        self._connection.execute(
            f"SET allowed_directories = [{', '.join(map(text, self._folders()))}]; SET enable_external_access = false; "
            "SET lock_configuration = true"
        )
        self._attached: list[str] = []
        self._temporary: list[str] = []
        self._unknown: _Unknown | None = None
        self.refresh()

    def refresh(self) -> DuckdbCatalog:
        """Read what there is now, so that the next query sees the newest rows; return the source's tables."""
        self.catalog = DuckdbCatalog(self._connection, self._paths, self._at, is_live=self._is_live)
        if self._reading is not None:
            self.catalog.reading = self._reading
        return self.catalog

    def _folders(self) -> list[str]:
        """Return the local folders of the warehouse's sources; Arrow opens files in an object store."""
        warehouse = self._paths.warehouse
        if not is_local(warehouse):
            return []
        names = {self._paths.source, *sources(warehouse)}
        return [filesystem(Paths(warehouse, name).root)[1] for name in sorted(names)]

    def close(self) -> None:
        """Close the connection and delete its temporary files."""
        self._connection.close()
        self._folder.cleanup()

    def interrupt(self) -> None:
        """Stop the running query, from another thread or a signal handler."""
        self._connection.interrupt()

    def progress(self) -> float | None:
        """Return the share of the running query that is done, 0 to 1; None if it is unknown."""
        done = self._connection.query_progress()
        return None if done < 0 else min(done / 100, 1.0)

    def words(self) -> list[str]:
        """Return the names of tables and columns, for completion."""
        return self.catalog.words()

    def describe_tables(self) -> str:
        """Return in one line which tables there are, as of when."""
        return f"{self.catalog.summary()}, DuckDB {duckdb.__version__}"

    def warnings(self) -> list[str]:
        """Return what a reader of the newest result should know: tables that lag, and a bounded live view."""
        return self.catalog.warnings()

    def query(self, statement: str) -> QueryResult:
        """Return the statement's result, not yet computed.

        Raises UsageError for a statement that is not a query, or that cannot be parsed or resolved, and StateError if a
        table cannot be read.
        """
        self.refresh()
        statement = statement.strip().rstrip("; \n\t")
        if is_show_tables(statement):
            return self.catalog.list_tables()
        described = described_name(statement)
        if described:
            catalog, view = self._resolve(_name(described))
            return catalog.describe(view)
        self._create_views(statement)
        if is_explain(statement):
            return self._explain(statement)
        return self.rows(statement)

    def rows(self, statement: str) -> DuckdbResult:
        """Return the rows of a SELECT whose views were created."""
        try:
            return DuckdbResult(self._connection, statement)
        except UsageError as error:
            raise self._unknown if self._unknown and isinstance(error, NoSuchTable) else error from None

    def prepare(self, statement: str) -> DuckdbResult:
        """Return the result of a statement that has rows: a SELECT. Raises as ``query`` does."""
        self.refresh()
        statement = statement.strip().rstrip("; \n\t")
        self._create_views(statement)
        return self.rows(statement)

    def _explain(self, statement: str) -> TextResult:
        try:
            plans = self._connection.sql(statement).fetchall()
        except duckdb.Error as error:
            raise to_usage_error(error) from None
        return TextResult(("plan",), [(str(row[-1]),) for row in plans])

    def _create_views(self, statement: str) -> None:
        require_query(statement)
        for catalog in self._attached:
            self._connection.execute(f"DETACH {quoted(catalog)}")
        for view in self._temporary:
            self._connection.execute(f"DROP VIEW IF EXISTS temp.main.{quoted(view)}")
        self._attached, self._temporary = [], []
        try:
            names = table_names(self._connection, statement)
        except duckdb.Error as error:
            raise to_usage_error(error) from None
        self._unknown = None
        created: dict[tuple[str, ...], tuple[Name, str]] = {}
        for name in names:
            table = self._create_view(name)
            if table is None:
                continue
            # DuckDB's catalog ignores case: the view of the second name would replace that of the first.
            other, other_table = created.setdefault(name.folded(), (name, table))
            if other_table != table:
                raise UsageError(
                    f"one query cannot read both {other.written()} and {name.written()}, which differ in case alone",
                    next_step="read them in two queries",
                )
        if self.catalog.names.default:
            schema = f"{quoted(_OWN_CATALOG)}.{quoted(self.catalog.names.default)}"
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}; USE {schema}")

    def _create_view(self, name: Name) -> str | None:
        """Create the view for a name of the statement and return what it reads.

        A name that is none of ours is left to DuckDB: None.
        """
        try:
            catalog, view = self._resolve(name)
        except _Unknown as unknown:
            # It may be the name of a WITH clause, or a table of DuckDB's own.
            if name.schema and not self._is_known(name):
                raise
            self._unknown = self._unknown or unknown
            return None
        rows = catalog.rows_sql(view)
        if not name.schema:
            self._temporary.append(name.name)
            target = f"TEMP VIEW {quoted(name.name)}"
        else:
            owner = _OWN_CATALOG
            if name.source:
                owner = name.source
                if owner not in self._attached:
                    self._connection.execute(f"ATTACH ':memory:' AS {quoted(owner)}")
                    self._attached.append(owner)
            schema = f"{quoted(owner)}.{quoted(name.schema)}"
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            target = f"VIEW {schema}.{quoted(name.name)}"
        self._connection.execute(f"CREATE OR REPLACE {target} AS {rows}")
        return f"{view.table} {view.kind}"

    def _resolve(self, name: Name) -> tuple[DuckdbCatalog, TableView]:
        """Return the catalog and view of a name. Raises _Unknown if there is none."""
        catalog = self.catalog
        if name.source and name.source != self._paths.source:
            catalog = self.catalog.other(name.source)
        if catalog.is_system(name.schema, name.name):
            return catalog, TableView(f"{SYSTEM_SCHEMA}.{name.name.lower()}")
        view = catalog.find(name.schema or None, name.name)
        if view is None:
            raise _Unknown(f"there is no table {name.written()}", next_step=catalog.names.suggest(name.name))
        return catalog, view

    def _is_known(self, name: Name) -> bool:
        """Return True for DuckDB's own tables."""
        return name.schema.lower() in ("information_schema", "pg_catalog", "main", "temp")


class _Unknown(UsageError):
    """A name that is no table of ours."""


def _name(parts: Sequence[str]) -> Name:
    source, schema, name = ["", "", *parts][-3:]
    return Name(source, schema, name)
