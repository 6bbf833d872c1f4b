"""One micro-batch of reconcile: from the numbers of new landing batches to rows appended to three tables.

The heart's composition: which rows of landing each pure function of ``dblake.reconcile`` gets, and in which order the
tables take what comes of it: schemas, events, ledger, each once for a landing batch. Dying between any two of them is
mended by ``catch_up``. When micro-batches come, and of which batches, is left to ``dblake.reconcile.stream``.

Rows are read from the landing table by batch number and not from the stream's own frame, which has no columns to
prune: every action on it would read all payloads again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dblake.core.errors import LandingGap, SupersededByRedecode, TableUnavailable
from dblake.core.failpoints import failpoint
from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.window import ChunkWindow
from dblake.decode.columns import OP
from dblake.decode.columns import TRUNCATE as TRUNCATED
from dblake.events.schema import EVENTS, POSITION, WINDOWS
from dblake.lake.layout import Paths
from dblake.lake.locks import commit_lock
from dblake.lake.log import Application, newest_batch
from dblake.lake.schemas import SCHEMAS, parse_schema, schema_row
from dblake.landing.columns import BATCH, CHUNK, CHUNK_ID, INCARNATION, KIND, LEASE_EPOCH, LOW, ROW, TABLE, TRUNCATE
from dblake.reconcile.batch_summary import Survey, counts, read_survey, survey
from dblake.reconcile.decode import chunk_keys, chunk_rows, log_keys, log_rows, touched
from dblake.reconcile.dedupe import survivors, weights
from dblake.reconcile.held import Windows
from dblake.reconcile.ledger import gap_rows, ledger_rows, written
from dblake.reconcile.order import dump_events, in_order, log_events
from dblake.reconcile.phantoms import before, dump_ends, known, left, phantoms, returned
from dblake.reconcile.windows import (
    Ending,
    WatermarkRow,
    endings,
    of_window,
    reach,
    require_rows,
    unanswered,
    windows_table,
)
from dblake.spark.append_table import AppendTable

logger = logging.getLogger(__name__)

_FEW = 500_000
"""Touched rows up to which they go to every task. Otherwise all chunk rows are shuffled to meet them."""

_LOG = f"{KIND} IN ('{ROW}', '{TRUNCATE}')"


class Reconciler:
    """What stays the same from one micro-batch of a source to the next."""

    def __init__(self, spark: SparkSession, paths: Paths, earlier: tuple[Paths, int] | None = None) -> None:
        """``earlier``: what other tables hold from before a landing batch is taken over as it is."""
        self._spark = spark
        self._paths = paths
        self._schemas = self._table("schemas", from_arrow_schema(SCHEMAS), ("table", "batch"), earlier)
        self._events = self._table("events", EVENTS, ("incarnation", "lsn", "table", "committed_at", "batch"), earlier)
        self._ledger = self._table("windows", WINDOWS, ("table", "lease_epoch", "batch"), earlier)
        for table in (self._schemas, self._events, self._ledger):
            table.make()
        self._run = self._newest_run()
        self._known: dict[str, TableSchema] = {}
        self._last: tuple[int, tuple[int | None, int | None]] | None = None

    def done(self) -> int:
        """The newest landing batch whose events are appended."""
        return self._events.done()

    def catch_up(self) -> None:
        """Appends what a run that died, or a table that was removed, left out beside the events. Do this first."""
        done = self.done()
        for table, append in ((self._schemas, self._append_schemas), (self._ledger, self._append_ledger)):
            behind = table.done()
            if behind < done:
                with commit_lock(table.path):
                    append(read_survey(survey(self._batches(behind + 1, done)).collect()), behind, done)
        for row in self._schemas.held():
            self._known[row["schema_id"]] = parse_schema(row)

    def reconcile(self, last: int) -> None:
        """Takes all batches after those done up to ``last``. Raises LandingGap if landing does not hold them."""
        done = self.done()
        if last <= done:
            return
        new = self._batches(done + 1, last)
        found = read_survey(survey(new).collect())
        missing = set(range(done + 1, last + 1)) - found.epochs.keys()
        if missing:
            raise LandingGap(
                f"landing lacks {ranges(missing)}; events reach batch {done}",
                next_step="bring landing back from a backup; if the batches are gone, remove this source's tables and "
                          "dump all again",
            )
        with commit_lock(self._paths.schemas):
            self._append_schemas(found, done, last)
        failpoint("reconcile.schemas_appended")
        with commit_lock(self._paths.events), self._beside_no_other(done + 1, last):
            self._append_events(new, found, done, last)
        failpoint("reconcile.events_appended")
        with commit_lock(self._paths.windows):
            self._append_ledger(found, done, last)
        failpoint("reconcile.ledger_appended")
        logger.info("reconciled batches %d to %d", done + 1, last)

    def _table(
        self, name: str, columns: StructType, prune_by: tuple[str, ...], earlier: tuple[Paths, int] | None
    ) -> AppendTable:
        before = (getattr(earlier[0], name), earlier[1]) if earlier else None
        path = getattr(self._paths, name)
        return AppendTable(self._spark, path, Application.reconcile(self._paths.source), columns, prune_by, before)

    def _newest_run(self) -> int:
        return newest_batch(self._paths.events, Application.redecode(self._paths.source))

    @contextmanager
    def _beside_no_other(self, first: int, last: int) -> Iterator[None]:
        """Raises SupersededByRedecode if events were decoded again since this began: its decoder may be the one of before."""
        what = "events were decoded again while this reconcile ran"
        if self._newest_run() != self._run:
            raise SupersededByRedecode(what, next_step="start it again")
        try:
            yield
        except PySparkException:
            # The swap makes an append that is under way fail.
            if self._newest_run() != self._run:
                raise SupersededByRedecode(what, next_step="start it again") from None
            raise
        if self._newest_run() != self._run:
            raise SupersededByRedecode(
                f"{what}; {ranges(range(first, last + 1))} may be decoded as before",
                next_step=f"reconcile --from {first}, once, then start it again",
            )

    def _batches(self, first: int, last: int) -> DataFrame:
        landing = self._spark.read.format("delta").load(self._paths.landing)
        return landing.where(F.col(BATCH).between(first, last))

    def _append_schemas(self, found: Survey, done: int, last: int) -> None:
        self._known |= {row.schema.schema_id: row.schema for row in found.schemas}
        # Schemas run ahead of events if a run died between the two.
        new = max(done, self._schemas.done())
        self._schemas.append_held([
            schema_row(row.schema, Position(row.incarnation, row.lsn, row.seq), row.batch)
            for row in found.schemas if row.batch > new
        ], last)

    def _append_events(self, new: DataFrame, found: Survey, done: int, last: int) -> None:
        now = self.done()
        if now >= last:
            return
        if now > done:
            raise TableUnavailable(
                f"another reconcile of this source has meanwhile appended events up to batch {now}",
                next_step="run one at a time; this one may be started again",
            )
        closing = [ending for ending in endings(found.watermarks) if ending.window]
        if not closing and not found.log_rows:
            self._events.append_held([], last)
            return
        events = log_events(log_rows(new.where(_LOG), self._known))
        if not closing:
            self._events.append(in_order(events), last)
            return
        windows = self._spark.createDataFrame(windows_table(closing))
        spans = [ending.window for ending in closing if ending.window]
        near = F.col(TABLE).isin(sorted({window.table for window in spans})) & reach(spans)
        log = self._batches(1, last).where(_LOG).where(near)
        chunks = self._chunk_rows(new, found, closing, done)
        rows = of_window(chunks, windows)
        # Kept, because it is small, and what is in it decides how the chunk rows are gone through.
        hits = touched(log, self._known, Windows(spans)).persist()
        kept = [hits]
        try:
            weight = weights(hits).first()
            assert weight is not None, "an aggregate is one row"
            standing = survivors(
                chunk_rows(rows, self._known), hits,
                few=weight["rows"] <= _FEW, partial=weight["partial"] > 0, truncates=weight["truncates"] > 0,
            )
            dumped = dump_events(standing, windows)
            events = events.unionByName(dumped)
            ended = [ending for ending in closing if ending.end.began]
            if ended:
                returns = returned(chunk_keys(rows, self._known), windows)
                events = self._with_phantoms(events, new, dumped, returns, ended, spans, kept)
            self._events.append(in_order(events), last)
        finally:
            for frame in kept:
                frame.unpersist()

    def _with_phantoms(
        self, events: DataFrame, new: DataFrame, dumped: DataFrame, returns: DataFrame, ended: Sequence[Ending],
        windows: Sequence[ChunkWindow], kept: list[DataFrame],
    ) -> DataFrame:
        """The events, and those that delete what was known before the dumps that end here, and they did not return."""
        began = [ending.end.began.position for ending in ended if ending.end.began]
        tables = sorted({ending.row.table for ending in ended})
        of_them = F.col(TABLE).isin(tables)
        ends = self._spark.createDataFrame(dump_ends(ended, self._truncates(new.where(of_them), of_them)))
        log, history = new.where(_LOG).where(of_them), known(self._events.rows().where(of_them))
        older = history.unionByName(log_keys(log.where(before(max(began))), self._known))
        if any(w.table in tables and w.high < max(began) for w in windows):
            # What one dump of a table read is known from before to the next.
            older = older.unionByName(known(dumped.where(of_them)))
        kept.append(left(older, ends).persist())
        count = kept[-1].count()
        if not count:
            return events
        since = history.where(~before(min(began))).unionByName(
            log_keys(log.where(~before(min(began))), self._known)
        ).unionByName(returns)
        return events.unionByName(phantoms(kept[-1], since, ends, few=count <= _FEW))

    def _truncates(self, new: DataFrame, of_them: Column) -> dict[str, list[Position]]:
        """All truncates of some tables: in landing's new rows and in events."""
        rows = new.where(F.col(KIND) == TRUNCATE).select(TABLE, *POSITION)
        before = self._events.rows().where(of_them & (F.col(OP) == TRUNCATED)).select(TABLE, *POSITION)
        found: dict[str, list[Position]] = {}
        for table, *at in rows.unionByName(before).collect():
            found.setdefault(table, []).append(Position(*at))
        return found

    def _chunk_rows(self, new: DataFrame, found: Survey, closing: Sequence[Ending], done: int) -> DataFrame:
        """Landing's chunk rows for the windows that close, those of earlier batches included."""
        windows = [ending.window for ending in closing if ending.window]
        rows, chunk_counts = new.where(F.col(KIND) == CHUNK), Counter(found.chunk_rows)
        first = min(window.first_batch for window in windows)
        if first <= done:
            ids = [window.chunk_id for window in windows if window.first_batch <= done]
            earlier = self._batches(first, done).where((F.col(KIND) == CHUNK) & F.col(CHUNK_ID).isin(ids))
            chunk_counts.update(read_survey(counts(earlier).collect()).chunk_rows)
            rows = rows.unionByName(earlier)
        require_rows(closing, chunk_counts)
        return rows

    def _append_ledger(self, found: Survey, done: int, last: int) -> None:
        ended = endings(found.watermarks)
        orphans = self._orphans(found, ended, done)
        gaps = gap_rows(self._told_by(done)[1], found)
        if found.epochs:
            newest = max(found.epochs)
            self._last = newest, (found.epochs[newest], found.incarnations[newest])
        stand = {}
        if ended:
            of_chunks = self._events.rows().where(
                F.col(BATCH).between(done + 1, last) & F.col(CHUNK_ID).isin([ending.row.chunk_id for ending in ended])
            )
            stand = {
                (row[CHUNK_ID], row[BATCH]): (row["rows"], row["fills"], row["removed"])
                for row in written(of_chunks).collect()
            }
        self._ledger.append_held(ledger_rows(ended, stand, orphans) + gaps, last)

    def _orphans(self, found: Survey, ended: Iterable[Ending], done: int) -> dict[WatermarkRow, int]:
        """Low watermarks whose lease epoch ended in these batches before a high one came, with the batch it did in."""
        if not found.epochs:
            return {}
        before, newest = self._told_by(done)[0], max(found.epochs.values())
        lows = list(found.watermarks)
        answered = {ending.row.chunk for ending in ended}
        if before is not None and before < newest:
            # Those of yet earlier epochs were told when this one began.
            of_epoch = self._batches(1, done).where((F.col(LEASE_EPOCH) == before) & (F.col(KIND) == LOW))
            lows += read_survey(survey(of_epoch).collect()).watermarks
            told = self._ledger.rows().where(F.col(LEASE_EPOCH) == before)
            answered |= {(row[CHUNK_ID], row[TABLE], before) for row in told.select(CHUNK_ID, TABLE).collect()}
        orphans = {}
        for low in unanswered(lows, answered):
            later = [batch for batch, epoch in found.epochs.items() if epoch > low.lease_epoch]
            if later:
                orphans[low] = min(later)
        return orphans

    def _told_by(self, batch: int) -> tuple[int | None, int | None]:
        """Lease epoch and incarnation of the batch before these; None if there is none."""
        if self._last is None or self._last[0] != batch:
            row = self._batches(batch, batch).select(LEASE_EPOCH, INCARNATION).first()
            self._last = batch, (row[LEASE_EPOCH], row[INCARNATION]) if row else (None, None)
        return self._last[1]


def ranges(numbers: Iterable[int]) -> str:
    """Batch numbers for a message: ``batches 4 to 9, 12``."""
    spans = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        span = [number for _, number in run]
        spans.append(f"{span[0]} to {span[-1]}" if len(span) > 1 else f"{span[0]}")
    plural = len(spans) > 1 or "to" in spans[0]
    return f"{'batches' if plural else 'batch'} {', '.join(spans)}"
