"""SQL for DuckDB: the versions of a table's rows, from its events.

Place: between ``rows`` and ``engine``. Guarantee: one row per version, with the
time and position from and until which it was valid. A row that a dump read again as it already was is no version.
A partial create of a key change shows what it lacks as the old key's row had it, as in ``state.lineage``.
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
_MOVED = f"op = '{Op.CREATE}' AND coalesce(partial, false) AND key_before IS NOT NULL"
_NO_POSITION = "CAST(NULL AS STRUCT(incarnation BIGINT, lsn BIGINT, seq BIGINT))"


def moves_sql(events: str) -> str:
    """Return a query that has a row if the events have a partial create of a key change."""
    return f"SELECT 1 FROM {events} WHERE {_MOVED} LIMIT 1"


def history_sql(shape: Shape, events: str, *, has_moves: bool = False) -> str:
    """Return a query for the versions of a table's rows; ``events`` is a relation of all the table's events.

    ``has_moves``: ``moves_sql`` found a row, so that rows have to be followed through changes of their keys.
    Beside the table's columns: _lossy, _missing, _op, _valid_from, _valid_to, _from, _to. Raises StateError if the
    table has a column with one of these names.
    """
    _require_names(shape)
    versions = _versions_sql(shape, events, has_moves) if shape.primary_key else _inserts_sql(shape, events)
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


def _versions_sql(shape: Shape, events: str, has_moves: bool) -> str:
    """Return the versions of keyed rows: an event of a key ends the key's version before; a truncate ends all."""
    cells = ", ".join(
        f"{_cell(shape, c.name)} AS c{i}" if c.name in shape.primary_key
        else f"last_value(CASE WHEN {_carried(c.name)} THEN {_cell(shape, c.name, has_moves)} END IGNORE NULLS) "
             f"OVER so_far AS c{i}"
        for i, c in enumerate(shape.columns)
    )
    moved_from = f"CASE WHEN {_MOVED} THEN {_key(shape, 'key_before')} END" if has_moves else "NULL"
    ends = (
        f"SELECT _key, key, _at, '{Op.DELETE}' AS op, NULL AS after, false AS partial, NULL AS undecoded, "
        "committed_at, origin, NULL AS _moved_from "
        f"FROM (SELECT _key, any_value(key) AS key FROM row_events GROUP BY _key) CROSS JOIN "
        f"(SELECT {_AT} AS _at, committed_at, origin FROM all_events WHERE op = '{Op.TRUNCATE}')"
    )
    begins = f"op IN ('{Op.CREATE}', '{Op.READ}', '{Op.DELETE}')"
    begun = f"last_value(CASE WHEN {begins} THEN _at END IGNORE NULLS) OVER so_far" if has_moves else "NULL"
    again = " AND ".join([
        "origin = 'dump'", f"_op <> '{Op.DELETE}'", f"lag(_op) OVER in_order <> '{Op.DELETE}'",
        *(f"c{i} IS NOT DISTINCT FROM lag(c{i}) OVER in_order" for i in range(len(shape.columns))),
    ])
    return (
        f"WITH {'RECURSIVE ' if has_moves else ''}all_events AS (SELECT * FROM {events}), "
        f"row_events AS (SELECT {_key(shape, 'key')} AS _key, key, {_AT} AS _at, "
        f"op, CASE WHEN op <> '{Op.DELETE}' THEN after END AS after, partial, undecoded, committed_at, origin, "
        f"{moved_from} AS _moved_from FROM all_events WHERE op <> '{Op.TRUNCATE}'), "
        f"by_key AS (SELECT _key, _at, op AS _op, origin, committed_at, _moved_from, {begun} AS _begun, {cells} "
        f"FROM (FROM row_events UNION ALL {ends}) WINDOW so_far AS "
        "(PARTITION BY _key ORDER BY _at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)), "
        f"{_moves_followed(shape) if has_moves else 'folded AS (FROM by_key)'}, "
        f"changed AS (SELECT * FROM (SELECT *, coalesce({again}, false) AS _again FROM folded "
        "WINDOW in_order AS (PARTITION BY _key ORDER BY _at)) WHERE NOT _again) "
        "SELECT * FROM (SELECT *, committed_at AS _valid_from, lead(committed_at) OVER following AS _valid_to, "
        "lead(_at) OVER following AS _to FROM changed WINDOW following AS (PARTITION BY _key ORDER BY _at)) "
        f"WHERE _op <> '{Op.DELETE}'"
    )


