"""Measure how the time of a landing commit grows with the commits before it, beside a Delta table that stays open.

A batch is 20 rows of 2.5 KB, as capture's low-latency profile lands them at 400 updates a second. The peer is delta-rs
with the same rows, options and table, without what landing adds: fences, batch numbers, and opening the table again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks import machine
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.base.lake.tables import create_table
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing, Reached

_ROWS, _ROW_BYTES = 20, 2500
_SERVER = ServerIdentity("server", "1")


def main() -> None:
    """Print the median milliseconds of ours and of the peer, and their ratio, for each tenth of the commits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000, help="commits to each table; default 1,000")
    commits = parser.parse_args().commits
    for name, fact in machine.facts("dblake", "as checked out").items():
        print(f"{name}: {fact}")
    with tempfile.TemporaryDirectory() as folder:
        writers = _landing(f"{folder}/landing"), _peer(f"{folder}/peer")
        times: tuple[list[float], list[float]] = [], []
        print(f"\n{'commits':>8}{'landing ms':>12}{'delta-rs ms':>13}{'ratio':>8}")
        for number in range(1, commits + 1):
            rows = _batch(number)
            for write, taken in zip(writers, times, strict=True):
                began = time.perf_counter()
                write(number, rows)
                taken.append(time.perf_counter() - began)
            if number % max(commits // 10, 1) == 0:
                ours, peer = (statistics.median(taken) * 1000 for taken in times)
                print(f"{number:8,}{ours:12.1f}{peer:13.1f}{ours / peer:8.2f}", flush=True)
                for taken in times:
                    taken.clear()


def _landing(path: str) -> Callable[[int, pa.Table], None]:
    landing = Landing(path, "bench")

    def write(number: int, rows: pa.Table) -> None:
        landing.commit(rows, Reached(number, 1, _SERVER, ResumePoint(1, str(number), Position(1, number))))

    return write


def _peer(path: str) -> Callable[[int, pa.Table], None]:
    create_table(path, LANDING)
    table = DeltaTable(path)
    return lambda _, rows: write_deltalake(table, rows, mode="append")


def _batch(number: int) -> pa.Table:
    row = {"batch": number, "lease_epoch": 1, "incarnation": 1, "lsn": number, "kind": "row", "table": "public.t"}
    rows = [{**row, "seq": seq, "payload": os.urandom(_ROW_BYTES)} for seq in range(_ROWS)]
    return pa.Table.from_pylist(rows, schema=LANDING)


if __name__ == "__main__":
    main()
