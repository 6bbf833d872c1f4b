"""The data set: an own PostgreSQL server, one table like pgbench's accounts, and changes to it.

Every run of capture and of its peer gets a copy of a slot, so that all of them read the same part of the log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg2

from benchmarks.capture_job import PASSWORD, SOURCE, dump_seconds, run_capture
from benchmarks.process import ProcessResult
from dblake.base.lake.layout import Paths
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.settings import PostgresSettings

TABLE = "public.accounts"
_HOME = Path(__file__).parents[1]
_ROWS_A_TRANSACTION = 4
_DROP_SECONDS = 60.0
_TABLE = """
CREATE TABLE public.accounts (aid int NOT NULL, bid int NOT NULL, abalance int NOT NULL, filler char(84) NOT NULL)
"""
_FILL = "INSERT INTO public.accounts SELECT n, n / 100000, 0, '' FROM generate_series(%s, %s) AS n"
# Transactions of pgbench's size: three updates and an insert each.
_CHANGE = """
CREATE PROCEDURE public.change(transactions int, accounts int, first int) LANGUAGE plpgsql AS $$
DECLARE one int; two int; three int;
BEGIN
  FOR n IN 0 .. transactions - 1 LOOP
    one := 1 + floor(random() * accounts); two := 1 + floor(random() * accounts);
    three := 1 + floor(random() * accounts);
    UPDATE public.accounts SET abalance = abalance + n WHERE aid = one;
    UPDATE public.accounts SET abalance = abalance - n WHERE aid = two;
    UPDATE public.accounts SET abalance = n WHERE aid = three;
    INSERT INTO public.accounts VALUES (first + n, 1, n, '');
    COMMIT;
  END LOOP;
END $$
"""
_GROW = """
CREATE PROCEDURE public.grow(first int, last int, step int) LANGUAGE plpgsql AS $$
BEGIN
  FOR n IN first .. last BY step LOOP
    INSERT INTO public.accounts SELECT a, a / 100000, 0, '' FROM generate_series(n, least(n + step - 1, last)) AS a;
    COMMIT;
  END LOOP;
END $$
"""


@dataclass
class Bench:
    """The benchmark's database. ``rows`` is the current number of rows of the table."""

    server: EmbeddedPostgres
    folder: Path
    rows: int = 0
    _runs: int = field(default=0, init=False)

    @property
    def settings(self) -> PostgresSettings:
        """The source settings of the capture role."""
        return PostgresSettings(
            SOURCE, "127.0.0.1", self.server.port, SOURCE, "dblake", PASSWORD, ("public.*",), tls="disable"
        )

    def execute(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Execute a statement as superuser, in autocommit; return its rows."""
        with closing(self.server.connect(SOURCE)) as conn, conn.cursor() as cur:
            cur.execute("SET synchronous_commit = off")
            cur.execute(statement, parameters)
            return cur.fetchall() if cur.description else []

    def fill(self, rows: int) -> None:
        """Create the database and the table, and initialize capture."""
        with closing(self.server.connect()) as conn, conn.cursor() as cur:
            cur.execute(f"CREATE DATABASE {SOURCE}")
        self.execute(_TABLE)
        self.execute(_FILL, (1, rows))
        self.execute("ALTER TABLE public.accounts ADD PRIMARY KEY (aid)")
        self.execute("VACUUM ANALYZE public.accounts")
        self.execute(_CHANGE)
        self.execute(_GROW)
        self.rows = rows
        self.initialize()

    def initialize(self) -> None:
        """Include all tables in capture."""
        run_init(self.settings, self.server.user, self.server.password)

    def change(self, changes: int) -> None:
        """Make so many row changes, sequentially, as fast as possible."""
        transactions = changes // _ROWS_A_TRANSACTION
        first, self.rows = self.rows + 1, self.rows + transactions
        self.execute("CALL public.change(%s, %s, %s)", (transactions, first - 1, first))

    def grow(self, to: int) -> int:
        """Insert rows, a thousand per transaction, until the table has ``to``; return how many were inserted."""
        first, self.rows = self.rows + 1, to
        self.execute("CALL public.grow(%s, %s, 1000)", (first, to))
        return to - first + 1

    def insert_at_once(self, rows: int) -> None:
        """Insert so many rows in one transaction."""
        first, self.rows = self.rows + 1, self.rows + rows
        self.execute(_FILL, (first, self.rows))

    def make_tables(self, count: int) -> list[str]:
        """Create small tables and include them in capture; return their names."""
        names = [f"public.small_{number}" for number in range(1, count + 1)]
        for name in names:
            self.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
            self.execute(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
        self.initialize()
        return names

    def log_end(self) -> str:
        """Return the current end of the log."""
        return str(self.execute("SELECT pg_current_wal_lsn()")[0][0])

    def create_slot(self, name: str) -> None:
        """Create a slot at the current end of the log, from which ``copied_slot`` makes copies."""
        self.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))

    @contextmanager
    def copied_slot(self, of: str) -> Iterator[str]:
        """Yield the name of a copy of slot ``of``, for one run; drop the copy afterwards."""
        self._runs += 1
        name = f"run_{self._runs}"
        self.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (of, name))
        try:
            yield name
        finally:
            self._drop_slot(name)

    def _drop_slot(self, name: str) -> None:
        deadline = time.monotonic() + _DROP_SECONDS
        while True:
            try:
                self.execute("SELECT pg_drop_replication_slot(%s)", (name,))
                return
            except psycopg2.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def warehouse(self, name: str) -> Path:
        """Return the folder of one run."""
        return self.folder / name

    def paths(self, name: str) -> Paths:
        """Return the paths of one run's tables."""
        return Paths(str(self.warehouse(name)), SOURCE)

    def capture(self, slot: str, warehouse: str, *, dump: bool, tables: Sequence[str] = (TABLE,)) -> ProcessResult:
        """Run the capture job until it has caught up, as a user starts it."""
        folder = self.warehouse(warehouse)
        return run_capture(folder, self.configuration(folder, slot), tables if dump else [])

    def dump_seconds(self, warehouse: str) -> float:
        """Return the seconds that the dump of a run took. Raises RuntimeError if it did not land every row."""
        return dump_seconds(self.warehouse(warehouse), self.rows)

    def configuration(self, folder: Path, slot: str, warehouse: str = "", storage: Mapping[str, object] | None = None,
                      ) -> str:
        """Return the configuration file of one run, whose warehouse is ``folder`` unless another is given."""
        settings = replace(self.settings, slot=slot)
        return f"""
warehouse: {warehouse or folder}
storage: {json.dumps(storage or {})}
progress: file:{folder}/progress
source:
  name: {settings.name}
  type: postgres
  host: {settings.host}
  port: {settings.port}
  database: {settings.database}
  user: {settings.user}
  password: ${{file:{folder}/password}}
  tls: disable
  tables: ["public.*"]
  slot: {settings.slot}
  publication: {settings.publication}
"""
