"""A compacted topic of whole rows is a table: rebuilt from what a real broker's compaction leaves, it is the source."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dblake.config import load_config
from pipelines.subscribe import run_subscribe
from tests.support.kafka import KafkaServer
from tests.support.partial_history import PartialHistory, T

# Compaction leaves the newest segment alone, so segments are short.
_COMPACTION = {
    "log.cleaner.enable": "true", "log.cleanup.policy": "compact", "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.001", "log.cleaner.delete.retention.ms": "100", "log.roll.ms": "200",
    "num.partitions": "2",
}


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["native", "debezium"])
def test_compacted_topic_equals_source(tmp_path: Path, format_name: str) -> None:
    history, conf, topic = PartialHistory(tmp_path / "warehouse", 11), tmp_path / "shop.yaml", f"shop.{T.table}"
    with KafkaServer(tmp_path / "broker", **_COMPACTION) as server:
        conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "source": {"name": "shop", "type": "postgres", "host": "127.0.0.1", "port": 1, "database": "d", "user": "u",
                       "password": "${env:NONE}", "tables": ["public.*"]},
            "outputs": {"bus": {"type": "kafka", "brokers": server.brokers, "tls": "disable", "rows": "whole",
                                "format": format_name}},
        }))

        def deliver() -> None:
            run_subscribe(load_config(conf), "bus", threading.Event(), until_caught_up=True)

        history.land(4)
        history.lake.fold(history.batch)
        for _ in range(4):
            history.land(20)
            deliver()
            time.sleep(0.5)
        produced = len(server.read(topic))
        deadline = time.monotonic() + 60
        while len(records := server.read(topic)) > produced - 20:
            assert time.monotonic() < deadline, "the broker does not compact"
            # A further record ends a segment.
            history.land(1)
            deliver()
            time.sleep(0.5)
    rebuilt: dict[Any, tuple[Any, Any]] = {}
    for record in records:
        value = record.value()
        if record.key() is None:
            # A truncate goes to every partition, in order with its keys.
            for key in [key for key, (number, _) in rebuilt.items() if number == record.partition()]:
                del rebuilt[key]
        elif value is None:
            rebuilt.pop(record.key(), None)
        else:
            document = json.loads(value)
            rebuilt[record.key()] = record.partition(), document["after"]
    assert len(records) < produced
    rows: dict[str, dict[str, Any]] = {row["id"]: row for _, row in rebuilt.values() if row is not None}
    assert rows == {key: {**row, "a": None if row["a"] is None else int(row["a"])} for key, row in history.rows.items()}
