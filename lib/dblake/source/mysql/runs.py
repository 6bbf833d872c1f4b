"""Runs of plain transactions: found among events that came together, and framed all at once.

Most of a busy log is alike: a GTID, table maps and rows of captured tables, an XID. Such transactions are told apart
here by their events' headers, as arrays; a run of them costs some dozen numpy calls, whatever it holds.
Promises the same rows as ``transactions`` makes of the same events one by one, or none at all: what is unusual in any
way (a statement, XA, a size that does not fit, an event that the server made for the stream) is in no run, and what
only shows later (a table not told of yet) makes ``framed`` give up. Nothing is refused here.

Between ``packets`` and ``transactions``, which knows where a run may begin and keeps the place in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.core.schema import TableSchema
from dblake.source.mysql import checksums, events, watermarks
from dblake.source.mysql.events import BODY
from dblake.source.mysql.gtids import Gtid
from dblake.source.mysql.packets import Events
from dblake.source.mysql.relations import Captured

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

_WORTH = 8
"""So many transactions that a run costs less than they would one by one."""
_LONG = 2000
"""Bytes of an event: to bring longer ones together takes longer than to go from one to the other."""
_OTHER, _BEGIN, _INNER, _END, _STATEMENT = range(5)
_CLASS = np.zeros(256, np.uint8)
_CLASS[[events.GTID, events.ANONYMOUS_GTID, events.MARIADB_GTID]] = _BEGIN
_CLASS[[events.TABLE_MAP, events.ROWS_QUERY, events.ANNOTATE_ROWS, *events.ROWS]] = _INNER
_CLASS[events.XID] = _END
_CLASS[events.QUERY] = _STATEMENT
_LEAST = np.zeros(256, np.int64)
"""Bytes that an event's body has at least: what is looked at here."""
_LEAST[[events.GTID, events.ANONYMOUS_GTID]] = events.COMMITTED_AT + 7
_LEAST[[events.MARIADB_GTID, events.QUERY]] = 13
_LEAST[[events.TABLE_MAP, *events.ROWS]] = 6
_ROWS, _UPDATES = (np.isin(np.arange(256), sorted(kinds)) for kinds in (events.ROWS, events.UPDATES))
_BEGIN_TEXT = int.from_bytes(b"BEGI", "little"), ord("N")


@dataclass(frozen=True, slots=True)
class Framed:
    """Rows events of captured tables, in order, and what else the first ``transactions`` of a run say.

    ``offsets`` and ``times`` are of their transactions: the place in the file, and microseconds since 1970. ``numbers``
    are theirs among all rows events of their transaction. ``tables`` says of each which of ``schemas`` it has.
    """

    transactions: int
    offsets: _Ints
    numbers: _Ints
    times: _Ints
    tables: npt.NDArray[np.int32]
    lasts: _Bools
    payloads: pa.BinaryArray
    schemas: list[TableSchema | None]
    """None are those of other tables, of which there is no row."""
    watermarks: list[tuple[int, int, int, list[tuple[int, str]]]]
    """Updates of the watermark table: offset, number and time, as above, and what ``watermarks.updates`` says."""
    gtids: list[Gtid]
    """All that have to be added to those executed before."""
    last_begin: int
    last_start: int
    end: int
    """Where in the file the last transaction begins, its last event does, and that ends."""


