"""The executable specification of reconcile: DBLog's chunk windows in plain Python, slow and easy to verify.

Input is a decoded landing table: a list of the four record types below, in any order. ``reconcile`` returns the events
in order and the ledger of chunk windows; ``fold`` returns the rows after these events. If Spark and this module
disagree, one of them is wrong, and the correction is recorded in writing. Algorithm: DBLog, section 3.2, with the
extensions of ``docs/algorithm.md`` (fills, phantoms, snapshots).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dblake.base.core.position import Position
from dblake.base.core.window import ChunkWindow, Snapshot
from dblake.landing.control import DISCARDED, ChunkEnd

Key = tuple[str, ...]
Image = Mapping[str, str | None]


@dataclass(frozen=True)
class Event:
    """One change. From the log: c create, u update, d delete, t truncate; from a dump: r read, f fill, d phantom.

    ``whole`` marks an ``after`` with every column of its own schema, which may differ from a chunk's schema. A create
    that a key change made has the old key as ``key_before``; the delete of the old key precedes it.
    """

    position: Position
    batch: int
    lease_epoch: int
    table: str
    op: str
    key: Key | None = None
    after: Image | None = None
    txid: int | None = None
    chunk_id: str | None = None
    schema_id: str = ""
    whole: bool = False
    key_before: Key | None = None


@dataclass(frozen=True)
class ChunkRow:
    """A row read by a chunk. ``number`` counts the chunk's rows from 0."""

    batch: int
    lease_epoch: int
    table: str
    chunk_id: str
    number: int
    key: Key
    after: Image
    schema_id: str = ""


@dataclass(frozen=True)
class Low:
    """A low watermark as it appeared in the log."""

    batch: int
    lease_epoch: int
    table: str
    chunk_id: str
    position: Position


@dataclass(frozen=True)
class High:
    """A high watermark as it appeared in the log, with capture's record of its chunk."""

    batch: int
    lease_epoch: int
    table: str
    chunk_id: str
    position: Position
    txid: int | None
    end: ChunkEnd

    @property
    def window(self) -> ChunkWindow:
        return self.end.window(
            chunk_id=self.chunk_id, table=self.table, lease_epoch=self.lease_epoch, high=self.position
        )


@dataclass(frozen=True)
class Moved:
    """The beginning of an incarnation in which another server continues the log: nothing is missing before it."""

    batch: int
    lease_epoch: int
    incarnation: int
    server: str


@dataclass(frozen=True)
class LedgerRow:
    """A row of the ledger: a closed or discarded chunk window, a gap in the log, or its move to another server."""

    chunk_id: str
    lease_epoch: int
    batch: int
    status: str
    reason: str | None = None
    read: int | None = None
    emitted: int = 0
    filled: int = 0
    removed: int = 0


Landed = Event | ChunkRow | Low | High | Moved


def reconcile(landing: Iterable[Landed]) -> tuple[list[Event], list[LedgerRow]]:
    """Return all events in position order, and the ledger of every chunk window, gap and move."""
    landing = list(landing)
    log = [e for e in landing if isinstance(e, Event)]
    highs = [h for h in landing if isinstance(h, High)]
    events, ledger = list(log), []
    for high in sorted(highs, key=lambda h: h.position):
        emitted = [] if high.end.status == DISCARDED else survivors(high, log, landing) + phantoms(high, events)
        events += emitted
        ledger.append(LedgerRow(
            high.chunk_id, high.lease_epoch, high.batch, high.end.status, high.end.reason, high.end.rows,
            emitted=sum(e.op == "r" for e in emitted), filled=sum(e.op == "f" for e in emitted),
            removed=sum(e.op == "d" for e in emitted),
        ))
    return sorted(events, key=lambda e: e.position), ledger + orphans(landing, highs) + incarnations(landing)


