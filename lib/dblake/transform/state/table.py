"""A state table in Delta: how far it is, and how it is created, grows with its shape and is replaced.

A table records how far it is in its own log: the transaction identifier of each commit is the landing batch up to
which events were folded in. Tables have no deletion vectors, so that every reader of Delta or Parquet can read them.

Everything goes through delta-rs and works in a task without Spark, with one exception. A table needs column mapping if
a column name has characters that Parquet reserves; Spark sets it up (``prepare_odd_names``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, TableFeatures

from dblake.base.lake.tables import create_table, find_table, has_table, open_table
from dblake.transform.spark.session import Session
from dblake.transform.spark.sql_literals import delta, identifier, literal
from dblake.transform.state.file_writer import FileWriter
from dblake.transform.state.files import Columns, FileReader, TableFiles, table_columns
from dblake.transform.state.shape import OWN, Shape, key_changed, widened_to_fit
from dblake.transform.state.upsert import Rewritten
from dblake.transform.state.values import arrow_type

# Characters a Parquet column name may not hold; Delta then gives columns other names inside.
_ODD_NAME = re.compile(r"[ ,;{}()\n\t=]")
_MAPPED = "'delta.columnMapping.mode' = 'name'"
_KEY = "dblake.key"
_NTZ = "TIMESTAMP_NTZ"

@dataclass(frozen=True, slots=True)
class Progress:
    """A state table's newest version, the landing batch folded in up to it (None before the first), and its key."""

    version: int
    batch: int | None
    key: str | None

    def require_key(self, shape: Shape) -> None:
        """Raise IncompatibleSchemaChange if the table's rows are identified by another key than the shape's."""
        if self.key is not None and self.key != _key_property(shape):
            raise key_changed(shape.table)


def progress(path: str, app: str) -> Progress | None:
    """Return how far a table is by its own log; None if there is no table."""
    table = find_table(path)
    return progress_of(table, app) if table else None


def progress_of(table: DeltaTable, app: str) -> Progress:
    """Return how far an open table is."""
    return Progress(table.version(), table.transaction_version(app), table.metadata().configuration.get(_KEY))


def has_odd_names(shape: Shape) -> bool:
    """Return True if the table needs column mapping, which only Spark can set up."""
    return any(_ODD_NAME.search(column.name) for column in shape.columns)


def prepare(path: str, shape: Shape) -> tuple[TableFiles, Shape]:
    """Create the table or let it grow, so that it can take rows of the shape; return it and the shape it then has.

    Every step leaves a valid table, so a run may end between two of them. Raises IncompatibleSchemaChange if the table
    cannot grow to the shape.
    """
    if not has_table(path):
        _create(path, shape)
    table = open_table(path)
    progress_of(table, "").require_key(shape)
    existing = table_columns(table).types
    shape = widened_to_fit(shape, existing)
    added = [column for column in shape.columns if column.name not in existing]
    if added:
        _allow_types(table, [column.type for column in added])
        table.alter.add_columns([Field.from_arrow(pa.field(c.name, arrow_type(c.type))) for c in added])
        table = open_table(path)
    if any(existing.get(column.name, column.type) != column.type for column in shape.columns):
        _widen(TableFiles(path, table), shape)
        table = open_table(path)
    return TableFiles(path, table), shape


def prepare_odd_names(session: Session, path: str, shape: Shape) -> None:
    """Create the table with column mapping, or give it the columns it lacks: what ``prepare`` leaves to Spark."""
    if not has_table(path):
        columns = [*OWN.items(), *((c.name, c.type) for c in shape.columns)]
        session().sql(
            f"CREATE TABLE IF NOT EXISTS {delta(path)} "
            f"({', '.join(f'{identifier(name)} {kind}' for name, kind in columns)}) USING delta TBLPROPERTIES "
            f"('delta.enableDeletionVectors' = 'false', '{_KEY}' = {literal(_key_property(shape))}, {_MAPPED})"
        )
        return
    table = open_table(path)
    progress_of(table, "").require_key(shape)
    existing = table_columns(table).types
    added = [column for column in widened_to_fit(shape, existing).columns if column.name not in existing]
    if added:
        names, spark = ", ".join(f"{identifier(c.name)} {c.type}" for c in added), session()
        spark.sql(f"ALTER TABLE {delta(path)} SET TBLPROPERTIES ({_MAPPED})")
        spark.sql(f"ALTER TABLE {delta(path)} ADD COLUMNS ({names})")


def replace(
    path: str, write: Callable[[Columns], Rewritten], shape: Shape, *, app: str, batch: int
) -> None:
    """Replace the table and all it holds by the files that ``write`` writes, in one commit."""
    if not has_table(path):
        _create(path, shape)
    table = open_table(path)
    _allow_types(table, [column.type for column in shape.columns])
    table = open_table(path)
    types = {**OWN, **{c.name: c.type for c in shape.columns}}
    columns = Columns(types, {name: name for name in types})
    TableFiles(path, table).commit(
        write(columns).adds, [], app, batch, Schema.from_arrow(columns.schema()), replace=True
    )
    # After the rows: a run that ended in between finds the old key and does this again.
    open_table(path).alter.set_table_properties({_KEY: _key_property(shape)}, raise_if_not_exists=False)


def replace_odd_names(
    session: Session, path: str, parts: Iterable[pa.Table], shape: Shape, *, app: str, batch: int
) -> None:
    """Do what ``replace`` does for a table that needs column mapping."""
    if not has_table(path):
        prepare_odd_names(session, path, shape)
    spark = session()
    spark.sql(f"ALTER TABLE {delta(path)} SET TBLPROPERTIES ({_MAPPED})")
    types = {**OWN, **{c.name: c.type for c in shape.columns}}
    schema = Columns(types, {name: name for name in types}).schema()
    rows = pa.concat_tables([part.select(schema.names).cast(schema) for part in parts] or [schema.empty_table()])
    (
        spark.createDataFrame(rows).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        .option("txnAppId", app).option("txnVersion", batch).save(path)
    )
    spark.sql(f"ALTER TABLE {delta(path)} SET TBLPROPERTIES ('{_KEY}' = {literal(_key_property(shape))})")


def _create(path: str, shape: Shape) -> None:
    types = {**OWN, **{c.name: c.type for c in shape.columns}}
    schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in types.items()])
    create_table(
        path, Schema.from_arrow(schema), {"delta.enableDeletionVectors": "false", _KEY: _key_property(shape)}
    )


def _allow_types(table: DeltaTable, types: Iterable[str]) -> None:
    """Raise the table's protocol if it does not have times without a zone yet."""
    if _NTZ in types and "timestampNtz" not in (table.protocol().reader_features or []):
        table.alter.add_feature(
            TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True,
        )


def _key_property(shape: Shape) -> str:
    return ",".join(map(identifier, shape.primary_key))


def _widen(files: TableFiles, shape: Shape) -> None:
    """Rewrite the table with the wider types; few readers support Delta's own type widening."""
    types = {**files.columns.types, **{c.name: c.type for c in shape.columns}}
    wider = Columns({name: types[name] for name in files.columns.types}, files.columns.physical)
    writer = FileWriter(files.path, wider)
    for file in files.files():
        with FileReader(files.path, wider, file) as reader:
            for group in range(reader.groups):
                for rows in reader.slices(group):
                    writer.write(rows)
    files.replace_types(writer.close(), wider)
