"""The files of one version of the events table, with their statistics, as columns: a table has many thousand files.

Place: below ``reader``. Guarantee: a file is left out only if its statistics show that no event of it fits; without
statistics it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.landing.columns import BATCH, COMMITTED_AT, INCARNATION, LSN, TABLE
from dblake.transform.events.predicate import Predicate

_NUMBERS = (BATCH, INCARNATION, LSN)
#: Delta's statistics have milliseconds.
_ROUNDING = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file whose events are between two positions, as far as statistics bound them."""

    path: str
    size: int
    rows: int
    first: Position
    last: Position


class FileListing:
    """One version's files, ordered by their newest batch. ``files`` has them as the Delta log does."""

    def __init__(self, files: pa.Table) -> None:
        self.files = files
        least = {name: self._numbers(f"min.{name}", 0) for name in _NUMBERS}
        most = {name: self._numbers(f"max.{name}", Position.MAX) for name in _NUMBERS}
        self._order = np.argsort(most[BATCH], kind="stable")
        self._least, self._most = least, most
        self.sizes = files["size_bytes"].to_numpy().astype(np.float64)
        """Bytes by file, in the log's order, as are the next two."""
        self.first_batches, self.last_batches = least[BATCH], most[BATCH]

    @property
    def newest_batch(self) -> int | None:
        """The newest batch by statistics; None if a file has none."""
        newest = int(self.last_batches.max(initial=0))
        return None if newest == Position.MAX else newest

    @property
    def newest_incarnation(self) -> int:
        """The newest incarnation by statistics; 0 without any."""
        newest = self._most[INCARNATION]
        return int(newest[newest < Position.MAX].max(initial=0))

    @property
    def newest_first(self) -> Position | None:
        """The newest of the positions at which files begin: the newest event is not before it. None without files."""
        if not len(self.sizes):
            return None
        row = np.lexsort([self._least[LSN], self._least[INCARNATION]])[-1]
        return Position(max(int(self._least[INCARNATION][row]), 1), int(self._least[LSN][row]))

    def first_batch(self, after: int) -> int:
        """Return a batch after ``after`` and not after the first one with events there."""
        later = self.first_batches[self.last_batches > after]
        return max(int(later.min(initial=Position.MAX)), after + 1) if len(later) else after + 1

    def choose(self, predicate: Predicate) -> list[ListedFile]:
        """Return the files that may hold events that fit, ordered by their newest batch."""
        low, high = self._least, self._most
        mask = (low[BATCH] <= predicate.until_batch) & (high[BATCH] > predicate.first_batch)
        zeros, ends = np.zeros(len(mask), np.int64), np.full(len(mask), Position.MAX, np.int64)
        first, last = [low[INCARNATION], low[LSN], zeros], [high[INCARNATION], high[LSN], ends]
        if predicate.until:
            mask &= ~is_older(position_parts(predicate.until), first)
        if predicate.after:
            mask &= is_older(position_parts(predicate.after), last)
        if predicate.since:
            mask &= ~is_older(last, position_parts(predicate.since))
        if predicate.committed_by is not None:
            limit = pa.scalar(predicate.committed_by + _ROUNDING, pa.timestamp("us", tz="UTC"))
            mask &= self._compare(f"min.{COMMITTED_AT}", pc.less_equal, limit)
        rows = self._order[mask[self._order]]
        if predicate.tables is not None and len(rows):
            names = (self._values(f"{end}.{TABLE}", rows) for end in ("min", "max"))
            between = predicate.has_table_between
            rows = rows[np.array([between(*ends) for ends in zip(*names, strict=True)], bool)]
        return self._listed(rows)

    def _listed(self, rows: np.ndarray) -> list[ListedFile]:
        chosen = (self._values(name, rows) for name in ("path", "size_bytes", "num_records"))
        ends = (part[rows].tolist() for bound in (self._least, self._most) for part in (bound[INCARNATION], bound[LSN]))
        return [
            ListedFile(path, size, records or 0, Position(max(i, 1), lsn), Position(j, end, Position.MAX))
            for path, size, records, i, lsn, j, end in zip(*chosen, *ends, strict=True)
        ]

    def _values(self, name: str, rows: np.ndarray) -> Sequence[Any]:
        if name not in self.files.column_names:
            return [None] * len(rows)
        values: list[Any] = self.files[name].take(pa.array(rows)).to_pylist()
        return values

    def _numbers(self, name: str, missing: int) -> np.ndarray:
        if name not in self.files.column_names:
            return np.full(self.files.num_rows, missing, np.int64)
        numbers: np.ndarray = pc.fill_null(self.files[name].cast(pa.int64()), missing).to_numpy()
        return numbers

    def _compare(self, name: str, compare: Callable[..., pa.ChunkedArray], limit: pa.Scalar) -> np.ndarray:
        """Mark the files whose statistic compares, and files without it."""
        if name not in self.files.column_names:
            return np.ones(self.files.num_rows, bool)
        fits: np.ndarray = pc.fill_null(compare(self.files[name], limit), True).to_numpy()
        return fits.astype(bool)
