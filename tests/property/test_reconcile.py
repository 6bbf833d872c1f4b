"""Spark's reconcile against the specification, history by history.

All histories lie side by side in one landing table, as tables of their own, so that Spark runs a few micro-batches and
not one a history. ``DBLAKE_HISTORIES`` says how many, ``DBLAKE_SEED`` which are the first. A history that comes out
differently is run again alone and cut down; the message gives its seed and the steps that remain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblake.lake.layout import Paths
from dblake.reconcile.stream import reconcile_once
from tests.model.dblog import reconcile
from tests.support.histories import Step, World, interleave_landings, play, random_steps
from tests.support.landed import land, to_model

HISTORIES = int(os.environ.get("DBLAKE_HISTORIES", "200"))
SEED = int(os.environ.get("DBLAKE_SEED", "0"))

Outcome = tuple[list[Any], list[Any]]
"""Events in order and the ledger, of one history, as plain tuples."""


def spark_says(spark: SparkSession, folder: Path, worlds: Sequence[World], bytes_: str) -> dict[str, Outcome]:
    paths = Paths(str(folder), "source")
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    land(paths.landing, "source", interleave_landings(worlds), schemas)
    reconcile_once(spark, paths, max_bytes_per_trigger=bytes_)
    outcomes: dict[str, Outcome] = {world.tag: ([], []) for world in worlds}
    events = spark.read.format("delta").load(paths.events).orderBy("incarnation", "lsn", "seq")
    for e in events.collect():
        key = tuple(e["key"].values()) if e["key"] is not None else None
        outcomes[e["table"].partition(".")[0]][0].append((
            (e["incarnation"], e["lsn"], e["seq"]), e["batch"], e["table"], e["op"], key, e["after"], e["txid"],
            e["chunk_id"], e["schema_id"],
        ))
    for w in spark.read.format("delta").load(paths.windows).collect():
        outcomes[w["table"].partition(".")[0]][1].append((
            w["chunk_id"], w["lease_epoch"], w["batch"], w["status"], w["reason"], w["rows_read"], w["rows_emitted"],
            w["rows_filled"], w["rows_removed"],
        ))
    return {tag: (rows, sorted(ledger)) for tag, (rows, ledger) in outcomes.items()}


def model_says(world: World) -> Outcome:
    events, ledger = reconcile(to_model(world.landing))
    rows = [
        ((e.position.incarnation, e.position.lsn, e.position.seq), e.batch, e.table, e.op, e.key, e.after, e.txid,
         e.chunk_id, e.schema_id)
        for e in events
    ]
    return rows, sorted(
        (w.chunk_id, w.lease_epoch, w.batch, w.status, w.reason, w.read, w.emitted, w.filled, w.removed)
        for w in ledger
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("bytes_", ["1g", "1k"], ids=["one micro-batch", "one landing batch at a time"])
def test_spark_and_the_specification_agree(spark: SparkSession, tmp_path: Path, bytes_: str) -> None:
    seeds = range(SEED, SEED + HISTORIES)
    worlds = [play(random_steps(seed), f"h{seed}") for seed in seeds]
    said = spark_says(spark, tmp_path / "all", worlds, bytes_)
    wrong = [seed for seed, world in zip(seeds, worlds, strict=True) if said[world.tag] != model_says(world)]
    if not wrong:
        return

    runs = iter(range(1000))

    def differs(steps: list[Step]) -> bool:
        world = play(steps)
        alone = spark_says(spark, tmp_path / f"alone{next(runs)}", [world], bytes_)
        return alone[world.tag] != model_says(world)

    world, steps = worlds[wrong[0] - SEED], random_steps(wrong[0])
    if differs(steps):
        steps = cut_down(steps, differs)
        world = play(steps)
    got, wanted = spark_says(spark, tmp_path / "last", [world], bytes_)[world.tag], model_says(world)
    pytest.fail(
        f"{len(wrong)} histories differ, the first of seed {wrong[0]}; steps {steps}\n"
        + "\n".join(f"only Spark: {row}" for part, other in zip(got, wanted, strict=True) for row in part
                    if row not in other)
        + "\n" + "\n".join(f"only the specification: {row}" for part, other in zip(wanted, got, strict=True)
                           for row in part if row not in other)
    )


def cut_down(steps: list[Step], differs: Callable[[list[Step]], bool], runs: int = 25) -> list[Step]:
    """Fewer steps that still differ: ever smaller stretches are left out, for so many runs at most."""
    size = len(steps) // 2
    while size and runs:
        for start in range(0, len(steps), size):
            fewer = steps[:start] + steps[start + size :]
            runs -= 1
            if differs(fewer):
                steps = fewer
                break
            if not runs:
                break
        else:
            size //= 2
    return steps
