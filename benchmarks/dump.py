"""Benchmark dump → landing, with chunk windows, beside a ``COPY table TO STDOUT`` whose output is discarded."""

from __future__ import annotations

import os
import time
from contextlib import closing

import psycopg2

from benchmarks.comparison import Comparison, Side
from benchmarks.database import TABLE, Bench


def measure(bench: Bench, slot: str, rounds: int) -> tuple[Comparison, float]:
    """Return the comparison and capture's peak memory in MB. No client writes: the log has watermarks only."""
    ours, dumps, peers = [], [], []
    for number in range(rounds):
        peers.append(_bare_copy(bench))
        with bench.copied_slot(slot) as copy:
            ours.append(bench.capture(copy, f"dump_{number}", dump=True))
        dumps.append(bench.dump_seconds(f"dump_{number}"))
    comparison = Comparison(
        "dump → landing",
        Side("dump, from its first chunk until its last window has landed", bench.rows, tuple(dumps),
             tuple(r.cpu_seconds for r in ours)),
        Side("COPY TO STDOUT by psycopg2 to /dev/null", bench.rows, tuple(s for s, _ in peers),
             tuple(cpu for _, cpu in peers)),
        least=0.35,
        also=(Side("capture, the whole command with Python's start", bench.rows, tuple(r.seconds for r in ours)),),
    )
    return comparison, max(r.peak_mb for r in ours)


def _bare_copy(bench: Bench) -> tuple[float, float]:
    settings = bench.settings
    dsn = bench.server.dsn(settings.database, settings.user, settings.password)
    with closing(psycopg2.connect(dsn)) as conn, conn.cursor() as cur, open(os.devnull, "wb") as null:
        began, cpu = time.perf_counter(), time.process_time()
        cur.copy_expert(f"COPY {TABLE} TO STDOUT", null)
        return time.perf_counter() - began, time.process_time() - cpu
