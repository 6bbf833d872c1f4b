"""SQL for DuckDB: the versions of a table's rows, from its events.

Place: between ``rows`` and ``engine``. Guarantee: one row per version, with the
time and position from and until which it was valid. A row that a dump read again as it already was is no version.
"""

from __future__ import annotations

from dblake.base.core.errors import StateError
from dblake.base.core.op import Op
from dblake.serve.sql.duckdb_types import read_sql
from dblake.serve.sql.names import quoted
from dblake.serve.sql.rows import text
from dblake.transform.spark.types import TEXT
from dblake.transform.state.shape import Shape

_COLUMNS = ("_op", "_valid_from", "_valid_to", "_from", "_to")
_AT = "struct_pack(incarnation := incarnation, lsn := lsn, seq := seq)"
_NO_POSITION = "CAST(NULL AS STRUCT(incarnation BIGINT, lsn BIGINT, seq BIGINT))"


def history_sql(shape: Shape, events: str) -> str:
    """Return a query for the versions of a table's rows; ``events`` is a relation of all the table's events.

    Beside the table's columns: _lossy, _missing, _op, _valid_from, _valid_to, _from, _to. Raises StateError if the
    table has a column with one of these names.
    """
    _require_names(shape)
    versions = _versions_sql(shape, events) if shape.primary_key else _inserts_sql(shape, events)
    named = list(enumerate(shape.columns))
    typed = ", ".join(f"{read_sql(c.type, f'c{i}.v')} AS t{i}" for i, c in named)
    lost = {c.name: f"c{i}.hex" if c.type == TEXT else f"(c{i}.hex OR t{i} IS NULL AND c{i}.v IS NOT NULL)"
            for i, c in named}
    absent = {} if not shape.primary_key else {
        c.name: f"(c{i} IS NULL OR c{i}.missing)" for i, c in named if c.name not in shape.primary_key and not c.dropped
    }
    columns = "".join(f"t{i} AS {quoted(c.name)}, " for i, c in named if not c.dropped)
    return (
        f"SELECT {columns}{_names_where(lost)} AS _lossy, {_names_where(absent)} AS _missing, _op, _valid_from, "
        f"_valid_to, _at AS _from, _to FROM (SELECT *, {typed} FROM ({versions}))"
    )


def _require_names(shape: Shape) -> None:
    """Raise StateError if the table has a column with the name of one of the history view's own."""
    reserved = [c.name for c in shape.columns if c.name.lower() in _COLUMNS]
    if reserved:
        raise StateError(
            f"table {shape.table}, column {reserved[0]}: the history view has its own column of that name",
            next_step="query the table's events in dblake.events instead",
        )


def _versions_sql(shape: Shape, events: str) -> str:
    """Return the versions of keyed rows: an event of a key ends the key's version before; a truncate ends all."""
    cells = ", ".join(
        f"{_cell(shape, c.name)} AS c{i}" if c.name in shape.primary_key
        else f"last_value(CASE WHEN {_carried(c.name)} THEN {_cell(shape, c.name)} END IGNORE NULLS) "
             f"OVER so_far AS c{i}"
        for i, c in enumerate(shape.columns)
    )
    parts = [f"key[{text(name)}]" for name in shape.primary_key]
    key = parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"
    ends = (
        f"SELECT _key, key, _at, '{Op.DELETE}' AS op, NULL AS after, false AS partial, NULL AS undecoded, "
        "committed_at, origin "
        f"FROM (SELECT _key, any_value(key) AS key FROM row_events GROUP BY _key) CROSS JOIN "
        f"(SELECT {_AT} AS _at, committed_at, origin FROM all_events WHERE op = '{Op.TRUNCATE}')"
    )
    again = " AND ".join([
        "origin = 'dump'", f"_op <> '{Op.DELETE}'", f"lag(_op) OVER in_order <> '{Op.DELETE}'",
        *(f"c{i} IS NOT DISTINCT FROM lag(c{i}) OVER in_order" for i in range(len(shape.columns))),
    ])
    return (
        f"WITH all_events AS (SELECT * FROM {events}), row_events AS (SELECT {key} AS _key, key, {_AT} AS _at, op, "
        f"CASE WHEN op <> '{Op.DELETE}' THEN after END AS after, partial, undecoded, committed_at, origin "
        f"FROM all_events WHERE op <> '{Op.TRUNCATE}'), "
        f"folded AS (SELECT _key, _at, op AS _op, origin, committed_at, {cells} "
        f"FROM (FROM row_events UNION ALL {ends}) WINDOW so_far AS "
        "(PARTITION BY _key ORDER BY _at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)), "
        f"changed AS (SELECT * FROM (SELECT *, coalesce({again}, false) AS _again FROM folded "
        "WINDOW in_order AS (PARTITION BY _key ORDER BY _at)) WHERE NOT _again) "
        "SELECT * FROM (SELECT *, committed_at AS _valid_from, lead(committed_at) OVER following AS _valid_to, "
        "lead(_at) OVER following AS _to FROM changed WINDOW following AS (PARTITION BY _key ORDER BY _at)) "
        f"WHERE _op <> '{Op.DELETE}'"
    )


def _inserts_sql(shape: Shape, events: str) -> str:
    """Return the created rows of a table without a key; such rows have no later versions."""
    cells = "".join(f", {_cell(shape, c.name)} AS c{i}" for i, c in enumerate(shape.columns))
    return (
        f"SELECT {_AT} AS _at, op AS _op, committed_at AS _valid_from, CAST(NULL AS TIMESTAMPTZ) AS _valid_to, "
        f"{_NO_POSITION} AS _to{cells} FROM {events} WHERE op = '{Op.CREATE}'"
    )


def _carried(column: str) -> str:
    """Return SQL that is true for events that decide what the column holds."""
    carries = f"coalesce(map_contains(after, {text(column)}), false)"
    return f"(op IN ('{Op.CREATE}', '{Op.READ}', '{Op.DELETE}') OR {carries})"


def _cell(shape: Shape, column: str) -> str:
    """Return SQL for a column in an event: its text, if that is hex, and if the event lacks it."""
    name = text(column)
    in_key = column in shape.primary_key
    missing = (
        "false" if in_key else
        f"(op = '{Op.DELETE}' OR coalesce(partial, false)) AND NOT coalesce(map_contains(after, {name}), false)"
    )
    return (
        f"struct_pack(v := {'key' if in_key else 'after'}[{name}], "
        f"hex := coalesce(list_contains(undecoded, {name}), false), missing := {missing})"
    )


def _names_where(conditions: dict[str, str]) -> str:
    """Return SQL for the list of the names whose condition holds."""
    if not conditions:
        return "CAST([] AS VARCHAR[])"
    named = ", ".join(f"CASE WHEN {condition} THEN {text(name)} END" for name, condition in conditions.items())
    return f"list_filter([{named}], lambda n: n IS NOT NULL)"
