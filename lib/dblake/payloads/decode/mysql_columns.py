"""Columns of MySQL rows as text, and the rows that they make up.

Place: between the modules that read cells by type and ``grid``. Guarantees: a null cell is NULL, also if the text of
its column has a value there. The text of a block of rows is copied once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblake.payloads.decode.grid import MAX_ARRAY_BYTES, Grid, batch_too_large, take
from dblake.payloads.decode.payloads import Index, Mask


@dataclass(frozen=True, slots=True)
class Text:
    """A column as text.

    ``undecoded`` marks cells that are not valid text and hold hex digits; ``wrong`` cells whose bytes are no value of
    the column's type.
    """

    values: pa.StringArray
    undecoded: Mask | None = None
    wrong: Mask | None = None

    def replace_rows(self, rows: Index, others: Text) -> Text:
        """Return the text with some rows replaced. For columns without undecoded cells."""
        which = np.arange(len(self.values))
        which[rows] = len(which) + np.arange(len(rows))
        wrong = None
        if others.wrong is not None:
            wrong = np.zeros(len(which), np.bool_)
            wrong[rows] = others.wrong
        return Text(take(pa.concat_arrays([self.values, others.values]), which), wrong=wrong)


@lru_cache(maxsize=16)
def _row_major(rows: int, columns: int) -> pa.Int32Array:
    """Return the indexes that bring the cells of concatenated columns into row order."""
    return pa.array(np.add.outer(np.arange(rows, dtype=np.int32), rows * np.arange(columns, dtype=np.int32)).ravel())


def grid_of(
    names: tuple[str, ...], present: Sequence[int], columns: Sequence[Text], nulls: Sequence[Mask], rows: int
) -> Grid:
    """Return the grid of some of the schema's columns, given by number, for all rows."""
    is_present = np.zeros((rows, len(names)), np.bool_)
    is_present[:, list(present)] = True
    if not columns:
        return Grid(names, pa.array([], pa.string()), is_present)
    null = np.stack(nulls, axis=1)
    if sum(column.values.nbytes for column in columns) > MAX_ARRAY_BYTES:
        raise batch_too_large(f"the images of {rows} rows")
    every = pa.concat_arrays([column.values for column in columns])
    values = pc.take(every, _row_major(rows, len(columns)), boundscheck=False)
    if null.any():
        valid = pa.py_buffer(np.packbits(~null.ravel(), bitorder="little"))
        values = pa.StringArray.from_buffers(len(values), *values.buffers()[1:], valid)
    if all(column.undecoded is None for column in columns):
        return Grid(names, values, is_present)
    undecoded = np.zeros(is_present.shape, np.bool_)
    for number, column in zip(present, columns, strict=True):
        if column.undecoded is not None:
            undecoded[:, number] = column.undecoded
    return Grid(names, values, is_present, undecoded)
