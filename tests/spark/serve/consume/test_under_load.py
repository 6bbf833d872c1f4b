"""A consumer of a busy PostgreSQL, through dumps, schema changes, a gap and a redecode, killed on the way."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dblake.base.core.schema import Column
from dblake.base.lake.query import query_rows
from dblake.transform.redecode.run import redecode
from tests.support.backends import PostgresBackend
from tests.support.consumers import ACCOUNTS, TABLES, TOTAL, Shop, SqliteConsumer
from tests.support.effort import EFFORT
from tests.support.postgres import Database

_MOVE = """
    UPDATE public."left" SET amount = amount - {0} WHERE id % 1000 = {1};
    UPDATE public."right" SET amount = amount + {0}, note = '{3}' WHERE id = {2}
"""
_REPLACE = """
    WITH gone AS (DELETE FROM public."left" WHERE id % 1000 = {1} RETURNING id, amount)
    INSERT INTO public."left" SELECT id + 1000 * (1 - 2 * (id / 1000)), amount, 'moved' FROM gone
"""


class Writer:
    """Commits transactions until it is stopped; none changes the sum over both tables."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database, self._random, self._stop = database, random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.commits = 0

    def _run(self) -> None:
        connection = self._database.connect()
        connection.autocommit = False
        with closing(connection), connection.cursor() as cursor:
            while not self._stop.wait(0.02):
                choose = self._random.randrange
                statement = _MOVE if choose(5) else _REPLACE
                cursor.execute(statement.format(choose(1, 9), choose(ACCOUNTS), choose(ACCOUNTS), f"n{choose(99)}"))
                connection.commit()
                self.commits += 1

    @contextmanager
    def running(self) -> Iterator[Writer]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()


class _Killed(Exception):
    """The consumer died before it committed a transaction."""


@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2 * EFFORT])
def test_consumer_of_busy_database_equals_source(
    spark: SparkSession, database: Database, tmp_path: Path, rounds: int
) -> None:
    backend, choose = PostgresBackend(database), random.Random(rounds)
    shop = Shop(tmp_path, backend=backend, spark=spark)
    follower = Follower(shop, tmp_path / "consumer.db")
    shop.lake.dump(*TABLES)
    with Writer(database, rounds).running() as writer:
        advance(shop)
        for number in range(rounds):
            follower.follow(kill_after=choose.randrange(30))
            if number == 0:
                backend.add_column("public.left", Column("extra", "text"), "x")
            elif number % 3 == 1:
                shop.lake.dump(choose.choice(TABLES))
            elif number % 3 == 2:
                lose_log(backend)
                follower.is_consistent = False
            advance(shop, accept_gap=True)
            follower.follow(kill_after=choose.randrange(30))
            if number == 1:
                advance(shop)
                first = lose_events(shop)
                follower.is_consistent = False
                follower.follow()
                redecode(spark, shop.paths, first)
                shop.fold()
    advance(shop)
    follower.follow()
    assert writer.commits > 10 * rounds
    assert follower.kills >= rounds - 1
    assert {"bootstrap_finished", "schema", "redecoded"} <= follower.controls
    assert rounds < 3 or {"gap", "incarnation"} <= follower.controls
    assert [follower.rows(table) for table in TABLES] == [shop.rows(table) for table in TABLES]
    backend.close()


def advance(shop: Shop, **capture: Any) -> None:
    """Bring events and state up to what is logged."""
    shop.lake.capture(shop.source, chunk_size=9, max_rows=200, redump=False, **capture)
    shop.reconcile()
    shop.fold()


def lose_log(backend: PostgresBackend) -> None:
    """Drop the slot: what was logged since it was last read is lost."""
    backend.drop_slot()


def lose_events(shop: Shop) -> int:
    """Remove some of the newest events, as a decoder with a bug would not have written them; return their batch."""
    updates = "op = 'u' AND \"table\" = 'public.left'"
    rows = query_rows(shop.paths.events, f"SELECT max(batch) AS batch FROM t WHERE {updates}")
    batch = rows[0]["batch"]
    assert rows, "there are updates"
    removed = DeltaTable(shop.paths.events).delete(f"{updates} AND batch = {batch}")
    assert removed["num_deleted_rows"], "nothing is lost"
    return int(batch)


class Follower:
    """A consumer that keeps its checkpoint with its rows; ``is_consistent`` from the end of a bootstrap to a hole."""

    def __init__(self, shop: Shop, file: Path) -> None:
        self._shop, self._file = shop, file
        self.controls: set[str] = set()
        self.is_consistent = False
        self.kills = 0

    def follow(self, kill_after: int | None = None) -> None:
        """Apply what there is; die inside one transaction after so many, then start again."""
        while not self._apply(kill_after):
            self.kills += 1
            kill_after = None

    def _apply(self, kill_after: int | None) -> bool:
        """Apply what there is; return False if the consumer died on the way."""
        consumer = SqliteConsumer(self._file)
        try:
            with self._shop.subscribe(checkpoint=consumer.checkpoint) as subscription:
                for number, transaction in enumerate(subscription):
                    consumer.apply(transaction, self._die if number == kill_after else lambda: None)
                    self._note(consumer)
        except _Killed:
            return False
        finally:
            consumer.close()
        return True

    def _note(self, consumer: SqliteConsumer) -> None:
        kind = consumer.controls[-1] if consumer.controls else ""
        self.controls |= set(consumer.controls)
        consumer.controls.clear()
        if kind in ("gap", "redecoded", "bootstrap_started"):
            self.is_consistent = False
        elif kind == "bootstrap_finished":
            self.is_consistent = True
        assert not self.is_consistent or consumer.total() == TOTAL

    @staticmethod
    def _die() -> None:
        raise _Killed

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return a table's rows."""
        consumer = SqliteConsumer(self._file)
        found = consumer.rows(table)
        consumer.close()
        return found
