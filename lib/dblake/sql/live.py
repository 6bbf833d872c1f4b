"""SQL for the plain, live and history view of one table, over its state and its events.

Place: between state and events, and ``sql.views``. The live view is what state will be once it has folded all events:
state rows that no newer event touches, and the fold of the newer events over those that they touch. The history view
has every version of every row, with the time and position from which and until which it was valid. Guarantee: all are
built from the fold's own SQL, so partial rows, fills, deletes and truncates mean the same in each.
"""

from __future__ import annotations

from dblake.core.errors import StateError
from dblake.spark.sql_literals import EVENT_AT, identifier, literal, state_at
from dblake.state.fold_sql import carried, cell, fold_sql, keyed_sql, missing_sql, typed_sql
from dblake.state.shape import OWN, Shape

_HISTORY_COLUMNS = ("_op", "_valid_from", "_valid_to", "_from", "_to")


def state_rows_sql(shape: Shape, table: str | None, existing: set[str]) -> str:
    """Return a relation of the state table's rows with all columns of the shape; no rows if ``table`` is None.

    Columns that are not ``existing`` in the state table yet are NULL.
    """
    types = {**OWN, **{c.name: c.type for c in shape.columns}}
    columns = ", ".join(
        identifier(name) if name in existing else f"CAST(NULL AS {kind}) AS {identifier(name)}"
        for name, kind in types.items()
    )
    return f"(SELECT {columns} FROM {table})" if table else f"(SELECT {columns} WHERE false)"


def plain_sql(shape: Shape, state: str) -> str:
    """Return a query for the live rows of ``state``, a relation with the shape's columns, under the newest schema."""
    return f"SELECT {_current_columns(shape)} FROM {state} WHERE NOT _deleted"


def live_sql(shape: Shape, state: str, newer: str) -> str:
    """Return ``plain_sql``'s query as of the newest event; ``newer`` are the table's events that state lacks."""
    if not shape.primary_key:
        return (
            f"{plain_sql(shape, state)} UNION ALL "
            f"SELECT {_current_columns(shape)} FROM ({fold_sql(shape, newer, truncated_at=None)})"
        )
    truncated_at = f"(SELECT max({EVENT_AT}) FROM {newer} WHERE op = 't')"
    state_is_newer = f"coalesce({state_at('s')} >= {state_at('f')}, false)"
    merged = [
        f"IF({state_is_newer} OR array_contains(f._unknown, {literal(c.name)}), s.{n}, f.{n}) AS {n}"
        for c in shape.current for n in [identifier(c.name)]
    ]
    return (
        f"WITH folded AS ({fold_sql(shape, newer, truncated_at=truncated_at)}), "
        # Events touch few rows of state; selecting those first keeps the join with the fold small.
        f"touched AS (SELECT s.* FROM {state} s LEFT SEMI JOIN folded f ON s._key = f._key) "
        f"SELECT {_current_columns(shape)} FROM {state} s LEFT ANTI JOIN folded f ON s._key = f._key "
        f"WHERE NOT s._deleted AND NOT coalesce({state_at('s')} < {truncated_at}, false) "
        f"UNION ALL SELECT {', '.join(merged)} FROM folded f LEFT JOIN touched s ON s._key = f._key "
        f"WHERE NOT IF({state_is_newer}, s._deleted, f._deleted)"
    )


def history_sql(shape: Shape, events: str) -> str:
    """Return a query for the versions of a table's rows, from ``events``, a relation of all the table's events.

    Beside the table's columns: _lossy, _missing, _op (the operation that created the version), _valid_from and
    _valid_to (commit times; _valid_to is NULL for the current version), _from and _to (positions).
    A row that a dump read again as it already was is no version. Raises StateError if the table has a column with one
    of these names.
    """
    require_history_names(shape)
    cells = _versions_sql(shape, events) if shape.primary_key else _inserts_sql(shape, events)
    extra = ("_op", "_valid_from", "_valid_to", "_at AS _from", "_to")
    missing = missing_sql(shape, "array_union(_missing, _unknown)")
    return (
        f"SELECT {_current_columns(shape)}, _lossy, {missing} AS _missing, _op, _valid_from, _valid_to, _from, _to "
        f"FROM ({typed_sql(shape, cells, extra=extra)})"
    )


def require_history_names(shape: Shape) -> None:
    """Raise StateError if the table has a column with the name of one of the history view's own."""
    reserved = [c.name for c in shape.columns if c.name.lower() in _HISTORY_COLUMNS]
    if reserved:
        raise StateError(
            f"table {shape.table}, column {reserved[0]}: the history view has its own column of that name",
            next_step="query the table's events in dblake.events instead",
        )


def _versions_sql(shape: Shape, events: str) -> str:
    """Return the versions of keyed rows: an event of a key ends the key's version before; a truncate ends all."""
    cells = ", ".join(
        f"{cell(shape, c.name)} AS c{i}" if c.name in shape.primary_key
        else f"last(IF({carried(c.name)}, {cell(shape, c.name)}, NULL), true) OVER so_far AS c{i}"
        for i, c in enumerate(shape.columns)
    )
    rows = keyed_sql(shape, events, None)
    ends = (
        f"SELECT _key, key, _at, 'd' AS op, NULL AS after, false AS partial, NULL AS undecoded, committed_at, origin "
        f"FROM (SELECT _key, any_value(key) AS key FROM ({rows}) GROUP BY _key) CROSS JOIN "
        f"(SELECT {EVENT_AT} AS _at, committed_at, origin FROM {events} WHERE op = 't')"
    )
    again = " AND ".join([
        "origin = 'dump'", "_op <> 'd'", "lag(_op) OVER in_order <> 'd'",
        *(f"c{i} <=> lag(c{i}) OVER in_order" for i in range(len(shape.columns))),
    ])
    return (
        f"SELECT *, lead(committed_at) OVER following AS _valid_to, lead(_at) OVER following AS _to FROM "
        f"(SELECT *, committed_at AS _valid_from FROM (SELECT *, coalesce({again}, false) AS _again FROM "
        f"(SELECT _key, _at, false AS _deleted, op AS _op, committed_at, origin, {cells} "
        f"FROM ({rows} UNION ALL {ends}) WINDOW so_far AS "
        f"(PARTITION BY _key ORDER BY _at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)) "
        f"WINDOW in_order AS (PARTITION BY _key ORDER BY _at)) WHERE NOT _again) "
        f"WINDOW following AS (PARTITION BY _key ORDER BY _at)"
    ).join(("SELECT * FROM (", ") WHERE _op <> 'd'"))


def _inserts_sql(shape: Shape, events: str) -> str:
    """Return the created rows of a table without a key; such rows have no later versions."""
    cells = ", ".join(f"{cell(shape, c.name)} AS c{i}" for i, c in enumerate(shape.columns))
    return (
        f"SELECT CAST(NULL AS STRING) AS _key, {EVENT_AT} AS _at, false AS _deleted, op AS _op, "
        f"committed_at AS _valid_from, CAST(NULL AS TIMESTAMP) AS _valid_to, "
        f"CAST(NULL AS STRUCT<incarnation: BIGINT, lsn: BIGINT, seq: BIGINT>) AS _to, {cells} "
        f"FROM {events} WHERE op = 'c'"
    )


def _current_columns(shape: Shape) -> str:
    return ", ".join(identifier(c.name) for c in shape.current)
