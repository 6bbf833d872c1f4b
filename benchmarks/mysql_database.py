"""The data set on MariaDB or MySQL: a server of our own, one table like pgbench's accounts, and changes to it.

The log is kept by files, not by readers: every run of capture begins with a copy of a landing that ends where the
stretch to be read begins, and every peer is told the same place.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.capture_job import PASSWORD, SOURCE, dump_seconds, run_capture
from benchmarks.process import ProcessResult, run
from dblake.core.errors import ConfigError
from dblake.source.mysql.init import run_init
from dblake.source.mysql.settings import MysqlSettings
from tests.support import debian
from tests.support.mysql import MysqlServer

SCHEMA, TABLE = "shop", "shop.accounts"
_HOME = Path(__file__).parents[1]
_ROWS_A_TRANSACTION = 4
_START = "start"
OPTIONS = ("--innodb-buffer-pool-size=512M", "--max-binlog-size=1G")
_TABLE = f"""
CREATE TABLE {TABLE} (aid int PRIMARY KEY, bid int NOT NULL, abalance int NOT NULL, filler char(84) NOT NULL)
"""
# Transactions of the size of pgbench's own: three updates and an insert each.
_CHANGE = f"""
CREATE PROCEDURE {SCHEMA}.change_rows(transactions int, accounts int, base int)
BEGIN
  DECLARE n int DEFAULT 0;
  WHILE n < transactions DO
    SET @one = 1 + floor(rand() * accounts), @two = 1 + floor(rand() * accounts), @three = 1 + floor(rand() * accounts);
    START TRANSACTION;
    UPDATE {TABLE} SET abalance = abalance + n + 1 WHERE aid = @one;
    UPDATE {TABLE} SET abalance = abalance - n - 1 WHERE aid = @two;
    UPDATE {TABLE} SET abalance = abalance + 7 WHERE aid = @three;
    INSERT INTO {TABLE} VALUES (base + n, 1, n, repeat('f', 84));
    COMMIT;
    SET n = n + 1;
  END WHILE;
END
"""
# One statement, one transaction, so many rows beside each other.
_CHANGE_MANY = f"""
CREATE PROCEDURE {SCHEMA}.change_many(statements int, accounts int, size int)
BEGIN
  DECLARE n int DEFAULT 0;
  WHILE n < statements DO
    SET @first = 1 + floor(rand() * (accounts - size));
    UPDATE {TABLE} SET abalance = abalance + n + 1 WHERE aid BETWEEN @first AND @first + size - 1;
    SET n = n + 1;
  END WHILE;
