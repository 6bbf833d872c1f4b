"""Landing → events: which batches make a micro-batch, and when it runs.

Both triggers, ``reconcile_once`` for schedulers and ``reconcile_until``, go by landing batch numbers in the newest
version of landing's Delta log, and by the batch that the events table records; nothing else counts.
So no file of an old version is ever needed, and nothing but the tables can be lost (decision 9).

Promises that after ``reconcile_once`` all that had landed when it began is in events, or an error names what is not.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dblake.base.core.errors import DblakeError, LandingError, LandingGap, ReconcileError
from dblake.base.core.progress import stage
from dblake.base.lake.layout import Paths
from dblake.base.lake.storage import is_local
from dblake.base.lake.tables import has_table
from dblake.transform.reconcile.reconciler import Reconciler
from dblake.transform.spark.session import Session, as_session, cancel_jobs, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS, _POLL_SECONDS_REMOTE = 0.1, 1.0
"""How often landing's log is read for new batches: on object storage each time costs two requests."""
_FINISH_SECONDS = 30.0
"""How long a micro-batch may take to end once the job is asked to stop."""
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# An error of the decoder in a worker of Spark's, as its text appears in the message of Spark's own error.
_DECODER_ERROR = re.compile(
    rf"^{re.escape(ReconcileError.__module__)}\.ReconcileError: (.*?)(?:\. Next: (.*))?$", re.MULTILINE
)


def reconcile_once(spark: SparkSession | Session, paths: Paths, *, max_bytes_per_trigger: str = "256m") -> int:
    """Reconcile all that has landed by now; return the newest batch in events.

    ``spark`` may be a function that returns the session: it is called only if there is work for Spark.
    """
    run = ReconcileRun(spark, paths, max_bytes_per_trigger)
    run.advance()
    return run.reconciler.done()


def reconcile_until(
    stop: threading.Event, spark: SparkSession | Session, paths: Paths, *, every: float,
    max_bytes_per_trigger: str = "256m",
) -> int:
    """Reconcile what lands until ``stop`` is set; return the newest batch in events.

    A micro-batch begins as soon as something has landed, but not before ``every`` seconds after the last one began.
    One that runs when ``stop`` is set has ``_FINISH_SECONDS`` to end, then its Spark jobs are cancelled.
    """
    run, pause = ReconcileRun(spark, paths, max_bytes_per_trigger), poll_pause(paths)
    with cancel_late_jobs(stop, _FINISH_SECONDS):
        while not stop.is_set():
            began = time.monotonic()
            run.advance(stop)
            while not stop.wait(pause) and (time.monotonic() < began + every or not run.has_new_batches()):
                pass
    return run.reconciler.done()


def poll_pause(paths: Paths) -> float:
    """Return the seconds between two reads of landing's log."""
    return _POLL_SECONDS if is_local(paths.landing) else _POLL_SECONDS_REMOTE


@contextmanager
def cancel_late_jobs(stop: threading.Event, seconds: float) -> Iterator[None]:
    """Cancel the Spark jobs of the block if it does not end within some seconds once ``stop`` is set.

    What was cancelled has changed nothing, and is done by the next run: no error leaves the block then.
    """
    ended = threading.Event()

    def cancel() -> None:
        while not ended.is_set() and not stop.wait(1):
            pass
        if not ended.wait(seconds):
            cancel_jobs()

    threading.Thread(target=cancel, name="cancel", daemon=True).start()
    try:
        yield
    except spark_errors():
        if not stop.is_set():
            raise
    finally:
        ended.set()


class ReconcileRun:
    """One run of any trigger. Raises LandingError without a landing table, LandingGap if landing ends before events."""

    def __init__(self, spark: SparkSession | Session, paths: Paths, max_bytes_per_trigger: str) -> None:
        if not has_table(paths.landing):
            raise LandingError(
                f"source {paths.source} has no landing table yet", next_step="run capture, then this again"
            )
        self._bytes = size_in_bytes(max_bytes_per_trigger)
        self.reconciler = Reconciler(as_session(spark), paths)
        landed, done = self.reconciler.landing.newest_batch, self.reconciler.done()
        if landed < done:
            raise LandingGap(
                f"landing ends at batch {landed}, but events reach batch {done}: landing was replaced, or restored "
                "from a backup",
                next_step="remove this source's tables right of landing, and reconcile again",
            )
        self.reconciler.catch_up()
        self._done = done

    def has_new_batches(self) -> bool:
        """Return True if landing has batches that events lacked when this run last read them."""
        # Not only if refresh finds new entries: a micro-batch refreshes, too, and leaves what has landed during it.
        self.reconciler.landing.refresh()
        return self.reconciler.landing.newest_batch > self._done

    def advance(self, stop: threading.Event | None = None) -> None:
        """Reconcile all that landing's version at hand holds, one micro-batch after the other, or until stopped."""
        landing, done = self.reconciler.landing, self.reconciler.done()
        self._done = done
        if landing.newest_batch <= done:
            return
        portions = landing.portions(done + 1, landing.newest_batch, self._bytes)
        with stage("reconcile", "batch", landing.newest_batch - done) as progress:
            for last in portions:
                if stop is not None and stop.is_set():
                    return
                try:
                    events = self.reconciler.reconcile(last)
                except spark_errors() as error:
                    raise decoder_error(error) or error from None
                progress.advance(last - done, events)
                self._done = done = last


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size like ``256m``."""
    return int(text[:-1]) * _UNITS[text[-1]]


def decoder_error(error: Exception) -> DblakeError | None:
    """Return the decoder's error if it made a Spark job fail: Spark passes it on as text."""
    found = _DECODER_ERROR.search(str(error))
    return ReconcileError(found[1], next_step=found[2] or "") if found else None
