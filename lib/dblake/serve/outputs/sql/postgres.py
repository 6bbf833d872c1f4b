"""PostgreSQL as a target: COPY into temporary tables, INSERT … ON CONFLICT.

Place: below ``output``. Guarantee: text is written as the source sent it; what PostgreSQL cannot hold is rejected by
table and column. DDL is part of the transaction.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.csv

from dblake.base.core.connection_faults import LOST, libpq_fault
from dblake.base.core.errors import ConfigError
from dblake.serve.outputs.sql.errors import ValueRejected, postgres_fault, target_failure
from dblake.serve.outputs.sql.settings import SqlSettings
from dblake.serve.outputs.sql.target import MOVED_COLUMNS, STAGE_COLUMNS, Target, TargetTable
from dblake.serve.outputs.sql.types import postgres_type

_SSLMODE = {"verify": "verify-full", "require": "require", "disable": "disable"}
_NO_CA_FILE = "/dev/null/none"
"""``require`` accepts any certificate; libpq would verify it if it found a CA file at one of its default paths."""
# The server ends the transaction of a process that was frozen in it: its standby waits for the rows.
_PINNED = {
    "TimeZone": "UTC", "DateStyle": "ISO,YMD", "IntervalStyle": "postgres", "lc_monetary": "C",
    "standard_conforming_strings": "on", "lock_timeout": "1min", "idle_in_transaction_session_timeout": "2min",
    "default_transaction_isolation": "read committed", "default_transaction_read_only": "off",
}
_NUMBERS = {
    "incarnation": pa.int64(), "lsn": pa.int64(), "seq": pa.int64(), "deleted": pa.bool_(), "incomplete": pa.int64(),
    "shape": pa.int64(), **dict.fromkeys(MOVED_COLUMNS, pa.int64()),
}
_DATA_CLASSES = ("22", "23", "54")
"""SQLSTATE classes of a row that the target cannot hold: data exceptions, constraints, limits."""
_HAS_NO_EQUALITY = re.compile(r"json\b|xml|point|line|lseg|box|path|polygon|circle")
"""Types without an operator that compares all of a value: boxes and circles are equal if their areas are."""
_COPY_COLUMN = re.compile(r"column c(\d+)")


class PostgresTarget(Target):
    """A connection to PostgreSQL."""

    max_name = 63
    has_transactional_ddl = True
    folds_case = False
    large_text = "text"
    temporary = ""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self._schema = settings.schema or "public"
        self._connection: Any = None
        self._loaded: TargetTable | None = None

    def connect(self) -> None:
        given = self._settings
        with self._translated():
            self._connection = psycopg2.connect(
                host=given.host, port=given.port, dbname=given.database, user=given.user,
                password=given.password, sslmode=_SSLMODE[given.tls], gssencmode="disable", connect_timeout=10,
                sslrootcert=given.tls_ca if given.tls == "verify" else _NO_CA_FILE, keepalives_idle=30,
                tcp_user_timeout=60_000, client_encoding="UTF8", application_name=f"dblake output {given.name}",
                options=" ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in _PINNED.items()),
            )
            self._connection.autocommit = True
        encoding = self.query("SHOW server_encoding")[0][0]
        if encoding != "UTF8":
            raise ConfigError(
                f"output {given.name}: the target database has the encoding {encoding}, which cannot hold all text",
                next_step="use a database with the encoding UTF8",
            )
        if not self.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)):
            self.execute(f"CREATE SCHEMA {self.quote(self._schema)}")
        self.execute(f"SET search_path = {self.quote(self._schema)}, pg_catalog, public")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> int:
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return int(cursor.rowcount)

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def begin(self) -> None:
        self.execute("BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection is not None and not self._connection.closed:
            try:
                with self._connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
            except psycopg2.Error:
                self.close()

    def begin_snapshot(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        # Between two statements, the lake is read.
        self.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        # Staged rows are few: their keys are looked up, whatever the planner knows of the stage.
        self.execute("SET LOCAL enable_hashjoin = off")
        self.execute("SET LOCAL enable_mergejoin = off")

    def find_unsafe_tables(self, names: Sequence[str]) -> list[str]:  # noqa: ARG002
        return []

    def create_keys(self, name: str, table: TargetTable) -> None:
        keys = ", ".join(f"{staged} AS k{number}" for number, staged in enumerate(table.staged_key))
        self.execute(f"CREATE TEMPORARY TABLE {name} AS SELECT {keys} FROM {table.stage} WITH NO DATA")
        self.execute(f"CREATE INDEX ON {name} ({', '.join(f'k{number}' for number in range(len(table.key)))})")

    def differs(self, left: str, right: str, sql_type: str) -> str:
        if _HAS_NO_EQUALITY.match(sql_type):
            left, right = f"{left}::text", f"{right}::text"
        elif sql_type.startswith(("text", "character")) and not sql_type.endswith("[]"):
            left, right = f'{left} COLLATE "C"', f'{right} COLLATE "C"'
        return f"({left} IS DISTINCT FROM {right})"

    def text_of(self, value: str, sql_type: str) -> str:  # noqa: ARG002
        return f"{value}::text"

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def column_type(self, source_type: str, key_columns: int) -> str:  # noqa: ARG002 - text is indexed too
        return postgres_type(source_type)

    def column_sql(self, sql_type: str) -> str:
        return sql_type

    def find_columns(self, name: str) -> dict[str, str]:
        rows = self.query(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_class c "
            "ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s "
            "AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum", (self._schema, name),
        )
        return dict(rows)

    def check_key(self, name: str, key: Sequence[str]) -> None:
        uniques = self.query(
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace "
            "n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) "
            "WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indimmediate AND i.indpred IS NULL "
            "AND i.indexprs IS NULL GROUP BY i.indexrelid", (self._schema, name),
        )
        if not any(set(names) == set(key) for (names,) in uniques):
            raise ConfigError(
                f"output {self._settings.name}: the target's table {name} has no unique key ({', '.join(key)})",
                next_step="add that primary key to the table, or drop the table so that the output creates it",
            )

    def change_type(self, name: str, column: str, sql_type: str) -> None:
        quoted = self.quote(column)
        self.execute(f"ALTER TABLE {self.quote(name)} ALTER {quoted} TYPE {sql_type} USING {quoted}::{sql_type}")

    def create_guard(self, table: TargetTable) -> None:
        keys = ", ".join(f"{self.quote(a)} AS {b}" for a, b in zip(table.key, table.guard_key, strict=True))
        self.execute(f"CREATE TABLE {table.guard} AS SELECT {keys} FROM {table.table} WITH NO DATA")
        self.execute(
            f"ALTER TABLE {table.guard} ADD incarnation bigint NOT NULL, ADD lsn bigint NOT NULL, ADD seq bigint NOT "
            "NULL, ADD deleted boolean NOT NULL, ADD incomplete smallint NOT NULL, ADD seen bigint NOT NULL, "
            f"ADD PRIMARY KEY ({', '.join(table.guard_key)})"
        )

    def create_stage(self, table: TargetTable) -> None:
        own = ", ".join(f"{self.quote(name)} AS c{index}" for index, name in enumerate(table.columns))
        origin = ", ".join(f"{self.quote(a)} AS {b}" for a, b in zip(table.key, table.origin_key, strict=True))
        moved = ", ".join(f"0::bigint AS {name}" for name in MOVED_COLUMNS)
        self.execute(f"DROP TABLE IF EXISTS pg_temp.{table.stage}")
        self.execute(
            f"CREATE TEMPORARY TABLE {table.stage} ON COMMIT DELETE ROWS AS SELECT {own}, 0::bigint AS incarnation, "
            f"0::bigint AS lsn, 0::bigint AS seq, FALSE AS deleted, 0::smallint AS incomplete, 0 AS shape, "
            f"{moved}, {origin} FROM {table.table} WITH NO DATA"
        )

    def load(self, table: TargetTable, columns: Mapping[str, Sequence[Any]]) -> None:
        self._loaded = table
        try:
            rows = pa.table({
                name: pa.array(values, _NUMBERS.get(name, pa.string())) for name, values in columns.items()
            })
        except (UnicodeEncodeError, pa.ArrowInvalid) as error:
            raise ValueRejected("text that is not valid Unicode") from error
        buffer = io.BytesIO()
        pa.csv.write_csv(rows, buffer, pa.csv.WriteOptions(include_header=False))
        if b"\0" in buffer.getvalue():
            raise ValueRejected("the character NUL, which PostgreSQL's text cannot hold", _column_with_nul(columns))
        buffer.seek(0)
        self.execute(f"DELETE FROM {table.stage}")
        with self._translated(), self._connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {table.stage} ({', '.join(columns)}) FROM STDIN (FORMAT csv)", buffer)

    def delete_join(self, victim: str, other: str, condition: str) -> None:
        self.execute(f"DELETE FROM {victim} a USING {other} b WHERE {condition}")

    def update_join(self, table: str, assignments: Mapping[str, str], other: str, condition: str) -> None:
        values = ", ".join(f"{name} = {value}" for name, value in assignments.items())
        self.execute(f"UPDATE {table} a SET {values} FROM {other} b WHERE {condition}")

    def upsert(self, table: TargetTable, columns: Sequence[str], condition: str) -> None:
        names = [self.quote(name) for name in columns]
        staged = ", ".join(f"s.c{table.columns.index(name)}" for name in columns)
        changed = [name for name, plain in zip(names, columns, strict=True) if plain not in table.key]
        sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in changed)
        keys = ", ".join(self.quote(name) for name in table.key)
        self.execute(
            f"INSERT INTO {table.table} AS t ({', '.join(names)}) SELECT {staged} FROM {table.stage} s WHERE "
            f"{condition} ON CONFLICT ({keys}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
        )

    def upsert_guard(self, table: TargetTable, seen: int) -> None:
        own = ", ".join(name for name in STAGE_COLUMNS if name != "shape")
        keys = ", ".join(table.guard_key)
        self.execute(
            f"INSERT INTO {table.guard} AS g ({keys}, {own}, seen) SELECT {', '.join(table.staged_key)}, {own}, {seen} "
            f"FROM {table.stage} ON CONFLICT ({keys}) DO UPDATE SET incarnation = EXCLUDED.incarnation, "
            "lsn = EXCLUDED.lsn, seq = EXCLUDED.seq, seen = EXCLUDED.seen, deleted = EXCLUDED.deleted, "
            "incomplete = CASE WHEN EXCLUDED.incomplete = 1 AND NOT g.deleted AND g.incomplete = 0 THEN 0 "
            "ELSE EXCLUDED.incomplete END"
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: psycopg2.Error) -> Exception:
        code, text = error.pgcode or "", str(error)
        if code.startswith(_DATA_CLASSES):
            match = _COPY_COLUMN.search(error.diag.context or "")
            column = self._loaded.columns[int(match[1])] if match and self._loaded else error.diag.column_name
            return ValueRejected(f"a value that the target's column cannot hold (SQLSTATE {code})", column)
        # Without a code the connection failed, or was lost.
        return target_failure(self._settings, postgres_fault(code) if code else libpq_fault(text) or LOST)


def _column_with_nul(columns: Mapping[str, Sequence[Any]]) -> int | None:
    """Return the number of the first column that has the character NUL."""
    for number, values in enumerate(columns.values()):
        if any(isinstance(value, str) and "\0" in value for value in values):
            return number
    return None
