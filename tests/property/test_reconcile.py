"""Spark's reconcile and its model agree, history by history.

All histories share one landing table, each with its own source tables, so that Spark runs few micro-batches, not
one per history. ``DBLAKE_EFFORT`` multiplies the number of histories of the long run, ``DBLAKE_SEED`` the first one. A
history with a different outcome is run again alone and shortened; the message has its seed and the remaining steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dblake.transform.reconcile.join_choice
import dblake.transform.reconcile.spark_keys
from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import reconcile_once
from tests.model.dblog import reconcile
from tests.support.effort import EFFORT
from tests.support.histories import (
    MOVED_SEEDS,
    PHANTOM_GUARD_SEEDS,
    Step,
    World,
    interleave_landings,
    play,
    random_steps,
)
from tests.support.landed import land, to_model

HISTORIES = 60 * EFFORT
SEED = int(os.environ.get("DBLAKE_SEED", "0"))

KINDS = {
    "h": (False, False, False), "toast": (True, False, False), "minimal": (True, True, False),
    "promoted": (False, True, True),
}
"""Kinds of histories, by the beginning of their tags: whether keys change often, images are minimal, servers change."""

Outcome = tuple[list[Any], list[Any]]
"""The ordered events and the sorted ledger of one history, as plain tuples."""


def play_kind(kind: str, steps: Sequence[Step], tag: str = "h") -> World:
    moving, minimal, promoted = KINDS[kind]
    return play(steps, tag, minimal=minimal, moving=moving, promoted=promoted)


def reconcile_with_spark(
    spark: SparkSession, folder: Path, worlds: Sequence[World], max_bytes: str
) -> dict[str, Outcome]:
    """Land the worlds in one table and reconcile them with Spark; return the outcome of each world by its tag.

    The ledger's moves belong to no world: there must be one for each incarnation but the first.
    """
    paths = Paths(str(folder), "source")
    schemas = {name: schema for world in worlds for name, schema in world.tables.items()}
    land(paths.landing, "source", interleave_landings(worlds), schemas)
    reconcile_once(spark, paths, max_bytes_per_trigger=max_bytes)
    outcomes: dict[str, Outcome] = {world.tag: ([], []) for world in worlds}
    events = spark.read.format("delta").load(paths.events).orderBy("incarnation", "lsn", "seq")
    for e in events.collect():
        key = tuple(e["key"].values()) if e["key"] is not None else None
        outcomes[e["table"].partition(".")[0]][0].append((
            (e["incarnation"], e["lsn"], e["seq"]), e["batch"], e["table"], e["op"], key, e["after"], e["txid"],
            e["chunk_id"], e["schema_id"],
        ))
    ledger = spark.read.format("delta").load(paths.windows).collect()
    moves = sorted((w["incarnation"], w["status"]) for w in ledger if w["table"] is None)
    assert moves == [(number, "moved") for number in range(2, max(world.incarnation for world in worlds) + 1)]
    for w in (w for w in ledger if w["table"] is not None):
        outcomes[w["table"].partition(".")[0]][1].append((
            w["chunk_id"], w["lease_epoch"], w["batch"], w["status"], w["reason"], w["rows_read"], w["rows_emitted"],
            w["rows_filled"], w["rows_removed"],
        ))
    return {tag: (rows, sorted(ledger)) for tag, (rows, ledger) in outcomes.items()}


def reconcile_with_model(world: World) -> Outcome:
    """Return the outcome that the model specifies."""
    events, ledger = reconcile(to_model(world.landing))
    rows = [
        ((e.position.incarnation, e.position.lsn, e.position.seq), e.batch, e.table, e.op, e.key, e.after, e.txid,
         e.chunk_id, e.schema_id)
        for e in events
    ]
    return rows, sorted(
        (w.chunk_id, w.lease_epoch, w.batch, w.status, w.reason, w.read, w.emitted, w.filled, w.removed)
        for w in ledger if w.chunk_id
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("compared_rows", [pytest.param(-1, id="Spark"), pytest.param(1 << 40, id="Arrow")])
@pytest.mark.parametrize(("seeds", "max_bytes"), [
    pytest.param([*range(15), *PHANTOM_GUARD_SEEDS], "1g", id="short-one micro-batch"),
    pytest.param([*range(3), *PHANTOM_GUARD_SEEDS], "1k", id="short-one landing batch at a time"),
    pytest.param(range(SEED, SEED + HISTORIES), "1g", id="long-one micro-batch", marks=pytest.mark.slow),
    pytest.param(range(SEED, SEED + HISTORIES), "1k", id="long-one landing batch at a time", marks=pytest.mark.slow),
])
def test_reconcile_random_histories_match_model(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: str, seeds: Sequence[int],
    compared_rows: int,
) -> None:
    """Both joins of keys, by Spark and in this process, follow the model; Spark's evicted keys pass through files."""
    monkeypatch.setattr(dblake.transform.reconcile.join_choice, "_COMPARED_ROWS", compared_rows)
    monkeypatch.setattr(dblake.transform.reconcile.spark_keys, "_BROADCAST_MAX_KEYS", 0)
    moved = MOVED_SEEDS if len(seeds) < HISTORIES else seeds
    histories = [*(("h", seed) for seed in seeds), *product(("toast", "minimal"), moved)]
    require_equal(spark, tmp_path, histories, max_bytes)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("compared_rows", [
    pytest.param(-1, id="Spark", marks=pytest.mark.slow), pytest.param(1 << 40, id="Arrow"),
])
@pytest.mark.parametrize(("seeds", "max_bytes"), [
    pytest.param(range(15), "1k", id="short"),
    pytest.param(range(SEED, SEED + HISTORIES), "1g", id="long-one micro-batch", marks=pytest.mark.slow),
    pytest.param(range(SEED, SEED + HISTORIES), "1k", id="long-one landing batch at a time", marks=pytest.mark.slow),
])
def test_reconcile_histories_of_promoted_servers_match_model(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: str, seeds: Sequence[int],
    compared_rows: int,
) -> None:
    """The log moves while dumps are under way: positions begin again, and windows that were open are discarded."""
    monkeypatch.setattr(dblake.transform.reconcile.join_choice, "_COMPARED_ROWS", compared_rows)
    require_equal(spark, tmp_path, [("promoted", seed) for seed in seeds], max_bytes)


