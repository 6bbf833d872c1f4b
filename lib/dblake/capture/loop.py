"""The capture loop: reads the log, fills batches, lands them, and only then remembers and acknowledges.

Where to begin, and on which server, is ``run``'s to decide.

One pass of the loop never waits for a dump or a commit while the log has something to say. What a batch holds is
acknowledged to the database after its commit has returned, and never beyond the last COMMIT landed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from tenacity import Retrying

from dblake.capture.batch import BatchBuilder, Filled, schema_row
from dblake.capture.commits import Committer
from dblake.capture.dumps import DumpRunner
from dblake.capture.heartbeat import Heartbeat
from dblake.capture.lease import Lease
from dblake.capture.progress import ProgressStore
from dblake.capture.retry import retrying, told
from dblake.capture.settings import CaptureSettings, DumpSettings
from dblake.capture.stale_detector import StaleTableDetector
from dblake.capture.windows import OpenChunk, Windows
from dblake.core.errors import (
    Fenced,
    PositionLost,
    PrerequisitesNotMet,
    SourceError,
    UncapturableEvent,
    Unsupported,
)
from dblake.core.failpoints import failpoint
from dblake.core.position import Position, ResumePoint
from dblake.core.source import HEARTBEAT_ROW, LogPiece, LogStream, ServerIdentity, Source
from dblake.landing.columns import SCHEMA
from dblake.landing.table import Landing

_CHECK_SECONDS = 0.05
_MOST_FAILURES = 12
"""So often the log may fail right after it was opened: more than half a minute."""
_BRIEF_SECONDS = 0.01
"""While dumps fill batches without the log saying anything, or somebody waits for the end of what there is."""
_GRACE_SECONDS = 30.0
START_SECONDS = 10.0
"""A server may need some seconds to see that the capture before this one is gone; nobody waits longer at a prompt."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Until:
    """When capture ends by itself; without either it runs on until it is told to stop."""

    caught_up: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """Where the log is gone on with: ``resume``, or what the source itself keeps if it is None, on which server.

    With ``accept_gap``, what cannot be captured is told as UncapturableEvent, after what came before it has landed.
    """

    server: ServerIdentity
    resume: ResumePoint | None
    incarnation: int
    accept_gap: bool


@dataclass(slots=True)
class Landed:
    """What this run has landed so far."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """From when the log was opened until the last batch had landed."""


class ServerChanged(Exception):
    """At the source's address is not who was there when it was decided where to go on."""


