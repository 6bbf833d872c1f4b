"""What state wants of events: rows whose key fits a table's schemas, events by table, and their newest truncate.

Place: between ``events.reader``, which reads them, and the fold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.transform.events.predicate import as_mask, encoded


@dataclass(frozen=True)
class KeyFilter:
    """Rows of some schemas whose key has exactly the columns ``key``."""

    schema_ids: frozenset[str]
    key: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that ``choose`` reads."""
        return "schema_id", "key"

    def choose(self, events: pa.Table) -> np.ndarray:
        """Return a mask of the events whose schema and key fit."""
        fits = as_mask(pc.is_in(events["schema_id"].cast(pa.string()), pa.array(sorted(self.schema_ids))))
        # After a key change, a row with the old key is a different row even if it has all new key columns.
        if self.key:
            fits &= _key_sizes(events["key"]) == len(self.key)
        for name in self.key:
            fits &= as_mask(pc.is_valid(pc.map_lookup(events["key"], name, "first")))
        return fits


def _key_sizes(keys: pa.ChunkedArray) -> np.ndarray:
    """Return how many columns each key has."""
    return np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in keys.chunks] or [np.zeros(0, np.int32)])


def split_tables(events: pa.Table) -> dict[str, pa.Table]:
    """Split events by ``table``; each table's keep their order."""
    names = encoded(events["table"])
    codes = names.indices.to_numpy()
    events = events.drop_columns(["table"])
    if len(names.dictionary) == 1:
        return {names.dictionary[0].as_py(): events}
    order = np.argsort(codes, kind="stable")
    ordered = events.take(pa.array(order))
    bounds = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1))
    return {
        name: ordered.slice(bounds[code], bounds[code + 1] - bounds[code])
        for code, name in enumerate(names.dictionary.to_pylist()) if bounds[code + 1] > bounds[code]
    }


def newest_truncate(events: pa.Table) -> Position | None:
    """Return the newest truncate among the events of one table."""
    rows = np.flatnonzero(as_mask(pc.equal(events["op"], Op.TRUNCATE)))
    at = [events[name].to_numpy() for name in Position.COLUMNS]
    return max((Position(*(int(part[row]) for part in at)) for row in rows), default=None)
