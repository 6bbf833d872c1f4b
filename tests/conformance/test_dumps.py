"""Dumps: whole tables and given keys, repeated dumps, schema changes during a dump, keys of every type."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from dblake.base.core.schema import Column, TableSchema
from dblake.ingest.capture.loop import Until
from dblake.landing.control import ChunkEnd
from tests.conformance.script import Script, event_lines
from tests.support.backends import Backend, PostgresBackend
from tests.support.effort import EFFORT
from tests.support.lake import CaptureLake

T = "public.t"
ITEMS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text")))

AWKWARD = [
    "", " ", "a", "A", "ä", "Ä", "ß", "日本", "😀", "'", '"', "\\", "\\N", "\\.", "\t", "\n", "\r\n", "a\tb", "%s",
    "NULL",
]


def create_rows(backend: Backend, count: int) -> Script:
    backend.create(ITEMS)
    script = Script(backend, T)
    script.run([f"insert {n} a" for n in range(1, count + 1)])
    return script


def source_rows(backend: Backend, schema: TableSchema) -> dict[tuple[str | None, ...], dict[str, str | None]]:
    return {tuple(row[name] for name in schema.primary_key): row for row in backend.rows(schema.table)}


def test_dump_of_given_keys_ignores_missing_ones(backend: Backend, lake: CaptureLake) -> None:
    script = create_rows(backend, 12)
    source = backend.source("public.*")
    lake.dump(T, keys=[("11",), ("99",), ("2",), ("98",), ("3",)])
    lake.capture(source, chunk_size=2, steps={("low", T): lambda: script.run(["update 2 x"])})
    assert sorted(event_lines(lake.reconciled()[0], T)) == ["r 11 a", "r 2 x", "r 3 a", "u 2 x"]
    assert [(dump["state"], dump["chunks"], dump["rows"]) for dump in lake.dumps()] == [("done", 3, 3)]


def test_table_can_be_dumped_twice(backend: Backend, lake: CaptureLake) -> None:
    create_rows(backend, 3)
    source = backend.source("public.*")
    lake.dump(T)
    lake.dump(T)
    lake.capture(source, chunk_size=2)
    assert event_lines(lake.reconciled()[0], T) == ["r 1 a", "r 2 a", "r 3 a"] * 2
    assert lake.state(T) == source_rows(backend, ITEMS)
    assert [(dump["state"], dump["chunks"], dump["rows"]) for dump in lake.dumps()] == [("done", 2, 3)] * 2


def test_dump_of_empty_table_is_done_after_one_chunk(backend: Backend, lake: CaptureLake) -> None:
    create_rows(backend, 0)
    lake.dump(T)
    lake.capture(backend.source("public.*"))
    assert event_lines(lake.reconciled()[0], T) == []
    assert [(dump["state"], dump["chunks"], dump["rows"]) for dump in lake.dumps()] == [("done", 1, 0)]


@pytest.mark.parity
def test_chunk_fills_column_that_update_omitted(backend: Backend, lake: CaptureLake) -> None:
    wide = TableSchema(T, (*ITEMS.columns, Column("big", "text")))
    backend.create(wide, toasted=["big"])
    with backend.begin() as transaction:
        for number in ("1", "2", "3"):
            transaction.insert(T, {"id": number, "v": "a", "big": number * 3000})
    source = backend.source("public.*")
    script = Script(backend, T)
    lake.dump(T)
    lake.capture(source, steps={("read", T): lambda: script.run(["update 1 x", "update 2 y", "delete 2", "rekey 3 4"])})
    assert event_lines(lake.reconciled()[0], T) == ["u 1 x", "u 2 y", "d 2", "d 3", "c 4 a", "f 1 big", "f 4 big"]
    assert lake.state(T)[("1",)] == {"id": "1", "v": "x", "big": "1" * 3000}
    assert lake.state(T) == source_rows(backend, wide)


@pytest.mark.parametrize(("where", "discarded"), [("low", 0), ("read", 1), ("high", 0)])
def test_schema_change_after_read_discards_chunk(
    backend: Backend, lake: CaptureLake, where: str, discarded: int
) -> None:
    script = create_rows(backend, 4)
    source = backend.source("public.*")

    def change() -> None:
        backend.add_column(T, Column("extra", "integer"), "7")
        script.run(["insert 9 z"])

    lake.dump(T)
    lake.capture(source, steps={(where, T): change}, chunk_size=2, redump=False)
    _, ledger = lake.reconciled()
    reasons = [line.reason for line in ledger if line.status == "discarded"]
    assert reasons == ["schema changed in the window"] * discarded
    assert [dump["state"] for dump in lake.dumps()] == ["done"]
    state, expected = lake.state(T), source_rows(backend, ITEMS)
    if where == "high":
        # Dumped before the column was added: only the next dump returns the value that rows got without an event.
        assert {key for key, row in state.items() if "extra" not in row} == {("1",), ("2",)}
        lake.dump(T)
        lake.capture(source, redump=False)
        state = lake.state(T)
    assert state == expected
    assert {row["extra"] for row in expected.values()} == {"7"}


def test_schema_change_before_window_discards_nothing(backend: Backend, lake: CaptureLake) -> None:
    script = create_rows(backend, 1)
    source = backend.source("public.*")
    script.run(["insert 2 b"])
    backend.add_column(T, Column("extra", "integer"), "7")
    script.run(["insert 3 c"])
    lake.dump(T)
    lake.capture(source, steps={("low", T): lambda: script.run(["insert 4 d"])}, redump=False)
    # The chunk with the rows and the one that ends the table.
    assert [line.status for line in lake.reconciled()[1]] == ["closed", "closed"]
    assert lake.state(T) == source_rows(backend, ITEMS)


@pytest.mark.parity
def test_whole_dump_deletes_rows_it_does_not_return(backend: Backend, lake: CaptureLake) -> None:
    script = create_rows(backend, 6)
    source = backend.source("public.*")
    lake.dump(T)
    lake.capture(source, redump=False)
    script.run(["update 4 b", "insert 7 a"])
    lake.capture(source, redump=False)
    for gone in ("2", "4", "6", "7"):
        backend.delete_unlogged(T, {"id": gone})
    lake.dump(T, keys=[("1",), ("2",)])
    lake.capture(source, redump=False)
    assert set(lake.state(T)) == {(str(n),) for n in range(1, 8)}, "a dump of given keys deletes nothing"
    lake.dump(T)
    lake.capture(source, steps={("low", T): lambda: script.run(["insert 6 c"])}, redump=False)
    assert lake.state(T) == source_rows(backend, ITEMS)
    removed = [event for event in lake.reconciled()[0] if event.op == "d"]
    assert [(event.key, event.chunk_id is not None) for event in removed] == [
        (("2",), True), (("4",), True), (("7",), True)
    ]


def test_resumed_dump_deletes_vanished_rows_at_its_end(backend: Backend, lake: CaptureLake) -> None:
    create_rows(backend, 6)
    source = backend.source("public.*")
    lake.dump(T)
    lake.capture(source, redump=False)
    backend.delete_unlogged(T, {"id": "2"})
    lake.dump(T)
    stop = threading.Event()
    lake.capture(source, steps={("read", T): stop.set}, until=Until(), stop=stop, chunk_size=6, redump=False)
    assert [dump["state"] for dump in lake.dumps()] == ["done", "running"]
    assert ("2",) in lake.state(T)
    lake.capture(source, redump=False)
    assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]
    assert lake.state(T) == source_rows(backend, ITEMS)


def test_several_readers_give_state_of_one(backend: Backend, lake: CaptureLake) -> None:
    pair = TableSchema("public.pair", (Column("a", "integer", False, 1), Column("b", "text", False, 2),
                                       Column("v", "text")))
    backend.create(pair)
    create_rows(backend, 0)
    with backend.begin() as transaction:
        for number in range(300):
            transaction.insert(T, {"id": str(number), "v": "a"})
            transaction.insert(pair.table, {"a": str(number // 3), "b": "xyz"[number % 3], "v": "a"})
    source = backend.source("public.*")
    numbers, lock = itertools.count(), threading.Lock()

    def write() -> None:
        # Keys of all ranges, whichever is being read: updated, deleted, moved from one range to another.
        with lock, backend.begin() as transaction:
            number = next(numbers)
            transaction.update(T, {"id": str(number * 7 % 300)}, {"v": f"b{number}"})
            transaction.delete(T, {"id": str(number * 11 % 300)})
            transaction.insert(T, {"id": str(1000 + number), "v": "c"})
            transaction.update(pair.table, {"a": str(number % 50), "b": "y"}, {"a": str(200 + number)})

    lake.dump(T, pair.table)
    lake.capture(source, steps={("every read", T): write, ("every low", pair.table): write}, chunk_size=5, readers=3)
    assert [dump["state"] for dump in lake.dumps()] == ["done", "done"]
    # Each range ends with a chunk that is not full: a table of one range has one.
    highs = [row for row in lake.landing().to_pylist() if row["kind"] == "high"]
    read = Counter(row["table"] for row in highs if ChunkEnd.from_json(row["payload"]).rows < 5)
    assert read[T] > 3 and read[pair.table] > 3
    for schema in (ITEMS, pair):
        assert lake.state(schema.table) == source_rows(backend, schema)


def test_key_ranges_resume_after_restart(backend: Backend, lake: CaptureLake) -> None:
    script = create_rows(backend, 0)
    with backend.begin() as transaction:
        for number in range(200):
            transaction.insert(T, {"id": str(number), "v": "a"})
    source = backend.source("public.*")
    lake.dump(T)
    stop = threading.Event()
    numbers = itertools.count()

    def stop_at_the_seventh() -> None:
        if next(numbers) == 6:
            stop.set()

    steps = {("every read", T): stop_at_the_seventh}
    lake.capture(source, steps=steps, chunk_size=4, readers=2, until=Until(), stop=stop)
    (before,) = lake.dumps()
    assert before["state"] == "running" and 0 < before["rows"] < 200
    script.run(["delete 199", "update 0 b"])
    lake.capture(source, chunk_size=4)
    (after,) = lake.dumps()
    assert after["state"] == "done" and after["rows"] in (199, 200)
    assert lake.state(T) == source_rows(backend, ITEMS)


def ops_of_dump_with_updates_in_every_window(
    backend: Backend, lake: CaptureLake, schemas: list[TableSchema], size: int
) -> set[tuple[str, str]]:
    """Return the events' tables and operations.

    A chunk row whose key differs from the log's form of it would remain beside its update.
    """
    before = lake.reached.batch
    numbers = itertools.count()

    def touch(table: str) -> Callable[[], None]:
        return lambda: update_rows(table)

    def update_rows(table: str) -> None:
        with backend.begin() as transaction:
            # Another value each time: MySQL logs no update that changes nothing.
            transaction.update(table, {}, {"v": f"b{next(numbers)}"})

    lake.dump(*(schema.table for schema in schemas))
    lake.capture(
        backend.source("public.*"), chunk_size=size,
        steps={("every read", schema.table): touch(schema.table) for schema in schemas},
    )
    return {(event.table, event.op) for event in lake.reconciled()[0] if event.batch > before}


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parity
def test_text_keys_page_and_match_log(backend: Backend, lake: CaptureLake, size: int) -> None:
    one = TableSchema("public.one", (Column("k", "text", False, 1), Column("v", "text")))
    pair = TableSchema(
        "public.pair",
        (Column("b", "text", False, 2), Column("v", "text"), Column("a", "text", False, 1)),
    )
    for schema in (one, pair):
        backend.create(schema)
    with backend.begin() as transaction:
        for number, text in enumerate(AWKWARD):
            transaction.insert(one.table, {"k": text, "v": "a"})
            transaction.insert(pair.table, {"a": text, "b": AWKWARD[-number], "v": "a"})
            transaction.insert(pair.table, {"a": text, "b": "", "v": "a"}) if AWKWARD[-number] else None
    source = backend.source("public.*")
    lake.dump(one.table, pair.table)
    lake.capture(source, chunk_size=size)
    for schema in (one, pair):
        assert lake.state(schema.table) == source_rows(backend, schema)
    assert {row.op for row in lake.reconciled()[0]} == {"r"}

    assert ops_of_dump_with_updates_in_every_window(backend, lake, [one, pair], size) == {
        (one.table, "u"), (pair.table, "u"),
    }


TYPES = {
    "integer": ["-2147483648", "-1", "0", "9", "10", "2147483647"],
    "bigint": ["-9223372036854775808", "9", "10", "9223372036854775807"],
    "numeric": ["-1.50", "0", "9", "10.0", "99999999999999999999.123456789", "NaN"],
    "numeric(10,2)": ["-1.50", "0.00", "10.00"],
    "text": AWKWARD,
    "character varying(20)": ["", "a", "B", "b\t"],
    "character(5)": ["a    ", "b c  ", "     "],
    "uuid": ["00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "timestamp with time zone": ["2024-02-29 12:00:00+00", "1999-12-31 23:59:59.123456+00", "infinity", "-infinity"],
    "timestamp without time zone": ["2024-02-29 12:00:00", "0001-01-01 00:00:00 BC"],
    "date": ["2024-02-29", "4713-01-01 BC", "infinity"],
    "bytea": ["\\x", "\\x00", "\\x5c", "\\xff00", "\\x0a09"],
    "boolean": ["f", "t"],
    "double precision": ["-1e-300", "0.1", "-0", "1e300", "NaN", "Infinity"],
    "interval": ["1 mon", "31 days", "-01:02:03.5"],
    "inet": ["127.0.0.1", "127.0.0.0/8", "::1"],
    "character varying(9)[]": ['{a,"b,c"}', "{}", '{NULL,"NULL"}'],
    "integer[]": ["{}", "{NULL}", "{1,2}", "[0:0]={1}"],
    "smallint": ["-32768", "9", "10"],
    "real": ["-1e-45", "-0", "0.1", "3.4028235e+38", "NaN", "Infinity"],
    "numeric(5,-2)": ["-100", "0", "1000"],
    "time without time zone": ["00:00:00", "24:00:00", "23:59:59.999999"],
    "time with time zone": ["24:00:00+00", "00:00:00+15:59:59", "12:00:00-12:30"],
    "money": ["-$0.01", "$1,000.00"],
    "bit(4)": ["0000", "1010"],
    "bit varying(9)": ["", "0", "00"],
    "jsonb": ["null", '"a"', "1.0", '{"a": [1, null]}'],
    "int4range": ["empty", "[1,6)", "(,)"],
    "int4multirange": ["{}", "{[1,3),[5,8)}"],
    "cidr": ["127.0.0.0/8", "::/0"],
    "macaddr": ["08:00:2b:01:02:03"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "oid": ["9", "4294967295"],
    "name": ["", "a b", "é"],
    '"char"': ["", "a", "\\377"],
    "tsvector": ["", "'a':1"],
    "tid": ["(0,1)", "(4294967295,65535)"],
    "xid8": ["9", "18446744073709551615"],
    'public."Odd enum"': ["z", "", "a,b", "it's"],
    "public.positive": ["9", "10"],
    "public.pair": ['(1,"a,b")', "(,)", "(2,)"],
}
SINCE = {"int4multirange": 140000, "numeric(5,-2)": 150000}
"""The first server version of the types that not every version has."""
OWN_TYPES = (
    """CREATE TYPE "Odd enum" AS ENUM ('z', '', 'a,b', 'it''s')""",
    "CREATE DOMAIN whole AS numeric(6,0)",
    "CREATE DOMAIN positive AS whole CHECK (VALUE > 0)",
    "CREATE TYPE pair AS (n int, t text)",
)


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
@pytest.mark.slow
@pytest.mark.parametrize("size", [2] if EFFORT == 1 else [1, 2])
def test_keys_of_every_type_page_and_match_log(backend: PostgresBackend, lake: CaptureLake, size: int) -> None:
    version = int(backend.value("SHOW server_version_num"))
    types = {type_: values for type_, values in TYPES.items() if version >= SINCE.get(type_, 0)}
    schemas = [
        TableSchema(f"public.k{number}", (Column("k", type_, False, 1), Column("v", "text")))
        for number, type_ in enumerate(types)
    ]
    mixed = TableSchema("public.mixed", (
        Column("at", "timestamp with time zone", False, 2), Column("v", "text"), Column("n", "numeric", False, 1),
        Column("raw", "bytea", False, 3),
    ))
    backend.run(*OWN_TYPES)
    for schema, values in zip(schemas, types.values(), strict=True):
        backend.create(schema)
        with backend.begin() as transaction:
            for value in values:
                transaction.insert(schema.table, {"k": value, "v": "a"})
    backend.create(mixed)
    with backend.begin() as transaction:
        for n in ("1.0", "2"):
            for at in ("2024-01-01 00:00:00+00", "infinity"):
                for raw in ("\\x00", "\\x5c78"):
                    transaction.insert(mixed.table, {"n": n, "at": at, "raw": raw, "v": "a"})
    source = backend.source("public.*")
    schemas.append(mixed)
    lake.dump(*(schema.table for schema in schemas))
    lake.capture(source, chunk_size=size)
    for schema in schemas:
        rows = source_rows(backend, schema)
        assert (schema.table, lake.state(schema.table)) == (schema.table, rows)
        assert len(rows) == len(TYPES[schema.columns[0].type]) if schema is not mixed else 8
    assert {event.op for event in lake.reconciled()[0]} == {"r"}
    assert ops_of_dump_with_updates_in_every_window(backend, lake, schemas, size) == {
        (schema.table, "u") for schema in schemas
    }


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_key_of_extension_type_is_rejected_by_name(backend: PostgresBackend, lake: CaptureLake) -> None:
    if not backend.value("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("this server's package has no extension with a type of its own")
    backend.run("CREATE EXTENSION vector")
    backend.create(TableSchema(T, (Column("k", "public.vector(2)", False, 1), Column("v", "text"))))
    source = backend.source("public.*")
    lake.dump(T)
    with backend.begin() as transaction:
        transaction.insert(T, {"k": "[1,2]", "v": "a"})
    lake.capture(source)
    (dump,) = lake.dumps()
    assert (dump["state"], dump["rows"]) == ("failed", 0)
    assert dump["error"].startswith("table public.t: its key column k has a type from an extension")
    assert lake.state(T) == {("[1,2]",): {"k": "[1,2]", "v": "a"}}


@pytest.mark.parametrize("backend", ["postgres", "mariadb"], indirect=True)
def test_key_with_other_columns_fails_its_dump_only(backend: Backend, lake: CaptureLake) -> None:
    create_rows(backend, 3)
    source = backend.source("public.*")
    lake.dump(T, keys=[("1", "2")])
    lake.capture(source)
    (dump,) = lake.dumps()
    assert dump["state"] == "failed" and dump["error"].startswith("table public.t")
