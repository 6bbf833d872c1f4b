"""PostgreSQL through wal2json, where it differs from pgoutput: unsupported tables are rejected or reported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from dblake.core.errors import ExitCode, PrerequisitesNotMet
from dblake.core.schema import TableSchema
from dblake.core.source import Check, Source
from dblake.source.postgres.catalog_queries import read_facts
from dblake.source.postgres.init import run_init
from dblake.source.postgres.preflight import output_plugin, preflight
from dblake.source.postgres.settings import PostgresSettings
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database, debian_server

BIG = "repeat('x', 5000)"


@pytest.fixture
def backend(wal2json_database: Database) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(wal2json_database, "wal2json")
    yield backend
    backend.close()


@pytest.fixture
def lake(tmp_path: Path) -> CaptureLake:
    return CaptureLake(tmp_path)


def settings_for(database: Database, plugin: Literal["pgoutput", "wal2json"] = "wal2json") -> PostgresSettings:
    return PostgresSettings(
        name="shop", host="127.0.0.1", port=database.server.port, database=database.name, user=database.server.user,
        password=database.server.password, patterns=("public.*",), tls="disable", plugin=plugin,
        slot=f"slot_{database.name}",
    )


def checks(settings: PostgresSettings) -> dict[str, Check]:
    return {check.check: check for check in preflight(settings)}


def changes(lake: CaptureLake) -> list[tuple[str, dict[str, str | None] | None]]:
    return [(change["op"], change["after"]) for change in lake.decoded()]


def columns(lake: CaptureLake) -> list[list[str]]:
    """Return names and types of the landed schemas' columns, in log order."""
    rows = [row for row in lake.landing().to_pylist() if row["kind"] == "schema"]
    rows.sort(key=lambda row: (row["lsn"], row["seq"]))
    return [[f"{c.name} {c.type}" for c in TableSchema.from_json(row["payload"]).columns] for row in rows]


PLUGINS: tuple[Literal["pgoutput"], Literal["wal2json"]] = ("pgoutput", "wal2json")
SAME = ("incarnation", "lsn", "seq", "table", "op", "key", "after", "partial", "schema_id", "txid", "committed_at",
        "last_in_txn")


