"""The stress oracle: steps, dumps and deaths, all at once, for so long; then every step must be there once.

Two writers step the keys, dumps of the whole table and of given keys follow one another without a pause, capture (with
one reader and with two, in turn) and the Spark jobs, one after the other, are killed by SIGKILL again and again, none
is let end. Then each job is run once more. What must come of it is ``oracle``'s to say. The short form is a test, the
long one ``./spark-submit.sh stress``.
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

from dblake.lake.log import newest_batch
from tests.support.oracle import Step, Told, Writers
from tests.support.rig import Rig, T, events_of, kill, told

_READERS = (1, 2)
_UNFINISHED = 3
"""So many dumps wait or run at any moment."""
_BEGUN = 8.0
"""How long a job with a JVM lives at least: it takes some seconds until it does anything that could be cut short."""
_PATIENCE = 60.0
"""How long a job may take until it writes something."""
_BACKLOG = 1200.0
"""How long a job may take for all that its dead have left."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run was. Lag is from when a writer knew of its commit until the batch that holds it was closed."""

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
        """For JSON."""
        return asdict(self)


class Stress:
    """One run on one database. ``jobs`` are those right of landing that run beside capture, in turn."""

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
        """All of it, until nothing is left to land. Returns for how long it went on, and its writers."""
        rig = self._rig
        beside = [threading.Thread(target=self._guarded, args=(task,)) for task in (self._dump, self._spark)]
        dice, began = random.Random(self._seed), time.monotonic()
        with rig.load(self._seed) as writers:
            for thread in beside:
                thread.start()
            try:
                while time.monotonic() < began + self._seconds and not self._failed:
                    self._capture(dice)
            finally:
                self._stop.set()
                for thread in beside:
                    thread.join()
        if self._failed:
            raise self._failed[0]
        rig.catch_up()
        self._by_the_killed = newest_batch(rig.lake.paths.events, "reconcile/shop")
        for job in self._jobs:
            rig.run(job, seconds=_BACKLOG)
        return time.monotonic() - began, writers

    def figures(self, seconds: float, writers: Writers) -> Figures:
        """What it was, of a run that was verified."""
        lake, dumps = self._rig.lake, self._rig.lake.dumps()
        if self._jobs:
            events = events_of(DeltaTable(lake.paths.events))
        else:
            events = [told(event) for event in lake.reconciled()[0] if event.table == T]
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
        """One life of capture, which must not end by itself."""
        self._runs["capture"] += 1
        self._rig.configure(readers=_READERS[self._runs["capture"] % 2])
        process = self._rig.start()
        time.sleep(self._every * dice.uniform(0.5, 1.5))
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        self._kills["capture"] += kill(process)

    def _dump(self) -> None:
        """Whole tables and given keys, in turn."""
        number = 0
        keys = sorted(self._rig.written)
        while not self._stop.wait(0.2):
            if sum(entry["state"] != "done" for entry in self._rig.lake.dumps()) < _UNFINISHED:
                number += 1
                self._rig.lake.dump(T, keys=None if number % 3 else [(key,) for key in keys[number % 7 :: 7]])

    def _spark(self) -> None:
        """The jobs in turn, each until it is killed; none may end by itself.

        Two lives of three end wherever they are, mostly before anything is written, the third some time after that.
        """
        dice = random.Random(self._seed + 1)
        for life, job in enumerate(itertools.cycle(self._jobs)):
            if self._stop.wait(1.0):
                return
            if not DeltaTable.is_deltatable(self._rig.lake.paths.landing):
                continue
            self._runs[job] += 1
            before = self._written(job)
            process = self._rig.start("--continuous", job=job)
            if life // len(self._jobs) % 3 == 1:
                self._wait_until_written(job, before)
                self._stop.wait(self._every * dice.uniform(0.0, 0.5))
            else:
                self._stop.wait(max(_BEGUN, self._every * dice.uniform(0.5, 1.5)))
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            self._kills[job] += kill(process)

    def _written(self, job: str) -> int:
        """The last version of what a job writes to."""
        paths = self._rig.lake.paths
        path = paths.events if job == "reconcile" else paths.state("public", "t")
        return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else -1

    def _wait_until_written(self, job: str, before: int) -> None:
        """Until a job has written a later version than that one; not for ever."""
        deadline = time.monotonic() + _PATIENCE
        while self._written(job) <= before and time.monotonic() < deadline and not self._stop.wait(0.2):
            pass

    def _guarded(self, task: Any) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            self._failed.append(error)


def _lags(written: dict[str, list[Step]], events: Sequence[Told], landed: dict[int, float]) -> list[float]:
    """Seconds between each step and its landing, sorted; steps and events of a key stand in the same order."""
    steps = {key: iter(steps) for key, steps in written.items()}
    of_log = [event for event in events if event.op in "cud"]
    return sorted(max(0.0, landed[event.batch] - next(steps[event.key]).at) for event in of_log)
