"""What a state table promises: one row per key, no newer than events, NULL only where it may be or says why.

Makes of a state table one row for each of its rows, without its values: a column that must not be NULL is true where it
is as it should be and NULL where it is not. That state is what its events come to is left to a comparison with the
source; here only what each row says by itself is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame

from dblake.core.position import Position
from dblake.core.schema import TableSchema
from dblake.quality.events import required
from dblake.quality.suite import Expectation, never, not_null, unique
from dblake.spark.sql_literals import identifier, literal, position, state_at
from dblake.state.shape import OWN

_KEY = "_key"
_PLACE = ("_incarnation", "_lsn", "_seq")
_DELETED = "_deleted"
_PLAIN = re.compile(r"[^\W_][\w ]*")


def expected(versions: Sequence[TableSchema], existing: Collection[str]) -> list[Expectation]:
    """``versions`` are those the table was folded under, ``existing`` its columns."""
    keyed = bool(versions[-1].primary_key)
    return [
        *([not_null(_KEY, "every row has a key")] if keyed else []),
        unique([_KEY], "a key has one row, living or deleted") if keyed else
        unique(_PLACE, "without a key, every row was created at a place of its own"),
        *(not_null(name, "every row has the position of its newest event") for name in _PLACE),
        not_null(_DELETED, "every row is either living or deleted"),
        never("_newer_than_events", "no row is newer than the newest event"),
        never("_tombstone_has_values", "a deleted key has no values left"),
        never("_missing_has_value", "a column that a row names in _missing is NULL in it"),
        *(
            not_null(_alias(place, name), f"{name} is NOT NULL at the source, so neither here without a reason",
                     named=name)
            for place, name in enumerate(_never_null(versions, existing))
        ),
    ]


def rows(
    state: DataFrame, versions: Sequence[TableSchema], newest: Position | None
) -> DataFrame:
    """A row for each row of a state table; ``newest`` is the position events reach, None if they hold none."""
    key = [name for name in versions[-1].primary_key if name in state.columns]
    values = [name for name in state.columns if name not in OWN and name not in key]
    newer = f"coalesce({state_at('s')} > {position(newest)}, false)" if newest else "false"
    held = " OR ".join(f"{identifier(name)} IS NOT NULL" for name in values) or "false"
    there = " OR ".join(
        f"(array_contains(_missing, {literal(name)}) AND {identifier(name)} IS NOT NULL)" for name in values
    ) or "false"
    return state.alias("s").selectExpr(
        _KEY, *_PLACE, _DELETED,
        f"{newer} AS _newer_than_events",
        f"coalesce(_deleted AND ({held}), false) AS _tombstone_has_values",
        f"coalesce({there}, false) AS _missing_has_value",
        *(
            f"IF({_accounted(name, name in key)}, true, NULL) AS {identifier(_alias(place, name))}"
            for place, name in enumerate(_never_null(versions, state.columns))
        ),
    )


def _never_null(versions: Sequence[TableSchema], existing: Collection[str]) -> list[str]:
    columns = dict.fromkeys([*versions[-1].primary_key, *required(versions)])
    return [name for name in columns if name in existing]


def _accounted(name: str, in_key: bool) -> str:
    """SQL: the column has a value, or the row says why it has none."""
    lossy = f"coalesce(array_contains(_lossy, {literal(name)}), false)"
    if in_key:
        return f"{identifier(name)} IS NOT NULL OR {lossy}"
    missing = f"coalesce(array_contains(_missing, {literal(name)}), false)"
    return f"{identifier(name)} IS NOT NULL OR _deleted OR {lossy} OR {missing}"


def _alias(place: int, name: str) -> str:
    """A name that is none of ours, and one that great-expectations can quote and put on a page as it is."""
    return name if _PLAIN.fullmatch(name) else f"_column_{place}"
