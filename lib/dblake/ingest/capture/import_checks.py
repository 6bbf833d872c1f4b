"""Whether files can become a table's first rows: landing has the log after their position, and nothing is newer.

Place: between the ``dump import`` command and the queue. An imported row is dropped if the log has an event of its key
after the position, so landing must hold the table's whole log from there on. Guarantee: an import is rejected, with the
reason, if that log is incomplete, or if a change without row events may lie between the position and now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dblake.base.core.errors import PointOutOfRange, PrerequisitesNotMet
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.window import Snapshot
from dblake.base.lake.query import query_rows, quoted
from dblake.ingest.capture.activity import read_activity
from dblake.ingest.capture.dump_queue import dump_status, find_other_dump
from dblake.ingest.capture.dump_task import DumpState, DumpTask
from dblake.ingest.capture.progress import ProgressStore
from dblake.ingest.capture.stale_tables import read_stale_tables
from dblake.ingest.capture.table_life import LifeState, read_lives
from dblake.landing.columns import DDL, HIGH, SCHEMA
from dblake.landing.control import CLOSED, ChunkEnd, DumpStart

_PATIENCE_SECONDS = 30.0
"""How long a running capture may take to reach a position that lies behind the newest heartbeat."""
_POLL_SECONDS = 0.5
_COMMIT_TIME_PRECISION = timedelta(seconds=1)
"""The binlog has whole seconds."""
_ID_TIME = "%Y%m%d-%H%M%S"
_LATER = "export the table again now, and import that at its position"


@dataclass(frozen=True, slots=True)
class ImportChecks:
    """The checks of one import: of ``schema``'s table, from files as of ``began``, into one source's landing table.

    ``keep`` is how long maintenance keeps landing; None is without limit.
    """

    landing: str
    store: ProgressStore
    schema: TableSchema
    began: DumpStart
    keep: timedelta | None = None

    def run(self, *, replaces: bool) -> int:
        """Return the batch from which landing has the log after the position.

        With ``replaces`` the table may have been dumped before the position. Raises PointOutOfRange if landing does not
        reach from the position to now, PrerequisitesNotMet for any other reason.
        """
        first, committed_at = self._require_log()
        self._require_followed(committed_at, replaces=replaces)
        self._require_no_other_dump()
        self._require_not_stale(committed_at)
        self._require_unchanged()
        return first

    @property
    def _table(self) -> str:
        return self.schema.table

    def _of_table(self, kind: str) -> str:
        return f"kind = '{kind}' AND \"table\" = {quoted(self._table)} AND incarnation = {self.began.incarnation}"

    def _since(self, kind: str) -> str:
        return f"{self._of_table(kind)} AND lsn > {self.began.lsn}"

    def _require_log(self) -> tuple[int, datetime]:
        """Return the first batch with log after the position, and the time of the newest commit before it."""
        began, deadline = self.began, time.monotonic() + _PATIENCE_SECONDS
        while True:
            of_log = f"FROM t WHERE incarnation = {began.incarnation}"
            (bounds,) = self._query(f"min(lsn) AS first, max(lsn) AS last {of_log}")
            if bounds["last"] is not None and bounds["last"] > began.lsn:
                break
            activity = read_activity(self.store)
            if time.monotonic() > deadline or activity is None or not activity.is_running():
                raise PointOutOfRange(
                    f"table {self._table}: the position is later than what capture has landed",
                    next_step="run capture until it is past the position; or correct --at",
                )
            time.sleep(_POLL_SECONDS)
        if bounds["first"] > began.lsn:
            raise PointOutOfRange(
                f"table {self._table}: the position is earlier than the log in landing", next_step=_LATER
            )
        before = f"incarnation = {began.incarnation} AND lsn <= {began.lsn}"
        (last,) = self._query(f"max(committed_at) AS committed_at FROM t WHERE {before}")
        unseen = f" OR txid >= {Snapshot.parse(began.snapshot).xmin}" if began.snapshot else ""
        (after,) = self._query(
            "min(batch) AS batch, min(landed_at) AS landed_at FROM t "
            f"WHERE incarnation = {began.incarnation} AND lsn IS NOT NULL AND (lsn > {began.lsn}{unseen})"
        )
        # The other half of the time is for the import, and for reconcile to read the log once more.
        if self.keep is not None and after["landed_at"] < datetime.now(UTC) - self.keep / 2:
            raise PointOutOfRange(
                f"table {self._table}: the log after the position landed longer ago than half of "
                "maintain.landing_days, so maintenance may delete it during the import", next_step=_LATER,
            )
        return after["batch"], last["committed_at"] or datetime.min.replace(tzinfo=UTC)

    def _query(self, what: str) -> list[dict[str, Any]]:
        return query_rows(self.landing, f"SELECT {what}")

    def _require_followed(self, committed_at: datetime, *, replaces: bool) -> None:
        life = read_lives(self.store).get(self._table)
        if life is None or life.state in (LifeState.SUSPENDED, LifeState.REMOVED):
            state = f"{life.state.value}: {life.reason}" if life else "not followed yet"
            raise PrerequisitesNotMet(
                f"table {self._table} is {state}",
                next_step="run preflight and capture, then export the table and import it",
            )
        if life.state is LifeState.FOLLOWED:
            if not replaces:
                raise PrerequisitesNotMet(
                    f"table {self._table} has its rows already: a dump or an import of it is complete",
                    next_step="add --replace to delete the rows that the files do not have; or run verify",
                )
            return
        is_earlier = Position.parse(life.position) > self.began.position
        if is_earlier or datetime.fromisoformat(life.since) > committed_at + _COMMIT_TIME_PRECISION:
            raise PointOutOfRange(
                f"table {self._table}: the position is earlier than {life.since}, when capture began to follow it",
                next_step=_LATER,
            )

    def _require_no_other_dump(self) -> None:
        pending = [
            dump["id"] for dump in dump_status(self.store)
            if dump["table"] == self._table and not DumpState(dump["state"]).is_final
        ]
        if pending:
            raise PrerequisitesNotMet(
                f"table {self._table}: dump {pending[0]} of it is not finished",
                next_step=f"wait for it; or run dump cancel {pending[0]}, and set capture.new_tables to ask",
            )
        ends = [
            ChunkEnd.from_json(row["payload"])
            for row in query_rows(self.landing, f"SELECT payload FROM t WHERE {self._since(HIGH)}")
        ]
        imports = {end.dump_id for end in ends if end.imported}
        if any(end.status == CLOSED and end.dump_id not in imports for end in ends):
            raise PrerequisitesNotMet(
                f"table {self._table}: a dump has read rows of it that are newer than the files", next_step=_LATER
            )

    def _require_not_stale(self, committed_at: datetime) -> None:
        """Require that no change without row events is known, but one whose dump was queued before the position."""
        for stale in read_stale_tables(self.store):
            if stale.table == self._table and (stale.dump_id is None or _queued_at(stale.dump_id) > committed_at):
                raise PrerequisitesNotMet(
                    f"table {self._table}: its rows changed without row events: {stale.why}",
                    next_step=f"run dump start --table '{self._table}'; or {_LATER}",
                )

    def _require_unchanged(self) -> None:
        """Require that the log declares no other schema since the position, and no statement that changes rows."""
        of_table = self._of_table(SCHEMA)
        declared = query_rows(self.landing, f"SELECT lsn, schema_id FROM t WHERE {of_table} ORDER BY lsn, seq")
        before = [row["schema_id"] for row in declared if row["lsn"] <= self.began.lsn]
        after = [row["schema_id"] for row in declared if row["lsn"] > self.began.lsn]
        changes = query_rows(self.landing, f"SELECT payload FROM t WHERE {self._since(DDL)}")
        is_other = len({*before[-1:], *after, self.schema.schema_id}) > 1
        if is_other or any(_changes_rows(json.loads(row["payload"])) for row in changes):
            raise PrerequisitesNotMet(
                f"table {self._table}: a statement altered it or its rows after the position", next_step=_LATER
            )


def why_outdated(store: ProgressStore, task: DumpTask) -> str | None:
    """Return why the files of a queued import are no longer the newest known rows of its table; None if they are.

    ``ImportChecks`` holds when the import is queued; capture asks this before each chunk, and of paused imports.
    """
    if other := find_other_dump(store, task):
        return f"dump {other} of its table was queued beside it, and reads newer rows than the files have; {_LATER}"
    for stale in read_stale_tables(store):
        if stale.table == task.table and (stale.dump_id is None or task.request.is_older_than(stale.dump_id)):
            return f"its rows changed without row events since it was queued: {stale.why}; {_LATER}"
    return None


def newest_incarnation(landing: str) -> int:
    """Return the incarnation of the log that lands now. Raises PointOutOfRange if nothing has landed."""
    newest = next(iter(query_rows(landing, "SELECT max(incarnation) AS newest FROM t")), {"newest": None})["newest"]
    if newest is None:
        raise PointOutOfRange(
            "capture has landed no log, so no position can be compared with it",
            next_step="run capture, and export the table while it runs; then import the files",
        )
    return int(newest)


def _changes_rows(statement: Mapping[str, Any]) -> bool:
    return bool(statement.get("rewrites") or statement.get("gone") or statement.get("dropped_schema"))


def _queued_at(dump_id: str) -> datetime:
    """Return the time in a dump's id."""
    date, clock, milliseconds, *_ = dump_id.split("-")
    second = datetime.strptime(f"{date}-{clock}", _ID_TIME).replace(tzinfo=UTC)
    return second + timedelta(milliseconds=int(milliseconds))
