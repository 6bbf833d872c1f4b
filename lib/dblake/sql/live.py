"""The live and the history view of one table, as SQL text over its state and its events.

Live is what state will be once it has folded all there is: state rows no newer event touches, and the fold of the
newer events over those it does. History is every row version there was, with the time and position from which it held
and until which it did. Both are built from the fold's own pieces, so that partial rows, fills, deletes and truncates
mean here what they mean there.
"""

from __future__ import annotations

from dblake.core.errors import StateError
from dblake.spark.sql_literals import EVENT_AT, identifier, literal, state_at
from dblake.state.fold_sql import carried, cell, fold_sql, keyed_sql, missing_sql, typed_sql
from dblake.state.shape import OWN, Shape

_HISTORYS_OWN = ("_op", "_valid_from", "_valid_to", "_from", "_to")


def state_rows(shape: Shape, table: str | None, existing: set[str]) -> str:
    """State with all columns of the shape, those it has not grown yet (``existing``) NULL; empty without a table."""
    types = {**OWN, **{c.name: c.type for c in shape.columns}}
    columns = ", ".join(
        identifier(name) if name in existing else f"CAST(NULL AS {kind}) AS {identifier(name)}"
        for name, kind in types.items()
    )
    return f"(SELECT {columns} FROM {table})" if table else f"(SELECT {columns} WHERE false)"


def plain_sql(shape: Shape, state: str) -> str:
    """The table as its newest schema has it: no tombstones, no columns of ours."""
    return f"SELECT {_current(shape)} FROM {state} WHERE NOT _deleted"


def live_sql(shape: Shape, state: str, newer: str) -> str:
    """``plain_sql`` as it will be once ``newer``, the table's events state has not folded yet, are in."""
    if not shape.primary_key:
        return (
            f"{plain_sql(shape, state)} UNION ALL "
            f"SELECT {_current(shape)} FROM ({fold_sql(shape, newer, truncated_at=None)})"
        )
    truncated_at = f"(SELECT max({EVENT_AT}) FROM {newer} WHERE op = 't')"
    state_is_newer = f"coalesce({state_at('s')} >= {state_at('f')}, false)"
    merged = [
        f"IF({state_is_newer} OR array_contains(f._unknown, {literal(c.name)}), s.{n}, f.{n}) AS {n}"
        for c in shape.current for n in [identifier(c.name)]
    ]
    return (
        f"WITH folded AS ({fold_sql(shape, newer, truncated_at=truncated_at)}), "
        # Few rows of state are touched: finding them first keeps the join that combines them small.
        f"touched AS (SELECT s.* FROM {state} s LEFT SEMI JOIN folded f ON s._key = f._key) "
        f"SELECT {_current(shape)} FROM {state} s LEFT ANTI JOIN folded f ON s._key = f._key "
        f"WHERE NOT s._deleted AND NOT coalesce({state_at('s')} < {truncated_at}, false) "
        f"UNION ALL SELECT {', '.join(merged)} FROM folded f LEFT JOIN touched s ON s._key = f._key "
        f"WHERE NOT IF({state_is_newer}, s._deleted, f._deleted)"
    )


def history_sql(shape: Shape, events: str) -> str:
    """Row versions: ``_op`` that made them, ``_valid_from`` and ``_valid_to`` (NULL: still), and their positions."""
    taken = [c.name for c in shape.columns if c.name.lower() in _HISTORYS_OWN]
    if taken:
        raise StateError(
            f"table {shape.table}, column {taken[0]}: its history has a column of its own by that name",
            next_step="read its events in dblake.events",
        )
    cells = _versions(shape, events) if shape.primary_key else _inserts(shape, events)
    extra = ("_op", "_valid_from", "_valid_to", "_at AS _from", "_to")
    missing = missing_sql(shape, "array_union(_missing, _unknown)")
    return (
        f"SELECT {_current(shape)}, _lossy, {missing} AS _missing, _op, _valid_from, _valid_to, _from, _to "
        f"FROM ({typed_sql(shape, cells, extra=extra)})"
    )


def _versions(shape: Shape, events: str) -> str:
    """Every event of a key ends the version before it; so does every truncate, for all keys."""
    cells = ", ".join(
        f"{cell(shape, c.name)} AS c{i}" if c.name in shape.primary_key
        else f"last(IF({carried(c.name)}, {cell(shape, c.name)}, NULL), true) OVER so_far AS c{i}"
        for i, c in enumerate(shape.columns)
    )
    rows = keyed_sql(shape, events, None)
    ends = (
        f"SELECT _key, key, _at, 'd' AS op, NULL AS after, false AS partial, NULL AS undecoded, committed_at "
        f"FROM (SELECT _key, any_value(key) AS key FROM ({rows}) GROUP BY _key) CROSS JOIN "
        f"(SELECT {EVENT_AT} AS _at, committed_at FROM {events} WHERE op = 't')"
    )
    return (
        f"SELECT * FROM (SELECT _key, _at, false AS _deleted, op AS _op, committed_at AS _valid_from, "
        f"lead(committed_at) OVER following AS _valid_to, lead(_at) OVER following AS _to, {cells} "
        f"FROM ({rows} UNION ALL {ends}) WINDOW following AS (PARTITION BY _key ORDER BY _at), so_far AS "
        f"(PARTITION BY _key ORDER BY _at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)) WHERE _op <> 'd'"
    )


def _inserts(shape: Shape, events: str) -> str:
    """A table without a key has no versions, only rows created."""
    cells = ", ".join(f"{cell(shape, c.name)} AS c{i}" for i, c in enumerate(shape.columns))
    return (
        f"SELECT CAST(NULL AS STRING) AS _key, {EVENT_AT} AS _at, false AS _deleted, op AS _op, "
        f"committed_at AS _valid_from, CAST(NULL AS TIMESTAMP) AS _valid_to, "
        f"CAST(NULL AS STRUCT<incarnation: BIGINT, lsn: BIGINT, seq: BIGINT>) AS _to, {cells} "
        f"FROM {events} WHERE op = 'c'"
    )


def _current(shape: Shape) -> str:
    return ", ".join(identifier(c.name) for c in shape.current)
