"""Difficult cases in the binlogs of real MariaDB and MySQL servers.

Cut and compressed transactions, XA, statements, files that roll over, are purged or reset.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from dblake.base.core.errors import ExitCode, PositionLost, SourceError, Unsupported
from dblake.base.core.position import ResumePoint
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import LogPiece, WatermarkSeen
from dblake.ingest.source.mysql import catalog
from dblake.ingest.source.mysql.connection import connect
from dblake.ingest.source.mysql.log import MysqlLogStream
from dblake.ingest.source.mysql.log_position import LogPosition
from dblake.ingest.source.mysql.settings import MysqlSettings
from dblake.payloads.decode.batch import decode
from dblake.payloads.decode.columns import DECODER_INPUT
from tests.support.mysql import MysqlServer

Row = dict[str, Any]


class Log:
    """The log of a server from where this was made on, read in whatever pieces, in streams opened and closed."""

    def __init__(self, server: MysqlServer, *patterns: str) -> None:
        self.server = server
        self.settings = MysqlSettings(
            "shop", server.flavour, "127.0.0.1", server.port, server.user, server.password, patterns or ("shop.*",),
            tls="disable",
        )
        self.rows: list[Row] = []
        self.seen: list[WatermarkSeen] = []
        self.pieces: list[LogPiece] = []
        self._stream = MysqlLogStream(self.settings, None, 1)
        self.resume = self._stream.start

    def piece(self, *, max_bytes: int = 1 << 20, max_rows: int = 1 << 20, seconds: float = 0.1) -> LogPiece | None:
        piece = self._stream.read(max_bytes=max_bytes, max_rows=max_rows, seconds=seconds)
        if piece:
            self.pieces.append(piece)
            self.rows += piece.rows.to_pylist()
            self.seen += piece.watermarks
            self.resume = piece.reached
        return piece

    def reopen(self) -> None:
        """As a capture that starts again from what has landed."""
        self.close()
        self._stream = MysqlLogStream(self.settings, self.resume, 1)

    def to_end(self, *, reopen: bool = False, **limits: int) -> list[Row]:
        """Read to the present end of the log; return all rows so far."""
        value = str(uuid4())
        self.server.run(f"UPDATE dblake.watermark SET value = '{value}' WHERE id = 7")
        deadline = time.monotonic() + 20
        while not any(mark.value == value for mark in self.seen):
            assert time.monotonic() < deadline, "the end of the log does not come"
            if self.piece(**limits) and reopen:
                self.reopen()
        return self.rows

    def refusal(self) -> SourceError:
        """Read until the stream raises an error; return it."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                self.piece()
            except SourceError as error:
                return error
        raise AssertionError("nothing was refused")

    def close(self) -> None:
        self._stream.close()


def prepared(server: MysqlServer) -> None:
    server.run(
        "CREATE DATABASE shop", "CREATE DATABASE other", "CREATE DATABASE dblake",
        "CREATE TABLE dblake.watermark (id int PRIMARY KEY, value varchar(36))",
        "INSERT INTO dblake.watermark VALUES (0, ''), (1, ''), (7, '')",
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(2000))" for name in ("shop.a", "shop.b", "other.c")),
    )


@pytest.fixture
def open_log(mysql_server: MysqlServer) -> Iterator[Callable[..., Log]]:
    """Yield a function that opens logs of the server; close them with the test."""
    prepared(mysql_server)
    logs: list[Log] = []

    def make(*patterns: str) -> Log:
        logs.append(Log(mysql_server, *patterns))
        return logs[-1]

    yield make
    for log in logs:
        log.close()


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    return open_log()


def kinds(rows: list[Row]) -> list[tuple[str, str, bool]]:
    """All but schemas: what, of which table, whether it is its transaction's last."""
    return [(row["kind"], row["table"], row["last_in_txn"]) for row in rows if row["kind"] != "schema"]