def survivors(high: High, log: list[Event], landing: list[Landed]) -> list[Event]:
    """Return the chunk's rows, at its high watermark, that no log event in its window supersedes (DBLog, algorithm 1).

    A delete, a truncate or a whole image evicts the row; a partial image leaves the columns that it lacks, as a fill. A
    whole image evicts also under an earlier schema than the chunk's: that schema change requests a dump of its own,
    which supplies the new columns. A row that moved to another key, with partial images only, becomes a fill of the key
    that it has at the end of the window.
    """
    window = high.window
    inside = [e for e in log if e.table == high.table and window.holds(e.position, e.txid)]
    if any(e.op == "t" for e in inside):
        return []
    rows = []
    for row in landing:
        if not isinstance(row, ChunkRow):
            continue
        if (row.chunk_id, row.table, row.lease_epoch) != (high.chunk_id, high.table, high.lease_epoch):
            continue
        rivals = [e for e in inside if e.key == row.key]
        key, carried = row.key, {column for e in rivals for column in e.after or {}}
        if any(e.op == "d" or e.whole for e in rivals):
            line = followed(row, inside, window.snapshot)
            if line is None or line.key is None:
                continue
            key, carried = line.key, set(line.carried)
        rest = {column: value for column, value in row.after.items() if column not in carried}
        if rest:
            rows.append(Event(
                Position(high.position.incarnation, high.position.lsn, row.number * 2), high.batch, high.lease_epoch,
                row.table, "f" if rivals else "r", key, rest, high.txid, row.chunk_id, row.schema_id,
            ))
    return rows


@dataclass
class Line:
    """A row as it goes through a window: its key at last, None if it was deleted, and what its events carried."""

    key: Key | None = None
    carried: frozenset[str] = frozenset()
    whole: bool = False


def followed(row: ChunkRow, inside: list[Event], snapshot: Snapshot | None) -> Line | None:
    """Return where a chunk row is at the end of its window, if it is there and no event has it whole.

    Only partial creates that a key change made continue a row. Of several rows that had the key in the window, the
    chunk read the one that its snapshot saw last. Without a snapshot that is unknown: the result is None.
    """
    lines: dict[Key, Line] = {}
    ended: dict[Key, Line] = {}
    of_key: list[Line] = []
    read: Line | None = None
    for event in sorted(inside, key=lambda e: e.position):
        if event.key is None:
            continue
        line = lines.pop(event.key, None) or Line()
        if event.op == "c":
            line = (ended.get(event.key_before) if event.key_before and not event.whole else None) or Line()
        if event.key == row.key:
            is_seen = snapshot is not None and (event.txid is None or snapshot.sees(event.txid))
            if is_seen or (not of_key and event.op != "c"):
                read = line
            of_key += [] if any(line is other for other in of_key) else [line]
        line.key = None if event.op == "d" else event.key
        line.carried = line.carried.union(event.after or {})
        line.whole = line.whole or event.whole
        (ended if event.op == "d" else lines)[event.key] = line
    if snapshot is None:
        read = of_key[0] if len(of_key) == 1 else None
    return None if read is None or read.whole or read.key is None else read


def phantoms(high: High, events: list[Event]) -> list[Event]:
    """Return deletes for the keys that a dump should have returned and no event mentions since it began.

    A dump of the whole table should have returned all keys, one that removes given keys those.

    A key is excluded if an event of it was invisible to the dump's first chunk although it precedes the dump: the row
    exists. It need not be the newest event: a fill may follow it. Events of an earlier incarnation count as visible:
    their transactions have ended, and their numbers may be another server's.
    """
    began = high.end.dump_start
    if began is None:
        return []
    only = high.end.removes.keys if high.end.removes else None
    visible = Snapshot.parse(began.snapshot) if began.snapshot else None
    newest: dict[Key, Event] = {}
    before: dict[Key, Event] = {}
    hidden: set[Key] = set()
    for event in sorted(events, key=lambda e: e.position):
        if event.table == high.table and event.position < high.position:
            if event.op == "t":
                newest.clear()
                before.clear()
            elif event.key is not None:
                newest[event.key] = event
                if event.position < began.position:
                    before[event.key] = event
                    is_seen = (
                        visible is None or event.txid is None or event.position.incarnation < began.incarnation
                        or visible.sees(event.txid)
                    )
                    hidden |= set() if is_seen else {event.key}

    def is_row(event: Event) -> bool:
        return event.op != "d" and event.position < began.position and event.key not in hidden

    gone = sorted(
        (key for key, event in newest.items() if is_row(event) and (only is None or key in only)), key=key_order
    )
    if high.end.max_removed is not None and len(gone) > high.end.max_removed * sum(map(is_row, before.values())):
        return []
    at = high.position
    return [
        Event(Position(at.incarnation, at.lsn, number * 2), high.batch, high.lease_epoch, high.table, "d", key,
              None, high.txid, high.chunk_id, high.end.schema_id)
        for number, key in enumerate(gone)
    ]


