"""Measure subscriptions: the figures of the Databus paper (section 5), and one subscriber beside Debezium.

The events are of 2.5 KB, as the paper's. Subscribers are processes that do nothing with an event but take it; the
figures of a subscriber begin when its process has imported the library. Latency is ``benchmarks.latency``'s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import debezium, machine
from benchmarks.capture_job import ENVIRONMENT, HOME, run_capture
from benchmarks.database import Bench
from benchmarks.first_load import SERVER
from benchmarks.process import run
from dblake.base.lake.layout import Paths
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.serve.consume import Partition, open_subscription
from dblake.serve.consume.catch_up import CatchUpMode

_TABLES = 40
_BODY_BYTES = 2496
_EVENT_BYTES = 2500
_VERSIONS = 4
"""A row is inserted once and updated three times."""
_SUBSCRIBERS, _PARTITIONS = (1, 5, 10), (1, 2, 4, 8)
_TICK_SECONDS = 0.05
_PEER_RATIO = 3.0
_WRITE = f"""
CREATE PROCEDURE public.write(first int, last int) LANGUAGE plpgsql AS $$
DECLARE body text;
BEGIN
  FOR n IN first .. last LOOP
    SELECT string_agg(md5(random()::text), '') INTO body FROM generate_series(1, {_BODY_BYTES // 32});
    EXECUTE 'INSERT INTO public.item_' || mod(n, {_TABLES})
      || ' VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET body = $2' USING n, body;
    COMMIT;
  END LOOP;
END $$
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one subscriber received and read."""

    events: int
    seconds: float
    read_bytes: int


def main() -> None:
    """Print all figures; with ``--subscribe`` be a subscriber."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=40_000, help="events in the lake; default 40,000 (100 MB)")
    parser.add_argument("--subscribe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subscribe:
        print(json.dumps(_subscribe(**json.loads(options.subscribe))))
        return
    for name, fact in machine.facts("dblake", "as checked out", "psycopg2-binary").items():
        print(f"{name}: {fact}")
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "server", settings=SERVER) as server:
        bench = Bench(server, Path(folder))
        create_tables(bench)
        for name in ("lake", "debezium"):
            bench.create_slot(name)
        keys = options.events // _VERSIONS
        for _ in range(_VERSIONS):
            bench.execute("CALL public.write(1, %s)", (keys,))
        print(f"\n{keys * _VERSIONS:,} events of {_EVENT_BYTES:,} bytes in {_TABLES} tables")
        lake = _reconciled(bench)
        measure_subscribers(lake, keys * _VERSIONS)
        measure_filters(lake)
        measure_partitions(lake)
        measure_bootstrap(lake)
        measure_beside_debezium(bench, lake, keys * _VERSIONS)


def create_tables(bench: Bench) -> None:
    """Create the database with its tables and the procedure that writes."""
    bench.fill(1)
    for number in range(_TABLES):
        bench.execute(f"CREATE TABLE public.item_{number} (id int PRIMARY KEY, body text)")
        bench.execute(f"ALTER TABLE public.item_{number} ALTER body SET STORAGE EXTERNAL")
    bench.execute(_WRITE)
    bench.initialize()


def _reconciled(bench: Bench) -> Path:
    """Capture, reconcile and fold all changes; return the warehouse."""
    began = time.perf_counter()
    folder = bench.warehouse("lake")
    run_capture(folder, bench.configuration(folder, "lake") + "capture: {new_tables: ignore}\n", [])
    captured = time.perf_counter()
    run([sys.executable, str(HOME / "jobs/run.py"), "--conf", str(folder / "bench.yaml")], ENVIRONMENT)
    print(f"captured in {captured - began:.1f} s, reconciled and folded in {time.perf_counter() - captured:.1f} s")
    return folder


def measure_subscribers(lake: Path, events: int) -> None:
    """Print the rate at which several subscribers read all events at the same time (the paper's figure 13)."""
    print(f"\n{'subscribers':24}{'events/s':>12}{'MB/s':>8}   paper: 110 MB/s with 5, 120 MB/s with 10")
    for count in _SUBSCRIBERS:
        found = _deliver([{"warehouse": str(lake), "start": "1/0"}] * count)
        _require_all(sum(one.events for one in found), events * count)
        rate = events * count / max(one.seconds for one in found)
        print(f"{count:<24}{rate:12,.0f}{rate * _EVENT_BYTES / 1e6:8.0f}")


def measure_filters(lake: Path) -> None:
    """Print what a subscriber to a 40th of the rows reads, by table and by key, beside one without a filter."""
    print(f"\n{'filter':24}{'events':>12}{'MB read':>10}{'seconds':>10}")
    filters: dict[str, dict[str, Any]] = {
        "none": {}, "1 of 40 tables": {"tables": ["public.item_7"]}, "1 of 40 keys": {"partition": ("mod", _TABLES, 7)},
        "no column but the key": {"columns": {"public.*": ["id"]}},
    }
    for name, options in filters.items():
        (found,) = _deliver([{"warehouse": str(lake), "start": "1/0", **options}])
        print(f"{name:24}{found.events:12,}{found.read_bytes / 1e6:10.1f}{found.seconds:10.2f}")


def measure_partitions(lake: Path) -> None:
    """Print how long a partitioned consumer takes for all events, a process per partition (the paper's figure 15)."""
    print(f"\n{'partitions':24}{'events/s':>12}")
    for count in _PARTITIONS:
        found = _deliver([
            {"warehouse": str(lake), "start": "1/0", "partition": ("hash", count, number)} for number in range(count)
        ])
        print(f"{count:<24}{sum(one.events for one in found) / max(one.seconds for one in found):12,.0f}")


def measure_bootstrap(lake: Path) -> None:
    """Print how long a consumer takes to have all rows: from state, from all events, and from the keys that changed."""
    print(f"\n{'a consumer':24}{'events':>12}{'seconds':>10}{'÷ look-back':>13}")
    look_back = 0.0
    for name, options in (
        ("look-back", {"start": "1/0"}), ("consolidated", {"start": "1/0", "catch_up": "auto"}),
        ("bootstrap", {"start": "bootstrap"}),
    ):
        (taken,) = _deliver([{"warehouse": str(lake), **options}])
        look_back = look_back or taken.seconds
        print(f"{name:24}{taken.events:12,}{taken.seconds:10.2f}{taken.seconds / look_back:13.2f}")


def measure_beside_debezium(bench: Bench, lake: Path, events: int) -> None:
    """Print the events per second of one subscriber beside Debezium's embedded engine, with the same changes."""
    (ours,) = _deliver([{"warehouse": str(lake), "start": "1/0"}])
    _require_all(ours.events, events)
    peer = debezium.measure(bench, "debezium", events)
    ratio = ours.events / ours.seconds / peer
    print(f"\n{'one subscriber':24}{ours.events / ours.seconds:12,.0f} events/s")
    print(f"{'Debezium ' + debezium.VERSION:24}{peer:12,.0f} events/s")
    print(f"ratio {ratio:.2f}, target ≥ {_PEER_RATIO:g}: {'met' if ratio >= _PEER_RATIO else 'missed'}")


@contextmanager
def writing(bench: Bench, rate: int) -> Iterator[list[int]]:
    """Write so many transactions a second within the block; yield how many, as the only item of a list."""
    written, stop = [0], threading.Event()

    def write() -> None:
        per_tick = max(1, round(rate * _TICK_SECONDS))
        with closing(bench.server.connect(bench.settings.database)) as conn, conn.cursor() as cursor:
            due = time.perf_counter()
            while not stop.is_set():
                cursor.execute("CALL public.write(1, %s)", (per_tick,))
                written[0] += per_tick
                due += per_tick / rate
                stop.wait(max(0.0, due - time.perf_counter()))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        stop.set()
        writer.join()


def _deliver(subscribers: Sequence[dict[str, Any]]) -> list[Delivery]:
    """Run subscribers at the same time, each as a process."""
    def subscribe(options: dict[str, Any]) -> Delivery:
        command = [sys.executable, "-m", "benchmarks.consumers", "--subscribe", json.dumps(options)]
        return Delivery(**json.loads(run(command, ENVIRONMENT).output))

    with ThreadPoolExecutor(len(subscribers)) as pool:
        return list(pool.map(subscribe, subscribers))


def _subscribe(
    warehouse: str, start: str, tables: Sequence[str] = ("public.*",), columns: dict[str, list[str]] | None = None,
    partition: tuple[Literal["hash", "mod"], int, int] | None = None, catch_up: CatchUpMode = "events",
) -> dict[str, float]:
    """Take all events there are; return what ``Delivery`` has."""
    import pandas  # noqa: F401 - Arrow imports it at its first use, where it is installed
    part = Partition(partition[0], partition[1], (partition[2],)) if partition else None
    subscription = open_subscription(
        [Paths(warehouse, "bench")], tables=tables, columns=columns, partition=part, start=start, catch_up=catch_up,
        until_caught_up=True,
    )
    began, read, events = time.perf_counter(), _read_bytes(), 0
    with subscription:
        for transaction in subscription:
            for _ in transaction.events:
                events += 1
    return {"events": events, "seconds": time.perf_counter() - began, "read_bytes": _read_bytes() - read}


def _read_bytes() -> int:
    """Return what this process has read, from files and pipes."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def _require_all(events: int, expected: int) -> None:
    if events != expected:
        raise RuntimeError(f"{events} of {expected} events were delivered")


if __name__ == "__main__":
    main()
