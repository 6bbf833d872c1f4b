"""Readers that are no subscription: Structured Streaming over events, and the change data feed of state."""

from __future__ import annotations

import re
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.operate.maintenance.event_compaction import compact_events
from tests.support.consumers import LEFT, folded_shop

PAGE = Path(__file__).parents[4] / "docs/consumers.md"


def test_stream_of_events_beside_compaction_sees_each_once(spark: SparkSession, tmp_path: Path) -> None:
    shop = folded_shop(tmp_path, 4)

    def follow() -> list[str]:
        query = spark.readStream.format("delta").load(shop.paths.events).select("incarnation", "lsn", "seq").writeStream
        query = query.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(str(tmp_path / "copy")).awaitTermination()
        return sorted(map(str, spark.read.format("delta").load(str(tmp_path / "copy")).collect()))

    def expected() -> list[str]:
        events = spark.read.format("delta").load(shop.paths.events)
        return sorted(map(str, events.select("incarnation", "lsn", "seq").collect()))

    assert follow() == expected()
    shop.move(2)
    shop.land()
    shop.reconcile()
    assert compact_events(shop.paths.events) > 1
    assert follow() == expected()


def test_change_feed_of_state_has_changed_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The statement of docs/consumers.md, applied by key, leads from the table as it was to the table as it is."""
    shop = folded_shop(tmp_path, 4)
    path = shop.paths.state("public", "left")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    rows = {row["id"]: row for row in spark.read.format("delta").load(path).collect()}
    before, version = dict(rows), DeltaTable(path).version() + 1
    for _ in range(2):
        shop.move(2)
        shop.land()
        shop.reconcile()
        shop.fold()
    (statement,) = re.findall(r"```sql\n(SELECT .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    statement = statement.replace("/data/warehouse/shop/state/public/orders", path)
    changed = spark.sql(statement.replace(", 10)", f", {version})")).orderBy("_commit_version").collect()
    rows |= {row["id"]: row for row in changed}
    assert sorted((row["id"], row["amount"], row["note"]) for row in rows.values() if not row["_deleted"]) == (
        sorted((row[0], row[1], row[2]) for row in shop.rows(LEFT.table))
    )
    assert 0 < len(changed) < len(before)
