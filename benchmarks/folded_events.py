"""Events tables as reconcile writes them, without it or a database: whole images of one table or many, by batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from dblake.base.core.position import Position
from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application, commit_files
from dblake.base.lake.schemas import SCHEMAS, schema_row
from dblake.base.lake.tables import create_table, open_table
from dblake.transform.events.files import EVENT_COLUMNS, write_event_file

SOURCE = "bench"
COLUMNS = (
    Column("aid", "integer", False, 1), Column("bid", "integer"), Column("abalance", "integer"),
    Column("note", "text"), Column("filler", "character(84)"),
)
_MAP = pa.map_(pa.string(), pa.string())


class FoldedEvents:
    """Writes events and schemas of one source; every call of ``append`` is a landing batch."""

    def __init__(self, paths: Paths, tables: list[str]) -> None:
        self._paths, self._batch = paths, 0
        self._draw = np.random.default_rng(1)
        create_table(paths.events, EVENT_COLUMNS)
        rows = [schema_row(TableSchema(table, COLUMNS), Position(1, 0, 0), 1) for table in tables]
        write_deltalake(paths.schemas, pa.Table.from_pylist(rows, schema=SCHEMAS))

    def append(self, tables: list[str], ids: np.ndarray, op: str) -> None:
        """Append one event per id, each of its own table or all of the only one, as one transaction."""
        self._batch += 1
        count, width = len(ids), len(COLUMNS)
        keys = pa.array(ids).cast(pa.string())
        amounts = pa.array(self._draw.integers(-99_999, 99_999, count)).cast(pa.string())
        texts = pa.concat_arrays([keys, amounts, pa.array(["7", f"note {self._batch}", " " * 84])])
        every = np.arange(count)
        places = np.column_stack([every, np.full(count, 2 * count), count + every, np.full(count, 2 * count + 1),
                                  np.full(count, 2 * count + 2)])
        names = pa.array([column.name for column in COLUMNS]).take(pa.array(np.tile(np.arange(width), count)))
        after = pa.MapArray.from_arrays(
            pa.array(np.arange(0, count * width + 1, width, dtype=np.int32)), names,
            texts.take(pa.array(places.ravel())),
        )
        key = pa.MapArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32)), _repeated("aid", count), keys
        )
        rows = {
            "incarnation": _repeated(1, count), "lsn": _repeated(1000 * self._batch, count), "seq": pa.array(2 * every),
            "table": pa.array(tables) if len(tables) == count else _repeated(tables[0], count),
            "op": _repeated(op, count), "key": key, "before": pa.nulls(count, _MAP), "after": after,
            "schema_id": _repeated(TableSchema(tables[0], COLUMNS).schema_id, count), "txid": _repeated(7, count),
            "committed_at": _repeated(0, count).cast(pa.timestamp("us", tz="UTC")),
            "last_in_txn": pa.array(every == count - 1), "origin": _repeated("log", count),
            "chunk_id": pa.nulls(count, pa.string()), "batch": _repeated(self._batch, count),
            "partial": _repeated(False, count), "undecoded": pa.nulls(count, pa.list_(pa.string())),
        }
        batches = pa.table(rows, schema=EVENT_COLUMNS).combine_chunks().to_batches()
        file = write_event_file(self._paths.events, batches)
        application = Application.reconcile(self._paths.source)
        commit_files(self._paths.events, open_table(self._paths.events), application, self._batch, [file])


def _repeated(value: object, count: int) -> pa.Array:
    return pa.array([value]).take(pa.array(np.zeros(count, np.int64)))
