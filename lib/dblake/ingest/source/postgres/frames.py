"""From a run of raw pgoutput messages to landing rows, many messages at a time.

Guarantee: each captured row is framed once, at the position that its transaction's Begin message gives. The stream's
read loop only appends bytes; table, transaction, sequence number and ``last_in_txn`` of each row are computed here over
arrays, so that no other Python runs per row. Cutting pieces at transaction ends is for ``pieces``.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.core.source import WatermarkSeen
from dblake.ingest.source.postgres import pgoutput
from dblake.ingest.source.postgres.lsn import widen
from dblake.ingest.source.postgres.relations import Numbers, Relations, ResolvedTable
from dblake.landing.columns import CAPTURED, DDL, JSON, PGOUTPUT, ROW, SCHEMA, TRUNCATE
from dblake.payloads.formats import pgoutput as letters

NO_ROWS = CAPTURED.empty_table()


@dataclass(frozen=True, slots=True)
class CarriedTransaction:
    """A transaction that reaches into a run; ``number`` is its next message's number in the transaction."""

    lsn: int
    txid: int
    committed_at: int
    number: int = 0


@dataclass(slots=True)
class MessageRun:
    """Messages in log order, each Truncate split by table.

    ``begins`` holds the Begin message of each transaction and ``starts`` the index of its first message. Messages
    before the first start belong to ``carried``, a transaction that began before the run. ``open`` is true while the
    last transaction's Commit is outstanding.
    """

    carried: CarriedTransaction | None = None
    messages: list[bytes] = field(default_factory=list)
    begins: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    open: bool = False

    def begin(self, payload: bytes) -> None:
        """Append a Begin message."""
        self.begins.append(payload)
        self.starts.append(len(self.messages))
        self.open = True

    def cut(self, index: int) -> tuple[MessageRun, MessageRun]:
        """Return the messages before ``index`` and the rest, whose ``carried`` the caller has to set."""
        begun = bisect_right(self.starts, index)
        head = MessageRun(self.carried, self.messages[:index], self.begins[:begun], self.starts[:begun], open=True)
        starts = [start - index for start in self.starts[begun:]]
        return head, MessageRun(None, self.messages[index:], self.begins[begun:], starts, self.open)

    def transactions(self, near_txid: int) -> TransactionColumns:
        """Return the run's transactions, ``carried`` first. ``near_txid`` is a 64-bit id of about the same time."""
        begins = pgoutput.parse_begins(self.begins)
        columns = [begins["lsn"], widen(begins["xid"].astype(np.int64), near_txid), begins["committed_at"]]
        starts = self.starts
        number = 0
        if self.carried is not None:
            carried = (self.carried.lsn, self.carried.txid, self.carried.committed_at)
            columns = [np.append(value, column) for value, column in zip(carried, columns, strict=True)]
            starts, number = [0, *starts], self.carried.number
        lsn, txid, committed_at = (column.astype(np.int64) for column in columns)
        return TransactionColumns(lsn, txid, committed_at, np.array([*starts, len(self.messages)]), number, self.open)


