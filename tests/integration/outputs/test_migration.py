"""The migration example, and the SQL output at the end of the real path: MariaDB → lake → PostgreSQL, without a JVM."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.serve.consume.filters import Selection
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.serve.outputs.delivery import Delivery, DeliverySettings
from dblake.serve.outputs.protocol import OutputContext
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from examples.migration import READS, MigratedShop, compare_reads
from tests.support.consumers import LOCAL_SESSION
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend
from tests.support.sql_places import Place

_TABLES = (
    "CREATE TABLE shop.customers (id int PRIMARY KEY, first_name varchar(40), last_name varchar(40))",
    "CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer int, cents int, ordered_at datetime(3))",
)


def _change(server: MysqlServer, chosen: random.Random, times: int) -> None:
    """Commit inserts, updates, key changes and deletes."""
    for _ in range(times):
        customer, order = chosen.randrange(20), chosen.randrange(60)
        server.run(chosen.choice((
            f"REPLACE INTO shop.customers VALUES ({customer}, 'F{chosen.randrange(99)}', 'Łast')",
            f"REPLACE INTO shop.orders VALUES ({order}, {customer}, {chosen.randrange(9999)}, '2026-01-02 03:04:05.6')",
            f"UPDATE shop.orders SET cents = cents + 1 WHERE customer = {customer}",
            f"UPDATE IGNORE shop.orders SET id = id + 1000 WHERE id = {order}",
            f"DELETE FROM shop.orders WHERE id = {order}",
        )))


@pytest.mark.slow
def test_migrated_shop_answers_reads_as_its_source(
    mariadb: MysqlServer, on_postgres: Place, tmp_path: Path, spark: SparkSession
) -> None:
    """Bootstrap, live changes and a new column; the application's reads agree before the switch, and not before."""
    mariadb.empty()
    mariadb.run("CREATE DATABASE shop", *_TABLES)
    chosen = random.Random(2)
    _change(mariadb, chosen, 40)
    backend, lake = MysqlBackend(mariadb), CaptureLake(tmp_path, "shop")
    source = backend.source("shop.*")
    for name in ("customers", "orders"):
        lake.dump(f"shop.{name}", keys=[(str(key),) for (key,) in mariadb.rows(f"SELECT id FROM shop.{name}")])

    def advance() -> None:
        lake.capture(source)
        reconcile_once(lambda: spark, lake.paths)
        run_state(LOCAL_SESSION, lake.paths, parallel=2)
        context = OutputContext("migration", ["shop"], None, {"settings.password": on_postgres.password})  # type: ignore[arg-type]
        output = MigratedShop(context, url=on_postgres.url, tls="disable")

        def subscribe(held: str | None) -> Subscription:
            settings = SubscriptionSettings(selection=Selection(["shop.*"]), checkpoint=held, until_caught_up=True)
            return Subscription([lake.paths], settings)

        Delivery(output, subscribe, lake.paths, DeliverySettings("migration", 7), threading.Event()).run()

    advance()
    assert compare_reads(mariadb.rows, on_postgres.rows) == []
    for _ in range(2):
        _change(mariadb, chosen, 30)
        advance()
        assert compare_reads(mariadb.rows, on_postgres.rows) == []
    mariadb.run("ALTER TABLE shop.orders ADD COLUMN note text", "UPDATE shop.orders SET note = 'x' WHERE id % 2 = 0",
                "INSERT INTO shop.orders VALUES (5000, 1, 250, '2027-01-01', 'y')")
    assert "newest orders" in compare_reads(mariadb.rows, on_postgres.rows)
    advance()
    assert compare_reads(mariadb.rows, on_postgres.rows) == []
    assert on_postgres.rows("SELECT amount, note FROM orders WHERE id = 5000") == [
        *mariadb.rows("SELECT cents / 100, note FROM shop.orders WHERE id = 5000")
    ]
    assert len(READS) == 3 and len(on_postgres.rows("SELECT * FROM people")) > 10
    mariadb.empty()
