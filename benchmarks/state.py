"""Events → state beside a plain Delta MERGE of the same rows into a copy of the same table.

``measure`` belongs to the one data set of ``run``; ``PARTS`` are those of ``benchmark --spark``, on rows made for them.

State holds the dumped table and is then given the changes in one step. What the plain MERGE is given has been folded
to one typed row a key beforehand: it has neither to read events nor to guard positions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from benchmarks.capture_job import SOURCE
from benchmarks.comparison import Comparison, Side
from benchmarks.database import TABLE
from benchmarks.folded_events import FoldedEvents
from benchmarks.reconcile import seconds
from benchmarks.spark_half import Cost, Measured, Part, cost_of, median_cpu, median_seconds
from dblake.base.core.names import split_qualified
from dblake.base.lake.cleanup import clean_log
from dblake.base.lake.layout import Paths
from dblake.transform.spark.session import spark_session
from dblake.transform.state.run import run_state

_ONE_STEP = 1_000_000
_ONE = "public.accounts"
_BATCH_ROWS = 250_000


def measure(spark: SparkSession, reconciled: Paths, dumped: int, folder: Path, rounds: int) -> Comparison:
    """Fold the changes after batch ``dumped`` beside a plain merge.

    State is folded up to ``dumped`` first: all of the dump and some of the changes.
    """
    run_state(spark, reconciled, batches_per_step=_ONE_STEP, until_batch=dumped)
    before = reconciled.state(*split_qualified(TABLE))
    ours, peers = [], []
    rows = 0
    for number in range(rounds):
        paths = Paths(str(folder / f"state_{number}"), SOURCE)
        for name in ("events", "schemas", "state", "frontier"):
            shutil.copytree(Path(reconciled.root) / name, Path(paths.root) / name)
        ours.append(seconds(lambda to=paths: run_state(spark, to, batches_per_step=_ONE_STEP)))  # type: ignore[misc]
        changed, copy = str(folder / f"changed_{number}"), str(folder / f"plain_{number}")
        rows = _changed_rows(spark, before, paths.state(*split_qualified(TABLE)), changed)
        shutil.copytree(before, copy)
        peers.append(seconds(lambda to=copy, of=changed: _merge(spark, to, of)))  # type: ignore[misc]
    return Comparison(
        "events → state",
        Side("state: reads events, folds, MERGE", rows, tuple(ours)),
        Side("plain MERGE of the folded rows", rows, tuple(peers)),
    )


def _changed_rows(spark: SparkSession, before: str, after: str, to: str) -> int:
    """Write the rows that a step changed, as they are after it; return their number."""
    reached = spark.read.format("delta").load(before).agg(expr("max(struct(_incarnation, _lsn, _seq)) AS at"))
    rows = spark.read.format("delta").load(after).join(reached, expr("struct(_incarnation, _lsn, _seq) > at"))
    rows.drop("at").write.format("delta").mode("overwrite").save(to)
    return spark.read.format("delta").load(to).count()


def _merge(spark: SparkSession, path: str, changed: str) -> None:
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING delta.`{changed}` s ON t.aid = s.aid "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def measure_many_tables(folder: Path, rounds: int, tables: int = 1000) -> list[Measured]:
    """One change in each of many tables of 100 rows."""
    spark, paths = spark_session("benchmark"), Paths(str(folder), SOURCE)
    names = [f"public.t{number}" for number in range(tables)]
    events = FoldedEvents(paths, names)
    events.append([name for name in names for _ in range(100)], np.tile(np.arange(100), tables), "c")
    run_state(spark, paths)
    ours = []
    for number in range(rounds):
        events.append(names, np.full(tables, number), "u")
        ours.append(cost_of(lambda: run_state(spark, paths)))
    a_table = median_cpu(ours) / tables
    return [Measured(
        f"state, one change in each of {tables:,} tables", tables, ours, target="≤ 150 s, ≤ 0.15 CPU s a table",
        met=median_seconds(ours) <= 150 and a_table <= 0.15, facts={"CPU s a table": round(a_table, 4)},
    )]


def measure_changes(folder: Path, rounds: int) -> list[Measured]:
    """Measure changes spread over a table of a million rows."""
    return _beside_merge(folder, rounds, 1_000_000, [
        ("state, 1,000 changes into 1 M rows", 1_000, False, 0.2),
        ("state, 250 k changes into 1 M rows", 250_000, False, 0.3),
    ])


def measure_large(folder: Path, rounds: int) -> list[Measured]:
    """Measure changes into a table of ten million rows, spread over it and of its newest keys."""
    return _beside_merge(folder, rounds, 10_000_000, [
        ("state, 100 k changes into 10 M rows, spread", 100_000, False, None),
        ("state, 100 k changes into 10 M rows, recent keys", 100_000, True, None),
    ])


def _beside_merge(
    folder: Path, rounds: int, rows: int, works: Sequence[tuple[str, int, bool, float | None]]
) -> list[Measured]:
    """Give state and a plain MERGE the same changes to a table of ``rows`` rows, each to a copy of its own."""
    spark, paths = spark_session("benchmark"), Paths(str(folder / "lake"), SOURCE)
    events, draw = FoldedEvents(paths, [_ONE]), np.random.default_rng(2)
    for first in range(0, rows, _BATCH_ROWS):
        events.append([_ONE], np.arange(first, min(rows, first + _BATCH_ROWS)), "r")
    run_state(spark, paths)
    state, plain = paths.state(*split_qualified(_ONE)), str(folder / "plain")
    spark.read.format("delta").load(state).write.format("delta").save(plain)
    found = []
    for work, changes, is_recent, most in works:
        ours, peer = [], []
        for number in range(rounds):
            ids = np.arange(rows - changes, rows) if is_recent else draw.choice(rows, changes, replace=False)
            before = DeltaTable(state).version()
            events.append([_ONE], ids, "u")
            ours.append(cost_of(lambda: run_state(spark, paths)))
            changed = str(folder / f"changed_{work}_{number}".replace(" ", "_").replace(",", ""))
            at = spark.read.format("delta").load(state).selectExpr("max(_lsn)").first()
            assert at is not None and DeltaTable(state).version() > before
            rows_now = spark.read.format("delta").load(state).where(f"_lsn = {at[0]}")
            rows_now.write.format("delta").save(changed)
            peer.append(cost_of(lambda of=changed: _merge(spark, plain, of)))  # type: ignore[misc]
        ratio = median_cpu(ours) / median_cpu(peer)
        target = "reported" if most is None else f"CPU and time ≤ {most}"
        times = median_seconds(ours) / median_seconds(peer)
        found.append(Measured(work, changes, ours, peer, target, None if most is None else max(ratio, times) <= most))
    return found


def measure_age(folder: Path, rounds: int) -> list[Measured]:
    """Measure the first operation on a table with few commits and with many, after maintenance of its log."""
    paths = [_aged_table(str(folder / f"aged_{commits}"), commits) for commits in (100, 100_000)]
    costs: tuple[list[Cost], list[Cost]] = [], []
    # An operation takes some 30 ms, so many runs in turn.
    for _ in range(10 * rounds):
        for path, found in zip(paths, costs, strict=True):
            found.append(cost_of(lambda of=path: DeltaTable(of).transaction_version("bench")))  # type: ignore[misc]
    ratio = median_seconds(costs[1]) / median_seconds(costs[0])
    return [Measured("first operation at 100,000 commits ÷ at 100", 100_000, costs[1], costs[0], "time ≤ 1.3",
                     ratio <= 1.3)]


def _aged_table(path: str, commits: int) -> str:
    """Create a table with so many commits, its log as maintenance leaves it; return its path."""
    write_deltalake(path, pa.table({"batch": pa.array([1])}))
    for number in range(1, commits):
        _commit_nothing(path, number)
        # As its writers do; checkpoints that are older have no effect.
        if number % 100 == 0 and number >= commits - 2_000:
            DeltaTable(path).create_checkpoint()
    clean_log(path, keep_hours=0)
    return path


def _commit_nothing(path: str, version: int) -> None:
    """Write a commit without files; delta-rs would take a quarter of an hour for 100,000."""
    actions: list[dict[str, object]] = [
        {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE", "operationParameters": {}}},
        {"txn": {"appId": "bench", "version": version}},
    ]
    entry = Path(path) / "_delta_log" / f"{version:020}.json"
    entry.write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")


PARTS = (
    Part("State: one change in each of 1,000 tables", measure_many_tables),
    Part("State: changes into 1 M rows beside MERGE", measure_changes),
    Part("State: changes into 10 M rows beside MERGE", measure_large),
    Part("Tables of 100 and of 100,000 commits", measure_age),
)
