"""docs/migrating-from-debezium.md: consumers of topics change from Debezium's engine to dblake, and lose nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs.formats.debezium import DebeziumFormat
from tests.support.debezium import DebeziumProgram
from tests.support.example_shop import ExampleShop
from tests.support.postgres import Database

_PROGRAM = Path(__file__).with_name("DebeziumRecords.scala")
_TOPICS = ("shop.public.orders", "shop.public.lines")
#: The page goes back a minute, which a test does not have.
_OVERLAP_MS = 1000

Record = tuple[str, str, dict[str, Any] | None]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cut_over_from_debezium_loses_no_change(database: Database, tmp_path: Path) -> None:
    """Changes come long before the connector stops, just before it stops, and while no tool delivers."""
    tables = [f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("orders", "lines", "ends")]
    shop = ExampleShop(database, tmp_path, *tables)
    # Debezium has a publication and a slot of its own.
    database.run("CREATE PUBLICATION connector FOR TABLE orders, lines, ends")
    database.rows("SELECT pg_create_logical_replication_slot('connector', 'pgoutput')")
    shop.run("INSERT INTO orders VALUES (1, 'early'), (2, 'early')", "INSERT INTO lines VALUES (1, 'early')")
    shop.advance()
    time.sleep(2 * _OVERLAP_MS / 1000)
    shop.run("UPDATE orders SET v = 'late' WHERE id = 1", "UPDATE lines SET v = 'late'")
    shop.run("INSERT INTO orders VALUES (3, 'late')", "INSERT INTO lines VALUES (2, 'late')")
    # The program ends at a truncate, as if the connector were stopped.
    shop.run("TRUNCATE ends")
    theirs = _engine_records(shop)
    shop.run("DELETE FROM orders WHERE id = 2", "UPDATE orders SET v = 'after' WHERE id = 3")
    shop.run("INSERT INTO lines VALUES (3, 'after')")
    shop.advance()
    last = {topic: value["source"]["ts_ms"] for topic, _, value in theirs if value}
    point = datetime.fromtimestamp((min(last.values()) - _OVERLAP_MS) / 1000, UTC).isoformat()
    ours = _lake_records(shop, point)
    source = {
        (f"shop.public.{table}", id): v for table in ("orders", "lines")
        for id, v in shop.rows(f"SELECT id, v FROM {table}")
    }
    shop.close()
    assert _apply([*theirs, *ours]) == source
    before, repeated = _changes(theirs), _changes(ours)
    assert [change[2:] for change in before] == [
        ("c", "early"), ("c", "early"), ("c", "early"), ("u", "late"), ("u", "late"), ("c", "late"), ("c", "late"),
    ]
    # What came long before is not repeated, the overlap is, and nothing is left out.
    assert repeated == [*before[3:], (_TOPICS[0], 2, "d", None), (_TOPICS[0], 3, "u", "after"),
                        (_TOPICS[1], 3, "c", "after")]


def _engine_records(shop: ExampleShop) -> list[Record]:
    server, settings = shop.database.server, shop.backend.settings
    assert settings is not None
    with DebeziumProgram.compiled(_PROGRAM) as program:
        lines = program.run({
            "name": "shop", "topic.prefix": "shop", "database.hostname": settings.host,
            "database.port": str(server.port), "database.user": server.user, "database.password": server.password,
            "database.dbname": shop.database.name, "publication.name": "connector", "slot.name": "connector",
            "table.include.list": "public.orders,public.lines,public.ends", "skipped.operations": "none",
        })
    records = [json.loads(line) for line in lines]
    return [(r["topic"], json.dumps(r["plain"]["key"]), r["plain"]["value"])
            for r in records if r["topic"] in _TOPICS]


def _lake_records(shop: ExampleShop, point: str) -> list[Record]:
    form = DebeziumFormat(schemas=False, database=shop.database.name)
    with Subscription([shop.lake.paths], SubscriptionSettings(start=point, until_caught_up=True)) as subscription:
        events = [event for transaction in subscription for event in transaction.events]
    return [(f"{e.source}.{e.table}", (form.encode_key(e) or b"").decode(), json.loads(form.encode(e)))
            for e in events if f"{e.source}.{e.table}" in _TOPICS]


def _apply(records: Iterable[Record]) -> dict[tuple[str, int], str]:
    """Return the rows of a consumer that writes by key."""
    rows: dict[tuple[str, int], str] = {}
    for topic, key, value in records:
        id = json.loads(key)["id"]
        if value is None or value["after"] is None:
            rows.pop((topic, id), None)
        else:
            rows[topic, id] = value["after"]["v"]
    return rows


def _changes(records: Iterable[Record]) -> list[tuple[str, int, str, str | None]]:
    return [(topic, json.loads(key)["id"], value["op"], value["after"] and value["after"]["v"])
            for topic, key, value in records if value]
