"""Spark SQL for the rows of one state table, under the newest schema.

Place: between state and ``sql.views``. Guarantee: the rows come from one version of the state table, without
tombstones. Newer events are not folded here: ``read`` does that in process.
"""

from __future__ import annotations

from dblake.transform.spark.sql_literals import identifier
from dblake.transform.state.shape import OWN, Shape


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


def current_columns(shape: Shape) -> str:
    """Return the columns of the newest schema as a select list."""
    return ", ".join(identifier(c.name) for c in shape.current)
