"""Decoding speed of MySQL's formats on one core, beside mysql-replication's row decoder on the same events.

``PYTHONPATH=lib:. python benchmarks/decode_binlog.py 100000`` prints row changes per second of processor time of both,
ours with keys and images made, and their ratio.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from dblake.core.schema import Column, TableSchema
from dblake.decode.batch import decode
from dblake.decode.columns import DECODER_INPUT
from dblake.landing.columns import BINLOG_ROWS, CHUNK, MYSQL_ROWS, ROW
from tests.support.binlog_encode import UPDATE, WRITE, result_row, rows_event
from tests.support.mysql_replication import their_rows, their_table

SCHEMA = TableSchema(
    "shop.orders",
    (
        Column("id", "bigint unsigned", False, 1), Column("customer", "int"),
        Column("email", "varchar(120) character set utf8mb4"),
        Column("state", "enum('new','paid','sent') character set latin1"),
        Column("total", "decimal(10,2)"), Column("weight", "double"), Column("placed", "datetime(6)"),
        Column("changed", "timestamp"), Column("gift", "tinyint"), Column("note", "text character set utf8mb4"),
    ),
)
TYPES = [column.type for column in SCHEMA.columns]
REPEAT = 3


def rows(count: int) -> list[list[str | None]]:
    """Rows of a shop."""
    draw = random.Random(1)
    return [
        [str(n), str(draw.randint(1, 99_999)), f"customer{n}@example.org", draw.choice(["new", "paid", "sent"]),
         f"{draw.randint(-9_999_999, 9_999_999)}.{draw.randint(0, 99):02d}", repr(draw.random()),
         f"2026-01-02 03:04:{n % 60:02d}.{draw.randint(0, 999_999):06d}", f"2026-01-02 03:04:{n % 60:02d}",
         str(draw.randint(-1, 1)), "a note of some length, with ümläuts" if n % 3 else None]
        for n in range(count)
    ]


def batch_of(kind: str, payload_format: str, payloads: Sequence[bytes]) -> pa.RecordBatch:
    """Landing rows with those payloads."""
    count = len(payloads)
    same = {
        "batch": pa.scalar(1, pa.int64()), "incarnation": pa.scalar(1, pa.int64()), "seq": pa.scalar(0, pa.int64()),
        "kind": kind, "table": SCHEMA.table, "schema_id": SCHEMA.schema_id, "txid": pa.scalar(None, pa.int64()),
        "committed_at": pa.scalar(0, pa.timestamp("us", tz="UTC")), "last_in_txn": True,
        "chunk_id": "c1" if kind == CHUNK else pa.scalar(None, pa.string()), "format": payload_format,
    }
    columns = {name: pa.repeat(value, count) for name, value in same.items()}
    columns |= {"lsn": pa.array(range(count), pa.int64()), "payload": pa.array(payloads, pa.binary())}
    return pa.RecordBatch.from_arrays([columns[n] for n in DECODER_INPUT.names], schema=DECODER_INPUT)


def seconds(work: Callable[[], object], repeat: int = REPEAT) -> float:
    """Processor time, the best of a few runs: others may use the machine at the same time."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def measured(batch: pa.RecordBatch, changes: int, size: int) -> float:
    """Row changes per second, decoded in batches of so many landing rows."""
    schemas = {SCHEMA.schema_id: SCHEMA}
    parts = [batch.slice(at, size) for at in range(0, len(batch), size)]
    return changes / seconds(lambda: [decode(part, schemas) for part in parts])


def main() -> None:
    """Prints one line per case."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    pa.set_cpu_count(1)
    every = rows(count)
    tables = their_table(SCHEMA)
    for per_event in (1, 10, 100):
        for name, number in (("inserts", WRITE), ("updates", UPDATE)):
            groups = [every[at : at + per_event] for at in range(0, count, per_event)]
            if number == UPDATE:
                groups = [[image for row in group for image in (row, [*row[:8], "5", row[9]])] for group in groups]
            events = [rows_event(number, TYPES, group) for group in groups]
            few = events[: max(2_000 // per_event, 1)]
            theirs = len(few) * per_event / seconds(lambda few=few: [their_rows(e, tables) for e in few], 1)
            ours = measured(batch_of(ROW, BINLOG_ROWS, events), count, 10_000)
            print(f"{name}, {per_event:3d} rows an event {ours:12,.0f} rows/s   mysql-replication {theirs:9,.0f}   "
                  f"ratio {ours / theirs:5.1f}")
    lines = [result_row([None if v is None else v.encode() for v in row]) for row in every]
    print(f"result rows of chunks     {measured(batch_of(CHUNK, MYSQL_ROWS, lines), count, 10_000):12,.0f} rows/s")


if __name__ == "__main__":
    main()
