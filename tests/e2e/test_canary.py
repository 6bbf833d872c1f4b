"""Values and passwords that may stand nowhere: provoked into errors of every kind, looked for in all that is left.

Rows hold two: one in a column that is landed as it is, which may be in the warehouse's rows but in no message, no note
of capture's and no commit; and one in columns that are masked, which may be in no file. Passwords may be nowhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblake.landing.columns import LANDING
from dblake.landing.table import Landing
from dblake.source.mysql.init import run_init as mysql_init
from dblake.source.mysql.settings import MysqlSettings
from dblake.source.postgres.init import run_init as postgres_init
from dblake.source.postgres.settings import PostgresSettings
from pipelines.paths import Paths
from tests.support.leaks import leaks
from tests.support.mysql import emptied
from tests.support.postgres import fresh_database
from tests.support.proxy import Proxy

HOME = Path(__file__).parents[2]
ROW, MASKED = "canary-in-a-row", "canary-to-be-masked"
PASSWORD, WRONG, MASK_KEY = "canary-password-right", "canary-password-wrong", "canary-password-of-masks"
TABLE = "shop.people"
ROWS = 3000


class Bench:
    """A prepared source behind a proxy, the configuration of it, and all that jobs have said."""

    def __init__(self, folder: Path, source: dict[str, object], proxy: Proxy) -> None:
        self.folder, self.proxy = folder, proxy
        self.lake = folder / "lake"
        self.said: list[str] = []
        self._source = source
        self.write()

    def write(self, progress: str = "file:./lake/progress", **source: object) -> None:
        """Writes the configuration, with some of the source's keys changed."""
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
        """A job to its end, which must be this one; returns what it said."""
        done = subprocess.run(
            [sys.executable, str(HOME / f"jobs/{job}.py"), *arguments], capture_output=True, text=True, timeout=90,
            check=False, env=os.environ | {
                "PYTHONPATH": f"{HOME}:{HOME / 'lib'}", "SHOP_PASSWORD": password, "MASK_KEY": MASK_KEY,
                "DBLAKE_CONF": str(self.folder / "shop.yaml"), **environment,
            },
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        self.said.append(said)
        return said

    def require_silence(self) -> None:
        """No output and no note holds a canary, no file a masked value or a password."""
        secrets = (MASKED, PASSWORD, WRONG, MASK_KEY)
        (self.folder / "said").mkdir(exist_ok=True)
        (self.folder / "said" / "output").write_text("\n".join(self.said), encoding="utf-8")
        assert leaks(self.folder / "said", ROW, *secrets) == []
        assert leaks(self.lake, *secrets) == []
        assert leaks(self.lake / "progress", ROW) == []


def people(numbers: str) -> list[str]:
    """The table, with a canary in every row."""
    name, row = f"concat('{MASKED[:3]}', '{MASKED}', n)", f"concat('{ROW}-', n)"
    return [
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, note varchar(200), email varchar(200), phone varchar(200),"
        " name varchar(200))",
        f"INSERT INTO {TABLE} SELECT n, {row}, concat('{MASKED}@', n), '{MASKED}', {name} FROM {numbers}",
    ]


@pytest.fixture(params=["postgres", "mariadb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "postgres":
        with fresh_database(request.getfixturevalue("postgres")) as database, Proxy(database.server.port) as proxy:
            database.run("CREATE SCHEMA shop", *people(f"generate_series(1, {ROWS}) n"))
            server = database.server
            postgres = PostgresSettings("shop", "127.0.0.1", server.port, database.name, "cap_canary", PASSWORD,
                                        ("shop.*",), tls="disable", slot=f"canary_{database.name}", publication="p")
            postgres_init(postgres, server.user, server.password)
            source: dict[str, object] = {"type": "postgres", "database": database.name, "slot": postgres.slot,
                                         "publication": "p"}
            bench = Bench(tmp_path, source, proxy)
            bench.sql = database.run  # type: ignore[attr-defined]
            yield bench
            database.run("DROP OWNED BY cap_canary", "DROP ROLE cap_canary")
    else:
        with emptied(request.getfixturevalue("mariadb")) as mariadb, Proxy(mariadb.port) as proxy:
            mariadb.run("CREATE DATABASE shop", "USE shop", *people(f"(SELECT seq AS n FROM seq_1_to_{ROWS}) numbers"))
            mysql = MysqlSettings("shop", "mariadb", "127.0.0.1", mariadb.port, "cap_canary", PASSWORD, ("shop.*",),
                                  tls="disable")
            mysql_init(mysql, mariadb.user, mariadb.password)
            bench = Bench(tmp_path, {"type": "mariadb"}, proxy)
            bench.sql = mariadb.run  # type: ignore[attr-defined]
            yield bench


def test_nothing_tells_a_canary(bench: Bench) -> None:
    sql: Any = bench.sql  # type: ignore[attr-defined]
    kind = bench._source["type"]
    bench.run("preflight")
    bench.run("capture", "--until-caught-up", "--verbose")

    # What is wrong before anything begins.
    assert "wrong password" in bench.run("capture", "--verbose", code=78, password=WRONG)
    bench.write(password=PASSWORD)
    assert "source.password" in bench.run("capture", code=78)
    bench.write(progress=f"zookeeper://127.0.0.1:1/x?session_timeout=1&user=u&password={WRONG}")
    bench.run("dump", "status", code=78)
    bench.write(progress="zookeeper://127.0.0.1:1/x?session_timeout=1&user=u&password=${env:SHOP_PASSWORD}")
    bench.run("dump", "status", code=75)
    bench.write()

    # The server goes away in the middle of a chunk; then the process does.
    bench.run("dump", "start", "--table", TABLE)
    bench.proxy.cut_after(150_000, 60_000)
    bench.run("capture", "--until-caught-up")
    assert bench.proxy.cuts_left == 0
    bench.run("dump", "start", "--table", TABLE)
    bench.run("capture", "--until-caught-up", code=-9, DBLAKE_FAILPOINT="dump.chunk_read:2")
    bench.run("capture", "--until-caught-up")

    # Keys that are none, changes of every kind, of the table's shape as well.
    bench.run("dump", "start", "--table", TABLE, "--keys", f'["{ROW}"]')
    sql(
        f"UPDATE {TABLE} SET email = '{MASKED}-2', note = '{ROW}-2' WHERE id = 1",
        f"UPDATE {TABLE} SET id = 10000 WHERE id = 2", f"DELETE FROM {TABLE} WHERE id = 3",
        f"ALTER TABLE {TABLE} ADD COLUMN more varchar(200) DEFAULT '{ROW}'",
    )
    bench.run("capture", "--until-caught-up")
    told = json.loads(bench.run("dump", "status", "--json"))
    assert {"done"} <= {dump["state"] for dump in told} <= {"done", "failed"}
    bench.require_silence()

    if kind == "mariadb":
        sql("SET SESSION binlog_format = 'STATEMENT'",
            f"UPDATE {TABLE} SET note = '{ROW}', phone = '{MASKED}' WHERE id = 5")
        assert "was logged as a statement" in bench.run("capture", "--until-caught-up", code=78)
        bench.require_silence()
        return

    paths = Paths(str(bench.lake / "warehouse"), "shop")
    bench.run("reconcile", "--once")
    bench.run("state", "--once")
    bench.run("capture", "--until-caught-up", "--accept-gap")
    spoil(paths.landing)
    bench.run("reconcile", "--once", code=70)
    bench.require_silence()
    assert leaks(Path(paths.states), ROW), "the canary has not come as far as state"
    for table in (paths.landing, paths.events, paths.windows, paths.schemas, paths.frontier):
        assert leaks(Path(table) / "_delta_log", ROW) == []
    assert ROW not in "".join(commits(Path(paths.states)))


def spoil(landing: str) -> None:
    """Lands a row that cannot be decoded, with a canary in it."""
    table = Landing(landing, "shop")
    reached = table.reached
    assert reached is not None
    known = table._table.to_pyarrow_table(filters=[("kind", "=", "row")]).slice(0, 1).to_pylist()[0]
    wrong = known | {"batch": reached.batch + 1, "lsn": known["lsn"] + (1 << 40), "payload": f"I{ROW}".encode()}
    table.commit(pa.Table.from_pylist([wrong], schema=LANDING), replace(reached, batch=reached.batch + 1))


def commits(folder: Path) -> Iterator[str]:
    """What commits say, apart from the statistics of columns, which are rows' values."""
    for file in folder.rglob("_delta_log/*.json"):
        for line in file.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            yield json.dumps(action | {"add": {**action["add"], "stats": None}} if "add" in action else action)
