"""Runs of plain transactions: detected among the events of one read, and framed at once.

Most of a busy log is uniform: a GTID, table maps and rows of captured tables, an XID. Such transactions are detected
by their events' headers, as arrays; a run of them costs a few dozen numpy calls, whatever its length (decision 6).
Guarantee: a run has the same rows as handling its events one by one, or none. Unusual events are never part of a run: a
statement, XA, a size that does not fit, an event that the server made for the stream. If a problem shows only while
framing, such as a schema that has no row yet, ``Run.frame`` returns None, and the caller handles single events. Nothing
is rejected here.

Between ``packets`` and ``transactions``, which decides where a run may begin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pymysqlreplication.constants import BINLOG

from dblake.base.core.schema import TableSchema
from dblake.ingest.source.mysql import checksums, events, watermarks
from dblake.ingest.source.mysql.events import BODY
from dblake.ingest.source.mysql.gtid_events import COMMIT_TIME_OFFSET
from dblake.ingest.source.mysql.gtids import Gtid
from dblake.ingest.source.mysql.packets import PacketEvents
from dblake.ingest.source.mysql.relations import Captured

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

_MIN_TRANSACTIONS = 8
"""From this many transactions on a run costs less than handling them one by one."""
_LONG_EVENT_BYTES = 2000
"""Copying longer events together takes longer than one call for each."""
_OTHER, _BEGIN, _INNER, _END, _STATEMENT = range(5)
_CLASS = np.zeros(256, np.uint8)
_CLASS[[BINLOG.GTID_LOG_EVENT, BINLOG.ANONYMOUS_GTID_LOG_EVENT, BINLOG.MARIADB_GTID_EVENT]] = _BEGIN
_CLASS[[BINLOG.TABLE_MAP_EVENT, BINLOG.ROWS_QUERY_LOG_EVENT, BINLOG.MARIADB_ANNOTATE_ROWS_EVENT, *events.ROWS]] = _INNER
_CLASS[BINLOG.XID_EVENT] = _END
_CLASS[BINLOG.QUERY_EVENT] = _STATEMENT
_MIN_BODY_BYTES = np.zeros(256, np.int64)
"""By type, the bytes of an event's body that are read here."""
_MIN_BODY_BYTES[[BINLOG.GTID_LOG_EVENT, BINLOG.ANONYMOUS_GTID_LOG_EVENT]] = COMMIT_TIME_OFFSET + 7
_MIN_BODY_BYTES[[BINLOG.MARIADB_GTID_EVENT, BINLOG.QUERY_EVENT]] = 13
_MIN_BODY_BYTES[[BINLOG.TABLE_MAP_EVENT, *events.ROWS]] = 6
_ROWS, _UPDATES = (np.isin(np.arange(256), sorted(kinds)) for kinds in (events.ROWS, events.UPDATES))
_BEGIN_TEXT = int.from_bytes(b"BEGI", "little"), ord("N")


@dataclass(frozen=True, slots=True)
class Framed:
    """Rows events of captured tables, in order, of the first ``transactions`` of a run.

    ``offsets`` has the offset in the file of each row's transaction, ``times`` its time in microseconds since 1970.
    ``numbers`` count all rows events of a transaction. ``tables`` are indexes into ``schemas``. ``last_begin`` and
    ``last_start`` are offsets in the file where the last transaction and its last event begin, ``end`` where it ends.
    """

    transactions: int
    offsets: _Ints
    numbers: _Ints
    times: _Ints
    tables: npt.NDArray[np.int32]
    lasts: _Bools
    payloads: pa.BinaryArray
    schemas: list[TableSchema | None]
    """None for tables that are not captured; they have no rows here."""
    watermarks: list[tuple[int, int, int, list[tuple[int, str]]]]
    """Updates of the watermark table: offset, number and time, as above, and the rows written."""
    gtids: list[Gtid]
    """GTIDs that make the set of executed ones complete."""
    has_gtids: bool
    """False if a transaction has no GTID."""
    last_begin: int
    last_start: int
    end: int


