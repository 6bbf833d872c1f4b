"""Compare keys on Spark's executors, as joins of data frames: for windows and dumps beyond what one process holds.

Place: an implementation of ``key_join``. It is DBLog, section 3.2, algorithm 1, step 6 ("remove e.key from chunk"), for
all closing windows at once. Guarantee: keys alone are shuffled, and the driver holds at most
``_BROADCAST_MAX_KEYS`` of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import reduce
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from dblake.base.core.op import Op
from dblake.base.core.position import Position
from dblake.base.lake.files import filesystem
from dblake.base.lake.storage import join, on_storage_of
from dblake.landing.columns import BATCH, CHUNK_ID, COMMITTED_AT, INCARNATION, LAST_IN_TXN, LSN, SEQ, TABLE, TXID
from dblake.payloads.decode.columns import AFTER, BEFORE, KEY, KEY_BEFORE, OP, PARTIAL, UNDECODED
from dblake.payloads.decode.row_keys import CARRIED, KEY_TEXT, WHOLE
from dblake.transform.events.files import DUMP, EVENT_COLUMNS, ORIGIN
from dblake.transform.reconcile import key_join
from dblake.transform.reconcile.followed_rows import FOLLOWED, MOVED_TO, OLD_KEY_TEXT, ROW_EVENTS, follow
from dblake.transform.reconcile.key_join import (
    CANDIDATES,
    CHUNK,
    COUNTS,
    IS_ABSENT,
    TOUCHED,
    TRUNCATED,
    KeySource,
)
from dblake.transform.reconcile.keys import IS_MOVED, KNOWN
from dblake.transform.reconcile.phantoms import compare_keys
from dblake.transform.reconcile.plan import EVICTIONS, Plan, write_evictions
from dblake.transform.reconcile.runner import Runner

_BROADCAST_MAX_KEYS = 500_000
"""Keys up to which every task gets them all. Otherwise the rows they are compared with are shuffled."""
_KEYS = [CHUNK_ID, KEY_TEXT]
_WRITTEN = pa.schema([("window", pa.int64()), ("path", pa.string())])


class SparkKeyJoin:
    """Compares keys as frames of ``runner``'s session; tasks write what they share to the folder ``scratch``."""

    is_in_process = False

    def __init__(self, runner: Runner, scratch: str) -> None:
        self._runner, self._scratch = runner, scratch
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def read(self, source: KeySource) -> DataFrame | None:
        """Decode a source in tasks."""
        return self._runner.frame(source.parts, source.columns, source.decode)

    def to_arrow(self, rows: DataFrame) -> pa.Table:
        """Collect rows."""
        return rows.toArrow()

    def touched_windows(self, in_window: DataFrame) -> pa.Table:
        """Count events, partial images and truncates by window; keep the rows for the join."""
        counted = self._persist(in_window).groupBy(CHUNK_ID).agg(
            F.count("*").alias(key_join.EVENTS), F.count(CARRIED).alias(key_join.PARTIAL),
            F.count_if(IS_MOVED).alias(key_join.MOVED), F.bool_or(F.col(OP) == Op.TRUNCATE).alias(TRUNCATED),
        )
        return counted.toArrow().cast(TOUCHED)

    def follow(self, events: DataFrame, with_snapshot: Collection[str]) -> DataFrame:
        """Follow the rows of each window in one task, which holds the events of all keys that changed in it."""
        events = self._persist(events)
        moved = events.where(F.col(OLD_KEY_TEXT).isNotNull())
        connected = moved.select(_KEYS).union(moved.select(CHUNK_ID, OLD_KEY_TEXT)).distinct()

        def follow_windows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _, rows in _by_window(batches, ROW_EVENTS):
                yield from follow(rows, with_snapshot).to_batches()

        by_window = events.join(connected, _KEYS, "left_semi").select(*ROW_EVENTS.names).repartition(CHUNK_ID)
        return by_window.sortWithinPartitions(CHUNK_ID).mapInArrow(follow_windows, from_arrow_schema(FOLLOWED))

    def evict(
        self, plan: Plan, chunk_keys: DataFrame, in_window: DataFrame, touched: pa.Table, followed: DataFrame | None
    ) -> Plan:
        """Join the keys; few events are broadcast and few keys collected, else tasks write the keys to files."""
        few = (pc.sum(touched[key_join.EVENTS]).as_py() or 0) <= _BROADCAST_MAX_KEYS
        partial = bool(pc.sum(touched[key_join.PARTIAL]).as_py())
        evicted = evicted_keys(chunk_keys, in_window, few=few, partial=partial)
        evicted = _moved(evicted, followed, few=few).select(*EVICTIONS.names)
        if few:
            return plan.with_evictions(evicted.toArrow().cast(EVICTIONS))
        return plan.with_eviction_files(self._written(evicted))

    def _written(self, evicted: DataFrame) -> dict[int, str]:
        """Write evicted keys in tasks, a file for each window; the files are removed at the end of the block."""
        folder = join(self._scratch, f"evicted-{uuid.uuid4()}")
        system, inside = filesystem(folder)
        system.create_dir(inside)
        self._held.callback(system.delete_dir, inside)

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, rows in _by_window(batches, EVICTIONS):
                path = write_evictions(folder, rows)
                yield pa.RecordBatch.from_pydict({"window": [number], "path": [str(path)]}, _WRITTEN)

        in_order = evicted.repartition(CHUNK_ID).sortWithinPartitions(CHUNK_ID)
        written = in_order.mapInArrow(write, from_arrow_schema(_WRITTEN)).collect()
        return {row["window"]: on_storage_of(folder, row["path"]) for row in written}

    def candidates(self, known: Sequence[DataFrame], ends: pa.Table) -> DataFrame:
        """Compare the rows of each key in one task."""
        keyed = reduce(DataFrame.unionByName, known).where(F.col(KEY_TEXT).isNotNull())

        def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = [_as_known(batch) for batch in batches]
            if rows:
                yield from compare_keys(pa.Table.from_batches(rows, KNOWN), ends).combine_chunks().to_batches()

        return self._persist(keyed.repartition(TABLE, KEY_TEXT).mapInArrow(compare, from_arrow_schema(CANDIDATES)))

    def count_candidates(self, candidates: DataFrame) -> pa.Table:
        """Count candidates by dump."""
        counted = candidates.groupBy(CHUNK).agg(
            F.count("*").alias("candidates"), F.count_if(F.col(IS_ABSENT)).alias("absent")
        )
        return counted.toArrow().cast(COUNTS)

    def removals(self, candidates: DataFrame, ends: pa.Table, withheld: Collection[str]) -> DataFrame:
        """Return events with the columns of EVENT_COLUMNS."""
        gone = candidates.where(F.col(IS_ABSENT) & ~F.col(CHUNK).isin(sorted(withheld)))
        return removal_events(gone, self._runner.spark.createDataFrame(ends.drop_columns(["only"])))

    def _persist(self, rows: DataFrame) -> DataFrame:
        rows = rows.persist()
        self._held.callback(rows.unpersist)
        return rows


