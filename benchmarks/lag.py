"""Benchmark the lag of landing behind the log during a dump of a large table and without it, in one run.

Clients write at a steady pace throughout. A change's lag is from its commit time in the database to the commit of the
batch that landed it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable

from benchmarks.capture_job import dump_times, request_dump, start_capture
from benchmarks.database import TABLE, Bench
from dblake.base.core.processes import stop_process

_MAX_RATIO = 2.0
_WARM_SECONDS, _QUIET_SECONDS, _DUMP_SECONDS = 5.0, 15.0, 300.0
_PAUSE_SECONDS = 0.025
_TRANSACTIONS = 5
"""Transactions per pause: in total 200 per second, of four changes each."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Seconds of lag without a dump and during one, each as median and 99th percentile."""

    without: tuple[float, float]
    changes_without: int
    during: tuple[float, float]
    changes_during: int
    dumped_rows: int
    dump_seconds: float

    @property
    def met(self) -> bool:
        """True if a dump at most doubles the lag."""
        return all(during <= _MAX_RATIO * without for during, without in zip(self.during, self.without, strict=True))

    def facts(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "name": "lag of the log during a dump", "dumped_rows": self.dumped_rows,
            "dump_seconds": round(self.dump_seconds, 1),
            "without": {"median": round(self.without[0], 3), "99th": round(self.without[1], 3),
                        "changes": self.changes_without},
            "during": {"median": round(self.during[0], 3), "99th": round(self.during[1], 3),
                       "changes": self.changes_during},
            "target": f"≤ {_MAX_RATIO:g} times its value without", "met": self.met,
        }


def measure(bench: Bench) -> Lag:
    """Run capture for some seconds without a dump, then until a dump of the whole table has landed."""
    bench.create_slot("before_lag")
    rows = bench.rows
    with bench.copied_slot("before_lag") as slot, _writes(bench):
        folder = bench.warehouse("lag")
        process = start_capture(folder, bench.configuration(folder, slot))
        try:
            time.sleep(_WARM_SECONDS)
            quiet = datetime.now(UTC)
            time.sleep(_QUIET_SECONDS)
            request_dump(folder, [TABLE])
            deadline = time.monotonic() + _DUMP_SECONDS
            while (times := dump_times(folder)) is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("capture did not finish its dump")
                time.sleep(0.2)
            # The changes committed during the dump must land, too.
            time.sleep(3.0)
        finally:
            stop_process(process, 60)
    began, ended = times
    lags = _lags(bench.paths("lag").landing)
    without, during = ([lag for at, lag in lags if first <= at < last] for first, last in ((quiet, began), times))
    return Lag(_median_and_99th(without), len(without), _median_and_99th(during), len(during), rows,
               (ended - began).total_seconds())


@contextmanager
def _writes(bench: Bench) -> Iterator[None]:
    """Write at a steady pace for the duration of the block."""
    stop, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            with closing(bench.server.connect(bench.settings.database)) as conn, conn.cursor() as cur:
                while not stop.wait(_PAUSE_SECONDS):
                    first, bench.rows = bench.rows + 1, bench.rows + _TRANSACTIONS
                    cur.execute("CALL public.change(%s, %s, %s)", (_TRANSACTIONS, first - 1, first))
        except BaseException as error:  # noqa: BLE001 - raised where the block ends
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
    if failed:
        raise failed[0]


def _lags(landing: str) -> list[tuple[datetime, float]]:
    """Return each change's commit time and its lag in seconds."""
    table = DeltaTable(landing)
    # Landing is new and each commit is a batch, so a batch number equals a table version.
    landed = {commit["version"]: commit["timestamp"] / 1000 for commit in table.history()}
    changes = table.to_pyarrow_table(columns=["batch", "kind", "committed_at"]).to_pylist()
    return [
        (row["committed_at"], landed[row["batch"]] - row["committed_at"].timestamp())
        for row in changes if row["kind"] == "row"
    ]


def _median_and_99th(lags: list[float]) -> tuple[float, float]:
    ordered = sorted(lags)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
