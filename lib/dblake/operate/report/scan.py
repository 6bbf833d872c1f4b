"""Aggregate the lake's own tables in DuckDB, over the files that may hold rows since a time.

Place: below ``operations`` and ``lag``. Guarantee: memory is bounded, since DuckDB reads the needed columns in batches
and writes large groups to disk; files are skipped by the statistics in the Delta log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.lake.tables import DeltaTable, list_files
from dblake.serve.sql.scan import ScannedFiles, typed_rows
from dblake.transform.state.files import Columns

_MEMORY = "1GB"
_TIME = pa.timestamp("us", tz="UTC")


@contextmanager
def open_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection in UTC that installs nothing; its temporary files are deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="dblake-report-") as folder:
        connection = duckdb.connect(config={
            "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
            "python_enable_replacements": "false", "temp_directory": folder, "memory_limit": _MEMORY,
        })
        try:
            connection.execute("SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
            yield connection
        finally:
            connection.close()


def rows_since(
    connection: duckdb.DuckDBPyConnection, table: DeltaTable, path: str, schema: pa.Schema, column: str,
    since: datetime,
) -> str:
    """Return SQL for the columns of ``schema`` in all files that may hold a time in ``column`` since ``since``.

    The rows still have to be filtered.
    """
    actions = list_files(table)
    files = actions["path"]
    if f"max.{column}" in actions.column_names:
        newest = actions[f"max.{column}"].cast(_TIME, safe=False)
        files = files.filter(pc.fill_null(pc.greater_equal(newest, pa.scalar(since, _TIME)), True))
    types = pa.schema(table.schema().to_arrow())
    scanned = ScannedFiles(path, tuple(sorted(files.to_pylist())), types, Columns({}, {}))
    return typed_rows(connection, scanned, schema, f"scanned_{column}")


def first_time(table: DeltaTable, column: str) -> datetime | None:
    """Return the least time in a column by the statistics of the table's files; None if there are none."""
    return _bound(table, f"min.{column}", pc.min)


def last_time(table: DeltaTable, column: str) -> datetime | None:
    """Return the greatest time in a column by the statistics of the table's files; None if there are none."""
    return _bound(table, f"max.{column}", pc.max)


def _bound(table: DeltaTable, name: str, aggregate: object) -> datetime | None:
    actions = list_files(table)
    if name not in actions.column_names:
        return None
    bound: datetime | None = aggregate(actions[name].cast(_TIME, safe=False)).as_py()  # type: ignore[operator]
    return bound
