"""Storage of landing rows by columns: one list for each, so that appending a row creates no object but its values.

Rows that were framed in a run arrive as columns; then the rows appended before them become columns, too. Below
``pieces``, which decides what the rows are. Guarantee: rows are taken out with the columns of CAPTURED.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dblake.landing.columns import CAPTURED, SCHEMA

NO_ROWS = CAPTURED.empty_table()
Integers = npt.NDArray[np.int64]


class RowKind(NamedTuple):
    """The columns whose values many rows share; a row refers to them by a code."""

    kind: str
    table: str | None
    schema_id: str | None
    format: str


class Rows:
    """Rows in order. The lists are of one length and may be appended to by the caller; ``codes`` refer to RowKinds.

    Rows in the lists follow all that ``append_columns`` was given; row numbers count from the lists' beginning.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._kinds: list[RowKind] = []
        self._code_of: dict[RowKind, int] = {}
        self._columns: list[pa.Table] = []
        self._columns_bytes = self._columns_rows = 0
        self.lsns: list[int] = []
        self.seqs: list[int] = []
        self.codes: list[int] = []
        self.times: list[int] = []
        self.payloads: list[bytes] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def code(self, kind: RowKind) -> int:
        """Return the code of a row kind."""
        code = self._code_of.get(kind)
        if code is None:
            code = self._code_of[kind] = len(self._kinds)
            self._kinds.append(kind)
        return code

    def drop(self, first: int) -> None:
        """Drop the rows from a row number on."""
        for column in (self.lsns, self.seqs, self.codes, self.times, self.payloads):
            del column[first:]

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of all payloads, and the number of rows that are not schemas."""
        schemas = {code for code, kind in enumerate(self._kinds) if kind.kind == SCHEMA}
        return (
            self._columns_bytes + sum(map(len, self.payloads)),
            self._columns_rows + sum(code not in schemas for code in self.codes),
        )

    def append_columns(
        self, lasts: list[int], lsns: Integers, seqs: Integers, codes: Integers, times: Integers,
        last: npt.NDArray[np.bool_], payloads: pa.BinaryArray,
    ) -> None:
        """Append rows as columns: one at least, none a schema.

        ``lasts`` are the numbers of the rows before them that end transactions, ``last`` marks those among them.
        """
        size, count = self.sizes()
        added: int = pc.sum(pc.binary_length(payloads)).as_py() or 0
        if self.payloads:
            self._columns.append(self._take_listed(len(self), lasts))
        self._columns.append(self._table(lsns, seqs, codes, times, last, payloads))
        self._columns_bytes, self._columns_rows = size + added, count + len(payloads)

    def take(self, stop: int, lasts: list[int]) -> pa.Table:
        """Remove the rows before a row number and return them as CAPTURED; ``lasts`` end transactions."""
        taken = [*self._columns, *([self._take_listed(stop, lasts)] if stop else [])]
        self._columns, self._columns_bytes, self._columns_rows = [], 0, 0
        return pa.concat_tables(taken) if taken else NO_ROWS

    def _take_listed(self, stop: int, lasts: list[int]) -> pa.Table:
        """Remove rows from the lists alone and return them."""
        last = np.zeros(stop, np.bool_)
        last[lasts] = True
        lsns, seqs, codes, times = (
            np.array(column[:stop], np.int64) for column in (self.lsns, self.seqs, self.codes, self.times)
        )
        taken = self._table(lsns, seqs, codes, times, last, pa.array(self.payloads[:stop], pa.binary()))
        for column in (self.lsns, self.seqs, self.codes, self.times, self.payloads):
            del column[:stop]
        return taken

    def _table(
        self, lsns: Integers, seqs: Integers, codes: Integers, times: Integers, last: npt.NDArray[np.bool_],
        payloads: pa.BinaryArray,
    ) -> pa.Table:
        count = len(payloads)
        kinds, tables, schema_ids, formats = zip(*self._kinds, strict=True)

        def spread(values: tuple[str | None, ...]) -> pa.StringArray:
            return pa.array(values, pa.string()).take(pa.array(codes))

        return pa.table(
            [
                pa.repeat(pa.scalar(self._incarnation, pa.int64()), count),
                pa.array(lsns),
                pa.array(seqs),
                spread(kinds),
                spread(tables),
                spread(schema_ids),
                pa.nulls(count, pa.int64()),
                pa.array(times).cast(CAPTURED.field("committed_at").type),
                pa.array(last),
                pa.nulls(count, pa.string()),
                spread(formats),
                payloads,
            ],
            schema=CAPTURED,
        )
