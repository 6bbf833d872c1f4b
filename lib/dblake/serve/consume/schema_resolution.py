"""Resolution of an event to the schema that a consumer was written for, as in Avro.

Place: behind ``event_rows``, for a consumer that passes its own schema. Guarantee: an event either has the consumer's
columns and types or is an error, never a value that was changed. Which versions exist is left to ``schemas``.
"""

from __future__ import annotations

from dblake.base.core.errors import ConsumeError
from dblake.base.core.op import Op
from dblake.base.core.schema import TableSchema
from dblake.serve.consume.model import Event, Image
from dblake.transform.spark.types import TEXT, holds, spark_type


def resolve(event: Event, reader: TableSchema) -> Event:
    """Return an event with the columns and types of ``reader``, the schema that a consumer was written for.

    As in Avro's schema resolution, a column that the reader lacks is dropped. A nullable column that only the reader
    has is NULL in whole images. A type may be wider in the reader. Raises ConsumeError for anything else, and for
    another key.
    """
    if event.schema == reader:
        return event
    _require_compatible(event.schema, reader)
    names = frozenset(reader.names)
    added = {column.name for column in reader.columns} - set(event.schema.names)
    # A partial image lacks columns because they were not sent; only a whole one means that they do not exist.
    missing = dict.fromkeys(added if event.op in (Op.CREATE, Op.READ) else (), None)

    def project(image: Image | None) -> Image | None:
        return None if image is None else {n: v for n, v in image.items() if n in names} | missing

    return Event(
        event.source, event.table, event.op, event.position, event.key, project(event.before), project(event.after),
        event.txid, event.committed_at, event.last_in_transaction, event.origin, reader.schema_id, reader,
        [name for name in event.undecoded if name in names], event.key_before,
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
