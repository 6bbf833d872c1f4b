"""Schemas of a source's tables for consumers, and the resolution of a row to the schema a consumer was written for.

Place: beside ``stream``. The schemas table is read when an event refers to a version that is not known yet; reconcile
appends schemas before their events.
"""

from __future__ import annotations

from dblake.consume.model import Event, Image
from dblake.core.errors import ConsumeError
from dblake.core.schema import TableSchema
from dblake.lake.layout import Paths
from dblake.lake.schemas import SchemaVersion, read_schemas
from dblake.spark.types import TEXT, holds, spark_type


class Schemas:
    """The schema versions of one source, read on demand."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._versions: dict[str, list[SchemaVersion]] = {}
        self._by_id: dict[tuple[str, str], TableSchema] = {}

    def get(self, table: str, schema_id: str) -> TableSchema:
        """Return the schema of an event. Raises ConsumeError if the schemas table lacks it."""
        found = self._by_id.get((table, schema_id))
        if found is None:
            self.refresh()
            found = self._by_id.get((table, schema_id))
        if found is None:
            raise ConsumeError(
                f"table {table}: events refer to a schema that is not in the schemas table",
                next_step="run reconcile from the start for this source",
            )
        return found

    def at_batch(self, table: str, batch: int) -> TableSchema:
        """Return the newest schema of a table that came with a landing batch or before it."""
        versions = [one for one in self._versions.get(table, []) if one.batch <= batch]
        if not versions:
            raise ConsumeError(
                f"table {table}: state has it, but not the schemas table",
                next_step="run reconcile from the start for this source",
            )
        return versions[-1].schema

    def tables(self) -> list[str]:
        """Return the names of all tables, in order."""
        return sorted(self._versions)

    def refresh(self) -> None:
        """Read the schemas table."""
        self._versions = read_schemas(self._paths)
        self._by_id = {
            (table, one.schema.schema_id): one.schema for table, versions in self._versions.items() for one in versions
        }


def resolve(event: Event, reader: TableSchema) -> Event:
    """Return an event with the columns and types of ``reader``, the schema that a consumer was written for.

    As in Avro's schema resolution: a column that the reader lacks is dropped; a column that only the reader has is
    NULL in whole images, if it may be; a type may be wider in the reader. Raises ConsumeError for anything else, and
    for another key.
    """
    if event.schema == reader:
        return event
    _require_compatible(event.schema, reader)
    names = frozenset(reader.names)
    added = {column.name for column in reader.columns} - set(event.schema.names)
    # A partial image lacks columns because they were not sent; only a whole one means that they do not exist.
    missing = dict.fromkeys(added if event.op in ("c", "r") else (), None)

    def project(image: Image | None) -> Image | None:
        return None if image is None else {n: v for n, v in image.items() if n in names} | missing

    return Event(
        event.source, event.table, event.op, event.position, event.key, project(event.before), project(event.after),
        event.txid, event.committed_at, event.last_in_transaction, event.origin, reader.schema_id, reader,
        [name for name in event.undecoded if name in names],
    )


def _require_compatible(writer: TableSchema, reader: TableSchema) -> None:
    if writer.primary_key != reader.primary_key:
        raise _incompatible(writer.table, "its key differs from the consumer's")
    written = {column.name: column.type for column in writer.columns}
    for column in reader.columns:
        if column.name not in written:
            if not column.nullable:
                raise _incompatible(writer.table, f"column {column.name} does not exist, and may not be NULL")
            continue
        wide, narrow = spark_type(column.type), spark_type(written[column.name])
        if wide != TEXT and not holds(wide, narrow):
            raise _incompatible(writer.table, f"column {column.name} is {written[column.name]}, not {column.type}")


def _incompatible(table: str, reason: str) -> ConsumeError:
    return ConsumeError(f"table {table}: {reason}", next_step="update the schema that the consumer passes")