class Headers:
    """What the headers of events that came together say, as columns, one line each.

    ``checksum`` is how many bytes at the end of each event are one.
    """

    def __init__(self, came: Events, checksum: int) -> None:
        self.came, self.checksum = came, checksum
        self.data = np.frombuffer(came.data, np.uint8)
        self.stops: _Ints = came.bounds[1:] - checksum
        # What has no whole header is nothing to be read, and may be the last.
        self.at: _Ints = np.minimum(came.bounds[:-1] + Events.HEAD, len(self.data) - BODY)
        self.kinds = self.data[self.at + 4]
        self.sizes: _Ints = self.numbers(4, self.at + 9)
        self.ends: _Ints = self.numbers(4, self.at + 13)
        self.classes = self._classes()

    def numbers(self, size: int, at: _Ints) -> _Ints:
        """The little-endian numbers of 1, 2, 4 or 8 bytes that stand at these places."""
        # An overlapping view, one number at each byte.
        spread = np.ndarray((len(self.data) - size + 1,), f"<u{size}", self.came.data, strides=(1,))
        return spread[at].astype(np.int64)

    def cut(self, which: _Ints, skip: int = 0, *, checksum: bool = False) -> pa.BinaryArray:
        """These events' bytes but for the first ``skip`` and, unless asked for, their checksums."""
        if not len(which):
            return pa.array([], pa.binary())
        # Arrow takes what lies between them for values too, and leaves it out when the others are taken.
        offsets = np.empty(2 * len(which), np.int32)
        offsets[0::2], offsets[1::2] = self.at[which] + skip, self.stops[which] + (self.checksum if checksum else 0)
        spread = pa.Array.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(self.came.data)]
        )
        return spread.take(pa.array(np.arange(0, len(offsets), 2)))

    def _classes(self) -> npt.NDArray[np.uint8]:
        sizes = self.stops - self.at
        classes = np.where(sizes >= BODY + _LEAST[self.kinds], _CLASS[self.kinds], _OTHER)
        mariadb = np.flatnonzero((classes == _BEGIN) & (self.kinds == events.MARIADB_GTID))
        classes[mariadb[~self._opens(mariadb)]] = _OTHER
        statements = np.flatnonzero(classes == _STATEMENT)
        begins = self._begin(statements) & (classes[statements - 1] == _BEGIN) & (statements > 0)
        classes[statements] = np.where(begins, _INNER, _OTHER)
        odd = (self.data[self.at + 17] & events.ARTIFICIAL != 0) | (self.ends == 0)
        odd |= self.sizes != sizes + self.checksum
        classes[odd] = _OTHER
        return classes

    def _opens(self, which: _Ints) -> _Bools:
        """True if rows follow MariaDB's GTID, and no XA transaction is prepared or ended by them."""
        flags: npt.NDArray[np.uint8] = self.data[self.at[which] + BODY + 12]
        opens: _Bools = flags & (1 | 64 | 128) == 0
        return opens

    def _begin(self, which: _Ints) -> _Bools:
        """True if the statement is BEGIN."""
        body = self.at[which] + BODY
        statement = body + 14 + self.data[body + 8] + self.numbers(2, body + 11)
        fits = self.stops[which] - statement == 5
        statement = np.where(fits, statement, 0)
        first, last = _BEGIN_TEXT
        is_it: _Bools = fits & (self.numbers(4, statement) == first) & (self.data[statement + 4] == last)
        return is_it


