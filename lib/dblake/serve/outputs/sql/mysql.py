"""MySQL and MariaDB as targets: multi-row INSERT into temporary tables, joined updates.

Place: below ``output``. Guarantee: a value that the target would cut or change is rejected by table and column (strict
SQL mode), but zero dates are kept. Text columns that the output creates compare byte by byte, so keys that differ at
the source differ here. DDL commits at once; the caller runs it outside of transactions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from dblake.base.core.connection_faults import LOST, network_fault
from dblake.base.core.errors import ConfigError, DblakeError
from dblake.base.core.tls import client_context
from dblake.serve.outputs.sql.errors import ValueRejected, mysql_fault, target_failure
from dblake.serve.outputs.sql.mysql_values import converted, converter
from dblake.serve.outputs.sql.settings import SqlSettings
from dblake.serve.outputs.sql.target import MOVED_COLUMNS, STAGE_COLUMNS, Target, TargetTable
from dblake.serve.outputs.sql.types import is_text, mysql_type

_IDLE_SECONDS, _LOCKED_SECONDS = 28_800, 120
"""How long the connection may be silent: between transactions, and in one."""
_PINNED = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00', autocommit = 1, "
    f"innodb_lock_wait_timeout = 60, wait_timeout = {_IDLE_SECONDS}, net_write_timeout = 600, foreign_key_checks = 1, "
    "sql_safe_updates = 0",
    "SET SESSION TRANSACTION READ WRITE",
)
_COLLATIONS = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}
"""Byte by byte, and trailing blanks count."""
_DATA_ERRORS = frozenset((
    1048, 1062, 1264, 1265, 1292, 1366, 1367, 1406, 1416, 1690, 3140, 3141, 3156, 4025, 1411, 1300, 3854, 1071, 1118,
))
_COLUMN = re.compile(r"column (?:`[^`]*`\.)*[`'](?:[^`']*\.)?([^`'.]+)[`']")


class MysqlTarget(Target):
    """A connection to MySQL or MariaDB."""

    max_name = 64
    has_transactional_ddl = False
    folds_case = True
    large_text = "longtext"
    temporary = "TEMPORARY"

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self._schema = settings.schema or settings.database
        self._connection: Any = None
        self._loaded: TargetTable | None = None
        self._types: dict[str, dict[str, str]] = {}

    def connect(self) -> None:
        given = self._settings
        with self._translated():
            self._connection = pymysql.connect(
                host=given.host, port=given.port, user=given.user, password=given.password, charset="utf8mb4",
                autocommit=True, program_name=f"dblake output {given.name}", connect_timeout=10, read_timeout=3600,
                max_allowed_packet=1 << 30, binary_prefix=True, client_flag=CLIENT.FOUND_ROWS, **_tls(given),
            )
        for statement in _PINNED:
            self.execute(statement)
        is_mariadb = "mariadb" in str(self.query("SELECT version()")[0][0]).lower()
        if is_mariadb is not (given.flavour == "mariadb"):
            raise ConfigError(
                f"output {given.name}: the server is {'MariaDB' if is_mariadb else 'MySQL'}, its url names another",
                next_step=f"begin outputs.{given.name}.url with {'mariadb' if is_mariadb else 'mysql'}",
            )
        if not self.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (self._schema,)):
            self.execute(f"CREATE DATABASE {self.quote(self._schema)} CHARACTER SET utf8mb4")
        self.execute(f"USE {self.quote(self._schema)}")
        self._types.clear()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(pymysql.Error, OSError):
                self._connection.close()
            self._connection = None

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> int:
        with self._translated(), self._connection.cursor() as cursor:
            return int(cursor.execute(statement, tuple(parameters) or None))

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(statement, tuple(parameters) or None)
            return list(cursor.fetchall())

    def begin(self) -> None:
        # The server ends the transaction of a process that was frozen in it: its standby waits for the rows.
        self.execute(f"SET SESSION wait_timeout = {_LOCKED_SECONDS}")
        self.execute("START TRANSACTION")

    def commit(self) -> None:
        self.execute("COMMIT")
        self.execute(f"SET SESSION wait_timeout = {_IDLE_SECONDS}")

    def rollback(self) -> None:
        if self._connection is not None:
            with suppress(DblakeError):
                self.execute("ROLLBACK")
                self.execute(f"SET SESSION wait_timeout = {_IDLE_SECONDS}")

    def begin_snapshot(self) -> None:
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")

    def find_unsafe_tables(self, names: Sequence[str]) -> list[str]:
        marks = ", ".join(["%s"] * len(names))
        rows = self.query(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name IN ({marks}) "
            "AND engine NOT IN ('InnoDB', 'ROCKSDB') ORDER BY 1", (self._schema, *names),
        )
        return [str(name) for (name,) in rows]

    def create_keys(self, name: str, table: TargetTable) -> None:
        keys = ", ".join(f"{staged} AS k{number}" for number, staged in enumerate(table.staged_key))
        index = ", ".join(f"k{number}" for number in range(len(table.key)))
        # An index that is added later would end the transaction.
        self.execute(
            f"CREATE TEMPORARY TABLE {name} (INDEX ({index})) ENGINE = InnoDB SELECT {keys} FROM {table.stage} LIMIT 0"
        )

    def differs(self, left: str, right: str, sql_type: str) -> str:
        if is_text(sql_type):
            left, right = f"CAST({left} AS BINARY)", f"CAST({right} AS BINARY)"
        return f"(NOT ({left} <=> {right}))"

    def text_of(self, value: str, sql_type: str) -> str:
        if sql_type.endswith(("blob", "binary")) or sql_type.startswith(("binary", "varbinary")):
            return f"CONCAT('\\\\x', LOWER(HEX({value})))"
        if sql_type.startswith("bit"):
            return f"BIN({value})"
        return f"CAST({value} AS CHAR)"

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def column_type(self, source_type: str, key_columns: int) -> str:
        return mysql_type(source_type, key_columns)

    def column_sql(self, sql_type: str) -> str:
        if is_text(sql_type):
            return f"{sql_type} CHARACTER SET utf8mb4 COLLATE {_COLLATIONS[self._settings.flavour]}"
        return sql_type

    def find_columns(self, name: str) -> dict[str, str]:
        rows = self.query(
            "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s "
            "AND table_name = %s ORDER BY ordinal_position", (self._schema, name),
        )
        return {str(column): str(kind) for column, kind in rows}

    def check_key(self, name: str, key: Sequence[str]) -> None:
        where = f"output {self._settings.name}: the target's table {name}"
        uniques = self.query(
            "SELECT GROUP_CONCAT(column_name SEPARATOR '\0') FROM information_schema.statistics WHERE non_unique = 0 "
            "AND table_schema = %s AND table_name = %s GROUP BY index_name", (self._schema, name),
        )
        if not any(set(str(names).split("\0")) == set(key) for (names,) in uniques):
            raise ConfigError(
                f"{where} has no unique key ({', '.join(key)})",
                next_step="add that primary key to the table, or drop the table so that the output creates it",
            )
        collations = self.query(
            "SELECT column_name, collation_name FROM information_schema.columns WHERE table_schema = %s AND "
            "table_name = %s AND collation_name IS NOT NULL", (self._schema, name),
        )
        loose = [column for column, collation in collations if column in key and not str(collation).endswith("_bin")]
        if loose:
            raise ConfigError(
                f"{where} compares its key column {loose[0]} by a collation in which different texts are equal",
                next_step="give the column a collation that ends with _bin, or drop the table",
            )

    def change_type(self, name: str, column: str, sql_type: str) -> None:
        self.execute(f"ALTER TABLE {self.quote(name)} MODIFY {self.quote(column)} {self.column_sql(sql_type)}")

    def create_guard(self, table: TargetTable) -> None:
        keys = ", ".join(f"{self.quote(a)} AS {b}" for a, b in zip(table.key, table.guard_key, strict=True))
        self.execute(
            f"CREATE TABLE {table.guard} (incarnation bigint DEFAULT 0 NOT NULL, lsn bigint DEFAULT 0 NOT NULL, seq "
            "bigint DEFAULT 0 NOT NULL, deleted boolean DEFAULT FALSE NOT NULL, incomplete smallint DEFAULT 0 NOT "
            "NULL, seen bigint DEFAULT 0 NOT NULL, PRIMARY KEY "
            f"({', '.join(table.guard_key)})) ENGINE = InnoDB SELECT {keys} FROM {table.table} LIMIT 0"
        )

    def create_stage(self, table: TargetTable) -> None:
        # An outer join makes every column nullable.
        own = ", ".join(f"t.{self.quote(name)} AS c{index}" for index, name in enumerate(table.columns))
        # Columns of a key stay NOT NULL there.
        origin = ", ".join(
            f"IF(o.one = 1, t.{self.quote(a)}, NULL) AS {b}" for a, b in zip(table.key, table.origin_key, strict=True)
        )
        moved = ", ".join(f"{name} bigint" for name in MOVED_COLUMNS)
        self.execute(f"DROP TEMPORARY TABLE IF EXISTS {table.stage}")
        self.execute(
            f"CREATE TEMPORARY TABLE {table.stage} (incarnation bigint, lsn bigint, seq bigint, deleted boolean, "
            f"incomplete smallint, shape int, {moved}) ENGINE = InnoDB SELECT {own}, {origin} FROM (SELECT 1 AS one) o "
            f"LEFT JOIN {table.table} t ON FALSE LIMIT 0"
        )
        self._types[table.stage] = self.find_columns(table.name)

    def load(self, table: TargetTable, columns: Mapping[str, Sequence[Any]]) -> None:
        self._loaded = table
        kinds = self._types[table.stage]
        lists: list[Sequence[Any]] = []
        names = {f"c{index}": name for index, name in enumerate(table.columns)}
        names.update(zip(table.origin_key, table.key, strict=True))
        for number, (name, values) in enumerate(columns.items()):
            convert = converter(kinds[names[name]]) if name in names else None
            lists.append(values if convert is None else converted(values, convert, number))
        self.execute(f"DELETE FROM {table.stage}")
        marks = ", ".join(["%s"] * len(lists))
        with self._translated(), self._connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {table.stage} ({', '.join(columns)}) VALUES ({marks})", zip(*lists, strict=True)
            )

    def delete_join(self, victim: str, other: str, condition: str) -> None:
        self.execute(f"DELETE a FROM {victim} a JOIN {other} b ON {condition}")

    def update_join(self, table: str, assignments: Mapping[str, str], other: str, condition: str) -> None:
        values = ", ".join(f"a.{name} = {value}" for name, value in assignments.items())
        self.execute(f"UPDATE {table} a JOIN {other} b ON {condition} SET {values}")

    def upsert(self, table: TargetTable, columns: Sequence[str], condition: str) -> None:
        # Not ON DUPLICATE KEY: that would overwrite the row of another key on a conflict in a further unique index.
        names = [self.quote(name) for name in columns]
        staged = [f"s.c{table.columns.index(name)}" for name in columns]
        match = " AND ".join(
            f"t.{self.quote(name)} = s.{column}" for name, column in zip(table.key, table.staged_key, strict=True)
        )
        sets = [f"t.{name} = {value}" for name, value, plain in zip(names, staged, columns, strict=True)
                if plain not in table.key]
        if sets:
            self.execute(
                f"UPDATE {table.table} t JOIN {table.stage} s ON {match} SET {', '.join(sets)} WHERE {condition}"
            )
        self.execute(
            f"INSERT INTO {table.table} ({', '.join(names)}) SELECT {', '.join(staged)} FROM {table.stage} s LEFT JOIN "
            f"{table.table} t ON {match} WHERE {condition} AND t.{self.quote(table.key[0])} IS NULL"
        )

    def upsert_guard(self, table: TargetTable, seen: int) -> None:
        own = [name for name in STAGE_COLUMNS if name != "shape"]
        staged = ", ".join(f"s.{name}" for name in (*table.staged_key, *own))
        self.execute(
            f"INSERT INTO {table.guard} ({', '.join((*table.guard_key, *own))}, seen) SELECT {staged}, {seen} FROM "
            f"{table.stage} s ON DUPLICATE KEY UPDATE "
            # Assignments apply from left to right, so this one sees the old deleted.
            f"incomplete = CASE WHEN s.incomplete = 1 AND NOT {table.guard}.deleted AND {table.guard}.incomplete = 0 "
            "THEN 0 ELSE s.incomplete END, incarnation = s.incarnation, lsn = s.lsn, seq = s.seq, "
            f"deleted = s.deleted, seen = {seen}"
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except pymysql.Error as error:
            raise self._failure(error) from error
        except UnicodeEncodeError as error:
            raise ValueRejected("text that is not valid Unicode") from error
        except (OSError, AttributeError) as error:
            # PyMySQL's lost connections have no socket.
            raise target_failure(self._settings, network_fault(error) or LOST) from error

    def _failure(self, error: pymysql.Error) -> Exception:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if number in _DATA_ERRORS:
            match = _COLUMN.search(str(error.args[-1]))
            column: int | str | None = match[1] if match else None
            if match and self._loaded and re.fullmatch(r"c\d+", match[1]):
                column = self._loaded.columns[int(match[1][1:])]
            return ValueRejected(f"a value that the target's column cannot hold (error {number})", column)
        return target_failure(self._settings, network_fault(error) or mysql_fault(number))


def _tls(settings: SqlSettings) -> dict[str, Any]:
    if settings.tls == "disable":
        return {"ssl_disabled": True}
    try:
        context = client_context(settings.tls_ca, is_verified=settings.tls != "require", is_strict=False)
    except OSError as error:
        raise ConfigError(
            f"outputs.{settings.name}.tls_ca: there is no such file of certificates, or it cannot be read",
            next_step="name a file of certificates in PEM",
        ) from error
    return {"ssl": context}

