"""A small warehouse made without Spark: events and schemas written directly, state folded by its own tasks.

An event is ``(lsn, op, key, after)``, optionally with its undecoded columns and its old key, as in
``tests/spark/transform/state/conftest.py``, whose ``Lake`` writes the same with Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.batch_times import note_batches
from dblake.base.lake.files import filesystem
from dblake.base.lake.frontier import append_frontier, read_frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, commit_files
from dblake.base.lake.schemas import SCHEMAS, read_schemas, schema_row
from dblake.base.lake.storage import Location
from dblake.base.lake.tables import create_table, open_table
from dblake.transform.events.files import EVENT_COLUMNS, EventFile, write_event_file
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader
from dblake.transform.state.events import split_tables
from dblake.transform.state.fold import NEEDED
from dblake.transform.state.merge import Slice, merge_slice

Event = tuple[object, ...]


class PlainLake:
    """One source's tables."""

    def __init__(self, root: Path | Location, source: str = "shop") -> None:
        self.paths = Paths(root if isinstance(root, Location) else str(root), source)

    def schema(self, schema: TableSchema, *, lsn: int = 1, batch: int = 1) -> None:
        """Append a version of a table's schema."""
        row = schema_row(schema, Position(1, lsn), batch)
        create_table(self.paths.schemas, SCHEMAS)
        write_deltalake(open_table(self.paths.schemas), pa.Table.from_pylist([row], schema=SCHEMAS), mode="append")

    def land(self, batch: int, events: Mapping[TableSchema, Sequence[Event]]) -> None:
        """Append the events of one batch, by table."""
        rows = pa.concat_tables([event_rows(schema, batch, found) for schema, found in events.items()])
        self.append(rows.sort_by([("lsn", "ascending"), ("seq", "ascending")]), batch)

    def append(self, events: pa.Table, batch: int) -> None:
        """Append events in order with the columns of EVENT_COLUMNS, all of one batch."""
        create_table(self.paths.events, pa.schema(EVENT_COLUMNS))
        file = write_event_file(self.paths.events, events.combine_chunks().to_batches())
        self._commit(batch, [file])

    def reach_events(self, batch: int, at: datetime) -> None:
        """Commit all batches up to one, without an event, as if at a time."""
        create_table(self.paths.events, pa.schema(EVENT_COLUMNS))
        self._commit(batch, [])
        date_commit(self.paths.events, at)

    def _commit(self, batch: int, files: Sequence[EventFile]) -> None:
        table, application = open_table(self.paths.events), Application.reconcile(self.paths.source)
        notes = note_batches((table.transaction_version(application) or 0) + 1, batch)
        commit_files(self.paths.events, table, application, batch, files, notes)

    def fold(self, until: int) -> None:
        """Fold all events up to a batch into state and append a frontier row."""
        done = read_frontier(self.paths)
        schemas = read_schemas(self.paths)
        chunks = list(EventReader.open(self.paths.events).read(Predicate(done.batch, until), ("table", *NEEDED)))
        events = pa.concat_tables(chunks)
        newest = max(zip(*(events[name].to_pylist() for name in ("incarnation", "lsn", "seq")), strict=True))
        versions = dict(done.versions)
        for table, found in split_tables(events).items():
            known = tuple(v.schema for v in schemas[table] if v.batch <= until)
            recent = tuple(v.schema for v in schemas[table] if done.batch < v.batch <= until)
            path = self.paths.state(*split_qualified(table))
            outcome = merge_slice(Slice(
                table, path, Application.state(self.paths.source), until, done.batch, known, (*recent, known[-1]),
                found,
            ))
            outcome.raise_error()
            versions[table] = outcome.version
        frontier = type(done)(until, Position(*newest), versions, {})
        append_frontier(self.paths, frontier)


def date_commit(path: str, at: datetime) -> None:
    """Change the time of a table's newest commit."""
    system, folder = filesystem(path)
    entry = f"{folder.rstrip('/')}/_delta_log/{open_table(path).version():020}.json"
    with system.open_input_stream(entry) as stream:
        actions = [json.loads(line) for line in stream.read().decode().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = int(at.timestamp() * 1000)
    with system.open_output_stream(entry) as stream:
        stream.write("\n".join(map(json.dumps, actions)).encode())


def event_rows(schema: TableSchema, batch: int, events: Sequence[Event]) -> pa.Table:
    """Return events of one batch and table with the columns of EVENT_COLUMNS."""
    return pa.Table.from_pylist([_row(schema, batch, event) for event in events], schema=EVENT_COLUMNS)


def _row(schema: TableSchema, batch: int, event: Event) -> dict[str, object]:
    lsn, op, key, after, *rest = event
    undecoded, key_before = rest[0] if rest else [], rest[1] if len(rest) > 1 else None
    assert isinstance(lsn, int) and (after is None or isinstance(after, dict))
    names = schema.primary_key
    keys, old_keys = (
        None if one is None else list(zip(names, one if isinstance(one, tuple) else (one,), strict=True))
        for one in (key, key_before)
    )
    return {
        "incarnation": 1, "lsn": lsn, "seq": 0, "table": schema.table, "op": op, "key": keys, "before": None,
        "after": None if after is None else list(after.items()), "schema_id": schema.schema_id, "txid": 700,
        "committed_at": when(lsn), "last_in_txn": True,
        "origin": "dump" if op in ("r", "f") else "log", "chunk_id": None, "batch": batch,
        "partial": op in ("c", "u", "r") and after is not None and set(after) != set(schema.names),
        "undecoded": undecoded, "key_before": old_keys,
    }


def when(lsn: int) -> datetime:
    """Return the commit time of transaction ``lsn``: that many minutes after midnight."""
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=lsn)
