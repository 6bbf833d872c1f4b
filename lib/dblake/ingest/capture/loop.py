"""The capture loop: reads the log, fills batches, lands them, and only then saves progress and acknowledges the log.

Guarantees: one pass of the loop never waits for a dump or a commit while the log has rows. What a batch holds is
acknowledged to the database after its commit has returned, and never beyond the last COMMIT that landed. Where the log
starts, and on which server, is left to ``run``.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from dblake.base.core.errors import SourceError, UncapturableEvent
from dblake.base.core.failpoints import failpoint
from dblake.base.core.source import LogPiece
from dblake.base.core.steps import step
from dblake.ingest.capture.activity import ActivityLog
from dblake.ingest.capture.batch import BatchBuilder
from dblake.ingest.capture.catalog_scan import CatalogScan, scan_at_start
from dblake.ingest.capture.catalog_scanner import CatalogScanner
from dblake.ingest.capture.commits import Committer
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.dumps import DumpRunner
from dblake.ingest.capture.heartbeat import Heartbeat
from dblake.ingest.capture.landed_chunks import save_landed_chunks
from dblake.ingest.capture.lifecycle import Lifecycle
from dblake.ingest.capture.log_connection import POLL_SECONDS, START_SECONDS, LogConnection, StartPoint
from dblake.ingest.capture.log_ingest import LogIngest
from dblake.ingest.capture.log_limits import LogThrottle
from dblake.ingest.capture.stale_detector import StaleTableDetector
from dblake.ingest.capture.windows import Windows
from dblake.landing.control import MoveMark
from dblake.landing.table import Landing

_SHORT_POLL_SECONDS = 0.01
"""While dumps fill batches and the log is idle, or while capture waits until it has caught up."""
_STRETCH_ON_OBJECT_STORAGE = 4
"""A commit there takes some ten round trips, whatever its size: batches grow while it lasts."""
_GRACE_SECONDS = 30.0
"""How long an ending capture waits for the open transaction, the pending chunks and the running commit."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Until:
    """When capture ends; without either condition it runs until it is stopped."""

    caught_up: bool = False
    seconds: float | None = None