def key_order(key: Key) -> bytes:
    """Return what keys that vanished together are ordered by: any order serves, but all readers need the same one."""
    texts = [part.encode() for part in key]
    return texts[0] if len(texts) == 1 else b"".join(b"%d:%s" % (len(text), text) for text in texts)


def orphans(landing: list[Landed], highs: list[High]) -> list[LedgerRow]:
    """Return the chunks whose capture lost its lease before their high watermark, once a later lease epoch lands."""
    complete = {(h.chunk_id, h.table, h.lease_epoch) for h in highs}
    ledger = []
    for low in (row for row in landing if isinstance(row, Low)):
        later = [row.batch for row in landing if row.lease_epoch > low.lease_epoch]
        if later and (low.chunk_id, low.table, low.lease_epoch) not in complete:
            ledger.append(LedgerRow(low.chunk_id, low.lease_epoch, min(later), DISCARDED, "orphaned"))
    return ledger


def incarnations(landing: list[Landed]) -> list[LedgerRow]:
    """Return a ``gap`` or a ``moved`` for the first batch of every incarnation but the first."""
    moves = {row.incarnation: row.server for row in landing if isinstance(row, Moved)}
    begins: dict[int, tuple[int, int]] = {}
    for row in landing:
        if not isinstance(row, ChunkRow):
            incarnation = row.incarnation if isinstance(row, Moved) else row.position.incarnation
            first = begins.get(incarnation, (row.batch, row.lease_epoch))
            begins[incarnation] = min(first, (row.batch, row.lease_epoch))
    ledger = []
    for incarnation, (batch, epoch) in sorted(begins.items())[1:]:
        if incarnation in moves:
            why = f"server {moves[incarnation]} continues the log of incarnation {incarnation - 1}"
            ledger.append(LedgerRow("", epoch, batch, "moved", why))
        else:
            ledger.append(LedgerRow("", epoch, batch, "gap", f"the log after incarnation {incarnation - 1} is missing"))
    return ledger


def fold(events: Iterable[Event]) -> dict[tuple[str, Key], dict[str, str | None]]:
    """Return the rows after events in order. A column that no event has set is absent, which differs from NULL.

    A partial create that a key change made keeps, of the columns that it lacks, what the row of its old key held when
    the delete of that key ended it.
    """
    rows: dict[tuple[str, Key], dict[str, str | None]] = {}
    ended: dict[tuple[str, Key], dict[str, str | None]] = {}
    for event in events:
        if event.op == "t":
            rows = {at: row for at, row in rows.items() if at[0] != event.table}
            ended = {at: row for at, row in ended.items() if at[0] != event.table}
        elif event.key is None:
            continue
        elif event.op == "d":
            ended[event.table, event.key] = rows.pop((event.table, event.key), {})
        elif event.op in "cr":
            moved = ended.get((event.table, event.key_before), {}) if event.key_before and not event.whole else {}
            rows[event.table, event.key] = {**moved, **(event.after or {})}
        else:
            rows.setdefault((event.table, event.key), {}).update(event.after or {})
    return rows

