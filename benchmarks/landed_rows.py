"""Landing tables for the stages right of it, without a database.

Capture's own writer lands the bytes that PostgreSQL would send.

One table like pgbench's accounts. A dump of it lands in chunks of 50,000 rows, with changes in every chunk's window;
further changes follow. Keys of changes are random, so that a twentieth of a window's events evict a row of its chunk.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ServerIdentity
from dblake.ingest.source.memory.encode import copy_line, pgoutput_update
from dblake.landing.columns import LANDING
from dblake.landing.control import ChunkEnd
from dblake.landing.table import Landing, Reached

SOURCE = "bench"
TABLE = TableSchema("public.accounts", (
    Column("aid", "integer", False, 1), Column("bid", "integer", False), Column("abalance", "integer", False),
    Column("filler", "character(84)", False),
))
_CHUNK = 50_000
_BATCH = 200_000
_ROWS_A_TRANSACTION = 4
_FILLER = " " * 84


class Rows:
    """Writes landing rows in order, a commit for every so many."""

    def __init__(self, path: str, batch_rows: int = _BATCH) -> None:
        self._batch_rows = batch_rows
        self._landing = Landing(path, SOURCE)
        self._rows: list[dict[str, Any]] = []
        self._lsn, self._draw = 0, random.Random(1)
        self.batch, self.count = 1, 0
        self._add(kind="schema", format="json", payload=TABLE.to_json().encode(), lsn=0)

    def change(self, count: int, keys: int) -> None:
        """Add updates of random rows, four to a transaction."""
        for number in range(count):
            at = number % _ROWS_A_TRANSACTION
            if at == 0:
                self._lsn += 10
            values = [str(self._draw.randrange(keys)), "1", str(number), _FILLER]
            self._add(kind="row", format="pgoutput", payload=pgoutput_update(1, values), seq=2 * at, txid=self._lsn,
                      last_in_txn=at == _ROWS_A_TRANSACTION - 1)

    def dump(self, rows: int, changes: int) -> None:
        """Add a dump, with changes in the windows of its chunks."""
        chunks = [range(first, min(first + _CHUNK, rows)) for first in range(0, rows, _CHUNK)]
        for number, keys in enumerate(chunks):
            chunk_id, first_batch = f"dump-{number}", self.batch
            low = self._mark("low", chunk_id)
            self.change(changes // len(chunks), rows)
            for place, key in enumerate(keys):
                self._add(kind="chunk", format="copy", chunk_id=chunk_id, lsn=None, seq=2 * place,
                          payload=copy_line([str(key), "1", "0", _FILLER]))
            end = ChunkEnd("dump", number, low, 0, TABLE.schema_id, len(keys), first_batch)
            self._mark("high", chunk_id, payload=end.to_json(), format="json")

    def commit(self) -> None:
        """Land what waits."""
        if self._rows:
            table = pa.Table.from_pylist(self._rows, schema=LANDING)
            self._landing.commit(table, Reached(self.batch, 1, ServerIdentity("s", "l"), ResumePoint(1, "0/0")))
            self.batch, self._rows = self.batch + 1, []

    def _mark(self, kind: str, chunk_id: str, **more: object) -> int:
        self._lsn += 10
        self._add(kind=kind, chunk_id=chunk_id, txid=self._lsn, **more)
        return self._lsn

    def _add(self, **facts: object) -> None:
        row = {"lsn": self._lsn, "seq": 0, "last_in_txn": False, **facts}
        self._rows.append(row | {
            "batch": self.batch, "lease_epoch": 1, "incarnation": 1, "table": TABLE.table,
            "schema_id": TABLE.schema_id, "committed_at": 1_700_000_000_000_000 + self._lsn,
        })
        self.count += 1
        if len(self._rows) >= self._batch_rows:
            self.commit()


def land_changes(path: str, changes: int) -> int:
    """Land updates alone; return how many rows that are."""
    rows = Rows(path)
    rows.change(changes, changes)
    rows.commit()
    return rows.count


def land_dump(path: str, dumped: int, changes: int, batch_rows: int = _BATCH) -> int:
    """Land a dump with half of the changes in its windows, the others after it; return how many rows that are."""
    rows = Rows(path, batch_rows)
    rows.dump(dumped, changes // 2)
    rows.change(changes - changes // 2, dumped)
    rows.commit()
    return rows.count
