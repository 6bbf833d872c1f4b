"""Verification of a table beside a dump of it and beside a comparison in Spark; and how soon a commit is in ``_live``.

    python -m benchmarks.verification [--rows N] [--rounds R] [--samples S]

It starts its own PostgreSQL server. A verification is capture, which reads the table in chunks, then ``state``, which
compares them; a dump is capture, then reconcile and state. The peer stops all writes, reads both copies in Spark and
joins them. The longest transaction at the source is sampled in ``pg_stat_activity``.

The second part writes a row a time and waits for it in a live reading: with capture alone, and with ``run
--continuous`` beside it, both with ``capture.profile: low_latency``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import dblake
from benchmarks import machine
from benchmarks.capture_job import HOME, PASSWORD, start_capture
from benchmarks.database import TABLE, Bench
from benchmarks.first_load import DRIVER, SERVER
from benchmarks.spark_half import Cost, cost_of, median_cpu, median_seconds, run_with_children
from dblake.base.core.processes import stop_process
from dblake.ingest.capture.dump_queue import queue_verification
from dblake.ingest.capture.progress import open_progress
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.operate.verification.ledger import read_rounds
from dblake.serve.sql.lake import Lake
from dblake.transform.spark.session import spark_session

_PARTITIONS = 4
_SAMPLE_SECONDS = 0.01
_LIVE_SECONDS, _START_SECONDS = 30.0, 60.0
_OLDEST = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity
WHERE usename = 'dblake' AND backend_type = 'client backend' AND state <> 'idle'
"""


