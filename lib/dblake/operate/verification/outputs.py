"""Compare the target of a SQL output with state, and deliver again what differs.

Place: behind the path's end. Guarantee: one snapshot of the target has the tables and the checkpoint. The lake is read
as of the checkpoint's position, so neither the output nor the source has to pause. What the output has not delivered
yet is no difference. The ledger has one row for each table and reading, with the output's name.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dblake.base.core.errors import CopyDiffers, StateNotReady, Unsupported
from dblake.base.core.names import abbreviated
from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.operate.verification.ledger import ChunkDifferences, ChunkResult, Round, append_output_results
from dblake.serve.consume.cursor import Cursor, read_cursor
from dblake.serve.consume.event_table import EventTable
from dblake.serve.consume.model import Event
from dblake.serve.consume.redecodes import replaced_since
from dblake.serve.consume.row_images import build_rows
from dblake.serve.outputs.sql.comparison import KINDS, SqlCopy, TargetDifferences
from dblake.serve.outputs.target import ConfiguredOutput
from dblake.serve.read.reading import LakeReading, open_reading
from dblake.serve.read.rows import read_state_rows
from dblake.transform.state.fold import key_texts

_WAIT_SECONDS, _POLL_SECONDS = 30.0, 0.2
"""How long a verification waits for events, and between two looks."""
_COPY = f"{SqlCopy.__module__}:{SqlCopy.__name__}"
_WrongByTable = dict[str, TargetDifferences]


@dataclass
class OutputVerification:
    """The verification of one output; ``run`` carries it out."""

    paths: Paths
    name: str
    output: ConfiguredOutput
    tables: Sequence[str] = ()
    """Qualified names; none for all tables that the output has written."""

    def __post_init__(self) -> None:
        self.id = uuid.uuid4().hex[:12]
        self._rounds = 0
        self._position, self._batch = Position(1, 0), 0

    def run(self, *, repair: bool) -> list[dict[str, Any]]:
        """Compare all tables, with ``repair`` deliver wrong rows again and compare their tables once more.

        Raises Unsupported for an output whose target cannot be compared, StateNotReady while it has a bootstrap under
        way or a redecode ahead, and what the target raises.
        """
        if self.output.kind != "sql" or self.output.partition is not None:
            raise Unsupported(
                f"output {self.name}: only outputs of type sql with all keys can be compared with state",
                next_step="name another output; compare state with the source by verify without --output",
            )
        copy = replace(self.output, kind=_COPY).make(self.name, self.paths.source, {})
        assert isinstance(copy, SqlCopy), "the class was named"
        readings = self._compare(copy, self.tables)
        repaired: Mapping[str, int] = {}
        self._record(readings, repaired)
        wrong = [table for table, rows in readings.items() if rows.count]
        left = readings
        if repair and wrong:
            rows = {table: [row for kind in KINDS for row in readings[table].listed[kind]] for table in wrong}
            copy.deliver_again(rows, self.paths.source, self._position.end_of_transaction, self._cursor)
            left = readings | self._compare(copy, wrong)
            repaired = {table: max(readings[table].count - left[table].count, 0) for table in wrong}
            self._record({table: left[table] for table in wrong}, repaired)
        return [
            {"output": self.name, "table": table, "rows_compared": rows.compared, **rows.counts,
             "repaired": repaired.get(table, 0), "remaining": left[table].count, "position": str(self._position)}
            for table, rows in sorted(readings.items())
        ]

    def require_equal(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Raise CopyDiffers if rows differ still."""
        wrong = [str(result["table"]) for result in results if result["remaining"]]
        if wrong:
            raise CopyDiffers(
                f"output {self.name}: rows of its target differ from state: {abbreviated(wrong)}",
                next_step=f"find who writes to the target, then run verify --output {self.name} --repair",
            )

    def _compare(self, copy: SqlCopy, tables: Sequence[str]) -> _WrongByTable:
        readings: _WrongByTable = {}
        with copy.snapshot() as checkpoint:
            cursor = self._cursor(checkpoint)
            self._position, self._batch = cursor.position, cursor.batch
            self._await_events(cursor)
            reading = open_reading(self.paths, str(cursor.position))
            for managed in copy.tables_of(self.paths.source):
                table = managed.source_table
                if table in reading.tables and (table in tables if tables else self.output.selection.has_table(table)):
                    schema = reading.schemas(table)[-1].schema
                    rows = self._rows(reading, table)
                    readings[table] = copy.compare(managed, schema, rows, cursor.position.end_of_transaction)
        lacking = sorted(set(tables).difference(readings))
        if lacking:
            raise Unsupported(
                f"output {self.name}: it has written no table {abbreviated(lacking)} at its target",
                next_step="name tables that it delivers, or none for all",
            )
        return readings

    def _cursor(self, checkpoint: str | None) -> Cursor:
        where = f"the target of output {self.name}"
        cursor = None if checkpoint is None else read_cursor(checkpoint, self.paths.source, where)
        events = EventTable(self.paths)
        events.refresh()
        if cursor is None or cursor.bootstrap is not None:
            why = "it has delivered nothing yet" if cursor is None else "its bootstrap is under way"
        elif any(one.run <= events.run and cursor.has_events_since(one.first)
                 and self.output.selection.has_table(one.table) for one in replaced_since(self.paths, cursor.run)):
            why = "events were decoded again, and it has not delivered that"
        else:
            return cursor
        raise StateNotReady(
            f"output {self.name} cannot be compared: {why}",
            next_step=f"run subscribe --output {self.name}, then this again",
        )

    def _await_events(self, cursor: Cursor) -> None:
        """Wait until events reach what the output has delivered. Raises StateNotReady after a while."""
        events, deadline = EventTable(self.paths), time.monotonic() + _WAIT_SECONDS
        events.refresh()
        while events.batch < cursor.reached and (events.newest is None or events.newest < cursor.position):
            if time.monotonic() >= deadline:
                raise StateNotReady(
                    f"output {self.name} cannot be compared: it is ahead of events",
                    next_step="run reconcile, then this again",
                )
            time.sleep(_POLL_SECONDS)
            events.refresh()

    def _rows(self, reading: LakeReading, table: str) -> Iterator[list[Event]]:
        """Yield the rows that a table should have."""
        schema = reading.schemas(table)[-1].schema
        kept = self.output.selection.columns_of(schema)
        assert reading.position is not None, "the table has rows"
        for rows in read_state_rows(reading.table(table)):
            yield from build_rows(self.paths, schema, rows, reading.position, kept)

    def _record(self, readings: _WrongByTable, repaired: Mapping[str, int]) -> None:
        self._rounds += 1
        append_output_results(self.paths, self.name, [
            ChunkResult(
                Round(self.id, self._rounds), table, "", self._position, self._batch, rows.compared, closing=True,
                repaired=repaired.get(table, 0), output=self.name, counts=rows.counts,
                differences=ChunkDifferences(
                    _keys(rows, "missing"), _keys(rows, "extra"), _keys(rows, "different"), rows.columns
                ),
            )
            for table, rows in readings.items()
        ])


def _keys(rows: TargetDifferences, kind: str) -> list[str]:
    """Return the keys of listed rows as state writes them."""
    listed = rows.listed[kind]
    if not listed:
        return []
    keys = pa.array([list((row.key or {}).items()) for row in listed], pa.map_(pa.string(), pa.string()))
    texts: list[str] = key_texts(keys, tuple(listed[0].schema.primary_key)).to_pylist()
    return texts
