"""Landing commits beside the log loop: one at a time, in order, on a thread of their own.

Reading the log goes on while a batch is written. Nothing is remembered or acknowledged before ``landed`` hands the
batch back, and the first commit that fails ends the process: what landed is then read from the table.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from dblake.capture.batch import Filled
from dblake.core.errors import DblakeError
from dblake.core.failpoints import failpoint
from dblake.core.source import ServerIdentity
from dblake.landing.table import Landing, Reached

logger = logging.getLogger(__name__)


class Committer:
    """Writes batches to landing, one at a time."""

    def __init__(self, landing: Landing, *, lease_epoch: int, server: ServerIdentity, per_second: float) -> None:
        self._landing = landing
        self._lease_epoch = lease_epoch
        self._server = server
        self._interval = 1.0 / per_second
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="landing")
        self._running: tuple[Filled, Future[None]] | None = None
        self._started = float("-inf")

    @property
    def busy(self) -> bool:
        """True while a commit is under way, or has ended and ``landed`` was not asked yet."""
        return self._running is not None

    @property
    def due_in(self) -> float:
        """Seconds until the next commit may start without passing the commit rate."""
        return max(0.0, self._started + self._interval - time.monotonic())

    def submit(self, batch: Filled) -> None:
        """Starts to land a batch; ``busy`` must be false."""
        assert self._running is None, "one commit at a time"
        self._started = time.monotonic()
        self._running = (batch, self._thread.submit(self._commit, batch))

    def _commit(self, batch: Filled) -> None:
        failpoint("landing.before_commit")
        self._landing.commit(batch.rows, Reached(batch.number, self._lease_epoch, self._server, batch.resume))
        failpoint("landing.committed")

    def landed(self, *, wait_seconds: float = 0.0) -> Filled | None:
        """The batch that has landed since the last call, if one has; raises what its commit raised."""
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
        """Waits for the commit under way, and says how it failed if nobody asked any more."""
        self._thread.shutdown()
        if self._running and (error := self._running[1].exception()):
            logger.warning("%s", error.what if isinstance(error, DblakeError) else type(error).__name__)