def _moves_followed(shape: Shape) -> str:
    """Return SQL for ``folded``: ``by_key``, with what a moved row lacks from the row that its key change ended.

    ``moves`` are partial creates of key changes and where their old keys' rows ended, ``parents`` the last of those
    rows' versions. ``lines`` goes from parent to parent where the parent is a moved row that lacks the column, too.
    """
    names = [f"c{i}" for i, c in enumerate(shape.columns) if c.name not in shape.primary_key]
    parent = ", ".join(f"{name} := p.{name}" for name in ("_begun", *names))
    first = "".join(f", p.{name}" for name in names)
    further = "".join(f", CASE WHEN l.{name}.moved THEN q.p.{name} ELSE l.{name} END AS {name}" for name in names)
    values = ", ".join(f"{name} := {name}" for name in ("depth", *names))
    cells = "".join(
        f", CASE WHEN f.c{i}.moved THEN coalesce(i.found.c{i}, f.c{i}) ELSE f.c{i} END AS c{i}"
        if f"c{i}" in names else f", f.c{i}" for i in range(len(shape.columns))
    )
    return (
        "moves AS (SELECT m._key, m._at, m._moved_from, max(d._at) AS _end FROM by_key m JOIN by_key d "
        f"ON d._key = m._moved_from AND d._op = '{Op.DELETE}' AND d._at < m._at GROUP BY ALL), "
        f"parents AS (SELECT m._key, m._at, m._moved_from, max_by(struct_pack({parent}), p._at) AS p FROM moves m "
        "JOIN by_key p ON p._key = m._moved_from AND p._at < m._end GROUP BY ALL), "
        f"lines AS (SELECT _key, _at, 1 AS depth, _moved_from AS _of, p._begun AS _begun{first} FROM parents "
        f"UNION ALL SELECT l._key, l._at, l.depth + 1, q._moved_from, q.p._begun{further} FROM lines l "
        "JOIN parents q ON q._key = l._of AND q._at = l._begun), "
        f"inherited AS (SELECT _key, _at, max_by(struct_pack({values}), depth) AS found FROM lines "
        "GROUP BY _key, _at), "
        f"folded AS (SELECT f._key, f._at, f._op, f.origin, f.committed_at{cells} FROM by_key f "
        "LEFT JOIN inherited i ON i._key = f._key AND i._at = f._begun)"
    )


def _key(shape: Shape, image: str) -> str:
    """Return SQL for a key of events as one value."""
    parts = [f"{image}[{text(name)}]" for name in shape.primary_key]
    return parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"


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


def _cell(shape: Shape, column: str, has_moves: bool = False) -> str:
    """Return SQL for a column in an event: its text, if that is hex, if the event lacks it, and if a row moved so."""
    name = text(column)
    moved = f", moved := _moved_from IS NOT NULL AND NOT coalesce(map_contains(after, {name}), false)"
    in_key = column in shape.primary_key
    missing = (
        "false" if in_key else
        f"(op = '{Op.DELETE}' OR coalesce(partial, false)) AND NOT coalesce(map_contains(after, {name}), false)"
    )
    return (
        f"struct_pack(v := {'key' if in_key else 'after'}[{name}], "
        f"hex := coalesce(list_contains(undecoded, {name}), false), missing := {missing}{moved if has_moves else ''})"
    )


def _names_where(conditions: dict[str, str]) -> str:
    """Return SQL for the list of the names whose condition holds."""
    if not conditions:
        return "CAST([] AS VARCHAR[])"
    named = ", ".join(f"CASE WHEN {condition} THEN {text(name)} END" for name, condition in conditions.items())
    return f"list_filter([{named}], lambda n: n IS NOT NULL)"