class Run:
    """Plain transactions one behind the other: each of ``begins`` is the line of one's first event, in ``headers``."""

    def __init__(self, headers: Headers, begins: _Ints, stop: int) -> None:
        self.headers, self._begins, self.stop = headers, begins, stop

    def __len__(self) -> int:
        return len(self._begins)

    @property
    def first(self) -> int:
        """The line of its first event; ``stop`` if nothing is left."""
        return int(self._begins[0]) if len(self) else self.stop

    def without(self, transactions: int) -> Run:
        """What is left without the first of them."""
        return Run(self.headers, self._begins[transactions:], self.stop)

    @property
    def sound(self) -> bool:
        """True if no event of it is damaged, as far as they have checksums."""
        headers = self.headers
        if not headers.checksum:
            return True
        starts, sizes = headers.at[self.first : self.stop], headers.sizes[self.first : self.stop]
        long = sizes > _LONG
        data, short = memoryview(headers.came.data), headers.cut(np.flatnonzero(~long) + self.first, checksum=True)
        return all(
            crc32(data[start : start + size]) == events.SOUND
            for start, size in zip(starts[long].tolist(), sizes[long].tolist(), strict=True)
        ) and checksums.sound(memoryview(short.buffers()[2]), sizes[~long])

    def framed(
        self, at: int, most_bytes: int, most_rows: int, captured: Callable[[bytes], Captured],
        told: Callable[[TableSchema], bool],
    ) -> Framed | None:
        """What the first of its transactions say: as many as stay below both limits; None if there are none.

        ``at`` is where in the file the log has come to. ``captured`` says of a table map's body what it means,
        ``told`` whether rows of a schema may come without another word of it. Raises what reading an event may raise.
        """
        headers, lines = self.headers, self.stop - self.first
        ends = headers.ends[self.first : self.stop] + (at & ~0xFFFF_FFFF)
        starts = ends - headers.sizes[self.first : self.stop]
        if starts[0] < at or (starts[1:] < ends[:-1]).any():
            # They do not simply follow one another.
            return None
        begins = self._begins - self.first
        kinds = headers.kinds[self.first : self.stop]
        rows = np.flatnonzero(_ROWS[kinds])
        transaction = np.repeat(np.arange(len(begins)), np.diff(begins, append=lines))
        of_rows = transaction[rows]
        found = self._tables(rows + self.first, transaction, captured)
        if found is None:
            return None
        tables, means = found
        schemas = [known.schema for known in means]
        if not all(schema is None or told(schema) for schema in (schemas[n] for n in np.unique(tables))):
            return None
        wanted = np.array([schema is not None for schema in schemas], bool)[tables]
        watermark = np.array([known.is_watermark_table for known in means], bool)[tables]

        sizes = np.where(wanted, headers.stops[rows + self.first] - headers.at[rows + self.first], 0)
        keep = min(_below(most_bytes, sizes, of_rows, len(self)), _below(most_rows, wanted, of_rows, len(self)))
        if not keep:
            return None
        stop = int(begins[keep]) if keep < len(begins) else lines
        among = np.arange(len(rows)) - np.searchsorted(rows, begins)[of_rows]
        offsets, times = starts[begins], self._times()
        kept = rows < stop
        marks = np.flatnonzero(kept & watermark & _UPDATES[kinds[rows]])
        mine = np.flatnonzero(kept & wanted)
        their = of_rows[mine]
        return Framed(
            keep, offsets[their], among[mine], times[their], tables[mine].astype(np.int32),
            np.diff(their, append=-1) != 0, headers.cut(rows[mine] + self.first), schemas,
            [
                (int(offsets[t]), int(among[n]), int(times[t]), list(watermarks.updates(self._event(int(rows[n])))))
                for n, t in zip(marks, of_rows[marks], strict=True)
            ],
            self._gtids(keep), int(offsets[keep - 1]), int(starts[stop - 1]), int(ends[stop - 1]),
        )

    def _tables(
        self, rows: _Ints, transaction: _Ints, captured: Callable[[bytes], Captured]
    ) -> tuple[_Ints, list[Captured]] | None:
        """Which table each rows event is of, and what those mean; None if the table maps do not say it of all."""
        headers = self.headers
        maps = np.flatnonzero(headers.kinds[self.first : self.stop] == events.TABLE_MAP) + self.first
        bodies = headers.cut(maps, BODY).dictionary_encode()
        numbers, of_map = np.unique(self._table_numbers(maps), return_inverse=True)
        if len(numbers) != len(bodies.dictionary):
            # The number of one table has come to mean another.
            return None
        mine = self._table_numbers(rows)
        which = np.minimum(np.searchsorted(numbers, mine), max(len(numbers) - 1, 0))
        if len(rows) and not (len(numbers) and (numbers[which] == mine).all()):
            return None
        mapped = transaction[maps - self.first] * len(numbers) + of_map
        if not np.isin(transaction[rows - self.first] * len(numbers) + which, mapped).all():
            return None
        code = np.zeros(len(numbers), np.int64)
        code[of_map] = bodies.indices.to_numpy()
        return code[which], [captured(body) for body in bodies.dictionary.to_pylist()]

    def _table_numbers(self, which: _Ints) -> _Ints:
        at = self.headers.at[which] + BODY
        return self.headers.numbers(4, at) | self.headers.numbers(2, at + 4) << 32

    def _times(self) -> _Ints:
        """When each transaction was committed, in microseconds."""
        headers, at = self.headers, self.headers.at[self._begins]
        if headers.kinds[self.first] == events.MARIADB_GTID:
            return headers.numbers(4, at) * 1_000_000
        return headers.numbers(8, at + BODY + events.COMMITTED_AT) & (1 << 55) - 1

    def _gtids(self, count: int) -> list[Gtid]:
        """Those of the first transactions; of MariaDB's only the last if they are of one domain."""
        headers, which = self.headers, self._begins[:count]
        kinds, body = headers.kinds[which], headers.at[which] + BODY
        if kinds[0] == events.MARIADB_GTID:
            of_mariadb = [headers.numbers(4, body + 8), headers.numbers(4, body - BODY + 5), headers.numbers(8, body)]
            gtids = list(zip(*(column.tolist() for column in of_mariadb), strict=True))
            return gtids[-1:] if len({domain for domain, *_ in gtids}) == 1 else gtids
        named = body[kinds == events.GTID]
        data = headers.came.data
        return [
            (bytes(data[at + 1 : at + 17]).hex(), "", number)
            for at, number in zip(named.tolist(), headers.numbers(8, named + 17).tolist(), strict=True)
        ]

    def _event(self, line: int) -> bytes:
        at = self.first + line
        return bytes(self.headers.came.data[self.headers.at[at] : self.headers.stops[at]])


def runs(came: Events, checksum: int) -> list[Run]:
    """The runs among events, in order; none that is too short to be worth it."""
    if len(came) < 4 * _WORTH:
        return []
    headers = Headers(came, checksum)
    begins = np.flatnonzero(headers.classes == _BEGIN)
    bounds = np.append(np.flatnonzero(headers.classes != _INNER), len(came))
    stops = bounds[np.searchsorted(bounds, begins) + 1] + 1
    ends = np.append(headers.classes, _OTHER)[stops - 1]
    plain = ends == _END
    # A run goes on with the next transaction if that is plain too, and begins where this one ends.
    goes_on = np.append(plain[:-1] & plain[1:] & (begins[1:] == stops[:-1]), False)
    firsts = np.flatnonzero(plain & ~np.insert(goes_on[:-1], 0, False))
    lasts = np.flatnonzero(plain & ~goes_on)
    return [
        Run(headers, begins[first : last + 1], int(stops[last]))
        for first, last in zip(firsts, lasts, strict=True) if last - first + 1 >= _WORTH
    ]


def _below(most: int, sizes: _Ints, transaction: _Ints, count: int) -> int:
    """How many of so many transactions, from the first on, stay below a limit together."""
    reached = np.cumsum(np.bincount(transaction, sizes, count)) >= most
    return int(reached.argmax()) if reached.any() else count