class Loop:
    """A log followed into landing, from where it was decided to begin until told to end at a transaction's end.

    Takes over ``landed``, to count on in it. Raises ServerChanged, with nothing of another server's landed, and
    Fenced if it is no longer the one capture.
    """

    def __init__(
        self,
        source: Source,
        landing: Landing,
        store: ProgressStore,
        lease: Lease,
        settings: CaptureSettings,
        dumps: DumpSettings,
        stop: threading.Event,
        begin: Begin,
        landed: Landed,
    ) -> None:
        self._source, self._lease, self._settings, self._stop = source, lease, settings, stop
        self._begin, self.landed = begin, landed
        reached = landing.reached
        epoch = reached.lease_epoch + 1 if reached else 1
        self._redumps = StaleTableDetector(source, store, auto=settings.redump)
        self._retrying(START_SECONDS)(self._redumps.begin)
        self._stream: LogStream = self._retrying(START_SECONDS)(self._open_log, begin.resume)
        self._windows = Windows()
        self._said: dict[str, str] = {}
        self._batches = BatchBuilder(
            first=reached.batch + 1 if reached else 1, lease_epoch=epoch,
            resume=self._stream.start,
            max_bytes=settings.max_bytes, max_rows=settings.max_rows,
        )
        self._commits = Committer(
            landing, lease_epoch=epoch, server=begin.server, per_second=settings.commits_per_second
        )
        self._dumps = DumpRunner(
            source, store, self._batches, self._windows, dumps, reconnect_seconds=settings.reconnect_seconds
        )
        logger.info("capture of %s starts: lease epoch %d", source.name, epoch)
        self._pulse = Heartbeat(source, settings.heartbeat_seconds)
        self._began = time.monotonic()
        self._failures = 0
        self._fence: str | None = None
        self._fence_landed = False

    def run(self, until: Until) -> None:
        """Follows the log; once."""
        try:
            self._dumps.start()
            self._follow(until)
            self._finish()
        except UncapturableEvent:
            # What was whole before it is as good as ever.
            self._finish()
            raise
        finally:
            self._dumps.close()
            self._commits.close()
            self._stream.close()
            self._pulse.close()

    def _follow(self, until: Until) -> None:
        ends = time.monotonic() + until.seconds if until.seconds is not None else float("inf")
        grace = float("inf")
        inside = False
        while True:
            self._require_lease()
            piece = self._read(self._patience(until))
            if piece:
                inside = piece.reached.landed is not None
                self._take_in(piece)
            self._after_commit(wait_seconds=0.0)
            self._start_commit(at_once=until.caught_up and piece is None and not self._dumps.reading)
            if self._dumps.error:
                raise self._dumps.error
            now = time.monotonic()
            if until.caught_up and self._caught_up():
                return
            if (self._stop.is_set() or now >= ends) and grace == float("inf"):
                logger.info("capture of %s ends at the next transaction's end", self._source.name)
                self._dumps.stop()
                grace = now + _GRACE_SECONDS
            if grace < float("inf"):
                if now >= grace or (not inside and not self._dumps.busy):
                    return
            elif self._pulse.due:
                self._pulse.beat()
                self._look_at_tables()

    def _patience(self, until: Until) -> float:
        """How long the log may be read before this loop has something else to do."""
        if until.caught_up or not self._dumps.idle:
            return _BRIEF_SECONDS
        if self._commits.busy:
            return _CHECK_SECONDS
        if self._batches.rows:
            return self._commits.due_in
        return max(self._commits.due_in, _CHECK_SECONDS)

    def _read(self, seconds: float) -> LogPiece | None:
        try:
            piece = self._stream.read(
                max_bytes=self._settings.max_bytes, max_rows=self._settings.max_rows, seconds=seconds
            )
            self._failures = 0
            return piece
        except SourceError as error:
            if error.retryable:
                self._reconnect(error)
                return None
            if self._begin.accept_gap and isinstance(error, (PositionLost, PrerequisitesNotMet, Unsupported)):
                raise UncapturableEvent(error.what, next_step=error.next_step) from error
            raise

    def _reconnect(self, error: SourceError) -> None:
        logger.warning("%s; connecting again", error.what)
        self._stream.close()
        # What opens and then fails each time would be tried without end, many times a second.
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            raise error
        if self._failures > 1:
            self._stop.wait(min(0.05 * 2**self._failures, 10.0))
        again = self._retrying(self._settings.reconnect_seconds)
        self._stream = again(self._open_log, self._batches.resume)

    def _open_log(self, resume: ResumePoint | None) -> LogStream:
        """Opens the log, from whoever else still reads it: a frozen leader's connection outlives its lease."""
        while not self._lease.held():
            self._require_lease()
            time.sleep(_CHECK_SECONDS)
        if self._lease.coordinated:
            self._source.terminate_stale_reader()
        stream = self._source.open_log(resume, self._begin.incarnation)
        # Asked after it was opened: who answered then answers still, or this is not the one.
        if not self._source.identity().same_as(self._begin.server):
            stream.close()
            raise ServerChanged
        return stream

    def _require_lease(self) -> None:
        if why := self._lease.lost():
            raise Fenced(
                f"capture of {self._source.name} leads no more: {why}",
                next_step="another capture takes over; this one may be started again",
            )

    def _take_in(self, piece: LogPiece) -> None:
        rows, closes, heartbeats = [], [], set()
        if piece.rows.num_rows:
            rows.append(piece.rows)
            # Before it lands: afterwards the log would not say it again.
            if self._retrying(self._settings.reconnect_seconds)(self._redumps.log_says, piece.rows):
                self._dumps.asked()
        said = deque(_schemas_said(piece) if rows else ())
        for mark in piece.watermarks:
            # In the log's order: what is said of a table before a window opens or after it closes is not in it.
            while said and said[0][0] < mark.position:
                self._log_says(*said.popleft()[1:])
            row, closed = self._windows.saw(mark, self._batches.number)
            if row is not None:
                rows.append(row)
            if closed:
                closes.append(closed)
                rows += self._told_by(closed, mark.position)
            if mark.reader == HEARTBEAT_ROW:
                heartbeats.add(mark.value)
        for _, table, schema_id in said:
            self._log_says(table, schema_id)
        self._batches.add_log(rows, piece.bytes, piece.reached, closes, heartbeats)

    def _log_says(self, table: str, schema_id: str) -> None:
        self._said[table] = schema_id
        self._windows.log_says(table, schema_id)

    def _told_by(self, chunk: OpenChunk, high: Position) -> list[pa.Table]:
        """The schema that a chunk tells of before the log does, which may not say another word of its table."""
        if chunk.discarded or chunk.read is None or self._said.get(chunk.table) == chunk.read.schema.schema_id:
            return []
        self._said[chunk.table] = chunk.read.schema.schema_id
        return [schema_row(chunk.read.schema, high)]

    def _start_commit(self, *, at_once: bool) -> None:
        """Commits what waits, if the last commit is done and the commit rate allows; waits if the batch is full.

        With ``at_once`` nothing more is to be had that could share the commit, so it does not wait for its turn.
        """
        while self._commits.busy and self._batches.full:
            # A connection that is lost is made again where the log is read.
            with suppress(SourceError):
                self._stream.keep_alive()
            self._after_commit(wait_seconds=1.0)
        if not self._batches.rows or self._commits.busy:
            return
        if at_once or self._batches.full or self._commits.due_in == 0.0:
            self._submit()

    def _submit(self) -> None:
        """Starts a commit as soon as the lease is surely held; not at all if asked to end before it is."""
        while not self._lease.held():
            self._require_lease()
            if self._stop.wait(_CHECK_SECONDS):
                return
            # An unsure lease may have gone to a capture that has ended this one's connection.
            with suppress(SourceError):
                self._stream.keep_alive()
        self._commits.submit(self._batches.take())

    def _after_commit(self, *, wait_seconds: float) -> None:
        batch = self._commits.landed(wait_seconds=wait_seconds)
        if batch is None:
            return
        self.landed.batches += 1
        self.landed.rows += batch.rows.num_rows
        self.landed.bytes += batch.rows.nbytes
        self.landed.seconds = time.monotonic() - self._began
        logger.debug("batch %d landed: %d rows", batch.number, batch.rows.num_rows)
        for chunk in batch.closes:
            self._dumps.landed(chunk)
        if self._fence in batch.heartbeats:
            self._fence_landed = True
        failpoint("capture.before_acknowledge")
        self._acknowledge(batch)
        failpoint("capture.acknowledged")

    def _acknowledge(self, batch: Filled) -> None:
        try:
            self._stream.acknowledge(batch.resume)
        except SourceError as error:
            if not error.retryable:
                raise
            self._reconnect(error)

    def _look_at_tables(self) -> None:
        """Looks for changes of which the log says nothing, or nothing until the next row."""
        try:
            if not self._source.schema_changes_in_log and self._redumps.look():
                self._dumps.asked()
        except SourceError as error:
            if not error.retryable:
                raise
            logger.warning("tables not looked at: %s", error.what)

    def _caught_up(self) -> bool:
        """True once no dump is queued and a heartbeat written after that has landed."""
        if not self._dumps.idle:
            self._fence = None
        elif self._fence is None and not self._pulse.rests:
            self._fence, self._fence_landed = self._pulse.beat(), False
        return self._fence is not None and self._fence_landed

    def _finish(self) -> None:
        """Lands what has been read. Nothing is lost without this: the database still has it."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._commits.busy and time.monotonic() < deadline:
            self._after_commit(wait_seconds=1.0)
        if self._batches.rows and not self._commits.busy:
            self._submit()
            while self._commits.busy:
                self._after_commit(wait_seconds=1.0)
        logger.info(
            "capture of %s ends: %d batches, %d rows landed",
            self._source.name, self.landed.batches, self.landed.rows,
        )

    def _retrying(self, seconds: float) -> Retrying:
        return retrying(seconds, self._stop, told)


def _schemas_said(piece: LogPiece) -> list[tuple[Position, str, str]]:
    """Where the log told of which table that it has which schema, in order."""
    said = piece.rows.filter(pc.equal(piece.rows["kind"], SCHEMA)).to_pylist()
    return [(Position(r["incarnation"], r["lsn"], r["seq"]), r["table"], r["schema_id"]) for r in said]
