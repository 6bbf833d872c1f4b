"""Report how an output is while it runs: its document for ``status``, and its metrics file.

Place: beside ``delivery``, which notes what it does; a thread of its own writes. Guarantee: reporting never delays or
fails delivery, and does not stop while a write hangs: figures are computed when they are written. Nothing is written
before the process holds the output, nor once another process has taken it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from dblake.base.core.errors import DblakeError, Fenced
from dblake.base.lake.layout import Paths
from dblake.serve.consume.cursor import Cursor, read_cursor
from dblake.serve.consume.documents import CHECKPOINT, STATUS, Documents, partition_document
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.pending import Pending, PendingEvents
from dblake.serve.outputs.activity import (
    WRITE_SECONDS,
    OutputActivity,
    OutputState,
    now_text,
    read_output_activity,
    write_activity,
)
from dblake.serve.outputs.metrics import DeliveryCounts, MetricsFile

_STALL_SECONDS = 10.0
"""A call to the target that takes longer counts as stalled: a healthy one takes a second or two."""
_END_SECONDS = 2.0
"""How long a run waits at its end for its last document."""
_RATE_SECONDS = 60.0
_WHOLE = -1
"""The number of an output without partitions."""

logger = logging.getLogger(__name__)


def is_alone() -> bool:
    """Return True: no other process may write the document."""
    return True


@dataclass
class ReportPlaces:
    """Where to report. ``status`` has the document; ``checkpoint`` the checkpoint, None if they lie together.

    With a group of ``partitions`` hash partitions, ``owned`` returns those that this process owns. ``metrics`` may be
    None. While ``is_held`` returns False, or raises an error, another process may write the document.
    """

    paths: Paths
    selection: Selection
    status: Documents | None = None
    checkpoint: Documents | None = None
    partitions: int = 0
    owned: Callable[[], Sequence[int]] = tuple
    metrics: MetricsFile | None = None
    is_held: Callable[[], bool] = is_alone

    def close(self) -> None:
        """Release the connections of both stores."""
        for documents in (self.status, self.checkpoint):
            if documents is not None:
                documents.close()


@dataclass
class _Facts:
    """What delivery has noted; the lock guards it."""

    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    busy_since: float | None = None
    last_error: str | None = None
    last_error_at: str | None = None
    failing_since: str | None = None
    has_succeeded: bool = False
    end: OutputState | None = None
    is_taken: bool = False
    """Another process has the output, and writes its document."""


class OutputReporter:
    """Reports one run inside its ``with`` block. Without places it only keeps what is noted."""

    def __init__(self, name: str, places: ReportPlaces | None = None) -> None:
        self._name, self._places = name, places
        self._facts, self._lock = _Facts(), threading.Lock()
        self._began, self._process = now_text(), (socket.gethostname(), os.getpid())
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="output-report", daemon=True)

    def __enter__(self) -> Self:
        """Begin to report: the caller holds the output. Raises UsageError if the metrics cannot be written."""
        if self._places is not None:
            if self._places.metrics is not None:
                self._places.metrics.write(self._facts.counts, None, 0.0)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write how the run ended, unless another process has the output now."""
        if self._places is None:
            return
        with self._lock:
            if isinstance(error, Exception):
                self._note_error(error)
            self._facts.end, self._facts.is_taken = _ending(error), isinstance(error, Fenced)
        self._ended.set()
        self._wake.set()
        self._thread.join(_END_SECONDS)

    def note_counts(self, counts: DeliveryCounts) -> None:
        """Let the reporter read a run's counts."""
        self._facts.counts = counts

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Note that the target is being called."""
        self._facts.busy_since = time.monotonic()
        try:
            yield
        finally:
            self._facts.busy_since = None

    def note_success(self) -> None:
        """Note that a batch was delivered, or that there is nothing to deliver."""
        if self._facts.failing_since is not None or not self._facts.has_succeeded:
            with self._lock:
                self._facts.failing_since, self._facts.has_succeeded = None, True
            self._wake.set()

    def note_failure(self, error: Exception) -> None:
        """Note an error after which delivery tries again."""
        with self._lock:
            self._note_error(error)
        self._wake.set()

    def _note_error(self, error: Exception) -> None:
        facts, now = self._facts, now_text()
        # Not the text of a foreign exception: it may have row values.
        what = error.what if isinstance(error, DblakeError) else f"unexpected {type(error).__name__}"
        facts.last_error, facts.last_error_at = what, now
        facts.failing_since = facts.failing_since or now

    def _run(self) -> None:
        assert self._places is not None, "it has started"
        written = _PlaceWriter(self._name, self._places)
        self._attempt(lambda: self._recall(written))
        is_last = False
        while not is_last:
            # In this order: a wake-up that is cleared was before the end is read.
            self._wake.clear()
            is_last = self._ended.is_set()
            if not self._facts.is_taken:
                self._attempt(lambda: self._write(written))
            if not is_last:
                self._wake.wait(WRITE_SECONDS)
        self._places.close()

    def _write(self, written: _PlaceWriter) -> None:
        """Write the documents, unless another process may have the output now."""
        assert self._places is not None, "it has started"
        try:
            is_held = self._places.is_held()
        except Fenced:
            is_held = False
        if is_held:
            written.write(*self._describe())

    def _attempt(self, report: Callable[[], None]) -> None:
        try:
            report()
        except Exception as error:  # noqa: BLE001 - a report that fails must not end the next ones
            what = error.what if isinstance(error, DblakeError) else type(error).__name__
            logger.warning("output %s: its state cannot be reported: %s", self._name, what)

    def _recall(self, written: _PlaceWriter) -> None:
        """Take over what an earlier run has noted and no success has cleared."""
        earlier = written.read()
        if earlier is None:
            return
        with self._lock:
            facts = self._facts
            facts.last_error = facts.last_error or earlier.last_error
            facts.last_error_at = facts.last_error_at or earlier.last_error_at
            if not facts.has_succeeded:
                facts.failing_since = earlier.failing_since or facts.failing_since

    def _describe(self) -> tuple[OutputActivity, DeliveryCounts]:
        with self._lock:
            facts = self._facts
            state = facts.end or self._state(facts)
            activity = OutputActivity(
                *self._process, self._began, now_text(), state, rate=self._rate() if state.is_live else 0.0,
                last_error=facts.last_error, last_error_at=facts.last_error_at, failing_since=facts.failing_since,
                dead_letters=facts.counts.dead_letters,
            )
            return activity, facts.counts

    @staticmethod
    def _state(facts: _Facts) -> OutputState:
        if facts.failing_since is not None:
            return OutputState.RETRYING
        busy = facts.busy_since
        is_stalled = busy is not None and time.monotonic() - busy > _STALL_SECONDS
        return OutputState.STALLED if is_stalled else OutputState.RUNNING

    def _rate(self) -> float:
        """Return the events a second of the last minute."""
        now, events = time.monotonic(), self._facts.counts.events
        self._samples.append((now, events))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_SECONDS:
            self._samples.popleft()
        began, before = self._samples[0]
        return round((events - before) / max(now - began, 0.001), 1)


class _PlaceWriter:
    """Writes documents and metrics, from the checkpoint as it is stored now."""

    def __init__(self, name: str, places: ReportPlaces) -> None:
        self._name, self._places = name, places
        self._pending = PendingEvents(places.paths)
        self._held: Sequence[int] = () if places.partitions else [_WHOLE]
        self._has_member_error = bool(places.partitions)
        """True if the member's own document may have an error, also of an earlier run."""

    def read(self) -> OutputActivity | None:
        """Return the output's own document, as an earlier run wrote it last."""
        return self._read_activity(STATUS)

    def _read_activity(self, name: str) -> OutputActivity | None:
        return read_output_activity(self._places.status, name, self._name) if self._places.status else None

    def write(self, activity: OutputActivity, counts: DeliveryCounts) -> None:
        """Write one document for each place that this process holds, and the metrics."""
        places, is_live = self._places, OutputState(activity.state).is_live
        if places.partitions and is_live:
            before, self._held = self._held, list(places.owned())
            self._release([number for number in before if number not in self._held], activity)
        elif places.partitions:
            # At the end it owns none: another member may have taken them over.
            self._held = [number for number in self._held if self._is_own(number, activity)]
        if not is_live:
            # The process ends in seconds, and figures may take longer.
            for number in self._held:
                self._write_one(number, activity, has_figures=False)
        lacking = [one for number in self._held if (one := self._write_one(number, activity)) is not None]
        # A member without partitions has no other place for an error.
        if not self._held and activity.last_error:
            self._put(STATUS, activity)
            self._has_member_error = True
        elif places.partitions and self._held and self._has_member_error:
            if self._read_activity(STATUS) is not None:
                self._put(STATUS, replace(activity, state=OutputState.STOPPED, failing_since=None))
            self._has_member_error = False
        if places.metrics is not None:
            oldest = min((one.oldest_at for one in lacking if one.oldest_at), default=None)
            lag = Pending(oldest, max(one.bytes for one in lacking)) if lacking else None
            places.metrics.write(counts, lag, activity.rate)

    def _release(self, numbers: Sequence[int], activity: OutputActivity) -> None:
        """Write that this member has stopped in partitions that it has lost, where no other one has written yet."""
        ended = replace(activity, state=OutputState.STOPPED, rate=0.0, failing_since=None)
        for number in numbers:
            if self._is_own(number, activity):
                self._write_one(number, ended, has_figures=False)

    def _is_own(self, number: int, activity: OutputActivity) -> bool:
        written = self._read_activity(partition_document(number, STATUS))
        return written is not None and (written.host, written.process) == (activity.host, activity.process)

    def _write_one(self, number: int, activity: OutputActivity, *, has_figures: bool = True) -> Pending | None:
        selection, status, checkpoint = self._places.selection, STATUS, CHECKPOINT
        if number != _WHOLE:
            selection = selection.of_partition(self._places.partitions, number)
            status, checkpoint = partition_document(number, STATUS), partition_document(number, CHECKPOINT)
        try:
            cursor = self._read_cursor(checkpoint)
            pending = self._pending.find(cursor, selection) if cursor and has_figures else None
        except Exception:
            # Without figures: it still runs.
            self._put(status, self._complete(activity, None, None))
            raise
        self._put(status, self._complete(activity, cursor, pending))
        return pending

    def _complete(self, activity: OutputActivity, cursor: Cursor | None, pending: Pending | None) -> OutputActivity:
        """Return the activity with what the stored checkpoint shows."""
        activity = replace(activity, is_elsewhere=self._places.checkpoint is not None)
        if cursor is None:
            return activity
        is_bootstrap = cursor.bootstrap is not None and activity.state == OutputState.RUNNING
        oldest = pending.oldest_at if pending else None
        return replace(
            activity, position=str(cursor.position), batch=cursor.batch,
            state=OutputState.BOOTSTRAP if is_bootstrap else activity.state,
            oldest_undelivered_at=oldest.isoformat() if oldest else None,
        )

    def _read_cursor(self, name: str) -> Cursor | None:
        documents = self._places.checkpoint or self._places.status
        text = documents.read(name) if documents else None
        return read_cursor(text, self._places.paths.source, "progress") if text else None

    def _put(self, name: str, activity: OutputActivity) -> None:
        if self._places.status is not None:
            self._places.status.write(name, write_activity(activity))


def _ending(error: BaseException | None) -> OutputState:
    """Return how a run has ended: what a restart or an operator's signal ends is no failure for good."""
    is_final = isinstance(error, Exception) and not (isinstance(error, DblakeError) and error.retryable)
    return OutputState.FAILED if is_final else OutputState.STOPPED
