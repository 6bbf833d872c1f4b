"""Delta statistics of a state table's file, from its Parquet footer: what readers and later merges skip files by.

Bounds are valid for Spark and delta-rs alike. Long texts are cut, and times are rounded outwards to milliseconds. A
value whose order differs between Delta and Parquet has no bound.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow.parquet as pq

_STATISTICS_COLUMNS = 32
_STATISTICS_LETTERS = 32
_LAST_LETTER = "\U0010ffff"


def statistics(facts: pq.FileMetaData) -> str:
    """Return a file's statistics as the Delta log has them, from its Parquet footer."""
    least: dict[str, str] = {}
    most: dict[str, str] = {}
    nulls: dict[str, int] = {}
    for place in range(min(facts.num_columns, _STATISTICS_COLUMNS)):
        columns = [facts.row_group(group).column(place) for group in range(facts.num_row_groups)]
        name = columns[0].path_in_schema
        found = [column.statistics for column in columns]
        if facts.schema.column(place).max_repetition_level or any(s is None for s in found):
            continue
        if all(s.has_null_count for s in found):
            nulls[name] = sum(s.null_count for s in found)
        valued = [s for s in found if s.has_min_max]
        # A row group of NULLs has neither; one whose texts are too long has values without them.
        if not valued or any(not s.has_min_max and s.num_values for s in found):
            continue
        low, high = _least(min(s.min for s in valued)), _most(max(s.max for s in valued))
        if low is not None and high is not None:
            least[name], most[name] = low, high
    parts = [f'"numRecords":{facts.num_rows}', f'"minValues":{_object(least)}', f'"maxValues":{_object(most)}',
             f'"nullCount":{_object({name: str(count) for name, count in nulls.items()})}']
    return f"{{{','.join(parts)}}}"


def _object(values: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in values.items()) + "}"


def _least(value: Any) -> str | None:
    """Return a lower bound as JSON; None where Delta's and Parquet's order differ or the type has none."""
    if isinstance(value, str):
        return json.dumps(value[:_STATISTICS_LETTERS])
    if isinstance(value, datetime):
        return _moment(value.replace(microsecond=value.microsecond // 1000 * 1000))
    return _exact(value)


def _most(value: Any) -> str | None:
    if isinstance(value, str):
        cut = value if len(value) <= _STATISTICS_LETTERS else value[:_STATISTICS_LETTERS] + _LAST_LETTER
        return json.dumps(cut)
    if isinstance(value, datetime):
        down = value.replace(microsecond=value.microsecond // 1000 * 1000)
        try:
            return _moment(down if down == value else down + timedelta(milliseconds=1))
        except OverflowError:
            return None
    return _exact(value)


def _exact(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, np.integer)):
        return str(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, date):
        return f'"{value.isoformat()}"'
    # Parquet leaves NaN out, which Delta's readers order last.
    return None


def _moment(value: datetime) -> str:
    zone = "Z" if value.tzinfo else ""
    return f'"{value.replace(tzinfo=None).isoformat(timespec="milliseconds")}{zone}"'
