"""The specification: what reconcile makes of a landing table, in plain Python, easy to believe and slow.

Landing comes already decoded, as a list of the four kinds of things below, in any order. ``reconcile`` gives the
events in order and the ledger of chunk windows; ``fold`` gives the rows those events leave. When Spark and this page
disagree, one of them is wrong, and it is decided in writing which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dblake.core.position import Position
from dblake.core.window import ChunkWindow, Snapshot
from dblake.landing.control import DISCARDED, ChunkEnd

Key = tuple[str, ...]
Image = Mapping[str, str | None]


@dataclass(frozen=True)
class Event:
    """One change: c create, u update, d delete, t truncate from the log; r read, f fill, d removed from a dump.

    ``whole`` is an image that has every column of its own schema, which may be another one than a chunk's.
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


@dataclass(frozen=True)
class ChunkRow:
    """A row a chunk read. ``number`` counts the chunk's rows from 0."""

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
    """A low watermark as the log showed it."""

    batch: int
    lease_epoch: int
    table: str
    chunk_id: str
    position: Position


@dataclass(frozen=True)
class High:
    """A high watermark as the log showed it, with what capture says of its chunk."""

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
class Closed:
    """A line of the ledger."""

    chunk_id: str
    lease_epoch: int
    batch: int
    status: str
    reason: str | None = None
    read: int | None = None
    emitted: int = 0
    filled: int = 0
    removed: int = 0


Landed = Event | ChunkRow | Low | High


def reconcile(landing: Iterable[Landed]) -> tuple[list[Event], list[Closed]]:
    """What really happened, in order, and what became of every chunk."""
    landing = list(landing)
    log = [e for e in landing if isinstance(e, Event)]
    highs = [h for h in landing if isinstance(h, High)]
    events, ledger = list(log), []
    for high in sorted(highs, key=lambda h: h.position):
        kept = [] if high.end.status == DISCARDED else survivors(high, log, landing) + phantoms(high, events)
        events += kept
        ledger.append(Closed(
            high.chunk_id, high.lease_epoch, high.batch, high.end.status, high.end.reason, high.end.rows,
            emitted=sum(e.op == "r" for e in kept), filled=sum(e.op == "f" for e in kept),
            removed=sum(e.op == "d" for e in kept),
        ))
    return sorted(events, key=lambda e: e.position), ledger + orphans(landing, highs) + gaps(landing)


def survivors(high: High, log: list[Event], landing: list[Landed]) -> list[Event]:
    """The chunk's rows, at its high watermark, that no event in its window makes doubtful.

    A whole image evicts, also one under the schema of before the chunk's: what only the chunk's has is told by the dump
    that such a change asks for.
    """
    window = high.window
    inside = [e for e in log if e.table == high.table and window.holds(e.position, e.txid)]
    if any(e.op == "t" for e in inside):
        return []
    kept = []
    for row in landing:
        if not isinstance(row, ChunkRow):
            continue
        if (row.chunk_id, row.table, row.lease_epoch) != (high.chunk_id, high.table, high.lease_epoch):
            continue
        rivals = [e for e in inside if e.key == row.key]
        carried = {column for e in rivals for column in e.after or {}}
        rest = {column: value for column, value in row.after.items() if column not in carried}
        if rest and not any(e.op == "d" or e.whole for e in rivals):
            kept.append(Event(
                Position(high.position.incarnation, high.position.lsn, row.number * 2), high.batch, high.lease_epoch,
                row.table, "f" if rivals else "r", row.key, rest, high.txid, row.chunk_id, row.schema_id,
            ))
    return kept


def phantoms(high: High, events: list[Event]) -> list[Event]:
    """Keys that a dump of the whole table did not return and nothing has told of since it began: they are gone.

    Not those whose last event the dump's earliest chunk could not see, though it came before: the row is there. What an
    earlier incarnation told is seen: its transactions are over, and their numbers may be another server's.
    """
    began = high.end.began
    if began is None:
        return []
    seen = Snapshot.parse(began.snapshot) if began.snapshot else None
    newest: dict[Key, Event] = {}
    for event in sorted(events, key=lambda e: e.position):
        if event.table == high.table and event.position < high.position:
            if event.op == "t":
                newest.clear()
            elif event.key is not None:
                newest[event.key] = event
    gone = sorted(
        key for key, event in newest.items()
        if event.op != "d" and event.position < began.position
        and (seen is None or event.txid is None or event.position.incarnation < began.incarnation
             or seen.sees(event.txid))
    )
    at = high.position
    return [
        Event(Position(at.incarnation, at.lsn, number * 2), high.batch, high.lease_epoch, high.table, "d", key,
              None, high.txid, high.chunk_id, high.end.schema_id)
        for number, key in enumerate(gone)
    ]


def orphans(landing: list[Landed], highs: list[High]) -> list[Closed]:
    """Chunks whose capture lost its lease before their high watermark: told once a later lease epoch lands."""
    answered = {(h.chunk_id, h.table, h.lease_epoch) for h in highs}
    ledger = []
    for low in (row for row in landing if isinstance(row, Low)):
        later = [row.batch for row in landing if row.lease_epoch > low.lease_epoch]
        if later and (low.chunk_id, low.table, low.lease_epoch) not in answered:
            ledger.append(Closed(low.chunk_id, low.lease_epoch, min(later), DISCARDED, "orphaned"))
    return ledger


def gaps(landing: list[Landed]) -> list[Closed]:
    """Batches with which an incarnation begins that follows another."""
    begins: dict[int, tuple[int, int]] = {}
    for row in landing:
        if not isinstance(row, ChunkRow):
            first = begins.get(row.position.incarnation, (row.batch, row.lease_epoch))
            begins[row.position.incarnation] = min(first, (row.batch, row.lease_epoch))
    return [
        Closed("", epoch, batch, "gap", f"the log after incarnation {incarnation - 1} is missing")
        for incarnation, (batch, epoch) in sorted(begins.items())[1:]
    ]


def fold(events: Iterable[Event]) -> dict[tuple[str, Key], dict[str, str | None]]:
    """The rows left by events in order. A column nothing has told of yet is absent, which is not NULL."""
    rows: dict[tuple[str, Key], dict[str, str | None]] = {}
    for event in events:
        if event.op == "t":
            rows = {at: row for at, row in rows.items() if at[0] != event.table}
        elif event.key is None:
            continue
        elif event.op == "d":
            rows.pop((event.table, event.key), None)
        elif event.op in "cr":
            rows[event.table, event.key] = dict(event.after or {})
        else:
            rows.setdefault((event.table, event.key), {}).update(event.after or {})
    return rows