class Headers:
    """The header fields of the events of one read, as columns. ``checksum_bytes`` is 4 if events end with a CRC-32."""

    def __init__(self, received: PacketEvents, checksum_bytes: int) -> None:
        self.received, self.checksum_bytes = received, checksum_bytes
        self.data = np.frombuffer(received.data, np.uint8)
        self.stops: _Ints = received.bounds[1:] - checksum_bytes
        # An event without a whole header may be the last one; it must not be read past the data.
        self.starts: _Ints = np.minimum(received.bounds[:-1] + PacketEvents.HEAD_BYTES, len(self.data) - BODY)
        self.kinds = self.data[self.starts + 4]
        self.sizes: _Ints = self.read_numbers(4, self.starts + 9)
        self.ends: _Ints = self.read_numbers(4, self.starts + 13)
        self.classes = self._classify()

    def read_numbers(self, size: int, offsets: _Ints) -> _Ints:
        """Return the little-endian numbers of 1, 2, 4 or 8 bytes at some offsets."""
        # An overlapping view, one number at each byte.
        every = np.ndarray((len(self.data) - size + 1,), f"<u{size}", self.received.data, strides=(1,))
        return every[offsets].astype(np.int64)

    def copy_events(self, which: _Ints, skip: int = 0, *, checksum: bool = False) -> pa.BinaryArray:
        """Return events without their first ``skip`` bytes and, unless ``checksum``, without their checksums."""
        if not len(which):
            return pa.array([], pa.binary())
        # Arrow takes the bytes between them for values, too; taking every second one leaves those out.
        offsets = np.empty(2 * len(which), np.int32)
        offsets[0::2], offsets[1::2] = self.starts[which] + skip, self.stops[which] + checksum * self.checksum_bytes
        every = pa.Array.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(self.received.data)]
        )
        return every.take(pa.array(np.arange(0, len(offsets), 2)))

    def _classify(self) -> npt.NDArray[np.uint8]:
        sizes = self.stops - self.starts
        classes = np.where(sizes >= BODY + _MIN_BODY_BYTES[self.kinds], _CLASS[self.kinds], _OTHER)
        mariadb = np.flatnonzero((classes == _BEGIN) & (self.kinds == BINLOG.MARIADB_GTID_EVENT))
        classes[mariadb[~self._opens_rows(mariadb)]] = _OTHER
        statements = np.flatnonzero(classes == _STATEMENT)
        begins = self._is_begin(statements) & (classes[statements - 1] == _BEGIN) & (statements > 0)
        classes[statements] = np.where(begins, _INNER, _OTHER)
        unusual = (self.data[self.starts + 17] & events.ARTIFICIAL_FLAG != 0) | (self.ends == 0)
        unusual |= self.sizes != sizes + self.checksum_bytes
        classes[unusual] = _OTHER
        return classes

    def _opens_rows(self, which: _Ints) -> _Bools:
        """Return where rows follow MariaDB's GTID, and no XA transaction is prepared or ended by them."""
        flags: npt.NDArray[np.uint8] = self.data[self.starts[which] + BODY + 12]
        opens: _Bools = flags & (1 | 64 | 128) == 0
        return opens

    def _is_begin(self, which: _Ints) -> _Bools:
        """Return where the statement is BEGIN."""
        body = self.starts[which] + BODY
        statement = body + 14 + self.data[body + 8] + self.read_numbers(2, body + 11)
        fits = self.stops[which] - statement == 5
        statement = np.where(fits, statement, 0)
        first, last = _BEGIN_TEXT
        is_begin: _Bools = fits & (self.read_numbers(4, statement) == first) & (self.data[statement + 4] == last)
        return is_begin


