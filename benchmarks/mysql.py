"""Benchmark MariaDB or MySQL → landing beside the server's own programs and mysql-replication; no JVM.

Measures, on one data set: landing the log, beside ``mariadb-binlog --raw`` (``mysqlbinlog``), which only copies it, and
mysql-replication, which decodes it; decoding on one core; a dump, beside the command line client. ``./spark-submit.sh
benchmark --mysql`` runs it.
"""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from benchmarks import decode_binlog
from benchmarks.comparison import Comparison, Side
from benchmarks.mysql_database import OPTIONS, MysqlBench, require_clients
from benchmarks.process import ProcessResult
from benchmarks.progress import Progress
from tests.support.mysql import Flavour, MysqlServer

_LIBRARY_SECONDS = 10.0
_DECODED_ROWS = 100_000


def server(flavour: Flavour, folder: Path) -> MysqlServer:
    """Return an own server, not started. Raises ConfigError if a peer program is missing."""
    require_clients(flavour)
    return MysqlServer(flavour, folder / "server", *OPTIONS)


def version(server: MysqlServer) -> tuple[str, str]:
    """Return the product's name and version."""
    product = {"mysql": "MySQL", "mariadb": "MariaDB"}[server.flavour]
    return product, str(server.rows("SELECT version()")[0][0])


def measure(
    server: MysqlServer, folder: Path, rows: int, changes: int, rounds: int, progress: Progress
) -> list[Comparison]:
    """Return all comparisons; report each when it is complete."""
    comparisons: list[Comparison] = []

    def add(comparison: Comparison) -> Comparison:
        comparisons.append(comparison)
        progress.report(comparison)
        return comparison

    bench = MysqlBench(server, folder)
    progress.log(f"Filling a table of {rows:,} rows")
    bench.fill(rows)
    progress.log("Dump beside the command line client")
    add(_dump(bench, rounds))
    for rows_a_statement in (1, 100):
        progress.log(f"{changes:,} row changes, {rows_a_statement} a statement")
        bench.change(changes, rows_a_statement)
        progress.log("Capture beside the copy of the log")
        captured = add(_log(bench, changes, rounds, rows_a_statement))
        progress.log(f"mysql-replication for {_LIBRARY_SECONDS:.0f} s")
        add(_beside_library(bench, captured.ours, changes, rows_a_statement))
    progress.log("Decoding on one core beside mysql-replication")
    for comparison in decode_binlog.comparisons(_DECODED_ROWS):
        add(comparison)
    return comparisons


def _log(bench: MysqlBench, changes: int, rounds: int, rows_a_statement: int) -> Comparison:
    ours: list[ProcessResult] = []
    peers: list[ProcessResult] = []
    megabytes = bench.log_bytes() / 1e6
    for number in range(rounds):
        peers.append(bench.raw_log())
        ours.append(bench.capture(f"log_{rows_a_statement}_{number}", dump=False))
    landed = [json.loads(ran.output) for ran in ours]
    statements = changes // rows_a_statement
    if (fewest := min(fact["rows"] for fact in landed)) < statements:
        raise RuntimeError(f"capture landed {fewest} rows for {statements} statements")
    return Comparison(
        f"capture → landing, {rows_a_statement} a statement, {megabytes:,.0f} MB of log",
        Side("capture, from opening the log to the last commit", changes, tuple(fact["seconds"] for fact in landed),
             tuple(ran.cpu_seconds for ran in ours)),
        Side("mariadb-binlog --raw" if bench.server.flavour == "mariadb" else "mysqlbinlog --raw", changes,
             tuple(ran.seconds for ran in peers), tuple(ran.cpu_seconds for ran in peers)),
        least=0.3,
        also=(Side("capture, the whole command with Python's start", changes, tuple(ran.seconds for ran in ours)),),
    )


def _beside_library(bench: MysqlBench, ours: Side, changes: int, rows_a_statement: int) -> Comparison:
    """Compare capture with mysql-replication, which decodes the same log for ``_LIBRARY_SECONDS``."""
    server = bench.server
    # With is_mariadb it would begin with the oldest file; the decoded events are the same.
    stream = BinLogStreamReader(
        {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}, server_id=4711,
        log_file=bench.first_file, log_pos=4, resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    count, began, cpu = 0, time.perf_counter(), time.process_time()
    try:
        while count < changes and time.perf_counter() < began + _LIBRARY_SECONDS:
            count += sum(len(event.rows) for event in islice(stream, 10))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    finally:
        stream.close()
    return Comparison(
        f"capture → landing, {rows_a_statement} a statement, beside a reader that decodes",
        ours, Side(f"mysql-replication for {_LIBRARY_SECONDS:.0f} s", count, (seconds,), (cpu,)), least=50,
    )


def _dump(bench: MysqlBench, rounds: int) -> Comparison:
    """Compare dumps. The log contains only watermarks, since no client writes."""
    ours: list[ProcessResult] = []
    peers: list[ProcessResult] = []
    dumps: list[float] = []
    for number in range(rounds):
        peers.append(bench.quick_client())
        ours.append(bench.capture(f"dump_{number}", dump=True))
        dumps.append(bench.dump_seconds(f"dump_{number}"))
    return Comparison(
        "dump → landing",
        Side("dump, from its first chunk until its last window has landed", bench.rows, tuple(dumps),
             tuple(ran.cpu_seconds for ran in ours)),
        Side("mariadb --quick to a pipe", bench.rows, tuple(ran.seconds for ran in peers),
             tuple(ran.cpu_seconds for ran in peers)),
        least=0.5,
        also=(Side("capture, the whole command with Python's start", bench.rows, tuple(ran.seconds for ran in ours)),),
    )
