"""Benchmark log → landing beside ``pg_recvlogical``, which discards the same part of the log; one at a time."""

from __future__ import annotations

import json

from benchmarks.comparison import Comparison, Side
from benchmarks.database import Bench
from benchmarks.process import ProcessResult, run


def measure(bench: Bench, slot: str, changes: int, rounds: int) -> tuple[Comparison, float]:
    """Return the comparison and capture's peak memory in MB. ``slot`` precedes the changes."""
    end = bench.log_end()
    ours, peers = [], []
    for number in range(rounds):
        with bench.copied_slot(slot) as copy:
            peers.append(_recvlogical(bench, copy, end))
        with bench.copied_slot(slot) as copy:
            ours.append(bench.capture(copy, f"log_{number}", dump=False))
    landed = [json.loads(r.output) for r in ours]
    if (fewest := min(fact["rows"] for fact in landed)) < changes:
        raise RuntimeError(f"capture landed {fewest} of {changes} changes")
    comparison = Comparison(
        "capture → landing",
        Side("capture, from opening the log to the last commit", changes, tuple(fact["seconds"] for fact in landed),
             tuple(r.cpu_seconds for r in ours)),
        Side("pg_recvlogical to /dev/null", changes, tuple(r.seconds for r in peers),
             tuple(r.cpu_seconds for r in peers)),
        least=0.8,
        also=(Side("capture, the whole command with Python's start", changes, tuple(r.seconds for r in ours)),),
    )
    return comparison, max(r.peak_mb for r in ours)


def _recvlogical(bench: Bench, slot: str, end: str) -> ProcessResult:
    server = bench.server
    return run(
        [str(server.binaries / "pg_recvlogical"), "-h", "127.0.0.1", "-p", str(server.port), "-U", server.user,
         "-d", bench.settings.database, "--slot", slot, "--start", "--no-loop", "--endpos", end, "-f", "-",
         "-o", "proto_version=1", "-o", f"publication_names={bench.settings.publication}"],
        {"PGPASSWORD": server.password, "PGSSLMODE": "disable"}, null=True,
    )
