"""MySQL's and MariaDB's binlog rows events to changes.

Called by ``batch`` for landing rows of kind ``row``. An event holds rows back to back that can only be read from the
front, so all events of a run are read in lockstep: first where each row begins, one row of every event at a time;
then column by column over all rows. Promises that an event is either understood to its last byte or refused, and
that a column the server did not send is absent, never NULL; a column an update left out has the value that its
before image carries. Layout: MySQL's source, ``Rows_event``; types are left to ``binlog_columns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dblake.decode.binlog_columns import Stored, stored
from dblake.decode.binlog_walk import Image, Walked, walk
from dblake.decode.grid import Grid
from dblake.decode.mysql_cells import PAD, Cells, Text, grid_of
from dblake.decode.payloads import Bytes, Changes, Index, Mask, Payloads
from dblake.decode.row_changes import Images, row_changes

_TYPE, _HEADER = 4, 19
_WRITE, _UPDATE, _DELETE = 0, 1, 2
# What an event of each type is; version 2 has data of its own before the columns.
_CLASSES = np.full(256, -1)
_CLASSES[[23, 24, 25, 30, 31, 32]] = [_WRITE, _UPDATE, _DELETE] * 2
_VERSION_2 = 30
_TABLE_AND_FLAGS = 8

# Measured: more leave the processor's cache; fewer make blocks of the 10,000 rows that Spark hands over at a time,
# which must be put together again.
_BLOCK = 16_384


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Changes of write, update and delete rows events of one schema."""
    padded = np.zeros(len(payloads.data) + PAD, np.uint8)
    padded[: len(payloads.data)] = payloads.data
    columns = tuple(stored(column.type) for column in payloads.schema.columns)
    return [
        change
        for group in _groups(payloads, padded)
        for start in range(0, len(group.events), _BLOCK)
        for change in _decode(payloads, padded, columns, group.slice(start, start + _BLOCK))
    ]


class _Group(NamedTuple):
    """Events of one class with the same columns present in each image, and where their rows begin."""

    kind: int
    present: tuple[Mask, ...]
    events: Index
    at: Index

    def slice(self, start: int, end: int) -> _Group:
        """Some of the events."""
        return self._replace(events=self.events[start:end], at=self.at[start:end])


def _groups(payloads: Payloads, data: Bytes) -> Iterator[_Group]:
    starts, columns = payloads.starts, len(payloads.schema.columns)
    bitmap = (columns + 7) // 8
    counted = 1 if columns < 251 else 3
    payloads.refuse(payloads.ends - starts < _HEADER + _TABLE_AND_FLAGS + 2, "the event is cut short")
    number = data[starts + _TYPE]
    kinds = _CLASSES[number]
    payloads.refuse(kinds < 0, "the event is no write, update or delete rows event")
    at = starts + _HEADER + _TABLE_AND_FLAGS
    at = at + np.where(number >= _VERSION_2, data[at] | data[at + 1].astype(np.int64) << 8, 0)
    begin = at + counted + bitmap * np.where(kinds == _UPDATE, 2, 1)
    payloads.refuse(begin > payloads.ends, "the event is cut short")
    said = data[at].astype(np.int64) if counted == 1 else data[at + 1] | data[at + 2].astype(np.int64) << 8
    payloads.refuse(said != columns, f"the event has not the {columns} columns of its schema")
    for kind in (_WRITE, _UPDATE, _DELETE):
        events = np.flatnonzero(kinds == kind)
        if len(events) == 0:
            continue
        images = 2 if kind == _UPDATE else 1
        maps = data[(at[events] + counted)[:, None] + np.arange(images * bitmap)]
        for same in _alike(maps):
            bits = np.unpackbits(maps[same[0]].reshape(images, bitmap), axis=1, bitorder="little")[:, :columns]
            yield _Group(kind, tuple(bits.astype(np.bool_)), events[same], begin[events[same]])


def _alike(rows: Bytes) -> list[Index]:
    """The numbers of rows that are equal, together."""
    if (rows == rows[0]).all():
        return [np.arange(len(rows))]
    _, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.ravel()
    return [np.flatnonzero(which == number) for number in range(which.max() + 1)]


def _decode(payloads: Payloads, data: Bytes, columns: Sequence[Stored], group: _Group) -> Iterator[Changes]:
    images = [Image.of([columns[c] for c in np.flatnonzero(present).tolist()]) for present in group.present]
    walked = walk(payloads, data, group.events, group.at, images)
    for start in range(0, len(walked.event), _BLOCK):
        yield from _changes(payloads, data, group, images, walked.slice(start, start + _BLOCK))


def _changes(
    payloads: Payloads, data: Bytes, group: _Group, images: Sequence[Image], rows: Walked
) -> list[Changes]:
    names = payloads.schema.names
    read: list[dict[int, _Column]] = []
    for image, present, at in zip(images, group.present, rows.starts, strict=True):
        columns = np.flatnonzero(present).tolist()
        read.append(_columns(payloads, data, image, columns, rows, at, read[0] if read else {}))
    none = Images(np.zeros(0, np.int64), Grid(names, pa.array([], pa.string()), np.zeros((0, len(names)), np.bool_)),
                  np.zeros(0, np.bool_), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    count = len(rows.event)
    alone = np.full(count, group.kind != _UPDATE)

    def whole(columns: dict[int, _Column]) -> Images:
        return Images(rows.event, _grid(names, columns, count), alone, rows.number, rows.last)

    old = none if group.kind == _WRITE else whole(read[0])
    # What an update leaves out, it leaves as it was.
    new = none if group.kind == _DELETE else whole({**read[0], **read[-1]})
    old_of = np.arange(len(new.row)) if group.kind == _UPDATE else np.full(len(new.row), -1)
    return row_changes(
        payloads, old, new, old_of,
        key_missing="SET GLOBAL binlog_row_image = 'FULL', then dump the table again",
    )


class _Column(NamedTuple):
    """One column of some rows."""

    cells: Cells
    text: Text


def _columns(
    payloads: Payloads, data: Bytes, image: Image, present: Sequence[int], rows: Walked, at: Index,
    before: Mapping[int, _Column],
) -> dict[int, _Column]:
    """The columns of one image, by number; ``before`` has those of the image before it."""
    out = {}
    for number, column, cells in zip(present, image.columns, image.cells(data, at), strict=True):
        text = _text(column, cells, before.get(number))
        if text.wrong is not None:
            name = payloads.schema.names[number]
            payloads.refuse(text.wrong, f"column {name} holds what its type has not", rows=rows.event)
        out[number] = _Column(cells, text)
    return out


def _text(column: Stored, cells: Cells, before: _Column | None) -> Text:
    """Most updates leave most columns as they were: what was read before is not made text again."""
    if before is None or column.varies:
        return column.read(cells)
    changed = np.flatnonzero(~cells.equal(before.cells, column.width))
    if len(changed) == 0:
        return before.text
    if len(changed) > len(cells) // 2:
        return column.read(cells)
    return before.text.with_some(changed, column.read(cells.some(changed)))


def _grid(names: tuple[str, ...], columns: dict[int, _Column], rows: int) -> Grid:
    order = sorted(columns)
    return grid_of(names, order, [columns[c].text for c in order], [columns[c].cells.null for c in order], rows)
