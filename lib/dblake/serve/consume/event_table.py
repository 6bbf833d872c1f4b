"""The events table as of one Delta version: which batches it holds, and its selected rows in order of position.

Place: between the lake and ``stream``. Files are skipped by their statistics in the Delta log (batch, position, table),
row groups by those in their footers; a subscription to a share of the keys reads a row group's images only if one of
its keys is in the share. Guarantee: rows come from complete commits of reconcile only, in order of position, in
portions that fit in memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.base.lake.files import group_bounds
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import DeltaTable, find_table, list_files
from dblake.landing.columns import BATCH, INCARNATION, LSN, TABLE
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.footers import Footers
from dblake.serve.consume.newest_transaction import (
    END_COLUMNS,
    GroupBound,
    GroupName,
    NewestTransaction,
    NewestTransactions,
)
from dblake.serve.read.event_files import as_plain_columns, concat_by_position, open_event_file
from dblake.transform.events.files import EVENT_COLUMNS

PORTION_BYTES = 8 << 20
"""Bytes of event files that are read at a time, about."""
_PORTIONS_AT_MOST = 2
"""A portion that ends with its row groups has at most so many times the bytes, or those of the row groups."""
_SELECTING = [*Position.COLUMNS, BATCH, TABLE, "op", "key"]
"""The columns that ``Wanted.choose`` reads."""
_BOUNDED = (BATCH, INCARNATION, LSN, TABLE)


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    low: dict[str, Any]
    high: dict[str, Any]

    def overlaps(self, first: int, last: int) -> bool:
        return bool(self.low[BATCH] <= last and self.high[BATCH] >= first)


@dataclass(frozen=True)
class Wanted:
    """Which rows: after one position, up to another if given, of a selection. ``tables`` are its tables, in order."""

    after: Position
    until: Position | None
    selection: Selection
    tables: Sequence[str]

    def may_be_in(self, file: _File) -> bool:
        """Return False if statistics show that a file has no wanted row."""
        if (file.high[INCARNATION], file.high[LSN]) < (self.after.incarnation, self.after.lsn):
            return False
        return self.has_table_between(file.low[TABLE], file.high[TABLE])

    def has_table_between(self, low: str | None, high: str | None) -> bool:
        """Return True unless no wanted table's name lies between two; None bounds nothing."""
        if low is None or high is None:
            return True
        first = bisect_left(self.tables, low)
        return first < len(self.tables) and self.tables[first] <= high

    def choose(self, rows: pa.Table, first: int, last: int) -> np.ndarray:
        """Return which rows of some batches are wanted."""
        batches = rows[BATCH].to_numpy()
        at = [rows[name].to_numpy() for name in Position.COLUMNS]
        wanted = (batches >= first) & (batches <= last) & is_older(position_parts(self.after), at)
        if self.until is not None:
            wanted &= ~is_older(position_parts(self.until), at)
        tables = _one_chunk(rows[TABLE])
        tables = tables if pa.types.is_dictionary(tables.type) else tables.dictionary_encode()
        chosen = np.array([self.selection.has_table(name) for name in tables.dictionary.to_pylist()], bool)
        if not chosen.all():
            wanted &= chosen[tables.indices.to_numpy(zero_copy_only=False)]
        if self.selection.partition is not None and wanted.any():
            # Keys of other rows may have another type.
            own = rows.select(["op", "key"]).filter(pa.array(wanted))
            is_truncate = pc.equal(own["op"].cast(pa.string()), Op.TRUNCATE).to_numpy()
            wanted[wanted] = self.selection.partition.select_keys(_one_chunk(own["key"])) | is_truncate
        chosen_rows: np.ndarray = wanted
        return chosen_rows


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

    ``batch`` is the newest landing batch in it, ``consolidated`` the newest batch of which superseded events may have
    been removed, ``run`` the redecode run that its events come from.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._table: DeltaTable | None = None
        self._footers = Footers(paths.events)
        self._transactions = NewestTransactions(self._read_ends)
        self._files: list[_File] = []
        self._spans: tuple[np.ndarray, np.ndarray, np.ndarray]
        self.batch = self.consolidated = self.run = 0
        self._expired: tuple[int, Position | None] = 0, None
        self.bytes_read = 0
        """Bytes of column chunks read from event files so far."""

    def refresh(self) -> bool:
        """Read the newest version; return False if nothing changed, or while there is no table."""
        if self._table is None:
            self._table = find_table(self._paths.events)
            if self._table is None:
                return False
        else:
            version = self._table.version()
            self._table.update_incremental()
            if self._table.version() == version:
                return False
        table, source = self._table, self._paths.source
        self.batch = table.transaction_version(Application.reconcile(source)) or 0
        self.consolidated = table.transaction_version(Application.consolidation(source)) or 0
        self.run = table.transaction_version(Application.redecode(source)) or 0
        self._files = _read_bounds(table)
        least = np.array([max(file.low[BATCH], 1) for file in self._files], np.int64)
        most = np.array([min(file.high[BATCH], max(self.batch, 1)) for file in self._files], np.int64)
        self._spans = np.array([file.size for file in self._files], np.float64), least, np.maximum(least, most)
        return True

    @property
    def incarnation(self) -> int:
        """The newest incarnation of any event; 0 without events."""
        known = [file.high[INCARNATION] for file in self._files]
        return max((number for number in known if number < Position.MAX), default=0)

    @property
    def newest(self) -> Position | None:
        """The beginning of the newest transaction that has events; None without events."""
        newest = self._newest()
        return Position(*newest.at) if newest else None

    def has_after(self, position: Position, batch: int) -> bool:
        """Return True if batches up to ``batch`` have events of transactions after that of a position."""
        after = position.incarnation, position.lsn
        end = position_parts(Position(*after, Position.MAX))
        for file in self._files:
            if file.low[BATCH] > batch or (file.high[INCARNATION], file.high[LSN]) <= after:
                continue
            for rows in self._read(file, [INCARNATION, LSN, BATCH], 0, batch):
                incarnation, lsn, batches = (rows[name].to_numpy() for name in (INCARNATION, LSN, BATCH))
                if (is_older(end, [incarnation, lsn, np.zeros_like(lsn)]) & (batches <= batch)).any():
                    return True
        return False

    def find_open_transaction(self) -> OpenTransaction | None:
        """Return the newest transaction of the log if batches that are not in events yet may continue it."""
        newest = self._newest()
        if newest is None or not newest.has_log or newest.has_end or self._has_landed(*newest.at, newest.batch):
            return None
        return OpenTransaction(*newest.at, newest.batch)

    def _newest(self) -> NewestTransaction | None:
        return self._transactions.find(
            ((file.high[INCARNATION], file.high[LSN]), partial(self._group_bounds, file)) for file in self._files
        )

    def _group_bounds(self, file: _File) -> Iterator[GroupBound]:
        footer = self._footers.get(file.path)
        for group in range(footer.num_row_groups):
            _, high = group_bounds(footer.row_group(group), (INCARNATION, LSN))
            yield GroupBound((file.path, group), (high.get(INCARNATION, Position.MAX), high.get(LSN, Position.MAX)))

    def _read_ends(self, name: GroupName) -> pa.Table:
        path, group = name
        with open_event_file(self._paths.events, path, self._footers.get(path)) as parquet:
            return self._read_groups(parquet, [group], list(END_COLUMNS))

    def _has_landed(self, incarnation: int, lsn: int, first: int) -> bool:
        """Return True if landing shows, in batches that are in events, that a transaction ended."""
        later = f"incarnation > {incarnation} OR (incarnation = {incarnation} AND (lsn > {lsn} OR lsn = {lsn} AND " \
                "last_in_txn))"
        where = f"batch >= {first} AND batch <= {self.batch} AND kind <> 'chunk' AND ({later})"
        (found,) = query_rows(self._paths.landing, f"SELECT count(*) AS n FROM t WHERE {where}") or [{"n": 0}]
        return bool(found["n"])

    def read(self, after_batch: int, wanted: Wanted) -> Iterator[tuple[int, pa.Table]]:
        """Yield the wanted rows of batches after ``after_batch``, in order of position.

        Each portion comes with the last batch that it covers; it may be empty. Rows have EVENT_COLUMNS.
        """
        first = after_batch + 1
        while first <= self.batch:
            last = self._portion_end(first)
            files = [file for file in self._files if file.overlaps(first, last) and wanted.may_be_in(file)]
            last = self._row_groups_end(files, first, last)
            files = [file for file in self._files if file.overlaps(first, last) and wanted.may_be_in(file)]
            parts = [part for file in files for part in self._read_wanted(file, first, last, wanted)]
            yield last, concat_by_position(parts)
            first = last + 1

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

    def _row_groups_end(self, files: Sequence[_File], first: int, last: int) -> int:
        """Return the last batch of the row groups that some batches are in, so that no portion reads one again.

        It is ``last`` where these batches have more bytes than a portion may: row groups that hold a part of each.
        """
        end, read = last, 0
        for file in files:
            footer = self._footers.get(file.path)
            for group in range(footer.num_row_groups):
                facts = footer.row_group(group)
                low, high = group_bounds(facts, (BATCH,))
                if low.get(BATCH, 0) <= last and high.get(BATCH, Position.MAX) >= first:
                    end = max(end, min(high.get(BATCH, Position.MAX), self.batch))
                    read += _group_bytes(facts, EVENT_COLUMNS.names)
        return end if self._estimate(first, end) <= _PORTIONS_AT_MOST * max(read, PORTION_BYTES) else last

    def _estimate(self, first: int, last: int) -> float:
        """Return the bytes of files in some batches, as if each file's bytes were spread evenly over its batches."""
        size, least, most = self._spans
        common = np.minimum(most, last) - np.maximum(least, first) + 1
        return float((size * np.clip(common, 0, None) / (most - least + 1)).sum())

    def _read_wanted(self, file: _File, first: int, last: int, wanted: Wanted) -> Iterator[pa.Table]:
        for rows in self._read(file, EVENT_COLUMNS.names, first, last, wanted):
            chosen = wanted.choose(rows, first, last)
            if chosen.any():
                yield as_plain_columns(rows if chosen.all() else rows.filter(pa.array(chosen)), EVENT_COLUMNS.names)

    def _read(
        self, file: _File, columns: list[str], first: int, last: int, wanted: Wanted | None = None
    ) -> Iterator[pa.Table]:
        """Yield the row groups of a file that may hold rows of some batches and, of these, wanted ones.

        Several come together: after each call of Arrow, a thread that reads ahead waits for Python's lock.
        """
        footer = self._footers.get(file.path)
        with open_event_file(self._paths.events, file.path, footer) as parquet:
            groups, size = list[int](), 0
            for group in range(footer.num_row_groups):
                if self._may_be_wanted(parquet, group, first, last, wanted):
                    groups.append(group)
                    size += _group_bytes(footer.row_group(group), columns)
                    if size >= PORTION_BYTES:
                        yield self._read_groups(parquet, groups, columns)
                        groups, size = [], 0
            if groups:
                yield self._read_groups(parquet, groups, columns)

    def _may_be_wanted(self, parquet: pq.ParquetFile, group: int, first: int, last: int, wanted: Wanted | None) -> bool:
        """Return False if a row group has no rows of some batches, or no wanted ones."""
        low, high = group_bounds(parquet.metadata.row_group(group), (BATCH, TABLE))
        if low.get(BATCH, 0) > last or high.get(BATCH, Position.MAX) < first:
            return False
        if wanted is None:
            return True
        if not wanted.has_table_between(low.get(TABLE), high.get(TABLE)):
            return False
        if wanted.selection.partition is None:
            return True
        return bool(wanted.choose(self._read_groups(parquet, [group], _SELECTING), first, last).any())

    def _read_groups(self, parquet: pq.ParquetFile, groups: list[int], columns: list[str]) -> pa.Table:
        self.bytes_read += sum(_group_bytes(parquet.metadata.row_group(group), columns) for group in groups)
        return parquet.read_row_groups(groups, columns, use_threads=False)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.unify_dictionaries().chunks)


def _read_bounds(table: DeltaTable) -> list[_File]:
    actions = list_files(table)
    missing = [None] * actions.num_rows
    columns = {
        (end, name): actions[f"{end}.{name}"].to_pylist() if f"{end}.{name}" in actions.column_names else missing
        for end in ("min", "max") for name in _BOUNDED
    }

    def bounds(end: str, row: int, unknown: int) -> dict[str, Any]:
        found = {name: columns[end, name][row] for name in _BOUNDED}
        return {name: unknown if value is None and name != TABLE else value for name, value in found.items()}

    return [
        _File(path, size, bounds("min", row, 0), bounds("max", row, Position.MAX))
        for row, (path, size) in enumerate(
            zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
        )
    ]


def _group_bytes(facts: pq.RowGroupMetaData, columns: list[str]) -> int:
    chunks = (facts.column(place) for place in range(facts.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns)
