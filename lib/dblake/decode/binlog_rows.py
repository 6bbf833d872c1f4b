"""Decodes MySQL's and MariaDB's binlog rows events to changes.

Called by ``batch`` for landing rows of kind ``row``. An event holds rows back to back that can only be read from the
front, so all events of a run are read in lockstep: first the offset of each row, one row of every event at a time; then
column by column over all rows. Promises that an event is either decoded to its last byte or rejected, and that a column
the server did not send is absent, never NULL; a column that an update left out has the value of its before image.
Layout: MySQL's source, ``Rows_event``; types are left to ``binlog_columns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dblake.decode.binlog_columns import Storage, column_storage
from dblake.decode.binlog_image import Image
from dblake.decode.binlog_walk import RowOffsets, find_rows
from dblake.decode.grid import Grid
from dblake.decode.mysql_cells import PAD_BYTES, Cells, Text, grid_of
from dblake.decode.payloads import Bytes, Changes, Index, Mask, Payloads
from dblake.decode.row_changes import Images, row_changes
from dblake.formats.binlog import (
    DELETE_ROWS,
    FIRST_ROWS_V2,
    HEADER_BYTES,
    ROWS_HEADER_BYTES,
    TYPE_OFFSET,
    UPDATE_ROWS,
    WRITE_ROWS,
)

_WRITE, _UPDATE, _DELETE = range(3)
_CLASSES = np.full(256, -1)
"""The class of each event type."""
for _class, _types in enumerate((WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS)):
    _CLASSES[list(_types)] = _class
_MAX_COUNT_IN_ONE_BYTE = 250

_BLOCK_ROWS = 16_384
"""Measured: more leave the processor's cache; fewer split the 10,000 rows of Spark's batches, to be joined again."""


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Return the changes of write, update and delete rows events of one schema. Raises ReconcileError."""
    data = np.zeros(len(payloads.data) + PAD_BYTES, np.uint8)
    data[: len(payloads.data)] = payloads.data
    columns = tuple(column_storage(column.type) for column in payloads.schema.columns)
    return [
        change
        for group in _groups(payloads, data)
        for start in range(0, len(group.events), _BLOCK_ROWS)
        for change in _decode_group(payloads, data, columns, group.slice(start, start + _BLOCK_ROWS))
    ]


class _Group(NamedTuple):
    """Events of one class with the same columns present in each image, and the offsets of their first rows."""

    kind: int
    present: tuple[Mask, ...]
    events: Index
    at: Index

    def slice(self, start: int, end: int) -> _Group:
        """Return some of the events."""
        return self._replace(events=self.events[start:end], at=self.at[start:end])


def _groups(payloads: Payloads, data: Bytes) -> Iterator[_Group]:
    starts, columns = payloads.starts, len(payloads.schema.columns)
    bitmap = (columns + 7) // 8
    counted = 1 if columns <= _MAX_COUNT_IN_ONE_BYTE else 3
    payloads.reject(payloads.ends - starts < HEADER_BYTES + ROWS_HEADER_BYTES + 2, "the event is cut short")
    type_ = data[starts + TYPE_OFFSET]
    kinds = _CLASSES[type_]
    payloads.reject(kinds < 0, "the event is no write, update or delete rows event")
    at = starts + HEADER_BYTES + ROWS_HEADER_BYTES
    at = at + np.where(type_ >= FIRST_ROWS_V2, data[at] | data[at + 1].astype(np.int64) << 8, 0)
    begin = at + counted + bitmap * np.where(kinds == _UPDATE, 2, 1)
    payloads.reject(begin > payloads.ends, "the event is cut short")
    counts = data[at].astype(np.int64) if counted == 1 else data[at + 1] | data[at + 2].astype(np.int64) << 8
    payloads.reject_miscounted(counts, columns, "the event", "columns")
    for kind in (_WRITE, _UPDATE, _DELETE):
        events = np.flatnonzero(kinds == kind)
        if len(events) == 0:
            continue
        images = 2 if kind == _UPDATE else 1
        maps = data[(at[events] + counted)[:, None] + np.arange(images * bitmap)]
        for same in _group_equal(maps):
            bits = np.unpackbits(maps[same[0]].reshape(images, bitmap), axis=1, bitorder="little")[:, :columns]
            yield _Group(kind, tuple(bits.astype(np.bool_)), events[same], begin[events[same]])