def evicted_keys(chunk_keys: DataFrame, in_window: DataFrame, *, few: bool, partial: bool) -> DataFrame:
    """Return the keys of chunk rows that have events in their window: the columns of EVICTIONS without ``moved_to``.

    Set ``few`` if every task can hold the events' keys; otherwise both sides are shuffled. Clear ``partial`` if no
    event is a partial image; then ``whole`` is always true.
    """
    events = in_window.where(F.col(KEY_TEXT).isNotNull())
    if not partial:
        touched = chunk_keys.join(_broadcast_if_few(events.select(_KEYS), few), _KEYS, "left_semi")
        return touched.withColumns({WHOLE: F.lit(True), CARRIED: F.lit(None).cast("array<string>")})
    whole = (F.col(OP) == Op.DELETE) | F.col(CARRIED).isNull()
    by_key = events.groupBy(_KEYS).agg(
        F.max(whole).alias(WHOLE), F.array_distinct(F.flatten(F.collect_list(CARRIED))).alias(CARRIED)
    )
    # A chunk returns a key once.
    return chunk_keys.join(_broadcast_if_few(by_key, few), _KEYS, "inner")


def _moved(evicted: DataFrame, followed: DataFrame | None, *, few: bool) -> DataFrame:
    """Return evicted keys with ``moved_to``: rows that moved keep what no event of theirs carried."""
    if followed is None:
        return evicted.withColumn(MOVED_TO, F.lit(None).cast("array<string>"))
    moved = followed.withColumnRenamed(CARRIED, "theirs")
    is_moved = F.col(MOVED_TO).isNotNull()
    return evicted.join(_broadcast_if_few(moved, few), _KEYS, "left").withColumns({
        WHOLE: F.col(WHOLE) & ~is_moved, CARRIED: F.when(is_moved, F.col("theirs")).otherwise(F.col(CARRIED)),
    })


