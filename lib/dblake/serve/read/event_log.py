"""The events table as of one version, read by position: which events there are up to a point, and those of one table.

Files are skipped by their statistics in the Delta log, row groups by those in their footers. Guarantee: all answers of
one ``EventLog`` come from the same Delta version, whatever is appended later. What a point means is ``points``'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.base.lake.files import group_bounds
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.tables import list_files, open_table
from dblake.serve.read.event_files import as_plain_columns, open_event_file, order_by_position
from dblake.transform.events.files import EVENT_COLUMNS

_NUMBERS = ("batch", "incarnation", "lsn")
_TRANSACTION_COLUMNS = (*Position.COLUMNS, "batch", "committed_at", "origin", "last_in_txn")
#: Delta's statistics have milliseconds.
_ROUNDING = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Wanted:
    """Which events: after batch ``after_batch``, after ``after``, up to and including ``until``, of ``table``.

    ``committed_by`` limits them to those that committed at or before a time.
    """

    until: Position | None = None
    after: Position | None = None
    after_batch: int = 0
    until_batch: int = Position.MAX
    table: str | None = None
    committed_by: datetime | None = None

    def filter(self, events: pa.Table) -> pa.Table:
        """Return the wanted rows; ``events`` has ``conditions``."""
        batches = events["batch"].to_numpy()
        wanted = (batches > self.after_batch) & (batches <= self.until_batch)
        at = [events[name].to_numpy() for name in Position.COLUMNS]
        if self.until is not None:
            wanted &= ~is_older(position_parts(self.until), at)
        if self.after is not None:
            wanted &= is_older(position_parts(self.after), at)
        if self.table is not None:
            wanted &= pc.equal(events["table"].cast(pa.string()), self.table).to_numpy()
        if self.committed_by is not None:
            limit = pa.scalar(self.committed_by, pa.timestamp("us", tz="UTC"))
            wanted &= pc.fill_null(pc.less_equal(events["committed_at"], limit), False).to_numpy()
        return events if wanted.all() else events.filter(pa.array(wanted))

    @property
    def conditions(self) -> set[str]:
        """The columns that ``filter`` reads."""
        found = {*Position.COLUMNS, "batch"}
        found |= {"table"} if self.table is not None else set()
        return found | ({"committed_at"} if self.committed_by is not None else set())

    def may_hold(self, low: dict[str, Any], high: dict[str, Any]) -> bool:
        """Return False only if no row with these least and greatest values is wanted; a missing one bounds nothing."""
        if self.table is not None and not low.get("table", self.table) <= self.table <= high.get("table", self.table):
            return False
        first = Position(max(low.get("incarnation", 1), 1), low.get("lsn", 0))
        last = Position(high.get("incarnation", Position.MAX), high.get("lsn", Position.MAX), Position.MAX)
        return (
            low.get("batch", 0) <= self.until_batch and high.get("batch", Position.MAX) > self.after_batch
            and (self.until is None or first <= self.until) and (self.after is None or last > self.after)
        )


@dataclass(frozen=True)
class _File:
    """A file whose events are between two positions, as far as statistics bound them."""

    path: str
    size: int
    rows: int
    first: Position
    last: Position


class _Listing:
    """One version's files and their statistics, as columns: a lake has many thousands."""

    def __init__(self, actions: pa.Table) -> None:
        self._actions = actions
        self._low = {name: self._numbers(f"min.{name}", -1) for name in _NUMBERS}
        self._high = {name: self._numbers(f"max.{name}", Position.MAX) for name in _NUMBERS}

    def _numbers(self, name: str, missing: int) -> np.ndarray:
        if name not in self._actions.column_names:
            return np.full(self._actions.num_rows, missing, np.int64)
        found: np.ndarray = pc.fill_null(self._actions[name].cast(pa.int64()), missing).to_numpy()
        return found

    def _where(self, name: str, compare: Any, limit: Any) -> np.ndarray:
        """Mark the files of which a statistic compares; those without it, too."""
        if name not in self._actions.column_names:
            return np.ones(self._actions.num_rows, bool)
        found: np.ndarray = pc.fill_null(compare(self._actions[name], limit), True).to_numpy()
        return found.astype(bool)

    def files(self, wanted: Wanted) -> list[_File]:
        """Return the files that may hold wanted events, in no particular order."""
        low, high = self._low, self._high
        mask = (low["batch"] <= wanted.until_batch) & (high["batch"] > wanted.after_batch)
        if wanted.until is not None:
            seqs = np.zeros(len(mask), np.int64)
            mask &= ~is_older(position_parts(wanted.until), [low["incarnation"], low["lsn"], seqs])
        if wanted.after is not None:
            seqs = np.full(len(mask), Position.MAX, np.int64)
            mask &= is_older(position_parts(wanted.after), [high["incarnation"], high["lsn"], seqs])
        if wanted.table is not None:
            mask &= self._where("min.table", pc.less_equal, wanted.table)
            mask &= self._where("max.table", pc.greater_equal, wanted.table)
        if wanted.committed_by is not None:
            limit = pa.scalar(wanted.committed_by + _ROUNDING, pa.timestamp("us", tz="UTC"))
            mask &= self._where("min.committed_at", pc.less_equal, limit)
        rows = np.flatnonzero(mask)
        chosen = self._actions.select(["path", "size_bytes", "num_records"]).take(pa.array(rows)).to_pydict()
        bounds = (part[rows].tolist() for part in (low["incarnation"], low["lsn"], high["incarnation"], high["lsn"]))
        return [
            _File(path, size, records or 0, Position(max(i, 1), max(lsn, 0)), Position(j, end, Position.MAX))
            for path, size, records, i, lsn, j, end in zip(*chosen.values(), *bounds, strict=True)
        ]


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
        table = open_table(paths.events, version)
        self.path, self.version = paths.events, table.version()
        self.batch = table.transaction_version(Application.reconcile(paths.source)) or 0
        self.consolidated = table.transaction_version(Application.consolidation(paths.source)) or 0
        """The newest batch of which maintenance may have removed superseded events."""
        self.files_listed = list_files(table)
        """This version's files, with statistics."""
        self._listing = _Listing(self.files_listed)

    def read(self, wanted: Wanted, columns: Sequence[str] = EVENT_COLUMNS.names) -> Iterator[pa.Table]:
        """Yield the wanted events, one row group at a time, in no particular order."""
        for file in self.files(wanted):
            yield from self._read_file(file, wanted, columns)

    def read_all(self, wanted: Wanted, columns: Sequence[str] = EVENT_COLUMNS.names) -> pa.Table:
        """Return the wanted events as one table."""
        schema = pa.schema([EVENT_COLUMNS.field(name) for name in columns])
        return pa.concat_tables([schema.empty_table(), *self.read(wanted, columns)])

    def read_ordered(self, wanted: Wanted, columns: Sequence[str] = EVENT_COLUMNS.names) -> Iterator[pa.Table]:
        """Yield the wanted events in order of position; files that overlap are read together."""
        names = [*columns, *(name for name in Position.COLUMNS if name not in columns)]
        for group in _overlapping(self.files(wanted)):
            parts = [part for file in group for part in self._read_file(file, wanted, names)]
            rows = pa.concat_tables(parts) if parts else None
            if rows is not None and rows.num_rows:
                yield rows.take(pa.array(order_by_position(rows))).select(list(columns))

    def estimate_bytes(self, wanted: Wanted) -> int:
        """Return the size of the files that may hold wanted events."""
        return sum(file.size for file in self.files(wanted))

    def estimate(self, wanted: Wanted) -> tuple[int, float]:
        """Return the number of wanted events, and about how many bytes of the files are theirs."""
        count, size = 0, 0.0
        for file in self.files(wanted):
            found = sum(rows.num_rows for rows in self._read_file(file, wanted, ("batch",)))
            count += found
            size += file.size * found / max(file.rows, 1)
        return count, size

    def files(self, wanted: Wanted) -> list[_File]:
        """Return the files that may hold wanted events."""
        return self._listing.files(wanted)

    def newest(self, wanted: Wanted) -> EventPlace | None:
        """Return the newest of the wanted events; None without one."""
        found: EventPlace | None = None
        for file in sorted(self.files(wanted), key=lambda f: f.last, reverse=True):
            if found and file.last < found.position:
                break
            for rows in self._read_file(file, wanted, _TRANSACTION_COLUMNS):
                if rows.num_rows:
                    place = _newest_of(rows)
                    found = place if found is None or place.position > found.position else found
        return found

    def oldest(self) -> EventPlace | None:
        """Return the oldest event; None without one."""
        found: EventPlace | None = None
        for file in sorted(self.files(Wanted()), key=lambda f: f.first):
            if found and file.first > found.position:
                break
            for rows in self._read_file(file, Wanted(), _TRANSACTION_COLUMNS):
                if rows.num_rows:
                    place = _newest_of(rows, first=True)
                    found = place if found is None or place.position < found.position else found
        return found

    def newest_complete(self) -> EventPlace | None:
        """Return the newest event of a transaction all of whose events are there; None without one."""
        place = self.newest(Wanted())
        if place is not None and place.is_open:
            # Transactions before the newest one have ended.
            return self.newest(Wanted(until=place.position.end_of_previous_transaction))
        return place

    def _read_file(self, file: _File, wanted: Wanted, columns: Sequence[str]) -> Iterator[pa.Table]:
        with open_event_file(self.path, file.path) as parquet:
            names = [name for name in parquet.schema_arrow.names if name in {*columns, *wanted.conditions}]
            for group in range(parquet.num_row_groups):
                if wanted.may_hold(*group_bounds(parquet.metadata.row_group(group), (*_NUMBERS, "table"))):
                    rows = wanted.filter(parquet.read_row_group(group, names, use_threads=False))
                    yield as_plain_columns(rows, columns)


def _overlapping(files: Sequence[_File]) -> Iterator[list[_File]]:
    """Group files, by position, whose spans of positions overlap."""
    group: list[_File] = []
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
