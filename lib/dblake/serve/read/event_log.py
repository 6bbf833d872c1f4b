"""The events table as of one version, read by position: which events there are up to a point, and those of one table.

Place: above ``events.reader``. Guarantee: all answers of one ``EventLog`` come from the same Delta version, whatever is
appended later. What a point means is ``points``'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.transform.events.file_reader import concat_by_position, order_by_position
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.listing import ListedFile
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader

_PLACED = (*Position.COLUMNS, "batch", "committed_at", "origin", "last_in_txn")


@dataclass(frozen=True)
class EventPlace:
    """An event's position, batch and commit time, and whether its transaction has further events after it."""

    position: Position
    batch: int
    committed_at: datetime | None
    is_open: bool


class EventLog:
    """The events table as of the newest version when this was made, or of ``version``."""

    def __init__(self, paths: Paths, version: int | None = None) -> None:
        self._reader = reader = EventReader.open(paths.events, version)
        self.path, self.version = paths.events, reader.version
        self.batch = reader.reached(Application.reconcile(paths.source))
        self.consolidated = reader.reached(Application.consolidation(paths.source))
        """Maintenance may have removed superseded events in batches up to this one."""
        self.files_listed = reader.listing.files
        """This version's files, with statistics."""

    def read_all(self, wanted: Predicate, columns: Sequence[str] = EVENT_COLUMNS.names) -> pa.Table:
        """Return the wanted events as one table."""
        schema = pa.schema([EVENT_COLUMNS.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *self._reader.read(wanted, columns)])

    def read_ordered(self, wanted: Predicate, columns: Sequence[str] = EVENT_COLUMNS.names) -> Iterator[pa.Table]:
        """Yield the wanted events in order of position; files that overlap are read together."""
        names = [*columns, *(name for name in Position.COLUMNS if name not in columns)]
        for group in _overlapping(self.files(wanted)):
            parts = [part for file in group for part in self._reader.read_file(file.path, wanted, names)]
            if parts:
                yield concat_by_position(parts).select(list(columns))

    def estimate_bytes(self, wanted: Predicate) -> int:
        """Return the size of the files that may hold wanted events."""
        return sum(file.size for file in self.files(wanted))

    def estimate(self, wanted: Predicate) -> tuple[int, float]:
        """Return the number of wanted events, and about how many bytes of the files are theirs."""
        count, size = 0, 0.0
        for file in self.files(wanted):
            found = sum(rows.num_rows for rows in self._reader.read_file(file.path, wanted, ("batch",)))
            count += found
            size += file.size * found / max(file.rows, 1)
        return count, size

    def files(self, wanted: Predicate) -> list[ListedFile]:
        """Return the files that may hold wanted events."""
        return self._reader.files(wanted)

    def newest(self, wanted: Predicate) -> EventPlace | None:
        """Return the newest of the wanted events; None without one."""
        found: EventPlace | None = None
        for file in sorted(self.files(wanted), key=lambda f: f.last, reverse=True):
            if found and file.last < found.position:
                break
            for rows in self._reader.read_file(file.path, wanted, _PLACED):
                place = _newest_of(rows)
                found = place if found is None or place.position > found.position else found
        return found

    def oldest(self) -> EventPlace | None:
        """Return the oldest event; None without one."""
        found: EventPlace | None = None
        for file in sorted(self.files(Predicate()), key=lambda f: f.first):
            if found and file.first > found.position:
                break
            for rows in self._reader.read_file(file.path, Predicate(), _PLACED):
                place = _newest_of(rows, first=True)
                found = place if found is None or place.position < found.position else found
        return found

    def newest_complete(self) -> EventPlace | None:
        """Return the newest event of a transaction all of whose events are there; None without one."""
        place = self.newest(Predicate())
        if place is not None and place.is_open:
            # Transactions before the newest one have ended.
            return self.newest(Predicate(until=place.position.end_of_previous_transaction))
        return place


def _overlapping(files: Sequence[ListedFile]) -> Iterator[list[ListedFile]]:
    """Group files, by position, whose spans of positions overlap."""
    group: list[ListedFile] = []
    end: Position | None = None
    for file in sorted(files, key=lambda f: f.first):
        if end is not None and file.first > end:
            yield group
            group, end = [], None
        end = file.last if end is None else max(end, file.last)
        group.append(file)
    if group:
        yield group


def _newest_of(rows: pa.Table, *, first: bool = False) -> EventPlace:
    order = order_by_position(rows)
    row = rows.slice(int(order[0 if first else -1]), 1).to_pylist()[0]
    position = Position(row["incarnation"], row["lsn"], row["seq"])
    return EventPlace(position, row["batch"], row["committed_at"],
                      row["origin"] == "log" and not row["last_in_txn"])
