"""Runs of ``check`` while everything goes on: none of them may find anything.

Two writers step the keys, dumps follow one another, capture is killed by SIGKILL again and again (so that windows stay
behind without an end, transactions are cut, leases change), reconcile and state run on and on. Checks run meanwhile,
of everything and of what is new in turn. The short form is a test, the long one ``./spark-submit.sh stress --checks``.
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

from dblake.lake.log import newest_batch
from dblake.quality.run import Report, run_check
from dblake.reconcile.stream import reconcile_once
from dblake.state.run import run_state
from tests.support.rig import Rig, T, kill

_DUMP_EVERY = 5.0
_PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class CleanRuns:
    """What the runs were."""

    seconds: float
    runs: int
    expectations: int
    suites: dict[str, int]
    batches: int
    events: int
    captures_killed: int
    windows: dict[str, int]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Busy:
    """A rig on which everything goes on, for as long as the block lasts."""

    def __init__(self, rig: Rig, spark: SparkSession, *, seed: int, kill_every: float) -> None:
        self._rig, self._spark, self._seed, self._every = rig, spark, seed, kill_every
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self.killed = 0

    def __enter__(self) -> Busy:
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
        """Raises what a job ended with that must not end."""
        if self._failed:
            raise self._failed[0]

    def _capture(self) -> None:
        dice = random.Random(self._seed)
        while not self._stop.is_set():
            process = self._rig.start()
            self._stop.wait(self._every * dice.uniform(0.5, 1.5))
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            self.killed += kill(process)

    def _dump(self) -> None:
        lake, number = self._rig.lake, 0
        while not self._stop.wait(_DUMP_EVERY if number else 0):
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
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            self._failed.append(error)


def clean_runs(
    rig: Rig, spark: SparkSession, runs: int, *, seed: int, kill_every: float = 3.0,
    told: Callable[[str], None] = lambda _: None,
) -> CleanRuns:
    """So many runs under load, and one of everything when it is over. Raises AssertionError for what one finds.

    ``told`` gets a line after each.
    """
    paths, began, suites = rig.lake.paths, time.monotonic(), Counter[str]()
    with rig.load(seed, pause=0.05), Busy(rig, spark, seed=seed, kill_every=kill_every) as busy:
        batch = 0
        for number in range(runs):
            batch = _newer(rig, busy, batch)
            report = run_check(spark, paths, [], everything=number % 2 == 0)
            suites += _clean(report)
            told(f"run {number + 1}, up to batch {batch}: {len(report.outcomes)} expectations hold")
    rig.catch_up()
    reconcile_once(spark, paths)
    run_state(spark, paths, parallel=2)
    last = run_check(spark, paths, [], everything=True)
    _clean(last)
    windows = DeltaTable(paths.windows).to_pyarrow_table(columns=["status"])["status"].to_pylist()
    return CleanRuns(
        round(time.monotonic() - began, 1), runs, len(last.outcomes), dict(suites), rig.newest_batch(),
        rig.verify_tables(),
        busy.killed, dict(Counter(windows)),
    )


def _newer(rig: Rig, busy: Busy, batch: int) -> int:
    """Waits until state has been folded further than up to a batch; returns up to which."""
    path, deadline = rig.lake.paths.state("public", "t"), time.monotonic() + _PATIENCE
    while True:
        busy.require_alive()
        now = newest_batch(path, f"state/{rig.lake.paths.source}")
        if now > batch:
            return now
        assert time.monotonic() < deadline, "state does not get on"
        time.sleep(0.2)


def _clean(report: Report) -> Counter[str]:
    wrong = [str(outcome) for outcome in report.outcomes if not outcome.success]
    assert not wrong, "\n".join(wrong)
    return Counter({outcome.suite for outcome in report.outcomes})
