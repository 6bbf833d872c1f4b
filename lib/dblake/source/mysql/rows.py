"""Landing rows while they are gathered, by columns: a list for each, so that nothing is made for a row but its own.

Below ``frames``, which knows what the rows are. Promises the columns of FRAMES when rows are taken out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dblake.landing.columns import FRAMES, SCHEMA

NO_ROWS = FRAMES.empty_table()


class What(NamedTuple):
    """What many rows have in common."""

    kind: str
    table: str | None
    schema_id: str | None
    format: str


class Rows:
    """Rows in order. The lists are of one length and may be appended to by whoever frames rows; ``code`` is a What."""

    def __init__(self) -> None:
        self._whats: list[What] = []
        self._codes: dict[What, int] = {}
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
        return sum(map(len, self.payloads)), sum(code not in schemas for code in self.codes)

    def take(self, place: int, incarnation: int, lasts: list[int]) -> pa.Table:
        """Takes out the rows before there, as FRAMES. ``lasts`` are the numbers of those that end transactions."""
        if not place:
            return NO_ROWS
        last = np.zeros(place, np.bool_)
        last[lasts] = True
        codes = np.array(self.codes[:place], np.int32)
        kinds, tables, schema_ids, formats = zip(*self._whats, strict=True)

        def spread(values: tuple[str | None, ...]) -> pa.StringArray:
            return pa.array(values, pa.string()).take(pa.array(codes))

        taken = pa.table(
            [
                pa.repeat(pa.scalar(incarnation, pa.int64()), place),
                pa.array(self.lsns[:place], pa.int64()),
                pa.array(self.seqs[:place], pa.int64()),
                spread(kinds),
                spread(tables),
                spread(schema_ids),
                pa.nulls(place, pa.int64()),
                pa.array(self.times[:place], pa.int64()).cast(FRAMES.field("committed_at").type),
                pa.array(last),
                pa.nulls(place, pa.string()),
                spread(formats),
                pa.array(self.payloads[:place], pa.binary()),
            ],
            schema=FRAMES,
        )
        for column in (self.lsns, self.seqs, self.codes, self.times, self.payloads):
            del column[:place]
        return taken
