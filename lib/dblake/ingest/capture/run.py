"""One run of capture: takes the lease, verifies the server, and decides where the log starts. ``loop`` follows it.

Guarantees: nothing lands without the lease; a log is resumed only on the server it was captured from, or on another one
that has all that landed and nothing else before it, and not once its history was rejected; a gap is skipped only if
that is accepted, and then all tables are dumped again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from dblake.base.core.errors import DivergedServer, LogWentBack, PositionLost, UncapturableEvent, WrongServer
from dblake.base.core.position import ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.ingest.capture.context import CaptureContext
from dblake.ingest.capture.dump_queue import pending_tasks, queue_dump
from dblake.ingest.capture.dump_task import now_text
from dblake.ingest.capture.history import CaptureStopped
from dblake.ingest.capture.landed_chunks import forget_landed_chunks, require_landed_chunks
from dblake.ingest.capture.log_connection import START_SECONDS, ServerChanged, StartPoint
from dblake.ingest.capture.loop import Landed, Loop, Until
from dblake.ingest.capture.rejection import require_no_rejection, save_rejection
from dblake.ingest.capture.stale_tables import StaleTable, save_stale_table
from dblake.ingest.capture.table_life import LifeState, read_lives, save_life
from dblake.landing.table import Landing, Reached

logger = logging.getLogger(__name__)


class Capture:
    """One run of capture for one source; ``landed`` counts what it has landed."""

    def __init__(
        self, context: CaptureContext, open_landing: Callable[[], Landing], *, accept_gap: bool = False
    ) -> None:
        self._context, self._open_landing, self._accept_gap = context, open_landing, accept_gap
        self.landed = Landed()

    def run(self, until: Until) -> Landed:
        """Capture until ``until`` holds or capture is stopped; return what has landed.

        With ``accept_gap``, a log that cannot be resumed is skipped, once: a new incarnation starts where the log can
        be read now, and all tables are dumped again. Raises Fenced if another capture holds the lease or takes it, and
        without ``accept_gap`` PositionLost or WrongServer if the log cannot be resumed.
        """
        with self._context.lease:
            if self._context.stop.is_set():  # during standby
                return self.landed
            try:
                self._follow(until)
            except (PositionLost, WrongServer, UncapturableEvent) as error:
                if not self._accept_gap:
                    raise
                logger.warning("%s; the gap is accepted", error.what)
                self._skip_gap()
                self._follow(until, new_incarnation=True)
        return self.landed

    def _follow(self, until: Until, *, new_incarnation: bool = False) -> None:
        """Capture from the server that answers, and from its successors as long as each continues the same log."""
        while not self._context.stop.is_set():
            try:
                return self._follow_server(until, new_incarnation=new_incarnation)
            except ServerChanged:
                new_incarnation = False
                logger.warning("source %s: the server's identity changed", self._context.source.name)

    def _follow_server(self, until: Until, *, new_incarnation: bool) -> None:
        landing = self._open_landing()
        server = self._context.retrying(START_SECONDS)(self._context.source.identity)
        reached = landing.reached
        if not new_incarnation:
            require_landed_chunks(self._context.store, self._context.source.name, reached.batch if reached else 0)
        if reached is None or new_incarnation:
            first = reached.resume.incarnation + 1 if reached else 1
            start = StartPoint(server, None, first, self._accept_gap)
        else:
            start = self._resume_on(server, reached)
        try:
            Loop(self._context, landing, start, self.landed).run(until)
        except LogWentBack as error:
            newest = landing.reached.resume.incarnation if landing.reached else start.incarnation
            save_rejection(self._context.store, error, server, newest)
            raise
        except CaptureStopped:
            return

    def _skip_gap(self) -> None:
        """Queue dumps of all tables before anything of the new incarnation lands: only they replace what is missing."""
        source, store = self._context.source, self._context.store
        self._context.retrying(START_SECONDS)(source.recreate_slot)
        tables = source.tables()
        queued = {
            task.table for task in pending_tasks(store)
            if task.reads_whole_table and not task.ranges and task.request.max_removed is None
        }
        missing = [table.table for table in tables if table.primary_key and table.table not in queued]
        if missing:
            queue_dump(store, missing)
        forget_landed_chunks(store)
        unlimited = [task for task in pending_tasks(store) if task.request.max_removed is None]
        self._record_gap({task.table: task.id for task in unlimited if task.reads_whole_table})
        keyless = [table.table for table in tables if not table.primary_key]
        if keyless:
            logger.warning("tables without a primary key cannot be dumped and keep the gap: %s", ", ".join(keyless))

    def _record_gap(self, dumps: Mapping[str, str]) -> None:
        """Mark all tables as incomplete until their dump, by table in ``dumps``, is done."""
        store, why = self._context.store, "the log has a gap"
        for table, life in read_lives(store).items():
            if life.state is LifeState.SUSPENDED:
                save_life(store, replace(life, has_log=False))
            elif table in dumps and life.state is not LifeState.REMOVED:
                save_stale_table(store, StaleTable(table, why, dumps[table]))
                save_life(store, replace(life, state=LifeState.PENDING, reason=why, since=now_text()))
            elif life.state is not LifeState.REMOVED:
                save_life(store, replace(life, state=LifeState.INCOMPLETE, reason=why, since=now_text()))

    def _resume_on(self, server: ServerIdentity, reached: Reached) -> StartPoint:
        """Return where a server's log continues what landed.

        Raises WrongServer if it is not the server that landing was captured from, and does not continue its log.
        """
        landed = reached.resume.incarnation
        require_no_rejection(self._context.store, server, landed)
        resume = reached.resume if server.same_as(reached.server) else self._find_continuation(server, reached)
        continues = None if resume.incarnation == landed else landed
        return StartPoint(server, resume, resume.incarnation, self._accept_gap, reached.heartbeat, continues)

    def _find_continuation(self, server: ServerIdentity, reached: Reached) -> ResumePoint:
        source = self._context.source
        try:
            resume: ResumePoint | None = self._context.retrying(START_SECONDS)(
                source.find_continuation, reached.server, reached.resume
            )
        except DivergedServer as error:
            save_rejection(self._context.store, error, server, reached.resume.incarnation)
            raise
        if resume is None:
            raise WrongServer(
                f"source {source.name}: the server that answers is not the server landing was captured from",
                next_step="correct source.host; or if the server was replaced on purpose, run capture --accept-gap",
            )
        logger.warning("source %s: another server has everything that has landed: no gap", source.name)
        return resume
