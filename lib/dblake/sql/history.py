"""SQL for the history view of one table: every version of every row, from its events.

Place: between events and ``sql.views``. A version has the time and position from which and until which it was valid.
Guarantee: the view is built from the fold's own SQL, so partial rows, fills, deletes and truncates mean the same as in
state. The same view for DuckDB is left to ``duckdb_history``, the other views to ``live``.
"""

from __future__ import annotations

from dblake.core.errors import StateError
from dblake.core.op import Op
from dblake.spark.sql_literals import EVENT_AT
from dblake.sql.live import current_columns
from dblake.state.fold_sql import carried, cell, keyed_sql, missing_sql, typed_sql
from dblake.state.shape import Shape

_HISTORY_COLUMNS = ("_op", "_valid_from", "_valid_to", "_from", "_to")


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
        f"SELECT {current_columns(shape)}, _lossy, {missing} AS _missing, _op, _valid_from, _valid_to, _from, _to "
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
        f"SELECT _key, key, _at, '{Op.DELETE}' AS op, NULL AS after, false AS partial, NULL AS undecoded, "
        "committed_at, origin "
        f"FROM (SELECT _key, any_value(key) AS key FROM ({rows}) GROUP BY _key) CROSS JOIN "
        f"(SELECT {EVENT_AT} AS _at, committed_at, origin FROM {events} WHERE op = '{Op.TRUNCATE}')"
    )
    again = " AND ".join([
        "origin = 'dump'", f"_op <> '{Op.DELETE}'", f"lag(_op) OVER in_order <> '{Op.DELETE}'",
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
    ).join(("SELECT * FROM (", f") WHERE _op <> '{Op.DELETE}'"))


def _inserts_sql(shape: Shape, events: str) -> str:
    """Return the created rows of a table without a key; such rows have no later versions."""
    cells = ", ".join(f"{cell(shape, c.name)} AS c{i}" for i, c in enumerate(shape.columns))
    return (
        f"SELECT CAST(NULL AS STRING) AS _key, {EVENT_AT} AS _at, false AS _deleted, op AS _op, "
        f"committed_at AS _valid_from, CAST(NULL AS TIMESTAMP) AS _valid_to, "
        f"CAST(NULL AS STRUCT<incarnation: BIGINT, lsn: BIGINT, seq: BIGINT>) AS _to, {cells} "
        f"FROM {events} WHERE op = '{Op.CREATE}'"
    )
