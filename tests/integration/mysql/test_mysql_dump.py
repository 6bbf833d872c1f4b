"""Chunks of MariaDB and MySQL: keys of every type, rows of every size, and what is refused or found to have changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pymysql
import pytest

from dblake.base.core.errors import SourceError, TableUnreadable, Unsupported
from dblake.base.core.schema import Column, TableSchema
from dblake.base.core.source import ChunkRead, ChunkRequest
from dblake.ingest.source.mysql import catalog, chunks
from dblake.ingest.source.mysql.chunks import MysqlChunkReader
from dblake.ingest.source.mysql.connection import connect
from dblake.ingest.source.mysql.result_rows import ResultRows, split_values
from tests.support.effort import EFFORT
from tests.support.lake import CaptureLake
from tests.support.mysql import MysqlServer
from tests.support.mysql_backend import MysqlBackend

T = "public.t"


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


@pytest.fixture
def backend(mysql_server: MysqlServer) -> MysqlBackend:
    mysql_server.run("CREATE DATABASE public")
    return MysqlBackend(mysql_server)


def reader_of(backend: MysqlBackend) -> MysqlChunkReader:
    """Return a chunk reader of the capture role, which may read all existing tables."""
    backend.source("public.*")
    assert backend.settings is not None
    reader = MysqlChunkReader(backend.settings, connect(backend.settings, purpose="chunks"))
    reader.mark(1, "low")
    return reader


def read(
    reader: MysqlChunkReader, table: str = T, limit: int = 1000, after: tuple[str, ...] | None = None,
    keys: tuple[tuple[str, ...], ...] | None = None,
) -> tuple[ChunkRead, list[bytes]]:
    rows: list[bytes] = []
    chunk = reader.read(
        ChunkRequest(table, 1, "low", limit, after, keys=keys), lambda payload, _: rows.extend(payload.to_pylist())
    )
    return chunk, rows


#: Key types with their values, in the order of the column, as canonical text.
TYPES: dict[str, list[str]] = {
    "tinyint": ["-128", "0", "127"],
    "tinyint unsigned": ["0", "255"],
    "smallint unsigned": ["0", "65535"],
    "mediumint": ["-8388608", "9", "10", "8388607"],
    "int zerofill": ["9", "10", "4294967295"],
    "bigint": ["-9223372036854775808", "9", "10", "9223372036854775807"],
    "bigint unsigned": ["0", "9223372036854775808", "18446744073709551615"],
    "decimal(10,2)": ["-1.50", "0.00", "10.00"],
    "decimal(65,30)": ["-0.000000000000000000000000000001", "12345678901234567890123456789012345."
                       "123456789012345678901234567890"],
    "decimal(5,1) zerofill": ["0.5", "1234.5"],
    "double": ["-1e-300", "0", "0.1", "1e+300"],
    "bit(1)": ["0", "1"],
    "bit(10)": ["0000000001", "1000000000", "1111111111"],
    "year": ["0000", "1901", "2155"],
    "date": ["0000-00-00", "1000-01-01", "2024-02-29"],
    "datetime": ["0000-00-00 00:00:00", "2024-02-29 12:00:00"],
    "datetime(6)": ["2024-02-29 12:00:00.000001", "2024-02-29 12:00:00.999999"],
    "timestamp(3)": ["1970-01-01 00:00:01.000", "2024-03-31 01:30:00.500", "2024-10-27 00:30:00.000"],
    "time(2)": ["-838:59:59.00", "-00:00:00.50", "00:00:00.00", "838:59:59.00"],
    "enum('b','a','it''s','é')": ["b", "a", "it's", "é"],
    "set('x','y','z')": ["", "x", "y", "x,y", "z", "x,y,z"],
    "varchar(20)": ["", "a", "B", "it's \\ \"", "é", "日本", "😀"],
    "varchar(20) character set latin1": ["a", "é", "€"],
    "varchar(20) character set latin1 collate latin1_german2_ci": ["a", "ä"],
    "varchar(20) character set gbk": ["a", "中"],
    "varchar(20) character set sjis": ["a", "表"],
    "varchar(20) character set utf16": ["a", "日"],
    "char(5) character set utf8mb4": ["", "a", "日本"],
    "binary(3)": ["\\x000000", "\\x000001", "\\x610000", "\\xff0000"],
    "varbinary(9)": ["\\x", "\\x00", "\\x0000", "\\x5c27", "\\xff"],
}


def made(backend: MysqlBackend, *, more: dict[str, list[str]]) -> dict[str, tuple[str, list[str]]]:
    """Create a table for each type, with a row for each value; return the type and texts of each table."""
    tables = {f"k{n}": typed for n, typed in enumerate((TYPES | more).items())}
    connection = backend.server.connect("public")
    with connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        for name, (type_, texts) in tables.items():
            cursor.execute(f"CREATE TABLE {name} (k {type_} NOT NULL, v varchar(10), PRIMARY KEY (k))")
            for text in texts:
                given: object = bytes.fromhex(text[2:]) if text.startswith("\\x") else text
                cursor.execute(
                    f"INSERT INTO {name} VALUES ({'CONV(%s, 2, 10) + 0' if type_.startswith('bit') else '%s'}, 'a')",
                    (given,),
                )
    connection.close()
    return tables


@pytest.mark.slow
@pytest.mark.parametrize("size", [2] if EFFORT == 1 else [1, 2])
def test_key_of_every_type_pages_and_matches(backend: MysqlBackend, lake: CaptureLake, size: int) -> None:
    own = {"mysql": {}, "mariadb": {
        "uuid": ["123e4567-e89b-12d3-a456-426655440000", "ffffffff-ffff-1fff-bfff-ffffffffffff"],
        "inet6": ["::", "::ffff:192.0.2.1", "2001:db8::ff00:42:8329"],
    }}[backend.server.flavour]
    tables = made(backend, more=own)
    source = backend.source("public.*")
    names = [f"public.{name}" for name in tables]
    lake.dump(*names)
    lake.capture(source, chunk_size=size)

    def keys(name: str) -> list[str]:
        return sorted(key[0] for key in lake.state(f"public.{name}"))

    assert {name: keys(name) for name in tables} == {name: sorted(texts) for name, (_, texts) in tables.items()}
    before = lake.reached.batch
    numbers = itertools.count()

    def touch(name: str) -> None:
        with backend.begin() as transaction:
            transaction.update(name, {}, {"v": str(next(numbers))})

    lake.dump(*names)
    lake.capture(
        source, chunk_size=size,
        steps={("every read", name): partial(touch, name) for name in names},
    )
    # A key that read otherwise in a chunk than in the log would leave a chunk row beside its update.
    later = {(event.table, event.op) for event in lake.reconciled()[0] if event.batch > before}
    assert later == {(name, "u") for name in names}


def test_composite_key_pages_through_index(backend: MysqlBackend, mysql_server: MysqlServer) -> None:
    mysql_server.run(
        "CREATE TABLE public.t (e enum('x','y','z'), b varchar(9) CHARACTER SET latin1, n int, v int,"
        " PRIMARY KEY (n, e, b))",
        "INSERT INTO public.t (n, e, b) WITH RECURSIVE s AS (SELECT 0 i UNION ALL SELECT i + 1 FROM s WHERE i < 499)"
        " SELECT i DIV 6, 1 + i % 3, concat('k', i % 2) FROM s",
    )
    reader = reader_of(backend)
    _, everything = read(reader)
    assert len(everything) == 500
    for size in (1, 7):
        paged: list[bytes] = []
        after: tuple[str, ...] | None = None
        while True:
            chunk, rows = read(reader, limit=size, after=after)
            if not rows:
                break
            paged += rows
            after = chunk.last_key
        assert paged == everything
    _, rows = read(reader, limit=5, after=("60", "y", "k0"))
    assert [[v and v.decode() for v in split_values(row)] for row in rows] == [
        ["y", "k1", "60", None], ["z", "k0", "60", None], ["z", "k1", "60", None], ["x", "k0", "61", None],
        ["x", "k1", "61", None],
    ]
    reader.close()


#: Columns of a key, and a key to resume from.
INDEXED = [
    ("a int, b varchar(9) CHARACTER SET latin1, c bigint unsigned", ("400", "k", "7")),
    ("a enum('x','y','z'), b datetime(3), c decimal(9,2)", ("y", "2024-01-01 00:00:00.500", "7.00")),
    ("a varbinary(9), b bit(9), c double", ("\\x00", "000000111", "0.5")),
    ("a varchar(9) CHARACTER SET utf8mb4, b date, c time(2)", ("k", "2024-01-01", "-00:00:01.50")),
]


@pytest.mark.parametrize(("columns", "key"), INDEXED, ids=[columns for columns, _ in INDEXED])
def test_chunk_seeks_its_key_in_index(
    mysql_server: MysqlServer, backend: MysqlBackend, columns: str, key: tuple[str, ...]
) -> None:
    mysql_server.run(
        f"CREATE TABLE public.t ({columns}, v varchar(99), PRIMARY KEY (a, b, c))"
    )
    connection = mysql_server.connect("public")
    with connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        for number in range(1, 60):
            cursor.execute(
                "INSERT IGNORE INTO t VALUES (%s, %s, %s, 'v')",
                (number % 4 or "x", number % 5 or "k", number),
            )
    connection.close()
    backend.source("public.*")
    assert backend.settings is not None
    with connect(backend.settings, purpose="test") as asking, asking.cursor() as cur:
        table = catalog.table_by_name(cur, "public", "t")
        assert table is not None
        query = chunks._select(table, chunks._condition(table, ChunkRequest(T, 1, "low", 5, key)), 5)
    rows = pymysql.cursors.DictCursor
    with mysql_server.connect("public", cursorclass=rows) as explaining, explaining.cursor() as cur:
        cur.execute("SET sql_mode = '', time_zone = '+00:00'")
        cur.execute("EXPLAIN FORMAT=TRADITIONAL " + query)
        (plan,) = cur.fetchall()
    assert (plan["type"], plan["key"], "filesort" in (plan["Extra"] or "")) == ("range", "PRIMARY", False)


def test_rows_of_every_size_read_whole(backend: MysqlBackend, mysql_server: MysqlServer) -> None:
    sizes = [
        0, 1, 250, 251, 65_535, 65_536, (1 << 21) - 20, 1 << 21, *range((1 << 24) - 9, (1 << 24) - 4), (1 << 25) + 7,
    ]
    mysql_server.run(
        "SET GLOBAL max_allowed_packet = 64 << 20", "CREATE TABLE public.t (id int PRIMARY KEY, v longblob)"
    )
    connection = mysql_server.connect("public", max_allowed_packet=64 << 20)
    with connection.cursor() as cursor:
        for number, size in enumerate(sizes):
            cursor.execute("INSERT INTO t VALUES (%s, REPEAT('x', %s))", (2 * number, size))
            cursor.execute("INSERT INTO t VALUES (%s, 'small')", (2 * number + 1,))
    connection.close()
    reader = reader_of(backend)
    chunk, rows = read(reader)
    assert chunk.rows == 2 * len(sizes)
    assert chunk.last_key == (str(2 * len(sizes) - 1),)
    lengths = [(int(key or b""), len(value or b"")) for key, value in map(split_values, rows)]
    assert lengths == [
        part for n, size in enumerate(sizes) for part in ((2 * n, size), (2 * n + 1, 5))
    ]
    # The connection is of use after that.
    assert read(reader, limit=1)[1] == [b"\x010\x00"]
    reader.close()


def test_error_inside_result_raised(backend: MysqlBackend, mysql_server: MysqlServer) -> None:
    mysql_server.run(
        "CREATE TABLE public.t (id int PRIMARY KEY, v varchar(200))",
        "INSERT INTO public.t WITH RECURSIVE s AS (SELECT 0 i UNION ALL SELECT i + 1 FROM s WHERE i < 900)"
        " SELECT i, REPEAT('x', 200) FROM s",
    )
    backend.source("public.*")
    assert backend.settings is not None
    rows = ResultRows(connect(backend.settings, purpose="test"))
    seen: list[int] = []
    with pytest.raises(pymysql.Error) as error:
        # The last row's subquery has more than one row; so many rows before it were sent long ago.
        rows.read(
            "SELECT a.id, a.v, IF(a.id = 900 AND b.id = 900, (SELECT 1 UNION SELECT 2), 0)"
            " FROM public.t a JOIN public.t b ON b.id > 850 ORDER BY a.id, b.id",
            lambda piece: seen.append(len(piece)),
        )
    assert error.value.args[0] == 1242


@pytest.fixture
def filled(backend: MysqlBackend, mysql_server: MysqlServer) -> Iterator[MysqlChunkReader]:
    mysql_server.run(
        "CREATE TABLE public.t (id int PRIMARY KEY, v varchar(10))", "INSERT INTO public.t VALUES (1, 'a'), (2, 'b')"
    )
    reader = reader_of(backend)
    yield reader
    reader.close()


def test_chunk_takes_no_locks_and_ends_transaction(filled: MysqlChunkReader, mysql_server: MysqlServer) -> None:
    held = mysql_server.connect("public", autocommit=False)
    with held.cursor() as cursor:
        cursor.execute("UPDATE t SET v = 'locked'")
        assert read(filled)[1] == [b"\x011\x01a", b"\x012\x01b"]
        held.commit()
    assert read(filled)[1] == [b"\x011\x06locked", b"\x012\x06locked"]
    # A transaction left open would hold this off.
    mysql_server.run("SET lock_wait_timeout = 2", "ALTER TABLE public.t ADD COLUMN w int")
    held.close()


def test_definition_changed_after_snapshot_reported(
    filled: MysqlChunkReader, mysql_server: MysqlServer
) -> None:
    def change(payload: pa.BinaryArray, schema: TableSchema) -> None:
        # The chunk's transaction holds it off until it ends, so it cannot be waited for here.
        changing.ping()
        changing._execute_command(3, "ALTER TABLE public.t ADD COLUMN w int DEFAULT 7")

    changing = mysql_server.connect("public")
    chunk = filled.read(ChunkRequest(T, 1, "low", 10), change)
    changing._read_query_result()
    changing.close()
    after, rows = read(filled)
    # Which of the two comes first once the transaction has ended is the server's choice.
    assert chunk.schema.names == ("id", "v")
    assert after.schema.names == ("id", "v", "w") and not after.schema_changed
    assert rows == [b"\x011\x01a\x017", b"\x012\x01b\x017"]


def test_foreign_watermark_returned_as_low_seen(filled: MysqlChunkReader, mysql_server: MysqlServer) -> None:
    assert read(filled)[0].low_seen == "low"
    mysql_server.run("UPDATE dblake.watermark SET value = 'stray' WHERE id = 1")
    assert read(filled)[0].low_seen == "stray"
    mysql_server.run("DELETE FROM dblake.watermark WHERE id = 1")
    assert read(filled)[0].low_seen == ""
    with pytest.raises(SourceError, match="has no row 1"):
        filled.mark(1, "low")


REFUSED = [
    ("CREATE TABLE public.t (a int)", None, "table public.t has no primary key"),
    ("CREATE TABLE public.t (a float PRIMARY KEY)", None, "has the key column a of type float"),
    ("CREATE TABLE public.t (a int PRIMARY KEY)", ("x",), "no value of its column's type"),
    ("CREATE TABLE public.t (a int PRIMARY KEY)", ("1 OR 1=1",), "no value of its column's type"),
    ("CREATE TABLE public.t (a double PRIMARY KEY)", ("1e999",), "no value of its column's type"),
    ("CREATE TABLE public.t (a date PRIMARY KEY)", ("2024-01-01' OR '1",), "no value of its column's type"),
    ("CREATE TABLE public.t (a enum('x') PRIMARY KEY)", ("y",), "no value of its column's type"),
    ("CREATE TABLE public.t (a enum('x','') PRIMARY KEY)", ("x",), "no value of its column's type"),
    ("CREATE TABLE public.t (a varbinary(9) PRIMARY KEY)", ("61",), "no value of its column's type"),
    ("CREATE TABLE public.t (a varchar(9) CHARACTER SET latin1 PRIMARY KEY)", ("😀",), "no value of its column's type"),
]


@pytest.mark.parametrize(("table", "key", "why"), REFUSED, ids=[f"{t[22:-1]} {k}" for t, k, _ in REFUSED])
def test_unreadable_chunk_request_rejected_by_name(
    backend: MysqlBackend, mysql_server: MysqlServer, table: str, key: tuple[str, ...] | None, why: str
) -> None:
    mysql_server.run(table)
    with pytest.raises(Unsupported) as refused:
        read(reader_of(backend), keys=None if key is None else (key,))
    assert why in refused.value.what


def test_missing_or_unreadable_table_rejected(filled: MysqlChunkReader, mysql_server: MysqlServer) -> None:
    with pytest.raises(Unsupported, match=r"table public\.none is not in the database"):
        read(filled, table="public.none")
    mysql_server.run("GRANT INSERT ON public.t TO 'cap'@'%'", "REVOKE SELECT ON public.* FROM 'cap'@'%'")
    with pytest.raises(TableUnreadable, match="the user lacks a privilege"):
        read(filled)


def test_generated_and_invisible_columns_equal_log(
    backend: MysqlBackend, mysql_server: MysqlServer, lake: CaptureLake
) -> None:
    mysql_server.run(
        "CREATE TABLE public.t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL,"
        " thrice int GENERATED ALWAYS AS (a * 3) STORED, unseen int DEFAULT 5)",
        "ALTER TABLE public.t MODIFY unseen int INVISIBLE DEFAULT 5",
        "INSERT INTO public.t (id, a) VALUES (1, 1)",
    )
    source = backend.source("public.*")
    mysql_server.run("INSERT INTO public.t (id, a) VALUES (2, 1)", "UPDATE public.t SET a = 7 WHERE id = 2")
    lake.dump(T)
    lake.capture(source)
    # Row 1 is the chunk's, row 2 the log's.
    assert lake.state(T) == {
        ("1",): {"id": "1", "a": "1", "twice": "2", "thrice": "3", "unseen": "5"},
        ("2",): {"id": "2", "a": "7", "twice": "14", "thrice": "21", "unseen": "5"},
    }
    (schema,) = source.tables()
    assert {row["schema_id"] for row in lake.landing().to_pylist() if row["kind"] in ("row", "chunk")} == {
        schema.schema_id
    }


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
def test_generated_invisible_primary_key_is_key(
    backend: MysqlBackend, mysql_server: MysqlServer, lake: CaptureLake
) -> None:
    connection = mysql_server.connect("public")
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_generate_invisible_primary_key = ON")
        cursor.execute("CREATE TABLE t (v int)")
        cursor.execute("INSERT INTO t (v) VALUES (1), (2)")
    connection.close()
    mysql_server.run("SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF")
    try:
        source = backend.source("public.*")
        lake.dump(T)
        lake.capture(source)
    finally:
        mysql_server.run("SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")
    assert source.tables() == [
        TableSchema(T, (Column("my_row_id", "bigint unsigned", False, 1), Column("v", "int")))
    ]
    assert lake.state(T) == {("1",): {"my_row_id": "1", "v": "1"}, ("2",): {"my_row_id": "2", "v": "2"}}
