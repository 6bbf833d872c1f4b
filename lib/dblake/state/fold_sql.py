"""The fold as SQL text, for the live and the history view.

A view must be text, so ``sql.live`` builds its views from these pieces. The rules are those of ``fold``, which state
tables are made by; tests compare the two. ``fold_sql`` returns what ``fold`` returns: the columns of the shape, typed,
``_key, _incarnation, _lsn, _seq, _deleted, _lossy, _unknown, _missing``. Values are typed last, once per key.
"""

from __future__ import annotations

from dblake.core.op import Op
from dblake.events.keys import key_sql
from dblake.spark.sql_literals import EVENT_AT, identifier, literal, texts
from dblake.spark.types import TEXT, read_sql
from dblake.state.shape import Shape


def fold_sql(shape: Shape, events: str, *, truncated_at: str | None) -> str:
    """Return a SELECT that folds the relation ``events``; ``truncated_at`` is SQL for a position or NULL."""
    if not shape.primary_key:
        return typed_sql(shape, _appended(shape, events))
    rows = keyed_sql(shape, events, truncated_at)
    return typed_sql(shape, _resolved(shape, rows), truncated_at=truncated_at)


def keyed_sql(shape: Shape, events: str, truncated_at: str | None) -> str:
    """Return SQL for row events with ``_key`` and ``_at``; one before the truncate becomes a delete at the truncate."""
    rows = (
        f"SELECT {key_sql(texts(shape.primary_key))} AS _key, key, {EVENT_AT} AS _at, op, "
        f"CASE WHEN op <> '{Op.DELETE}' THEN after END AS after, partial, undecoded, committed_at, "
        f"origin FROM {events} WHERE op <> '{Op.TRUNCATE}'"
    )
    if truncated_at is None:
        return rows
    return (
        f"SELECT _key, key, IF(_at < _t, _t, _at) AS _at, IF(_at < _t, '{Op.DELETE}', op) AS op, "
        f"IF(_at < _t, NULL, after) AS after, partial, IF(_at < _t, NULL, undecoded) AS undecoded "
        f"FROM (SELECT *, {truncated_at} AS _t FROM ({rows}))"
    )


def carried(column: str) -> str:
    """Return SQL that is true for events that decide what the column holds."""
    return f"(op IN ('{Op.CREATE}', '{Op.READ}', '{Op.DELETE}') OR map_contains_key(after, {literal(column)}))"


def cell(shape: Shape, column: str) -> str:
    """Return SQL for a column in an event.

    Its text is ``v``; ``hex`` is true if that is the hex of bytes that are no text, and ``missing`` if the event begins
    a row without the column.
    """
    name = literal(column)
    in_key = column in shape.primary_key
    missing = (
        "false" if in_key else
        f"(op = '{Op.DELETE}' OR coalesce(partial, false)) AND NOT coalesce(map_contains_key(after, {name}), false)"
    )
    return (
        f"named_struct('v', {'key' if in_key else 'after'}[{name}], "
        f"'hex', coalesce(array_contains(undecoded, {name}), false), 'missing', {missing})"
    )


def missing_sql(shape: Shape, names: str) -> str:
    """Return SQL for the names in an array that are columns of the newest schema: values of others cannot arrive."""
    gone = [c.name for c in shape.columns if c.dropped]
    return f"array_except({names}, {texts(gone)})" if gone else names


def typed_sql(shape: Shape, cells: str, *, truncated_at: str | None = None, extra: tuple[str, ...] = ()) -> str:
    """Turn rows with a cell ``c0, c1, …`` for each column (NULL where unknown) into the columns of the shape, typed."""
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
    """Return SQL for the array of the names whose condition holds; without any, no array is built."""
    if not conditions:
        return texts([])
    named = ", ".join(f"IF({condition}, {literal(name)}, NULL)" for name, condition in conditions.items())
    return f"IF({' OR '.join(conditions.values())}, array_compact(array({named})), {texts([])})"


def _resolved(shape: Shape, rows: str) -> str:
    """Resolve partial images: each column comes from the newest event that carries it."""
    cells = [
        f"max_by({cell(shape, c.name)}, _at)"
        + ("" if c.name in shape.primary_key else f" FILTER (WHERE {carried(c.name)})") + f" AS c{i}"
        for i, c in enumerate(shape.columns)
    ]
    return (
        f"SELECT _key, max(_at) AS _at, max_by(op, _at) = '{Op.DELETE}' AS _deleted, {', '.join(cells)} "
        f"FROM ({rows}) GROUP BY _key"
    )


def _appended(shape: Shape, events: str) -> str:
    """Without a key there is nothing to fold: every row created is a row."""
    cells = [f"{cell(shape, c.name)} AS c{i}" for i, c in enumerate(shape.columns)]
    return (
        f"SELECT CAST(NULL AS STRING) AS _key, {EVENT_AT} AS _at, false AS _deleted, {', '.join(cells)} "
        f"FROM {events} WHERE op = '{Op.CREATE}'"
    )
