"""Which events a reader wants: by landing batch, position, table, commit time and key.

Place: below ``reader``, which skips files and row groups by it, and above nothing but columns. A predicate can be
pickled. Guarantee: bounds never exclude what rows would include. Positions are compared as a whole: the least and
greatest value of each part bound the positions between them, also where rows have several incarnations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.core.positions import is_older, position_parts
from dblake.landing.columns import BATCH, COMMITTED_AT, INCARNATION, LSN, SEQ, TABLE
from dblake.payloads.decode.columns import OP

_NEVER = np.iinfo(np.int64).max


class RowFilter(Protocol):
    """Chooses rows by their key. A truncate has none: it always passes."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that ``choose`` reads."""

    def choose(self, events: pa.Table) -> np.ndarray:
        """Return a mask of the events whose key fits."""


@dataclass(frozen=True)
class Predicate:
    """Events of batches after ``after_batch`` up to ``until_batch``; of tables in ``behind``, after their own batch.

    Positions are after ``after``, not before ``since``, and not after ``until``. ``tables`` names the tables;
    ``committed_by`` is the latest commit time; ``rows`` chooses among the rows that fit all this.
    """

    after_batch: int = 0
    until_batch: int = Position.MAX
    behind: Mapping[str, int] = field(default_factory=dict)
    after: Position | None = None
    since: Position | None = None
    until: Position | None = None
    tables: Collection[str] | None = None
    committed_by: datetime | None = None
    rows: RowFilter | None = None

    @cached_property
    def first_batch(self) -> int:
        """The batch after which the earliest event can be."""
        behind = (batch for table, batch in self.behind.items() if self.tables is None or table in self.tables)
        return min([self.after_batch, *behind])

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that ``choose`` reads."""
        names = {BATCH}
        if self.tables is not None or self.behind:
            names.add(TABLE)
        if self.after or self.since or self.until:
            names |= {*Position.COLUMNS}
        if self.committed_by is not None:
            names.add(COMMITTED_AT)
        return frozenset(names | ({OP, *self.rows.columns} if self.rows else set()))

    def filter(self, events: pa.Table) -> pa.Table:
        """Return the events that fit, without a copy if all do."""
        chosen = self.choose(events)
        return events if chosen.all() else events.filter(pa.array(chosen))

    def choose(self, events: pa.Table) -> np.ndarray:
        """Return a mask of the rows that fit; ``events`` has ``columns``."""
        chosen = self._in_batches(events)
        if self.after or self.since or self.until:
            chosen &= self._at_positions([events[name].to_numpy() for name in Position.COLUMNS])
        if self.committed_by is not None:
            limit = pa.scalar(self.committed_by, pa.timestamp("us", tz="UTC"))
            chosen &= as_mask(pc.less_equal(events[COMMITTED_AT], limit))
        if self.rows is not None and chosen.any():
            # Keys of other rows may have another type.
            rest = events.select([OP, *self.rows.columns]).filter(pa.array(chosen))
            chosen[chosen] = self.rows.choose(rest) | as_mask(pc.equal(rest[OP], Op.TRUNCATE))
        return chosen

    def may_hold(self, low: Mapping[str, Any], high: Mapping[str, Any]) -> bool:
        """Return False only if no row with these least and greatest values fits; a missing one bounds nothing."""
        if low.get(BATCH, 0) > self.until_batch or high.get(BATCH, Position.MAX) <= self.first_batch:
            return False
        first = Position(max(low.get(INCARNATION, 1), 1), low.get(LSN, 0), low.get(SEQ, 0))
        last = Position(*(high.get(name, Position.MAX) for name in Position.COLUMNS))
        is_after = bool(self.until and first > self.until)
        is_before = bool(self.after and last <= self.after) or bool(self.since and last < self.since)
        return not is_after and not is_before and self.has_table_between(low.get(TABLE), high.get(TABLE))

    def has_table_between(self, low: str | None, high: str | None) -> bool:
        """Return False if no table's name lies between two; None bounds nothing."""
        if self.tables is None or low is None or high is None:
            return True
        first = bisect_left(self._names, low)
        return first < len(self._names) and self._names[first] <= high

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self.tables or ())

    def _in_batches(self, events: pa.Table) -> np.ndarray:
        """Return a mask of the rows whose table and batch fit."""
        batches = events[BATCH].to_numpy()
        mask: np.ndarray = batches <= self.until_batch
        if self.tables is None and not self.behind:
            mask &= batches > self.after_batch
            return mask
        names = encoded(events[TABLE])
        after = np.array([self._batch_before(name) for name in names.dictionary.to_pylist()], np.int64)
        if len(after):
            mask &= batches > after[names.indices.to_numpy(zero_copy_only=False)]
        return mask

    def _batch_before(self, table: str) -> int:
        if self.tables is not None and table not in self.tables:
            return _NEVER
        return min(self.after_batch, self.behind.get(table, self.after_batch))

    def _at_positions(self, at: list[np.ndarray]) -> np.ndarray:
        mask = np.ones(len(at[0]), bool)
        if self.after:
            mask &= is_older(position_parts(self.after), at)
        if self.since:
            mask &= ~is_older(at, position_parts(self.since))
        if self.until:
            mask &= ~is_older(position_parts(self.until), at)
        return mask


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return names as one array of codes with their dictionary."""
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.unify_dictionaries().chunks) if column.num_chunks else pa.array(
        [], pa.dictionary(pa.int32(), pa.string())
    )


def as_mask(values: pa.ChunkedArray) -> np.ndarray:
    """Return a boolean column as a mask; NULL is false."""
    mask: np.ndarray = pc.fill_null(values, False).to_numpy()
    return mask.astype(bool, copy=False)
