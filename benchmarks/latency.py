"""Measure the time from a commit at the source to landing, to a live reading and to a subscriber, one path at a time.

Updates of 2.5 KB come at a fixed rate, with capture's low-latency profile and ``run --continuous`` beside them. The
percentiles are over all updates, those that did not arrive within ``_LATE_SECONDS`` after the last one included: they
count as infinitely late. The peer is Debezium's embedded engine, alone on the same machine.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable

from benchmarks import debezium, machine
from benchmarks.capture_job import HOME, start_capture
from benchmarks.consumers import create_tables, writing
from benchmarks.database import Bench
from benchmarks.first_load import SERVER
from dblake.base.core.position import Position
from dblake.base.core.processes import stop_process
from dblake.base.lake.layout import Paths
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.landing.columns import RESUME_METADATA
from dblake.serve.consume import open_subscription
from dblake.serve.read.reading import open_reading

_RATES, _START_SECONDS, _WARM_SECONDS, _LATE_SECONDS = (100, 1000), 90.0, 3.0, 3.0
_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_POLL_SECONDS = 0.01

Lags = list[tuple[float, float]]
"""Of each update that arrived: when it was committed, and the seconds from there to its arrival."""


def main() -> None:
    """Print a line for each path and rate; with ``--follow`` be a subscriber or a reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="seconds at each rate; default 120")
    parser.add_argument("--rates", type=int, nargs="+", default=_RATES, help="updates a second; default 100 and 1,000")
    parser.add_argument("--paths", nargs="+", default=["live", "subscriber", "debezium"], help="what is measured")
    parser.add_argument("--follow", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        _FOLLOWERS[options.follow[0]](Paths(options.follow[1], "bench"))
        return
    for name, fact in machine.facts("dblake", "as checked out", "psycopg2-binary").items():
        print(f"{name}: {fact}")
    print(f"\n{'updates/s':>9}  {'path':<12}{'p50':>8}{'p99':>8}   " + "".join(f"≤ {b:g}".rjust(8) for b in _BOUNDS)
          + f"{'later':>8}{'missing':>9}")
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "server", settings=SERVER) as server:
        bench = Bench(server, Path(folder))
        create_tables(bench)
        bench.create_slot("latency")
        for rate in options.rates:
            for path in options.paths:
                if path == "debezium":
                    _print(rate, path, *measure_debezium(bench, rate, options.seconds))
                else:
                    measure(bench, rate, options.seconds, path)


def measure(bench: Bench, rate: int, seconds: float, path: str) -> None:
    """Print how late updates arrive on one path, and how late they landed."""
    folder = bench.warehouse(f"{path}_{rate}")
    with bench.copied_slot("latency") as slot, ExitStack() as stack:
        bench.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
        settings = bench.configuration(folder, slot) + "capture: {profile: low_latency, new_tables: ignore}\n"
        stack.callback(stop_process, start_capture(folder, settings), 60)
        follow = [sys.executable, str(HOME / "jobs/run.py"), "--conf", str(folder / "bench.yaml"), "--continuous"]
        stack.callback(stop_process, subprocess.Popen(follow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), 60)
        with _follower(path, folder) as follower:
            with writing(bench, 20):
                follower.wait_until_ready()
            time.sleep(_WARM_SECONDS)
            began = time.time()
            with writing(bench, rate) as written:
                time.sleep(seconds)
            time.sleep(_LATE_SECONDS)
            lags = follower.stop()
        landed = _landed(Paths(str(folder), "bench"))
    for name, found in (("landing", landed), (path, lags)):
        _print(rate, name, [lag for at, lag in found if at >= began], written[0])


def measure_debezium(bench: Bench, rate: int, seconds: float) -> tuple[list[float], int]:
    """Return how late updates come from Debezium's engine, and how many there were."""
    with debezium.following(bench, "latency") as lags:
        with writing(bench, rate) as written:
            time.sleep(seconds)
        time.sleep(_LATE_SECONDS)
    return lags, written[0]


