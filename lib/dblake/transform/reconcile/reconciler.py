"""Take new landing batches into schemas, events and the ledger of windows, each table once per batch.

``microbatch`` writes the event files; here they are committed, all in one Delta commit, together with what belongs
beside them. The tables are appended to in this order: schemas, events, ledger. A run that dies between two of them is
completed by the next one's ``catch_up``; files that were written but not committed stay invisible. When micro-batches
run, and of which batches, is left to ``stream``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import pyarrow as pa

from dblake.base.core.errors import LandingGap, SupersededByRedecode, TableUnavailable
from dblake.base.core.failpoints import failpoint
from dblake.base.core.intervals import REPORT_SECONDS, Interval
from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.base.core.steps import step
from dblake.base.lake.batch_times import note_batches
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import Application, commit_files
from dblake.base.lake.schemas import SCHEMAS, SchemaVersions, parse_schema, schema_row
from dblake.transform.events.files import DUMP, EVENT_COLUMNS, PRUNED_BY, EventFile
from dblake.transform.events.schema import WINDOWS
from dblake.transform.reconcile.batch_summary import LandingSurvey, survey
from dblake.transform.reconcile.join_choice import choose_join
from dblake.transform.reconcile.known_keys import LakeKeys, find_events, find_states, no_states
from dblake.transform.reconcile.landing_files import LandingFiles
from dblake.transform.reconcile.landing_identity import require_same_landing
from dblake.transform.reconcile.ledger import Written, incarnation_rows, ledger_rows
from dblake.transform.reconcile.microbatch import MicroBatch, NewBatches
from dblake.transform.reconcile.runner import Runner
from dblake.transform.reconcile.task import ChunkCounts
from dblake.transform.reconcile.windows import LOG_EXPIRED, Ending, WatermarkRow, lows_without_high, parse_endings
from dblake.transform.spark.append_table import AppendTable
from dblake.transform.spark.session import Session

_WITHHELD = "dblake.withheld"
"""Key of commit metadata of events: why dumps delete nothing, until the ledger has it."""
_SEARCHED_COMMITS = 50

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The event files of a micro-batch, how many rows of each chunk are in them, and why dumps delete nothing."""

    files: Sequence[EventFile]
    written: ChunkCounts
    withheld: Mapping[str, str]


