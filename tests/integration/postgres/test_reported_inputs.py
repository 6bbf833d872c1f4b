"""Inputs from public bug reports of other capture products, on PostgreSQL, in one run of capture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dblake.ingest.capture.table_life import LifeState
from dblake.ingest.source.postgres.embedded import EmbeddedPostgres
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import fresh_database
from tests.support.reported import Captured, Reported, capture_all, ordered

LONG = "ab" * 3000
PAIRS = "{" + ",".join(['"(USD,10)"'] * 400) + "}"

INPUTS = (
    Reported(
        "backfilled_column", "airbytehq/airbyte#80920",
        ("CREATE TABLE backfilled_column (id int PRIMARY KEY, a text)",
         "INSERT INTO backfilled_column VALUES (1, 'a'), (2, 'b'), (3, 'c')"),
        later=("ALTER TABLE backfilled_column ADD foo text", "UPDATE backfilled_column SET foo = a || '!' WHERE id < 3",
               "INSERT INTO backfilled_column VALUES (4, 'd', 'e')"),
        columns=("id", "a", "foo"),
        rows=(("1", "a", "a!"), ("2", "b", "b!"), ("3", "c", None), ("4", "d", "e")),
    ),
    Reported(
        "generated_middle", "debezium/debezium#7532",
        ("CREATE TABLE generated_middle (id int PRIMARY KEY, g int GENERATED ALWAYS AS (a * 2) STORED, a int, b text)",
         "INSERT INTO generated_middle (id, a, b) VALUES (1, 10, 'x'), (2, 20, 'y'), (3, 30, 'z')"),
        window=("UPDATE generated_middle SET a = 11 WHERE id = 1",),
        later=("UPDATE generated_middle SET b = NULL WHERE id = 3",),
        columns=("id", "a", "b"), rows=(("1", "11", "x"), ("2", "20", "y"), ("3", "30", None)),
    ),
    Reported(
        "not_null_deleted", "airbytehq/airbyte#8557",
        ("CREATE TABLE not_null_deleted (id int PRIMARY KEY, a text NOT NULL, n int NOT NULL)",
         "INSERT INTO not_null_deleted VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, 'd', 4)"),
        window=("DELETE FROM not_null_deleted WHERE id = 2",), later=("DELETE FROM not_null_deleted WHERE id = 3",),
        columns=("id", "a", "n"), rows=(("1", "a", "1"), ("4", "d", "4")),
    ),
    Reported(
        "toasted_bytes", "supabase/etl#404",
        ("CREATE TABLE toasted_bytes (id int PRIMARY KEY, kind int, data bytea NOT NULL)",
         "ALTER TABLE toasted_bytes ALTER data SET STORAGE EXTERNAL",
         "INSERT INTO toasted_bytes SELECT n, n, decode(repeat('ab', 3000), 'hex') FROM generate_series(1, 3) n"),
        window=("UPDATE toasted_bytes SET kind = 10 WHERE id = 1",),
        later=("UPDATE toasted_bytes SET kind = 30 WHERE id = 3",),
        columns=("id", "kind", "data"),
        rows=(("1", "10", rf"\x{LONG}"), ("2", "2", rf"\x{LONG}"), ("3", "30", rf"\x{LONG}")),
    ),
    Reported(
        "composite_array", "risingwavelabs/risingwave#25818",
        ("CREATE TYPE price AS (currency text, amount int)",
         "CREATE TABLE composite_array (id int PRIMARY KEY, kind int, prices price[])",
         "ALTER TABLE composite_array ALTER prices SET STORAGE EXTERNAL",
         "INSERT INTO composite_array VALUES (1, 1, NULL), (2, 2, '{}')",
         "INSERT INTO composite_array SELECT n, n, array_fill(ROW('USD', 10)::price, ARRAY[400])"
         " FROM generate_series(3, 4) n"),
        later=("UPDATE composite_array SET kind = kind * 10 WHERE id < 4",),
        columns=("id", "kind", "prices"),
        rows=(("1", "10", None), ("2", "20", "{}"), ("3", "30", PAIRS), ("4", "4", PAIRS)),
    ),
    Reported(
        "partitioned", "debezium/debezium#770",
        ("CREATE TABLE partitioned (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
         "CREATE TABLE partitioned_low PARTITION OF partitioned FOR VALUES FROM (0) TO (10)",
         "CREATE TABLE partitioned_high PARTITION OF partitioned FOR VALUES FROM (10) TO (20)",
         "INSERT INTO partitioned VALUES (1, 'a'), (2, 'b'), (11, 'c'), (12, 'd')"),
        # The first row moves to the other partition.
        window=("UPDATE partitioned SET id = 13 WHERE id = 1",),
        later=("UPDATE partitioned SET id = 3, v = 'x' WHERE id = 12", "DELETE FROM partitioned_high WHERE id = 11"),
        columns=("id", "v"), rows=(("13", "a"), ("2", "b"), ("3", "x")),
    ),
    Reported(
        "composite_key", "debezium/debezium#5158",
        ("CREATE TABLE composite_key (region text, at timestamptz, n int, v text, PRIMARY KEY (region, at, n))",
         "INSERT INTO composite_key SELECT r, '2024-03-10 02:30:00+00', n, r || n FROM unnest(ARRAY['', 'a', 'ab']) r,"
         " generate_series(-1, 1) n"),
        window=("DELETE FROM composite_key WHERE region = '' AND n = 0",
                "INSERT INTO composite_key VALUES ('', '2024-03-10 02:30:00+00', -2, 'new')",
                "UPDATE composite_key SET n = 5 WHERE region = 'ab' AND n = 1"),
        later=("UPDATE composite_key SET at = '2024-03-10 02:30:00.000001+00' WHERE region = 'a' AND n = 0",),
        columns=("region", "n", "v"),
        rows=(("", "-2", "new"), ("", "-1", "-1"), ("", "1", "1"), ("a", "-1", "a-1"), ("a", "0", "a0"),
              ("a", "1", "a1"), ("ab", "-1", "ab-1"), ("ab", "0", "ab0"), ("ab", "5", "ab1")),
    ),
    Reported(
        "full_identity", "MaterializeInc/materialize#8371",
        ("CREATE TABLE full_identity (id int PRIMARY KEY, kind int, v text)",
         "ALTER TABLE full_identity REPLICA IDENTITY FULL, ALTER v SET STORAGE EXTERNAL",
         "INSERT INTO full_identity SELECT n, n, repeat('ab', 3000) FROM generate_series(1, 3) n"),
        window=("UPDATE full_identity SET kind = 10 WHERE id = 1",),
        later=("UPDATE full_identity SET id = 30 WHERE id = 3",),
        columns=("id", "kind", "v"), rows=(("1", "10", LONG), ("2", "2", LONG), ("30", "3", LONG)),
    ),
    Reported(
        "index_identity", "supabase/etl#740",
        ("CREATE TABLE index_identity (id int PRIMARY KEY, email text NOT NULL UNIQUE)",
         "ALTER TABLE index_identity REPLICA IDENTITY USING INDEX index_identity_email_key"),
        later=("INSERT INTO index_identity VALUES (1, 'a')", "UPDATE index_identity SET email = 'b'"),
        columns=(), rows=(),
        rejection="replica_identity: updated and deleted rows cannot be identified by their primary key",
    ),
    Reported(
        "key_shifted", "apache/flink-cdc#4438",
        ("CREATE TABLE key_shifted (id int PRIMARY KEY, v text)",
         "INSERT INTO key_shifted SELECT n, 'v' || n FROM generate_series(1, 5) n"),
        window=("UPDATE key_shifted SET id = id + 100 WHERE id IN (1, 4)",),
        later=("UPDATE key_shifted SET id = -id, v = 'w' WHERE id = 5",),
        columns=("id", "v"), rows=(("-5", "w"), ("101", "v1"), ("104", "v4"), ("2", "v2"), ("3", "v3")),
    ),
    Reported(
        "enum_key", "sequinstream/sequin#2149",
        ("CREATE TYPE size AS ENUM ('small', 'large', 'huge')",
         "CREATE TABLE enum_key (kind size, id int, v text, PRIMARY KEY (kind, id))",
         "INSERT INTO enum_key SELECT k, n, 'v' FROM unnest(enum_range(NULL::size)) k, generate_series(1, 2) n"),
        # Between the labels in their order; the labels in alphabetical order would put it first.
        window=("UPDATE enum_key SET v = 'w' WHERE kind = 'huge'",
                "DELETE FROM enum_key WHERE kind = 'small' AND id = 1"),
        later=("ALTER TYPE size ADD VALUE 'medium' BEFORE 'large'", "INSERT INTO enum_key VALUES ('medium', 1, 'm')"),
        columns=("kind", "id", "v"),
        rows=(("huge", "1", "w"), ("huge", "2", "w"), ("large", "1", "v"), ("large", "2", "v"), ("medium", "1", "m"),
              ("small", "2", "v")),
    ),
    Reported(
        "numeric_key", "risingwavelabs/risingwave#26444",
        ("CREATE TABLE numeric_key (k numeric PRIMARY KEY, v int)",
         "INSERT INTO numeric_key SELECT k::numeric, 1 FROM unnest(ARRAY['-10', '-9.5', '2', '1.0', '10', 'NaN',"
         " 'Infinity', '1e20']) k"),
        # Text, floating point and the server order these keys differently; 1.0 and 1.00 are one key with two texts.
        window=("UPDATE numeric_key SET v = 2", "DELETE FROM numeric_key WHERE k = 10",
                "INSERT INTO numeric_key VALUES (-11, 3), (100000000000000000001, 3)"),
        later=("UPDATE numeric_key SET k = 1.00 WHERE k = 1", "DELETE FROM numeric_key WHERE k = 'NaN'"),
        columns=("k", "v"),
        rows=(("-10", "2"), ("-11", "3"), ("-9.5", "2"), ("1.00", "2"), ("100000000000000000000", "2"),
              ("100000000000000000001", "3"), ("2", "2"), ("Infinity", "2")),
    ),
    Reported(
        "extension_type", "supabase/etl#393",
        ("CREATE EXTENSION vector", "CREATE TABLE extension_type (id int PRIMARY KEY, at vector(3))",
         "INSERT INTO extension_type VALUES (1, '[1,2,3]'), (2, NULL), (3, '[0.5,-1,2]')"),
        window=("UPDATE extension_type SET at = '[9,9,9]' WHERE id = 2",),
        later=("INSERT INTO extension_type VALUES (4, '[4,4,4]')", "UPDATE extension_type SET at = NULL WHERE id = 1"),
        columns=("id", "at"), rows=(("1", None), ("2", "[9,9,9]"), ("3", "[0.5,-1,2]"), ("4", "[4,4,4]")),
    ),
)


@pytest.fixture(scope="module")
def backend(postgres: EmbeddedPostgres) -> Iterator[PostgresBackend]:
    with fresh_database(postgres) as database:
        backend = PostgresBackend(database)
        yield backend
        backend.close()


@pytest.fixture(scope="module")
def captured(backend: PostgresBackend, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    lake = CaptureLake(tmp_path_factory.mktemp("reported"))
    return capture_all(lake, INPUTS, backend.run, lambda: backend.source("public.*"))


@pytest.mark.parametrize("given", [given for given in INPUTS if not given.rejection],
                         ids=lambda given: f"{given.name}-{given.source}")
def test_reported_input_equals_source(backend: PostgresBackend, captured: Captured, given: Reported) -> None:
    """State has the source's own rows, which are also typed out."""
    as_text = ", ".join(f"CASE WHEN {name} IS NOT NULL THEN concat({name}) END" for name in given.columns)
    there = ordered(backend.database.rows(f"SELECT {as_text} FROM {given.table}"))
    assert there == ordered(given.rows)
    assert captured.rows(given) == there
    assert captured.lives[given.table].state is LifeState.FOLLOWED


@pytest.mark.parametrize("given", [given for given in INPUTS if given.rejection],
                         ids=lambda given: f"{given.name}-{given.source}")
def test_reported_input_is_rejected_by_name(captured: Captured, given: Reported) -> None:
    """The table is suspended with the reason, and the others go on."""
    life = captured.lives[given.table]
    assert (life.state, life.reason) == (LifeState.SUSPENDED, given.rejection)
    assert captured.rows(given) == []
