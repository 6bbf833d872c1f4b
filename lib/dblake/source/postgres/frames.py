"""From a run of raw pgoutput messages to landing rows, a whole piece at a time.

The stream's loop only appends bytes; everything that can be said of a row (its table, its transaction and its place
in it, whether it is the last) is worked out here over arrays, so that no Python runs per row but that append.
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


NO_ROWS = FRAMES.empty_table()


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of which a run sees the end, or a part: ``number`` is that of its first message in the run."""

    lsn: int
    txid: int
    committed_at: int
    number: int = 0


@dataclass(slots=True)
class Run:
    """Messages in log order. A Truncate names one table.

    ``begins`` has the Begin message of each transaction and ``starts`` the index of its first message; what comes
    before the first start belongs to ``carried``, a transaction that began before the run. ``open`` is true while
    the last transaction's COMMIT has not come.
    """

    carried: Transaction | None = None
    messages: list[bytes] = field(default_factory=list)
    begins: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    open: bool = False

    def begin(self, payload: bytes) -> None:
        """Takes in a Begin message."""
        self.begins.append(payload)
        self.starts.append(len(self.messages))
        self.open = True

    def transactions(self, txid_near: int) -> Transactions:
        """All transactions of the run, ``carried`` first. ``txid_near`` is any 64-bit id of about the same time."""
        said = pgoutput.begins(self.begins)
        columns = [said["lsn"], pgoutput.widen(said["xid"].astype(np.int64), txid_near), said["committed_at"]]
        starts = self.starts
        number = 0
        if self.carried is not None:
            known = (self.carried.lsn, self.carried.txid, self.carried.committed_at)
            columns = [np.append(value, column) for value, column in zip(known, columns, strict=True)]
            starts, number = [0, *starts], self.carried.number
        lsn, txid, committed_at = (column.astype(np.int64) for column in columns)
        return Transactions(lsn, txid, committed_at, np.array([*starts, len(self.messages)]), number, self.open)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions of a run as columns; ``starts`` also has the end of the last one.

    ``number`` is that of the first one's first message, ``open`` tells whether the last one has yet to end.
    """

    lsn: np.ndarray
    txid: np.ndarray
    committed_at: np.ndarray
    starts: np.ndarray
    number: int
    open: bool

    @property
    def first_open(self) -> bool:
        """True if the first of them has yet to end."""
        return self.open and len(self.lsn) == 1

    def last(self) -> Transaction:
        """The last of them, as a run carries it that goes on from here."""
        count = int(self.starts[-1] - self.starts[-2])
        before = self.number if len(self.lsn) == 1 else 0
        return Transaction(int(self.lsn[-1]), int(self.txid[-1]), int(self.committed_at[-1]), before + count)


def frame(
    messages: list[bytes], transactions: Transactions, relations: Relations, incarnation: int, after: Position | None
) -> tuple[pa.Table, list[WatermarkSeen]]:
    """Landing rows and watermarks of a run. ``after`` drops what has landed before (see ResumePoint.landed)."""
    count = len(messages)
    if count == 0:
        return NO_ROWS, []
    payload = pa.array(messages, pa.binary())
    offsets = np.frombuffer(payload.buffers()[1], np.int32, count + 1)
    data = np.frombuffer(payload.buffers()[2], np.uint8)
    kinds = data[offsets[:-1]]
    txn = np.repeat(np.arange(len(transactions.lsn)), np.diff(transactions.starts))
    numbers = np.arange(count) - transactions.starts[txn]
    numbers[txn == 0] += transactions.number
    tables, schema_ids, which, captured, marks = _tables(relations, data, offsets, kinds)
    lsns = transactions.lsn[txn]
    if after is not None and after.incarnation == incarnation:
        fresh = (lsns > after.lsn) | ((lsns == after.lsn) & (numbers * 2 > after.seq))
        captured, marks = captured & fresh, marks & fresh
    seen = [
        _watermark(messages[i], Position(incarnation, int(lsns[i]), int(numbers[i]) * 2), transactions, int(txn[i]))
        for i in np.flatnonzero(marks)
    ]
    kept = np.flatnonzero(captured)
    if len(kept) == 0:
        return NO_ROWS, seen
    txn_kept = txn[kept]
    last = np.append(txn_kept[1:] != txn_kept[:-1], True)[: len(kept)]
    if transactions.open:
        last &= txn_kept != len(transactions.lsn) - 1
    rows = pa.table(
        [
            pa.repeat(pa.scalar(incarnation, pa.int64()), len(kept)),
            pa.array(lsns[kept]),
            pa.array(numbers[kept] * 2),
            pa.array([ROW, TRUNCATE]).take(pa.array((kinds[kept] == pgoutput.TRUNCATE).astype(np.int8))),
            tables.take(pa.array(which[kept])),
            schema_ids.take(pa.array(which[kept])),
            pa.array(transactions.txid[txn_kept]),
            pa.array(transactions.committed_at[txn_kept]).cast(FRAMES.field("committed_at").type),
            pa.array(last),
            pa.nulls(len(kept), pa.string()),
            pa.repeat(PGOUTPUT, len(kept)),
            payload if len(kept) == count else payload.take(pa.array(kept)),
        ],
        schema=FRAMES,
    )
    return rows, seen


def split(rows: pa.Table, lsn: int) -> tuple[pa.Table, pa.Table]:
    """Rows before the transaction at ``lsn``, which must be the last one, and its own."""
    place = int(np.searchsorted(rows["lsn"].to_numpy(), lsn))
    return rows.slice(0, place), rows.slice(place)


def as_last(row: pa.Table) -> pa.Table:
    """The same row, marked as the last of its transaction."""
    return row.set_column(row.schema.get_field_index("last_in_txn"), "last_in_txn", pa.array([True]))


def _tables(
    relations: Relations, data: np.ndarray, offsets: np.ndarray, kinds: np.ndarray
) -> tuple[pa.Array, pa.Array, np.ndarray, np.ndarray, np.ndarray]:
    """The tables that messages mean with their schema ids, and for each message which of them it means, whether it is
    captured and whether it updates the watermark table."""
    # The relation's number follows the message's letter, and in a Truncate also a count and the options.
    oids = _big_endian(data, offsets[:-1].astype(np.int64) + np.where(kinds == pgoutput.TRUNCATE, 6, 1))
    distinct, which = np.unique(oids, return_inverse=True)
    meant = [relations[int(oid)] for oid in distinct]
    names = pa.array([m.schema.table if m.schema else None for m in meant], pa.string())
    ids = pa.array([m.schema.schema_id if m.schema else None for m in meant], pa.string())
    captured = np.array([m.schema is not None for m in meant])[which]
    marks = np.array([m.is_watermark_table for m in meant])[which] & (kinds == pgoutput.UPDATE)
    return names, ids, which, captured, marks


def _big_endian(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    word = np.zeros(len(at), np.int64)
    for byte in range(4):
        word = (word << 8) | data[at + byte]
    return word


def _watermark(message: bytes, position: Position, transactions: Transactions, txn: int) -> WatermarkSeen:
    reader, value = pgoutput.watermark_row(message)
    return WatermarkSeen(reader, value, position, int(transactions.txid[txn]), int(transactions.committed_at[txn]))


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