@dataclass(frozen=True, slots=True)
class TransactionColumns:
    """The transactions of a run as columns. ``starts`` has one entry more: the end of the last transaction.

    ``number`` is the number of the first transaction's first message; ``open`` is true if the last one has no Commit.
    """

    lsn: np.ndarray
    txid: np.ndarray
    committed_at: np.ndarray
    starts: np.ndarray
    number: int
    open: bool

    @property
    def is_first_open(self) -> bool:
        """True if the first transaction has no Commit yet."""
        return self.open and len(self.lsn) == 1

    def last(self) -> CarriedTransaction:
        """Return the last transaction as the next run carries it."""
        count = int(self.starts[-1] - self.starts[-2])
        carried = self.number if len(self.lsn) == 1 else 0
        return CarriedTransaction(int(self.lsn[-1]), int(self.txid[-1]), int(self.committed_at[-1]), carried + count)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in one buffer, with the numbers of their tables."""

    payload: pa.BinaryArray
    numbers: Numbers

    @classmethod
    def of(cls, messages: list[bytes], tables: Relations) -> Messages:
        """Copy messages into one buffer and number their tables."""
        payload = pa.array(messages, pa.binary())
        return cls(payload, tables.table_numbers(payload))

    def cut(self, index: int) -> tuple[Messages, Messages]:
        """Return the messages before ``index`` and the rest."""
        return (Messages(self.payload.slice(0, index), self.numbers[:index]),
                Messages(self.payload.slice(index), self.numbers[index:]))

    def kinds(self) -> npt.NDArray[np.uint8]:
        """Return the kind letter of each message."""
        _, offsets, data = self.payload.buffers()
        starts = np.frombuffer(offsets, np.int32)[self.payload.offset :][: len(self.payload)]
        return np.frombuffer(data, np.uint8)[starts]


def frame(
    messages: Messages, transactions: TransactionColumns, tables: Relations, incarnation: int,
    after: Position | None,
) -> tuple[pa.Table, list[WatermarkSeen]]:
    """Return the landing rows (CAPTURED columns) and watermarks of a run.

    ``after`` skips rows that have landed before (see ``ResumePoint.landed``).
    """
    count = len(messages.numbers)
    if count == 0:
        return NO_ROWS, []
    payload, kinds = messages.payload, messages.kinds()
    txn = np.repeat(np.arange(len(transactions.lsn)), np.diff(transactions.starts))
    numbers = np.arange(count) - transactions.starts[txn]
    numbers[txn == 0] += transactions.number
    names, schema_ids, which, captured, marks = _resolve_tables(tables, messages.numbers, kinds)
    lsns = transactions.lsn[txn]
    if after is not None and after.incarnation == incarnation:
        fresh = (lsns > after.lsn) | ((lsns == after.lsn) & (numbers * 2 > after.seq))
        captured, marks = captured & fresh, marks & fresh
    watermarks = [
        WatermarkSeen(
            *pgoutput.parse_watermark(payload[i].as_py()), Position(incarnation, int(lsns[i]), int(numbers[i]) * 2),
            int(transactions.txid[txn[i]]), int(transactions.committed_at[txn[i]]),
        )
        for i in np.flatnonzero(marks)
    ]
    kept = np.flatnonzero(captured)
    if len(kept) == 0:
        return NO_ROWS, watermarks
    txn_kept = txn[kept]
    last = np.append(txn_kept[1:] != txn_kept[:-1], True)[: len(kept)]
    if transactions.open:
        last &= txn_kept != len(transactions.lsn) - 1
    rows = pa.table(
        [
            pa.repeat(pa.scalar(incarnation, pa.int64()), len(kept)),
            pa.array(lsns[kept]),
            pa.array(numbers[kept] * 2),
            pa.array([ROW, TRUNCATE]).take(pa.array((kinds[kept] == letters.TRUNCATE).astype(np.int8))),
            names.take(pa.array(which[kept])),
            schema_ids.take(pa.array(which[kept])),
            pa.array(transactions.txid[txn_kept]),
            pa.array(transactions.committed_at[txn_kept]).cast(CAPTURED.field("committed_at").type),
            pa.array(last),
            pa.nulls(len(kept), pa.string()),
            pa.repeat(PGOUTPUT, len(kept)),
            payload if len(kept) == count else payload.take(pa.array(kept)),
        ],
        schema=CAPTURED,
    )
    return rows, watermarks


def split_last_transaction(rows: pa.Table, lsn: int) -> tuple[pa.Table, pa.Table]:
    """Split CAPTURED rows before the transaction at ``lsn``, which must be the last one of ``rows`` or after it."""
    index = int(np.searchsorted(rows["lsn"].to_numpy(), lsn))
    return rows.slice(0, index), rows.slice(index)


def mark_last(row: pa.Table) -> pa.Table:
    """Return the same row as the last of its transaction."""
    return row.set_column(row.schema.get_field_index("last_in_txn"), "last_in_txn", pa.array([True]))


def _resolve_tables(
    tables: Relations, numbers: Numbers, kinds: npt.NDArray[np.uint8]
) -> tuple[pa.Array, pa.Array, np.ndarray, np.ndarray, np.ndarray]:
    """Return names and schema ids of the distinct tables, and three arrays with one element per message.

    The arrays: which of the tables it changes, whether that is captured, and whether it updates the watermark table.
    """
    distinct, which = np.unique(numbers, return_inverse=True)
    resolved = [tables[int(number)] for number in distinct]
    tables.rejected.update(r.rejected for r in resolved if r.rejected)
    names = pa.array([r.schema.table if r.schema else None for r in resolved], pa.string())
    ids = pa.array([r.schema.schema_id if r.schema else None for r in resolved], pa.string())
    captured = np.array([r.schema is not None for r in resolved])[which]
    marks = np.array([r.is_watermark_table for r in resolved])[which] & (kinds == letters.UPDATE)
    return names, ids, which, captured, marks


def build_schema_row(table: ResolvedTable, position: Position, transaction: CarriedTransaction) -> pa.Table:
    """Return the landing row of kind ``schema`` that describes a captured table from ``position`` on."""
    schema = table.schema
    assert schema is not None, "the caller checked"
    facts = {"body": table.body} | ({"renamed": True} if table.is_renamed else {}) if table.body else {}
    payload = json.dumps(json.loads(schema.to_json()) | facts, ensure_ascii=False, separators=(",", ":")).encode()
    return _build_json_rows(SCHEMA, {schema.table: payload}, position, transaction, schema.schema_id)


def build_statement_rows(
    payloads: Mapping[str, bytes], position: Position, transaction: CarriedTransaction
) -> pa.Table:
    """Return landing rows of kind ``ddl``, one by table, for a statement executed before ``position``."""
    return _build_json_rows(DDL, payloads, position, transaction)


def _build_json_rows(
    kind: str, payloads: Mapping[str, bytes], position: Position, transaction: CarriedTransaction,
    schema_id: str | None = None,
) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "incarnation": position.incarnation,
                "lsn": position.lsn,
                "seq": position.seq,
                "kind": kind,
                "table": table,
                "schema_id": schema_id,
                "txid": transaction.txid,
                "committed_at": transaction.committed_at,
                "last_in_txn": False,
                "format": JSON,
                "payload": payload,
            }
            for table, payload in payloads.items()
        ],
        schema=CAPTURED,
    )
