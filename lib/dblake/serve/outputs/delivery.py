"""Deliver a subscription to one output: batches, retries, dead letters, checkpoints.

Place: between ``consume`` and an output. Guarantee: a checkpoint is saved after ``write`` has returned for everything
before it, and never passes an event that was neither written nor recorded as a dead letter. After a failure the output
is opened again and delivery continues from the last checkpoint. As a member of a group, an output is written only while
this process holds its lease. Holding the checkpoint is left to ``run``, reporting to ``reporter``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dblake.base.core.errors import DblakeError, EventRejected, Fenced, OutputUnavailable
from dblake.base.core.failpoints import failpoint
from dblake.base.core.position import Position
from dblake.base.core.steps import step
from dblake.base.core.transient import transient_reason
from dblake.base.lake.layout import Paths
from dblake.serve.consume.dead_letters import DeadLetter, append_dead_letters
from dblake.serve.consume.model import Control, ControlKind, Transaction
from dblake.serve.consume.transactions import WithoutEvents
from dblake.serve.outputs.feed import Feed, require_lease
from dblake.serve.outputs.metrics import DeliveryCounts
from dblake.serve.outputs.protocol import Output
from dblake.serve.outputs.reporter import OutputReporter

_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 30.0
_REPORT_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How to deliver: events per write, seconds of retries, and dead letters per run."""

    name: str
    max_events: int = 5000
    retry_seconds: float = 300.0
    max_dead_letters: int = 100
    marks_checkpoints: bool = False
    """Write a control entry ``checkpoint`` after each saved checkpoint; for a stream that holds none itself."""
    marks_errors: bool = False
    """Write a control entry ``error`` where the run ends with one; for a stream whose reader sees no exit code."""
    prepare: Callable[[Sequence[Transaction]], Sequence[Transaction]] | None = None
    """Returns a batch as it is written; None: as the feed has it."""


