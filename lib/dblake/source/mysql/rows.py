"""Landing rows while they are gathered, by columns: a list for each, so that nothing is made for a row but its own.

Rows that were framed together come as columns already, and what was gathered before them becomes columns with that.

Below ``frames``, which knows what the rows are. Promises the columns of CAPTURED when rows are taken out.
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


class What(NamedTuple):
    """What many rows have in common."""

    kind: str
    table: str | None
    schema_id: str | None
    format: str


class Rows:
    """Rows in order. The lists are of one length and may be appended to by whoever frames rows; ``code`` is a What.

    What is in the lists comes after all that was ``put_together``; places count from the lists' beginning.
    """

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._whats: list[What] = []
        self._codes: dict[What, int] = {}
        self._together: list[pa.Table] = []
        self._together_bytes = self._together_count = 0
        self.lsns: list[int] = []
        self.seqs: list[int] = []
        self.codes: list[int] = []
        self.times: list[int] = []
        self.payloads: list[bytes] = []

    def __len__(self) -> int:
        return len(self.payloads)

    def code(self, what: What) -> int:
        """The number that stands for it."""
        found = self._codes.get(what)
        if found is None:
            found = self._codes[what] = len(self._whats)
            self._whats.append(what)
        return found

    def drop(self, place: int) -> None:
        """Forgets the rows from there on."""
        for column in (self.lsns, self.seqs, self.codes, self.times, self.payloads):
            del column[place:]

    def sizes(self) -> tuple[int, int]:
        """Bytes of all payloads, and how many rows are no schemas."""
        schemas = {number for number, what in enumerate(self._whats) if what.kind == SCHEMA}
        return (
            self._together_bytes + sum(map(len, self.payloads)),
            self._together_count + sum(code not in schemas for code in self.codes),
        )

    def put_together(
        self, lasts: list[int], lsns: Integers, seqs: Integers, codes: Integers, times: Integers,
        last: npt.NDArray[np.bool_], payloads: pa.BinaryArray,
    ) -> None:
        """Adds rows as columns: one at least, none a schema. ``lasts`` are the places before that end transactions."""
        size, count = self.sizes()
        more: int = pc.sum(pc.binary_length(payloads)).as_py() or 0
        if self.payloads:
            self._together.append(self._listed(len(self), lasts))
        self._together.append(self._framed(lsns, seqs, codes, times, last, payloads))
        self._together_bytes, self._together_count = size + more, count + len(payloads)

    def take(self, place: int, lasts: list[int]) -> pa.Table:
        """Takes out the rows before there, as CAPTURED. ``lasts`` are the places of those that end transactions."""
        taken = [*self._together, *([self._listed(place, lasts)] if place else [])]
        self._together, self._together_bytes, self._together_count = [], 0, 0
        return pa.concat_tables(taken) if taken else NO_ROWS

    def _listed(self, place: int, lasts: list[int]) -> pa.Table:
        """The same of the lists alone."""
        last = np.zeros(place, np.bool_)
        last[lasts] = True
        lsns, seqs, codes, times = (
            np.array(column[:place], np.int64) for column in (self.lsns, self.seqs, self.codes, self.times)
        )
        taken = self._framed(lsns, seqs, codes, times, last, pa.array(self.payloads[:place], pa.binary()))
        for column in (self.lsns, self.seqs, self.codes, self.times, self.payloads):
            del column[:place]
        return taken

    def _framed(
        self, lsns: Integers, seqs: Integers, codes: Integers, times: Integers, last: npt.NDArray[np.bool_],
        payloads: pa.BinaryArray,
    ) -> pa.Table:
        count = len(payloads)
        kinds, tables, schema_ids, formats = zip(*self._whats, strict=True)

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
