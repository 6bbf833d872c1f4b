"""The table of dead letters: events that a consumer could never take, by position.

Place: beside ``events``, which still has the rows, so no value is stored here. Guarantee: a dead letter is in the table
before the checkpoint passes its event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import write_deltalake

from dblake.base.core.position import Position
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.panics import hidden_panics
from dblake.base.lake.tables import create_table, open_table

#: ``output`` is the consumer's name, ``reason`` its message without row values.
DEAD_LETTERS = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("output", pa.string()),
        ("table", pa.string()),
        ("incarnation", pa.int64()),
        ("lsn", pa.int64()),
        ("seq", pa.int64()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event, by table and position, and why it was not taken."""

    table: str
    position: Position
    reason: str


def append_dead_letters(paths: Paths, output: str, letters: Sequence[DeadLetter]) -> None:
    """Append dead letters; durable on return."""
    now = datetime.now(UTC)
    rows = [
        {"at": now, "output": output, "table": one.table, "incarnation": one.position.incarnation,
         "lsn": one.position.lsn, "seq": one.position.seq, "reason": one.reason}
        for one in letters
    ]
    path = paths.dead_letters
    with commit_lock(path):
        create_table(path, DEAD_LETTERS)
        with hidden_panics():
            write_deltalake(open_table(path), pa.Table.from_pylist(rows, schema=DEAD_LETTERS), mode="append")
