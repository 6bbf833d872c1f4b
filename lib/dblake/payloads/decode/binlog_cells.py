"""The columns of an image as cells and text, for many rows at once.

Place: between ``binlog_image``, which finds the values, and ``binlog_rows``. Guarantee: a value that its column's
type does not have is rejected. Most updates change few columns, so an after image reuses the text of the before image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dblake.payloads.decode.binlog_columns import CellStorage
from dblake.payloads.decode.binlog_image import Image
from dblake.payloads.decode.binlog_walk import RowOffsets
from dblake.payloads.decode.grid import Grid
from dblake.payloads.decode.mysql_cells import Cells
from dblake.payloads.decode.mysql_columns import Text, grid_of
from dblake.payloads.decode.payloads import Bytes, Index, Payloads


class ColumnCells(NamedTuple):
    """One column of some rows: the raw cells, and their text."""

    cells: Cells
    text: Text


def read_columns(
    payloads: Payloads, data: Bytes, image: Image, present: Sequence[int], rows: RowOffsets, offsets: Index,
    before_columns: Mapping[int, ColumnCells],
) -> dict[int, ColumnCells]:
    """Return the columns of the images at ``offsets``, by number; ``before_columns`` are the before images' columns."""
    out = {}
    for number, column, cells in zip(present, image.columns, image.cells(data, offsets), strict=True):
        text = _read_text(column, cells, before_columns.get(number))
        if text.wrong is not None:
            name = payloads.schema.names[number]
            payloads.reject(text.wrong, f"column {name} has a value that is not one of its type", rows=rows.event)
        out[number] = ColumnCells(cells, text)
    return out


def _read_text(column: CellStorage, cells: Cells, before_image: ColumnCells | None) -> Text:
    """Return a column as text. Most updates change few columns, so unchanged cells reuse the before image's text."""
    if before_image is None or column.is_variable:
        return column.read(cells)
    changed = np.flatnonzero(~cells.equal(before_image.cells, column.width))
    if len(changed) == 0:
        return before_image.text
    if len(changed) > len(cells) // 2:
        return column.read(cells)
    return before_image.text.replace_rows(changed, column.read(cells.take(changed)))


def join_columns(names: tuple[str, ...], columns: dict[int, ColumnCells], rows: int) -> Grid:
    """Return columns, given by number, as the grid of their rows."""
    order = sorted(columns)
    return grid_of(names, order, [columns[c].text for c in order], [columns[c].cells.null for c in order], rows)
