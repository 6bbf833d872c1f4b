"""Redecode runs that replaced events: which batches and tables, from the ledger that ``redecode`` writes.

Place: between the lake and ``stream``. A run's lines are in the ledger before its events are swapped.
"""

from __future__ import annotations

from dataclasses import dataclass

from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows

_DIFFERS = "(different + only_old + only_new) > 0"


@dataclass(frozen=True, slots=True)
class ReplacedEvents:
    """The events or schemas of a table that a run changed, from landing batch ``first`` on."""

    run: int
    table: str
    first: int
    last: int


def replaced_since(paths: Paths, run: int) -> list[ReplacedEvents]:
    """Return what the runs after ``run`` changed."""
    rows = query_rows(
        paths.redecoded,
        f'SELECT run, "table", min("first") AS first_batch, max("last") AS last_batch FROM t WHERE run > {run} '
        f"AND of IN ('events', 'schemas') AND {_DIFFERS} GROUP BY run, \"table\" ORDER BY run, \"table\"",
    )
    return [
        ReplacedEvents(row["run"], row["table"], row["first_batch"], row["last_batch"])
        for row in rows if row["table"] is not None
    ]
