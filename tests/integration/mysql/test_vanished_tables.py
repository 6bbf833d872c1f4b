"""A table that is created and dropped, renamed or truncated without a row, before capture has recorded its schema."""

from __future__ import annotations

from pathlib import Path

from dblake.base.core.schema import Column, TableSchema
from dblake.serve.consume.api import open_subscription
from dblake.transform.spark.session import session_of
from dblake.transform.state.pending import folded_batch
from dblake.transform.state.run import run_state
from tests.support.copied import CopiedLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import mysql_backend

T = "app.t"


def test_table_that_comes_and_goes_stops_no_job(mysql_server: MysqlServer, tmp_path: Path) -> None:
    """Every migration tool does this: its copy of a table has no row in the end."""
    with mysql_backend(mysql_server) as backend:
        lake = CopiedLake(tmp_path)
        backend.create(TableSchema(T, (Column("id", "int", False, 1),)))
        source = backend.source("app.*")
        backend.server.run(
            "CREATE TABLE app.g (id int PRIMARY KEY)", "DROP TABLE app.g",
            "CREATE TABLE app.h (id int PRIMARY KEY)", "RENAME TABLE app.h TO app.i", "DROP TABLE app.i",
            "CREATE TABLE app.j (id int PRIMARY KEY)", "TRUNCATE TABLE app.j", "DROP TABLE app.j",
        )
        with backend.begin() as transaction:
            transaction.insert(T, {"id": "1"})
        lake.capture(source)
        lake.reconcile()
        results = run_state(session_of("test"), lake.paths)
        assert [(result.table, result.events, result.error) for result in results] == [(T, 1, None)]
        assert folded_batch(lake.paths) is not None
        with open_subscription([lake.paths], start="1/0", until_caught_up=True) as subscription:
            assert [event.table for transaction in subscription for event in transaction.events] == [T]
