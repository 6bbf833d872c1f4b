"""A database under load on an embedded server: what the quickstart and the demo replicate.

Guarantee: pgbench ends with its block and with this process; its output is in one log file, which errors name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from psycopg2 import sql

from dblake.base.core.errors import SourceError
from dblake.base.core.processes import end_with_parent, stop_process
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres

ACCOUNTS_PER_SCALE = 100_000
_FILL_SECONDS = 300
"""For ``pgbench -i``, and as much again for each ten of its scale."""
_WRITE_SECONDS = 10**8
"""pgbench ends with its block; it has no way to run without an end."""


class Pgbench:
    """pgbench in the database ``name`` of a server; ``log`` is where it writes."""

    def __init__(self, database: EmbeddedPostgres, name: str, log: Path) -> None:
        self._database, self._name, self._log = database, name, log

    def fill(self, scale: int) -> None:
        """Create the database and its tables with 100,000 accounts for each ``scale``. Raises SourceError."""
        self._create_database()
        seconds = _FILL_SECONDS * (1 + scale / 10)
        process = self._start("-i", "-q", "-s", str(scale))
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"pgbench did not fill the tables within {seconds:.0f} s",
                next_step=f"read {self._log}, then run again with a smaller --scale",
            ) from None
        finally:
            stop_process(process)
        if code:
            raise SourceError(f"pgbench could not fill the tables (exit code {code})", next_step=f"read {self._log}")
        with closing(self._database.connect(self._name)) as admin, admin.cursor() as cur:
            # The table has no primary key; without a replica identity PostgreSQL would reject an UPDATE.
            cur.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")

    def load(self, script: Path) -> None:
        """Create the database, and its tables and rows by a file of SQL."""
        self._create_database()
        with closing(self._database.connect(self._name)) as admin, admin.cursor() as cur:
            cur.execute(script.read_text(encoding="utf-8"))

    @contextmanager
    def writing(self, changes_per_second: int) -> Iterator[None]:
        """Run read-write transactions of three updates and one insert within the block."""
        with self._running(max(1, changes_per_second // 4)):
            yield

    @contextmanager
    def repeating(self, script: Path, transactions_per_second: int) -> Iterator[None]:
        """Run a file of pgbench's commands again and again within the block."""
        with self._running(transactions_per_second, "-f", str(script)):
            yield

    @contextmanager
    def _running(self, transactions_per_second: int, *arguments: str) -> Iterator[None]:
        rate = ("-R", str(transactions_per_second), "-T", str(_WRITE_SECONDS))
        process = self._start("-n", "-c", "2", *rate, *arguments)
        try:
            yield
            if process.poll() is not None:
                raise SourceError("pgbench ended early", next_step=f"read {self._log}")
        finally:
            stop_process(process)

    def _create_database(self) -> None:
        with closing(self._database.connect()) as admin, admin.cursor() as cur:
            cur.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._name)))

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        server = self._database
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*end_with_parent(), str(server.binaries / "pgbench"), "-h", "127.0.0.1", "-p", str(server.port),
                 "-U", server.user, *arguments, self._name],
                env={**os.environ, "PGPASSWORD": server.password, "PGSSLMODE": "disable"},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # Ctrl-C must not reach it: it ends with its block.
                start_new_session=True,
            )