def require_equal(
    spark: SparkSession, tmp_path: Path, histories: Sequence[tuple[str, int]], max_bytes: str
) -> None:
    """Require that Spark's outcome of each history, by kind and seed, is the model's; else shorten the first one."""
    worlds = {(kind, seed): play_kind(kind, random_steps(seed), f"{kind}{seed}") for kind, seed in histories}
    outcomes = reconcile_with_spark(spark, tmp_path / "all", list(worlds.values()), max_bytes)
    wrong = [name for name, world in worlds.items() if outcomes[world.tag] != reconcile_with_model(world)]
    if not wrong:
        return

    runs = iter(range(1000))

    kind, seed = wrong[0]

    def is_different(steps: list[Step]) -> bool:
        world = play_kind(kind, steps)
        alone = reconcile_with_spark(spark, tmp_path / f"alone{next(runs)}", [world], max_bytes)
        return alone[world.tag] != reconcile_with_model(world)

    world, steps = worlds[wrong[0]], random_steps(seed)
    if is_different(steps):
        steps = shorten(steps, is_different)
        world = play_kind(kind, steps)
    actual = reconcile_with_spark(spark, tmp_path / "last", [world], max_bytes)[world.tag]
    expected = reconcile_with_model(world)
    pytest.fail(
        f"{len(wrong)} histories differ, the first of kind {kind}, seed {seed}; steps {steps}\n"
        + "\n".join(f"only Spark: {row}" for part, other in zip(actual, expected, strict=True) for row in part
                    if row not in other)
        + "\n" + "\n".join(f"only the model: {row}" for part, other in zip(expected, actual, strict=True)
                           for row in part if row not in other)
    )


def shorten(steps: list[Step], is_different: Callable[[list[Step]], bool], runs: int = 25) -> list[Step]:
    """Return fewer steps that still differ: remove ever smaller parts, in at most ``runs`` runs."""
    size = len(steps) // 2
    while size and runs:
        for start in range(0, len(steps), size):
            fewer = steps[:start] + steps[start + size :]
            runs -= 1
            if is_different(fewer):
                steps = fewer
                break
            if not runs:
                break
        else:
            size //= 2
    return steps
