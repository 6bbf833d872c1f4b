"""Debezium's embedded engine as a peer of subscriptions: its rate over the changes behind a replication slot."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.capture_job import PASSWORD
from benchmarks.database import Bench
from tests.support.debezium import VERSION, DebeziumProgram

__all__ = ["VERSION", "measure"]
_SOURCE = Path(__file__).with_name("Debezium.scala")


def measure(bench: Bench, slot: str, events: int) -> float:
    """Return the events per second of the engine from its first batch to the last of ``events`` changes."""
    with DebeziumProgram.compiled(_SOURCE) as program, bench.copied_slot(slot) as copy:
        found = json.loads(program.run(_settings(bench, copy), str(events))[-1])
    return float(found["events"] / found["seconds"])


def _settings(bench: Bench, slot: str) -> dict[str, str]:
    settings = bench.settings
    return {
        "name": "bench", "topic.prefix": "bench", "database.hostname": settings.host,
        "database.port": str(settings.port), "database.user": settings.user, "database.password": PASSWORD,
        "database.dbname": settings.database, "publication.name": settings.publication, "slot.name": slot,
        "table.include.list": r"public\\.item_.*", "max.batch.size": "8192", "max.queue.size": "32768",
    }
