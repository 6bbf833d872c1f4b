"""A column of any table as one Arrow array: what numpy and Arrow's scalar functions take; and rows in another order.

Place: below the modules that fold, read and compare rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

JOINED_BYTES = 1 << 30
"""Rows that are joined into one array per column: one of texts has at most 2 GiB."""


def join_chunks(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined


def copy_rows(rows: pa.Table) -> pa.Table:
    """Return a copy that has just the memory of its rows: the buffers of rows from a file can be half empty."""
    return rows.filter(pa.array(np.ones(rows.num_rows, bool)))


def take_rows(rows: pa.Table, order: np.ndarray) -> pa.Table:
    """Return the rows at these places; the columns may have more than the 2 GiB that one array of texts holds."""
    if rows.nbytes <= JOINED_BYTES:
        return rows.take(pa.array(order))
    step = max(rows.num_rows * (JOINED_BYTES // 4) // rows.nbytes, 1)
    batches = rows.to_batches()
    parts = (_take(batches, order[first : first + step]) for first in range(0, len(order), step))
    return pa.concat_tables([rows.schema.empty_table(), *parts])


def _take(batches: Sequence[pa.RecordBatch], order: np.ndarray) -> pa.Table:
    """Return rows of several batches, in arrays of bounded size; a row of any size is alone."""
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    number = np.searchsorted(starts, order, side="right") - 1
    by_batch = np.argsort(number, kind="stable")
    bounds = np.searchsorted(number[by_batch], np.arange(len(batches) + 1))
    part = pa.Table.from_batches([
        batch.take(pa.array(order[by_batch[first:last]] - start))
        for batch, start, first, last in zip(batches, starts[:-1], bounds[:-1], bounds[1:], strict=True) if last > first
    ])
    if part.nbytes > JOINED_BYTES and len(order) > 1:
        half = len(order) // 2
        return pa.concat_tables([_take(batches, order[:half]), _take(batches, order[half:])])
    return part.take(pa.array(np.argsort(by_batch)))
