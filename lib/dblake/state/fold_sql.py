"""Events of one table → one row per key: what the table looks like once they have all happened, in order.

Reads frames of ``events.schema.EVENTS``, returns frames a merge can apply: the columns of the shape, typed,
``_incarnation, _lsn, _seq`` of the newest event, ``_deleted``, ``_lossy``, ``_unknown``: the columns none of the
events supplied, whose value only the state can tell, and ``_missing``: those of which it cannot tell it either.
Promise: the result is the same whether events are folded at once or in steps; only ``_missing`` may name a column too
many where one was added or dropped since the event that lacks it, until the row is written again. The rules:

- ``c`` and ``r`` begin a row: a column they lack is never what it was before. If their schema has it, it was not sent
  (a new key given to a row with unchanged TOAST values): it is NULL here and missing. If not, it is NULL. ``d`` is the
  whole row, too: a tombstone, with nothing left but its key.
- ``u`` and ``f`` supply the columns they carry; the others keep what is known. Of a key that is not there, nothing is:
  they are missing.
- ``t`` makes a tombstone, at its own position, of every row of the table before it. Rows only the state knows are the
  merge's to bury.

A table without a primary key is only appended to: each row created is a row of state, and its updates, deletes and
truncates are in events alone.

The fold is SQL text, because the live and history views must be text and must not say it a second time. Values are
typed last, once per key. What cannot be typed is NULL and named in ``_lossy``.
"""

from __future__ import annotations

import uuid

from pyspark.sql import DataFrame

from dblake.core.position import Position
from dblake.events.keys import key_sql
from dblake.spark.sql_literals import EVENT_AT, identifier, literal, position, texts
from dblake.spark.types import TEXT, read_sql
from dblake.state.shape import Shape


def fold(events: DataFrame, shape: Shape, *, whole: bool, truncated_at: Position | None) -> DataFrame:
    """Folds the events of one table.

    ``whole``: every event but the deletes carries its whole row, all of one schema. ``truncated_at``: the newest
    truncate among the events. Both are found by ``steps.summary``.
    """
    voided = None if truncated_at is None else position(truncated_at)
    name = f"fold_{uuid.uuid4().hex}"
    events.createTempView(name)
    try:
        return events.sparkSession.sql(fold_sql(shape, name, whole=whole, truncated_at=voided))
    finally:
        events.sparkSession.catalog.dropTempView(name)


def last_truncate(events: DataFrame) -> Position | None:
    """Where the newest truncate among the events of one table is, if there is one."""
    row = events.where("op = 't'").selectExpr(f"max({EVENT_AT}) AS at").first()
    return Position(*row["at"]) if row and row["at"] else None


def fold_sql(shape: Shape, events: str, *, whole: bool, truncated_at: str | None) -> str:
    """The fold as a SELECT from the relation ``events``; ``truncated_at`` is SQL for a position, which may be NULL."""
    if not shape.primary_key:
        return typed_sql(shape, _appended(shape, events))
    rows = keyed_sql(shape, events, truncated_at)
    return typed_sql(shape, _newest(shape, rows) if whole else _resolved(shape, rows), truncated_at=truncated_at)


def keyed_sql(shape: Shape, events: str, truncated_at: str | None) -> str:
    """Row events with ``_key`` and ``_at``; one from before the truncate becomes a delete at the truncate."""
    rows = (
        f"SELECT {key_sql(texts(shape.primary_key))} AS _key, key, {EVENT_AT} AS _at, op, "
        f"CASE WHEN op <> 'd' THEN after END AS after, partial, undecoded, committed_at "
        f"FROM {events} WHERE op <> 't'"
    )
    if truncated_at is None:
        return rows
    return (
        f"SELECT _key, key, IF(_at < _t, _t, _at) AS _at, IF(_at < _t, 'd', op) AS op, "
        f"IF(_at < _t, NULL, after) AS after, partial, IF(_at < _t, NULL, undecoded) AS undecoded "
        f"FROM (SELECT *, {truncated_at} AS _t FROM ({rows}))"
    )


def carried(column: str) -> str:
    """SQL: does this event say what the column holds?"""
    return f"(op IN ('c', 'r', 'd') OR map_contains_key(after, {literal(column)}))"


