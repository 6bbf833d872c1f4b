"""What there is to fold: events counted by batch and table, without their payloads.

Place: between ``events.reader`` and ``steps``. A survey of B batches and T tables has up to B x T entries of 40 bytes,
so callers bound the batches. ``steps`` surveys one span after the other. Events of tables that are behind, from
before the frontier, count as of the frontier's batch: they all belong to the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.transform.events.predicate import Predicate, as_mask, encoded
from dblake.transform.events.reader import EventReader

_SURVEYED = (*Position.COLUMNS, "table", "op", "batch", "last_in_txn", "origin")


@dataclass
class BatchEnd:
    """One batch: its newest position, the newest of its log events, and if a transaction is open after that one."""

    newest: Position
    last_log: Position | None = None
    open: bool = False


@dataclass(frozen=True)
class StepCounts:
    """The events of one table in one step: how many, their bytes of images, and how many are no truncates."""

    events: int
    size: float
    changes: int


@dataclass
class EventSurvey:
    """What there is to fold. ``ends`` has the batches with events, ``truncates`` the newest one by batch and table."""

    ends: dict[int, BatchEnd] = field(default_factory=dict)
    truncates: dict[tuple[int, str], Position] = field(default_factory=dict)
    _codes: dict[str, int] = field(default_factory=dict)
    _parts: list[np.ndarray] = field(default_factory=list)
    """Batch, table code, events, bytes and changes: one column per pair of batch and table in a row group."""

    @property
    def size(self) -> float:
        """The bytes of images of all events."""
        return float(sum(part[3].sum() for part in self._parts))

    def count_until(self, edges: Sequence[int]) -> list[dict[str, StepCounts]]:
        """Return for each of the ``edges``, batches in order, what lies after the one before, by table."""
        tables = list(self._codes)
        totals = np.zeros((3, len(edges) * len(tables)))
        for batches, codes, *figures in self._parts:
            steps = np.searchsorted(edges, batches)
            inside = steps < len(edges)
            places = (steps * len(tables) + codes).astype(np.int64)[inside]
            for row, figure in enumerate(figures):
                totals[row] += np.bincount(places, figure[inside], totals.shape[1])
        by_step: list[dict[str, StepCounts]] = [{} for _ in edges]
        for place in np.flatnonzero(totals[0]).tolist():
            events, size, changes = totals[:, place].tolist()
            by_step[place // len(tables)][tables[place % len(tables)]] = StepCounts(int(events), size, int(changes))
        return by_step

    def add(self, events: pa.Table, bytes_per_row: float, after: int) -> None:
        """Add a row group's events; those up to batch ``after`` count as of it."""
        names = encoded(events["table"])
        codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in names.dictionary.to_pylist()])
        tables, batches = codes[names.indices.to_numpy()], np.maximum(events["batch"].to_numpy(), after)
        is_truncate = as_mask(pc.equal(events["op"], Op.TRUNCATE))
        self._count(batches, tables, is_truncate, bytes_per_row)
        at = [events[name].to_numpy() for name in Position.COLUMNS]
        known = list(self._codes)
        for row in np.flatnonzero(is_truncate):
            pair = int(events["batch"][int(row)].as_py()), known[tables[row]]
            place = Position(*(int(part[row]) for part in at))
            self.truncates[pair] = max(place, self.truncates.get(pair, place))
        self._add_ends(events, batches, at, after)

    def _count(self, batches: np.ndarray, tables: np.ndarray, is_truncate: np.ndarray, bytes_per_row: float) -> None:
        span = int(tables.max()) + 1
        kinds, inverse, counts = np.unique(batches * span + tables, return_inverse=True, return_counts=True)
        changes = np.bincount(inverse, ~is_truncate, len(kinds))
        self._parts.append(np.array([kinds // span, kinds % span, counts, counts * bytes_per_row, changes]))

    def _add_ends(self, events: pa.Table, batches: np.ndarray, at: list[np.ndarray], after: int) -> None:
        order = np.lexsort((at[2], at[1], at[0], batches))
        order = order[batches[order] > after]
        last = as_mask(events["last_in_txn"])
        logged = order[as_mask(pc.equal(events["origin"], "log"))[order]]
        for rows, is_log in ((order, False), (logged, True)):
            for row in rows[np.append(np.diff(batches[rows]) != 0, True)] if len(rows) else ():
                place = Position(*(int(part[row]) for part in at))
                end = self.ends.setdefault(int(batches[row]), BatchEnd(place))
                end.newest = max(end.newest, place)
                if is_log and (end.last_log is None or end.last_log < place):
                    end.last_log, end.open = place, not last[row]


def survey(events: EventReader, wanted: Predicate) -> EventSurvey:
    """Count the events that fit by batch and table."""
    found = EventSurvey()
    for span in events.spans(wanted):
        for rows in events.read_span(span, wanted, _SURVEYED):
            found.add(rows, span.bytes_per_row, wanted.after_batch)
    return found
