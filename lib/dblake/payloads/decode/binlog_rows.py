"""Decode MySQL's and MariaDB's binlog rows events to changes.

Called by ``batch`` for landing rows of kind ``row``. An event holds rows back to back, which can only be read from the
front, so all events of a run are read in lockstep. ``binlog_walk`` finds the offset of each row, one row of every event
at a time; then ``binlog_cells`` reads one column after another, over all rows.

Guarantees: an event is decoded to its last byte or rejected. A column that the server did not send is absent, never
NULL. A column that an update left out has the value of its before image.

Layout: MySQL's source, ``Rows_event``; types are left to ``binlog_columns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from dblake.payloads.decode.binlog_cells import ColumnCells, join_columns, read_columns
from dblake.payloads.decode.binlog_columns import CellStorage, column_storage
from dblake.payloads.decode.binlog_groups import DELETE, UPDATE, WRITE, EventGroup, group_events
from dblake.payloads.decode.binlog_image import Image
from dblake.payloads.decode.binlog_walk import RowOffsets, find_rows
from dblake.payloads.decode.grid import Grid
from dblake.payloads.decode.mysql_cells import PAD_BYTES
from dblake.payloads.decode.payloads import Bytes, Changes, Payloads
from dblake.payloads.decode.row_changes import Images, row_changes

_BLOCK_ROWS = 16_384
"""Measured: more leave the processor's cache; fewer split the 10,000 rows of Spark's batches, to be joined again."""


def decode(payloads: Payloads) -> Sequence[Changes]:
    """Return the changes of write, update and delete rows events of one schema. Raises ReconcileError."""
    data = np.zeros(len(payloads.data) + PAD_BYTES, np.uint8)
    data[: len(payloads.data)] = payloads.data
    columns = tuple(column_storage(column.type) for column in payloads.schema.columns)
    return [
        change
        for group in group_events(payloads, data)
        for start in range(0, len(group.events), _BLOCK_ROWS)
        for change in _decode_group(payloads, data, columns, group.slice(start, start + _BLOCK_ROWS))
    ]


def _decode_group(
    payloads: Payloads, data: Bytes, columns: Sequence[CellStorage], group: EventGroup
) -> Iterator[Changes]:
    images = [Image.of([columns[c] for c in np.flatnonzero(present).tolist()]) for present in group.present]
    rows = find_rows(payloads, data, group.events, group.row_starts, images)
    for start in range(0, len(rows.event), _BLOCK_ROWS):
        yield from _changes(payloads, data, group, images, rows.slice(start, start + _BLOCK_ROWS))


def _changes(
    payloads: Payloads, data: Bytes, group: EventGroup, images: Sequence[Image], rows: RowOffsets
) -> list[Changes]:
    names = payloads.schema.names
    read: list[dict[int, ColumnCells]] = []
    for image, present, offsets in zip(images, group.present, rows.starts, strict=True):
        columns = np.flatnonzero(present).tolist()
        read.append(read_columns(payloads, data, image, columns, rows, offsets, read[0] if read else {}))
    none = Images(np.zeros(0, np.int64), Grid(names, pa.array([], pa.string()), np.zeros((0, len(names)), np.bool_)),
                  np.zeros(0, np.bool_), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    count = len(rows.event)
    alone = np.full(count, group.kind != UPDATE)

    def images_of(columns: dict[int, ColumnCells]) -> Images:
        return Images(rows.event, join_columns(names, columns, count), alone, rows.number, rows.last)

    old = none if group.kind == WRITE else images_of(read[0])
    # A column that an update leaves out keeps the value of its before image.
    new = none if group.kind == DELETE else images_of({**read[0], **read[-1]})
    old_of = np.arange(len(new.row)) if group.kind == UPDATE else np.full(len(new.row), -1)
    return row_changes(
        payloads, old, new, old_of,
        key_missing="SET GLOBAL binlog_row_image = 'FULL', then dump the table again",
    )
