"""Group the rows events of one schema: a group's events are of one class and have the same columns in each image.

Place: below ``binlog_rows``, which decodes a group at a time. Guarantee: an event that is cut short, of another type or
of another number of columns is rejected. Layout: MySQL's source, ``Rows_event``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dblake.payloads.decode.payloads import Bytes, Index, Mask, Payloads
from dblake.payloads.formats.binlog import (
    DELETE_ROWS,
    FIRST_ROWS_V2,
    HEADER_BYTES,
    ROWS_HEADER_BYTES,
    TYPE_OFFSET,
    UPDATE_ROWS,
    WRITE_ROWS,
)

WRITE, UPDATE, DELETE = range(3)
_CLASSES = np.full(256, -1)
"""The class of each event type."""
for _class, _types in enumerate((WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS)):
    _CLASSES[list(_types)] = _class
_MAX_COUNT_IN_ONE_BYTE = 250


class EventGroup(NamedTuple):
    """Events of one class with the same columns present in each image, and the offsets of their first rows."""

    kind: int
    present: tuple[Mask, ...]
    events: Index
    row_starts: Index

    def slice(self, start: int, end: int) -> EventGroup:
        """Return the events with the numbers from ``start`` up to ``end``."""
        return self._replace(events=self.events[start:end], row_starts=self.row_starts[start:end])


def group_events(payloads: Payloads, data: Bytes) -> Iterator[EventGroup]:
    """Yield the groups of some rows events. Raises ReconcileError for an event that cannot be one of the schema."""
    starts, columns = payloads.starts, len(payloads.schema.columns)
    bitmap = (columns + 7) // 8
    counted = 1 if columns <= _MAX_COUNT_IN_ONE_BYTE else 3
    payloads.reject(payloads.ends - starts < HEADER_BYTES + ROWS_HEADER_BYTES + 2, "the event is cut short")
    type_ = data[starts + TYPE_OFFSET]
    kinds = _CLASSES[type_]
    payloads.reject(kinds < 0, "the event is no write, update or delete rows event")
    body = starts + HEADER_BYTES + ROWS_HEADER_BYTES
    body = body + np.where(type_ >= FIRST_ROWS_V2, data[body] | data[body + 1].astype(np.int64) << 8, 0)
    begin = body + counted + bitmap * np.where(kinds == UPDATE, 2, 1)
    payloads.reject(begin > payloads.ends, "the event is cut short")
    counts = data[body].astype(np.int64) if counted == 1 else data[body + 1] | data[body + 2].astype(np.int64) << 8
    payloads.reject_miscounted(counts, columns, "the event", "columns")
    for kind in (WRITE, UPDATE, DELETE):
        events = np.flatnonzero(kinds == kind)
        if len(events) == 0:
            continue
        images = 2 if kind == UPDATE else 1
        maps = data[(body[events] + counted)[:, None] + np.arange(images * bitmap)]
        for same in _group_equal(maps):
            bits = np.unpackbits(maps[same[0]].reshape(images, bitmap), axis=1, bitorder="little")[:, :columns]
            yield EventGroup(kind, tuple(bits.astype(np.bool_)), events[same], begin[events[same]])


def _group_equal(rows: Bytes) -> list[Index]:
    """Return the numbers of equal rows, grouped."""
    if (rows == rows[0]).all():
        return [np.arange(len(rows))]
    _, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.ravel()
    return [np.flatnonzero(which == number) for number in range(which.max() + 1)]
