"""A database in the memory of one process: tables, transactions and their log.

It has the properties of PostgreSQL that break chunk windows: a commit is in the log before it is visible, with its rows
locked until then; transaction ids do not follow commit order; updates omit TOASTed values that they did not change.
Guarantee: equal calls give equal logs. No call waits for a lock: a conflicting write raises ValueError at once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dblake.base.core.names import qualified
from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.source.memory.encode import (
    UNCHANGED,
    Value,
    pgoutput_delete,
    pgoutput_insert,
    pgoutput_truncate,
    pgoutput_update,
)
from dblake.ingest.source.memory.tables import Key, LoggedChange, LoggedTransaction, MemorySlot, MemoryTable, Row

_WATERMARK_ROWS = 9
_MICROSECONDS_OF_2024 = 1_704_067_200_000_000


@dataclass(frozen=True)
class SnapshotTable:
    """A table in one snapshot."""

    schema: TableSchema
    rows: Sequence[tuple[Key, Row]]
    snapshot: str
    watermarks: Mapping[str, str | None]
    locked: bool


class MemoryDatabase:
    """The server. Thread-safe; ``changed`` is notified when the log grows and when connections are cut."""

    def __init__(self, *, server: str = "memory", first_txid: int = 5 << 32, watermark_schema: str = "dblake") -> None:
        self.server, self.life = server, "1"
        self.watermark_table = qualified(watermark_schema, "watermark")
        self.changed = threading.Condition()
        self.log: list[LoggedTransaction] = []
        self.slots: dict[str, MemorySlot] = {}
        self.connections = 1
        self.end = 0x1000
        self._tables: dict[str, MemoryTable] = {}
        self._running: list[MemoryTransaction] = []
        self._next_txid, self._last_ended = first_txid, first_txid - 1
        self._next_row = 0
        self._lagging: dict[str, SnapshotTable] | None = None
        watermark = (Column("id", "integer", False, 1), Column("value", "character varying(36)"))
        self.create_table(TableSchema(self.watermark_table, watermark))
        with self.begin() as setup:
            for number in range(_WATERMARK_ROWS):
                setup.insert(self.watermark_table, {"id": str(number), "value": ""})
        self.log.clear()

    # -- tables ------------------------------------------------------------------------------------------------------

    def create_table(self, schema: TableSchema, *, toasted: Sequence[str] = ()) -> None:
        """Create a table. Updates send ``toasted`` columns only if they set them."""
        with self.changed:
            self._tables[schema.table] = MemoryTable(16384 + len(self._tables), schema, frozenset(toasted))

    def alter_table(self, schema: TableSchema, defaults: Row | None = None) -> None:
        """Change a table's columns; existing rows get new ones' defaults. Not logged. Raises ValueError if locked."""
        with self.changed:
            table = self._tables[schema.table]
            if any(key[0] == schema.table for txn in self._running for key in txn.writes):
                raise ValueError(f"table {schema.table} is locked by a transaction")
            table.schema = schema
            table.defaults |= defaults or {}
            table.rows = {key: table.full(row) for key, row in table.rows.items()}

    def schemas(self) -> list[TableSchema]:
        """Return all schemas ordered by name, without the watermark table."""
        with self.changed:
            return [t.schema for name, t in sorted(self._tables.items()) if name != self.watermark_table]

    def table(self, name: str) -> MemoryTable:
        """Return a table. Raises KeyError if there is none of that name."""
        return self._tables[name]

    def rows(self, name: str) -> list[Row]:
        """Return the visible rows in key order."""
        with self.changed:
            return [dict(row) for _, row in self._see(name).rows]

    # -- transactions ------------------------------------------------------------------------------------------------

    def begin(self) -> MemoryTransaction:
        """Begin a transaction; its first change assigns its id."""
        return MemoryTransaction(self)

    def snapshot(self) -> str:
        """Return the current snapshot in PostgreSQL's notation, ``xmin:xmax:xip``."""
        with self.changed:
            running = sorted(txn.txid for txn in self._running)
            xmax = self._last_ended + 1
            return f"{min([*running, xmax])}:{xmax}:{','.join(str(x) for x in running if x < xmax)}"

    def see(self, name: str) -> SnapshotTable | None:
        """Return a table as chunk readers see it, now or when they began to lag; None if it does not exist."""
        with self.changed:
            if self._lagging is not None:
                return self._lagging.get(name)
            return self._see(name) if name in self._tables else None

    def _see(self, name: str) -> SnapshotTable:
        table, marks = self._tables[name], self._tables[self.watermark_table]
        locked = any(name in txn.truncated for txn in self._running)
        watermarks = {row["id"] or "": row["value"] for row in marks.rows.values()}
        return SnapshotTable(table.schema, table.in_order(), self.snapshot(), watermarks, locked)

    def start(self, txn: MemoryTransaction) -> int:
        """Register a running transaction and return its id."""
        self._running.append(txn)
        self._next_txid += 1
        return self._next_txid - 1

    def new_row(self) -> Key:
        """Return an internal key for a row of a table without a key."""
        self._next_row += 1
        return (str(self._next_row),)

    def lock(self, txn: MemoryTransaction, table: str, key: Key | None) -> None:
        """Raise ValueError if another transaction has locked the row; ``key`` None means the whole table."""
        for other in self._running:
            if other is txn:
                continue
            is_locked = any(at[0] == table and key in (None, at[1]) for at in other.writes)
            if is_locked or table in other.truncated:
                raise ValueError(f"a row of table {table} is locked by another transaction")

    def append(self, txid: int, changes: Sequence[LoggedChange]) -> None:
        """Append a transaction with its commit record to the log. It begins where the previous one ends."""
        lsn, self.end = self.end, self.end + 16 + sum(len(change.payload) for change in changes)
        self.log.append(LoggedTransaction(lsn, self.end, txid, _MICROSECONDS_OF_2024 + lsn, tuple(changes)))
        self.changed.notify_all()

    def finish(self, txn: MemoryTransaction, *, apply: bool) -> None:
        """Release a transaction's locks; ``apply`` makes its changes visible, else they are rolled back."""
        self._running.remove(txn)
        self._last_ended = max(self._last_ended, txn.txid)
        if not apply:
            return
        for name in txn.truncated:
            self._tables[name].rows.clear()
        for (name, key), row in txn.writes.items():
            self._tables[name].rows.pop(key, None)
            if row is not None:
                self._tables[name].rows[key] = row

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut_connections(self) -> None:
        """Make every open stream and reader fail at its next use, and release the slots."""
        with self.changed:
            self.connections += 1
            for slot in self.slots.values():
                slot.is_taken = False
            self.changed.notify_all()

    def lag_readers(self) -> None:
        """Serve chunks from a snapshot of now, as a lagging replica does, until ``catch_up_readers``."""
        with self.changed:
            self._lagging = {name: self._see(name) for name in self._tables}

    def catch_up_readers(self) -> None:
        """Serve chunks from the current tables again."""
        with self.changed:
            self._lagging = None

    def make_slot(self, name: str) -> None:
        """Create a slot at the log's end; the log from here on is kept until its reader confirms it."""
        with self.changed:
            self.slots[name] = MemorySlot(self.end)

    def confirm(self, slot: str, end: int) -> None:
        """Confirm the log up to ``end`` for a slot; remove the log that every slot has confirmed."""
        with self.changed:
            self.slots[slot].confirmed = max(self.slots[slot].confirmed, end)
            needed = min(slot.confirmed for slot in self.slots.values())
            self.log = [txn for txn in self.log if txn.end > needed]


