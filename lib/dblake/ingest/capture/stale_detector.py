"""Detects tables whose rows changed without row events, and queues a dump of each.

A default for a new column, a converted type, a renamed enum label, a dropped partition, another table renamed into its
place: the log has no row for any of these. Capture passes in the schema rows of the log before it lands them, and this
module compares the catalog's fingerprints with the saved ones. They are saved in the progress store, table by table, so
a change made while no capture runs is detected as well. Guarantee: one change queues one dump; a dump of the table that
is queued and has not started covers the change.

What the catalog does not show, the log's statements show where the log has them (``rewrites`` and ``gone`` in their
payload). Reading the dumps is left to ``dumps``; ``stale_tables`` holds what is detected until its dump is done.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.names import folder
from dblake.base.core.source import Source, TableFingerprint
from dblake.ingest.capture.dump_queue import pending_tasks, queue_dump
from dblake.ingest.capture.dump_task import DumpState
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.saved_fingerprint import RENAMED, SavedFingerprint, changes_keys, rows_reason, stale_reason
from dblake.ingest.capture.stale_tables import (
    StaleTable,
    clear_completed,
    delete_stale_table,
    read_stale_tables,
    save_stale_table,
)
from dblake.landing.columns import DDL, SCHEMA, TRUNCATE

_FINGERPRINTS = "tables"

logger = logging.getLogger(__name__)


class StaleTableDetector:
    """The stale tables of one source. With ``auto`` it queues their dumps, otherwise it only reports them."""

    def __init__(self, source: Source, store: ProgressStore, *, auto: bool, max_removed: float | None = None) -> None:
        """``max_removed``: the share of a table's rows that a dump may delete whose cause removes none; None is all."""
        self._source, self._store, self._auto, self._max_removed = source, store, auto, max_removed
        documents = ((path, store.read(path)) for path in store.list(_FINGERPRINTS))
        saved = (SavedFingerprint.from_document(path, document) for path, document in documents if document)
        self._saved = {fingerprint.table: fingerprint for fingerprint in saved}
        self._moved: set[str] = set()
        """Bodies that the log has shown under another name than the saved one."""
        self._logged_at: dict[str, float] = {}
        """When bodies in ``logged`` were noted, by the monotonic clock; those of an earlier run are older."""
        self._scanned_at = float("-inf")

    @property
    def is_automatic(self) -> bool:
        """Return True if it queues dumps of stale tables, False if it only reports them."""
        return self._auto

    @property
    def has_drops_in_log(self) -> bool:
        """Return True if the source's log shows every table that is dropped or renamed."""
        return self._source.schema_changes_in_log

    @property
    def known_tables(self) -> frozenset[str]:
        """The tables with a saved fingerprint."""
        return frozenset(self._saved)

    def apply(self, current: Sequence[TableFingerprint], *, read_at: float) -> bool:
        """Compare fingerprints with the saved ones; return True if a dump is queued.

        Where the log shows every schema change, tables with a saved fingerprint are left to the log. Fingerprints read
        before the last ``scan_catalog`` (by the monotonic clock) are ignored.
        """
        if read_at < self._scanned_at:
            return False
        if not self._source.schema_changes_in_log:
            return self._compare(current, read_at)
        queued = self._compare([table for table in current if table.schema.table not in self._saved], read_at)
        uncovered = self._without_dump()
        return self._compare([table for table in current if table.schema.table in uncovered], read_at) or queued

    def queue_dumps(self, reasons: Mapping[str, str], *, new: Set[str] = frozenset()) -> None:
        """Queue one dump of the tables whose rows are missing; each is reported, with its reason, until it is done.

        A dump that is queued and has not started counts, of ``new`` tables also one that may delete a share only:
        nothing of them has landed that it would have to delete.
        """
        queued = {
            task.table: task.id for task in pending_tasks(self._store)
            if task.reads_whole_table and task.progress.state is DumpState.QUEUED
            and (task.request.max_removed is None or task.table in new)
        }
        if missing := [table for table in reasons if table not in queued]:
            queued |= dict.fromkeys(missing, queue_dump(self._store, missing))
        for table, why in reasons.items():
            save_stale_table(self._store, StaleTable(table, why, queued[table]))
            logger.info("table %s is dumped: %s (dump %s)", table, why, queued[table])

    def on_log_rows(self, rows: pa.Table) -> bool:
        """Inspect CAPTURED rows of the log before they land; return True if a dump is queued."""
        changes = rows.select(["kind", "table", "schema_id", "payload"]).filter(
            pc.is_in(rows["kind"], pa.array([SCHEMA, DDL, TRUNCATE]))
        ).to_pylist()
        for row in changes:
            statement = json.loads(row["payload"]) if row["kind"] != TRUNCATE else {}
            if row["kind"] == SCHEMA:
                self._forget_body(row["table"], statement.get("body"))
            if row["kind"] == TRUNCATE or statement.get("gone"):
                delete_stale_table(self._store, row["table"])
                self._expect_new_file(row["table"])
            elif statement.get("rewrites"):
                self._report(row["table"], "a statement rewrote it, or may have changed its rows", None)
            elif statement.get("renamed") and row["table"] in self._saved:
                self._report(row["table"], RENAMED, None)
        has_news = any(
            row["kind"] == DDL or (row["kind"] == SCHEMA and not self._has_schema(row)) for row in changes
        )
        return has_news and self.scan_catalog()

    def note_partitions(self, partitions: Mapping[str, Set[str]]) -> bool:
        """Note partitions with rows in the log; return True if one is new, so that a scan is due.

        One that is created, filled and dropped between two scans leaves no other trace.
        """
        is_new = False
        for table, bodies in partitions.items():
            saved = self._saved.get(table)
            if saved and (new := bodies - {*saved.bodies, *saved.logged}):
                self._logged_at |= dict.fromkeys(new, time.monotonic())
                self._keep(replace(saved, logged=tuple(sorted({*saved.logged, *new}))))
                is_new = True
        return is_new

    def scan_catalog(self) -> bool:
        """Compare the catalog with the saved fingerprints; return True if a dump is queued."""
        self._scanned_at = time.monotonic()
        return self._compare(self._source.table_fingerprints(), self._scanned_at)

    def _compare(self, fingerprints: Sequence[TableFingerprint], read_at: float) -> bool:
        is_queued, uncovered = False, self._without_dump()
        for current in fingerprints:
            table = current.schema.table
            saved = self._take_logged(current, read_at)
            why = self._renamed_reason(current) if saved is None else stale_reason(saved, current)
            if self._auto and (table in uncovered or why) and self._can_be_dumped(current):
                removes_none = (
                    table not in uncovered and saved is not None
                    and rows_reason(saved, current) is None and not changes_keys(saved, current)
                )
                dump_id = self._queue_dump(table, is_limited=removes_none)
                self._report(table, uncovered.get(table) or why or "", dump_id)
                is_queued = True
            elif why and table not in uncovered and self._can_be_dumped(current):
                self._report(table, why, None)
            # Last: until the dump is queued, the document has what the log showed.
            self._save(SavedFingerprint.from_catalog(current, saved))
        clear_completed(self._store)
        return is_queued

    def _take_logged(self, current: TableFingerprint, read_at: float) -> SavedFingerprint | None:
        """Return the saved fingerprint with the bodies that the log showed before the catalog, which lacks them."""
        saved = self._saved.get(current.schema.table)
        if saved is None or not saved.logged:
            return saved
        older = {body for body in saved.logged if self._logged_at.get(body, float("-inf")) < read_at}
        later = tuple(body for body in saved.logged if body not in older)
        return replace(saved, bodies=tuple({*saved.bodies, *(older - current.bodies.keys())}), logged=later)

    def _without_dump(self) -> dict[str, str]:
        """Return why each stale table without a queued dump is stale, by table."""
        return {stale.table: stale.why for stale in read_stale_tables(self._store) if stale.dump_id is None}

    def _save(self, fingerprint: SavedFingerprint) -> None:
        if self._saved.get(fingerprint.table) != fingerprint:
            self._keep(fingerprint)

    def _keep(self, fingerprint: SavedFingerprint) -> None:
        self._store.write(f"{_FINGERPRINTS}/{folder(fingerprint.table)}", asdict(fingerprint))
        self._saved[fingerprint.table] = fingerprint

    def _expect_new_file(self, table: str) -> None:
        """Forget the table's own file: a TRUNCATE that the log shows replaces it."""
        if saved := self._saved.get(table):
            bodies = tuple(b for b in saved.bodies if not b.startswith("file") or "partition" in b)
            self._saved[table] = replace(saved, bodies=bodies)

    def _forget_body(self, table: str, body: str | None) -> None:
        """Forget a body that another table is known by: it was renamed, and rows may land under the new name.

        If it gets its name back, even before the next scan, it is stale.
        """
        for saved in list(self._saved.values()):
            if saved.table != table and body in saved.bodies:
                self._moved.add(body)
                self._keep(replace(saved, bodies=tuple(one for one in saved.bodies if one != body)))

    def _has_schema(self, row: Mapping[str, Any]) -> bool:
        """Return True if a schema row shows nothing new of its table."""
        saved, facts = self._saved.get(row["table"]), json.loads(row["payload"])
        if saved is None or saved.schema_id != row["schema_id"] or facts.get("renamed"):
            return False
        return facts.get("body") is None or facts["body"] in saved.bodies

    def _renamed_reason(self, current: TableFingerprint) -> str | None:
        """Return why a table without a saved fingerprint is stale: its rows belong to a saved table of another name."""
        filled = {body for body, has_rows in current.bodies.items() if has_rows}
        is_renamed = bool(filled & self._moved) or any(filled & set(saved.bodies) for saved in self._saved.values())
        return "it was renamed" if is_renamed else None

    def _can_be_dumped(self, current: TableFingerprint) -> bool:
        table = current.schema.table
        if not current.schema.primary_key:
            logger.warning("table %s changed without row events; without a primary key it cannot be dumped", table)
            delete_stale_table(self._store, table)
        return bool(current.schema.primary_key)

    def _report(self, table: str, why: str, dump_id: str | None) -> None:
        save_stale_table(self._store, StaleTable(table, why, dump_id))
        if dump_id:
            logger.warning("table %s changed without row events: %s. Dump %s rereads it", table, why, dump_id)
        elif not self._auto:
            logger.warning("table %s changed without row events: %s. Next: dump start --table '%s'", table, why, table)

    def _queue_dump(self, table: str, *, is_limited: bool) -> str:
        """Return the id of a queued dump of the whole table that has not started, queueing one if there is none.

        Unless ``is_limited`` it is one whose end deletes however many rows it does not return.
        """
        for task in pending_tasks(self._store):
            is_unstarted = task.reads_whole_table and task.progress.state is DumpState.QUEUED
            if task.table == table and is_unstarted and (is_limited or task.request.max_removed is None):
                return task.id
        return queue_dump(self._store, [table], max_removed=self._max_removed if is_limited else None)
