"""MariaDB and MySQL servers for tests: one of each per session, emptied between tests.

Fixtures, available to every test::

    mariadb, mysql   the session's servers, not emptied
    mysql_server     both in turn, each emptied before and after the test

Without pytest: ``with MysqlServer("mariadb", folder / "data") as server: server.run("CREATE …")``.
The administrator is ``root`` without a password. The binary log has ROW format, FULL images and FULL metadata; nothing
is synced to disk. A test that stops its server or changes global state starts its own server, if necessary with more
options (``MysqlServer("mysql", folder / "data", "--binlog-order-commits=OFF")``).

``debian`` fetches both servers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pymysql
import pytest

from dblake.ingest.source.postgres.ports import free_port
from tests.support import debian
from tests.support.report import note_version

MARIADB_TREE = "DBLAKE_TEST_MARIADB_TREE"
"""The environment variable that names the folder of another version of MariaDB, laid out as Debian's package."""
Flavour = Literal["mysql", "mariadb"]

_SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")
_SYSTEM_USERS = ("root", "mariadb.sys", "mysql", "mysql.sys", "mysql.session", "mysql.infoschema")
_START_SECONDS = 60
_STOP_SECONDS = 30

#: For both flavours: the log as capture requires it, nothing durable, little memory.
_OPTIONS = [
    "--bind-address=127.0.0.1", "--socket=s.sock", "--pid-file=pid", "--skip-name-resolve", "--log-bin=binlog",
    "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL", "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--innodb-buffer-pool-size=64M",
    "--max-connections=200", "--character-set-server=utf8mb4", "--secure-file-priv=",
]
_OWN_OPTIONS = {
    "mariadb": ["--server-id=1", "--innodb-flush-method=nosync", "--innodb-log-file-size=32M", "--gtid-strict-mode=ON"],
    "mysql": ["--server-id=2", "--mysqlx=OFF", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
              "--innodb-flush-method=nosync", "--innodb-redo-log-capacity=64M", "--performance-schema=OFF"],
}
_PROGRAMS = {"mariadb": "usr/sbin/mariadbd", "mysql": "usr/sbin/mysqld"}
_MARIADB_BOOTSTRAP = [
    "--bootstrap", "--enforce-storage-engine=", "--max-allowed-packet=8M", "--net-buffer-length=16K",
    "--skip-name-resolve", "--skip-log-bin", "--innodb-flush-method=nosync", "--log-warnings=0",
]
_MARIADB_TABLES = (
    "mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql", "fill_help_tables.sql",
    "maria_add_gis_sp_bootstrap.sql", "mysql_sys_schema.sql",
)


