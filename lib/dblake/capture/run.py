"""One run of capture: who may, on which server, and where the log is gone on with. Following it is ``loop``'s.

Promises: nothing lands without the lease; a log is only gone on with on the server it was captured from, or on one
that carries it on; a gap is left behind only if that was asked for, and all tables are dumped again for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tenacity import Retrying

from dblake.capture.lease import Lease
from dblake.capture.loop import START_SECONDS, Begin, Landed, Loop, ServerChanged, Until
from dblake.capture.progress import ProgressStore
from dblake.capture.requests import pending, queue_dump
from dblake.capture.retry import retrying, told
from dblake.capture.settings import CaptureSettings, DumpSettings
from dblake.core.errors import PositionLost, UncapturableEvent, WrongServer
from dblake.core.source import ServerIdentity, Source
from dblake.landing.table import Landing

logger = logging.getLogger(__name__)


class Capture:
    """One run of capture for one source. Ends at a transaction's end once ``stop`` is set."""

    def __init__(
        self,
        source: Source,
        open_landing: Callable[[], Landing],
        store: ProgressStore,
        lease: Lease,
        settings: CaptureSettings,
        dumps: DumpSettings,
        stop: threading.Event,
        *,
        accept_gap: bool = False,
    ) -> None:
        self._source, self._open_landing, self._store, self._lease = source, open_landing, store, lease
        self._settings, self._dump_settings = settings, dumps
        self._stop = stop
        self._accept_gap = accept_gap
        self.landed = Landed()

    def run(self, until: Until) -> Landed:
        """Captures until told to stop; returns what has landed. Raises Fenced if it is no longer the one capture.

        With ``accept_gap``, a log that cannot be gone on with is left behind where it ends, once: a new incarnation
        begins where the log can be read now, and all tables are dumped again.
        """
        with self._lease:
            if self._stop.is_set():  # while it stood by
                return self.landed
            try:
                self._follow(until)
            except (PositionLost, WrongServer, UncapturableEvent) as error:
                if not self._accept_gap:
                    raise
                logger.warning("%s; the gap is accepted", error.what)
                self._leave_behind()
                self._follow(until, anew=True)
        return self.landed

    def _follow(self, until: Until, *, anew: bool = False) -> None:
        """Captures from whichever server answers, for as long as each carries on the log of the one before."""
        while not self._stop.is_set():
            try:
                return self._capture(until, anew=anew)
            except ServerChanged:
                anew = False
                logger.warning("source %s: another server answers, or another life of it", self._source.name)

    def _capture(self, until: Until, *, anew: bool) -> None:
        landing = self._open_landing()
        server = self._identify(landing, anew=anew)
        resume = landing.reached.resume if landing.reached else None
        begin = Begin(
            server, None if anew else resume, resume.incarnation + int(anew) if resume else 1, self._accept_gap
        )
        Loop(
            self._source, landing, self._store, self._lease, self._settings, self._dump_settings, self._stop, begin,
            self.landed,
        ).run(until)

    def _leave_behind(self) -> None:
        """Queues dumps of all tables before anything of a new incarnation lands: only they make up for the gap."""
        self._retrying(START_SECONDS)(self._source.recreate_slot)
        tables = self._source.tables()
        waiting = {task.table for task in pending(self._store) if task.keys is None and not task.stretches}
        again = [table.table for table in tables if table.primary_key and table.table not in waiting]
        if again:
            queue_dump(self._store, again)
        keyless = [table.table for table in tables if not table.primary_key]
        if keyless:
            logger.warning("tables without a primary key cannot be dumped and keep the gap: %s", ", ".join(keyless))

    def _identify(self, landing: Landing, *, anew: bool) -> ServerIdentity:
        server = self._retrying(START_SECONDS)(self._source.identity)
        self._source.require()
        reached = landing.reached
        if reached is None or anew or server.same_as(reached.server):
            return server
        if not self._source.is_promoted_replica(reached.server, reached.resume):
            raise WrongServer(
                f"source {self._source.name}: the server that answers is not the server landing was captured from",
                next_step="correct source.host; or if it was replaced on purpose, capture --accept-gap",
            )
        logger.warning("source %s: a replica was promoted, and has all that has landed: no gap", self._source.name)
        return server

    def _retrying(self, seconds: float) -> Retrying:
        return retrying(seconds, self._stop, told)
