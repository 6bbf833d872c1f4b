"""The events table as of one Delta version: which batches it holds, and its selected rows in order of position.

Place: between ``events.reader`` and ``stream``. A subscription to a share of the keys reads a row group's images only
if one of its keys is in the share. Guarantee: rows come from complete commits of reconcile only, in order of position,
in portions that fit in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.query import query_rows
from dblake.base.lake.storage import is_local
from dblake.landing.columns import BATCH, COMMITTED_AT, INCARNATION, LSN
from dblake.serve.consume.newest_transaction import (
    END_COLUMNS,
    GroupBound,
    GroupName,
    NewestTransaction,
    NewestTransactions,
)
from dblake.transform.events.file_reader import concat_by_position
from dblake.transform.events.files import EVENT_COLUMNS
from dblake.transform.events.predicate import Predicate
from dblake.transform.events.reader import EventReader

PORTION_BYTES = 8 << 20
"""Bytes of event files that are read at a time, about."""
_MAX_PORTION_FACTOR = 2
"""A portion is extended to the end of its row groups only up to this multiple of PORTION_BYTES, or of their bytes."""


_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction whose last rows are not in events yet: its incarnation and LSN, and its first landing batch."""

    incarnation: int
    lsn: int
    batch: int

    @property
    def before(self) -> Position:
        """A position before its events and after all others."""
        return Position(self.incarnation, max(self.lsn - 1, 0), Position.MAX)