def changes(rows: list[Row]) -> list[tuple[str, str, str | None, str | None]]:
    """Every row change, decoded: table, what, id, v; in order."""
    schemas = {s.schema_id: s for s in (TableSchema.from_json(r["payload"]) for r in rows if r["kind"] == "schema")}
    wanted = [{**row, "batch": 1} for row in rows if row["kind"] == "row"]
    found = decode(pa.RecordBatch.from_pylist(wanted, schema=DECODER_INPUT), schemas).to_pylist() if wanted else []
    found.sort(key=lambda r: (r["lsn"], r["seq"]))
    changes = []
    for row in found:
        image = dict(row["after"] or row["before"])
        changes.append((row["table"], row["op"], image.get("id"), image.get("v")))
    return changes


def positions(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["lsn"], row["seq"]) for row in rows if row["kind"] != "schema"]


# Whole transactions; shop.* is captured.
TRANSACTIONS = (
    "INSERT INTO shop.a VALUES (1, '')",
    "INSERT INTO shop.a VALUES (2, ''); INSERT INTO shop.a VALUES (3, '')",
    "INSERT INTO other.c VALUES (1, ''); INSERT INTO shop.a VALUES (4, '')",
    "INSERT INTO shop.a VALUES (5, ''); INSERT INTO other.c VALUES (2, '')",
    "INSERT INTO other.c VALUES (3, '')",
    "INSERT INTO shop.a VALUES (6, ''); INSERT INTO shop.b VALUES (1, '')",
    "UPDATE shop.a SET v = 'x'; UPDATE shop.a SET v = 'y'; UPDATE shop.a SET v = 'z'",
    "TRUNCATE shop.b",
    "DELETE FROM shop.a WHERE id > 4; DELETE FROM other.c",
    "INSERT INTO shop.b VALUES (9, '')",
)
ROWS = [  # kind, table, last of its transaction
    ("row", "shop.a", True),
    ("row", "shop.a", False), ("row", "shop.a", True),
    ("row", "shop.a", True),
    ("row", "shop.a", True),
    ("row", "shop.a", False), ("row", "shop.b", True),
    ("row", "shop.a", False), ("row", "shop.a", False), ("row", "shop.a", True),
    ("truncate", "shop.b", True),
    ("row", "shop.a", True),
    ("row", "shop.b", True),
]


def write(server: MysqlServer, *transactions: str) -> None:
    with closing(server.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        for transaction in transactions:
            for statement in transaction.split("; "):
                cursor.execute(statement)
            connection.commit()


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize(
    "max_rows", [1, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (2, 3)), 1000]
)
@pytest.mark.parity
def test_rows_land_once_wherever_log_is_cut(log: Log, max_rows: int, reopen: bool) -> None:
    write(log.server, *TRANSACTIONS)
    rows = log.to_end(max_rows=max_rows, reopen=reopen)
    assert kinds(rows) == ROWS
    assert positions(rows) == sorted(set(positions(rows)))


def test_large_transaction_resumes_in_middle(log: Log) -> None:
    write(
        log.server,
        "INSERT INTO shop.a WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
        " SELECT x.i * 20 + y.i, repeat('x', 100) FROM n x JOIN n y WHERE y.i <= 20 ORDER BY 1"
        if log.server.flavour == "mysql" else
        "INSERT INTO shop.a SELECT seq, repeat('x', 100) FROM shop.seq_21_to_20020",
        "INSERT INTO shop.b VALUES (1, 'after')",
    )
    rows = log.to_end(max_bytes=200_000, reopen=True)
    found = changes(rows)
    assert [row[2] for row in found[:-1]] == [str(n) for n in range(21, 20_021)]
    assert found[-1] == ("shop.b", "c", "1", "after")
    inside = [piece for piece in log.pieces if piece.reached.landed is not None]
    assert len(inside) >= 9
    assert len({piece.reached.token for piece in inside}) == 1
    assert [row["last_in_txn"] for row in rows if row["kind"] == "row"][-2:] == [True, True]
    assert sum(row["last_in_txn"] for row in rows if row["kind"] == "row") == 2
    assert max(piece.bytes for piece in log.pieces) < 230_000


TWO_OF_EACH = [
    ("shop.a", "c", "1", "x" * 900), ("shop.a", "c", "2", "y" * 900), ("shop.a", "u", "1", "z" * 900),
    ("shop.a", "d", "2", "y" * 900), ("shop.b", "c", "3", "plain"),
]


