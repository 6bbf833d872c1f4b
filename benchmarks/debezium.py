"""Debezium's embedded engine as a peer of subscriptions: its rate over the changes behind a replication slot."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.capture_job import PASSWORD
from benchmarks.database import Bench
from dblake.base.core.processes import stop_process
from tests.support.debezium import VERSION, DebeziumProgram

__all__ = ["VERSION", "following", "measure"]
_WARM_SECONDS = 3.0
_SOURCE = Path(__file__).with_name("Debezium.scala")


def measure(bench: Bench, slot: str, events: int) -> float:
    """Return the events per second of the engine from its first batch to the last of ``events`` changes."""
    with DebeziumProgram.compiled(_SOURCE) as program, bench.copied_slot(slot) as copy:
        found = json.loads(program.run(_settings(bench, copy), str(events))[-1])
    return float(found["events"] / found["seconds"])


@contextmanager
def following(bench: Bench, slot: str) -> Iterator[list[float]]:
    """Follow what is written within the block; after it the list has the seconds of each change since its commit."""
    lags = list[float]()
    with DebeziumProgram.compiled(_SOURCE) as program, bench.copied_slot(slot) as copy:
        bench.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (copy,))
        process = program.start(_settings(bench, copy), "0")
        try:
            while bench.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (copy,)) != [(True,)]:
                if process.poll() is not None:
                    raise RuntimeError("Debezium's engine ended")
                time.sleep(0.2)
            time.sleep(_WARM_SECONDS)
            yield lags
            lags += [lag / 1000 for lag in json.loads(process.communicate()[0].splitlines()[-1])["lags"]]
        finally:
            stop_process(process, 30)


def _settings(bench: Bench, slot: str) -> dict[str, str]:
    settings = bench.settings
    return {
        "name": "bench", "topic.prefix": "bench", "database.hostname": settings.host,
        "database.port": str(settings.port), "database.user": settings.user, "database.password": PASSWORD,
        "database.dbname": settings.database, "publication.name": settings.publication, "slot.name": slot,
        "table.include.list": r"public\\.item_.*", "max.batch.size": "8192", "max.queue.size": "32768",
    }
