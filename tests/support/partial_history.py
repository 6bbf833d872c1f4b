"""A random history whose events carry changed columns only, in a lake, beside the row that each event leaves.

For tests of whole rows: partial updates, key changes, deletes, truncates, several events of a key in one transaction,
and transactions that span two batches.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from dblake.base.core.position import Position
from tests.support.plain_lake import PlainLake, event_rows
from tests.support.schemas import table_schema

Row = dict[str, str | None]
T = table_schema("public.t", "id text key", "a integer", "b text", "c text")


class PartialHistory:
    """A lake with transactions that carry changed columns only, and the rows that each event leaves."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.lake, self.rows = random.Random(seed), PlainLake(folder), dict[str, Row]()
        self.lake.schema(T)
        self.lsn, self.batch, self.expected = 10, 0, dict[Position, Row]()

    def land(self, transactions: int) -> None:
        """Append a batch of transactions."""
        parts = []
        for _ in range(transactions):
            self.lsn += 10
            events = [event for _ in range(self.random.randrange(1, 5)) for event in self._change()]
            parts += [self._table(n, event, n + 1 == len(events)) for n, event in enumerate(events)]
        # The last transaction may span two batches: it is read in portions, and kept in a file.
        cut = len(parts) - self.random.choice([0, 1])
        for some in filter(None, (parts[:cut], parts[cut:])):
            self.batch += 1
            self.lake.append(_of_batch(pa.concat_tables(some), self.batch), self.batch)

    def _table(self, seq: int, event: tuple[Any, ...], is_last: bool) -> pa.Table:
        row = event_rows(T, 1, [(self.lsn, *event[:4], event[4])]).to_pylist()[0]
        row |= {"seq": seq, "last_in_txn": is_last}
        if event[5] is not None:
            self.expected[Position(1, self.lsn, seq)] = event[5]
        return pa.Table.from_pylist([row], schema=event_rows(T, 1, []).schema)

    def _change(self) -> list[tuple[Any, ...]]:
        """Return (op, key, after, undecoded, old key, whole row) of one change."""
        kind, keys = self.random.random(), sorted(self.rows)
        if not keys or kind < 0.3:
            key = self.random.choice([n for n in map(str, range(30)) if n not in self.rows])
            self.rows[key] = {"id": key, "a": str(self.lsn), "b": self._text(), "c": self._text()}
            return [("c", key, dict(self.rows[key]), [], None, dict(self.rows[key]))]
        key = self.random.choice(keys)
        if kind < 0.35:
            self.rows.clear()
            return [("t", None, None, [], None, None)]
        if kind < 0.45:
            del self.rows[key]
            return [("d", key, None, [], None, None)]
        changed: Row = {"a": self.random.choice([None, str(self.lsn)])}
        if self.random.random() < 0.3:
            changed["b"] = self._text()
        if kind < 0.6:
            new = self.random.choice([n for n in map(str, range(30)) if n not in self.rows])
            row = self.rows[new] = self.rows.pop(key) | changed | {"id": new}
            return [("d", key, None, [], None, None), ("c", new, {"id": new} | changed, [], key, dict(row))]
        self.rows[key] |= changed
        return [("u", key, {"id": key} | changed, [], None, dict(self.rows[key]))]

    def _text(self) -> str | None:
        return self.random.choice([None, "", "x" * 20, f"text {self.lsn}"])


def _of_batch(rows: pa.Table, batch: int) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("batch"), rows.schema.field("batch"), [[batch] * rows.num_rows])
