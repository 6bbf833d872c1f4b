"""Canary values and passwords: provoke errors of every kind and search all output and files for them.

Rows hold two canaries. One is in an unmasked column: it may be in the warehouse's rows but in no message, progress
document or commit. The other is in masked columns and may be in no file. Passwords may be nowhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dblake.base.lake.layout import Paths
from dblake.ingest.source.mysql.init import run_init as mysql_init
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init as postgres_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from dblake.landing.columns import LANDING
from dblake.landing.table import Landing
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.leaks import find_leaks
from tests.support.mysql import MysqlServer, emptied
from tests.support.postgres import fresh_database
from tests.support.proxy import Proxy

HOME = Path(__file__).parents[2]
ROW, MASKED = "canary-in-a-row", "canary-to-be-masked"
PASSWORD, WRONG, MASK_KEY = "canary-password-right", "canary-password-wrong", "canary-password-of-masks"
TABLE = "shop.people"
ROWS = 3000


class Bench:
    """A prepared source behind a proxy, its configuration, and all output of jobs.

    ``sql`` runs statements as administrator.
    """

    def __init__(
        self, folder: Path, source: dict[str, object], proxy: Proxy, sql: Callable[..., None]
    ) -> None:
        self.folder, self.proxy, self.sql = folder, proxy, sql
        self.lake = folder / "lake"
        self.outputs: list[str] = []
        self._source, self.kind = source, source["type"]
        self.write()

    def write(self, progress: str = "file:./lake/progress", **source: object) -> None:
        """Write the configuration, with some of the source's keys changed."""
        (self.folder / "shop.yaml").write_text(json.dumps({
            "warehouse": "./lake/warehouse", "progress": progress,
            "source": {
                "name": "shop", "host": "127.0.0.1", "port": self.proxy.port, "user": "cap_canary", "tls": "disable",
                "password": "${env:SHOP_PASSWORD}", "tables": ["shop.*"], **self._source, **source,
            },
            "mask": {"key": "${env:MASK_KEY}", "tables": {TABLE: {
                "email": "hash", "phone": "drop", "name": {"truncate": 3},
            }}},
            "dump": {"chunk_size": 500},
        }), encoding="utf-8")

    def run(self, job: str, *arguments: str, code: int = 0, password: str = PASSWORD, **environment: str) -> str:
        """Run a job, require its exit code, and return its output."""
        done = subprocess.run(
            [sys.executable, str(HOME / f"jobs/{job}.py"), *arguments], capture_output=True, text=True, timeout=280,
            check=False, env=os.environ | {
                "PYTHONPATH": f"{HOME}:{HOME / 'lib'}", "SHOP_PASSWORD": password, "MASK_KEY": MASK_KEY,
                "DBLAKE_CONF": str(self.folder / "shop.yaml"), **environment,
            },
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        self.outputs.append(output)
        return output

    def require_no_leak(self) -> None:
        """Require that no output or progress document holds a canary, and no file a masked value or password."""
        secrets = (MASKED, PASSWORD, WRONG, MASK_KEY)
        (self.folder / "output").mkdir(exist_ok=True)
        (self.folder / "output" / "all").write_text("\n".join(self.outputs), encoding="utf-8")
        assert find_leaks(self.folder / "output", ROW, *secrets) == []
        assert find_leaks(self.lake, *secrets) == []
        assert find_leaks(self.lake / "progress", ROW) == []


def people(numbers: str) -> list[str]:
    """Return the statements that create the table, with a canary in every row."""
    name, row = f"concat('{MASKED[:3]}', '{MASKED}', n)", f"concat('{ROW}-', n)"
    return [
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, note varchar(200), email varchar(200), phone varchar(200),"
        " name varchar(200))",
        f"INSERT INTO {TABLE} SELECT n, {row}, concat('{MASKED}@', n), '{MASKED}', {name} FROM {numbers}",
    ]


@contextmanager
def on_postgres(server: EmbeddedPostgres, folder: Path) -> Iterator[Bench]:
    with fresh_database(server) as database, Proxy(server.port) as proxy:
        database.run("CREATE SCHEMA shop", *people(f"generate_series(1, {ROWS}) n"))
        settings = PostgresSettings("shop", "127.0.0.1", server.port, database.name, "cap_canary", PASSWORD,
                                    ("shop.*",), tls="disable", slot=f"canary_{database.name}", publication="p")
        postgres_init(settings, server.user, server.password)
        yield Bench(folder, {"type": "postgres", "database": database.name, "slot": settings.slot, "publication": "p"},
                    proxy, database.run)
        database.run("DROP OWNED BY cap_canary", "DROP ROLE cap_canary")


@contextmanager
def on_mariadb(server: MysqlServer, folder: Path) -> Iterator[Bench]:
    with emptied(server), Proxy(server.port) as proxy:
        server.run("CREATE DATABASE shop", "USE shop", *people(f"(SELECT seq AS n FROM seq_1_to_{ROWS}) numbers"))
        settings = MysqlSettings("shop", "mariadb", "127.0.0.1", server.port, "cap_canary", PASSWORD, ("shop.*",),
                                 tls="disable")
        mysql_init(settings, server.user, server.password)
        yield Bench(folder, {"type": "mariadb"}, proxy, server.run)


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    prepare: dict[str, Callable[[Any, Path], AbstractContextManager[Bench]]]
    prepare = {"postgres": on_postgres, "mariadb": on_mariadb}
    with prepare[request.param](request.getfixturevalue(request.param), tmp_path) as bench:
        yield bench


@pytest.fixture
def postgres_bench(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Bench]:
    with on_postgres(postgres, tmp_path) as bench:
        yield bench


def test_capture_side_leaks_no_canary(bench: Bench) -> None:
    bench.run("preflight")
    bench.run("capture", "--until-caught-up", "--verbose")

    # Faults before the start.
    assert "wrong password" in bench.run("capture", "--verbose", code=78, password=WRONG)
    bench.write(password=PASSWORD)
    assert "source.password" in bench.run("capture", code=78)
    bench.write(progress=f"zookeeper://127.0.0.1:1/x?session_timeout=1&user=u&password={WRONG}&tls=disable")
    bench.run("dump", "status", code=78)
    bench.write(progress="zookeeper://127.0.0.1:1/x?session_timeout=1&user=u&password=${env:SHOP_PASSWORD}&tls=disable")
    bench.run("dump", "status", code=75)
    bench.write()

    # The connection is cut inside a chunk; then the process is killed.
    bench.run("dump", "start", "--table", TABLE)
    bench.proxy.cut_after(150_000, 60_000)
    bench.run("capture", "--until-caught-up")
    assert bench.proxy.pending_cuts == 0
    bench.run("dump", "start", "--table", TABLE)
    bench.run("capture", "--until-caught-up", code=-9, DBLAKE_FAILPOINT="dump.chunk_read:2")
    bench.run("capture", "--until-caught-up")

    # Invalid keys, changes of every kind, a schema change.
    bench.run("dump", "start", "--table", TABLE, "--keys", f'["{ROW}"]', code=64)
    bench.run("status", "--prometheus", str(bench.lake / "progress/figures.prom"))
    bench.sql(
        f"UPDATE {TABLE} SET email = '{MASKED}-2', note = '{ROW}-2' WHERE id = 1",
        f"UPDATE {TABLE} SET id = 10000 WHERE id = 2", f"DELETE FROM {TABLE} WHERE id = 3",
        f"ALTER TABLE {TABLE} ADD COLUMN more varchar(200) DEFAULT '{ROW}'",
    )
    bench.run("capture", "--until-caught-up")
    bench.run("status", "--json", "--prometheus", str(bench.lake / "progress/figures.prom"))
    dumps = json.loads(bench.run("dump", "status", "--json"))
    assert {"done"} <= {dump["state"] for dump in dumps} <= {"done", "failed"}
    bench.require_no_leak()

    if bench.kind == "mariadb":
        bench.sql("SET SESSION binlog_format = 'STATEMENT'",
                  f"UPDATE {TABLE} SET note = '{ROW}', phone = '{MASKED}' WHERE id = 5")
        assert "was logged as a statement" in bench.run("capture", "--until-caught-up")
        bench.require_no_leak()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_side_leaks_no_canary(
    postgres_bench: Bench, request: pytest.FixtureRequest
) -> None:
    bench = postgres_bench
    bench.run("dump", "start", "--table", TABLE)
    bench.run("capture", "--until-caught-up")
    bench.sql(
        f"UPDATE {TABLE} SET email = '{MASKED}-2', note = '{ROW}-2' WHERE id = 1",
        f"UPDATE {TABLE} SET id = 10000 WHERE id = 2", f"DELETE FROM {TABLE} WHERE id = 3",
    )
    bench.run("capture", "--until-caught-up")
    paths = Paths(str(bench.lake / "warehouse"), "shop")
    spark = request.getfixturevalue("spark")
    reconcile_once(spark, paths)
    run_state(spark, paths)
    bench.require_no_leak()
    assert find_leaks(Path(paths.states), ROW), "the canary did not reach state"
    columns = [field.name for field in DeltaTable(paths.state("shop", "people")).schema().fields]
    assert [name for name in columns if not name.startswith("_")] == ["id", "note", "email", "name"]
    for table in (paths.landing, paths.events, paths.windows, paths.schemas, paths.frontier):
        assert find_leaks(Path(table) / "_delta_log", ROW) == []
    assert ROW not in "".join(commits(Path(paths.states)))
    land_undecodable_row(paths.landing)
    assert "the message is no Insert, Update or Delete" in bench.run("reconcile", "--once", code=70)
    bench.require_no_leak()


def land_undecodable_row(landing: str) -> None:
    """Land a row that contains a canary and cannot be decoded."""
    table = Landing(landing, "shop")
    reached = table.reached
    assert reached is not None
    row = table._table.delta.to_pyarrow_table(filters=[("kind", "=", "row")]).slice(0, 1).to_pylist()[0]
    wrong = row | {"batch": reached.batch + 1, "lsn": row["lsn"] + (1 << 40), "payload": f"I{ROW}".encode()}
    table.commit(pa.Table.from_pylist([wrong], schema=LANDING), replace(reached, batch=reached.batch + 1))


def commits(folder: Path) -> Iterator[str]:
    """Yield all commit actions without column statistics, which hold row values."""
    for file in folder.rglob("_delta_log/*.json"):
        for line in file.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            yield json.dumps(action | {"add": {**action["add"], "stats": None}} if "add" in action else action)
