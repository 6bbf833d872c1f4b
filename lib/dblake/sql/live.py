"""SQL for the plain and the live view of one table, over its state and its newer events.

Place: between state and events, and ``sql.views``. The live view is what state will be once it has folded all events:
state rows that no newer event touches, and the fold of the newer events over those that they touch. Guarantee: both are
built from the fold's own SQL, so partial rows, fills, deletes and truncates mean the same as in state. Versions of rows
are left to ``history``.
"""

from __future__ import annotations

from dblake.core.op import Op
from dblake.spark.sql_literals import EVENT_AT, identifier, literal, state_at
from dblake.state.fold_sql import fold_sql
from dblake.state.shape import OWN, Shape


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
    return f"SELECT {current_columns(shape)} FROM {state} WHERE NOT _deleted"


def live_sql(shape: Shape, state: str, newer: str) -> str:
    """Return ``plain_sql``'s query as of the newest event; ``newer`` are the table's events that state lacks."""
    if not shape.primary_key:
        return (
            f"{plain_sql(shape, state)} UNION ALL "
            f"SELECT {current_columns(shape)} FROM ({fold_sql(shape, newer, truncated_at=None)})"
        )
    truncated_at = f"(SELECT max({EVENT_AT}) FROM {newer} WHERE op = '{Op.TRUNCATE}')"
    state_is_newer = f"coalesce({state_at('s')} >= {state_at('f')}, false)"
    merged = [
        f"IF({state_is_newer} OR array_contains(f._unknown, {literal(c.name)}), s.{n}, f.{n}) AS {n}"
        for c in shape.current for n in [identifier(c.name)]
    ]
    return (
        f"WITH folded AS ({fold_sql(shape, newer, truncated_at=truncated_at)}), "
        # Events touch few rows of state; selecting those first keeps the join with the fold small.
        f"touched AS (SELECT s.* FROM {state} s LEFT SEMI JOIN folded f ON s._key = f._key) "
        f"SELECT {current_columns(shape)} FROM {state} s LEFT ANTI JOIN folded f ON s._key = f._key "
        f"WHERE NOT s._deleted AND NOT coalesce({state_at('s')} < {truncated_at}, false) "
        f"UNION ALL SELECT {', '.join(merged)} FROM folded f LEFT JOIN touched s ON s._key = f._key "
        f"WHERE NOT IF({state_is_newer}, s._deleted, f._deleted)"
    )


def current_columns(shape: Shape) -> str:
    """Return the columns of the newest schema as a select list."""
    return ", ".join(identifier(c.name) for c in shape.current)
