"""Landing's bytes become rows: the decoder run over a frame's Arrow batches.

First step of reconcile. Promises DECODED rows for the landing rows it is given, in no particular order. Which rows
those are, and how large an Arrow batch is (a setting of the session), is left to the caller; how bytes are read, to
``decode``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from dblake.core.schema import TableSchema
from dblake.decode.batch import decode
from dblake.decode.columns import AFTER, DECODED, DECODER_INPUT, KEY, OP, PARTIAL
from dblake.landing.columns import CHUNK_ID

CARRIED = "carried"

#: What a chunk window needs to know of an event: ``carried`` names the columns of a partial image, else it is null.
TOUCHED = pa.schema(
    [DECODED.field(CHUNK_ID), DECODED.field(OP), DECODED.field(KEY), pa.field(CARRIED, pa.list_(pa.string()))]
)


def decoded(landing: DataFrame, schemas: Mapping[str, TableSchema]) -> DataFrame:
    """Landing rows of kind row, truncate and chunk, whole."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield decode(batch, schemas)

    return landing.select(*DECODER_INPUT.names).mapInArrow(run, from_arrow_schema(DECODED))


def touched(landing: DataFrame, schemas: Mapping[str, TableSchema]) -> DataFrame:
    """Landing rows of kind row, without their values: only these columns come back from Python."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = decode(batch, schemas)
            columns = [rows.column(CHUNK_ID), rows.column(OP), rows.column(KEY), _carried(rows)]
            yield pa.RecordBatch.from_arrays(columns, schema=TOUCHED)

    return landing.select(*DECODER_INPUT.names).mapInArrow(run, from_arrow_schema(TOUCHED))


def _carried(rows: pa.RecordBatch) -> pa.Array:
    names = TOUCHED.field(CARRIED).type
    partial = rows.column(PARTIAL)
    if not pc.any(partial).as_py():
        return pa.nulls(rows.num_rows, names)
    after = rows.column(AFTER)
    return pc.if_else(partial, pa.ListArray.from_arrays(after.offsets, after.keys, type=names), None)
