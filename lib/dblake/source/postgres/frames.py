"""From a run of raw messages of an output plugin to landing rows, a whole piece at a time.

The stream's loop only appends bytes; everything that can be said of a row (its table, its transaction and its place
in it, whether it is the last) is worked out here over arrays, so that no Python runs per row but that append.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.core.source import WatermarkSeen
from dblake.landing.columns import CAPTURED, DDL, JSON, ROW, SCHEMA, TRUNCATE
from dblake.source.postgres import pgoutput
from dblake.source.postgres.relations import Numbers, Tables
from dblake.source.postgres.settings import PostgresSettings


class Plugin(Protocol):
    """What is read of an output plugin's messages: one letter each, the same ones; ``LETTER`` is where it stands."""

    FORMAT: str
    LETTER: int

    def options(self, settings: PostgresSettings) -> Sequence[dict[str, str]]:
        """What to start the stream with; others to try if the server's version does not know the first."""

    def begins(self, payloads: Sequence[bytes]) -> dict[str, npt.NDArray[np.int64]]:
        """Of messages that begin transactions: the commit's ``lsn`` and ``committed_at``, the 32-bit ``xid``."""

    def commit_end(self, payload: bytes) -> int:
        """Of a message that ends one: where the log goes on."""

    def truncates(self, payload: bytes) -> list[bytes]:
        """A Truncate as one message for each table."""

    def watermark_row(self, payload: bytes) -> tuple[int, str]:
        """The new row of an update of the watermark table."""


NO_ROWS = CAPTURED.empty_table()


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

    def cut(self, number: int) -> tuple[Run, Run]:
        """What comes before a message, and the rest, which goes on in a transaction that it does not know."""
        begun = bisect_right(self.starts, number)
        before = Run(self.carried, self.messages[:number], self.begins[:begun], self.starts[:begun], open=True)
        starts = [start - number for start in self.starts[begun:]]
        return before, Run(None, self.messages[number:], self.begins[begun:], starts, self.open)

    def transactions(self, plugin: Plugin, txid_near: int) -> Transactions:
        """All transactions of the run, ``carried`` first. ``txid_near`` is any 64-bit id of about the same time."""
        said = plugin.begins(self.begins)
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


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as one buffer, and the numbers that their tables go by."""

    payload: pa.BinaryArray
    numbers: Numbers

    @classmethod
    def of(cls, messages: list[bytes], tables: Tables) -> Messages:
        """Takes in messages."""
        payload = pa.array(messages, pa.binary())
        return cls(payload, tables.numbers(payload))

    def cut(self, number: int) -> tuple[Messages, Messages]:
        """Those before one, and the rest."""
        return (Messages(self.payload.slice(0, number), self.numbers[:number]),
                Messages(self.payload.slice(number), self.numbers[number:]))

    def letters(self, plugin: Plugin) -> npt.NDArray[np.uint8]:
        """The letter of each."""
        _, offsets, data = self.payload.buffers()
        starts = np.frombuffer(offsets, np.int32)[self.payload.offset :][: len(self.payload)]
        return np.frombuffer(data, np.uint8)[starts + plugin.LETTER]


def frame(
    messages: Messages, plugin: Plugin, transactions: Transactions, tables: Tables, incarnation: int,
    after: Position | None,
) -> tuple[pa.Table, list[WatermarkSeen]]:
    """Landing rows and watermarks of a run. ``after`` drops what has landed before (see ResumePoint.landed)."""
    count = len(messages.numbers)
    if count == 0:
        return NO_ROWS, []
    payload, kinds = messages.payload, messages.letters(plugin)
    txn = np.repeat(np.arange(len(transactions.lsn)), np.diff(transactions.starts))
    numbers = np.arange(count) - transactions.starts[txn]
    numbers[txn == 0] += transactions.number
    names, schema_ids, which, captured, marks = _tables(tables, messages.numbers, kinds)
    lsns = transactions.lsn[txn]
    if after is not None and after.incarnation == incarnation:
        fresh = (lsns > after.lsn) | ((lsns == after.lsn) & (numbers * 2 > after.seq))
        captured, marks = captured & fresh, marks & fresh
    seen = [
        WatermarkSeen(
            *plugin.watermark_row(payload[i].as_py()), Position(incarnation, int(lsns[i]), int(numbers[i]) * 2),
            int(transactions.txid[txn[i]]), int(transactions.committed_at[txn[i]]),
        )
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
            names.take(pa.array(which[kept])),
            schema_ids.take(pa.array(which[kept])),
            pa.array(transactions.txid[txn_kept]),
            pa.array(transactions.committed_at[txn_kept]).cast(CAPTURED.field("committed_at").type),
            pa.array(last),
            pa.nulls(len(kept), pa.string()),
            pa.repeat(plugin.FORMAT, len(kept)),
            payload if len(kept) == count else payload.take(pa.array(kept)),
        ],
        schema=CAPTURED,
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
    tables: Tables, numbers: Numbers, kinds: npt.NDArray[np.uint8]
) -> tuple[pa.Array, pa.Array, np.ndarray, np.ndarray, np.ndarray]:
    """The tables that messages mean with their schema ids, and for each message which of them it means, whether it is
    captured and whether it updates the watermark table."""
    distinct, which = np.unique(numbers, return_inverse=True)
    meant = [tables[int(number)] for number in distinct]
    names = pa.array([m.schema.table if m.schema else None for m in meant], pa.string())
    ids = pa.array([m.schema.schema_id if m.schema else None for m in meant], pa.string())
    captured = np.array([m.schema is not None for m in meant])[which]
    marks = np.array([m.is_watermark_table for m in meant])[which] & (kinds == pgoutput.UPDATE)
    return names, ids, which, captured, marks


def schema_row(table: TableSchema, position: Position, transaction: Transaction) -> pa.Table:
    """The landing row that says how ``table`` looks from ``position`` on."""
    return _said(SCHEMA, {table.table: table.to_json().encode()}, position, transaction, table.schema_id)


def statement_rows(said: Mapping[str, bytes], position: Position, transaction: Transaction) -> pa.Table:
    """The landing rows that say, table by table, what a statement did to tables before ``position``."""
    return _said(DDL, said, position, transaction)


def _said(
    kind: str, payloads: Mapping[str, bytes], position: Position, transaction: Transaction,
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
