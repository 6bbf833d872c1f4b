"""Landing → events → state, then check and maintain when due: in one process, with one Spark session at most.

Place: ``jobs.run`` calls it; each step is its package's own runner, and equals the job of that name. Guarantee: a step
starts only if the Delta logs show work for it, so a run with nothing to do starts no JVM. If a run is killed, the next
one completes each of its steps.

``run_once`` is bounded by what had landed when it began, and ends with the first step's error. ``run_until`` reconciles
in one thread, folds in a second one, and checks and maintains in a third one: events wait for none of them. There a
table that stays behind, or a check that fails, is logged and tried again. No step begins without the lease; a step that
another process has overtaken is rejected by Delta's transaction identifiers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dblake.base.core.errors import DblakeError
from dblake.base.core.extras import named_extras
from dblake.base.lake.layout import Paths
from dblake.base.lake.tables import has_table
from dblake.config import Config
from dblake.ingest.capture.lease import Lease, require_lease
from dblake.operate.cycle.due import is_check_due, is_maintenance_due
from dblake.operate.maintenance.run import FirstNeeded, MaintenanceResult, maintain
from dblake.operate.verification.run import compare_landed
from dblake.transform.reconcile.pending import reconciled_batch
from dblake.transform.spark.session import Session, cancel_jobs
from dblake.transform.state.pending import folded_batch
from dblake.transform.state.run import FoldedVersions, TableResult, require_success, run_state

if TYPE_CHECKING:
    from dblake.operate.quality.report import QualityReport
    from dblake.serve.iceberg.publisher import Publisher
    from dblake.transform.reconcile.stream import ReconcileRun

JOB = "run"
"""The name of the lease of a continuous run."""
_FINISH_SECONDS = 5.0
"""How long a step may take to end once the run is asked to stop; then its Spark jobs are cancelled."""
_WAIT_SECONDS = 1.0
_UPKEEP_SECONDS = 30.0
"""How often the second thread reads what is due."""

logger = logging.getLogger(__name__)


@dataclass
class CycleResult:
    """What a bounded run did: the newest batch in events, tables folded, the check's report, tables maintained."""

    batch: int = 0
    tables: Sequence[TableResult] = ()
    report: QualityReport | None = None
    maintained: Sequence[MaintenanceResult] = ()
    steps: list[str] = field(default_factory=list)
    """The names of the steps that had work."""


