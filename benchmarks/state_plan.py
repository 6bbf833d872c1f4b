"""Planning a state run after a long outage: seconds and peak memory by landing batches and tables.

    python -m benchmarks.state_plan [--cases BATCHESxTABLES …]

Each batch has an event of each table, in files of ``--file-batches`` batches as maintenance leaves them. The plan
runs in a process of its own. The memory includes what that process takes without a plan.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks import machine
from dblake.base.lake.log import commit_files
from dblake.base.lake.tables import create_table, open_table
from dblake.transform.events.files import EVENT_COLUMNS, EventFile, EventFileWriter
from dblake.transform.events.reader import EventReader
from dblake.transform.state.steps import plan_spans

_CASES = ("10000x200", "600000x50")
_BATCHES_PER_STEP = 1000
_COMMITTED_AT = pa.scalar(datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC"))
_MB = 1 << 20


def write_events(path: str, batches: int, tables: int, file_batches: int) -> None:
    """Write one event of each table in each batch, in files of several batches."""
    create_table(path, EVENT_COLUMNS)
    for first in range(1, batches + 1, file_batches):
        last = min(first + file_batches, batches + 1)
        file = _write_file(path, first, last, tables)
        commit_files(path, open_table(path), "benchmark", last, [file])


def _write_file(path: str, first: int, last: int, tables: int) -> EventFile:
    names = [f"public.t{number}" for number in range(tables)]
    with EventFileWriter(path) as writer:
        for start in range(first, last, 1000):
            numbers = np.repeat(np.arange(start, min(start + 1000, last)), tables)
            count = len(numbers)
            image = pa.array([[("id", "1")]], EVENT_COLUMNS.field("key").type).take(pa.array(np.zeros(count, np.int64)))
            given = {
                "incarnation": pa.repeat(1, count), "lsn": pa.array(numbers), "batch": pa.array(numbers),
                "seq": pa.array(np.tile(np.arange(tables), count // tables)), "key": image, "after": image,
                "table": pa.array(names).take(pa.array(np.tile(np.arange(tables), count // tables))),
                "op": pa.repeat("u", count), "origin": pa.repeat("log", count), "schema_id": pa.repeat("s", count),
                "txid": pa.array(numbers), "partial": pa.repeat(False, count),
                "committed_at": pa.repeat(_COMMITTED_AT, count),
                "last_in_txn": pa.array(np.tile(np.arange(tables) == tables - 1, count // tables)),
            }
            writer.write(pa.table([
                given[field.name].cast(field.type) if field.name in given else pa.nulls(count, field.type)
                for field in EVENT_COLUMNS
            ], schema=EVENT_COLUMNS))
    return writer.file


def plan(path: str) -> dict[str, float]:
    """Plan all steps; return how many there are, their events, seconds and this process's peak in MB."""
    began, cpu, steps, events = time.monotonic(), time.process_time(), 0, 0
    opened = EventReader.open(path)
    for step, _ in plan_spans(opened, 0, opened.listing.newest_batch or 0, {}, _BATCHES_PER_STEP):
        steps += 1
        events += sum(counts.events for counts in step.counts.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MB
    return {"steps": steps, "events": events, "seconds": time.monotonic() - began,
            "cpu": time.process_time() - cpu, "mb": peak}


def main() -> None:
    """Print the machine and one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=_CASES)
    parser.add_argument("--file-batches", type=int, default=5000)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        print(json.dumps(plan(options.plan)))
        return
    for name, fact in machine.facts("dblake", "as checked out").items():
        print(f"{name}: {fact}")
    print(f"\n{'batches':>9} {'tables':>7} {'events':>12} {'steps':>6} {'seconds':>8} {'CPU s':>6} {'peak MB':>8}")
    for case in options.cases:
        batches, tables = map(int, case.split("x"))
        with tempfile.TemporaryDirectory(prefix="dblake-state-plan-") as folder:
            write_events(str(Path(folder) / "events"), batches, tables, options.file_batches)
            ran = subprocess.run(
                [sys.executable, "-m", "benchmarks.state_plan", "--plan", str(Path(folder) / "events")],
                check=True, capture_output=True, text=True,
            )
        found = json.loads(ran.stdout)
        print(f"{batches:>9,} {tables:>7} {found['events']:>12,} {found['steps']:>6} {found['seconds']:>8.1f} "
              f"{found['cpu']:>6.1f} {found['mb']:>8.0f}", flush=True)


if __name__ == "__main__":
    main()
