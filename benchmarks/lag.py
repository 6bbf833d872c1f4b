"""How far landing is behind the log while a large table is dumped, beside how far it is without, in one run.

Clients write at a steady pace all the time. A change's lag is from its commit, as the database has it, until the
commit of the batch that landed it.
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
from dblake.core.processes import stop_process

_MOST = 2.0
_WARM_SECONDS, _QUIET_SECONDS, _DUMP_SECONDS = 5.0, 15.0, 300.0
_PAUSE = 0.025
_TRANSACTIONS = 5
"""In each pause: 200 transactions of four changes a second."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Seconds, without a dump and during one: of the change in the middle, and of all but one in a hundred."""

    without: tuple[float, float]
    changes_without: int
    during: tuple[float, float]
    changes_during: int
    dumped_rows: int
    dump_seconds: float

    @property
    def met(self) -> bool:
        """True if a dump at most doubles it."""
        return all(during <= _MOST * without for during, without in zip(self.during, self.without, strict=True))

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": "lag of the log during a dump", "dumped_rows": self.dumped_rows,
            "dump_seconds": round(self.dump_seconds, 1),
            "without": {"median": round(self.without[0], 3), "99th": round(self.without[1], 3),
                        "changes": self.changes_without},
            "during": {"median": round(self.during[0], 3), "99th": round(self.during[1], 3),
                       "changes": self.changes_during},
            "target": f"≤ {_MOST:g} times its value without", "met": self.met,
        }


def measure(bench: Bench) -> Lag:
    """Captures live: some seconds without a dump, then until one of the whole table has landed."""
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
            # What was committed while it ran must land, too.
            time.sleep(3.0)
        finally:
            stop_process(process, 60)
    began, ended = times
    lags = _lags(bench.paths("lag").landing)
    without, during = ([lag for at, lag in lags if first <= at < last] for first, last in ((quiet, began), times))
    return Lag(_middle_and_most(without), len(without), _middle_and_most(during), len(during), rows,
               (ended - began).total_seconds())


@contextmanager
def _writes(bench: Bench) -> Iterator[None]:
    """Clients that write for as long as the block lasts, at a steady pace."""
    stop, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            with closing(bench.server.connect(bench.settings.database)) as conn, conn.cursor() as cur:
                while not stop.wait(_PAUSE):
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
    """When each change was committed, and its lag in seconds."""
    table = DeltaTable(landing)
    # A commit is a batch, and landing is new: the first made the table.
    landed = {commit["version"]: commit["timestamp"] / 1000 for commit in table.history()}
    changes = table.to_pyarrow_table(columns=["batch", "kind", "committed_at"]).to_pylist()
    return [
        (row["committed_at"], landed[row["batch"]] - row["committed_at"].timestamp())
        for row in changes if row["kind"] == "row"
    ]


def _middle_and_most(lags: list[float]) -> tuple[float, float]:
    ordered = sorted(lags)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
