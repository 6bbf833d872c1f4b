"""A copy made without Spark: the real capture, the model's reconcile, and the fold and merge of state.

For tests of what follows state, which then need no JVM. Each ``copy`` brings events and state up to what has landed.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.lake.frontier import Frontier, append_frontier
from dblake.base.lake.log import Application, commit_rows, newest_batch
from dblake.base.lake.schemas import SCHEMAS, read_schemas, schema_row
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.state.fold import NEEDED
from dblake.transform.state.merge import Slice, merge_slice
from tests.support.lake import CaptureLake


class CopiedLake(CaptureLake):
    """A warehouse with events and state."""

    def copy(self) -> None:
        """Append the events of all batches that have landed, and fold them into state."""
        self.reconcile()
        self.fold()

    def reconcile(self) -> None:
        """Append the events of all batches that have landed."""
        landing, application = self.landing(), Application.reconcile(self._source)
        batch = max(landing["batch"].to_pylist())
        done = newest_batch(self.paths.events, application)
        for path, schema in ((self.paths.schemas, SCHEMAS), (self.paths.events, EVENT_COLUMNS)):
            if not DeltaTable.is_deltatable(path):
                DeltaTable.create(path, schema, mode="ignore")
        declared = [
            schema_row(TableSchema.from_json(row["payload"]), Position(row["incarnation"], row["lsn"], row["seq"]),
                       row["batch"])
            for row in landing.to_pylist() if row["kind"] == "schema" and row["batch"] > done
        ]
        commit_rows(self.paths.schemas, application, batch, pa.Table.from_pylist(declared, SCHEMAS))
        events = [row for row in [*self._log_events(), *self._dump_events()] if row["batch"] > done]
        events.sort(key=lambda row: (row["incarnation"], row["lsn"], row["seq"]))
        commit_rows(self.paths.events, application, batch, pa.Table.from_pylist(events, EVENT_COLUMNS))

    def fold(self) -> None:
        """Fold all events into state."""
        application = Application.state(self._source)
        batch = newest_batch(self.paths.events, Application.reconcile(self._source))
        events = DeltaTable(self.paths.events).to_pyarrow_table()
        versions, positions = {}, [Position(1, 1)]
        for table, found in read_schemas(self.paths).items():
            path = self.paths.state(*split_qualified(table))
            done = newest_batch(path, application)
            own = events.filter((pa.compute.field("table") == table) & (pa.compute.field("batch") > done))
            if own.num_rows:
                schemas = tuple(version.schema for version in found)
                recent = tuple(version.schema for version in found if version.batch > done) + schemas[-1:]
                part = Slice(table, path, application, batch, done, schemas, recent, own.select(list(NEEDED)))
                outcome = merge_slice(part)
                outcome.raise_error()
            if DeltaTable.is_deltatable(path):
                versions[table] = DeltaTable(path).version()
        positions += [Position(**row) for row in events.select(["incarnation", "lsn", "seq"]).to_pylist()]
        append_frontier(self.paths, Frontier(batch, max(positions), versions))

    def _log_events(self) -> list[dict[str, Any]]:
        return [_as_event(row | {"origin": "log"}) for row in self.decoded() if row["op"] != "r"]

    def _dump_events(self) -> list[dict[str, Any]]:
        keys = {schema.table: schema.primary_key for schema in self.schemas(self.landing()).values()}
        return [_as_event({
            "incarnation": event.position.incarnation, "lsn": event.position.lsn, "seq": event.position.seq,
            "table": event.table, "op": event.op, "key": dict(zip(keys[event.table], event.key or (), strict=True)),
            "before": None, "after": None if event.after is None else dict(event.after), "txid": event.txid,
            "origin": "dump", "chunk_id": event.chunk_id, "batch": event.batch, "partial": event.op == "f",
            "last_in_txn": False,
        }) for event in self.reconciled()[0] if event.chunk_id is not None]


def _as_event(row: dict[str, Any]) -> dict[str, Any]:
    maps = {name: None if row[name] is None else list(row[name].items()) for name in ("key", "before", "after")}
    return {name: row.get(name) for name in EVENT_COLUMNS.names} | maps
