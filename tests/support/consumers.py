"""A small shop in a memory database, its lake without a JVM, and consumers that apply its changes.

Every transaction moves an amount between accounts of two tables, so the sum over both never changes: a consumer that
applies whole transactions in order sees that sum at every checkpoint. The real capture, reconcile and state write the
lake; all portions are small, so no Spark job is needed.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import SparkSession

from dblake.base.lake.layout import Paths
from dblake.serve.consume.filters import Selection
from dblake.serve.consume.model import ControlKind, Transaction
from dblake.serve.consume.subscription import Subscription, SubscriptionSettings
from dblake.transform.reconcile.reconciler import Reconciler
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.backends import MemoryBackend, PostgresBackend, Row
from tests.support.lake import CaptureLake
from tests.support.schemas import table_schema

LEFT = table_schema("public.left", "id integer key", "amount integer", "note text")
RIGHT = table_schema("public.right", "id integer key", "amount integer", "note text")
TABLES = (LEFT.table, RIGHT.table)
ACCOUNTS, INITIAL = 20, 100
TOTAL = 2 * ACCOUNTS * INITIAL


LOCAL_SESSION = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]")))
"""State asks a session only where its tasks run: here, in threads."""


class Shop:
    """The database, its lake and the transactions so far; ``paths`` are the lake's tables."""

    def __init__(
        self, folder: Path, seed: int = 0, name: str = "shop", backend: MemoryBackend | PostgresBackend | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """``backend`` replaces the memory database; ``spark`` is the session for what needs one."""
        self.backend, self.random = backend or MemoryBackend(), random.Random(seed)
        self.lake, self.spark = CaptureLake(folder, name), spark
        self.paths: Paths = self.lake.paths
        for schema in (LEFT, RIGHT):
            self.backend.create(schema)
        with self.backend.begin() as transaction:
            for table in TABLES:
                for number in range(ACCOUNTS):
                    transaction.insert(table, {"id": str(number), "amount": str(INITIAL), "note": "first"})
        self.source = self.backend.source("public.*")

    def move(self, times: int = 1) -> None:
        """Commit transactions that each move an amount between the tables; some rewrite a row or change its key."""
        for _ in range(times):
            amount = self.random.randrange(1, 9)
            with self.backend.begin() as transaction:
                for table, change in zip(TABLES, (-amount, amount), strict=True):
                    row = self.random.choice(self.backend.rows(table))
                    self._change(transaction, table, row, int(row["amount"] or 0) + change)

    def _change(self, transaction: Any, table: str, row: Row, amount: int) -> None:
        where = {"id": row["id"]}
        note = self.random.choice(["a", None, "käse", 'quo"te'])
        kind = self.random.random()
        if kind < 0.1:
            transaction.delete(table, where)
            transaction.insert(table, {"id": row["id"], "amount": str(amount), "note": note})
        elif kind < 0.2:
            known = {int(other["id"] or 0) for other in self.backend.rows(table)}
            free = next(number for number in range(1000) if number not in known)
            transaction.update(table, where, {"id": str(free), "amount": str(amount)})
        else:
            transaction.update(table, where, {"amount": str(amount), "note": note})

    def land(self, *dumped: str, **capture: Any) -> None:
        """Capture everything logged so far; dump all rows of tables on the way, by their keys.

        The end of a dump of a whole table searches phantoms with Spark.
        """
        for table in dumped:
            self.lake.dump(table, keys=[(str(row["id"]),) for row in self.backend.rows(table)])
        self.lake.capture(self.source, chunk_size=7, **capture)

    def reconcile(self, upto: int | None = None) -> None:
        """Bring events up to landing, or up to one of its batches."""
        if upto is None:
            reconcile_once(self._session, self.paths)
            return
        reconciler = Reconciler(self._session, self.paths)
        reconciler.catch_up()
        reconciler.reconcile(upto)

    def fold(self) -> None:
        """Bring state up to events."""
        run_state(self.spark or LOCAL_SESSION, self.paths, parallel=2)

    def _session(self) -> SparkSession:
        assert self.spark is not None, "the amounts here need no Spark session"
        return self.spark

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return a table's rows in the database, sorted."""
        rows = ((int(r["id"] or 0), int(r["amount"] or 0), r["note"]) for r in self.backend.rows(table))
        return sorted(rows, key=str)

    def subscribe(self, *, selection: Selection | None = None, **settings: Any) -> Subscription:
        """Return a subscription that ends when caught up; the caller holds its checkpoint."""
        settings = {"until_caught_up": True, **settings}
        return Subscription([self.paths], SubscriptionSettings(selection=selection or Selection(), **settings))


class SqliteConsumer:
    """Applies transactions to SQLite, each together with its checkpoint: exactly-once effects."""

    def __init__(self, file: Path) -> None:
        self.connection = sqlite3.connect(file, isolation_level=None)
        self.controls: list[str] = []
        for table in ("left", "right"):
            self.connection.execute(
                f'CREATE TABLE IF NOT EXISTS "{table}" (id integer PRIMARY KEY, amount integer, note text)'
            )
        self.connection.execute("CREATE TABLE IF NOT EXISTS checkpoint (text text)")

    @property
    def checkpoint(self) -> str | None:
        row = self.connection.execute("SELECT text FROM checkpoint").fetchone()
        return row[0] if row else None

    def apply(self, transaction: Transaction, before_commit: Callable[[], None] = lambda: None) -> None:
        """Apply a transaction and its checkpoint in one SQLite transaction."""
        self.connection.execute("BEGIN")
        if transaction.control is not None:
            self.controls.append(transaction.control.kind)
            if transaction.control.kind is ControlKind.BOOTSTRAP_STARTED:
                for table in ("left", "right"):
                    self.connection.execute(f'DELETE FROM "{table}"')
        for event in transaction.events:
            name = event.table.partition(".")[2]
            if event.op == "t":
                self.connection.execute(f'DELETE FROM "{name}"')
                continue
            assert event.key is not None
            if event.op == "d":
                self.connection.execute(f'DELETE FROM "{name}" WHERE id = ?', (event.key["id"],))
                continue
            values = event.values() or {}
            columns = {column: values[column] for column in ("id", "amount", "note") if column in values}
            columns["id"] = int(event.key["id"] or 0)
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            changed = ", ".join(f"{column} = excluded.{column}" for column in columns)
            self.connection.execute(
                f'INSERT INTO "{name}" ({names}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {changed}',
                [*columns.values()],
            )
        self.connection.execute("DELETE FROM checkpoint")
        self.connection.execute("INSERT INTO checkpoint VALUES (?)", (transaction.checkpoint,))
        before_commit()
        self.connection.execute("COMMIT")

    def total(self) -> int:
        """Return the sum over both tables."""
        sums = (self.connection.execute(f'SELECT total(amount) FROM "{t}"').fetchone()[0] for t in ("left", "right"))
        return int(sum(sums))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return a table's rows, sorted as ``Shop.rows`` are."""
        name = table.partition(".")[2]
        return sorted(self.connection.execute(f'SELECT id, amount, note FROM "{name}"').fetchall(), key=str)

    def close(self) -> None:
        self.connection.close()


def describe(transactions: list[Transaction]) -> list[str]:
    """Return transactions in a short form: controls by kind, others as ``table op key`` of their events."""
    found = []
    for transaction in transactions:
        if transaction.control is not None:
            control = transaction.control
            found.append(f"{control.kind} {control.table}" if control.table else str(control.kind))
        else:
            found.append("; ".join(f"{e.table} {e.op} {json.dumps(dict(e.key or {}))}" for e in transaction.events))
    return found


def folded_shop(folder: Path, transactions: int, later: int = 0) -> Shop:
    """Return a shop whose state holds dumps of its tables and so many transactions; ``later`` more are in events."""
    shop = Shop(folder)
    shop.move(transactions)
    shop.land(*TABLES)
    shop.reconcile()
    shop.fold()
    if later:
        shop.move(later)
        shop.land()
        shop.reconcile()
    return shop