@pytest.mark.parity
def test_compressed_transactions_unpacked(log: Log) -> None:
    if log.server.flavour == "mariadb":
        log.server.run("SET GLOBAL log_bin_compress = ON")
    on = "SET SESSION binlog_transaction_compression = ON" if log.server.flavour == "mysql" else "DO 1"
    try:
        write(
            log.server,
            f"{on}; INSERT INTO shop.a VALUES (1, repeat('x', 900)), (2, repeat('y', 900));"
            " UPDATE shop.a SET v = repeat('z', 900) WHERE id = 1; DELETE FROM shop.a WHERE id = 2",
        )
    finally:
        if log.server.flavour == "mariadb":
            log.server.run("SET GLOBAL log_bin_compress = OFF")
    write(log.server, "INSERT INTO shop.b VALUES (3, 'plain')")
    rows = log.to_end(max_rows=1, reopen=True)
    assert changes(rows) == TWO_OF_EACH
    assert kinds(rows) == [("row", "shop.a", False), ("row", "shop.a", False), ("row", "shop.a", True),
                           ("row", "shop.b", True)]
    assert {row["payload"][4] for row in rows if row["kind"] == "row"} <= {23, 24, 25, 30, 31, 32}


@pytest.mark.parity
def test_log_schema_equals_catalog_schema(log: Log) -> None:
    own = {
        "mysql": "j json, vec vector(3), inv int INVISIBLE, KEY fun ((abs(i)))",
        "mariadb": "j json, u uuid, i4 inet4, i6 inet6, inv int INVISIBLE, s16 binary(16), s4 binary(4)",
    }[log.server.flavour]
    log.server.run(
        "CREATE TABLE shop.types (k2 varchar(30) CHARACTER SET latin1, i int, iu int unsigned, t tinyint(1) unsigned,"
        " sm smallint, me mediumint unsigned zerofill, bi bigint unsigned, de decimal(10,3) unsigned, f float unsigned,"
        " d double, b1 bit(1), b9 bit(9), y year, ch char(10), chg char(200) CHARACTER SET gbk, vb varbinary(300),"
        " bn binary(20), tx text, mt mediumtext CHARACTER SET ucs2, lt longtext, bl blob, tb tinyblob,"
        " en enum('a','b''c','ü') CHARACTER SET latin1, se set('x','y'), da date, ti time, ti3 time(3), dt datetime,"
        " dt6 datetime(6), ts timestamp NULL, ts2 timestamp(2) NULL, g geometry, po point, k1 int NOT NULL,"
        f" gv int GENERATED ALWAYS AS (i + 1) VIRTUAL, gs int GENERATED ALWAYS AS (i + 2) STORED, {own},"
        " PRIMARY KEY (k1, k2))",
        "INSERT INTO shop.types (k1, k2) VALUES (1, '')",
    )
    (landed,) = [row for row in log.to_end() if row["kind"] == "schema"]
    with closing(connect(log.settings, purpose="test")) as connection, connection.cursor() as cursor:
        there = catalog.table_by_name(cursor, "shop", "types")
    assert there is not None
    assert TableSchema.from_json(landed["payload"]).columns == there.schema.columns
    assert landed["schema_id"] == there.schema.schema_id
    assert there.schema.primary_key == ("k1", "k2")


def test_alter_and_alter_back_write_schema_each_time(log: Log) -> None:
    log.server.run(
        "INSERT INTO shop.a VALUES (1, 'x')", "ALTER TABLE shop.a ADD COLUMN w int",
        "INSERT INTO shop.a VALUES (2, 'x', 5)", "ALTER TABLE shop.a DROP COLUMN w",
        "INSERT INTO shop.a VALUES (3, 'x')", "FLUSH TABLES", "INSERT INTO shop.a VALUES (4, 'x')",
    )
    rows = log.to_end()
    assert [row["kind"] for row in rows] == ["schema", "row", "ddl", "schema", "row", "ddl", "schema", "row", "row"]
    first, second, third = [TableSchema.from_json(row["payload"]) for row in rows if row["kind"] == "schema"]
    assert (first.names, second.names, third) == (("id", "v"), ("id", "v", "w"), first)


