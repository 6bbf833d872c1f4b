"""Rows of events → ``Event`` objects.

Place: between ``event_table``, which reads and orders rows, and ``transactions``, which groups them. Columns become
Python lists at once (``event_columns``), so an event costs no more than its own object and its images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.serve.consume.event_columns import PLAIN_READERS, image_dicts
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import Event
from dblake.serve.consume.schema_resolution import resolve

ROWS_AT_ONCE = 5_000
"""Rows that are Python objects at a time."""

SchemaLookup = Callable[[str, str | None], TableSchema]
"""Table and schema id, None for a truncate that names none → schema."""


class EventBuilder:
    """Builds the events of one source."""

    def __init__(
        self, source: str, selection: Selection, schemas: SchemaLookup, readers: Mapping[str, TableSchema]
    ) -> None:
        """``readers`` are the schemas to which rows are resolved, by table; rows of other tables keep theirs."""
        self._source, self._selection, self._schemas, self._readers = source, selection, schemas, readers
        self._kept: dict[str, frozenset[str] | None] = {}

    def schema(self, table: str, schema_id: str) -> TableSchema:
        """Return the schema of a delivered event."""
        reader = self._readers.get(table)
        return reader if reader is not None and reader.schema_id == schema_id else self._schemas(table, schema_id)

    def delivered_schema(self, schema: TableSchema) -> TableSchema:
        """Return the schema with which rows written with ``schema`` are delivered."""
        return self._readers.get(schema.table, schema)

    def resolve(self, events: list[Event]) -> list[Event]:
        """Return events with the columns of the consumer's schemas."""
        if not self._readers:
            return events
        return [resolve(event, self._readers.get(event.table, event.schema)) for event in events]

    def build(self, rows: pa.Table, is_end: bool = True) -> list[Event]:
        """Return rows of EVENT_COLUMNS, ordered by position, as events.

        The last event of each transaction is marked; the last of all only if ``is_end``.
        """
        lists = {name: read(rows[name]) for name, read in PLAIN_READERS.items()}
        images = [image_dicts(rows[name]) for name in ("key", "before", "after", "key_before")]
        events = []
        source, lsns, incarnations, count = self._source, lists["lsn"], lists["incarnation"], rows.num_rows
        schemas, projects = dict[str, TableSchema](), bool(self._selection.columns)
        for n, (
            table, op, incarnation, lsn, seq, schema_id, txid, at, origin, undecoded, key, before, after, key_before
        ) in enumerate(zip(*lists.values(), *images, strict=True)):
            is_last = is_end if n + 1 == count else lsns[n + 1] != lsn or incarnations[n + 1] != incarnation
            schema = schemas.get(schema_id)
            if schema is None:
                schema = self._schemas(table, schema_id)
                schemas[schema.schema_id] = schema
            event = Event(
                source, table, op, Position(incarnation, lsn, seq), key, before, after,
                None if txid is None else str(txid), at, is_last, origin, schema.schema_id, schema, undecoded or (),
                key_before,
            )
            if projects:
                self._project(event)
            events.append(event)
        return self.resolve(events)

    def _project(self, event: Event) -> None:
        if event.schema_id not in self._kept:
            self._kept[event.schema_id] = self._selection.columns_of(event.schema)
        kept = self._kept[event.schema_id]
        if kept is not None:
            event.before, event.after = _only(event.before, kept), _only(event.after, kept)


def _only(image: Mapping[str, str | None] | None, kept: frozenset[str]) -> dict[str, str | None] | None:
    return None if image is None else {name: value for name, value in image.items() if name in kept}
