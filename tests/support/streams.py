"""A subscription's stream for tests of outputs, built step by step beside the rows that it must leave.

``Stream`` makes whole transactions as ``consume`` delivers them; ``Stream.rows`` is the source's table after all of
them.
``random_stream`` makes a long one: inserts, partial updates, deletes, key changes, truncates, added columns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.serve.consume.model import Control, ControlKind, Event, Image, Transaction

Row = dict[str, str | None]
_BEGAN = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Stream:
    """One source's transactions on one table with the key ``id``, and the table's rows by key."""

    def __init__(self, *columns: Column, table: str = "public.orders", source: str = "shop") -> None:
        self.source = source
        self.schema = TableSchema(table, columns)
        self.transactions: list[Transaction] = []
        self.rows: dict[tuple[str | None, ...], Row] = {}
        self._lsn = 100
        self._events: list[Event] = []

    @property
    def position(self) -> Position:
        """The position of the next event."""
        return Position(1, self._lsn, 2 * len(self._events))

    def insert(self, *, op: str = "c", origin: str = "log", **values: str | None) -> None:
        """Add a whole row; columns that are not given are NULL."""
        row = {name: values.get(name) for name in self.schema.names}
        self.rows[self._key(row)] = row
        self._add(op, self._image(row), None, dict(row), origin=origin)

    def update(self, *, op: str = "u", **values: str | None) -> None:
        """Change the columns given, of the row with the key given; the event carries no others."""
        row = self.rows[self._key(values)]
        row.update(values)
        self._add(op, self._image(row), None, dict(values))

    def delete(self, *key: str) -> None:
        """Delete a row."""
        row = self.rows.pop(key)
        self._add("d", self._image(row), self._image(row), None)

    def move(self, old: tuple[str, ...], *, unsent: Sequence[str] = (), **values: str | None) -> None:
        """Change a row's key: the delete of the old one and the create of the new one, at the next position.

        ``unsent`` are columns that the create lacks, as the log does.
        """
        row = self.rows.pop(old)
        before = self._image(row)
        self._add("d", before, before, None)
        row = {**row, **values}
        self.rows[self._key(row)] = row
        self._add("c", self._image(row), None, {name: row[name] for name in row if name not in unsent})
        self._events[-1].key_before = before

    def truncate(self) -> None:
        """Truncate the table."""
        self.rows.clear()
        self._add("t", None, None, None)

    def commit(self, **flags: Any) -> Transaction:
        """End the transaction and return it."""
        self._events[-1].last_in_transaction = True
        made = Transaction(
            self.source, self._events[-1].position, self._events[-1].committed_at, tuple(self._events),
            make_checkpoint=str(self._events[-1].position).__str__, **flags,
        )
        return self._append(made)

    def control(self, kind: ControlKind, **details: Any) -> Transaction:
        """Add a control entry."""
        control = Control(kind, self.source, self.position, None, details)
        checkpoint = f"{self.position}/{kind}"
        return self._append(Transaction(
            self.source, self.position, None, control=control, make_checkpoint=checkpoint.__str__
        ))

    def change_schema(self, *columns: Column) -> None:
        """Use other columns from now on; columns that rows lack are NULL."""
        self.schema = TableSchema(self.schema.table, columns)
        for row in self.rows.values():
            for name in self.schema.names:
                row.setdefault(name, None)

    def _append(self, transaction: Transaction) -> Transaction:
        self.transactions.append(transaction)
        self._events = []
        self._lsn += 10
        return transaction

    def _key(self, row: Image) -> tuple[str | None, ...]:
        return tuple(row[name] for name in self.schema.primary_key)

    def _image(self, row: Image) -> Row:
        return {name: row[name] for name in self.schema.primary_key}

    def _add(
        self, op: str, key: Image | None, before: Image | None, after: Image | None, origin: str = "log"
    ) -> None:
        self._events.append(Event(
            self.source, self.schema.table, op, self.position, key, before, after, str(self._lsn),
            _BEGAN + timedelta(seconds=self._lsn), False, origin, self.schema.schema_id, self.schema,
        ))


ID = Column("id", "integer", False, 1)


def random_stream(seed: int, transactions: int, keys: int = 30, *, moves_in_part: bool = False) -> Stream:
    """Return a random history; most keys change often, and rows move, vanish and return.

    ``moves_in_part``: rows move more often, and what makes the new row lacks columns.
    """
    chosen = random.Random(seed)
    stream = Stream(ID, Column("qty", "integer"), Column("note", "text"))
    for number in range(transactions):
        if number == transactions // 3:
            stream.change_schema(ID, Column("qty", "bigint"), Column("note", "text"), Column("more", "text"))
        for _ in range(chosen.randint(1, 8)):
            _step(chosen, stream, keys, moves_in_part)
        stream.commit()
    return stream


def _step(chosen: random.Random, stream: Stream, keys: int, moves_in_part: bool) -> None:
    key = str(chosen.randrange(keys))
    text = chosen.choice(["", "a", "ö\t\\N", "NULL", "\"quoted\"", "line\nbreak", None])
    dice = chosen.random()
    if (key,) not in stream.rows:
        stream.insert(id=key, qty=str(chosen.randrange(1000)), note=text)
    elif moves_in_part and dice < 0.3 and (open_keys := [str(n) for n in range(keys) if (str(n),) not in stream.rows]):
        unsent = chosen.choice([["note"], ["qty"], ["qty", "note"], list(stream.schema.names[1:])])
        changed = {name: text for name in ("note",) if name not in unsent}
        stream.move((key,), unsent=unsent, id=chosen.choice(open_keys), **changed)
    elif dice < 0.4:
        stream.update(id=key, qty=str(chosen.randrange(1000)))
    elif dice < 0.7:
        stream.update(id=key, note=text)
    elif dice < 0.85:
        stream.delete(key)
    elif dice < 0.98:
        free = [str(n) for n in range(keys) if (str(n),) not in stream.rows]
        if free:
            stream.move((key,), id=chosen.choice(free))
        else:
            stream.delete(key)
    else:
        stream.truncate()


def batches(transactions: Sequence[Transaction], chosen: random.Random) -> list[list[Transaction]]:
    """Divide transactions into writes of random size."""
    out, rest = [], list(transactions)
    while rest:
        count = chosen.randint(1, 6)
        out.append(rest[:count])
        rest = rest[count:]
    return out