def _group_equal(rows: Bytes) -> list[Index]:
    """Return the numbers of equal rows, grouped."""
    if (rows == rows[0]).all():
        return [np.arange(len(rows))]
    _, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.ravel()
    return [np.flatnonzero(which == number) for number in range(which.max() + 1)]


def _decode_group(payloads: Payloads, data: Bytes, columns: Sequence[Storage], group: _Group) -> Iterator[Changes]:
    images = [Image.of([columns[c] for c in np.flatnonzero(present).tolist()]) for present in group.present]
    rows = find_rows(payloads, data, group.events, group.at, images)
    for start in range(0, len(rows.event), _BLOCK_ROWS):
        yield from _changes(payloads, data, group, images, rows.slice(start, start + _BLOCK_ROWS))


def _changes(
    payloads: Payloads, data: Bytes, group: _Group, images: Sequence[Image], rows: RowOffsets
) -> list[Changes]:
    names = payloads.schema.names
    read: list[dict[int, _Column]] = []
    for image, present, at in zip(images, group.present, rows.starts, strict=True):
        columns = np.flatnonzero(present).tolist()
        read.append(_read_columns(payloads, data, image, columns, rows, at, read[0] if read else {}))
    none = Images(np.zeros(0, np.int64), Grid(names, pa.array([], pa.string()), np.zeros((0, len(names)), np.bool_)),
                  np.zeros(0, np.bool_), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    count = len(rows.event)
    alone = np.full(count, group.kind != _UPDATE)

    def images_of(columns: dict[int, _Column]) -> Images:
        return Images(rows.event, _grid(names, columns, count), alone, rows.number, rows.last)

    old = none if group.kind == _WRITE else images_of(read[0])
    # A column that an update leaves out keeps the value of its before image.
    new = none if group.kind == _DELETE else images_of({**read[0], **read[-1]})
    old_of = np.arange(len(new.row)) if group.kind == _UPDATE else np.full(len(new.row), -1)
    return row_changes(
        payloads, old, new, old_of,
        key_missing="SET GLOBAL binlog_row_image = 'FULL', then dump the table again",
    )


class _Column(NamedTuple):
    """One column of some rows."""

    cells: Cells
    text: Text


def _read_columns(
    payloads: Payloads, data: Bytes, image: Image, present: Sequence[int], rows: RowOffsets, at: Index,
    before: Mapping[int, _Column],
) -> dict[int, _Column]:
    """Return the columns of one image, by number; ``before`` has those of the before image."""
    out = {}
    for number, column, cells in zip(present, image.columns, image.cells(data, at), strict=True):
        text = _read_text(column, cells, before.get(number))
        if text.wrong is not None:
            name = payloads.schema.names[number]
            payloads.reject(text.wrong, f"column {name} has a value that is not one of its type", rows=rows.event)
        out[number] = _Column(cells, text)
    return out


def _read_text(column: Storage, cells: Cells, before: _Column | None) -> Text:
    """Return a column as text. Most updates change few columns, so unchanged cells reuse the text of ``before``."""
    if before is None or column.is_variable:
        return column.read(cells)
    changed = np.flatnonzero(~cells.equal(before.cells, column.width))
    if len(changed) == 0:
        return before.text
    if len(changed) > len(cells) // 2:
        return column.read(cells)
    return before.text.replace_rows(changed, column.read(cells.take(changed)))


def _grid(names: tuple[str, ...], columns: dict[int, _Column], rows: int) -> Grid:
    order = sorted(columns)
    return grid_of(names, order, [columns[c].text for c in order], [columns[c].cells.null for c in order], rows)