def test_table_statements_become_rows(log: Log) -> None:
    log.server.run(
        "CREATE TABLE shop.n (id int PRIMARY KEY)", "CREATE TABLE other.n (id int PRIMARY KEY)",
        "RENAME TABLE shop.n TO shop.m, other.n TO shop.n", "ALTER TABLE shop.m RENAME TO other.m",
        "TRUNCATE TABLE shop.a", "TRUNCATE other.c", "CREATE INDEX i ON shop.b (v(10))", "DROP TABLE shop.n, other.m",
        "CREATE TEMPORARY TABLE shop.tmp (id int)", "CREATE VIEW shop.view AS SELECT * FROM shop.a",
        "CREATE USER reader IDENTIFIED BY 'secret'", "DROP DATABASE other",
    )
    rows = log.to_end()
    assert kinds(rows) == [
        ("ddl", "shop.n", True), ("ddl", "shop.n", False), ("ddl", "shop.m", True), ("ddl", "shop.m", True),
        ("truncate", "shop.a", True), ("ddl", "shop.b", True), ("truncate", "shop.n", True), ("ddl", None, True),
    ]
    assert [json.loads(row["payload"])["rewrites"] for row in rows] == [
        False, True, True, False, False, False, False, False,
    ]
    assert positions(rows) == sorted(set(positions(rows)))
    assert not any(b"secret" in row["payload"] for row in rows)


def test_statements_of_sessions_in_binary_become_rows(log: Log) -> None:
    """A restore by mydumper sets ``SET NAMES binary``."""
    with closing(log.server.connect("shop")) as connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES binary")
        connection.encoding = "utf-8"
        cursor.execute("CREATE TABLE `café` (id int PRIMARY KEY)")
        cursor.execute("TRUNCATE TABLE a")
    assert kinds(log.to_end()) == [("ddl", 'shop."café"', True), ("truncate", "shop.a", True)]


def test_create_select_is_statement_and_rows(log: Log) -> None:
    log.server.run("INSERT INTO shop.a VALUES (1, 'x'), (2, 'y')", "CREATE TABLE shop.copy AS SELECT * FROM shop.a")
    rows = log.to_end()
    assert kinds(rows) == [("row", "shop.a", True), ("ddl", "shop.copy", False), ("row", "shop.copy", True)]
    assert changes(rows)[2:] == [("shop.copy", "c", "1", "x"), ("shop.copy", "c", "2", "y")]


def test_myisam_transaction_ends_with_query_commit(log: Log) -> None:
    log.server.run(
        "CREATE TABLE shop.isam (id int PRIMARY KEY, v varchar(9)) ENGINE=MyISAM",
        "INSERT INTO shop.isam VALUES (1, 'a'), (2, 'b')", "UPDATE shop.isam SET v = 'c' WHERE id = 1",
    )
    rows = log.to_end(max_rows=1, reopen=True)
    assert kinds(rows) == [("ddl", "shop.isam", True), ("row", "shop.isam", True), ("row", "shop.isam", True)]
    assert [row[1:] for row in changes(rows)] == [("c", "1", "a"), ("c", "2", "b"), ("u", "1", "c")]


def test_savepoint_rollback_leaves_other_rows(log: Log) -> None:
    write(
        log.server,
        "INSERT INTO shop.a VALUES (1, 'kept'); SAVEPOINT s; INSERT INTO shop.a VALUES (2, 'gone');"
        " ROLLBACK TO SAVEPOINT s; INSERT INTO shop.a VALUES (3, 'kept')",
    )
    assert [row[2:] for row in changes(log.to_end())] == [("1", "kept"), ("3", "kept")]


@pytest.mark.parity
def test_cascade_rows_logged_by_mysql_only(log: Log) -> None:
    """MySQL logs them from 9.6 on; MariaDB logs the child's description and no rows: what preflight warns of."""
    log.server.run(
        "CREATE TABLE shop.child (id int PRIMARY KEY, v int, FOREIGN KEY (v) REFERENCES shop.a (id) ON DELETE CASCADE)",
        "INSERT INTO shop.a VALUES (1, 'x')", "INSERT INTO shop.child VALUES (5, 1)", "DELETE FROM shop.a",
    )
    found = [row[:3] for row in changes(log.to_end())]
    assert found[:2] == [("shop.a", "c", "1"), ("shop.child", "c", "5")]
    cascaded = {"mysql": [("shop.a", "d", "1"), ("shop.child", "d", "5")], "mariadb": [("shop.a", "d", "1")]}
    assert sorted(found[2:]) == cascaded[log.server.flavour]