@dataclass
class LongestTransaction:
    """The longest transaction of the capture role within the block, in seconds, as sampled."""

    bench: Bench
    seconds: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Sample for the duration of the block."""
        sampler = threading.Thread(target=self._sample)
        sampler.start()
        try:
            yield
        finally:
            self._ended.set()
            sampler.join()

    def _sample(self) -> None:
        with closing(self.bench.server.connect(self.bench.settings.database)) as conn, conn.cursor() as cursor:
            while not self._ended.wait(_SAMPLE_SECONDS):
                cursor.execute(_OLDEST)
                (row,) = cursor.fetchall()
                self.seconds = max(self.seconds, float(row[0]))


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--compare", nargs=2, metavar=("URL", "STATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compare:
        compare_in_spark(*options.compare)
        return
    for name, fact in machine.facts("dblake", "as checked out", "psycopg2-binary").items():
        print(f"{name}: {fact}")
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "server", settings=SERVER) as server:
        bench = Bench(server, Path(folder))
        bench.fill(options.rows)
        bench.create_slot("start")
        with bench.copied_slot("start") as slot:
            measure_verifications(bench, slot, options.rounds)
        bench.make_tables(1)
        for beside in (False, True):
            measure_live(bench, options.samples, is_run_beside=beside)


def measure_verifications(bench: Bench, slot: str, rounds: int) -> None:
    """Print what dumps, verifications and comparisons in Spark of the whole table take."""
    folder = bench.warehouse("verified")
    costs: dict[str, list[Cost]] = {"dump": [], "verification": [], "comparison in Spark": []}
    longest = {work: LongestTransaction(bench) for work in costs}
    url = f"jdbc:postgresql://127.0.0.1:{bench.server.port}/{bench.settings.database}"
    compare = [
        sys.executable, "-m", "benchmarks.verification", "--compare", url,
        str(bench.paths("verified").state(*TABLE.split("."))),
    ]
    for number in range(rounds + 1):
        works = {
            "dump": partial(_dump, bench, slot, folder), "verification": partial(_verify, bench, slot, folder),
            "comparison in Spark": partial(run_with_children, compare),
        }
        for work, job in works.items():
            sampled = LongestTransaction(bench)
            with sampled.measured():
                cost = cost_of(job)
            # A first round, which fetches the peer's driver, does not count.
            if number:
                costs[work].append(cost)
                longest[work].seconds = max(longest[work].seconds, sampled.seconds)
    for work, found in costs.items():
        print(
            f"{work:20} {bench.rows:,} rows {median_seconds(found):6.1f} s {median_cpu(found):6.1f} CPU s, "
            f"{bench.rows / median_seconds(found):9,.0f} rows/s, longest transaction {longest[work].seconds:.2f} s"
        )


def _dump(bench: Bench, slot: str, folder: Path) -> None:
    bench.capture(slot, folder.name, dump=True)
    _run_jobs(folder, "reconcile", "state")


def _verify(bench: Bench, slot: str, folder: Path) -> None:
    queued = queue_verification(open_progress(f"file:{folder}/progress", bench.settings.name), [TABLE])
    bench.capture(slot, folder.name, dump=False)
    _run_jobs(folder, "reconcile", "state")
    found = read_rounds(bench.paths(folder.name), queued).get((queued, TABLE), [])
    if [(each.rows_compared, each.differences, each.is_complete) for each in found] != [(bench.rows, 0, True)]:
        raise RuntimeError(f"the verification ended with {found}")


def _run_jobs(folder: Path, *jobs: str) -> None:
    for job in jobs:
        run_with_children([sys.executable, str(HOME / f"jobs/{job}.py"), "--conf", str(folder / "bench.yaml")])


def compare_in_spark(url: str, state: str) -> None:
    """Join both copies by their keys and compare all columns. Raises RuntimeError if they differ."""
    spark = spark_session("compare", **{"spark.jars.packages": DRIVER})
    reader = spark.read.format("jdbc").options(
        driver="org.postgresql.Driver", fetchsize="10000", url=url, dbtable=TABLE, user="dblake", password=PASSWORD,
        partitionColumn="aid", numPartitions=str(_PARTITIONS), lowerBound="1", upperBound="1000000",
    )
    source, copy = reader.load().alias("s"), spark.read.format("delta").load(state).where("NOT _deleted").alias("c")
    differs = " OR ".join(f"s.{name} IS DISTINCT FROM c.{name}" for name in ("aid", "bid", "abalance", "filler"))
    if wrong := source.join(copy, "aid", "full").where(differs).count():
        raise RuntimeError(f"{wrong} rows differ")


def measure_live(bench: Bench, samples: int, *, is_run_beside: bool) -> None:
    """Print how long after its commit a row is in a live reading, with capture alone or with ``run`` beside it."""
    folder = bench.warehouse("live_beside_run" if is_run_beside else "live_alone")
    name = folder.name
    bench.create_slot(name)
    configuration = bench.configuration(folder, name) + "capture: {profile: low_latency, new_tables: ignore}\n"
    with ExitStack() as stack:
        stack.callback(stop_process, start_capture(folder, configuration), 60)
        conf = str(folder / "bench.yaml")
        if is_run_beside:
            run = subprocess.Popen(
                [sys.executable, str(HOME / "jobs/run.py"), "--conf", conf, "--continuous"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            stack.callback(stop_process, run, 60)
        lake, seconds = dblake.open(conf), []
        with closing(bench.server.connect(bench.settings.database)) as conn, conn.cursor() as cursor:
            for number in range(-5, samples):
                cursor.execute("INSERT INTO public.small_1 VALUES (%s, 'v')", (_row_id(number, is_run_beside),))
                committed = time.perf_counter()
                wait = _START_SECONDS if number < 0 else _LIVE_SECONDS
                while not _is_visible(lake, _row_id(number, is_run_beside)):
                    if time.perf_counter() > committed + wait:
                        raise RuntimeError(f"a row was not visible after {wait} s")
                if number >= 0:
                    seconds.append(time.perf_counter() - committed)
    ordered = sorted(seconds)
    print(
        f"commit → _live, {'run --continuous beside' if is_run_beside else 'capture alone'}: {samples} commits, "
        f"p50 {median(ordered):.2f} s, p99 {ordered[len(ordered) * 99 // 100]:.2f} s"
    )


def _row_id(number: int, is_run_beside: bool) -> int:
    return number + (2_000_000 if is_run_beside else 1_000_000)


def _is_visible(lake: Lake, row: int) -> bool:
    live = lake.live()
    if "public.small_1" not in live.tables:
        return False
    return bool(live.sql(f"SELECT 1 FROM public.small_1 WHERE id = {row}").to_arrow().num_rows)


if __name__ == "__main__":
    main()
