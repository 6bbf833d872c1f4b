"""Folded rows → their state table, in one commit.

Promise: no row goes back to an older position, deletes included; the commit carries the landing batch folded in up
to, so that the same slice a second time changes nothing; another writer's commit in between (OPTIMIZE, a second state
job) is met with a fresh read and another try. Tombstones stay, with nothing but their key and position, until
maintenance removes them. Which events a table still lacks is the caller's to find, with ``table.progress``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from dblake.core.position import Position
from dblake.spark.conflicts import tried_again
from dblake.spark.sql_literals import delta, identifier, literal, position, state_at
from dblake.state.fold_sql import fold, missing_sql
from dblake.state.shape import OWN, Shape
from dblake.state.table import prepare, progress

_SOURCE = "folded"


@tried_again
def merge(
    events: DataFrame, path: str, shape: Shape, *, app: str, batch: int, whole: bool, truncated_at: Position | None
) -> None:
    """Folds ``events``, all of one table, up to landing batch ``batch``, into the state table at ``path``."""
    spark = events.sparkSession
    now = progress(path, app)
    if now is not None and now.batch is not None:
        if now.batch >= batch:
            return
        # A table without a key takes every row it is given.
        events = events.where(f"batch > {now.batch}")
    shape = prepare(spark, path, shape)
    folded = fold(events, shape, whole=whole, truncated_at=truncated_at)
    if now is None or now.batch is None or not shape.primary_key:
        first = missing_sql(shape, "array_union(_missing, _unknown)")
        _append(folded.withColumn("_missing", expr(first)).drop("_unknown"), path, app, batch)
    else:
        _merge(folded, path, shape, app, batch, truncated_at)


def merge_sql(path: str, shape: Shape, truncated_at: Position | None) -> str:
    """The MERGE. The guard is in its first condition, and again where a truncate buries what only state knows."""
    values = {name: f"s.{name}" for name in OWN}
    values["_lossy"] = (
        "array_union(filter(coalesce(t._lossy, array()), c -> array_contains(s._unknown, c)), s._lossy)"
    )
    still = "IF(t._deleted, s._unknown, filter(coalesce(t._missing, array()), c -> array_contains(s._unknown, c)))"
    values["_missing"] = missing_sql(shape, f"array_union({still}, s._missing)")
    for column in shape.columns:
        name = identifier(column.name)
        kept = f"IF(array_contains(s._unknown, {literal(column.name)}), t.{name}, s.{name})"
        values[name] = f"s.{name}" if column.name in shape.primary_key else kept
    inserted = {name: f"s.{name}" for name in (*OWN, *(identifier(c.name) for c in shape.columns))}
    inserted["_missing"] = missing_sql(shape, "array_union(s._missing, s._unknown)")
    buried = ""
    if truncated_at is not None:
        at = truncated_at
        emptied = "".join(f", {identifier(c.name)} = NULL" for c in shape.columns if c.name not in shape.primary_key)
        keys = ", ".join(map(literal, shape.primary_key))
        buried = (
            f" WHEN NOT MATCHED BY SOURCE AND {state_at('t')} < {position(at)} THEN UPDATE SET _deleted = true, "
            f"_incarnation = {at.incarnation}, _lsn = {at.lsn}, _seq = {at.seq}, "
            f"_lossy = filter(t._lossy, c -> c IN ({keys})), _missing = array(){emptied}"
        )
    return (
        f"MERGE INTO {delta(path)} t USING {_SOURCE} s ON t._key = s._key "
        f"WHEN MATCHED AND {state_at('t')} < {state_at('s')} "
        f"THEN UPDATE SET {', '.join(f'{n} = {v}' for n, v in values.items())} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(inserted.values())}){buried}"
    )


def _append(folded: DataFrame, path: str, app: str, batch: int) -> None:
    folded.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", batch).save(path)


def _merge(
    folded: DataFrame, path: str, shape: Shape, app: str, batch: int, truncated_at: Position | None
) -> None:
    spark = folded.sparkSession
    folded.createOrReplaceTempView(_SOURCE)
    with _transaction(spark, app, batch):
        spark.sql(merge_sql(path, shape, truncated_at))


@contextmanager
def _transaction(spark: SparkSession, app: str, batch: int) -> Iterator[None]:
    """MERGE takes its SetTransaction from the session; one session must therefore merge one table at a time."""
    spark.conf.set("spark.databricks.delta.write.txnAppId", app)
    spark.conf.set("spark.databricks.delta.write.txnVersion", str(batch))
    try:
        yield
    finally:
        spark.conf.unset("spark.databricks.delta.write.txnAppId")
        spark.conf.unset("spark.databricks.delta.write.txnVersion")
