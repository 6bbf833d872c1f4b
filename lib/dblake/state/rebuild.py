"""A state table built anew, where its shape changed so that the old rows cannot be carried over.

A key that became another one, a type that does not hold the values of the one before: the events from before such a
break say nothing that a table of the new shape could take. What does is a dump of the whole table that began after it,
with all events from the break on. So until such a dump is done the table stays as it is, and behind; then it is
replaced in one commit. Finding the break is ``shape.unbroken``'s business, finding the dump the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.spark.sql_literals import EVENT_AT, literal, position
from dblake.state.fold_sql import fold, last_truncate, missing_sql
from dblake.state.shape import fitted, shape_of
from dblake.state.table import replace


def dumped_in(
    windows: DataFrame, table: str, versions: Sequence[TableSchema], broken_at: Position
) -> Position | None:
    """Where the newest dump of the whole table began that is done, and all of whose chunks were read under these.

    One that had ended before the break was of rows that have changed since, though its shape may be that of now again.
    """
    ended = f"max(struct(incarnation, high_lsn)) >= struct({broken_at.incarnation}L, {broken_at.lsn}L)"
    dump = (
        windows.where(f"`table` = {literal(table)} AND status = 'closed'").groupBy("dump_id")
        .agg(expr(f"bool_and(schema_id IN ({_ids(versions)})) AND {ended} AS fits"), expr("max(began) AS began"))
        .where("fits AND began IS NOT NULL").agg(expr("max(began) AS began")).first()
    )
    return Position(*dump["began"]) if dump and dump["began"] else None


def rebuild(
    events: DataFrame, path: str, versions: Sequence[TableSchema], since: Position, *, app: str, batch: int,
    existing: Mapping[str, str] | None = None,
) -> None:
    """Replaces the table at ``path`` by what its ``events`` from ``since`` on leave. ``versions`` go together.

    ``existing`` are the columns and types that the table is to keep, where it has some that fit.
    """
    shape = fitted(shape_of(versions), existing or {})
    # Keys of the old shape stand beside the new ones while the log is behind the chunks that were read.
    keyed = "".join(f" AND map_contains_key(key, {literal(name)})" for name in shape.primary_key)
    later = events.where(
        f"{EVENT_AT} >= {position(since)} AND (op = 't' OR (schema_id IN ({_ids(versions)}){keyed}))"
    )
    folded = fold(later, shape, whole=False, truncated_at=last_truncate(later))
    first = expr(missing_sql(shape, "array_union(_missing, _unknown)"))
    replace(folded.withColumn("_missing", first).drop("_unknown"), path, shape, app=app, batch=batch)


def _ids(versions: Sequence[TableSchema]) -> str:
    return ", ".join(literal(schema.schema_id) for schema in versions)
