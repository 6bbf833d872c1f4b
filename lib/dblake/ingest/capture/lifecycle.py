"""Follows each table's life: new, followed, suspended, returning, removed; queues the dumps that this requires.

Compares what the catalog scan found with the saved lives (``table_life``). Guarantee: a table that was not followed for
a time, for whatever reason, is not followed as if nothing had happened: it is dumped again, or named as incomplete.
Nothing of a table whose log is incomplete lands while it is suspended. Changes of tables that are followed throughout
are for ``stale_detector``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.names import split_qualified
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import UnfitTable
from dblake.ingest.capture.catalog_scan import CatalogScan
from dblake.ingest.capture.dump_queue import dump_status, has_whole_dump
from dblake.ingest.capture.dump_task import TABLE_SUSPENDED, DumpState, now_text
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.settings import NewTables
from dblake.ingest.capture.stale_detector import StaleTableDetector
from dblake.ingest.capture.stale_tables import delete_stale_table, read_stale_tables
from dblake.ingest.capture.table_life import (
    KEYLESS,
    LifeState,
    TableLife,
    read_lives,
    save_life,
    suspension_next_step,
)
from dblake.landing.columns import DDL, SCHEMA, TRUNCATE

_UNSEEN = "table_privileges: the capture role does not see it, and the log does not show that it was dropped"
_NEW = "table_privileges: it is new, or has a new name, and the capture role may not see it"

logger = logging.getLogger(__name__)


class Lifecycle:
    """The lives of one source's tables. ``position`` returns how far the log has been read, as text."""

    def __init__(
        self, store: ProgressStore, detector: StaleTableDetector, new_tables: NewTables, position: Callable[[], str]
    ) -> None:
        self._store, self._detector, self._new_tables = store, detector, new_tables
        self._position = position
        self._lives = read_lives(store)
        # Before tables had lives, a table with a fingerprint was followed.
        self._inherited = frozenset() if self._lives else detector.known_tables
        self.suspended: Mapping[str, str] = {}
        """Why each suspended table is; a new value replaces this one, so that other threads may read it."""
        self._without_log = pa.array([], pa.string())
        self._unseen = {
            life.table: float("-inf") for life in self._lives.values()
            if life.state is LifeState.SUSPENDED and life.reason in (_UNSEEN, _NEW)
        }
        """Tables that the log has and the catalog does not show, with when that was noticed, by the monotonic clock."""
        self._gone: dict[str, float] = {}
        """Tables that the log shows to be dropped or renamed, likewise."""
        self._is_first_scan = True
        self._set_suspended()

    def apply(self, scan: CatalogScan) -> bool:
        """Take over what the catalog shows now; return True if a dump is queued."""
        schemas = {fingerprint.schema.table: fingerprint.schema for fingerprint in scan.fingerprints}
        self._note_vanished(scan)
        for table in [table for table, at in self._unseen.items() if at < scan.read_at]:
            self._suspend(table, UnfitTable(_NEW if self._is_new(table) else _UNSEEN, has_log=True))
        returning: dict[str, str] = {}
        for table in sorted(scan.tables | schemas.keys() | scan.unfit.keys()):
            if unfit := scan.unfit.get(table):
                if not (unfit.is_ignored_if_new and self._is_new(table)):
                    self._suspend(table, unfit)
            elif table in schemas and (why := self._follow(schemas[table])):
                returning[table] = why
        if returning:
            # First the dumps: without them the states would promise some.
            self._detector.queue_dumps(returning, new=returning.keys() - self._lives.keys())
        for table, why in returning.items():
            self._enter(self._lives.get(table) or self._first(table), LifeState.PENDING, why)
        for table in self._lives.keys() - scan.tables - schemas.keys() - scan.unfit.keys() - self._unseen.keys():
            if self._lives[table].state is not LifeState.REMOVED:
                self._enter(self._lives[table], LifeState.REMOVED, "not in the database, or not in source.tables")
                delete_stale_table(self._store, table)
        self._forget_passed(scan.tables | schemas.keys() | scan.unfit.keys() | self._unseen.keys())
        is_queued = self._complete()
        self._set_suspended()
        return bool(returning) or is_queued

    def _is_new(self, table: str) -> bool:
        """Return True for a table that was never followed since it was created or removed."""
        life = self._lives.get(table)
        if life is None or life.state is LifeState.REMOVED:
            return True
        return life.state is LifeState.SUSPENDED and not life.is_complete and life.reason != _UNSEEN

    def reject(self, rejected: Mapping[str, str]) -> None:
        """Suspend tables of which the log has changes that cannot be captured, before the log behind them lands."""
        for table in rejected.keys() - set(self._without_log.to_pylist()):
            self._suspend(table, UnfitTable(rejected[table]))
        self._set_suspended()

    def on_log_rows(self, rows: pa.Table) -> None:
        """Note tables that the log shows before the catalog does, and those that it shows to be dropped or renamed."""
        if not self._detector.has_drops_in_log:
            return
        is_change = pc.is_in(rows["kind"], pa.array([SCHEMA, DDL, TRUNCATE]))
        for row in rows.select(["kind", "table", "payload"]).filter(is_change).to_pylist():
            table, statement = row["table"], {} if row["kind"] == SCHEMA else json.loads(row["payload"])
            if dropped := statement.get("dropped_schema"):
                known = self._lives.keys() | self._unseen.keys()
                self._note_gone([each for each in known if split_qualified(each)[0] == dropped])
            elif statement.get("gone"):
                self._note_gone([table])
            elif table is not None:
                self._gone.pop(table, None)
                if table not in self._lives or self._lives[table].state is LifeState.REMOVED:
                    self._unseen.setdefault(table, time.monotonic())

    def _note_gone(self, tables: Sequence[str]) -> None:
        for table in tables:
            self._unseen.pop(table, None)
            self._gone[table] = time.monotonic()

    def _note_vanished(self, scan: CatalogScan) -> None:
        """Note tables that the catalog does not show any more, although the log does not show why.

        A catalog may hide tables from a role without privileges. While capture runs, its patterns do not change.
        """
        if self._detector.has_drops_in_log and not self._is_first_scan:
            for table, life in self._lives.items():
                if life.state is not LifeState.REMOVED and table not in self._gone:
                    # The next scan decides: of two renames this one may have seen the first, and the log both.
                    self._unseen.setdefault(table, scan.read_at)
        self._is_first_scan = False
        seen = scan.tables | scan.unfit.keys()
        self._unseen = {table: at for table, at in self._unseen.items() if table not in seen}
        # A scan from before the drop still has the table.
        self._gone = {table: at for table, at in self._gone.items() if table not in seen or at >= scan.read_at}

    def without_suspended(self, rows: pa.Table) -> pa.Table:
        """Return CAPTURED rows without those of suspended tables whose log is incomplete; schemas stay.

        The last row that is left of a transaction is marked as its last one.
        """
        if len(self._without_log) == 0 or rows.num_rows == 0:
            return rows
        # The log declares a schema once; rows that land after the return refer to it.
        is_schema = pc.equal(rows["kind"], SCHEMA)
        is_kept = pc.or_(is_schema, pc.invert(pc.is_in(rows["table"], self._without_log)))
        if pc.all(is_kept).as_py():
            return rows
        kept, ended = rows.filter(is_kept), pc.unique(rows.filter(rows["last_in_txn"])["lsn"])
        lsn, flags = kept["lsn"].to_numpy(), np.zeros(kept.num_rows, bool)
        data = np.flatnonzero(pc.not_equal(kept["kind"], SCHEMA).to_numpy())
        last = data[np.append(lsn[data][1:] != lsn[data][:-1], True)[: len(data)]]
        flags[last] = np.isin(lsn[last], ended.to_numpy())
        index = kept.schema.get_field_index("last_in_txn")
        return kept.set_column(index, "last_in_txn", pa.array(flags))

    def _suspend(self, table: str, unfit: UnfitTable) -> None:
        life = self._lives.get(table) or self._first(table)
        is_suspended = life.state is LifeState.SUSPENDED
        has_log = unfit.has_log and (life.has_log or not is_suspended) and life.state is not LifeState.REMOVED
        if is_suspended and (life.reason, life.has_log) == (unfit.reason, has_log):
            return
        self._enter(life, LifeState.SUSPENDED, unfit.reason, has_log=has_log)
        next_step = suspension_next_step(unfit.reason)
        logger.warning("table %s is suspended: %s. Next: %s", table, unfit.reason, next_step)

    def _follow(self, schema: TableSchema) -> str | None:
        """Follow a table that meets its prerequisites; return why it requires a dump, if it does."""
        table, life = schema.table, self._lives.get(schema.table)
        if life is None:
            life = self._first(table)
            if life.is_complete:
                self._enter(life, LifeState.FOLLOWED, "")
                return None
            return self._begin(life, schema, "it is new")
        if life.state not in (LifeState.SUSPENDED, LifeState.REMOVED):
            return None
        is_stale = any(entry.table == table for entry in read_stale_tables(self._store))
        if life.state is LifeState.SUSPENDED and life.has_log and life.is_complete and not is_stale:
            self._enter(life, LifeState.FOLLOWED, "")
            logger.info("table %s is no longer suspended", table)
            return None
        return self._begin(life, schema, f"it was {life.state.value} since {life.since}: {life.reason}")

    def _begin(self, life: TableLife, schema: TableSchema, why: str) -> str | None:
        """Return why a table requires a dump; without one it is incomplete."""
        table = life.table
        if not schema.primary_key:
            self._enter(life, LifeState.INCOMPLETE, KEYLESS)
        elif self._new_tables == "dump" or (life.is_complete and self._detector.is_automatic):
            # State has all its rows from before: it is a table that changed, not a new one.
            return why
        elif self._new_tables == "ignore":
            self._enter(life, LifeState.INCOMPLETE, f"{why}, and capture.new_tables is ignore")
        else:
            self._enter(life, LifeState.INCOMPLETE, why)
            logger.warning("table %s is incomplete: %s. Next: dump start --table '%s'", table, why, table)
        return None

    def _forget_passed(self, present: Set[str]) -> None:
        """Delete the stale tables that no scan has seen: the log showed a name that was given for a moment.

        If such a table exists after all, the next scan follows it as new.
        """
        for entry in read_stale_tables(self._store):
            if entry.table not in present and entry.table not in self._lives:
                delete_stale_table(self._store, entry.table)

    def _complete(self) -> bool:
        """Mark the tables as complete whose dump is done, and those as incomplete whose dump has failed.

        A dump counts that began after the table's state did, by positions: several machines have several clocks.
        Return True if a dump is queued: of a table that was suspended when its dump began, and is not any more.
        """
        waiting = [
            life for life in self._lives.values()
            if life.state is LifeState.PENDING or (life.state is LifeState.INCOMPLETE and life.reason != KEYLESS)
        ]
        if not waiting:
            return False
        again: dict[str, str] = {}
        dumps, stale = dump_status(self._store), {entry.table: entry for entry in read_stale_tables(self._store)}
        for life in waiting:
            of_table = [dump for dump in dumps if dump["table"] == life.table and dump["whole"]]
            is_done = has_whole_dump(self._store, life.table, Position.parse(life.position))
            failed = next((
                d["error"] or f"dump {d['id']} was cancelled" for d in of_table
                if d["state"] in (DumpState.FAILED, DumpState.CANCELLED)
                and life.table in stale and stale[life.table].dump_id == d["id"]
            ), None)
            if is_done or (life.state is LifeState.PENDING and life.table not in stale):
                self._enter(life, LifeState.FOLLOWED, "")
                logger.info("table %s is complete", life.table)
            elif failed and life.state is LifeState.PENDING and failed.startswith(TABLE_SUSPENDED):
                again[life.table] = life.reason
            elif failed and life.state is LifeState.PENDING:
                self._enter(life, LifeState.INCOMPLETE, failed)
        if again:
            self._detector.queue_dumps(again)
        return bool(again)

    def _first(self, table: str) -> TableLife:
        """Return the life of a table without a document."""
        return TableLife(table, LifeState.PENDING, now_text(), self._position(), is_complete=table in self._inherited)

    def _enter(self, life: TableLife, state: LifeState, reason: str, *, has_log: bool = True) -> None:
        is_complete = state is LifeState.FOLLOWED or (life.is_complete and state is LifeState.SUSPENDED)
        entered = TableLife(
            life.table, state, now_text(), self._position(), reason, is_complete,
            has_log=has_log and state is not LifeState.REMOVED,
        )
        save_life(self._store, entered)
        self._lives[life.table] = entered

    def _set_suspended(self) -> None:
        suspended = [life for life in self._lives.values() if life.state is LifeState.SUSPENDED]
        self.suspended = {life.table: life.reason for life in suspended}
        self._without_log = pa.array([life.table for life in suspended if not life.has_log], pa.string())
