"""One version of a Delta table as a DuckDB relation.

Place: between the lake's tables and ``rows``. Guarantee: no row is read before a query needs it; filters and
projections reach Parquet. Files on a local disk are read by DuckDB itself, others by Arrow's file systems, because
DuckDB's own need an extension that is downloaded at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from dblake.base.lake.files import file_path, filesystem
from dblake.base.lake.storage import is_local
from dblake.base.lake.tables import DeltaTable, find_table, list_files, open_table
from dblake.serve.sql.duckdb_types import duckdb_type
from dblake.serve.sql.names import quoted
from dblake.transform.state.files import Columns, table_columns

_GLOB = frozenset("*?[]{}")


class Connection(Protocol):
    """The part of a DuckDB connection that a scan needs."""

    def register(self, view_name: str, python_object: object) -> object:
        """Make an Arrow object readable under a name."""


@dataclass(frozen=True)
class ScannedFiles:
    """The files of one version of a table; ``columns`` has the types (Spark's) and names in files of a state table."""

    path: str
    files: tuple[str, ...]
    fields: pa.Schema
    columns: Columns

    @classmethod
    def read(cls, path: str, version: int | None = None) -> ScannedFiles:
        """Read a version of one of our own tables, by default the newest, from its log."""
        table = open_table(path, version)
        return cls(path, _files(table), pa.schema(table.schema().to_arrow()), Columns({}, {}))

    @classmethod
    def read_state(cls, path: str, version: int) -> ScannedFiles:
        """Read a version of a state table from its log."""
        table = open_table(path, version)
        return cls(path, _files(table), pa.schema(table.schema().to_arrow()), table_columns(table))

    @classmethod
    def find_state(cls, path: str) -> ScannedFiles | None:
        """Read the newest version of a state table from its log; None if there is no such table."""
        table = find_table(path)
        return None if table is None else cls.read_state(path, table.version())

    def name_in_files(self, column: str) -> str:
        """Return a column's name in the files."""
        return self.columns.physical.get(column, column)


def relation(connection: Connection, table: ScannedFiles, name: str) -> str:
    """Return SQL for the files' rows, with the files' own column names.

    ``name`` is a name that is free in the connection; it may be registered there.
    """
    system, base = filesystem(table.path)
    paths = [file_path(base, file) for file in table.files]
    if not paths:
        columns = ", ".join(f"NULL AS {quoted(table.name_in_files(n))}" for n in table.fields.names)
        return f"(SELECT {columns} WHERE false)"
    if not is_local(table.path) or _GLOB & set(base):
        connection.register(name, _dataset(table, system, paths))
        return quoted(name)
    listed = ", ".join(_literal(path) for path in paths)
    # Files may lack columns that were added later.
    return f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"


def state_rows(connection: Connection, table: ScannedFiles, columns: Mapping[str, str], name: str) -> str:
    """Return a relation with the given columns and their Spark types; a column that the table lacks is NULL."""
    cast = [
        f"CAST({stored} AS {duckdb_type(kind)}) AS {quoted(column)}"
        for column, kind in columns.items()
        for stored in [quoted(table.name_in_files(column)) if column in table.columns.types else "NULL"]
    ]
    return f"(SELECT {', '.join(cast)} FROM {relation(connection, table, name)})"


def empty_rows(columns: Mapping[str, str]) -> str:
    """Return a relation without rows that has the given columns and their Spark types."""
    cast = ", ".join(f"CAST(NULL AS {duckdb_type(kind)}) AS {quoted(column)}" for column, kind in columns.items())
    return f"(SELECT {cast} WHERE false)"


def typed_rows(connection: Connection, table: ScannedFiles, schema: pa.Schema, name: str) -> str:
    """Return a relation with the columns of ``schema``, for tables of our own whose files have the same names."""
    there = set(table.fields.names)
    cast = ", ".join(
        f"CAST({quoted(f.name) if f.name in there else 'NULL'} AS {sql_type(f.type)}) AS {quoted(f.name)}"
        for f in schema
    )
    return f"(SELECT {cast} FROM {relation(connection, table, name)})"


def no_rows(schema: pa.Schema) -> str:
    """Return a relation without rows that has the columns of ``schema``."""
    return f"(SELECT {', '.join(f'CAST(NULL AS {sql_type(f.type)}) AS {quoted(f.name)}' for f in schema)} WHERE false)"


def sql_type(kind: pa.DataType) -> str:
    """Return the DuckDB type of an Arrow type, as our own tables use them."""
    if pa.types.is_map(kind):
        return f"MAP({sql_type(kind.key_type)}, {sql_type(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{sql_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{quoted(f.name)} {sql_type(f.type)}' for f in kind)})"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
    return _OTHERS[str(kind)]


_OTHERS = {"string": "VARCHAR", "large_string": "VARCHAR", "int64": "BIGINT", "int32": "INTEGER", "bool": "BOOLEAN",
           "double": "DOUBLE", "binary": "BLOB"}


def _dataset(table: ScannedFiles, system: Any, paths: Sequence[str]) -> Any:
    # pyarrow.dataset takes a tenth of a second to import, and local tables do not need it.
    from pyarrow import dataset

    schema = pa.schema([field.with_name(table.name_in_files(field.name)) for field in table.fields])
    return dataset.dataset(list(paths), schema=schema, format="parquet", filesystem=system)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _files(table: DeltaTable) -> tuple[str, ...]:
    return tuple(sorted(list_files(table)["path"].to_pylist()))
