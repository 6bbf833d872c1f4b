"""Benchmark decoding on one core: pgoutput messages and COPY lines of five columns, beside a row-by-row decoder.

``PYTHONPATH=lib:. python benchmarks/decode.py 400000`` prints the rows per second of both, and their ratio.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.memory.encode import copy_line, pgoutput_insert, pgoutput_update
from dblake.landing.columns import CHUNK, COPY, PGOUTPUT, ROW
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import DECODED, DECODER_INPUT
from tests.model.decoder import decode_row

SCHEMA = TableSchema(
    "public.pgbench_history",
    (
        Column("hid", "bigint", False, 1), Column("aid", "integer"), Column("delta", "integer"),
        Column("mtime", "timestamp without time zone"), Column("filler", "character(22)"),
    ),
)
REPEAT = 3


def rows(count: int) -> Iterator[list[str | None]]:
    """Yield rows as pgbench writes them."""
    draw = random.Random(1)
    for n in range(count):
        yield [str(n), str(draw.randint(1, 99_999)), str(draw.randint(-5_000, 5_000)), "2026-01-02 03:04:05.678901",
               "x" * 22 if n % 2 else None]


def batch_of(kind: str, payload_format: str, payloads: list[bytes]) -> pa.RecordBatch:
    """Return landing rows with these payloads."""
    count = len(payloads)
    columns = {
        "batch": pa.repeat(pa.scalar(1, pa.int64()), count),
        "incarnation": pa.repeat(pa.scalar(1, pa.int64()), count),
        "lsn": pa.array([n // 7 for n in range(count)], pa.int64()),
        "seq": pa.array([n % 7 * 2 for n in range(count)], pa.int64()),
        "kind": pa.repeat(kind, count), "table": pa.repeat(SCHEMA.table, count),
        "schema_id": pa.repeat(SCHEMA.schema_id, count), "txid": pa.array([n // 7 for n in range(count)], pa.int64()),
        "committed_at": pa.repeat(pa.scalar(0, pa.int64()), count).cast(pa.timestamp("us", tz="UTC")),
        "last_in_txn": pa.array([n % 7 == 6 for n in range(count)]),
        "chunk_id": pa.repeat("c1", count) if kind == CHUNK else pa.nulls(count, pa.string()),
        "format": pa.repeat(payload_format, count), "payload": pa.array(payloads, pa.binary()),
    }
    return pa.RecordBatch.from_arrays([columns[n] for n in DECODER_INPUT.names], schema=DECODER_INPUT)


def best_seconds(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of REPEAT runs."""
    best = float("inf")
    for _ in range(REPEAT):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def row_by_row(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Decode with the model, to the same columns."""
    decoded = [event for row in batch.to_pylist() for event in decode_row(row, SCHEMA)]
    return pa.RecordBatch.from_pylist(decoded, schema=DECODED)


def main() -> None:
    """Print one line per case."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    pa.set_cpu_count(1)
    every = list(rows(count))
    cases = {
        "pgoutput inserts": (ROW, PGOUTPUT, [pgoutput_insert(1, row) for row in every]),
        "pgoutput updates, full identity": (ROW, PGOUTPUT, [pgoutput_update(1, row, row, "O") for row in every]),
        "COPY lines": (CHUNK, COPY, [copy_line(row) for row in every]),
        "COPY lines with escapes": (CHUNK, COPY, [copy_line([*row[:4], "\\x0123456789"]) for row in every]),
    }
    for name, (kind, payload_format, payloads) in cases.items():
        batch = batch_of(kind, payload_format, payloads)
        whole = measure_rate(batch, len(batch))
        by_tens = measure_rate(batch, 10_000)
        few = batch.slice(0, 20_000)
        slow = len(few) / best_seconds(partial(row_by_row, few))
        print(f"{name:34s} {whole:12,.0f} rows/s   in batches of 10,000 {by_tens:12,.0f}   "
              f"row by row {slow:9,.0f}   ratio {whole / slow:5.1f}")


def measure_rate(batch: pa.RecordBatch, size: int) -> float:
    """Return the rows per second of decoding in batches of ``size`` rows."""
    schemas = {SCHEMA.schema_id: SCHEMA}
    parts = [batch.slice(at, size) for at in range(0, len(batch), size)]
    return len(batch) / best_seconds(lambda: [decode(part, schemas) for part in parts])


if __name__ == "__main__":
    main()
