"""The data set on MariaDB or MySQL: an own server, one table like pgbench's accounts, and changes to it.

The server has no slots to copy. So every run of capture starts with a copy of a landing that ends where the changes
begin, and every peer starts at the same log file.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.capture_job import PASSWORD, SOURCE, dump_seconds, run_capture
from benchmarks.process import ProcessResult, run
from dblake.base.core.errors import ConfigError
from dblake.ingest.source.mysql.init import run_init
from dblake.ingest.source.mysql.settings import MysqlSettings
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
# Transactions of pgbench's size: three updates and an insert each.
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
# One statement per transaction, updating ``size`` adjacent rows.
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
    """Raise ConfigError if a peer program is not installed."""
    programs = {"mariadb": ["mariadb", "mariadb-binlog"], "mysql": ["mariadb"]}[flavour]
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} is not installed, but the benchmark compares with it",
            next_step="apt-get install mariadb-client",
        )


@dataclass
class MysqlBench:
    """The benchmark's database. ``rows`` is the current number of rows of the table."""

    server: MysqlServer
    folder: Path
    rows: int = 0
    first_file: str = field(default="", init=False)
    """The log file whose start is the start of the changes."""

    @property
    def settings(self) -> MysqlSettings:
        """The source settings of the capture role."""
        return MysqlSettings(
            SOURCE, self.server.flavour, "127.0.0.1", self.server.port, "dblake", PASSWORD, (f"{SCHEMA}.*",),
            tls="disable",
        )

    def fill(self, rows: int) -> None:
        """Create and fill the table without logging, initialize capture, and create a landing that ends here."""
        limit = "cte_max_recursion_depth" if self.server.flavour == "mysql" else "max_recursive_iterations"
        self.server.run(f"CREATE DATABASE {SCHEMA}", _TABLE)
        with self.server.connect() as connection, connection.cursor() as cur:
            cur.execute(f"SET sql_log_bin = 0, {limit} = {rows}")
            cur.execute(
                f"INSERT INTO {TABLE} WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < {rows})"
                " SELECT n, n DIV 100000, 0, repeat('f', 84) FROM s"
            )
        self.server.run(_CHANGE, _CHANGE_MANY)
        self.rows = rows
        run_init(self.settings, self.server.user, self.server.password)
        self._begin_here()

    def change(self, changes: int, rows_a_statement: int) -> None:
        """Make so many row changes as fast as possible; later captures start before the first of them."""
        self._begin_here()
        if rows_a_statement > 1:
            statements = changes // rows_a_statement
            self.server.run(f"CALL {SCHEMA}.change_many({statements}, {self.rows}, {rows_a_statement})")
        else:
            transactions = changes // _ROWS_A_TRANSACTION
            self.server.run(f"CALL {SCHEMA}.change_rows({transactions}, {self.rows}, {self.rows + 1})")
            self.rows += transactions

    def _begin_here(self) -> None:
        """Create a landing that ends here and start a new log file. Only a heartbeat lies between the two."""
        shutil.rmtree(self.folder / _START, ignore_errors=True)
        self.capture(_START, dump=False)
        self.server.run("FLUSH BINARY LOGS")
        self.first_file = self._files()[-1][0]

    def log_bytes(self) -> int:
        """Return the size of the log in bytes, from the start of the changes."""
        return sum(size for name, size in self._files() if name >= self.first_file)

    def _files(self) -> list[tuple[str, int]]:
        return [(str(row[0]), int(row[1])) for row in self.server.rows("SHOW BINARY LOGS")]

    def capture(self, warehouse: str, *, dump: bool) -> ProcessResult:
        """Run the capture job from the start of the changes until it has caught up."""
        folder = self.folder / warehouse
        if warehouse != _START:
            shutil.copytree(self.folder / _START, folder)
        else:
            folder.mkdir()
        return run_capture(folder, self._configuration(folder), [TABLE] if dump else [])

    def dump_seconds(self, warehouse: str) -> float:
        """Return the seconds that the dump of a run took. Raises RuntimeError if it did not land every row."""
        return dump_seconds(self.folder / warehouse, self.rows)

    def raw_log(self) -> ProcessResult:
        """Copy the log, from the start of the changes, to files in memory with the server's own program."""
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
        """Read the whole table with the command line client, which writes the rows to a pipe as they arrive."""
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
