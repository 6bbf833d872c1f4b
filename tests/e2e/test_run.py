"""``run`` as users start it: cold, with nothing to do, and without a JVM where none is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dblake.base.lake.layout import Paths
from dblake.base.lake.query import query_rows
from dblake.config import load_config
from dblake.ingest.source.postgres.init import run_init
from pipelines.sources import postgres_settings
from tests.support.postgres import Database
from tests.support.wheel import NO_JVM

HOME = Path(__file__).parents[2]
TABLES = [f"t{number}" for number in range(10)]


class Shop:
    """Ten tables in a database, and the jobs on it as processes."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.conf, self.paths = database, folder / "shop.yaml", Paths(str(folder / "warehouse"), "shop")
        self.environment = os.environ | {"PYTHONPATH": f"{HOME / 'lib'}:{HOME}", "SHOP_PASSWORD": "secret"}
        database.run(*(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)" for table in TABLES))
        self.conf.write_text(json.dumps({
            "warehouse": "./warehouse", "progress": "file:./progress",
            "source": {
                "name": "shop", "type": "postgres", "host": "127.0.0.1", "port": database.server.port,
                "database": database.name, "user": f"run_{database.name}", "password": "${env:SHOP_PASSWORD}",
                "tls": "disable", "tables": ["public.*"], "slot": f"run_{database.name}",
            },
            "state": {"interval_seconds": 0.5},
            "run": {"check_seconds": None, "maintain_seconds": None},
            # The end of a dump needs Spark.
            "capture": {"new_tables": "ignore"},
        }), encoding="utf-8")
        os.environ["SHOP_PASSWORD"] = "secret"
        run_init(postgres_settings(load_config(self.conf)), database.server.user, database.server.password)

    def write(self, first: int, last: int) -> None:
        """Insert rows into every table and capture them."""
        rows = f"SELECT n, 'value ' || n FROM generate_series({first}, {last}) n"
        self.database.run(*(f"INSERT INTO {table} {rows}" for table in TABLES))
        self.run("capture", "--until-caught-up")

    def run(self, job: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a job, require success, and return what it printed to stdout."""
        done = subprocess.run(
            [sys.executable, str(HOME / f"jobs/{job}.py"), "--conf", str(self.conf), *arguments], capture_output=True,
            text=True, timeout=240, check=False, env={**self.environment, **(environment or {})},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def count(self, table: str) -> int:
        """Return the number of rows of a table in state."""
        rows = query_rows(self.paths.state("public", table), "SELECT count(*) AS n FROM t WHERE NOT _deleted")
        return int(rows[0]["n"]) if rows else 0


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Shop:
    return Shop(database, tmp_path)


def test_run_without_jvm_folds_small_batches(shop: Shop) -> None:
    shop.write(1, 100)
    printed = json.loads(shop.run("run", "--json", environment=NO_JVM))
    assert printed["steps"] == ["reconcile", "state"]
    assert [table["events"] for table in printed["tables"]] == [100] * 10
    assert [shop.count(table) for table in TABLES] == [100] * 10
    again = shop.run("run", environment=NO_JVM)
    assert again == f"nothing to do: events and state have reached batch {printed['batch']}\n"
    shop.database.run("DELETE FROM t3 WHERE id <= 40")
    shop.write(101, 105)
    assert "public.t3: 45 events" in shop.run("run", environment=NO_JVM)
    assert [shop.count(table) for table in TABLES] == [105, 105, 105, 65, *[105] * 6]