def cell(shape: Shape, column: str) -> str:
    """SQL for what an event says of a column: its text ``v``, ``hex`` if that stands for bytes that are no text, and
    ``missing`` if it says no more than that nothing of before holds."""
    name = literal(column)
    in_key = column in shape.primary_key
    missing = (
        "false" if in_key else
        f"(op = 'd' OR coalesce(partial, false)) AND NOT coalesce(map_contains_key(after, {name}), false)"
    )
    return (
        f"named_struct('v', {'key' if in_key else 'after'}[{name}], "
        f"'hex', coalesce(array_contains(undecoded, {name}), false), 'missing', {missing})"
    )


def missing_sql(shape: Shape, names: str) -> str:
    """SQL for the names in an array that are columns of the newest schema: of others nobody will be told any more."""
    gone = [c.name for c in shape.columns if c.dropped]
    return f"array_except({names}, {texts(gone)})" if gone else names


def typed_sql(shape: Shape, cells: str, *, truncated_at: str | None = None, extra: tuple[str, ...] = ()) -> str:
    """Rows with a cell ``c0, c1, …`` for each column (NULL where unknown) → the columns of the shape, typed."""
    named = list(enumerate(shape.columns))
    typed = [f"{read_sql(c.type, f'c{i}.v')} AS t{i}" for i, c in named]
    lost = {
        c.name: f"c{i}.hex" if c.type == TEXT else f"(c{i}.hex OR t{i} IS NULL AND c{i}.v IS NOT NULL)"
        for i, c in named
    }
    keyless = not shape.primary_key
    absent = {c.name: f"c{i} IS NULL" for i, c in named if not keyless and c.name not in shape.primary_key}
    unknown = _names_where(absent)
    missing = _names_where({name: f"c{i}.missing" for i, c in named if (name := c.name) in absent})
    if truncated_at is not None:
        missing = f"IF(({truncated_at}) IS NULL, {missing}, array_union({missing}, {unknown}))"
        unknown = f"IF(({truncated_at}) IS NULL, {unknown}, {texts([])})"
    columns = [f"t{i} AS {identifier(c.name)}" for i, c in named]
    head = ["_key", "_at.incarnation AS _incarnation", "_at.lsn AS _lsn", "_at.seq AS _seq", "_deleted",
            f"{_names_where(lost)} AS _lossy", f"{unknown} AS _unknown",
            f"IF(_deleted, {texts([])}, {missing}) AS _missing", *extra]
    return f"SELECT {', '.join(head + columns)} FROM (SELECT *, {', '.join(typed)} FROM ({cells}))"


def _names_where(conditions: dict[str, str]) -> str:
    """SQL for the array of those names whose condition holds; mostly none does, which costs no array to find out."""
    if not conditions:
        return texts([])
    named = ", ".join(f"IF({condition}, {literal(name)}, NULL)" for name, condition in conditions.items())
    return f"IF({' OR '.join(conditions.values())}, array_compact(array({named})), {texts([])})"


def _newest(shape: Shape, rows: str) -> str:
    """Every image is whole, so the newest event of a key says it all."""
    cells = [f"IF({carried(c.name)} OR {c.name in shape.primary_key}, {cell(shape, c.name)}, NULL) AS c{i}"
             for i, c in enumerate(shape.columns)]
    return (
        f"SELECT _key, _at, op = 'd' AS _deleted, {', '.join(cells)} FROM ("
        f"SELECT *, row_number() OVER (PARTITION BY _key ORDER BY _at DESC) AS place FROM ({rows})) WHERE place = 1"
    )


def _resolved(shape: Shape, rows: str) -> str:
    """Some images are partial: each column comes from the newest event that carries it."""
    cells = [
        f"max_by({cell(shape, c.name)}, _at)"
        + ("" if c.name in shape.primary_key else f" FILTER (WHERE {carried(c.name)})") + f" AS c{i}"
        for i, c in enumerate(shape.columns)
    ]
    return (
        f"SELECT _key, max(_at) AS _at, max_by(op, _at) = 'd' AS _deleted, {', '.join(cells)} "
        f"FROM ({rows}) GROUP BY _key"
    )


def _appended(shape: Shape, events: str) -> str:
    """Without a key there is nothing to fold: every row created is a row."""
    cells = [f"{cell(shape, c.name)} AS c{i}" for i, c in enumerate(shape.columns)]
    return (
        f"SELECT CAST(NULL AS STRING) AS _key, {EVENT_AT} AS _at, false AS _deleted, {', '.join(cells)} "
        f"FROM {events} WHERE op = 'c'"
    )
