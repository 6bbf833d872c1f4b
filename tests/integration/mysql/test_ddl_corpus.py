"""Every statement of a generated corpus, executed by a real server and compared with its classification.

A statement that changes rows of a table, or removes it, must be classified as one that does. The session is not strict,
so that conversions lose values.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from dblake.ingest.source.mysql.ddl import Statement, StatementKind, classify
from dblake.ingest.source.mysql.events import Query
from tests.support.ddl_clauses import CLAUSES, PARTITION_CLAUSES
from tests.support.effort import EFFORT
from tests.support.mysql import MysqlServer

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, s varchar(20) CHARACTER SET utf8mb4 DEFAULT 'd', d decimal(10,4),"
    " ts datetime(6), g int AS (n + 1) STORED, KEY i (n))",
    "INSERT INTO t (id, n, s, d, ts) VALUES (1, 10, 'ä', 1.2345, '2026-01-02 03:04:05.678901'),"
    " (2, NULL, NULL, NULL, NULL), (3, 10, 'c  ', 99999.9999, '2026-01-02 03:04:05.000001')",
    "CREATE TABLE p (id int, k int, v varchar(9), PRIMARY KEY (id, k)) PARTITION BY RANGE (k)"
    " (PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20))",
    "INSERT INTO p VALUES (1, 1, 'a'), (2, 11, 'b')",
    "CREATE TABLE x (id int, k int, v varchar(9), PRIMARY KEY (id, k))", "INSERT INTO x VALUES (9, 9, 'x')",
    "CREATE TABLE u LIKE t",
)
KEYS = {"t": ("id",), "p": ("id", "k"), "x": ("id", "k"), "u": ("id",)}
STATEMENTS = (
    "TRUNCATE t", "TRUNCATE TABLE corpus.t", "DROP TABLE t", "DROP TABLE IF EXISTS x, t", "DROP DATABASE corpus",
    "DROP SCHEMA IF EXISTS corpus", "CREATE OR REPLACE DATABASE corpus",
    "CREATE OR REPLACE TABLE t (id int PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS t (id int)", "RENAME TABLE t TO z", "RENAME TABLE t TO z, u TO t",
    "RENAME TABLE x TO z, u TO x", "CREATE INDEX j ON t (s)", "DROP INDEX i ON t", "OPTIMIZE TABLE t",
    "ANALYZE TABLE t", "CHECK TABLE t", "REPAIR TABLE t", "CREATE VIEW w AS SELECT 1", "FLUSH TABLES",
    "ALTER DATABASE corpus CHARACTER SET latin1",
)


def alters(rng: random.Random, pairs: int, flavour: str) -> Iterator[str]:
    modifiers = ("", "IGNORE ", "ONLINE ") if flavour == "mariadb" else ("",)
    for modifier, clause in itertools.product(modifiers, CLAUSES):
        yield f"ALTER {modifier}TABLE t {clause}"
    for clause in PARTITION_CLAUSES:
        yield f"ALTER TABLE p {clause}"
    for _ in range(pairs):
        modifier, (first, second) = rng.choice(modifiers), rng.sample(CLAUSES, 2)
        yield f"ALTER {modifier}TABLE /* x */ `t` {first}{rng.choice([', ', ' , /*!50000 FORCE, */ '])}{second}"


def corpus(flavour: str, pairs: int) -> list[str]:
    rng = random.Random(7)
    statements = [*STATEMENTS, *alters(rng, pairs, flavour)]
    if flavour == "mariadb":
        statements += [f"SET STATEMENT max_statement_time=60 FOR {s}" for s in STATEMENTS]
        statements += [f"SET STATEMENT sql_mode='' FOR {s}" for s in rng.sample(statements, min(60, len(statements)))]
    return statements if pairs else rng.sample(statements, 70)


Content = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


def read(cursor: Any) -> Content:
    """Return the rows of all tables that exist, by key."""
    content: Content = {}
    for table, keys in KEYS.items():
        try:
            cursor.execute(f"SELECT * FROM corpus.{table}")
        except pymysql.Error:
            continue
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, map(repr, row), strict=True)) for row in cursor.fetchall()]
        content[table] = {tuple(row.get(key) for key in keys): row for row in rows}
    return content


def is_kept(before: dict[tuple[Any, ...], dict[str, Any]], after: dict[tuple[Any, ...], dict[str, Any]] | None) -> bool:
    """Return True if what capture has of a table is still right: no row or value differs, and no column is new."""
    return after is not None and before.keys() == after.keys() and all(
        row.items() <= before[key].items() for key, row in after.items()
    )


def may_change(statement: Statement, table: str) -> bool:
    name = ("corpus", table)
    if statement.kind in (StatementKind.UNKNOWN, StatementKind.ROWS):
        return not statement.tables or name in statement.tables
    if statement.kind is StatementKind.TRUNCATE:
        return name in statement.tables
    return name in (*statement.rewrites, *statement.gone) or statement.dropped_schema == "corpus"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("flavour", "pairs"),
    [("mariadb", 0), pytest.param("mariadb", 100 * EFFORT, marks=pytest.mark.slow),
     pytest.param("mysql", 100 * EFFORT, marks=pytest.mark.slow)],
)
def test_classification_covers_what_statements_change(
    flavour: str, pairs: int, request: pytest.FixtureRequest
) -> None:
    server: MysqlServer = request.getfixturevalue(flavour)
    server.empty()
    executed, missed, changed = 0, list[tuple[str, str, Statement]](), 0
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for text in corpus(flavour, pairs):
            for statement in ("DROP DATABASE IF EXISTS corpus", "CREATE DATABASE corpus", "USE corpus", *TABLES):
                cursor.execute(statement)
            before = read(cursor)
            try:
                cursor.execute(text)
            except pymysql.Error:
                continue
            executed += 1
            after, classified = read(cursor), classify(Query(text, "corpus"))
            for table, rows in before.items():
                if not is_kept(rows, after.get(table)):
                    changed += 1
                    if not may_change(classified, table):
                        missed.append((text, table, classified))
    assert missed == []
    assert executed > 40
    assert changed > 10
    server.empty()
