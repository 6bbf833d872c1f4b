"""What a micro-batch holds, learnt in one small action before anything is decoded.

Promises the batch numbers that are there and the low and high watermarks among their rows, the schemas they bring,
and how many rows each chunk has. Reads no payload but theirs. Deciding what to do about it is left to the pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from dblake.core.schema import TableSchema
from dblake.landing.columns import (
    BATCH,
    CHUNK,
    CHUNK_ID,
    HIGH,
    INCARNATION,
    KIND,
    LEASE_EPOCH,
    LOW,
    ROW,
    SCHEMA,
    TABLE,
    TRUNCATE,
)
from dblake.reconcile.windows import ChunkName, WatermarkRow

_TOLD = [f.name for f in fields(WatermarkRow)]
_COUNT, _OF_LOG = "count", "of_log"


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """A table's schema, from the position on at which the log showed it."""

    schema: TableSchema
    batch: int
    incarnation: int
    lsn: int
    seq: int


@dataclass(frozen=True, slots=True)
class Survey:
    """``epochs`` has the lease epoch of each batch found, ``incarnations`` its incarnation.

    ``chunk_rows`` counts the rows of each chunk that landed, ``log_rows`` those that become log events.
    """

    epochs: Mapping[int, int]
    incarnations: Mapping[int, int]
    watermarks: Sequence[WatermarkRow]
    schemas: Sequence[SchemaRow]
    chunk_rows: Mapping[ChunkName, int]
    log_rows: int


def survey(landing: DataFrame) -> DataFrame:
    """``counts``, and the low, high and schema rows themselves; for ``read_survey``."""
    told = landing.where(F.col(KIND).isin(LOW, HIGH, SCHEMA)).select(*_TOLD)
    return counts(landing).unionByName(told, allowMissingColumns=True)


def counts(landing: DataFrame) -> DataFrame:
    """How many rows each batch and chunk has; for ``read_survey``."""
    of_chunk = F.col(KIND) == CHUNK
    return (
        landing.select(
            BATCH, LEASE_EPOCH, INCARNATION, F.col(KIND).isin(ROW, TRUNCATE).alias(_OF_LOG),
            *(F.when(of_chunk, F.col(name)).alias(name) for name in (TABLE, CHUNK_ID)),
        )
        .groupBy(BATCH, TABLE, CHUNK_ID, _OF_LOG)
        # A batch has one of each.
        .agg(F.count("*").alias(_COUNT), *(F.max(name).alias(name) for name in (LEASE_EPOCH, INCARNATION)))
    )


def read_survey(rows: Iterable[Row]) -> Survey:
    """What the collected rows of ``survey`` say."""
    epochs: dict[int, int] = {}
    incarnations: dict[int, int] = {}
    chunk_rows: Counter[ChunkName] = Counter()
    watermarks, schemas, log_rows = [], [], 0
    for row in rows:
        if row[_COUNT] is not None:
            epochs[row[BATCH]], incarnations[row[BATCH]] = row[LEASE_EPOCH], row[INCARNATION]
            log_rows += row[_COUNT] if row[_OF_LOG] else 0
            if row[CHUNK_ID] is not None:
                chunk_rows[row[CHUNK_ID], row[TABLE], row[LEASE_EPOCH]] += row[_COUNT]
        elif row[KIND] == SCHEMA:
            schema = TableSchema.from_json(bytes(row["payload"]))
            schemas.append(SchemaRow(schema, row[BATCH], row[INCARNATION], row["lsn"], row["seq"]))
        else:
            told = {name: row[name] for name in _TOLD}
            told["payload"] = bytes(row["payload"]) if row["payload"] is not None else None
            # Spark gives rows the machine's own time, and does not say so.
            told["committed_at"] = row["committed_at"].astimezone(UTC) if row["committed_at"] is not None else None
            watermarks.append(WatermarkRow(**told))
    watermarks.sort(key=lambda w: (w.batch, w.incarnation, w.lsn, w.seq))
    return Survey(epochs, incarnations, watermarks, schemas, chunk_rows, log_rows)
