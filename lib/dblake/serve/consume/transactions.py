"""Group ordered rows into whole transactions; one that is too large for memory is kept in a temporary file.

Place: between ``event_table``, whose portions may end inside a transaction, and ``stream``. Guarantee: memory holds one
portion, and of a transaction that spans several of them at most SPOOLED_ROWS rows, or about SPOOLED_BYTES.
"""

from __future__ import annotations

import mmap
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import overload

import numpy as np
import pyarrow as pa

from dblake.base.core.position import Position
from dblake.serve.consume.event_rows import ROWS_AT_ONCE, EventBuilder
from dblake.serve.consume.model import Event

SPOOLED_ROWS = 100_000
SPOOLED_BYTES = 64 << 20
"""A transaction with more rows, or more bytes, is kept in a temporary file."""

_TRANSACTION = ("incarnation", "lsn")

Group = list[tuple[Sequence[Event], int]]
"""Transactions, each with the landing batch of its last row."""


def whole_transactions(portions: Iterable[pa.Table], builder: EventBuilder) -> Iterator[Group]:
    """Yield the transactions of ordered portions, several at a time. The last portion ends with a whole one."""
    tail = _Tail(builder)
    for rows in portions:
        if rows.num_rows == 0:
            continue
        starts = _starts(rows)
        if tail.rows and not tail.continues(rows):
            yield tail.take()
        elif tail.rows:
            first = starts[1] if len(starts) > 1 else rows.num_rows
            tail.append(rows.slice(0, first))
            if len(starts) == 1:
                continue
            yield tail.take()
            starts = starts[1:]
        yield from _build(rows, starts, builder)
        tail.append(rows.slice(starts[-1]))
    if tail.rows:
        yield tail.take()


def schemas_of(events: Sequence[Event]) -> Iterable[tuple[str, str]]:
    """Return table and schema id of events, in their order; repeats may be omitted."""
    if isinstance(events, SpooledEvents):
        return events.schemas
    return ((event.table, event.schema_id) for event in events)


def _starts(rows: pa.Table) -> list[int]:
    """Return where transactions begin."""
    lsn, incarnation = rows["lsn"].to_numpy(), rows["incarnation"].to_numpy()
    changes = np.flatnonzero((lsn[1:] != lsn[:-1]) | (incarnation[1:] != incarnation[:-1])) + 1
    return [0, *changes.tolist()]


def _build(rows: pa.Table, starts: Sequence[int], builder: EventBuilder) -> Iterator[Group]:
    """Yield all transactions but the last, about ROWS_AT_ONCE rows at a time."""
    begin = 0
    for end in range(1, len(starts)):
        if starts[end] - starts[begin] < ROWS_AT_ONCE and end < len(starts) - 1:
            continue
        part = rows.slice(starts[begin], starts[end] - starts[begin])
        events, batches = builder.build(part), part["batch"].to_numpy().tolist()
        bounds = [(a - starts[begin], b - starts[begin])
                  for a, b in zip(starts[begin:end], starts[begin + 1 : end + 1], strict=True)]
        yield [(events[first:last], batches[last - 1]) for first, last in bounds]
        begin = end


class _Tail:
    """The rows of the newest transaction, which the next portion may continue."""

    def __init__(self, builder: EventBuilder) -> None:
        self._builder = builder
        self._parts: list[pa.Table] = []
        self._spooled: SpooledEvents | None = None
        self._last: dict[str, int] | None = None
        self.rows = self._bytes = 0

    def continues(self, rows: pa.Table) -> bool:
        """Return True if rows begin with the same transaction."""
        return self._last is not None and all(self._last[name] == rows[name][0].as_py() for name in _TRANSACTION)

    def append(self, rows: pa.Table) -> None:
        """Add rows of the transaction."""
        self._last = {name: rows[name][rows.num_rows - 1].as_py() for name in (*_TRANSACTION, "batch")}
        self._parts.append(rows)
        self.rows += rows.num_rows
        self._bytes += rows.nbytes
        if self.rows > SPOOLED_ROWS or self._bytes > SPOOLED_BYTES:
            self._spooled = self._spooled or SpooledEvents(self._builder)
            for part in self._parts:
                self._spooled.append(part)
            self._parts = []

    def take(self) -> Group:
        """Return the transaction, and begin the next one."""
        assert self._last is not None, "the caller checked that there are rows"
        if self._spooled is not None:
            self._spooled.finish()
            events: Sequence[Event] = self._spooled
        else:
            events = self._builder.build(pa.concat_tables(self._parts))
        found: Group = [(events, self._last["batch"])]
        self._parts, self._spooled, self._last, self.rows, self._bytes = [], None, None, 0, 0
        return found


