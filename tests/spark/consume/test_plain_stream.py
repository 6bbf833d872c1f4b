"""Structured Streaming over the events table itself, the way of readers that are no subscription."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from dblake.maintenance.event_compaction import compact_events
from tests.support.consumers import folded_shop


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