@dataclass(slots=True)
class Landed:
    """What this run has landed: batches, rows, bytes in memory, and the seconds from its start to its last commit."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Loop:
    """A log that is followed into landing from a start point.

    Continues the counts of ``landed``. Raises ServerChanged if another server answers, without landing anything of it,
    and Fenced once the lease is lost.
    """

    def __init__(self, capture: CaptureContext, landing: Landing, start: StartPoint, landed: Landed) -> None:
        self._capture, self.landed = capture, landed
        settings, source = capture.settings, capture.source
        reached = landing.reached
        epoch = reached.lease_epoch + 1 if reached else 1
        self._detector = StaleTableDetector(
            source, capture.store, auto=settings.redump, max_removed=capture.dump_settings.max_removed
        )
        with step("capture.open", source=source.name, incarnation=start.incarnation):
            scan = capture.retrying(START_SECONDS)(scan_at_start, source)
            self._log = LogConnection(capture, start)
        windows = Windows()
        self._batches = BatchBuilder(
            first=reached.batch + 1 if reached else 1, lease_epoch=epoch, resume=self._log.resume,
            max_bytes=settings.max_bytes, max_rows=settings.max_rows,
            stretch=_STRETCH_ON_OBJECT_STORAGE if landing.is_remote else 1, heartbeat=start.heartbeat,
        )
        if start.continues is not None:
            self._batches.add_move(MoveMark(start.server.server, start.continues))
        self._commits = Committer(
            landing, lease_epoch=epoch, server=start.server, per_second=settings.commits_per_second
        )
        self._lifecycle = Lifecycle(
            capture.store, self._detector, settings.new_tables, lambda: str(self._batches.log_position)
        )
        self._dumps = DumpRunner(capture, self._batches, windows, lambda: self._lifecycle.suspended)
        self._ingest = LogIngest(capture, self._detector, self._lifecycle, self._dumps, windows, self._batches)
        self._apply_scan(scan)
        self._scanner = CatalogScanner(source)
        self._heartbeat = Heartbeat(source, settings.heartbeat_seconds)
        self._throttle = LogThrottle(capture.store)
        place = f"{start.incarnation}/{start.resume.token}" if start.resume else "where it begins"
        self._tables = len(scan.tables)
        self._activity = ActivityLog(capture.store, source.name, self._tables, place, epoch)
        self._beat: tuple[str, float] | None = None
        self._lag: float | None = None
        self._began = time.monotonic()
        self._fence: str | None = None
        self._fence_landed = False

    def run(self, until: Until) -> None:
        """Follow the log until ``until`` holds or capture is stopped; call once."""
        try:
            self._apply_limits()
            self._dumps.start()
            self._follow(until)
            self._finish()
        except UncapturableEvent:
            # Whole transactions before the event are valid, and land.
            self._finish()
            raise
        finally:
            self._dumps.close()
            self._commits.close()
            self._log.close()
            self._heartbeat.close()
            self._scanner.close()
            self._activity.end(str(self._batches.log_position))

    def _follow(self, until: Until) -> None:
        end = time.monotonic() + until.seconds if until.seconds is not None else float("inf")
        grace_end = float("inf")
        in_transaction = False
        while True:
            self._capture.require_lease()
            piece = self._read(self._poll_seconds(until), is_ending=grace_end < float("inf"))
            if until.caught_up and self._throttle.paused_until:
                raise SourceError(
                    f"source {self._capture.source.name}: capture is paused until {self._throttle.paused_until}",
                    next_step="run capture resume, or wait",
                )
            if piece:
                in_transaction = piece.reached.landed is not None
                self._ingest.add(piece, self._log.heartbeat)
            self._after_commit(wait_seconds=0.0)
            self._start_commit(at_once=until.caught_up and piece is None and not self._dumps.is_reading)
            if self._dumps.error:
                raise self._dumps.error
            now = time.monotonic()
            self._activity.report(self.landed.rows, str(self._batches.log_position), self._tables, self._lag)
            if until.caught_up and self._has_caught_up():
                self._activity.on_caught_up(self.landed.rows)
                return
            if (self._capture.stop.is_set() or now >= end) and grace_end == float("inf"):
                logger.info("capture of %s ends at the end of the current transaction", self._capture.source.name)
                self._dumps.stop()
                grace_end = now + _GRACE_SECONDS
            if grace_end < float("inf"):
                if now >= grace_end or (not in_transaction and not self._dumps.is_busy):
                    return
            elif self._heartbeat.is_due:
                self._beat = self._heartbeat.write(), now
                self._scanner.request()
            if scan := self._scanner.take():
                self._apply_scan(scan)

    def _read(self, seconds: float, *, is_ending: bool) -> LogPiece | None:
        """Return the next piece of log, or None if there is none within ``seconds`` or it must not be read now.

        An ending capture reads the rest of its transaction whatever the limits.
        """
        wait = self._apply_limits()
        if wait and not is_ending:
            self._log.keep_alive()
            time.sleep(min(wait, seconds))
            return None
        piece = self._log.read(seconds, max_bytes=self._throttle.max_bytes(self._capture.settings.max_bytes))
        if piece:
            self._throttle.count(piece.bytes)
        return piece

    def _apply_limits(self) -> float:
        """Hold dumps while capture is paused; return for how many seconds the log must not be read."""
        wait = self._throttle.seconds_to_wait()
        self._dumps.is_paused = self._throttle.paused_until is not None
        return wait

    def _poll_seconds(self, until: Until) -> float:
        """Return how long the log may be read before the loop has other work."""
        if until.caught_up or not self._dumps.is_idle:
            return _SHORT_POLL_SECONDS
        if self._commits.is_busy:
            return POLL_SECONDS
        if self._batches.rows:
            return self._commits.due_in
        return max(self._commits.due_in, POLL_SECONDS)

    def _start_commit(self, *, at_once: bool) -> None:
        """Commit the batch if no commit is running and the commit rate allows it; block while it has no room.

        With ``at_once`` the commit rate does not apply: no more rows are expected that could share the commit.
        """
        while self._commits.is_busy and not self._batches.has_room:
            self._log.keep_alive()
            self._after_commit(wait_seconds=1.0)
        if not self._batches.rows or self._commits.is_busy:
            return
        if at_once or self._batches.is_full or self._commits.due_in == 0.0:
            self._submit()

    def _submit(self) -> None:
        """Start a commit as soon as the lease is certain; not at all if capture is stopped before that."""
        while not self._capture.lease.held():
            self._capture.require_lease()
            if self._capture.stop.wait(POLL_SECONDS):
                return
            # The connection may be closed: a new leader ends the one of its predecessor.
            self._log.keep_alive()
        self._commits.submit(self._batches.take())

    def _after_commit(self, *, wait_seconds: float) -> None:
        """Count, save and acknowledge the batch that has landed, if there is one."""
        batch = self._commits.take_landed(wait_seconds=wait_seconds)
        if batch is None:
            return
        self.landed.batches += 1
        self.landed.rows += batch.rows.num_rows
        self.landed.bytes += batch.rows.nbytes
        self.landed.seconds = time.monotonic() - self._began
        logger.debug("batch %d landed: %d rows", batch.number, batch.rows.num_rows)
        if batch.closes:
            save_landed_chunks(self._capture.store, batch.number)
        for chunk in batch.closes:
            self._dumps.on_landed(chunk)
        if self._fence in batch.heartbeats:
            self._fence_landed = True
        if self._beat and self._beat[0] in batch.heartbeats:
            self._lag = time.monotonic() - self._beat[1]
            self._activity.on_caught_up(self.landed.rows)
        failpoint("capture.before_acknowledge")
        self._log.acknowledge(batch.resume)
        failpoint("capture.acknowledged")

    def _apply_scan(self, scan: CatalogScan) -> None:
        """Follow, suspend or remove tables as the catalog shows, and queue dumps of those that require one."""
        is_queued, self._tables = self._lifecycle.apply(scan), len(scan.tables)
        if self._detector.apply(scan.fingerprints, read_at=scan.read_at) or is_queued:
            self._dumps.on_dump_queued()

    def _has_caught_up(self) -> bool:
        """Return True once no dump is queued and a heartbeat that was written after that has landed."""
        if not self._dumps.is_idle or (self._fence is not None and self._heartbeat.has_failed(self._fence)):
            self._fence = None
        elif self._fence is None and not self._heartbeat.backing_off:
            self._fence, self._fence_landed = self._heartbeat.write(), False
        return self._fence is not None and self._fence_landed

    def _finish(self) -> None:
        """Land what has been read. An unfinished batch is not lost: the database still has its log."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._commits.is_busy and time.monotonic() < deadline:
            self._after_commit(wait_seconds=1.0)
        if self._batches.rows and not self._commits.is_busy:
            self._submit()
            while self._commits.is_busy:
                self._after_commit(wait_seconds=1.0)
        logger.info(
            "capture of %s ends: %d batches, %d rows landed",
            self._capture.source.name, self.landed.batches, self.landed.rows,
        )