def test_both_plugins_land_equal_events(wal2json_database: Database, tmp_path: Path) -> None:
    """Positions, transactions and schemas are equal, too: windows and visibility depend on them."""
    by_pgoutput, by_wal2json = (PostgresBackend(wal2json_database, plugin) for plugin in PLUGINS)
    by_pgoutput.run("CREATE TABLE t (id int PRIMARY KEY, big text, v numeric(6,2))", "CREATE TABLE u (a text, b text)",
                    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL", "ALTER TABLE u REPLICA IDENTITY FULL")
    source = by_pgoutput.source("public.*")
    assert by_pgoutput.settings is not None
    by_wal2json.settings = replace(by_pgoutput.settings, plugin="wal2json", slot=f"{by_pgoutput.settings.slot}_w")
    server = wal2json_database.server
    run_init(by_wal2json.settings, server.user, server.password)
    by_pgoutput.run(
        f"INSERT INTO t SELECT n, {BIG}, n FROM generate_series(1, 3) n", "UPDATE t SET v = 9 WHERE id = 1",
        "BEGIN; UPDATE t SET id = 20 WHERE id = 2; INSERT INTO u VALUES ('a'); DELETE FROM t WHERE id = 3; COMMIT",
        f"UPDATE u SET b = {BIG}", "UPDATE u SET a = 'c'", "ALTER TABLE t ADD w text NOT NULL DEFAULT ''",
        "INSERT INTO t VALUES (5, 'x', 5, 'w')", "UPDATE t SET v = 8 WHERE id = 5", "TRUNCATE t, u",
    )
    events = []
    for number, each in enumerate((source, by_wal2json.source("public.*"))):
        lake = CaptureLake(tmp_path / str(number))
        lake.capture(each, redump=False)
        events.append([{name: row[name] for name in SAME} for row in lake.decoded()])
    assert len(events[0]) == 14
    assert events[1] == events[0]
    by_pgoutput.close()


# --- schemas

def toasted(backend: PostgresBackend) -> Source:
    backend.run("CREATE TABLE t (id int PRIMARY KEY, big text, v text)", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
                f"INSERT INTO t VALUES (1, {BIG}, 'a')")
    return backend.source("public.*")


def test_unchanged_toast_column_is_not_dropped(backend: PostgresBackend, lake: CaptureLake) -> None:
    source = toasted(backend)
    backend.run("UPDATE t SET v = 'b'")
    lake.capture(source, redump=False)
    backend.run("UPDATE t SET v = 'c'", "INSERT INTO t VALUES (2, 'small', 'd')", "UPDATE t SET v = 'e' WHERE id = 1")
    lake.capture(source, redump=False)
    # Each capture lands the schema again when it starts.
    assert columns(lake) == [["id integer", "big text", "v text"]] * 2
    assert changes(lake) == [
        ("u", {"id": "1", "v": "b"}), ("u", {"id": "1", "v": "c"}), ("c", {"id": "2", "big": "small", "v": "d"}),
        ("u", {"id": "1", "v": "e"}),
    ]


@pytest.mark.parametrize("earlier", [[], ["INSERT INTO t VALUES (2, 'small', 'd')"]], ids=["first", "later"])
def test_dropped_toast_column_is_not_unchanged(
    backend: PostgresBackend, lake: CaptureLake, earlier: list[str]
) -> None:
    source = toasted(backend)
    backend.run(*earlier, "ALTER TABLE t DROP COLUMN big", "UPDATE t SET v = 'b' WHERE id = 1")
    lake.capture(source, redump=False)
    assert columns(lake)[len(earlier) :] == [["id integer", "v text"]]
    assert changes(lake)[len(earlier) :] == [("u", {"id": "1", "v": "b"})]


def test_schema_change_inside_transaction_splits_rows(backend: PostgresBackend, lake: CaptureLake) -> None:
    backend.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = backend.source("public.*")
    backend.run(
        "BEGIN; INSERT INTO t VALUES (1, 'a'); ALTER TABLE t ADD w numeric(4,1); INSERT INTO t VALUES (2, 'b', 2.5);"
        " ALTER TABLE t ALTER w TYPE numeric(6,2); INSERT INTO t VALUES (3, 'c', 3.25); COMMIT",
    )
    lake.capture(source, redump=False)
    assert columns(lake) == [
        ["id integer", "v text", *w] for w in ([], ["w numeric(4,1)"], ["w numeric(6,2)"])
    ]
    assert [(row["after"], row["last_in_txn"]) for row in lake.decoded()] == [
        ({"id": "1", "v": "a"}, False), ({"id": "2", "v": "b", "w": "2.5"}, False),
        ({"id": "3", "v": "c", "w": "3.25"}, True),
    ]


def test_unusual_names_of_types_and_columns_decode(backend: PostgresBackend, lake: CaptureLake) -> None:
    backend.run(
        """CREATE SCHEMA "My ""S" """, """CREATE TYPE "My ""S"."e ,""value"":" AS ENUM ('a', '","value":"')""",
        """CREATE DOMAIN "My ""S".d AS numeric(6,2)""",
        """CREATE TABLE public."we ird.""T" ("a""b" int PRIMARY KEY, "value" "My ""S"."e ,""value"":",
           "optional" "My ""S".d, "é\\n" "My ""S".d[])""",
    )
    source = backend.source("public.*")
    backend.run("""INSERT INTO public."we ird.""T" VALUES (1, '","value":"', 1.5, '{2}')""")
    lake.dump('public."we ird.""T"')
    lake.capture(source, redump=False)
    expected = [['a"b integer', '''value "My ""S"."e ,""value"":"''', "optional numeric(6,2)", 'é\\n "My ""S".d[]']]
    assert columns(lake)[:1] == expected
    assert {change for change, _ in changes(lake)} == {"c", "r"}
    row = {'a"b': "1", "value": '","value":"', "optional": "1.50", "é\\n": "{2.00}"}
    assert [image for _, image in changes(lake)] == [row, row]


# --- tables that preflight and the log reject

REFUSED = [
    ("wal2json_partitions", ["CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                             "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9)"],
     "wal2json names rows by their partitions: public.t",
     r"table public\.t_1 is partitioned or a partition: wal2json names rows by their partitions"),
    ("generated_columns", ["CREATE TABLE t (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id * 2) STORED)"],
     "wal2json does not distinguish generated columns from others: public.t",
     r"table public\.t has generated columns, which wal2json does not distinguish from others"),
]


@pytest.mark.parametrize(("check", "create", "detail", "refusal"), REFUSED, ids=[case[0] for case in REFUSED])
def test_unsupported_table_is_rejected(
    backend: PostgresBackend, check: str, create: list[str], detail: str, refusal: str
) -> None:
    source = backend.source("public.*")
    backend.run(*create, "INSERT INTO t VALUES (1)")
    result = {c.check: c for c in source.preflight()}[check]
    fix = "remove the tables from source.tables, or set source.plugin to pgoutput"
    assert replace(result, tables={}) == Check(check, False, detail, fix, affects="log")
    assert list(result.tables) == ["public.t"]
    assert re.match(refusal, rejection(source)[1])


def rejection(source: Source) -> tuple[str, str]:
    """Return name and reason of the one table that the log rejects; none of its rows may land."""
    stream = source.open_log(None, 1)
    piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=1)
    stream.close()
    assert piece is not None
    assert "row" not in piece.rows["kind"].to_pylist()
    (rejected,) = piece.rejected.items()
    return rejected