class Reconciler:
    """What stays the same from one micro-batch of a source to the next."""

    def __init__(self, session: Session, paths: Paths, earlier: tuple[Paths, int] | None = None) -> None:
        """``earlier``: rows of other tables from before a landing batch are taken over as they are."""
        self._paths, self._runner = paths, Runner(session)
        self.landing = LandingFiles(paths.landing, paths.source)
        self._schemas = self._table("schemas", SCHEMAS, ("table", "batch"), earlier)
        self._events = self._table("events", EVENT_COLUMNS, PRUNED_BY, earlier)
        self._ledger = self._table("windows", WINDOWS, ("table", "lease_epoch", "batch"), earlier)
        for table in (self._schemas, self._events, self._ledger):
            table.create()
        # State holds what was decoded before, so it knows nothing of events that are decoded again.
        find = no_states if earlier else partial(find_states, paths)
        self._known_keys = LakeKeys(partial(find_events, paths, earlier), find)
        self._run = self._newest_run()
        # A redecode writes to tables of its own, after it has required the landing of those it replaces.
        self._checks_landing = earlier is None
        self._known_schemas: dict[str, TableSchema] = {}
        self._versions = SchemaVersions()
        self._report = Interval(REPORT_SECONDS)
        self._first_unreported: int | None = None
        self._last: tuple[int, tuple[int | None, int | None]] | None = None

    def done(self) -> int:
        """Return the newest landing batch whose events are appended."""
        return self._events.done()

    def catch_up(self) -> None:
        """Append what a run that died, or a table that was removed, left out beside the events. Do this first."""
        done = self.done()
        for row in self._schemas.query():
            schema = self._known_schemas[row["schema_id"]] = parse_schema(row)
            self._versions.add(schema, Position(row["incarnation"], row["lsn"], row["seq"]))
        behind = self._schemas.done()
        if behind < done:
            summary = self._survey(behind + 1, done)
            with commit_lock(self._schemas.path):
                self._append_schemas(summary, behind, done)
        behind = self._ledger.done()
        if behind < done:
            summary = self._survey(behind + 1, done)
            with commit_lock(self._ledger.path):
                self._append_ledger(summary, self._counted(behind + 1, done), self._withheld(), behind, done)

    def reconcile(self, last: int) -> int:
        """Take all batches after those done up to ``last``; return the number of events.

        Raises LandingGap if landing does not hold the batches or is another table than that of the batches done.
        """
        done = self.done()
        if last <= done:
            return 0
        self.landing.refresh()
        if self._checks_landing:
            require_same_landing(self._events, self._paths.source, self.landing.table_id, done)
            self._checks_landing = False
        with step("reconcile.plan", first_batch=done + 1, last_batch=last):
            summary = self._survey(done + 1, last)
        missing = set(range(done + 1, last + 1)) - summary.epochs.keys()
        if missing:
            raise LandingGap(
                f"landing lacks {ranges(missing)}; events reach batch {done}",
                next_step="bring landing back from a backup; if the batches are gone, remove this source's tables and "
                          "dump all again",
            )
        with commit_lock(self._paths.schemas):
            self._append_schemas(summary, done, last)
        failpoint("reconcile.schemas_appended")
        written = self._write(NewBatches(summary, done + 1, last, self._known_schemas, self.landing))
        failpoint("reconcile.events_written")
        self._commit(written, done, last)
        failpoint("reconcile.events_appended")
        with commit_lock(self._paths.windows):
            self._append_ledger(summary, _by_chunk(written.written), written.withheld, done, last)
        failpoint("reconcile.ledger_appended")
        if self._first_unreported is None:
            self._first_unreported = done + 1
        if self._report.is_due():
            logger.info("reconciled batches %d to %d", self._first_unreported, last)
            self._first_unreported = None
        return sum(file.rows for file in written.files)

    def _write(self, new: NewBatches) -> Reconciled:
        """Write the events of new batches (DBLog, algorithm 1, step 7)."""
        with MicroBatch(new, self._known_keys, partial(choose_join, self._runner, self._paths.events)) as batch:
            with step("reconcile.join", windows=len(batch.closing)):
                plan = batch.plan()
                removals = batch.removals(plan, batch.closing)
            with step("reconcile.write", bytes=sum(part.size for part in batch.parts)):
                written = self._runner.write_removals(removals.events, self._paths.events) if removals else []
                written += self._runner.write(batch.parts, plan, self._paths.events)
        files = [file for result in written for file in result.files]
        counts = sum((result.written for result in written), ChunkCounts())
        return Reconciled(files, counts, removals.withheld if removals else {})

    def _table(
        self, name: str, columns: pa.Schema, prune_by: tuple[str, ...], earlier: tuple[Paths, int] | None
    ) -> AppendTable:
        before_redecode = (getattr(earlier[0], name), earlier[1]) if earlier else None
        application = Application.reconcile(self._paths.source)
        return AppendTable(getattr(self._paths, name), application, columns, prune_by, before_redecode)

    def _newest_run(self) -> int:
        return self._events.opened().reached(Application.redecode(self._paths.source))

    def _survey(self, first: int, last: int) -> LandingSurvey:
        return survey(self.landing.files(first, last), first, last)

    def _append_schemas(self, summary: LandingSurvey, done: int, last: int) -> None:
        self._known_schemas |= {row.schema.schema_id: row.schema for row in summary.schemas}
        # Schemas are ahead of events if a run died between the two.
        new = max(done, self._schemas.done())
        rows = sorted((Position(row.incarnation, row.lsn, row.seq), row.batch, row.schema.schema_id)
                      for row in summary.schemas if row.batch > new)
        self._schemas.append_rows([
            schema_row(self._known_schemas[schema_id], since, batch) for since, batch, schema_id in rows
            if self._versions.add(self._known_schemas[schema_id], since)
        ], last)

    def _commit(self, written: Reconciled, done: int, last: int) -> None:
        """Make all event files visible, in one commit that is rejected if another one has come in between.

        Raises TableUnavailable beside another reconcile, and SupersededByRedecode beside a redecode, whose decoder may
        be a newer one: its swap records reconcile's batch again, which rejects every commit prepared before it.
        """
        rows = sum(file.rows for file in written.files)
        with (
            step("reconcile.commit", first_batch=done + 1, last_batch=last, files=len(written.files), events=rows),
            commit_lock(self._paths.events),
        ):
            table = self._events.opened()
            current = table.reached(Application.reconcile(self._paths.source))
            if table.reached(Application.redecode(self._paths.source)) != self._run:
                raise _superseded()
            if current != done:
                raise TableUnavailable(
                    f"another reconcile of this source has appended events up to batch {current}",
                    next_step="run one at a time; this one may be started again",
                )
            notes = note_batches(done + 1, last)
            if written.withheld:
                notes[_WITHHELD] = json.dumps(dict(written.withheld))
            try:
                commit_files(
                    self._paths.events, table.delta, Application.reconcile(self._paths.source), last, written.files,
                    notes,
                )
            except TableUnavailable:
                if self._newest_run() != self._run:
                    raise _superseded() from None
                raise

    def _append_ledger(
        self, summary: LandingSurvey, written: Written, withheld: Mapping[str, str], done: int, last: int
    ) -> None:
        ended = parse_endings(summary.watermarks, self.landing.oldest_batch)
        for table in sorted({ending.row.table for ending in ended if ending.end.reason == LOG_EXPIRED}):
            logger.error("table %s: chunks are discarded: %s. Next: dump start --table '%s'", table, LOG_EXPIRED, table)
        orphans = self._orphans(summary, ended, done)
        begun = incarnation_rows(self._epoch_and_incarnation(done)[1], summary)
        if summary.epochs:
            newest = max(summary.epochs)
            self._last = newest, (summary.epochs[newest], summary.incarnations[newest])
        self._ledger.append_rows(ledger_rows(ended, written, withheld, orphans) + begun, last)

    def _counted(self, first: int, last: int) -> Written:
        """Count the rows of each chunk among events that were committed before."""
        counted: ChunkCounts = ChunkCounts()
        for row in self._events.query("chunk_id, batch, op", f"origin = '{DUMP}' AND batch BETWEEN {first} AND {last}"):
            counted[row["chunk_id"], row["batch"], row["op"]] += 1
        return _by_chunk(counted)

    def _withheld(self) -> dict[str, str]:
        """Return why dumps deleted nothing, as the newest commits of events record it."""
        found: dict[str, str] = {}
        for commit in self._events.opened().delta.history(_SEARCHED_COMMITS):
            found |= json.loads(commit.get(_WITHHELD, "{}"))
        return found

    def _orphans(self, summary: LandingSurvey, ended: Iterable[Ending], done: int) -> dict[WatermarkRow, int]:
        """Return low watermarks whose lease epoch ended in these batches without a high one, each with that batch."""
        if not summary.epochs:
            return {}
        before, newest = self._epoch_and_incarnation(done)[0], max(summary.epochs.values())
        lows = list(summary.watermarks)
        answered = {ending.row.chunk for ending in ended}
        if before is not None and before < newest:
            # Those of yet earlier epochs were recorded when this one began.
            of_epoch = survey(self.landing.files_of_epoch(before, done), 1, done).watermarks
            lows += [row for row in of_epoch if row.lease_epoch == before]
            recorded = self._ledger.query('chunk_id, "table"', f"lease_epoch = {before}")
            answered |= {(row["chunk_id"], row["table"], before) for row in recorded}
        orphans = {}
        for low in lows_without_high(lows, answered):
            later = [batch for batch, epoch in summary.epochs.items() if epoch > low.lease_epoch]
            if later:
                orphans[low] = min(later)
        return orphans

    def _epoch_and_incarnation(self, batch: int) -> tuple[int | None, int | None]:
        """Lease epoch and incarnation of the batch before these; None if there is none."""
        if self._last is None or self._last[0] != batch:
            summary = self._survey(batch, batch)
            self._last = batch, (summary.epochs.get(batch), summary.incarnations.get(batch))
        return self._last[1]


def ranges(numbers: Iterable[int]) -> str:
    """Spell batch numbers for a message: ``batches 4 to 9, 12``."""
    spans = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        span = [number for _, number in run]
        spans.append(f"{span[0]} to {span[-1]}" if len(span) > 1 else f"{span[0]}")
    plural = len(spans) > 1 or "to" in spans[0]
    return f"{'batches' if plural else 'batch'} {', '.join(spans)}"


def _superseded() -> SupersededByRedecode:
    return SupersededByRedecode("events were decoded again while this reconcile ran", next_step="start it again")


def _by_chunk(counts: ChunkCounts) -> Written:
    """Rows, fills and removed keys by chunk id and batch."""
    chunks = {(chunk, batch) for chunk, batch, _ in counts}
    return {
        (chunk, batch): (counts[chunk, batch, Op.READ], counts[chunk, batch, Op.FILL], counts[chunk, batch, Op.DELETE])
        for chunk, batch in chunks
    }
