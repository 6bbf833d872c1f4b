"""The input and the output of a payload format's decoder.

``batch`` sorts landing rows into runs of one kind, format and schema; the format's decoder takes each run as
``Payloads`` and returns ``Changes``. Every decoder guarantees: it reads only the payload bytes, and it rejects bytes
that it does not understand, through ``Payloads.reject``. Positions and transactions are left to ``batch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.base.core.errors import ReconcileError
from dblake.base.core.schema import TableSchema
from dblake.landing.columns import BATCH, CHUNK_ID, FORMAT, INCARNATION, LSN, PAYLOAD, SEQ, TABLE

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_KEEP_AND_REPORT = "keep the landing table, which holds the original bytes, and report the format"


@dataclass(frozen=True, slots=True)
class Payloads:
    """The payloads of landing rows of one format and one schema.

    Row ``i`` is ``data[starts[i]:ends[i]]``; the rows follow one another without gaps and fill ``data``. With
    ``keys_alone`` a decoder of chunk rows needs to decode the columns of the primary key only.
    """

    rows: pa.RecordBatch
    schema: TableSchema
    data: Bytes
    starts: Index
    ends: Index
    keys_alone: bool = False

    @classmethod
    def of(cls, rows: pa.RecordBatch, schema: TableSchema, *, keys_alone: bool = False) -> Payloads:
        """Return a view of rows with the DECODER_INPUT columns; copies no payload byte. Raises ReconcileError."""
        column = rows.column(PAYLOAD)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise decode_error(rows, row, "the payload is missing")
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
        raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        begin, end = bounds[0], bounds[-1]
        return cls(rows, schema, raw[begin:end], bounds[:-1] - begin, bounds[1:] - begin, keys_alone)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def columns_to_decode(self) -> list[int]:
        """The numbers of the columns to decode from chunk rows, in column order."""
        names = self.schema.names
        return sorted(map(names.index, self.schema.primary_key)) if self.keys_alone else list(range(len(names)))

    def reject(self, wrong: Mask, what: str, *, rows: Index | None = None, next_step: str = _KEEP_AND_REPORT) -> None:
        """Raise ReconcileError for the first wrong row, if any; ``rows`` are the numbers of the mask's rows."""
        if wrong.any():
            first = int(np.argmax(wrong))
            raise decode_error(self.rows, first if rows is None else int(rows[first]), what, next_step=next_step)

    def reject_miscounted(
        self, counts: Index, expected: int, what: str, parts: str, *, rows: Index | None = None
    ) -> None:
        """Raise ReconcileError for the first row that has fewer or more columns or values than its schema."""
        wrong = counts != expected
        if wrong.any():
            count = int(counts[np.argmax(wrong)])
            self.reject(wrong, f"{what} has {count} {parts}, its schema has {expected}", rows=rows)


def decode_error(rows: pa.RecordBatch, row: int, what: str, *, next_step: str = _KEEP_AND_REPORT) -> ReconcileError:
    """Return the error that names a row of DECODER_INPUT by table, batch and position, never by its values."""

    def value(name: str) -> Any:
        return rows.column(name)[row].as_py()

    chunk = f"row {value(SEQ)} of chunk {value(CHUNK_ID)}" if value(CHUNK_ID) is not None else ""
    where = chunk or f"position {value(INCARNATION)}/{value(LSN)}/{value(SEQ)}"
    return ReconcileError(
        f"table {value(TABLE)}: {what}, in {value(FORMAT)} at {where} in landing batch {value(BATCH)}",
        next_step=next_step,
    )


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of payloads, one entry per change.

    ``row`` is the number of the change's landing row; None if every change ``i`` comes from row ``i``. ``step`` is
    added to the row's ``seq``. ``closing`` is true for the last change of a landing row, which alone may end a
    transaction; None if every change is its row's last. ``key_before`` is None if no change has one.
    """

    op: pa.StringArray
    key: pa.MapArray
    before: pa.MapArray
    after: pa.MapArray
    partial: pa.BooleanArray
    undecoded: pa.ListArray
    row: Index | None = None
    step: Index | None = None
    closing: Mask | None = None
    key_before: pa.MapArray | None = None


class Decoder(Protocol):
    """A payload format's decoder."""

    def __call__(self, payloads: Payloads) -> Sequence[Changes]:
        """Return all changes of the payloads, in any order. Raises ReconcileError for bytes that do not fit."""
