"""Landing's bytes become rows: the decoder run over a frame's Arrow batches.

First step of reconcile. Promises decoded rows for the landing rows it is given, in no particular order. Which rows
those are, and how large an Arrow batch is (a setting of the session), is left to the caller; how bytes are read, to
``decode``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from dblake.core.schema import TableSchema
from dblake.decode.batch import decode
from dblake.decode.columns import AFTER, DECODED, DECODER_INPUT, KEY, OP, PARTIAL, UNDECODED
from dblake.landing.columns import (
    BATCH,
    CHUNK,
    CHUNK_ID,
    FORMAT,
    INCARNATION,
    KIND,
    LSN,
    PAYLOAD,
    SCHEMA_ID,
    SEQ,
    TABLE,
    TXID,
)
from dblake.reconcile.held import Windows

CARRIED, KEY_TEXT = "carried", "key_text"

#: What a chunk window needs to know of an event: ``key_text`` is null for a truncate, ``carried`` names the columns of
#: a partial image and is null for any other.
TOUCHED = pa.schema(
    [DECODED.field(CHUNK_ID), DECODED.field(OP), pa.field(KEY_TEXT, pa.string()),
     pa.field(CARRIED, pa.list_(pa.string()))]
)

#: What a chunk row says of itself. All else is its window's to tell, and would only cost on its way through Python.
READ_ROW = pa.schema(
    [DECODED.field(CHUNK_ID), DECODED.field(SEQ), pa.field(KEY_TEXT, pa.string()), DECODED.field(KEY),
     DECODED.field(AFTER), DECODED.field(UNDECODED)]
)
#: What the end of a dump needs to know of an event: which key, when, and whether a row was left.
KNOWN = pa.schema(
    [*(DECODED.field(name) for name in (TABLE, OP, TXID, INCARNATION, LSN, SEQ)), pa.field(KEY_TEXT, pa.string()),
     DECODED.field(KEY)]
)
#: And of a chunk row.
RETURNED = pa.schema([DECODED.field(CHUNK_ID), pa.field(KEY_TEXT, pa.string())])
_READ_INPUT = (BATCH, SEQ, SCHEMA_ID, CHUNK_ID, FORMAT, PAYLOAD)


def log_rows(landing: DataFrame, schemas: Mapping[str, TableSchema]) -> DataFrame:
    """Landing rows of kind row and truncate, whole."""

    def make(batch: pa.RecordBatch) -> pa.RecordBatch:
        return decode(batch, schemas)

    return _each(landing, DECODER_INPUT.names, DECODED, make)


def chunk_rows(landing: DataFrame, schemas: Mapping[str, TableSchema]) -> DataFrame:
    """Landing rows of kind chunk, as READ_ROW."""

    def make(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = decode(_completed(batch, schemas), schemas)
        key = rows.column(KEY)
        columns = [rows.column(CHUNK_ID), rows.column(SEQ), key_text(key), key, rows.column(AFTER),
                   rows.column(UNDECODED)]
        return pa.RecordBatch.from_arrays(columns, schema=READ_ROW)

    return _each(landing, _READ_INPUT, READ_ROW, make)


def touched(landing: DataFrame, schemas: Mapping[str, TableSchema], windows: Windows) -> DataFrame:
    """Landing rows of kind row and truncate, once for each window that holds them, as TOUCHED: without values.

    A row's events share its window: a watermark stands alone in its transaction.
    """

    def make(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = decode(windows.rows_held(batch), schemas)
        columns = [rows.column(CHUNK_ID), rows.column(OP), key_text(rows.column(KEY)), _carried(rows)]
        return pa.RecordBatch.from_arrays(columns, schema=TOUCHED)

    return _each(landing, DECODER_INPUT.names, TOUCHED, make)


def log_keys(landing: DataFrame, schemas: Mapping[str, TableSchema]) -> DataFrame:
    """Landing rows of kind row and truncate, as KNOWN."""

    def make(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = decode(batch, schemas)
        columns = {name: rows.column(name) for name in KNOWN.names if name != KEY_TEXT}
        columns[KEY_TEXT] = key_text(rows.column(KEY))
        return pa.RecordBatch.from_arrays([columns[name] for name in KNOWN.names], schema=KNOWN)

    return _each(landing, DECODER_INPUT.names, KNOWN, make)


def chunk_keys(landing: DataFrame, schemas: Mapping[str, TableSchema]) -> DataFrame:
    """Landing rows of kind chunk, as RETURNED."""

    def make(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = decode(_completed(batch, schemas), schemas)
        columns = [rows.column(CHUNK_ID), key_text(rows.column(KEY))]
        return pa.RecordBatch.from_arrays(columns, schema=RETURNED)

    return _each(landing, _READ_INPUT, RETURNED, make)


def _each(
    landing: DataFrame, columns: Sequence[str], to: pa.Schema, make: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> DataFrame:
    """What ``make`` makes of each Arrow batch of some columns of landing."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(make, batches)

    return landing.select(*columns).mapInArrow(run, from_arrow_schema(to))


def key_text_sql(key: str) -> str:
    """SQL for ``key_text`` of a key that is in events already."""
    values = f"map_values({key})"
    counted = f"transform({values}, v -> concat(octet_length(v), ':', v))"
    return f"IF(size({key}) = 1, {values}[0], array_join({counted}, ''))"


def key_text(keys: pa.MapArray) -> pa.StringArray:
    """Keys of one table as strings that are equal exactly if the keys are; null where there is none.

    A single column's text as it stands; several, each after its length, so that no two keys run together.
    """
    sizes = np.diff(keys.offsets.to_numpy())
    if (sizes == 1).all():
        return keys.items
    lengths = pc.cast(pc.binary_length(keys.items), pa.string())
    counted = pc.binary_join_element_wise(lengths, keys.items, ":")
    parts = pa.ListArray.from_arrays(keys.offsets, pc.if_else(_alone(sizes), keys.items, counted))
    return pc.if_else(pa.array(sizes > 0), pc.binary_join(parts, ""), None)


def _alone(sizes: np.ndarray) -> pa.BooleanArray:
    """For each key column whether it is its key's only one."""
    return pa.array(np.repeat(sizes == 1, sizes))


def _completed(batch: pa.RecordBatch, schemas: Mapping[str, TableSchema]) -> pa.RecordBatch:
    """Chunk rows as the decoder wants them; what was left behind is the same for all, or nothing."""
    ids = batch.column(SCHEMA_ID).dictionary_encode()
    tables = [schemas[name].table if name in schemas else None for name in ids.dictionary.to_pylist()]
    known = {name: batch.column(name) for name in _READ_INPUT} | {
        KIND: pa.repeat(CHUNK, batch.num_rows), TABLE: pa.array(tables, pa.string()).take(ids.indices),
    }
    columns = [known[f.name] if f.name in known else pa.nulls(batch.num_rows, f.type) for f in DECODER_INPUT]
    return pa.RecordBatch.from_arrays(columns, names=DECODER_INPUT.names)


def _carried(rows: pa.RecordBatch) -> pa.Array:
    names = TOUCHED.field(CARRIED).type
    partial = rows.column(PARTIAL)
    if not pc.any(partial).as_py():
        return pa.nulls(rows.num_rows, names)
    after = rows.column(AFTER)
    return pc.if_else(partial, pa.ListArray.from_arrays(after.offsets, after.keys, type=names), None)