class Run:
    """Consecutive plain transactions: ``begins`` are the numbers of their first events, ``stop`` the one behind."""

    def __init__(self, headers: Headers, begins: _Ints, stop: int) -> None:
        self.headers, self._begins, self.stop = headers, begins, stop

    def __len__(self) -> int:
        return len(self._begins)

    @property
    def first(self) -> int:
        """The number of its first event; ``stop`` if no transaction is left."""
        return int(self._begins[0]) if len(self) else self.stop

    def without(self, transactions: int) -> Run:
        """Return the run without its first transactions."""
        return Run(self.headers, self._begins[transactions:], self.stop)

    @property
    def has_valid_checksums(self) -> bool:
        """True if no event is damaged; True as well if events have no checksums."""
        headers = self.headers
        if not headers.checksum_bytes:
            return True
        starts, sizes = headers.starts[self.first : self.stop], headers.sizes[self.first : self.stop]
        is_long = sizes > _LONG_EVENT_BYTES
        data = memoryview(headers.received.data)
        short = headers.copy_events(np.flatnonzero(~is_long) + self.first, checksum=True)
        return all(
            crc32(data[start : start + size]) == events.CRC32_RESIDUE
            for start, size in zip(starts[is_long].tolist(), sizes[is_long].tolist(), strict=True)
        ) and checksums.all_crc32_valid(memoryview(short.buffers()[2]), sizes[~is_long])

    def frame(
        self, position: int, max_bytes: int, max_rows: int, table_of: Callable[[bytes], Captured],
        is_schema_landed: Callable[[TableSchema], bool],
    ) -> Framed | None:
        """Return the rows of the first transactions that stay below both limits; None if there are none.

        ``position`` is the offset in the file behind what has been read. ``table_of`` resolves a TABLE_MAP's body;
        ``is_schema_landed`` is True for schemas whose rows need no schema row. Raises what reading an event may raise.
        """
        headers, lines = self.headers, self.stop - self.first
        ends = headers.ends[self.first : self.stop] + (position & ~0xFFFF_FFFF)
        starts = ends - headers.sizes[self.first : self.stop]
        if starts[0] < position or (starts[1:] < ends[:-1]).any():
            # The offsets wrap past 4 GiB, or events do not simply follow one another.
            return None
        begins = self._begins - self.first
        kinds = headers.kinds[self.first : self.stop]
        rows = np.flatnonzero(_ROWS[kinds])
        transaction = np.repeat(np.arange(len(begins)), np.diff(begins, append=lines))
        row_transaction = transaction[rows]
        resolved = self._resolve_tables(rows + self.first, transaction, table_of)
        if resolved is None:
            return None
        tables, captured = resolved
        schemas = [table.schema for table in captured]
        if not all(schema is None or is_schema_landed(schema) for schema in (schemas[n] for n in np.unique(tables))):
            return None
        is_captured = np.array([schema is not None for schema in schemas], bool)[tables]
        is_watermark = np.array([table.is_watermark_table for table in captured], bool)[tables]

        sizes = np.where(is_captured, headers.stops[rows + self.first] - headers.starts[rows + self.first], 0)
        count = min(
            _count_below(max_bytes, sizes, row_transaction, len(self)),
            _count_below(max_rows, is_captured, row_transaction, len(self)),
        )
        if not count:
            return None
        stop = int(begins[count]) if count < len(begins) else lines
        numbers = np.arange(len(rows)) - np.searchsorted(rows, begins)[row_transaction]
        offsets, times, gtids = starts[begins], self._commit_times(), self._gtids(count)
        is_kept = rows < stop
        marks = np.flatnonzero(is_kept & is_watermark & _UPDATES[kinds[rows]])
        kept = np.flatnonzero(is_kept & is_captured)
        kept_transaction = row_transaction[kept]
        return Framed(
            count, offsets[kept_transaction], numbers[kept], times[kept_transaction], tables[kept].astype(np.int32),
            np.diff(kept_transaction, append=-1) != 0, headers.copy_events(rows[kept] + self.first), schemas,
            [
                (int(offsets[t]), int(numbers[n]), int(times[t]), list(watermarks.read_updates(self._event(rows[n]))))
                for n, t in zip(marks, row_transaction[marks], strict=True)
            ],
            gtids, not (kinds[begins[:count]] == BINLOG.ANONYMOUS_GTID_LOG_EVENT).any(),
            int(offsets[count - 1]), int(starts[stop - 1]), int(ends[stop - 1]),
        )

    def _resolve_tables(
        self, rows: _Ints, transaction: _Ints, table_of: Callable[[bytes], Captured]
    ) -> tuple[_Ints, list[Captured]] | None:
        """Return each rows event's table, as an index, and the tables; None if the run's table maps leave it open."""
        headers = self.headers
        maps = np.flatnonzero(headers.kinds[self.first : self.stop] == BINLOG.TABLE_MAP_EVENT) + self.first
        bodies = headers.copy_events(maps, BODY).dictionary_encode()
        ids, id_of_map = np.unique(self._table_ids(maps), return_inverse=True)
        if len(ids) != len(bodies.dictionary):
            # A table id was reused for another table.
            return None
        row_ids = self._table_ids(rows)
        which = np.minimum(np.searchsorted(ids, row_ids), max(len(ids) - 1, 0))
        if len(rows) and not (len(ids) and (ids[which] == row_ids).all()):
            return None
        mapped = transaction[maps - self.first] * len(ids) + id_of_map
        if not np.isin(transaction[rows - self.first] * len(ids) + which, mapped).all():
            return None
        code = np.zeros(len(ids), np.int64)
        code[id_of_map] = bodies.indices.to_numpy()
        return code[which], [table_of(body) for body in bodies.dictionary.to_pylist()]

    def _table_ids(self, which: _Ints) -> _Ints:
        body = self.headers.starts[which] + BODY
        return self.headers.read_numbers(4, body) | self.headers.read_numbers(2, body + 4) << 32

    def _commit_times(self) -> _Ints:
        """Return when each transaction was committed, in microseconds since 1970."""
        headers, begins = self.headers, self.headers.starts[self._begins]
        if headers.kinds[self.first] == BINLOG.MARIADB_GTID_EVENT:
            return headers.read_numbers(4, begins) * 1_000_000
        return headers.read_numbers(8, begins + BODY + COMMIT_TIME_OFFSET) & (1 << 55) - 1

    def _gtids(self, count: int) -> list[Gtid]:
        """Return the GTIDs of the first transactions; of MariaDB's only the last if all are of one server's domain."""
        headers, which = self.headers, self._begins[:count]
        kinds, body = headers.kinds[which], headers.starts[which] + BODY
        if kinds[0] == BINLOG.MARIADB_GTID_EVENT:
            domain, server, sequence = (
                headers.read_numbers(size, field) for size, field in ((4, body + 8), (4, body - BODY + 5), (8, body))
            )
            gtids: list[Gtid] = list(zip(domain.tolist(), server.tolist(), sequence.tolist(), strict=True))
            return gtids[-1:] if ((domain == domain[0]) & (server == server[0])).all() else gtids
        named = body[kinds == BINLOG.GTID_LOG_EVENT]
        data = headers.received.data
        return [
            (bytes(data[start + 1 : start + 17]).hex(), "", number)
            for start, number in zip(named.tolist(), headers.read_numbers(8, named + 17).tolist(), strict=True)
        ]

    def _event(self, line: int) -> bytes:
        number = self.first + int(line)
        return bytes(self.headers.received.data[self.headers.starts[number] : self.headers.stops[number]])