def _print(rate: int, path: str, lags: Sequence[float], written: int) -> None:
    ordered = sorted(lags) + [math.inf] * max(written - len(lags), 0)
    p50, p99 = (ordered[min(len(ordered) * share // 100, len(ordered) - 1)] for share in (50, 99))
    ends = [bisect_left(ordered, bound) for bound in _BOUNDS]
    counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    later = len(lags) - ends[-1]
    print(f"{rate:9,}  {path:<12}{p50:8.3f}{p99:8.3f}   " + "".join(f"{count:8,}" for count in counts)
          + f"{later:8,}{written - len(lags):9,}", flush=True)


class _Follower:
    """A process that follows a lake. It prints a line when something came, and at the end all that came, as Lags."""

    def __init__(self, path: str, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.latency", "--follow", path, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self) -> None:
        timer = threading.Timer(_START_SECONDS, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            raise RuntimeError(f"nothing arrived within {_START_SECONDS} s")

    def stop(self) -> Lags:
        found: Lags = json.loads(self.process.communicate()[0])
        return found


@contextmanager
def _follower(path: str, folder: Path) -> Iterator[_Follower]:
    follower = _Follower(path, folder)
    try:
        yield follower
    finally:
        stop_process(follower.process, 10)


def _stopped() -> threading.Event:
    """Return an event that is set when the parent process closes the standard input."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop


def _subscribe(paths: Paths) -> None:
    lags, stop = Lags(), _stopped()
    with open_subscription([paths], tables=["public.item_*"], start="1/0", stop=stop) as subscription:
        for transaction in subscription:
            if transaction.committed_at and transaction.events:
                at = transaction.committed_at.timestamp()
                if not lags:
                    print("ready", flush=True)
                lags += [(at, time.time() - at)] * len(transaction.events)
    print(json.dumps(lags))


def _read_live(paths: Paths) -> None:
    seen, stop = list[tuple[Position, float]](), _stopped()
    while not stop.wait(_POLL_SECONDS):
        position = open_reading(paths, is_live=True).position if DeltaTable.is_deltatable(paths.landing) else None
        if position and (not seen or position > seen[-1][0]):
            if not seen:
                print("ready", flush=True)
            seen.append((position, time.time()))
    reached, times = [position for position, _ in seen], [at for _, at in seen]
    lags = Lags()
    for position, at in _updates(paths):
        place = bisect_left(reached, position)
        if place < len(reached):
            lags.append((at, times[place] - at))
    print(json.dumps(lags))


def _updates(paths: Paths) -> list[tuple[Position, float]]:
    """Return the position and commit time of each update that landed."""
    rows = DeltaTable(paths.landing).to_pyarrow_table(columns=[*Position.COLUMNS, "kind", "committed_at"]).to_pylist()
    return [
        (Position(row["incarnation"], row["lsn"], row["seq"]), row["committed_at"].astimezone(UTC).timestamp())
        for row in rows if row["kind"] == "row"
    ]


def _landed(paths: Paths) -> Lags:
    """Return the lag of each update that landed, by the time of its batch's commit."""
    table = DeltaTable(paths.landing)
    landed = {
        json.loads(commit[RESUME_METADATA])["batch"]: commit["timestamp"] / 1000
        for commit in table.history() if RESUME_METADATA in commit
    }
    rows = table.to_pyarrow_table(columns=["batch", "kind", "committed_at"]).to_pylist()
    lags = Lags()
    for row in rows:
        if row["kind"] == "row":
            at: datetime = row["committed_at"]
            lags.append((at.timestamp(), landed[row["batch"]] - at.timestamp()))
    return lags


_FOLLOWERS: dict[str, Callable[[Paths], None]] = {"subscriber": _subscribe, "live": _read_live}


if __name__ == "__main__":
    main()