class MysqlServer:
    """One server on one data folder, which ``start`` creates if it is missing. A context manager.

    The kernel kills the server when the thread that started it ends; ``stop`` ends it earlier.
    """

    user, password = "root", ""

    def __init__(self, flavour: Flavour, data_dir: Path, *options: str, port: int = 0) -> None:
        self.flavour = flavour
        self.port = port
        self.data = data_dir.absolute()
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MysqlServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """Return the path of the server's error log."""
        return self.data.parent / f"{self.data.name}.log"

    def start(self) -> None:
        """Start the server on ``port``, or on a free one if it is 0; return when it accepts connections."""
        if self._process is not None:
            return
        self.create_data()
        base = self._base()
        self.port = self.port or free_port()
        options = [*_OPTIONS, *_OWN_OPTIONS[self.flavour], f"--port={self.port}", *self._options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *base, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                version = re.sub("[-+].*", "", str(self.rows("SELECT version()")[0][0]))
                note_version(debian.TREES[self.flavour].title, version)
                return
            except pymysql.Error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop(crash=True)
                    tail = self.log.read_text(errors="replace").splitlines()[-15:]
                    raise RuntimeError("\n".join([f"{self.flavour} did not start:", *tail])) from None
                time.sleep(0.05)

    def change_identity(self, number: int) -> None:
        """Start the server as another one, with the same data and log: with another server id, and MySQL's uuid."""
        self.stop()
        (self.data / "auto.cnf").unlink(missing_ok=True)
        self._options.append(f"--server-id={number}")
        self.start()

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server; ``crash`` kills it, so that the next start has to recover."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGKILL if crash else signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, *options: str, crash: bool = False) -> None:
        """Stop the server and start it on the same port, with additional options."""
        self.stop(crash=crash)
        self._options += options
        self.start()

    def connect(self, database: str | None = None, **arguments: Any) -> Any:
        """Return an administrator's connection; autocommit unless ``arguments`` override it."""
        return pymysql.connect(**{
            "host": "127.0.0.1", "port": self.port, "user": self.user, "password": self.password,
            "database": database, "autocommit": True, "charset": "utf8mb4", "connect_timeout": 5, **arguments,
        })

    def run(self, *statements: str) -> None:
        """Execute each statement in its own transaction."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(query, parameters or None)
            return list(cursor.fetchall())

    def kill_connections_of(self, user: str) -> None:
        """Break all connections of a user."""
        for (number,) in self.rows("SELECT id FROM information_schema.processlist WHERE user = %s", (user,)):
            try:
                self.run(f"KILL {number}")
            except pymysql.err.OperationalError as error:
                if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
                    raise

    def empty(self) -> None:
        """Drop all databases and users that tests have created, and break their connections."""
        for (user, host) in self.rows("SELECT user, host FROM mysql.user"):
            if user not in _SYSTEM_USERS:
                self.kill_connections_of(user)
                self.run(f"DROP USER '{user}'@'{host}'")
        for (schema,) in self.rows("SHOW DATABASES"):
            if schema not in _SYSTEM:
                self.run("SET FOREIGN_KEY_CHECKS=0", f"DROP DATABASE `{schema.replace('`', '``')}`")

    def _base(self) -> list[str]:
        tree = _tree(self.flavour)
        share = _share(tree)
        # A starting server deletes what looks like its own temporary files there.
        temporary = self.data.with_name(f"{self.data.name}.tmp")
        temporary.mkdir(parents=True, exist_ok=True)
        return [
            str(tree / _PROGRAMS[self.flavour]), "--no-defaults", f"--datadir={self.data}", f"--basedir={tree / 'usr'}",
            f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}",
            f"--plugin-dir={tree / 'usr/lib/mysql/plugin'}", f"--tmpdir={temporary}",
            # As another user the server could not enter root's folders; it serves test data only.
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]

    def create_data(self) -> None:
        """Initialize the data folder if it is empty."""
        if (self.data / "mysql").exists():
            return
        base = self._base()
        self.data.mkdir(parents=True, exist_ok=True)
        if self.flavour == "mariadb":
            statements, options = _mariadb_tables(), _MARIADB_BOOTSTRAP
        else:
            first = self.data.parent / f"{self.data.name}.init.sql"
            first.write_text("CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;")
            statements, options = "", ["--initialize-insecure", f"--init-file={first}", "--innodb-flush-method=nosync"]
        done = subprocess.run([*base, *options], input=statements, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.flavour} could not initialize its data folder:\n{done.stderr[-2000:]}")


def _mariadb_tables() -> str:
    """Return the SQL that mariadb-install-db runs. The script itself contains the paths of an installed system."""
    share = _share(_tree("mariadb"))
    statements = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;"]
    # From version 11 on the files have the prefix mariadb; version 10.5 has no schema sys.
    named = [[share / file.replace("mysql_", "mariadb_"), share / file] for file in _MARIADB_TABLES]
    files = [next((path for path in paths if path.exists()), None) for paths in named]
    return "\n".join([*statements, *(path.read_text(encoding="utf-8") for path in files if path)])


def _tree(flavour: Flavour) -> Path:
    other = os.environ.get(MARIADB_TREE) if flavour == "mariadb" else None
    return Path(other) if other else debian.tree(flavour)


def _share(tree: Path) -> Path:
    return next(path for path in (tree / "usr/share/mariadb", tree / "usr/share/mysql") if path.is_dir())


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    """Return the session's MariaDB server."""
    with MysqlServer("mariadb", tmp_path_factory.mktemp("mariadb") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    """Return the session's MySQL server."""
    with MysqlServer("mysql", tmp_path_factory.mktemp("mysql") / "data") as server:
        yield server


@contextmanager
def emptied(server: MysqlServer) -> Iterator[MysqlServer]:
    """Empty the server before and after the block."""
    server.empty()
    yield server
    server.empty()


@pytest.fixture(params=["mariadb", "mysql"])
def mysql_server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """Return MariaDB and MySQL in turn, emptied before and after the test."""
    with emptied(request.getfixturevalue(request.param)) as server:
        yield server