def removal_events(gone: DataFrame, ends: DataFrame) -> DataFrame:
    """Return ``phantoms.removal_events`` as a frame with the columns of EVENT_COLUMNS."""
    gone = gone.drop(TABLE).join(F.broadcast(ends.withColumnRenamed(CHUNK_ID, CHUNK)), CHUNK)
    # A later dump deletes a key that an earlier one deleted only if a row of it was created in between.
    removed = F.lag("end").over(W.partitionBy("w_table", KEY_TEXT).orderBy("end"))
    gone = gone.withColumn("removed", removed).where(
        F.col("removed").isNull() | (F.struct(*Position.COLUMNS) > F.col("removed"))
    )
    order = W.partitionBy(CHUNK).orderBy(KEY_TEXT)
    nulls = {name: F.lit(None).cast(from_arrow_type(EVENT_COLUMNS.field(name).type))
             for name in (BEFORE, AFTER, UNDECODED, KEY_BEFORE)}
    return gone.withColumn(SEQ, ((F.row_number().over(order) - 1) * 2).cast("bigint")).select(
        F.col("w_table").alias(TABLE), KEY, F.lit(Op.DELETE).alias(OP), F.col(f"end.{INCARNATION}").alias(INCARNATION),
        F.col(f"end.{LSN}").alias(LSN), SEQ, "schema_id", TXID, COMMITTED_AT, BATCH, F.col(CHUNK).alias(CHUNK_ID),
        F.lit(False).alias(LAST_IN_TXN), F.lit(False).alias(PARTIAL), F.lit(DUMP).alias(ORIGIN),
        *(value.alias(name) for name, value in nulls.items()),
    ).select(*EVENT_COLUMNS.names)


def _by_window(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each window; ``batches`` are in order of ``chunk_id``."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        windows = batch.column(CHUNK_ID).to_numpy(zero_copy_only=False)
        ends = [*np.flatnonzero(windows[1:] != windows[:-1]) + 1, len(windows)]
        for start, end in zip([0, *ends], ends, strict=False):
            if waiting and waiting[0].column(CHUNK_ID)[0].as_py() != windows[start]:
                yield _joined(waiting, schema)
                waiting = []
            waiting.append(batch.slice(start, end - start))
    if waiting:
        yield _joined(waiting, schema)


def _joined(rows: list[pa.RecordBatch], schema: pa.Schema) -> tuple[int, pa.Table]:
    return int(rows[0].column(CHUNK_ID)[0].as_py()), pa.Table.from_batches(rows).cast(schema)


def _as_known(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Give rows from Spark the Arrow types of KNOWN: only the names of a map's fields differ."""
    keys = rows.column(KEY)
    columns = [
        pa.MapArray.from_arrays(keys.offsets, keys.keys, keys.items) if f.name == KEY else rows.column(f.name)
        for f in KNOWN
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KNOWN)


def _broadcast_if_few(rows: DataFrame, few: bool) -> DataFrame:
    return F.broadcast(rows) if few else rows