def prepare(server: MysqlServer, name: str, key: int) -> None:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in (
            f"XA START '{name}'", f"INSERT INTO shop.a VALUES ({key}, '{name}')", f"XA END '{name}'",
            f"XA PREPARE '{name}'",
        ):
            cursor.execute(statement)


@pytest.mark.parametrize("between", ["nothing", "reopen", "restart"])
@pytest.mark.parity
def test_xa_rows_land_with_commit_or_never(
    log: Log, between: str, tmp_path: Path
) -> None:
    server = log.server
    prepare(server, "stays", 10)
    prepare(server, "goes", 11)
    before = log.resume.token
    server.run("INSERT INTO shop.b VALUES (1, 'between')")
    assert changes(log.to_end()) == [("shop.b", "c", "1", "between")]
    assert log.resume.token == before
    assert log.resume.landed is not None
    if between == "restart":
        server.restart()
    if between != "nothing":
        log.reopen()
    server.run("XA ROLLBACK 'goes'", "INSERT INTO shop.b VALUES (2, 'later')", "XA COMMIT 'stays'")
    rows = log.to_end(reopen=between == "reopen")
    assert changes(rows) == [
        ("shop.b", "c", "1", "between"), ("shop.b", "c", "2", "later"), ("shop.a", "c", "10", "stays"),
    ]
    assert kinds(rows) == [("row", "shop.b", True), ("row", "shop.b", True), ("row", "shop.a", True)]
    assert log.resume.landed is None
    assert log.resume.token != before


def test_xa_one_phase_lands_as_plain_transaction(log: Log) -> None:
    write(log.server, "XA START 'one'; INSERT INTO shop.a VALUES (1, 'x'); XA END 'one'; XA COMMIT 'one' ONE PHASE")
    assert changes(log.to_end()) == [("shop.a", "c", "1", "x")]
    assert log.resume.landed is None


def test_xa_prepared_before_stream_is_gap(open_log: Callable[..., Log]) -> None:
    server = open_log().server
    prepare(server, "early", 1)
    log = open_log()
    server.run("XA COMMIT 'early'")
    refused = log.refusal()
    assert isinstance(refused, PositionLost)
    assert "gap" in refused.what


def as_statement(server: MysqlServer, *statements: str) -> None:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE shop.a x, shop.b y SET x.v = 'z'", "tables that cannot be determined"),
        ("UPDATE dblake.watermark SET value = '' WHERE id = 1", "of the watermark table"),
    ],
)
def test_statement_logged_change_rejected_after_earlier_rows(
    log: Log, statement: str, named: str
) -> None:
    log.server.run("INSERT INTO shop.a VALUES (1, 'x')")
    as_statement(log.server, "INSERT INTO other.c VALUES (1, 'x')")
    log.to_end()
    log.server.run("INSERT INTO shop.b VALUES (2, 'x')")
    as_statement(log.server, statement)
    refused = log.refusal()
    assert isinstance(refused, Unsupported)
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert named in refused.what
    assert refused.what.endswith("was logged as a statement, not as rows")
    assert "x'" not in str(refused)
    # What was whole before it is out, and the place named is the first that is not.
    assert changes(log.rows)[-1] == ("shop.b", "c", "2", "x")
    place = LogPosition.parse(log.resume.token)
    assert f"at {place.file}:" in refused.what
    log.reopen()
    assert log.refusal().what == refused.what


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO shop.a VALUES (2, 'x')", "UPDATE shop.a SET v = 'z'", "DELETE FROM shop.a WHERE id = 1",
     "REPLACE shop.a VALUES (2, 'x')"],
)
def test_statement_logged_change_rejects_its_table(log: Log, statement: str) -> None:
    log.server.run("INSERT INTO shop.a VALUES (1, 'x')")
    as_statement(log.server, statement)
    log.server.run("INSERT INTO shop.b VALUES (2, 'x')")
    log.to_end()
    assert {table: reason for piece in log.pieces for table, reason in piece.rejected.items()} == {
        "shop.a": "a change was logged as a statement, not as rows: binlog_format was not ROW"
    }
    assert changes(log.rows) == [("shop.a", "c", "1", "x"), ("shop.b", "c", "2", "x")]


