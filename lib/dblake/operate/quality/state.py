"""Invariants of a state table: one row per key, no row newer than events, NULL only where it is allowed or explained.

Place: between state and ``quality.run``. Reduces a state table to one row per row, without its values. A column that
must not be NULL becomes true where it has a value or an explanation, and NULL elsewhere. ``verify`` compares state with
the source: whether state is what its events fold to is not checked here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame

from dblake.base.core.position import Position
from dblake.base.core.schema import TableSchema
from dblake.operate.quality.events import required_columns
from dblake.operate.quality.suite import Expectation, expect_no_violation, expect_not_null, expect_unique
from dblake.transform.spark.sql_literals import identifier, literal, position, state_at
from dblake.transform.state.shape import OWN

_KEY = "_key"
_DELETED = "_deleted"
_PLAIN_NAME = re.compile(r"[^\W_][\w ]*")


def build_expectations(versions: Sequence[TableSchema], existing: Collection[str]) -> list[Expectation]:
    """Return the expectations of a state table folded under the schema ``versions``, with ``existing`` columns."""
    has_key = bool(versions[-1].primary_key)
    return [
        *([expect_not_null(_KEY, "every row has a key")] if has_key else []),
        expect_unique([_KEY], "a key has one row, live or deleted") if has_key else
        expect_unique(Position.STATE_COLUMNS, "in a table without a key, every row has its own position"),
        *(expect_not_null(name, "every row has the position of its newest event") for name in Position.STATE_COLUMNS),
        expect_not_null(_DELETED, "every row is either live or deleted"),
        expect_no_violation("_newer_than_events", "no row is newer than the newest event"),
        expect_no_violation("_tombstone_has_values", "a deleted key has no values"),
        expect_no_violation("_missing_has_value", "a column that a row names in _missing is NULL in that row"),
        *(
            expect_not_null(_alias(index, name), f"{name} is NOT NULL at the source, so state explains every NULL",
                            source_name=name)
            for index, name in enumerate(_required(versions, existing))
        ),
    ]


def evaluate_state(state: DataFrame, versions: Sequence[TableSchema], newest: Position | None) -> DataFrame:
    """Return one row per row of a state table; ``newest`` is the newest position of events, None if they are empty.

    Requires: the columns of ``state.shape.OWN`` and of the table.
    Returns: _key, _incarnation, _lsn, _seq, _deleted, the booleans _newer_than_events, _tombstone_has_values and
    _missing_has_value, and per NOT NULL column true or NULL, under the names that ``build_expectations`` uses.
    """
    key = [name for name in versions[-1].primary_key if name in state.columns]
    values = [name for name in state.columns if name not in OWN and name not in key]
    is_newer = f"coalesce({state_at('s')} > {position(newest)}, false)" if newest else "false"
    has_value = " OR ".join(f"{identifier(name)} IS NOT NULL" for name in values) or "false"
    has_missing_value = " OR ".join(
        f"(array_contains(_missing, {literal(name)}) AND {identifier(name)} IS NOT NULL)" for name in values
    ) or "false"
    return state.alias("s").selectExpr(
        _KEY, *Position.STATE_COLUMNS, _DELETED,
        f"{is_newer} AS _newer_than_events",
        f"coalesce(_deleted AND ({has_value}), false) AS _tombstone_has_values",
        f"coalesce({has_missing_value}, false) AS _missing_has_value",
        *(
            f"IF({_is_explained_sql(name, name in key)}, true, NULL) AS {identifier(_alias(index, name))}"
            for index, name in enumerate(_required(versions, state.columns))
        ),
    )


def _required(versions: Sequence[TableSchema], existing: Collection[str]) -> list[str]:
    columns = dict.fromkeys([*versions[-1].primary_key, *required_columns(versions)])
    return [name for name in columns if name in existing]


def _is_explained_sql(name: str, in_key: bool) -> str:
    """Return SQL that is true if the column has a value, or the row explains why it has none."""
    lossy = f"coalesce(array_contains(_lossy, {literal(name)}), false)"
    if in_key:
        return f"{identifier(name)} IS NOT NULL OR {lossy}"
    missing = f"coalesce(array_contains(_missing, {literal(name)}), false)"
    return f"{identifier(name)} IS NOT NULL OR _deleted OR {lossy} OR {missing}"


def _alias(index: int, name: str) -> str:
    """Return a column name that differs from state's own and that great-expectations can quote and show unchanged."""
    return name if _PLAIN_NAME.fullmatch(name) else f"_column_{index}"
