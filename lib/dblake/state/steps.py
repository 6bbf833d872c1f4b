"""What there is to fold: events in bounded steps, cut between landing batches.

One small aggregate over all events that are new says which tables each step touches and how they can be folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr

from dblake.core.position import Position
from dblake.spark.sql_literals import EVENT_AT, literal


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


def batch_ends(events: DataFrame) -> DataFrame:
    """For each batch, whether a transaction is ``open`` at its end, so that the next batch holds the rest of it."""
    log = f"IF(origin = 'log', {EVENT_AT}, NULL)"
    return events.groupBy("batch").agg(expr(f"coalesce(NOT max_by(last_in_txn, {log}), false) AS open"))


def cuts(ends: Sequence[Row], done: int, batches_per_step: int) -> list[int]:
    """The batches each step goes up to: about so many a step, and none with a transaction open at its end."""
    newest = max((row["batch"] for row in ends), default=0)
    inside = {row["batch"] for row in ends if row["open"]}
    found: list[int] = []
    while done < newest:
        cut = min(done + batches_per_step, newest)
        while cut in inside and cut < newest:
            cut += 1
        # A transaction that has not landed whole waits for the next run.
        while cut in inside and cut > done:
            cut -= 1
        if cut == done:
            break
        found.append(cut)
        done = cut
    return found


def summary(events: DataFrame, cuts: Sequence[int]) -> DataFrame:
    """One row for each step, up to the cuts, and table."""
    at = expr(EVENT_AT)
    step = expr(f"size(filter(array({', '.join(map(str, cuts))}), cut -> cut < batch)) AS step")
    return (
        events.where(f"batch <= {cuts[-1]}")
        .select(step, "table", "batch", "op", "partial", "schema_id", at.alias("at"))
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
