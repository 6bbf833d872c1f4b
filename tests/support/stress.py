"""The stress oracle: writes, dumps and crashes, all at once for a given time; then every step must be there once.

Two writers step the keys. Dumps of the whole table and of given keys follow one another without a pause. Capture
(alternating between one reader and two) and the Spark jobs, in turn, are killed by SIGKILL until time is up, so that no
job ever ends normally. Then each job runs once more to its end, and ``oracle`` verifies the result. The short form is a
test, the long one ``./spark-submit.sh stress``.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deltalake import DeltaTable

from dblake.base.lake.log import newest_batch
from tests.support.oracle import ObservedEvent, Step, Writers
from tests.support.rig import Rig, T, kill, observe_event, read_observed_events

_READERS = (1, 2)
_UNFINISHED_DUMPS = 3
"""How many dumps are queued or running at any moment."""
_MIN_JVM_SECONDS = 8.0
"""Minimum life of a job with a JVM: before that, it has not begun anything that a kill could interrupt."""
_FIRST_WRITE_SECONDS = 60.0
"""How long to wait for a job's first write."""
_BACKLOG_SECONDS = 1200.0
"""How long a job may take for everything that its killed predecessors left."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run, in seconds and counts. Lag is from a commit until its batch was closed."""

    seconds: float
    kills: dict[str, int]
    runs: dict[str, int]
    transactions: int
    steps: int
    events: int
    batches: int
    reconciled_by_the_killed: int
    dumps: int
    chunks: int
    lag_median: float
    lag_99th: float
    lag_most: float

    def facts(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return asdict(self)


class Stress:
    """One run on one database. ``jobs`` are the Spark jobs to run beside capture, in turn."""

    def __init__(
        self, rig: Rig, *, seed: int, seconds: float, kill_every: float, jobs: Sequence[str] = ()
    ) -> None:
        self._rig, self._seed, self._seconds, self._every, self._jobs = rig, seed, seconds, kill_every, jobs
        self._by_the_killed = 0
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._kills: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()

    def run(self) -> tuple[float, Writers]:
        """Run until everything has landed. Return the run's seconds and its writers. Raises a thread's exception."""
        rig = self._rig
        threads = [threading.Thread(target=self._guarded, args=(task,)) for task in (self._dump, self._spark)]
        dice, began = random.Random(self._seed), time.monotonic()
        with rig.load(self._seed) as writers:
            for thread in threads:
                thread.start()
            try:
                while time.monotonic() < began + self._seconds and not self._failed:
                    self._capture(dice)
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()
        if self._failed:
            raise self._failed[0]
        rig.catch_up()
        self._by_the_killed = newest_batch(rig.lake.paths.events, "reconcile/shop")
        for job in self._jobs:
            rig.run(job, seconds=_BACKLOG_SECONDS)
        return time.monotonic() - began, writers

    def figures(self, seconds: float, writers: Writers) -> Figures:
        """Return the figures of a run that was verified."""
        lake, dumps = self._rig.lake, self._rig.lake.dumps()
        if self._jobs:
            events = read_observed_events(DeltaTable(lake.paths.events))
        else:
            events = [observe_event(event) for event in lake.reconciled()[0] if event.table == T]
        landed = DeltaTable(lake.paths.landing).to_pyarrow_table(columns=["batch", "landed_at"])
        times = dict(zip(*(landed[name].to_pylist() for name in ("batch", "landed_at")), strict=True))
        lags = _lags(self._rig.written, events, {batch: moment.timestamp() for batch, moment in times.items()})
        return Figures(
            round(seconds, 1), dict(self._kills), dict(self._runs), writers.transactions,
            sum(map(len, self._rig.written.values())), len(events), max(times),
            self._by_the_killed, len(dumps),
            sum(dump["chunks"] for dump in dumps),
            round(lags[len(lags) // 2], 3), round(lags[len(lags) * 99 // 100], 3), round(lags[-1], 3),
        )

    def _capture(self, dice: random.Random) -> None:
        """Run capture for a random time, then kill it. Raises AssertionError if it ended before."""
        self._runs["capture"] += 1
        self._rig.configure(readers=_READERS[self._runs["capture"] % 2])
        process = self._rig.start()
        time.sleep(self._every * dice.uniform(0.5, 1.5))
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        self._kills["capture"] += kill(process)

    def _dump(self) -> None:
        """Keep dumps queued: two of the whole table, then one of every seventh key."""
        number = 0
        keys = sorted(self._rig.written)
        while not self._stop.wait(0.2):
            if sum(entry["state"] != "done" for entry in self._rig.lake.dumps()) < _UNFINISHED_DUMPS:
                number += 1
                self._rig.lake.dump(T, keys=None if number % 3 else [(key,) for key in keys[number % 7 :: 7]])

    def _spark(self) -> None:
        """Run the jobs in turn, each until it is killed. Raises AssertionError if one ended before.

        One life of three is killed some time after its first write, the other two at any time, mostly before it.
        """
        dice = random.Random(self._seed + 1)
        while not DeltaTable.is_deltatable(self._rig.lake.paths.landing):
            if self._stop.wait(0.5):
                return
        for life, job in enumerate(itertools.cycle(self._jobs)):
            if self._stop.wait(1.0):
                return
            self._runs[job] += 1
            version = self._table_version(job)
            process = self._rig.start("--continuous", job=job)
            if life // len(self._jobs) % 3 == 1:
                self._wait_for_write(job, version)
                self._stop.wait(self._every * dice.uniform(0.0, 0.5))
            else:
                self._stop.wait(max(_MIN_JVM_SECONDS, self._every * dice.uniform(0.5, 1.5)))
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            self._kills[job] += kill(process)

    def _table_version(self, job: str) -> int:
        """Return the version of the table that a job writes to, -1 if it does not exist."""
        paths = self._rig.lake.paths
        path = paths.events if job == "reconcile" else paths.state("public", "t")
        return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else -1

    def _wait_for_write(self, job: str, version: int) -> None:
        """Wait until a job has written a later version, at most ``_FIRST_WRITE_SECONDS``."""
        deadline = time.monotonic() + _FIRST_WRITE_SECONDS
        while self._table_version(job) <= version and time.monotonic() < deadline and not self._stop.wait(0.2):
            pass

    def _guarded(self, task: Any) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self._failed.append(error)


def _lags(written: dict[str, list[Step]], events: Sequence[ObservedEvent], landed: dict[int, float]) -> list[float]:
    """Return the seconds between each step and its landing, sorted. Steps and events of a key have the same order."""
    steps = {key: iter(steps) for key, steps in written.items()}
    of_log = [event for event in events if event.op in "cud"]
    return sorted(max(0.0, landed[event.batch] - next(steps[event.key]).at) for event in of_log)
