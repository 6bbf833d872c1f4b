"""What there is to fold: events in bounded steps, cut between landing batches.

One small aggregate over all events that are new says which tables each step touches and how they can be folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr

from dblake.core.position import Position
from dblake.state.spelling import EVENT_AT, literal


@dataclass(frozen=True, slots=True)
class Slice:
    """One table's part of a step. ``whole`` and ``truncated_at`` are what ``fold`` must be told."""

    table: str
    events: int
    whole: bool
    truncated_at: Position | None


@dataclass(frozen=True, slots=True)
class Step:
    """Events up to landing batch ``batch``, which reach ``position``."""

    batch: int
    position: Position
    slices: tuple[Slice, ...]


def newer(events: DataFrame, done: int, behind: Mapping[str, int]) -> DataFrame:
    """Events after batch ``done``; of the tables left behind, those after their own."""
    late = [f"(`table` = {literal(table)} AND batch > {batch})" for table, batch in behind.items()]
    return events.where(" OR ".join([f"batch > {done}", *late]))


def summary(events: DataFrame, done: int, batches_per_step: int) -> DataFrame:
    """One row for each step and table."""
    at = expr(EVENT_AT)
    step = expr(f"greatest(batch - {done} - 1, 0) DIV {batches_per_step} AS step")
    return (
        events.select(step, "table", "batch", "op", "partial", "schema_id", at.alias("at"))
        .groupBy("step", "table")
        .agg(
            expr("max(batch) AS batch"),
            expr("max(at) AS at"),
            expr("count(*) AS events"),
            expr("NOT bool_or(coalesce(partial, false) OR op = 'f') AND "
                 "min(IF(op = 't', NULL, schema_id)) <=> max(IF(op = 't', NULL, schema_id)) AS whole"),
            expr("max(IF(op = 't', at, NULL)) AS truncated_at"),
        )
        .orderBy("step", "table")
    )


def steps(rows: Iterable[Row]) -> list[Step]:
    """The steps in order, from the rows of ``summary``."""
    found = []
    for _, group in groupby(rows, key=lambda row: row["step"]):
        tables = list(group)
        slices = tuple(
            Slice(r["table"], r["events"], r["whole"], Position(*r["truncated_at"]) if r["truncated_at"] else None)
            for r in tables
        )
        found.append(
            Step(max(r["batch"] for r in tables), max(Position(*r["at"]) for r in tables), slices)
        )
    return found
