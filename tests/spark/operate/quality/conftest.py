"""A small warehouse with everything that check covers, written by the real capture, reconcile and state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.backends import MemoryBackend
from tests.support.lake import CaptureLake

ORDERS = TableSchema("public.orders", (
    Column("id", "integer", False, 1), Column("customer", "text", False), Column("price", "numeric(10,2)"),
    Column("note", "text"), Column("d`e", "text", False),
))
LINES = TableSchema("public.lines", (
    Column("order_id", "integer", False, 1), Column("place", "integer", False, 2), Column("what", "text"),
))
VISITS = TableSchema("public.visits", (Column("who", "text", False),))
_T = ORDERS.table
CANARY = "canary-4711"

Warehouse = Callable[[], Paths]


class Shop:
    """A database, its capture and its warehouse. Every ``capture`` has its own lease."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.backend, self.lake = spark, MemoryBackend(), CaptureLake(folder)
        self.paths = self.lake.paths
        self.backend.create(ORDERS, toasted=["note"])
        self.backend.create(LINES)
        self.backend.create(VISITS)
        self.source = self.backend.source("public.*")

    def order(self, number: int) -> dict[str, str | None]:
        return {"id": str(number), "customer": f"{CANARY}-{number}", "price": "9.90", "note": "long", "d`e": "x"}

    def fill(self) -> None:
        """Write rows, a dump with concurrent updates, deletes, a truncate and another dump, in many batches."""
        with self.backend.begin() as work:
            for number in range(1, 41):
                work.insert(_T, self.order(number))
                work.insert(LINES.table, {"order_id": str(number), "place": "1", "what": None})
            for name in ("ann", "bob", "bob"):
                work.insert(VISITS.table, {"who": name})
        self.lake.capture(self.source)
        self.lake.dump(_T)
        numbers = iter(range(1, 40, 2))
        self.lake.capture(self.source, chunk_size=4, steps={("every low", _T): lambda: self.touch(next(numbers))})
        for number in range(1, 9):
            with self.backend.begin() as work:
                work.delete(_T, {"id": str(number)})
                work.insert(_T, self.order(100 + number))
            self.lake.capture(self.source)
        with self.backend.begin() as work:
            work.truncate(LINES.table)
        self.lake.dump(LINES.table)
        self.lake.capture(self.source)

    def touch(self, number: int) -> None:
        """Update a row; the event lacks the unchanged TOASTed note."""
        with self.backend.begin() as work:
            work.update(_T, {"id": str(number)}, {"price": "1.50"})

    def catch_up(self) -> None:
        """Capture, reconcile and fold everything."""
        self.lake.capture(self.source)
        reconcile_once(self.spark, self.paths)
        run_state(self.spark, self.paths, parallel=2)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(spark, tmp_path_factory.mktemp("shop"))
    shop.fill()
    shop.catch_up()
    return shop


@pytest.fixture(scope="module")
def copied(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Return a function that copies the warehouse, so that a test can change it."""

    def copy() -> Paths:
        folder = tmp_path_factory.mktemp("copy")
        shutil.copytree(shop.paths.root, folder / "shop")
        return Paths(str(folder), "shop")

    return copy