class StoredEvents(Sequence[Event], ABC):
    """Events that are read on access."""

    @abstractmethod
    def _find(self, place: int) -> Event:
        """Return the event at a place from 0 on."""

    @overload
    def __getitem__(self, place: int) -> Event: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Event]: ...

    def __getitem__(self, place: int | slice) -> Event | Sequence[Event]:
        if isinstance(place, slice):
            return [self._find(number) for number in range(len(self))[place]]
        return self._find(range(len(self))[place])


class SpooledEvents(StoredEvents):
    """The events of a large transaction, in a temporary file without a name: a killed process leaves none behind."""

    def __init__(self, builder: EventBuilder) -> None:
        self._builder = builder
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as its events are read
        self._rows: list[int] = []
        self._schemas: dict[tuple[str, str], None] = {}
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._reader: pa.ipc.RecordBatchFileReader | None = None

    def append(self, rows: pa.Table) -> None:
        """Add rows; call ``finish`` after the last."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(self._file, rows.schema)
        width = rows.nbytes // max(rows.num_rows, 1) + 1
        for batch in rows.to_batches(max_chunksize=max(min(ROWS_AT_ONCE, SPOOLED_BYTES // width), 1)):
            self._writer.write_batch(batch)
            self._rows.append(batch.num_rows)
            pairs = zip(batch.column("table").to_pylist(), batch.column("schema_id").to_pylist(), strict=True)
            self._schemas |= dict.fromkeys(pairs)

    def finish(self) -> None:
        """End the file, and map it into memory."""
        assert self._writer is not None, "a transaction has rows"
        self._writer.close()
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        self._reader = pa.ipc.open_file(pa.py_buffer(mapped))

    @property
    def schemas(self) -> list[tuple[str, str]]:
        """Table and schema id of the events, each pair once."""
        schemas = (self._builder.delivered_schema(self._builder.schema(*pair)) for pair in self._schemas)
        return [(schema.table, schema.schema_id) for schema in schemas]

    def __len__(self) -> int:
        return sum(self._rows)

    def __iter__(self) -> Iterator[Event]:
        for number in range(len(self._rows)):
            yield from self._read(number)

    def _find(self, place: int) -> Event:
        for number, count in enumerate(self._rows):
            if place < count:
                return self._read(number)[place]
            place -= count
        raise IndexError("no such event")

    def _read(self, number: int) -> list[Event]:
        assert self._reader is not None, "the file is finished before it is read"
        batch = self._reader.get_batch(number)
        return self._builder.build(pa.Table.from_batches([batch]), number + 1 == len(self._rows))


class WithoutEvents(StoredEvents):
    """The events of a transaction without some, given by table and position; they stay where they are kept."""

    def __init__(self, events: Sequence[Event], without: Collection[tuple[str, Position]]) -> None:
        self._events, self._without = events, frozenset(without)
        self._count = sum(1 for _ in self._kept())
        self._is_whole = events[-1].last_in_transaction

    def _kept(self) -> Iterator[Event]:
        return (event for event in self._events if (event.table, event.position) not in self._without)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Event]:
        for number, event in enumerate(self._kept(), 1):
            yield replace(event, last_in_transaction=self._is_whole) if number == self._count else event

    def _find(self, place: int) -> Event:
        return next(islice(self, place, None))
