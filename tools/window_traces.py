"""Stories of chunk windows, played on the executable specification: what the figures and docs/window.html show.

``build_traces`` returns one document per story: its steps in the order of time, and what follows from them. The steps
are written here; the verdict of every chunk row, the events, the ledger and the rows at the end are those of
``tests/model/dblog.py``. Drawing is for ``figures``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dblake.base.core.position import Position
from dblake.base.core.window import ChunkWindow
from dblake.landing.control import ChunkEnd
from tests.model.dblog import ChunkRow, Event, High, Landed, Low, fold, reconcile

TABLE, CHUNK = "public.orders", "chunk 1"
_STEP_LSN = 10
_VERBS = {"c": "insert", "u": "update", "d": "delete"}
Document = dict[str, Any]
Row = Mapping[str, str | None]


class Story:
    """One table at a source, its log, and the capture of one chunk. Each method is one step, with its explanation."""

    def __init__(self, name: str, title: str, lesson: str, rows: Mapping[str, Row]) -> None:
        self.name, self.title, self.lesson = name, title, lesson
        self.landed: list[Landed] = []
        self.steps: list[Document] = []
        self._rows: dict[str, Row] = dict(rows)
        self._hidden: dict[int, tuple[str, Row | None]] = {}
        self._lsn, self._txid, self._batch, self._low = 100, 700, 1, Position(1, 1)
        self._snapshot, self._read = "", 0
        self._note("start", "The table as it is. Nothing of it has been read yet.")

    def write(self, op: str, key: str, after: Row | None, text: str, *, partial: bool = False,
              late: bool = False) -> Story:
        """Commit a change. With ``late`` other sessions see it only after ``reveal``."""
        self._txid += 1
        position, row = self._advance(), after if after is None else {**self._rows.get(key, {}), **after}
        self.landed.append(Event(position, self._batch, 1, TABLE, op, (key,), after, self._txid,
                                 whole=after is not None and not partial))
        if late:
            self._hidden[self._txid] = key, row
        else:
            self._apply(key, row)
        self._note("write", text, position, verb=_VERBS[op], key=key, after=after, txid=self._txid, late=late)
        return self

    def reveal(self, text: str) -> Story:
        """Make the changes visible that were committed late."""
        for key, row in self._hidden.values():
            self._apply(key, row)
        self._hidden.clear()
        self._note("visible", text)
        return self

    def low(self, text: str) -> Story:
        """Write the chunk's low watermark."""
        self._txid += 1
        self._low = self._advance()
        self.landed.append(Low(self._batch, 1, TABLE, CHUNK, self._low))
        self._note("low", text, self._low)
        return self

    def read(self, text: str) -> Story:
        """Read the chunk: the rows that are visible now."""
        end = self._txid + 1
        running = sorted(self._hidden)
        self._snapshot = f"{min([*running, end])}:{end}:{','.join(map(str, running))}"
        self._read = len(self._rows)
        self.landed += [
            ChunkRow(self._batch, 1, TABLE, CHUNK, number, (key,), row)
            for number, (key, row) in enumerate(sorted(self._rows.items()))
        ]
        self._note("read", text, snapshot=self._snapshot)
        return self

    def high(self, text: str) -> Story:
        """Write the chunk's high watermark."""
        self._txid += 1
        position = self._advance()
        end = ChunkEnd("dump", 1, self._low.lsn, 0, "", self._read, 1, self._snapshot)
        self.landed.append(High(self._batch, 1, TABLE, CHUNK, position, self._txid, end))
        self._note("high", text, position)
        return self

    def land(self) -> Story:
        """End the landing batch: later rows are those of the next one."""
        self._batch += 1
        return self

    def document(self) -> Document:
        """Return the story with what the model makes of it."""
        events, (ledger, *_) = reconcile(self.landed)
        (high,) = [record for record in self.landed if isinstance(record, High)]
        verdicts = list(_verdicts(self.landed, high.window, events))
        published = reconcile([_by_position(record) for record in self.landed])[0]
        return {
            "name": self.name, "title": self.title, "lesson": self.lesson,
            "low": str(high.window.low), "high": str(high.position), "snapshot": self._snapshot,
            "steps": self.steps, "verdicts": verdicts,
            "events": [_event(event) for event in events],
            "ledger": {"rows_read": ledger.read, "rows_emitted": ledger.emitted, "rows_filled": ledger.filled,
                       "rows_dropped": self._read - ledger.emitted - ledger.filled},
            "source": dict(self._rows), "state": _rows(events), "published": _rows(published),
        }

    def _advance(self) -> Position:
        self._lsn += _STEP_LSN
        return Position(1, self._lsn)

    def _apply(self, key: str, row: Row | None) -> None:
        self._rows.pop(key, None)
        if row is not None:
            self._rows[key] = row

    def _note(self, kind: str, text: str, position: Position | None = None, **more: object) -> None:
        self.steps.append({
            "kind": kind, "text": text, "batch": self._batch, "position": position and _short(position),
            "source": dict(sorted(self._rows.items())), **more,
        })


def build_traces() -> list[Document]:
    """Return the documents of all stories."""
    return [story.document() for story in (_update(), _delete(), _late(), _large())]


