"""PostgreSQL's own regression suite, run by psql against a server that capture follows.

The SQL comes from the source package of Debian's server. The suite is a source of schema changes here: a statement that
fails, such as one that needs the suite's C library, does not matter.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from dblake.ingest.source.postgres.embedded import EmbeddedPostgres, binaries
from dblake.ingest.source.postgres.init import run_init
from dblake.ingest.source.postgres.settings import PostgresSettings
from tests.support.backends import PostgresBackend
from tests.support.debian import source_folder
from tests.support.postgres import Database

_PARALLEL = 3
_TEST_SECONDS = 300
_IDENTIFY_ROWS = """\
CREATE SCHEMA regress_setup;
CREATE FUNCTION regress_setup.identify_rows() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE made record;
BEGIN
    FOR made IN SELECT c.oid FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
        AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', made.oid::regclass);
    END LOOP;
EXCEPTION WHEN OTHERS THEN
END $$;
CREATE EVENT TRIGGER regress_setup ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION regress_setup.identify_rows();
CREATE TABLE regress_setup.kept (id int PRIMARY KEY);
"""
"""Without an identity, tables in a publication of all tables reject updates. Capture needs a table from its start."""


class RegressionDatabase:
    """The database ``regression``: every table is published and readable as soon as it exists."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._folder = source_folder("postgresql-15", "bookworm", "src/test/regress")
        Database(server, "postgres").run(
            "CREATE DATABASE regression TEMPLATE template0", "ALTER DATABASE regression SET lc_monetary = 'C'",
            "ALTER DATABASE regression SET lc_numeric = 'C'", "ALTER DATABASE regression SET lc_time = 'C'",
        )
        self.database = Database(server, "regression")
        backend = PostgresBackend(self.database)
        backend.source("*.*")
        assert backend.settings is not None
        self._settings: PostgresSettings = backend.settings
        self.database.run(
            "DROP PUBLICATION p", "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
            f"GRANT pg_read_all_data TO {self._settings.user}", _IDENTIFY_ROWS,
        )
        run_init(self._settings, server.user, server.password)

    def settings(self) -> dict[str, object]:
        """Return the ``source`` section of the configuration, without name, password and tables."""
        known = self._settings
        return {
            "type": "postgres", "host": known.host, "port": known.port, "user": known.user, "tls": "disable",
            "database": known.database, "slot": known.slot, "publication": known.publication,
        }

    @property
    def password(self) -> str:
        """Return the capture role's password."""
        return self._settings.password

    def run_suite(self, results: Path, share: float, seed: int) -> int:
        """Run a share of the schedule's groups, chosen by ``seed``, each in parallel; return how many tests ran.

        The first two groups, whose tables others use, always run.
        """
        count = 0
        results.mkdir()
        (results / "results").mkdir()
        results.chmod(0o777)
        (results / "results").chmod(0o777)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            first, second, *others = read_schedule(self._folder)
            chosen = sorted(Random(seed).sample(range(len(others)), round(share * len(others))))
            for group in (first, second, *(others[number] for number in chosen)):
                list(pool.map(lambda test: self._run_test(test, results), group))
                count += len(group)
        return count

    def _run_test(self, test: str, results: Path) -> None:
        environment = os.environ | {
            "PGHOST": "127.0.0.1", "PGPORT": str(self._server.port), "PGUSER": self._server.user,
            "PGPASSWORD": self._server.password, "PGDATABASE": "regression", "PGTZ": "America/Los_Angeles",
            "PGDATESTYLE": "Postgres, MDY", "PGOPTIONS": "-c intervalstyle=postgres_verbose",
            "PG_ABS_SRCDIR": str(self._folder), "PG_ABS_BUILDDIR": str(results), "PG_LIBDIR": str(self._folder),
            "PG_DLSUFFIX": ".so", "PGAPPNAME": f"pg_regress/{test}",
        }
        source = self._folder / "sql" / f"{test}.sql"
        with source.open("rb") as statements, (results / f"{test}.out").open("wb") as output:
            try:
                subprocess.run(
                    [binaries() / "psql", "-X", "-a", "-q", "-v", "HIDE_TABLEAM=on"], stdin=statements, stdout=output,
                    stderr=output, env=environment, check=False, timeout=_TEST_SECONDS, cwd=results,
                )
            except subprocess.TimeoutExpired:
                output.write(b"\nended after its time limit\n")


def read_schedule(folder: Path) -> Iterator[list[str]]:
    """Yield the groups of tests that run at the same time, in order."""
    for line in (folder / "parallel_schedule").read_text(encoding="utf-8").splitlines():
        if tests := re.match(r"test:\s*(.*)", line):
            yield tests[1].split()