def test_partial_json_rejected_by_name(mysql: MysqlServer) -> None:
    mysql.empty()
    prepared(mysql)
    mysql.run("CREATE TABLE shop.j (id int PRIMARY KEY, v json)")
    mysql.run("INSERT INTO shop.j VALUES (1, JSON_OBJECT('a', 1, 'b', repeat('x', 500)))")
    log = Log(mysql)
    write(mysql, "SET SESSION binlog_row_value_options = PARTIAL_JSON; UPDATE shop.j SET v = JSON_SET(v, '$.a', 2)")
    log.to_end()
    (rejected,) = [piece.rejected for piece in log.pieces if piece.rejected]
    assert list(rejected) == ["shop.j"]
    assert "with parts of JSON values only" in rejected["shop.j"]
    log.close()


def test_dropped_table_with_old_times_is_rejected(mariadb: MysqlServer) -> None:
    """The log does not show the fractional digits of MariaDB 5.3's format; only the catalog does."""
    mariadb.empty()
    prepared(mariadb)
    with closing(Log(mariadb)) as log:
        mariadb.run(
            "SET GLOBAL mysql56_temporal_format = OFF", "CREATE TABLE shop.kept (id int PRIMARY KEY, t time)",
            "CREATE TABLE shop.gone (id int PRIMARY KEY, t time(6))", "SET GLOBAL mysql56_temporal_format = ON",
            "INSERT INTO shop.kept VALUES (1, '10:20:30')", "INSERT INTO shop.gone VALUES (1, '10:20:30.5')",
        )
        mariadb.run("DROP TABLE shop.gone")
        log.to_end()
        (rejected,) = [piece.rejected for piece in log.pieces if piece.rejected]
        assert list(rejected) == ["shop.gone"]
        assert "column t: its fractional digits are unknown" in rejected["shop.gone"]
        assert [row["table"] for row in log.rows if row["kind"] == "row"] == ["shop.kept"]


@pytest.mark.parity
def test_watermarks_returned_beside_rows(log: Log) -> None:
    log.server.run(
        "UPDATE dblake.watermark SET value = 'one' WHERE id = 1",
        "UPDATE dblake.watermark SET value = NULL WHERE id = 1",
        "INSERT INTO dblake.watermark VALUES (2, 'no update')",
        "UPDATE dblake.watermark SET value = 'all' WHERE id < 2",
    )
    write(
        log.server,
        "SET SESSION binlog_row_image = MINIMAL; UPDATE dblake.watermark SET value = 'minimal' WHERE id = 1",
    )
    assert kinds(log.to_end()) == []
    assert [(mark.reader, mark.value) for mark in log.seen[:-1]] == [
        (1, "one"), (1, ""), (0, "all"), (1, "all"), (1, "minimal"),
    ]
    places = [mark.position for mark in log.seen]
    assert places == sorted(set(places))
    assert all(abs(mark.committed_at / 1e6 - time.time()) < 60 for mark in log.seen)


def test_token_has_servers_executed_gtids(log: Log) -> None:
    if log.server.flavour == "mysql":
        write(log.server, "SET gtid_next = 'AUTOMATIC:night'; INSERT INTO shop.a VALUES (1, '')")
        write(log.server, "SET gtid_next = 'AUTOMATIC:night'; INSERT INTO shop.a VALUES (2, '')")
        query = "SELECT @@gtid_executed"
    else:
        write(log.server, "SET gtid_domain_id = 3; INSERT INTO shop.a VALUES (1, '')")
        query = "SELECT @@gtid_binlog_pos"
    log.server.run("INSERT INTO shop.a VALUES (3, '')")
    log.to_end()
    executed = "".join(log.server.rows(query)[0][0].split())
    assert LogPosition.parse(log.resume.token).gtids == executed
    assert ("night:1-2" in executed) or ("3-1-1" in executed)


