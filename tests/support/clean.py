"""Runs of ``check`` beside all other jobs: every expectation must pass.

Two writers update the keys, dumps run one after another, capture is killed with SIGKILL repeatedly (which leaves
windows without an end, cuts transactions and changes leases), reconcile and state repeat. Checks of all rows and of new
rows alternate beside them. A test runs the short form, ``./spark-submit.sh stress --checks`` the long one.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.lake.log import newest_batch
from dblake.operate.quality.report import QualityReport
from dblake.operate.quality.run import run_check
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.rig import Rig, T, kill

_DUMP_INTERVAL_SECONDS = 5.0
_STATE_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class CheckFigures:
    """The figures of the runs."""

    seconds: float
    runs: int
    expectations: int
    suites: dict[str, int]
    batches: int
    events: int
    captures_killed: int
    windows: dict[str, int]

    def facts(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return asdict(self)


class ConcurrentJobs:
    """Capture, dumps, reconcile and state on a rig, repeated for as long as the context lasts."""

    def __init__(self, rig: Rig, spark: SparkSession, *, seed: int, kill_every: float) -> None:
        self._rig, self._spark, self._seed, self._every = rig, spark, seed, kill_every
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self.killed = 0

    def __enter__(self) -> ConcurrentJobs:
        tasks = (self._capture, self._dump, self._reconcile)
        self._threads = [threading.Thread(target=self._guarded, args=(task,)) for task in tasks]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.require_alive()

    def require_alive(self) -> None:
        """Raise the error of a job that failed."""
        if self._failed:
            raise self._failed[0]

    def _capture(self) -> None:
        random_source = random.Random(self._seed)
        while not self._stop.is_set():
            process = self._rig.start()
            self._stop.wait(self._every * random_source.uniform(0.5, 1.5))
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            self.killed += kill(process)

    def _dump(self) -> None:
        lake, number = self._rig.lake, 0
        while not self._stop.wait(_DUMP_INTERVAL_SECONDS if number else 0):
            if all(entry["state"] == "done" for entry in lake.dumps()):
                number += 1
                some = [(key,) for key in sorted(self._rig.written)[number % 7 :: 7]]
                lake.dump(T, keys=None if number % 3 else some)

    def _reconcile(self) -> None:
        paths = self._rig.lake.paths
        while not self._stop.wait(0.3):
            if DeltaTable.is_deltatable(paths.landing):
                reconcile_once(self._spark, paths)
                run_state(self._spark, paths, parallel=2)

    def _guarded(self, task: Any) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised by require_alive()
            self._failed.append(error)


def run_checks_under_load(
    rig: Rig, spark: SparkSession, runs: int, *, seed: int, kill_every: float = 3.0,
    on_run: Callable[[str], None] = lambda _: None,
) -> CheckFigures:
    """Run ``check`` ``runs`` times under load, and once on all rows afterwards.

    Raises AssertionError for a failed expectation. ``on_run`` is called with a line after each run.
    """
    paths, started, suites = rig.lake.paths, time.monotonic(), Counter[str]()
    with rig.load(seed, pause=0.05), ConcurrentJobs(rig, spark, seed=seed, kill_every=kill_every) as jobs:
        batch = 0
        for number in range(runs):
            batch = _wait_for_state(rig, jobs, batch)
            report = run_check(spark, paths, [], everything=number % 2 == 0)
            suites += _require_passed(report)
            on_run(f"run {number + 1}, up to batch {batch}: {len(report.outcomes)} expectations passed")
    rig.catch_up()
    reconcile_once(spark, paths)
    run_state(spark, paths, parallel=2)
    last = run_check(spark, paths, [], everything=True)
    _require_passed(last)
    windows = DeltaTable(paths.windows).to_pyarrow_table(columns=["status"])["status"].to_pylist()
    return CheckFigures(
        round(time.monotonic() - started, 1), runs, len(last.outcomes), dict(suites), rig.newest_batch(),
        rig.verify_tables(), jobs.killed, dict(Counter(windows)),
    )


def _wait_for_state(rig: Rig, jobs: ConcurrentJobs, batch: int) -> int:
    """Wait until state is past a landing batch; return the batch it has reached."""
    path, deadline = rig.lake.paths.state("public", "t"), time.monotonic() + _STATE_TIMEOUT_SECONDS
    while True:
        jobs.require_alive()
        now = newest_batch(path, f"state/{rig.lake.paths.source}")
        if now > batch:
            return now
        assert time.monotonic() < deadline, "state does not advance"
        time.sleep(0.2)


def _require_passed(report: QualityReport) -> Counter[str]:
    failed = [str(outcome) for outcome in report.outcomes if not outcome.success]
    assert not failed, "\n".join(failed)
    return Counter({outcome.suite for outcome in report.outcomes})