def find_runs(received: PacketEvents, checksum_bytes: int) -> list[Run]:
    """Return the runs among the events of one read, in order; none that is too short to pay."""
    if len(received) < 4 * _MIN_TRANSACTIONS:
        return []
    headers = Headers(received, checksum_bytes)
    begins = np.flatnonzero(headers.classes == _BEGIN)
    bounds = np.append(np.flatnonzero(headers.classes != _INNER), len(received))
    stops = bounds[np.searchsorted(bounds, begins) + 1] + 1
    ends = np.append(headers.classes, _OTHER)[stops - 1]
    is_plain = ends == _END
    # A run continues with the next transaction if that is plain, too, and begins where this one ends.
    continues = np.append(is_plain[:-1] & is_plain[1:] & (begins[1:] == stops[:-1]), False)
    firsts = np.flatnonzero(is_plain & ~np.insert(continues[:-1], 0, False))
    lasts = np.flatnonzero(is_plain & ~continues)
    return [
        Run(headers, begins[first : last + 1], int(stops[last]))
        for first, last in zip(firsts, lasts, strict=True) if last - first + 1 >= _MIN_TRANSACTIONS
    ]


def _count_below(limit: int, sizes: _Ints, transaction: _Ints, count: int) -> int:
    """Return how many of ``count`` transactions, from the first on, stay below a limit together."""
    reached = np.cumsum(np.bincount(transaction, sizes, count)) >= limit
    return int(reached.argmax()) if reached.any() else count
