"""From a run of raw pgoutput messages to landing rows, a whole piece at a time.

The stream's loop only appends bytes; everything that can be said of a row (its table, its place in its transaction,
whether it is the last) is worked out here over arrays, so that no Python runs per row but that append.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.source import WatermarkSeen
from dblake.landing.columns import FRAMES, JSON, PGOUTPUT, ROW, SCHEMA, TRUNCATE
from dblake.source.postgres import pgoutput
from dblake.source.postgres.relations import Relations


@dataclass(slots=True)
class Transaction:
    """One transaction's share of a run of messages: ``start`` is its first message's index in the run,
    ``number`` that message's number within the transaction."""

    lsn: int
    txid: int
    committed_at: int
    start: int
    number: int = 0
    complete: bool = False


@dataclass(slots=True)
class Run:
    """Messages in log order with the transactions they belong to. A Truncate names one table."""

    messages: list[bytes] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)


def frame(
    run: Run, relations: Relations, incarnation: int, after: Position | None
) -> tuple[pa.Table, list[WatermarkSeen]]:
    """Landing rows and watermarks of a run. ``after`` drops what has landed before (see ResumePoint.landed)."""
    count = len(run.messages)
    if count == 0:
        return FRAMES.empty_table(), []
    payload = pa.array(run.messages, pa.binary())
    offsets = np.frombuffer(payload.buffers()[1], np.int32, count + 1)
    data = np.frombuffer(payload.buffers()[2], np.uint8)
    kinds = data[offsets[:-1]]
    starts = np.array([t.start for t in run.transactions] + [count])
    txn = np.repeat(np.arange(len(run.transactions)), np.diff(starts))
    numbers = np.arange(count) - starts[txn] + np.array([t.number for t in run.transactions])[txn]
    tables, schema_ids, captured, marks = _tables(relations, data, offsets, kinds)
    lsns = np.array([t.lsn for t in run.transactions], np.int64)[txn]
    if after is not None and after.incarnation == incarnation:
        fresh = (lsns > after.lsn) | ((lsns == after.lsn) & (numbers * 2 > after.seq))
        captured, marks = captured & fresh, marks & fresh
    kept = np.flatnonzero(captured)
    txn_kept = txn[kept]
    complete = np.array([t.complete for t in run.transactions])
    last = np.append(txn_kept[1:] != txn_kept[:-1], True) & complete[txn_kept] if len(kept) else np.zeros(0, bool)
    rows = pa.table(
        [
            pa.repeat(pa.scalar(incarnation, pa.int64()), len(kept)),
            pa.array(lsns[kept]),
            pa.array(numbers[kept] * 2),
            pa.array([ROW, TRUNCATE]).take(pa.array((kinds[kept] == pgoutput.TRUNCATE).astype(np.int8))),
            tables.take(pa.array(kept)),
            schema_ids.take(pa.array(kept)),
            pa.array(np.array([t.txid for t in run.transactions], np.int64)[txn_kept]),
            pa.array(np.array([t.committed_at for t in run.transactions], np.int64)[txn_kept]).cast(
                FRAMES.field("committed_at").type
            ),
            pa.array(last),
            pa.nulls(len(kept), pa.string()),
            pa.repeat(PGOUTPUT, len(kept)),
            payload if len(kept) == count else payload.take(pa.array(kept)),
        ],
        schema=FRAMES,
    )
    seen = [_watermark(run, int(i), int(txn[i]), int(numbers[i]), incarnation) for i in np.flatnonzero(marks)]
    return rows, seen


def as_last(row: pa.Table) -> pa.Table:
    """The same row, marked as the last of its transaction."""
    return row.set_column(row.schema.get_field_index("last_in_txn"), "last_in_txn", pa.array([True]))


def _tables(
    relations: Relations, data: np.ndarray, offsets: np.ndarray, kinds: np.ndarray
) -> tuple[pa.Array, pa.Array, np.ndarray, np.ndarray]:
    """For each message its table and schema id, whether it is captured, and whether it updates the watermark table."""
    # The relation's number follows the message's letter, and in a Truncate also a count and the options.
    oids = _big_endian(data, offsets[:-1].astype(np.int64) + np.where(kinds == pgoutput.TRUNCATE, 6, 1))
    distinct, which = np.unique(oids, return_inverse=True)
    meant = [relations[int(oid)] for oid in distinct]
    names = pa.array([m.schema.table if m.schema else None for m in meant], pa.string())
    ids = pa.array([m.schema.schema_id if m.schema else None for m in meant], pa.string())
    captured = np.array([m.schema is not None for m in meant])[which]
    marks = np.array([m.is_watermark_table for m in meant])[which] & (kinds == pgoutput.UPDATE)
    chosen = pa.array(which)
    return names.take(chosen), ids.take(chosen), captured, marks


def _big_endian(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    word = np.zeros(len(at), np.int64)
    for byte in range(4):
        word = (word << 8) | data[at + byte]
    return word


def _watermark(run: Run, index: int, txn: int, number: int, incarnation: int) -> WatermarkSeen:
    transaction = run.transactions[txn]
    reader, value = pgoutput.watermark_row(run.messages[index])
    return WatermarkSeen(
        reader, value, Position(incarnation, transaction.lsn, number * 2), transaction.txid, transaction.committed_at
    )


def schema_row(table: TableSchema, position: Position, transaction: Transaction) -> pa.Table:
    """The landing row that says how ``table`` looks from ``position`` on."""
    return pa.Table.from_pylist(
        [
            {
                "incarnation": position.incarnation,
                "lsn": position.lsn,
                "seq": position.seq,
                "kind": SCHEMA,
                "table": table.table,
                "schema_id": table.schema_id,
                "txid": transaction.txid,
                "committed_at": transaction.committed_at,
                "last_in_txn": False,
                "format": JSON,
                "payload": table.to_json().encode(),
            }
        ],
        schema=FRAMES,
    )
