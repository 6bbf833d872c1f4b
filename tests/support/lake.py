"""The landing of one source in a test's own folder: run the real capture, read what landed without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Source
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import open_table
from dblake.config import CaptureConfig, DumpConfig
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.dump_queue import dump_status, queue_dump
from dblake.ingest.capture.dump_task import Key
from dblake.ingest.capture.file_progress import FileProgress
from dblake.ingest.capture.local_lease import LocalLease
from dblake.ingest.capture.loop import Landed, Until
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.run import Capture
from dblake.ingest.capture.settings import CaptureSettings, DumpSettings
from dblake.landing.control import ChunkEnd
from dblake.landing.table import Landing, Reached
from dblake.payloads.decode.batch import decode
from tests.model.dblog import ChunkRow, Event, High, LedgerRow, Low, Moved, fold, reconcile
from tests.model.dblog import Landed as LandedRecord
from tests.support.steps import Stepped, Steps


class CaptureLake:
    """The warehouse, progress folder and lease of one source, at the paths that the capture job uses."""

    def __init__(self, folder: Path, source: str = "shop", warehouse: str | None = None) -> None:
        """Place the warehouse in the folder unless another is given."""
        self.paths = Paths(warehouse or str(folder / "warehouse"), source)
        self.progress = folder / "progress"
        self._source = source
        self.store: ProgressStore = FileProgress(self.progress / source)

    def dump(self, *tables: str, keys: Sequence[Key] | None = None) -> str:
        """Queue a dump; return its id."""
        return queue_dump(self.store, tables, keys)

    def dumps(self) -> list[dict[str, Any]]:
        """Return the status of every dump, as the dump job reports it."""
        return dump_status(self.store)

    def capture(
        self, source: Source, *, steps: Steps | None = None, until: Until = Until(caught_up=True),  # noqa: B008
        stop: threading.Event | None = None, chunk_size: int = 10_000, readers: int = 1,
        lease: Path | LocalLease | None = None, accept_gap: bool = False,
        open_landing: Callable[[], Landing] | None = None, **settings: Any,
    ) -> Landed:
        """Run capture until ``until`` holds; return what it landed. Fast settings replace the defaults.

        ``steps`` run around chunk reads. Raises AssertionError if one of them did not run. ``lease`` is a lease, or the
        folder of one.
        """
        stepped = Stepped(source, steps or {})
        context = CaptureContext(
            stepped, self.store,
            lease if isinstance(lease, LocalLease) else LocalLease(lease or self.progress, self._source),
            _quick_settings(settings),
            DumpSettings(**DumpConfig(chunk_size=chunk_size, readers=readers).model_dump()),
            stop or threading.Event(),
        )
        landed = Capture(context, open_landing or self.open_landing, accept_gap=accept_gap).run(until)
        stepped.require_all_taken()
        return landed

    def open_landing(self) -> Landing:
        """Open the landing table for writing."""
        return Landing(self.paths.landing, self._source)

    @property
    def reached(self) -> Reached:
        """Return the last landed batch with its lease epoch, server identity and resume point."""
        reached = self.open_landing().reached
        assert reached is not None
        return reached

    def landing(self) -> pa.Table:
        """Return the whole landing table, ordered by batch."""
        return open_table(self.paths.landing).to_pyarrow_table().sort_by("batch")

    def decoded(self) -> list[dict[str, Any]]:
        """Return landing's rows, truncates and chunk rows decoded and ordered by position; key and images are dicts."""
        table = self.landing()
        schemas = self.schemas(table)
        payloads = table.filter(pa.compute.is_in(table["kind"], pa.array(["row", "truncate", "chunk"])))
        rows = [row for batch in payloads.combine_chunks().to_batches() for row in decode(batch, schemas).to_pylist()]
        for row in rows:
            for image in ("key", "before", "after"):
                row[image] = None if row[image] is None else dict(row[image])
        return sorted(rows, key=lambda r: (r["incarnation"], r["lsn"] or 0, r["seq"]))

    @staticmethod
    def schemas(landing: pa.Table) -> Mapping[str, TableSchema]:
        """Return the schemas that landing records, by schema id."""
        rows = landing.filter(pa.compute.equal(landing["kind"], "schema"))["payload"].to_pylist()
        return {schema.schema_id: schema for schema in map(TableSchema.from_json, rows)}

    def landed_records(self) -> list[LandedRecord]:
        """Return landing as the model's input: decoded events, chunk rows and watermarks."""
        table = self.landing()
        epochs = dict(zip(table["batch"].to_pylist(), table["lease_epoch"].to_pylist(), strict=True))
        records: list[LandedRecord] = []
        for row in self.decoded():
            batch, epoch, name = row["batch"], epochs[row["batch"]], row["table"]
            key = tuple(row["key"].values()) if row["key"] else None
            if row["op"] == "r":
                assert key is not None
                records.append(ChunkRow(batch, epoch, name, row["chunk_id"], row["seq"] // 2, key, row["after"]))
            else:
                position = Position(row["incarnation"], row["lsn"], row["seq"])
                old = tuple(value for _, value in row["key_before"]) if row["key_before"] else None
                whole = row["after"] is not None and not row["partial"]
                records.append(Event(position, batch, epoch, name, row["op"], key, row["after"], row["txid"],
                                     whole=whole, key_before=old))
        marks = table.filter(pa.compute.is_in(table["kind"], pa.array(["low", "high", "moved"])))
        return records + [_mark(row) for row in marks.to_pylist()]

    def reconciled(self) -> tuple[list[Event], list[LedgerRow]]:
        """Return the events in order and the window ledger that the model derives from this landing."""
        events, ledger = reconcile(self.landed_records())
        assert len({event.position for event in events}) == len(events), "two events share a position"
        return events, ledger

    def state(self, table: str) -> dict[Key, dict[str, str | None]]:
        """Return a table's rows after all events, by key."""
        return {key: row for (name, key), row in fold(self.reconciled()[0]).items() if name == table}


def _quick_settings(settings: Mapping[str, Any]) -> CaptureSettings:
    """Return the configuration's defaults, except for many commits and short waits."""
    defaults = CaptureConfig()
    return CaptureSettings(**{
        "max_bytes": defaults.max_bytes, "max_rows": defaults.max_rows, "redump": defaults.redump == "auto",
        "new_tables": "ignore",
        "commits_per_second": 50.0, "heartbeat_seconds": 5.0, "reconnect_seconds": 5.0, **settings,
    })


def _mark(row: dict[str, Any]) -> Low | High | Moved:
    """Return a watermark or move of landing as the model's record."""
    if row["kind"] == "moved":
        server = json.loads(row["payload"])["server"]
        return Moved(row["batch"], row["lease_epoch"], row["incarnation"], server)
    position = Position(row["incarnation"], row["lsn"], row["seq"])
    names = row["batch"], row["lease_epoch"], row["table"], row["chunk_id"], position
    if row["kind"] == "low":
        return Low(*names)
    return High(*names, row["txid"], ChunkEnd.from_json(row["payload"]))