class Delivery:
    """One run. ``open_feed`` opens at the checkpoint that the output holds; None: at the stored one."""

    def __init__(
        self, output: Output, open_feed: Callable[[str | None], Feed], paths: Paths, settings: DeliverySettings,
        stop: threading.Event, reporter: OutputReporter | None = None,
    ) -> None:
        """Prepare a run. The caller holds the feed's checkpoint store, and is inside the block of ``reporter``."""
        self._output, self._open, self._paths, self._settings, self._stop = output, open_feed, paths, settings, stop
        self._reporter = reporter or OutputReporter(settings.name)
        self._rejected: set[tuple[str, Position]] = set()
        self._has_written = self._is_open = False
        self._failing_since: float | None = None
        self._attempts = 0
        self._next_report = 0.0
        self.counts = DeliveryCounts()
        self._reporter.note_counts(self.counts)

    def run(self) -> DeliveryCounts:
        """Deliver until the feed ends; return the counts. Raises what the output raises at last."""
        try:
            held = self._open_output()
            with self._open(held) as feed:
                batches = feed.batches(self._settings.max_events)
                while self._advance(feed, batches):
                    pass
        except DblakeError as error:
            # A stop ends retries.
            if not self._stop.is_set():
                self._mark_error(error)
                raise
        finally:
            self._close_output()
            self._report(is_last=True)
        return self.counts

    def _advance(self, feed: Feed, batches: Iterator[Sequence[Transaction]]) -> bool:
        """Read one batch and deliver it; return False at the feed's end."""
        with step("output", output=self._settings.name) as cycle:
            with step("output.read") as reading:
                batch = next(batches, None)
                if not batch:
                    reading.drop()
            if not batch:
                cycle.drop()
                if batch is not None:
                    self._deliver(feed, batch)
                return batch is not None
            events = sum(len(one.events) for one in batch)
            with step("output.deliver", transactions=len(batch), events=events, position=str(batch[-1].position)):
                self._deliver(feed, batch)
            return True

    def _close_output(self) -> None:
        if self._is_open:
            self._is_open = False
            self._output.close()

    def _mark_error(self, error: DblakeError) -> None:
        at = self.counts.position
        if self._settings.marks_errors and at is not None:
            control = Control(ControlKind.ERROR, self._paths.source, at, None, {"message": error.what})
            with suppress(OSError, DblakeError):
                self._output.write([Transaction(self._paths.source, at, None, (), control)], "")

    def _open_output(self) -> str | None:
        """Open the output, with retries."""
        while True:
            self._is_open = True
            try:
                with self._reporter.calling():
                    return self._output.open()
            except DblakeError as error:
                self._wait_after(error)

    def _deliver(self, feed: Feed, batch: Sequence[Transaction]) -> None:
        """Write one batch and save its checkpoint; after a failure, go back to the last one."""
        if not batch:
            feed.save_idle()
            self._expire(feed)
            self._reporter.note_success()
            self._report()
            return
        try:
            self._write(feed, self._settings.prepare(batch) if self._settings.prepare else batch)
            failpoint("delivery.written")
            checkpoint = feed.checkpoint(batch[-1])
            failpoint("delivery.saved")
            if self._settings.marks_checkpoints:
                self._output.write([_checkpoint_mark(batch[-1])], checkpoint)
        except Exception as error:  # noqa: BLE001 - any client's error; those that are not transient are raised again
            self._recover(feed, error)
            return
        self._has_written = True
        self._failing_since, self._attempts = None, 0
        self._reporter.note_success()
        self.counts.add(batch)
        self._report()

    def _recover(self, feed: Feed, error: Exception) -> None:
        """Open the output again after a failure, and go back to the last checkpoint."""
        failure = as_retryable(error)
        # First: what the output has queued would still be sent during the pause.
        self._close_output()
        self._wait_after(failure)
        held = self._open_output()
        # Before the first write, the target may hold the checkpoint of a run that --from has replaced.
        feed.rollback(held if self._has_written else None)

    def _expire(self, feed: Feed) -> None:
        """Let the output forget what it keeps to recognize events that can no longer be delivered."""
        expire = getattr(self._output, "expire", None)
        if expire is None:
            return
        try:
            for source, upto in feed.expired().items():
                expire(source, upto)
        except Exception as error:  # noqa: BLE001 - as for a write
            self._recover(feed, error)

    def _write(self, feed: Feed, batch: Sequence[Transaction]) -> None:
        """Write a batch without the events that the output has rejected."""
        while True:
            require_lease(feed.is_held)
            try:
                with self._reporter.calling():
                    self._output.write(self._without_rejected(batch), batch[-1].checkpoint)
                return
            except EventRejected as error:
                self._reject(error)

    def _reject(self, error: EventRejected) -> None:
        if len(self._rejected) >= self._settings.max_dead_letters or (error.table, error.position) in self._rejected:
            raise error
        append_dead_letters(
            self._paths, self._settings.name, [DeadLetter(error.table, error.position, error.what)]
        )
        logger.error("dead letter: table %s, position %s: %s", error.table, error.position, error.what)
        self._rejected.add((error.table, error.position))
        self.counts.dead_letters += 1

    def _without_rejected(self, batch: Sequence[Transaction]) -> Sequence[Transaction]:
        if not self._rejected:
            return batch
        return [
            replace(one, events=WithoutEvents(one.events, self._rejected))
            if any((e.table, e.position) in self._rejected for e in one.events) else one
            for one in batch
        ]

    def _wait_after(self, error: DblakeError) -> None:
        """Wait before the next attempt. Raises the error if it is final, retries have lasted too long, or on a stop."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        # Another process delivers now: what this one wrote would be older than what that one has written.
        is_final = not error.retryable or isinstance(error, Fenced)
        if is_final or now - self._failing_since >= self._settings.retry_seconds or self._stop.is_set():
            raise error
        self._reporter.note_failure(error)
        self.counts.retries += 1
        pause = min(_MIN_PAUSE_SECONDS * 2**self._attempts, _MAX_PAUSE_SECONDS)
        self._attempts += 1
        where = f"output {self._settings.name}"
        what = error.what if error.what.startswith(where) else f"{where}: {error.what}"
        logger.warning("%s; next attempt in %.1f s", what, pause)
        self._report()
        if self._stop.wait(pause):
            raise error

    def _report(self, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if now < self._next_report and not is_last:
            return
        self._next_report = now + _REPORT_SECONDS
        counts = self.counts
        logger.info("output %s: %d events in %d transactions%s, %d dead letters", self._settings.name,
                    counts.events, counts.transactions, f", at {counts.position}" if counts.position else "",
                    counts.dead_letters)


def as_retryable(error: Exception) -> DblakeError:
    """Return an error as ours: a transient one of storage or the network as retryable. Raises any other unchanged."""
    if isinstance(error, DblakeError):
        return error
    reason = transient_reason(error)
    if reason is None:
        raise error
    return OutputUnavailable(reason, next_step="remove the cause; then run this again")


def _checkpoint_mark(last: Transaction) -> Transaction:
    control = Control(ControlKind.CHECKPOINT, last.source, last.position)
    return Transaction(last.source, last.position, None, (), control)