def _update() -> Story:
    rows = {key: {"status": "new"} for key in "123"}
    story = Story("update", "An update inside the window",
                  "The log always has the newer row, so the row of the chunk gives way.", rows)
    story.write("u", "1", {"status": "packed"}, "Order 1 is packed. This is before the window, and it is visible.")
    story.land().low("Capture updates its watermark row. The log now has a low watermark.")
    story.read("Capture reads a chunk: orders 1 to 3. The application goes on writing.")
    story.write("u", "2", {"status": "paid"}, "Order 2 is paid. The chunk has read the row before, so its copy is old.")
    story.land().high("Capture updates its watermark row again: the high watermark. The window is closed.")
    return story.write("c", "4", {"status": "new"}, "Order 4 is new. It is after the window, and not in the chunk.")


def _delete() -> Story:
    rows = {key: {"status": "new"} for key in "123"}
    story = Story("delete", "A delete inside the window",
                  "Without the rule the chunk would bring a deleted row back, and no event would remove it.", rows)
    story.low("Capture writes the low watermark.")
    story.read("Capture reads a chunk: orders 1 to 3.")
    story.write("d", "3", None, "Order 3 is deleted. The chunk still has it.")
    return story.land().high("Capture writes the high watermark.")


def _late() -> Story:
    rows = {key: {"status": "new"} for key in "123"}
    story = Story("late", "PostgreSQL: in the log, but not yet visible",
                  "A commit reaches PostgreSQL's log before other sessions see it. The chunk's snapshot shows what the "
                  "read could not see.", rows)
    story.write("u", "2", {"status": "paid"},
                "Order 2 is paid. The commit is in the log, but the server waits for its standby: no session sees it.",
                late=True)
    story.low("Capture writes the low watermark. The update is before it in the log.")
    story.read("Capture reads a chunk, with its snapshot. It returns the old row of order 2.")
    story.reveal("The standby has answered. From now on all sessions see that order 2 is paid.")
    return story.land().high("Capture writes the high watermark. No event lies between the two.")


def _large() -> Story:
    rows = {key: {"status": "new", "note": f"long text {key}"} for key in "12"}
    story = Story("large", "An update that leaves a large value out",
                  "PostgreSQL does not log an unchanged large (TOAST) value. The chunk supplies it.", rows)
    story.low("Capture writes the low watermark.")
    story.read("Capture reads a chunk: orders 1 and 2, each with its note.")
    story.write("u", "2", {"status": "paid"}, "Order 2 is paid. The log has its status, but not its unchanged note.",
                partial=True)
    return story.land().high("Capture writes the high watermark.")


def _verdicts(landed: list[Landed], window: ChunkWindow, events: list[Event]) -> Iterator[Document]:
    """Yield what becomes of each chunk row, and why."""
    emitted = {event.key: event for event in events if event.chunk_id == CHUNK}
    log = [record for record in landed if isinstance(record, Event)]
    for row in landed:
        if isinstance(row, ChunkRow):
            rivals = [e for e in log if e.key == row.key and window.holds(e.position, e.txid)]
            before = [e for e in log if e.key == row.key and e not in rivals and e.position < window.low]
            event = emitted.get(row.key)
            yield {
                "key": row.key[0], "row": row.after, "batch": row.batch,
                "verdict": {"r": "emitted", "f": "filled"}[event.op] if event else "evicted",
                "at": str(event.position) if event else None, "after": event.after if event else None,
                "by": [_short(rival.position) for rival in rivals], "why": _reason(event, rivals, before, window),
            }


def _reason(event: Event | None, rivals: list[Event], before: list[Event], window: ChunkWindow) -> str:
    if not rivals:
        if not before:
            return "No event of this order is in the window. The chunk row is the newest, at the high watermark."
        return (f"The {_named(before[-1])} precedes the low watermark, and the read could see it: the chunk row has "
                "it. The chunk row is emitted at the high watermark.")
    rival = rivals[-1]
    if event is not None:
        lacking = " and ".join(event.after or {})
        return f"The {_named(rival)} is in the window, but does not have {lacking}. The chunk row supplies only that."
    if rival.position > window.low:
        return f"The {_named(rival)} lies between the watermarks. The event counts, and the chunk row is dropped."
    return (f"The {_named(rival)} precedes the low watermark, but the chunk's snapshot lists its transaction "
            f"{rival.txid} as running: the read could not see it. The event counts, and the chunk row is dropped.")


def _named(event: Event) -> str:
    return f"{_VERBS[event.op]} at {_short(event.position)}"


def _short(position: Position) -> str:
    """Return a position without its last part, as users write the end of a transaction."""
    return f"{position.incarnation}/{position.lsn}"


def _by_position(record: Landed) -> Landed:
    """Return the record as the published rule has it: without a snapshot."""
    return replace(record, end=replace(record.end, snapshot=None)) if isinstance(record, High) else record


def _event(event: Event) -> Document:
    return {"position": str(event.position), "op": event.op, "key": (event.key or ("",))[0], "after": event.after,
            "batch": event.batch, "origin": "dump" if event.chunk_id else "log"}


def _rows(events: list[Event]) -> dict[str, Row]:
    return {key[0]: row for (_, key), row in sorted(fold(events).items())}