class Cycle:
    """The steps of one source, with the configuration's settings; ``session`` is called when a step needs Spark.

    ``first_needed`` returns the oldest landing batch that something outside the lake needs; see ``maintain``.
    ``publisher`` publishes state tables after each step, if there is one.
    """

    def __init__(
        self, config: Config, session: Session, first_needed: FirstNeeded = lambda: None,
        publisher: Publisher | None = None,
    ) -> None:
        self._config, self.session, self._first_needed = config, session, first_needed
        self._publisher = publisher
        self._paths = Paths(config.warehouse, config.source.name)

    def run_once(self, result: CycleResult) -> None:
        """Run all steps that have work, and note in ``result`` what they did; raise the first error.

        Raises what the runners raise: StateError for tables that stay behind, ChecksFailed for a failed check.
        """
        self.reconcile(result)
        self.fold(result)
        try:
            if self._publisher:
                self._publisher.publish_changed()
        finally:
            # A table that stays behind needs an operator; a catalog is tried again by the next run.
            require_success(result.tables)
        self.check(result, retry=True)
        self.maintain(result)

    def reconcile(self, result: CycleResult) -> None:
        """Reconcile what has landed, if anything is new."""
        done = reconciled_batch(self._paths)
        if done is not None:
            result.batch = done
            return
        from dblake.transform.reconcile.stream import reconcile_once

        size = self._config.reconcile.max_bytes_per_trigger
        result.batch = reconcile_once(self.session, self._paths, max_bytes_per_trigger=size)
        result.steps.append("reconcile")

    def fold(self, result: CycleResult, stop: threading.Event | None = None) -> None:
        """Fold new events into state, and compare it with what ``verify`` reads."""
        if folded_batch(self._paths) is not None:
            compare_landed(self._paths)
            return
        settings = self._config.state
        result.tables = run_state(
            self.session, self._paths, parallel=settings.parallel, batches_per_step=settings.batches_per_step,
            stop=stop,
        )
        result.steps.append("state")
        compare_landed(self._paths)

    def check(self, result: CycleResult, *, retry: bool) -> None:
        """Check what is new, if a check is due. Raises ChecksFailed."""
        suites = self._config.quality.suites
        every = self._config.run.check_seconds
        if not is_check_due(self._paths, every, has_user_suites=suites is not None, retry=retry):
            return
        spark = self.session()
        from dblake.operate.quality.run import run_check
        from dblake.operate.quality.user_suite import read_suites
        from dblake.serve.sql.query import silence_spark

        user_suites = read_suites(suites) if suites else []
        # Spark's own report of a suite's fault may show row values.
        silence_spark(spark)
        try:
            result.report = run_check(self.session, self._paths, user_suites)
        finally:
            spark.sparkContext.setLogLevel("WARN")
        result.steps.append("check")
        result.report.require_success()

    def maintain(self, result: CycleResult) -> None:
        """Maintain all tables, if that is due."""
        if is_maintenance_due(self._paths, self._config.run.maintain_seconds):
            result.maintained = maintain(
                self.session, self._paths, self._config.maintain, parallel=self._config.state.parallel,
                first_needed=self._first_needed,
                before_vacuum=self._publisher.prepare_vacuum if self._publisher else None,
            )
            result.steps.append("maintain")

    def run_until(self, stop: threading.Event, lease: Lease) -> int:
        """Run until ``stop`` is set, beginning once capture has created landing; return the newest batch in events.

        The caller holds ``lease``. Raises Fenced once it is lost for good.
        """
        if not self._wait_for_landing(stop):
            return 0
        from dblake.transform.reconcile.stream import ReconcileRun, cancel_late_jobs, poll_pause

        upkeep = _Beside("upkeep", stop, lease, self._keep_up, _UPKEEP_SECONDS, self.session)
        folding = _Beside("fold", stop, lease, self._fold_changes(), poll_pause(self._paths))
        publishing = self._publisher.publishing(lease.held) if self._publisher else nullcontext()
        with cancel_late_jobs(stop, _FINISH_SECONDS), publishing, upkeep, folding:
            run = ReconcileRun(self.session, self._paths, self._config.reconcile.max_bytes_per_trigger)
            self._reconcile_until(run, stop, lease, (upkeep, folding))
        return run.reconciler.done()

    def _reconcile_until(
        self, run: ReconcileRun, stop: threading.Event, lease: Lease, beside: Sequence[_Beside]
    ) -> None:
        from dblake.transform.reconcile.stream import poll_pause

        every, reconcile_at = self._config.reconcile.trigger_seconds, 0.0
        poll_seconds = poll_pause(self._paths)
        while not stop.is_set():
            require_lease(lease, self._paths.source, JOB)
            began = time.monotonic()
            if lease.held() and began >= reconcile_at and run.has_new_batches():
                run.advance(stop)
                reconcile_at = began + every
            for thread in beside:
                thread.raise_error()
            stop.wait(poll_seconds)

    def _fold_changes(self) -> Callable[[threading.Event], None]:
        """Return a function that folds what is new since its last call, at most once in ``state.interval_seconds``."""
        interval, fold_at, seen = self._config.state.interval_seconds, 0.0, None
        versions = FoldedVersions(self._paths)

        def fold(ended: threading.Event) -> None:
            nonlocal fold_at, seen
            if time.monotonic() < fold_at:
                return
            now = versions.read()
            if now != seen:
                had_work = self._fold_again(ended)
                # Most micro-batches change the ledger alone after their events are folded: new events do not wait then.
                seen, fold_at = now, time.monotonic() + interval if had_work else fold_at

        return fold

    def _fold_again(self, ended: threading.Event) -> bool:
        """Fold what is new; return False if there was nothing."""
        result = CycleResult()
        self.fold(result, ended)
        try:
            require_success(result.tables)
        except DblakeError as error:
            if error.retryable:
                raise
            # Each table's error was logged where it occurred.
        return bool(result.steps)

    def _keep_up(self, _: threading.Event) -> None:
        for step in (lambda result: self.check(result, retry=False), self.maintain):
            try:
                # Without Spark's package, or Java, this process still replicates.
                with named_extras():
                    step(CycleResult())
            except DblakeError as error:
                logger.error("%s", error)  # noqa: TRY400 - a traceback may hold values

    def _wait_for_landing(self, stop: threading.Event) -> bool:
        if not has_table(self._paths.landing):
            logger.info("waiting for capture to create the landing table")
        while not has_table(self._paths.landing):
            if stop.wait(_WAIT_SECONDS):
                return False
        return not stop.is_set()


class _Ended(threading.Event):
    """Is set at the end of a block, or counts as set once ``stop`` is."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def is_set(self) -> bool:
        return super().is_set() or self._stop.is_set()


class _Beside:
    """A thread of a continuous run that repeats a step while the lease is held, until ``stop`` or the block's end."""

    def __init__(
        self, name: str, stop: threading.Event, lease: Lease, step: Callable[[threading.Event], None], pause: float,
        canceled: Session | None = None,
    ) -> None:
        """``step`` receives an event that is set once it should end.

        With a session in ``canceled``, its jobs are canceled then: for steps that have changed nothing before they end,
        or are safe to kill. Any other step is waited for; not for long if the block ends with an error, because the
        next run completes a step that is killed.
        """
        self._lease, self._step, self._pause, self._canceled = lease, step, pause, canceled
        self._ended = _Ended(stop)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        if self._canceled is None:
            self._thread.join(_FINISH_SECONDS if kind else None)
            return
        cancel_jobs()
        self._thread.join(_FINISH_SECONDS)

    def raise_error(self) -> None:
        """Raise the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if self._lease.held():
                    self._step(self._ended)
            except BaseException as error:  # noqa: BLE001 - the other thread raises it
                self._error = error
                return
            self._ended.wait(self._pause)
