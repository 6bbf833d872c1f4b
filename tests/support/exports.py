"""Files of a table's rows with the position they were taken at, as a user of ``dump import`` makes them.

PostgreSQL's position comes from the transaction that exports, MySQL's and MariaDB's from the statement that
``mysqldump --source-data`` uses; the memory twin acts as PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from psycopg2 import sql

from dblake.base.core.names import split_qualified
from dblake.base.core.source import Source
from dblake.ingest.capture.import_request import ImportQueue
from dblake.ingest.capture.table_life import read_lives, save_life
from dblake.ingest.imports.spec import ImportFiles
from dblake.ingest.source.memory.source import MemorySource
from dblake.ingest.source.mysql.sql_literals import identifier
from dblake.ingest.source.postgres.lsn import lsn_text
from tests.support.backends import Backend, MemoryBackend, PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.mysql_backend import MysqlBackend

_SETTINGS = {
    "TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres", "extra_float_digits": "3",
    "bytea_output": "hex", "lc_monetary": "C", "search_path": "pg_catalog",
}


@dataclass(frozen=True)
class Export:
    """The options of an import of one export."""

    source_type: str
    files: ImportFiles


def export(backend: Backend, table: str, file: Path, format_: str = "", *, select: str = "*") -> Export:
    """Write a table to a file and return what its import needs; the default format is that of the database's dump.

    ``select`` are the columns on MySQL and MariaDB.
    """
    if isinstance(backend, MysqlBackend):
        return _export_mysql(backend, table, file, format_ or "mysqldump", select)
    if isinstance(backend, PostgresBackend):
        return _export_postgres(backend, table, file, format_ or "pg_dump")
    assert isinstance(backend, MemoryBackend)
    view = backend.database.see(table)
    assert view is not None
    rows = pa.Table.from_pylist(backend.rows(table), pa.schema([(name, pa.string()) for name in view.schema.names]))
    _write(rows, file, format_ or "csv")
    at, snapshot = lsn_text(backend.log_end()), view.snapshot
    return Export("postgres", ImportFiles(format_ or "csv", [str(file)], at, snapshot))


def _export_postgres(backend: PostgresBackend, table: str, file: Path, format_: str) -> Export:
    connection = backend.database.connect()
    connection.set_session(isolation_level="REPEATABLE READ", autocommit=False)
    with connection.cursor() as cursor:
        for name, value in _SETTINGS.items():
            cursor.execute(f"SET {name} = '{value}'")
        cursor.execute("SELECT pg_current_wal_lsn()::text, pg_current_snapshot()::text")
        at, snapshot = cursor.fetchone()
        copy = "COPY {} TO STDOUT" + {"pg_dump": "", "csv": " (FORMAT csv, HEADER)"}[format_]
        with file.open("wb") as out:
            cursor.copy_expert(sql.SQL(copy).format(sql.Identifier(*split_qualified(table))), out)
    connection.close()
    return Export("postgres", ImportFiles(format_, [str(file)], at, snapshot))


def _export_mysql(backend: MysqlBackend, table: str, file: Path, format_: str, select: str) -> Export:
    connection, name = backend.server.connect(), identifier(*split_qualified(table))
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = "MASTER STATUS" if backend.server.flavour == "mariadb" else "BINARY LOG STATUS"
        cursor.execute(f"SHOW {status}")
        log_file, offset = cursor.fetchone()[:2]
        cursor.execute("UNLOCK TABLES")
        if format_ == "mysqldump":
            cursor.execute(f"SELECT {select} INTO OUTFILE '{file}' FROM {name}")
        else:
            cursor.execute(f"SELECT {select} FROM {name}")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, map(str, row), strict=True)) for row in cursor.fetchall()]
            _write(pa.Table.from_pylist(rows), file, format_)
    connection.close()
    return Export(backend.server.flavour, ImportFiles(format_, [str(file)], f"{log_file}:{offset}"))


def _write(rows: pa.Table, file: Path, format_: str) -> None:
    if format_ == "csv":
        pa_csv.write_csv(rows, file)
    else:
        pq.write_table(rows, file)


def queue_import(
    lake: CaptureLake, source: Source, table: str, taken: Export, *, replaces: bool = False,
    landing_days: int | None = None,
) -> str:
    """Queue the import of a table as ``dump import`` does; return its id."""
    if isinstance(source, MemorySource):
        # The clock of the twin's commits begins in 2024.
        save_life(lake.store, replace(read_lives(lake.store)[table], since="2024-01-01T00:00:00Z"))
    queue = ImportQueue(taken.source_type, lake.paths.landing, lake.store, landing_days=landing_days)
    schema = next(schema for schema in source.tables() if schema.table == table)
    return queue.add(taken.files, schema, is_masked=False, replaces=replaces)[0]
