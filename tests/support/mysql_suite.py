"""MariaDB's own test suite, run by its client against a server that capture follows.

The suite is a source of statements here: what a test prints does not matter, and a statement that fails neither. Tests
that need other options of the server, or stop it, are left out. A test ends with the removal of its tables: that part
is left out as well, and what remains moves to the database ``kept``.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pymysql

from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.ingest.source.mysql.sql_literals import identifier
from tests.support.debian import tree
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend

KEPT = "kept"
_FOLDER = "usr/share/mysql/mysql-test"
_TEST_SECONDS = 60
_OTHER_SERVER = re.compile(
    r"restart_mysqld|shutdown|kill_mysqld|master-slave|have_debug|have_binlog_format|reset\s+master|big_test|galera"
    r"|purge\s+(binary|master)|sql_log_bin|\$MYSQLD\b|\$MYSQL_UPGRADE|have_ssl|expect_crash|set\s+global\s+read_only"
    r"|mysql\.(user|global_priv)|engine_condition_pushdown|flush\s+tables\s+with\s+read\s+lock",
    re.IGNORECASE,
)
"""Tests of what a server that others use does not do: it is restarted, its log is deleted or switched off."""
_OPTION_FILES = ("-master.opt", ".opt", ".cnf", "-slave.opt")
_CREATE = re.compile(r"create\s+(or\s+replace\s+)?table", re.IGNORECASE)
_DROP = re.compile(r"^\s*drop\s+(table|database)\b.*$", re.IGNORECASE | re.MULTILINE)


class SuiteDatabase:
    """A server's databases ``test``, in which tests run, and ``kept``; the capture role may read all."""

    def __init__(self, server: MysqlServer) -> None:
        self._server = server
        server.run("CREATE DATABASE test", f"CREATE DATABASE {KEPT}", f"CREATE TABLE {KEPT}.first (id int PRIMARY KEY)")
        backend = MysqlBackend(server)
        backend.source("test.*", f"{KEPT}.*")
        assert backend.settings is not None
        self._settings: MysqlSettings = backend.settings
        (account,) = server.rows("SELECT concat(quote(user), '@', quote(host)) FROM mysql.user WHERE user = 'cap'")
        server.run(f"GRANT SELECT ON *.* TO {account[0]}")

    def settings(self) -> dict[str, object]:
        """Return the ``source`` section of the configuration, without name, password and tables."""
        known = self._settings
        return {
            "type": "mariadb", "host": known.host, "port": known.port, "user": known.user, "tls": "disable",
            "server_id": known.server_id, "watermark_schema": known.watermark_schema,
        }

    @property
    def password(self) -> str:
        """Return the capture role's password."""
        return self._settings.password

    def run_suite(self, results: Path, count: int, seed: int) -> int:
        """Run so many tests, chosen by ``seed``; return how many tables they left."""
        suite = tree("mariadb-suite") / _FOLDER
        chosen = [path for path in sorted((suite / "main").glob("*.test")) if _fits(path)]
        random.Random(seed).shuffle(chosen)
        results.mkdir()
        left = 0
        for number, test in enumerate(chosen[:count]):
            self._run_test(suite, test, results)
            left += self._move_tables(number)
        return left

    def _run_test(self, suite: Path, test: Path, results: Path) -> None:
        own = results / test.name
        own.write_text(_without_end(test.read_text(encoding="utf-8", errors="surrogateescape")),
                       encoding="utf-8", errors="surrogateescape")
        environment = os.environ | {
            "MYSQL_TEST_DIR": str(suite), "MYSQLTEST_VARDIR": str(results), "MYSQL_TMP_DIR": str(results),
            "MASTER_MYPORT": str(self._server.port), "MASTER_MYSOCK": str(self._server.data / "s.sock"),
            "MYSQL_TEST_LOGIN_FILE": "/dev/null", "LC_ALL": "C.UTF-8",
        }
        with (results / f"{test.stem}.out").open("wb") as output, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [tree("mariadb-suite") / "usr/bin/mariadb-test", "--no-defaults", "--host=127.0.0.1", "--user=root",
                 f"--port={self._server.port}", "--database=test", f"--tmpdir={results}", f"--logdir={results}",
                 "--silent", "--continue-on-error", f"--test-file={own}"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, check=False, cwd=suite,
                timeout=_TEST_SECONDS,
            )

    def _move_tables(self, number: int) -> int:
        """Rename the tables of ``test`` into ``kept``, or drop those that cannot be; return how many were renamed."""
        left = 0
        listed = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'test'"
        for name, kind in self._server.rows(listed):
            table = f"test.{identifier(str(name))}"
            if kind != "VIEW" and self._has_run(f"RENAME TABLE {table} TO {KEPT}.t{number}_{left}"):
                left += 1
            else:
                self._has_run(f"DROP {'VIEW' if kind == 'VIEW' else 'TABLE'} IF EXISTS {table}")
        return left

    def _has_run(self, statement: str) -> bool:
        """Run a statement that may fail, as a table with triggers cannot move to another database."""
        try:
            self._server.run(statement)
        except pymysql.Error:
            return False
        return True


def _fits(test: Path) -> bool:
    if any(test.with_name(test.stem + ending).exists() for ending in _OPTION_FILES):
        return False
    text = test.read_text(encoding="utf-8", errors="replace")
    return _CREATE.search(text) is not None and _OTHER_SERVER.search(text) is None


def _without_end(text: str) -> str:
    """Return a test without the statements behind the last CREATE TABLE that drop tables or databases."""
    created = [match.end() for match in _CREATE.finditer(text)]
    last = created[-1]
    return text[:last] + _DROP.sub("", text[last:])
