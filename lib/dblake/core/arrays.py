"""A column of any table as one Arrow array: what numpy and Arrow's scalar functions take.

Place: below the modules that fold, read and compare rows.
"""

from __future__ import annotations

import pyarrow as pa


def join_chunks(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined
