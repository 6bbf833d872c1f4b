"""Landing commits beside the log loop: one at a time, in order, on their own thread.

The loop keeps reading the log while a batch is written. Guarantee: no progress is saved and no log acknowledged before
``take_landed`` returns the batch. The first commit that fails ends the process; the next one reads from the table what
has landed.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dblake.base.core.errors import DblakeError
from dblake.base.core.failpoints import failpoint
from dblake.base.core.source import ServerIdentity
from dblake.base.core.steps import step
from dblake.base.core.transient import transient_reason
from dblake.ingest.capture.batch import Batch
from dblake.landing.table import Landing, Reached

logger = logging.getLogger(__name__)


class Committer:
    """Commits batches to landing, at most ``per_second`` per second."""

    def __init__(self, landing: Landing, *, lease_epoch: int, server: ServerIdentity, per_second: float) -> None:
        self._landing = landing
        self._lease_epoch = lease_epoch
        self._server = server
        self._interval = 1.0 / per_second
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="landing")
        self._running: tuple[Batch, Future[None]] | None = None
        self._started = float("-inf")

    @property
    def is_busy(self) -> bool:
        """True from ``submit`` until ``take_landed`` has returned the batch."""
        return self._running is not None

    @property
    def due_in(self) -> float:
        """Seconds until the commit rate allows the next commit."""
        return max(0.0, self._started + self._interval - time.monotonic())

    def submit(self, batch: Batch) -> None:
        """Start to commit a batch; ``is_busy`` must be False."""
        assert self._running is None, "one commit at a time"
        self._started = time.monotonic()
        self._running = (batch, self._thread.submit(self._commit, batch))

    def _commit(self, batch: Batch) -> None:
        failpoint("landing.before_commit")
        reached = Reached(batch.number, self._lease_epoch, self._server, batch.resume, batch.heartbeat)
        with step("capture.commit", batch=batch.number, rows=batch.rows.num_rows, bytes=batch.rows.nbytes,
                  position=str(batch.resume.token)):
            self._landing.commit(batch.rows, reached)
        failpoint("landing.committed")

    def take_landed(self, *, wait_seconds: float = 0.0) -> Batch | None:
        """Return the batch whose commit has finished within ``wait_seconds``, or None; raise what the commit raised."""
        if self._running is None:
            return None
        batch, future = self._running
        wait([future], wait_seconds)
        if not future.done():
            return None
        self._running = None
        future.result()
        return batch

    def close(self) -> None:
        """Wait for the running commit, and log its error if it fails."""
        self._thread.shutdown()
        if self._running and (error := self._running[1].exception()):
            what = error.what if isinstance(error, DblakeError) else transient_reason(error) or "a bug, see --verbose"
            logger.warning("the last batch may not have landed: %s", what, exc_info=error)