class MemoryTransaction:
    """A transaction. As a context manager it commits, or rolls back if its block raises.

    A conflict with another transaction, or a duplicate key, raises ValueError.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._changes: list[LoggedChange] = []
        self.txid = 0
        self.writes: dict[tuple[str, Key], Row | None] = {}
        self.truncated: set[str] = set()

    def __enter__(self) -> MemoryTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def insert(self, name: str, row: Row) -> None:
        """Insert one row; omitted columns get their default, else NULL."""
        with self._database.changed:
            table = self._database.table(name)
            full = table.full(row)
            key = table.key_of(full) or self._database.new_row()
            self._require_unused_key(table, key)
            self._write(table, key, full, pgoutput_insert(table.oid, list(full.values())))

    def update(self, name: str, where: Row, values: Row) -> None:
        """Set values in all rows that equal ``where`` in its columns."""
        with self._database.changed:
            table = self._database.table(name)
            for key, old in self._matching(table, where):
                new = old | values
                moved = table.key_of(new) or key
                if moved != key:
                    self._require_unused_key(table, moved)
                    self._lock(table, key)
                    self.writes[name, key] = None
                sent: list[Value] = [
                    UNCHANGED if column in table.toasted and column not in values else new[column] for column in new
                ]
                keyed = bool(table.schema.primary_key)
                if not keyed:
                    payload = pgoutput_update(table.oid, sent, list(old.values()), "O")
                else:
                    payload = pgoutput_update(table.oid, sent, _key_only(table, old) if moved != key else None)
                self._write(table, moved, new, payload, updated=new)

    def delete(self, name: str, where: Row) -> None:
        """Delete all rows that equal ``where`` in its columns."""
        with self._database.changed:
            table = self._database.table(name)
            for key, old in self._matching(table, where):
                if table.schema.primary_key:
                    payload = pgoutput_delete(table.oid, _key_only(table, old))
                else:
                    payload = pgoutput_delete(table.oid, list(old.values()), "O")
                self._write(table, key, None, payload)

    def truncate(self, *names: str) -> None:
        """Truncate tables in one statement."""
        with self._database.changed:
            for name in names:
                self._database.lock(self, name, None)
            self._begin()
            for name in names:
                table = self._database.table(name)
                self.truncated.add(name)
                self.writes = {at: row for at, row in self.writes.items() if at[0] != name}
                self._changes.append(LoggedChange(table.schema, pgoutput_truncate([table.oid]), truncate=True))

    def commit(self, *, visible: bool = True) -> None:
        """Write the commit record. Unless ``visible``, the changes stay invisible and locked until ``reveal``."""
        with self._database.changed:
            if not self.txid:
                return
            self._database.append(self.txid, self._changes)
            if visible:
                self.reveal()

    def reveal(self) -> None:
        """Make a commit visible and release its locks."""
        with self._database.changed:
            self._database.finish(self, apply=True)

    def rollback(self) -> None:
        """Discard the transaction's changes."""
        with self._database.changed:
            if self.txid:
                self._database.finish(self, apply=False)

    def _begin(self) -> None:
        self.txid = self.txid or self._database.start(self)

    def _lock(self, table: MemoryTable, key: Key) -> None:
        self._database.lock(self, table.name, key)
        self._begin()

    def _write(
        self, table: MemoryTable, key: Key, row: Row | None, payload: bytes, *, updated: Row | None = None
    ) -> None:
        self._lock(table, key)
        self.writes[table.name, key] = row
        self._changes.append(LoggedChange(table.schema, payload, row=updated))

    def _rows(self, table: MemoryTable) -> dict[Key, Row]:
        name = table.name
        rows = {} if name in self.truncated else dict(table.rows)
        for (of, key), row in self.writes.items():
            if of == name:
                rows.pop(key, None)
                if row is not None:
                    rows[key] = row
        return rows

    def _matching(self, table: MemoryTable, where: Row) -> list[tuple[Key, Row]]:
        return [(k, row) for k, row in self._rows(table).items() if all(row[n] == v for n, v in where.items())]

    def _require_unused_key(self, table: MemoryTable, key: Key) -> None:
        if key in self._rows(table):
            raise ValueError(f"table {table.name} already has a row with this key")


def _key_only(table: MemoryTable, row: Row) -> list[Value]:
    return [value if name in table.schema.primary_key else None for name, value in row.items()]