def test_table_without_identity_is_not_captured(backend: PostgresBackend) -> None:
    source = backend.source("public.*")
    backend.run("CREATE TABLE t (v text)", "INSERT INTO t VALUES ('a')", "UPDATE t SET v = 'b'", "TRUNCATE t",
                "CREATE TABLE n (id int PRIMARY KEY)", "ALTER TABLE n REPLICA IDENTITY NOTHING",
                "INSERT INTO n VALUES (1)")
    by_name = {c.check: c for c in source.preflight()}
    assert by_name["primary_key"].detail == (
        "no primary key and no replica identity, so not captured: wal2json omits their UPDATE and DELETE:"
        " public.t"
    )
    assert by_name["replica_identity"].detail == (
        "updated and deleted rows cannot be identified by their primary key: public.n"
    )
    stream = source.open_log(None, 1)
    piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=1)
    stream.close()
    assert piece is not None and piece.rows.num_rows == 0
    assert piece.rejected == {
        f"public.{name}": f"table public.{name} has no replica identity, so wal2json omits its updates and deletes"
        for name in "nt"
    }


def test_identity_without_key_is_rejected(backend: PostgresBackend) -> None:
    backend.run("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE NOT NULL)",
                "ALTER TABLE t REPLICA IDENTITY USING INDEX t_u_key")
    source = backend.source("public.*")
    backend.run("INSERT INTO t VALUES (1, 1)", "UPDATE t SET u = 2")
    stream = source.open_log(None, 1)
    piece = stream.read(max_bytes=1 << 20, max_rows=1000, seconds=1)
    stream.close()
    assert piece is not None
    assert "its replica identity is an index that does not" in piece.rejected["public.t"]


def test_slot_of_other_plugin_is_rejected(backend: PostgresBackend) -> None:
    backend.run("CREATE TABLE t (id int PRIMARY KEY)")
    backend.source("public.*")
    assert backend.settings is not None
    other = PostgresBackend(backend.database, "pgoutput")
    other.settings = replace(backend.settings, plugin="pgoutput")
    belongs = f"slot {backend.settings.slot} belongs to plugin wal2json"
    with pytest.raises(PrerequisitesNotMet, match=belongs) as refused:
        other.source("public.*").open_log(None, 1)
    assert refused.value.exit_code == ExitCode.CONFIGURATION
    slot = {c.check: c for c in other.source("public.*").preflight()}["slot"]
    assert (slot.ok, slot.fix) == (
        False, "set source.slot to another name, then run --init; or source.plugin to the slot's"
    )


