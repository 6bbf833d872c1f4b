"""The activity log example: every transaction of the source is in the log once, with its actor and its rows."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.activity_log import read_activity, read_history
from tests.support.effort import EFFORT
from tests.support.example_shop import ExampleShop, run_documented_code
from tests.support.killed_subscriber import KilledSubscriber
from tests.support.postgres import Database

_TABLES = (
    "CREATE TABLE acts (id bigserial PRIMARY KEY, actor text, reason text)",
    "CREATE TABLE orders (id int PRIMARY KEY, item text, qty int)",
    "CREATE TABLE stock (id int PRIMARY KEY, item text, qty int)",
    # With old rows in the log, the activity log has the values that changed, before and after.
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "INSERT INTO stock SELECT n, 'item ' || n, 100 FROM generate_series(1, 9) n",
)


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[ExampleShop]:
    shop = ExampleShop(database, tmp_path, *_TABLES)
    # Rows of a dump are not activity.
    shop.dump("public.stock")
    yield shop
    shop.close()


def act(actor: str, reason: str) -> str:
    return f"INSERT INTO acts (actor, reason) VALUES ('{actor}', '{reason}')"


def deliver(shop: ExampleShop, path: Path) -> None:
    shop.advance()
    output, documented = shop.output("activity", path=str(path))
    shop.deliver(output, documented)


def query(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as log:
        return log.execute(statement).fetchall()


def test_log_names_actor_and_rows_changed_together(
    shop: ExampleShop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "activity.db"
    shop.run(act("ann", "order 7"), "INSERT INTO orders VALUES (7, 'item 1', 3)",
             "UPDATE stock SET qty = qty - 3 WHERE id = 1")
    deliver(shop, log)
    shop.run("UPDATE orders SET qty = 4 WHERE id = 7")
    shop.run("DELETE FROM orders WHERE id = 7", act("bob", "ticket 815"))
    deliver(shop, log)
    deliver(shop, log)
    history = read_history(log, "public.orders", {"id": 7})
    assert [(one["actor"], one["reason"], one["op"], one["before"], one["after"]) for one in history] == [
        ("ann", "order 7", "c", None, {"id": 7, "item": "item 1", "qty": 3}),
        (None, None, "u", {"qty": 3}, {"qty": 4}),
        ("bob", "ticket 815", "d", {"id": 7, "item": "item 1", "qty": 4}, None),
    ]
    together = read_activity(log, history[0]["number"])
    assert [(one["table"], one["op"], one["key"]) for one in together] == [
        ("public.orders", "c", {"id": 7}), ("public.stock", "u", {"id": 1}),
    ]
    times = [one["committed_at"] for one in history]
    assert times == sorted(times) and len(set(times)) == 3
    assert len({txid for (txid,) in query(log, "SELECT txid FROM activity")}) == 3
    assert query(log, "SELECT * FROM hole") == []
    run_documented_code("read_history", "/var/lib/shop/activity.db", log)
    assert "bob ticket 815 d None" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_log_has_each_transaction_once_after_kills(shop: ExampleShop, tmp_path: Path) -> None:
    """The job itself, killed by SIGKILL; the log then equals what the application did, in order."""
    chosen, log, done = random.Random(11), tmp_path / "activity.db", list[tuple[str, str, int]]()
    _, documented = shop.output("activity", path=str(log))
    subscriber = KilledSubscriber(tmp_path, "activity", documented, 11)
    for _ in range(10 * EFFORT):
        for _ in range(12):
            number, actor = len(done), chosen.choice("abc")
            items = chosen.randrange(1, 5)
            shop.run(act(actor, f"number {number}"), *(
                f"INSERT INTO orders VALUES ({number * 10 + item}, 'x', 1)" for item in range(items)
            ), f"UPDATE stock SET qty = qty - {items} WHERE id = {chosen.randrange(1, 10)}")
            done.append((actor, f"number {number}", items + 1))
        shop.advance()
        subscriber.run_and_kill(1.5)
    subscriber.run()
    assert subscriber.kills > 5
    found = query(log, "SELECT actor, reason, count(*) FROM activity JOIN change ON activity = number "
                       "GROUP BY number ORDER BY number")
    assert found == done