def test_log_rolls_over_to_seven_digit_file_number(log: Log) -> None:
    server = log.server
    mysql = server.flavour == "mysql"
    server.run("RESET BINARY LOGS AND GTIDS TO 999999" if mysql else "RESET MASTER TO 999999")
    log.close()
    log = Log(server)
    server.run("INSERT INTO shop.a VALUES (1, '')", "FLUSH BINARY LOGS", "INSERT INTO shop.a VALUES (2, '')")
    rows = log.to_end(max_rows=1, reopen=True)
    assert [row[2] for row in changes(rows)] == ["1", "2"]
    assert positions(rows) == sorted(positions(rows))
    assert [row["lsn"] >> 36 for row in rows if row["kind"] == "row"] == [999_999, 1_000_000]
    assert LogPosition.parse(log.resume.token).file == "binlog.1000000"
    log.close()
    server.run("RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")


@pytest.mark.parametrize("longer", [False, True])
def test_reset_is_gap_whatever_new_file_size(log: Log, longer: bool) -> None:
    server = log.server
    log.to_end()
    # Creation times are in seconds: a RESET within the same second could not be detected.
    time.sleep(1.1)
    server.run("RESET BINARY LOGS AND GTIDS" if server.flavour == "mysql" else "RESET MASTER")
    place = LogPosition.parse(log.resume.token)
    if place.file != "binlog.000001":
        log.resume = ResumePoint(1, replace(place, file="binlog.000001", offset=1000).token)
    if longer:
        server.run(*["INSERT INTO shop.a VALUES (1, repeat('x', 2000))", "DELETE FROM shop.a"] * 5)
    with pytest.raises(PositionLost, match="gap") as lost:
        log.reopen()
    assert lost.value.exit_code == ExitCode.CONFIGURATION
    assert "--accept-gap" in str(lost.value)


@pytest.mark.parity
def test_purged_file_is_gap(log: Log) -> None:
    log.to_end()
    log.close()
    log.server.run("FLUSH BINARY LOGS", "INSERT INTO shop.a VALUES (1, '')")
    last = log.server.rows("SHOW BINARY LOGS")[-1][0]
    deadline = time.monotonic() + 20
    # A file that its last reader has not let go of is not purged.
    while log.server.rows("SHOW BINARY LOGS")[0][0] != last:
        assert time.monotonic() < deadline
        log.server.run(f"PURGE BINARY LOGS TO '{last}'")
        time.sleep(0.05)
    with pytest.raises(PositionLost, match=r"is gone, so the log after .* is a gap"):
        log.reopen()


def test_stream_resumes_after_server_restart(log: Log) -> None:
    log.server.run("INSERT INTO shop.a VALUES (1, 'x')")
    log.to_end()
    log.server.restart()
    with pytest.raises(SourceError) as broken:
        for _ in range(100):
            log.piece()
    assert broken.value.exit_code == ExitCode.TRY_AGAIN
    log.reopen()
    log.server.run("INSERT INTO shop.a VALUES (2, 'x')")
    assert [row[2] for row in changes(log.to_end())] == ["1", "2"]


def test_second_reader_with_server_id_ends_first(open_log: Callable[..., Log]) -> None:
    first, second = open_log(), open_log()
    first.server.run("INSERT INTO shop.a VALUES (1, 'x')")
    assert [row[2] for row in changes(second.to_end())] == ["1"]
    refused = first.refusal()
    assert refused.exit_code == ExitCode.TRY_AGAIN
    assert f"another replica has connected with server id {first.settings.server_id}" in refused.what


def test_idle_log_returns_none_in_time(log: Log) -> None:
    log.to_end()
    began = time.monotonic()
    assert log.piece(seconds=3.0) is None
    assert 2.9 < time.monotonic() - began < 4.0
    log.server.run("INSERT INTO other.c VALUES (1, '')")
    before = log.resume.token
    piece = log.piece(seconds=1.0)
    assert piece is not None
    assert (piece.rows.num_rows, piece.reached.token != before) == (0, True)


def test_sequences_are_not_captured(mariadb: MysqlServer) -> None:
    mariadb.empty()
    prepared(mariadb)
    log = Log(mariadb)
    mariadb.run("CREATE SEQUENCE shop.s", "SELECT NEXTVAL(shop.s)", "INSERT INTO shop.a VALUES (1, '')")
    assert [(row["kind"], row["table"]) for row in log.to_end() if row["kind"] != "ddl"] == [
        ("schema", "shop.a"), ("row", "shop.a"),
    ]
    log.close()