# --- the server

def test_init_meets_all_checks_without_publication(backend: PostgresBackend) -> None:
    backend.run("CREATE TABLE t (id int PRIMARY KEY, n numeric, f real, a real[])")
    results = {c.check: c for c in backend.source("public.*").preflight()}
    assert [name for name, check in results.items() if not check.ok] == []
    assert not [name for name in results if name.startswith("publication")]
    assert backend.value("SELECT count(*) FROM pg_publication") == 0
    assert results["wal2json_numbers"].detail == (
        "wal2json up to 2.5 sends NaN and infinity as NULL, in public.t.n, public.t.f"
    )


def test_missing_output_plugin_is_unmet(backend: PostgresBackend, database: Database) -> None:
    installed, missing = checks(settings_for(backend.database)), checks(settings_for(database))
    assert installed["output_plugin"] == Check("output_plugin", True)
    assert missing["output_plugin"] == Check(
        "output_plugin", False, "the server has no output plugin wal2json",
        "install wal2json on the server (a package such as postgresql-15-wal2json)",
    )
    assert backend.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%%preflight'") == 0
    assert checks(settings_for(database, "pgoutput"))["output_plugin"].ok


DEFAULT = "'pgoutput', 'test_decoding', "


@pytest.mark.parametrize(
    ("plugin", "listed", "refusal", "to_set"),
    [
        ("wal2json", None, "", None), ("wal2json", 'pgoutput, "wal2json"', "", None),
        ("pgoutput", "pgoutput,test_decoding", "", None),
        ("wal2json", "pgoutput, test_decoding", "", DEFAULT + "'wal2json'; SELECT pg_reload_conf()"),
        ("wal2json", None, "refused",
         DEFAULT + "'wal2json'; SELECT pg_reload_conf() -- keep the other names that it lists now"),
        ("pgoutput", "wal2json", "", "'wal2json', 'pgoutput'; SELECT pg_reload_conf()"),
    ],
)
def test_unlisted_output_plugin_is_unmet(
    database: Database, plugin: Any, listed: str | None, refusal: Any, to_set: str | None
) -> None:
    settings = settings_for(database, plugin)
    with database.connect().cursor() as cursor:
        server = replace(read_facts(cursor, settings).server, plugins=listed)
        result = output_plugin(server, settings, refusal).check(cursor)
    detail = f"output_plugin_libraries does not list {plugin}" if to_set else ""
    fix = f"ALTER SYSTEM SET output_plugin_libraries = {to_set}" if to_set else ""
    assert result == Check("output_plugin", to_set is None, detail, fix)


def test_unlisted_wal2json_is_allowed_by_preflights_fix(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with debian_server(tmp_path / "data", None) as server:
        database = Database(server, "postgres")
        if not database.rows("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'"):
            # Older minor releases allow every plugin.
            assert checks(settings_for(database))["output_plugin"].ok
            return
        settings = settings_for(database)
        with pytest.raises(PrerequisitesNotMet, match="does not allow wal2json as an output plugin"):
            run_init(settings, server.user, server.password)
        database.run(*checks(settings)["output_plugin"].fix.split("; "))
        run_init(settings, server.user, server.password)
        assert [c.check for c in preflight(settings) if not c.ok] == ["tables"]


def test_wal2json_other_encoding_is_unmet(backend: PostgresBackend) -> None:
    server = backend.database.server
    Database(server, "postgres").run("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = Database(server, "latin")
    assert checks(settings_for(latin))["encoding"] == Check(
        "encoding", False, "LATIN1: wal2json does not convert it to UTF-8",
        "set source.plugin to pgoutput, for which the server converts it to UTF-8",
    )
    assert checks(settings_for(latin, "pgoutput"))["encoding"].ok
    Database(server, "postgres").run("DROP DATABASE latin WITH (FORCE)")
