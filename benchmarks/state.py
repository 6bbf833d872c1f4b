"""Events → state beside a plain Delta MERGE of the same rows into a copy of the same table.

State holds the dumped table and is then given the changes in one step. What the plain MERGE is given has been folded
to one typed row a key beforehand: it has neither to read events nor to guard positions.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from benchmarks.capture_job import SOURCE
from benchmarks.comparison import Comparison, Side
from benchmarks.database import TABLE
from benchmarks.reconcile import seconds
from dblake.core.names import split_qualified
from dblake.lake.layout import Paths
from dblake.state.run import run_state

_ONE_STEP = 1_000_000


def measure(spark: SparkSession, reconciled: Paths, dumped: int, folder: Path, rounds: int) -> Comparison:
    """``dumped`` is the landing batch up to which state is made first: all of the dump and some of the changes."""
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
    """Writes the rows that a step changed, as they are after it; returns how many."""
    reached = spark.read.format("delta").load(before).agg(expr("max(struct(_incarnation, _lsn, _seq)) AS at"))
    rows = spark.read.format("delta").load(after).join(reached, expr("struct(_incarnation, _lsn, _seq) > at"))
    rows.drop("at").write.format("delta").mode("overwrite").save(to)
    return spark.read.format("delta").load(to).count()


def _merge(spark: SparkSession, path: str, changed: str) -> None:
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING delta.`{changed}` s ON t.aid = s.aid "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