END
"""


def require_clients(flavour: str) -> None:
    """Raises ConfigError if a program that is measured beside ours is not installed."""
    wanted = {"mariadb": ["mariadb", "mariadb-binlog"], "mysql": ["mariadb"]}[flavour]
    missing = [name for name in wanted if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)}, which is measured beside, is not installed",
            next_step="apt-get install mariadb-client",
        )


@dataclass
class MysqlBench:
    """The database while the benchmark runs. ``rows`` is what the table holds by now."""

    server: MysqlServer
    folder: Path
    rows: int = 0
    first_file: str = field(default="", init=False)
    """Where the changes begin: at this file's beginning."""

    @property
    def settings(self) -> MysqlSettings:
        """As the capture role sees it."""
        return MysqlSettings(
            SOURCE, self.server.flavour, "127.0.0.1", self.server.port, "dblake", PASSWORD, (f"{SCHEMA}.*",),
            tls="disable",
        )

    def fill(self, rows: int) -> None:
        """Makes the table, prepares it for capture, and a landing that ends here. The filling is not in the log."""
        most = "cte_max_recursion_depth" if self.server.flavour == "mysql" else "max_recursive_iterations"
        self.server.run(f"CREATE DATABASE {SCHEMA}", _TABLE)
        with self.server.connect() as connection, connection.cursor() as cur:
            cur.execute(f"SET sql_log_bin = 0, {most} = {rows}")
            cur.execute(
                f"INSERT INTO {TABLE} WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < {rows})"
                " SELECT n, n DIV 100000, 0, repeat('f', 84) FROM s"
            )
        self.server.run(_CHANGE, _CHANGE_MANY)
        self.rows = rows
        run_init(self.settings, self.server.user, self.server.password)
        self._begin_here()

    def change(self, changes: int, rows_a_statement: int) -> None:
        """So many row changes, as fast as they go, to be captured from their first on."""
        self._begin_here()
        if rows_a_statement > 1:
            statements = changes // rows_a_statement
            self.server.run(f"CALL {SCHEMA}.change_many({statements}, {self.rows}, {rows_a_statement})")
        else:
            transactions = changes // _ROWS_A_TRANSACTION
            self.server.run(f"CALL {SCHEMA}.change_rows({transactions}, {self.rows}, {self.rows + 1})")
            self.rows += transactions

    def _begin_here(self) -> None:
        """Makes a landing that ends here. Only its last heartbeat lies between that and the file that begins now."""
        shutil.rmtree(self.folder / _START, ignore_errors=True)
        self.capture(_START, dump=False)
        self.server.run("FLUSH BINARY LOGS")
        self.first_file = self._files()[-1][0]

    def log_bytes(self) -> int:
        """The size of the log from where the changes begin."""
        return sum(size for name, size in self._files() if name >= self.first_file)

    def _files(self) -> list[tuple[str, int]]:
        return [(str(row[0]), int(row[1])) for row in self.server.rows("SHOW BINARY LOGS")]

    def capture(self, warehouse: str, *, dump: bool) -> ProcessResult:
        """One run of the capture job until it has caught up, from where the changes begin."""
        folder = self.folder / warehouse
        if warehouse != _START:
            shutil.copytree(self.folder / _START, folder)
        else:
            folder.mkdir()
        return run_capture(folder, self._configuration(folder), [TABLE] if dump else [])

    def dump_seconds(self, warehouse: str) -> float:
        """How long the dump of a run took, which must have landed every row."""
        return dump_seconds(self.folder / warehouse, self.rows)

    def raw_log(self) -> ProcessResult:
        """The server's own program that copies the log from it, from where the changes begin, to files in memory."""
        into = Path("/dev/shm" if Path("/dev/shm").is_dir() else self.folder) / f"dblake-raw-{self.server.port}-"
        mariadb = self.server.flavour == "mariadb"
        name = "mariadb-binlog" if mariadb else str(debian.tree("mysql") / "usr/bin/mysqlbinlog")
        try:
            return run(
                [name, "--no-defaults", "--read-from-remote-server", "--raw", "--to-last-log",
                 f"--result-file={into}", "--host=127.0.0.1", f"--port={self.server.port}",
                 f"--user={self.server.user}", self.first_file], {},
            )
        finally:
            for file in into.parent.glob(f"{into.name}*"):
                file.unlink()

    def quick_client(self) -> ProcessResult:
        """The command line client, which asks for the whole table and writes the rows to a pipe as they come."""
        client = " ".join([
            "mariadb", "--no-defaults", "--quick", "--batch", "--host=127.0.0.1",
            f"--port={self.server.port}", f"--user={self.server.user}", f"--execute='SELECT * FROM {TABLE}'",
        ])
        return run(["bash", "-c", f"set -o pipefail; {client} | cat >/dev/null"], {})

    def _configuration(self, folder: Path) -> str:
        settings = self.settings
        return f"""
warehouse: {folder}
progress: file:{folder}/progress
source:
  name: {settings.name}
  type: {settings.flavour}
  host: {settings.host}
  port: {settings.port}
  user: {settings.user}
  password: ${{file:{folder}/password}}
  tls: disable
  tables: ["{SCHEMA}.*"]
"""