class EventTable:
    """The events of one source. ``refresh`` reads newer commits; until then all answers are of one version.

    ``batch`` is the newest landing batch in it. Superseded events may have been removed in batches up to
    ``consolidated``. ``run`` is the redecode run that its events come from.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._reader: EventReader | None = None
        self._can_check, self._check_until = is_local(paths.events), 0.0
        self._transactions = NewestTransactions(self._read_ends)
        self.batch = self.consolidated = self.run = 0
        self._expired: tuple[int, Position | None] = 0, None
        self._spans: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def bytes_read(self) -> int:
        """Bytes of column chunks read from event files so far."""
        return self._reader.bytes_read if self._reader else 0

    def refresh(self) -> bool:
        """Read the newest version; return False if nothing changed, or while there is no table.

        On a local disk the name of the next version suffices, but for a second: it may have been cleaned up.
        """
        if self._reader is None:
            self._reader = EventReader.find(self._paths.events)
            if self._reader is None:
                return False
        elif self._can_check and not self._reader.has_next() and time.monotonic() < self._check_until:
            return False
        else:
            self._check_until = time.monotonic() + _CHECK_SECONDS
            if not self._reader.refresh():
                return False
        reader, source = self._reader, self._paths.source
        self.batch = reader.reached(Application.reconcile(source))
        self.consolidated = reader.reached(Application.consolidation(source))
        self.run = reader.reached(Application.redecode(source))
        listing, newest = reader.listing, max(self.batch, 1)
        least, most = np.maximum(listing.first_batches, 1), np.minimum(listing.last_batches, newest)
        self._spans = listing.sizes, least, np.maximum(least, most)
        return True

    def has_next(self) -> bool:
        """Return whether the table has a newer version; known of a local disk only."""
        return self._reader is not None and self._reader.has_next()

    @property
    def incarnation(self) -> int:
        """The newest incarnation of any event; 0 without events."""
        return self._reader.listing.newest_incarnation if self._reader else 0

    def comes_from(self, landing_id: str) -> bool:
        """Return False if the events come from another landing table than the one with this Delta table id."""
        reader, source = self._reader, self._paths.source
        if reader is None or not reader.reached(Application.landing(source)):
            return True
        return reader.reached(Application.landing(source, landing_id)) > 0

    @property
    def newest(self) -> Position | None:
        """The beginning of the newest transaction that has events; None without events."""
        newest = self._newest()
        return Position(*newest.at) if newest else None

    def has_after(self, position: Position, batch: int) -> bool:
        """Return True if batches up to ``batch`` have events of transactions after that of a position."""
        later = Predicate(until_batch=batch, after=position.end_of_transaction)
        return self._reader is not None and any(True for _ in self._reader.read(later, [BATCH]))

    def find_open_transaction(self) -> OpenTransaction | None:
        """Return the newest transaction of the log if batches that are not in events yet may continue it."""
        newest = self._newest()
        if newest is None or not newest.has_log or newest.has_end or self._has_landed(*newest.at, newest.batch):
            return None
        return OpenTransaction(*newest.at, newest.batch)

    def _newest(self) -> NewestTransaction | None:
        if self._reader is None:
            return None
        candidates = Predicate(since=self._reader.listing.newest_first)
        bounds = partial(self._group_bounds, self._reader, candidates)
        return self._transactions.find(
            ((file.last.incarnation, file.last.lsn), partial(bounds, file.path))
            for file in self._reader.files(candidates)
        )

    @staticmethod
    def _group_bounds(reader: EventReader, candidates: Predicate, path: str) -> Iterator[GroupBound]:
        for group in reader.row_groups(path, candidates):
            high = group.high
            yield GroupBound((path, group.number), (high.get(INCARNATION, Position.MAX), high.get(LSN, Position.MAX)))

    def _read_ends(self, name: GroupName) -> pa.Table:
        assert self._reader is not None, "it has listed the file"
        return self._reader.read_group(*name, END_COLUMNS)

    def _has_landed(self, incarnation: int, lsn: int, first: int) -> bool:
        """Return True if landing shows, in batches that are in events, that a transaction ended."""
        later = f"incarnation > {incarnation} OR (incarnation = {incarnation} AND (lsn > {lsn} OR lsn = {lsn} AND " \
                "last_in_txn))"
        where = f"batch >= {first} AND batch <= {self.batch} AND kind <> 'chunk' AND ({later})"
        (found,) = query_rows(self._paths.landing, f"SELECT count(*) AS n FROM t WHERE {where}") or [{"n": 0}]
        return bool(found["n"])

    def read(self, wanted: Predicate) -> Iterator[tuple[int, pa.Table]]:
        """Yield the wanted rows in order of position.

        Each portion comes with the last batch that it covers; it may be empty. Rows have EVENT_COLUMNS.
        """
        if self._reader is None:
            return
        # Keys have no statistics, and may be few.
        probes, first = wanted.rows is not None, wanted.after_batch + 1
        while first <= self.batch:
            last = self._portion_end(first)
            last = self._row_groups_end(self._reader, replace(wanted, after_batch=first - 1, until_batch=last))
            portion = replace(wanted, after_batch=first - 1, until_batch=last)
            yield last, concat_by_position(list(self._reader.read(portion, probes_rows=probes)))
            first = last + 1

    def read_columns(self, wanted: Predicate, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns of the wanted rows, in no particular order."""
        if self._reader is not None:
            yield from self._reader.read(wanted, columns, probes_rows=wanted.rows is not None)

    def oldest_commit(self, wanted: Predicate) -> datetime | None:
        """Return the earliest commit time in the first file with wanted rows; None without one.

        Files hold consecutive batches, so a later file has later commits.
        """
        if self._reader is None:
            return None
        for file in self._reader.files(wanted):
            portions = self._reader.read_file(file.path, wanted, [COMMITTED_AT], probes_rows=wanted.rows is not None)
            times: list[datetime | None] = [pc.min(rows[COMMITTED_AT]).as_py() for rows in portions]
            known = [time for time in times if time is not None]
            if known:
                return min(known)
        return None

    def bytes_after(self, batch: int) -> int:
        """Return about how many bytes of event files batches after one have."""
        return round(self._estimate(batch + 1, self.batch)) if self._reader and batch < self.batch else 0

    def expired(self) -> Position | None:
        """Return the newest position in batches that may have lost events to consolidation; None without one."""
        if self._expired[0] != self.consolidated:
            self._expired = self.consolidated, self.position_of_batch(self.consolidated)
        return self._expired[1]

    def position_of_batch(self, upto: int) -> Position | None:
        """Return the newest position in batches up to a number; None without events."""
        rows = query_rows(
            self._paths.events, f"SELECT incarnation, lsn, seq FROM t WHERE batch <= {upto} "
                                "ORDER BY incarnation DESC, lsn DESC, seq DESC LIMIT 1",
        )
        return Position(rows[0]["incarnation"], rows[0]["lsn"], rows[0]["seq"]) if rows else None

    def _portion_end(self, first: int) -> int:
        """Return the last batch up to which event files have about PORTION_BYTES from ``first`` on."""
        low, high = first, self.batch
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._estimate(first, middle) <= PORTION_BYTES else (low, middle - 1)
        return low

    def _row_groups_end(self, reader: EventReader, portion: Predicate) -> int:
        """Return the last batch of the row groups that some batches are in, so that no portion reads one again.

        It is their last batch where they have more bytes than a portion may: row groups that hold a part of each.
        """
        first, last = portion.after_batch + 1, portion.until_batch
        end, read = last, 0
        in_batches = Predicate(portion.after_batch, last)
        for file in reader.files(portion):
            for group in reader.row_groups(file.path, in_batches):
                end = max(end, min(group.high.get(BATCH, Position.MAX), self.batch))
                read += group.stored_bytes(EVENT_COLUMNS.names)
        is_small = self._estimate(first, end) <= _MAX_PORTION_FACTOR * max(read, PORTION_BYTES)
        return end if is_small else last

    def _estimate(self, first: int, last: int) -> float:
        """Return the bytes of files in some batches, as if each file's bytes were spread evenly over its batches."""
        size, least, most = self._spans
        common = np.minimum(most, last) - np.maximum(least, first) + 1
        return float((size * np.clip(common, 0, None) / (most - least + 1)).sum())
