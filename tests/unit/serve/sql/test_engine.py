"""The DuckDB engine: names, rejected statements, points, several sources, one consistent reading."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dblake.base.core.errors import PointOutOfRange, UsageError
from dblake.serve.sql.engine import DuckdbEngine
from tests.support.backends import MemoryBackend
from tests.support.lake import CaptureLake
from tests.support.odd_names import TABLES, OddName
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema

T = table_schema("public.t", "id integer key", "a text", "b text")
CUT = table_schema("public.cut", "id integer key", "a text")
NEW = table_schema("public.new", "id integer key", "a text")
TWIN = table_schema("other.t", "id integer key")
LONE = table_schema("other.lone", "v integer")
SHOP = table_schema('"My Shop"."Order lines"', "id integer key", "the name; with (odd) characters: text")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> PlainLake:
    """Return a lake whose state holds batch 1; batch 2 is in events only."""
    lake = PlainLake(tmp_path_factory.mktemp("lake"))
    for schema in (T, CUT, NEW, TWIN, LONE):
        lake.schema(schema)
    lake.land(1, {
        T: [(10 + n, "c", str(n), {"id": str(n), "a": f"a{n}", "b": f"b{n}"}) for n in range(1, 7)],
        CUT: [(10, "c", "1", {"id": "1", "a": "x"}), (11, "c", "2", {"id": "2", "a": "y"}), (12, "d", "2", None)],
        TWIN: [(14, "c", "1", {"id": "1"})],
        LONE: [(15, "c", (), {"v": "5"})],
    })
    lake.fold(1)
    lake.land(2, {
        T: [(21, "u", "1", {"id": "1", "a": None}), (22, "d", "2", None), (23, "f", "3", {"b": "filled"}),
            (24, "c", "7", {"id": "7", "a": "a7", "b": None}), (25, "u", "4", {"id": "4", "a": "old"}),
            (26, "u", "4", {"id": "4", "a": "new"}), (27, "d", "5", None),
            (28, "c", "5", {"id": "5", "a": "again", "b": None})],
        CUT: [(21, "u", "1", {"a": "z"}), (22, "t", None, None), (23, "c", "3", {"id": "3", "a": "w"})],
        NEW: [(21, "c", "1", {"id": "1", "a": "x"})],
        LONE: [(29, "c", (), {"v": "6"})],
    })
    return lake


@pytest.fixture(scope="module")
def engine(lake: PlainLake) -> DuckdbEngine:
    return DuckdbEngine(lake.paths)


def run(engine: DuckdbEngine, statement: str) -> list[tuple[str | None, ...]]:
    return [tuple(row) for row in engine.query(statement).text_rows()]


PLAIN = [(str(n), f"a{n}", f"b{n}") for n in range(1, 7)]
LIVE = [("1", None, "b1"), ("3", "a3", "filled"), ("4", "new", "b4"), ("5", "again", None), ("6", "a6", "b6"),
        ("7", "a7", None)]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT * FROM public.t ORDER BY id", PLAIN),
        ("FROM PUBLIC.T_Live ORDER BY id;", LIVE),
        ("SELECT count(*) FROM t -- a comment", [("6",)]),
        ("SELECT * FROM public.cut", [("1", "x")]),
        ("SELECT * FROM public.cut_live", [("3", "w")]),
        ("SELECT * FROM new", []),
        ("SELECT * FROM new_live", [("1", "x")]),
        ("SELECT * FROM lone_live ORDER BY v", [("5",), ("6",)]),
        ("WITH x AS (SELECT id FROM public.t_live) SELECT count(*), (SELECT max(id) FROM other.t) FROM x "
         "JOIN t USING (id) WHERE EXISTS (SELECT 1 FROM cut WHERE cut.id = x.id)", [("1", "1")]),
        ("SELECT \"table\", count(*) FROM dblake.events WHERE batch = 2 GROUP BY 1 ORDER BY 1",
         [("other.lone", "1"), ("public.cut", "3"), ("public.new", "1"), ("public.t", "8")]),
        ("SELECT batch, lsn FROM dblake.frontier", [("1", "16")]),
        ("SELECT count(*) FROM dblake.windows", [("0",)]),
        ("SELECT shop.public.t.id FROM shop.public.t JOIN t x USING (id) WHERE id = 3", [("3",)]),
        ("SELECT id, _op, _from.lsn, _to.lsn FROM t_history WHERE id IN (2, 3) ORDER BY id, _from.lsn",
         [("2", "c", "12", "22"), ("3", "c", "13", "23"), ("3", "f", "23", None)]),
        ("SELECT id, a, _from.lsn, _to.lsn FROM cut_history ORDER BY _from.lsn",
         [("1", "x", "10", "21"), ("2", "y", "11", "12"), ("1", "z", "21", "22"), ("3", "w", "23", None)]),
        ("SELECT array_of('{1,NULL,\"a,\\\"b\",c d}'), array_of('[2:3]={x,y}'), array_of('{}'), array_of(NULL)",
         [('["1",null,"a,\\"b","c d"]', '["x","y"]', "[]", None)]),
    ],
)
def test_query_returns_rows(engine: DuckdbEngine, statement: str, expected: list[object]) -> None:
    assert run(engine, statement) == expected


@pytest.mark.parametrize(
    ("statement", "message", "next_step"),
    [
        ("SELECT * FROM t; SELECT 1", "2 statements instead of one", ""),
        ("COPY t TO 'x'", "COPY is not a query", ""),
        ("ATTACH 'x.db'", "ATTACH is not a query", ""),
        ("INSTALL httpfs", "LOAD is not a query", ""),
        ("SELECT * FROM publc.t", "there is no table publc.t", "write other.t or public.t"),
        ("SELECT * FROM cutt", "there is no table cutt", "write public.cut"),
        ("SELECT * FROM public.cut_2024_live", r"there is no table public\.cut_2024_live",
         "write public.cut; a partition's rows are in its parent"),
        ("SELECT * FROM nothing_like_it", "there is no table nothing_like_it", "SHOW TABLES"),
        ("SELECT * FROM harbour.public.t", "there is no source harbour in the warehouse", "write one of shop"),
        ("SELECT nope FROM t", 'Referenced column "nope" not found', "correct the query"),
        ("DESCRIBE nope", "there is no table nope", "SHOW TABLES"),
    ],
)
def test_faulty_statement_is_rejected_in_one_line(
    engine: DuckdbEngine, statement: str, message: str, next_step: str
) -> None:
    with pytest.raises(UsageError, match=message) as rejected:
        run(engine, statement)
    assert next_step in rejected.value.next_step
    assert "\n" not in str(rejected.value)


def test_unqualified_name_of_two_schemas_is_rejected(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    for schema in ("a", "b"):
        lake.schema(table_schema(f"{schema}.lone", "v integer"))
    with pytest.raises(UsageError, match=r"lone is ambiguous: a\.lone or b\.lone"):
        DuckdbEngine(lake.paths).query("SELECT * FROM lone")


def exact(odd: OddName) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in (odd.schema, odd.table))


def test_odd_names_are_read_by_their_exact_name(tmp_path: Path) -> None:
    """Also names that differ only in case, which Spark rejects."""
    lake = PlainLake(tmp_path)
    for number, odd in enumerate(TABLES):
        lake.schema(table_schema(odd.qualified, "id integer key"), lsn=number + 1)
    lake.land(1, {
        table_schema(odd.qualified, "id integer key"): [(number + 1, "c", str(number), {"id": str(number)})]
        for number, odd in enumerate(TABLES)
    })
    lake.fold(1)
    engine = DuckdbEngine(lake.paths)
    for number, odd in enumerate(TABLES[:3]):
        assert run(engine, f"SELECT id FROM {exact(odd)}") == [(str(number),)]
    different = list(enumerate(TABLES))[3:]
    exactly = ", ".join(f"(SELECT id FROM {exact(odd)})" for _, odd in different)
    assert run(engine, f"SELECT {exactly}") == [tuple(str(number) for number, _ in different)]
    views = {number: ".".join(f'"{part}"' for part in odd.view) for number, odd in different if odd.view}
    by_view = ", ".join(f"(SELECT id FROM {name})" for name in views.values())
    assert run(engine, f"SELECT {by_view}") == [tuple(map(str, views))]
    listed = [name for name, *_ in run(engine, "SHOW TABLES")]
    assert len(listed) == len(TABLES) + 6
    named = [name for name in listed if name and name.replace('"', "").lower() != "public.orders"]
    total = " + ".join(f"(SELECT count(*) FROM {name})" for name in named if not name.startswith("dblake."))
    assert run(engine, f"SELECT {total}") == [(str(len(TABLES) - 3),)]


def test_odd_columns_are_read_by_their_names(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    schema = table_schema("public.t", "id integer key", 'a"b: text', "from: text", "_dot.ted: text", "größe: text")
    lake.schema(schema)
    row = {name: str(number) for number, name in enumerate(schema.names)}
    lake.land(1, {schema: [(1, "c", "0", row)]})
    lake.fold(1)
    engine = DuckdbEngine(lake.paths)
    for name in ("t", "t_live"):
        assert engine.query(f"FROM {name}").columns == schema.names
        assert run(engine, f'SELECT "a""b", "from", "_dot.ted", "größe" FROM {name}') == [("1", "2", "3", "4")]


def test_sources_of_a_warehouse_are_joined(lake: PlainLake, tmp_path: Path) -> None:
    one, two = PlainLake(tmp_path, "one"), PlainLake(tmp_path, "two")
    for source, value in ((one, "first"), (two, "second")):
        schema = table_schema("one.t", "id integer key", "v text")
        source.schema(schema)
        source.land(1, {schema: [(1, "c", "1", {"id": "1", "v": value})]})
        source.fold(1)
    engine = DuckdbEngine(one.paths)
    # The schema has the name of the source, as a MySQL database often does.
    statement = "SELECT a.v, b.v FROM one.t a JOIN two.one.t_live b USING (id)"
    assert run(engine, statement) == [("first", "second")]
    assert run(engine, "SELECT v FROM one.one.t") == [("first",)]
    assert run(engine, "SELECT count(*) FROM two.dblake.events") == [("1",)]


@pytest.mark.parametrize(
    ("at", "rows", "events"),
    [("1/13", PLAIN[:3], "6"), ("2024-01-01T00:16:00", PLAIN, "11"), ("now", LIVE, "24")],
)
def test_queries_as_of_point_read_that_point(lake: PlainLake, at: str, rows: list[object], events: str) -> None:
    engine = DuckdbEngine(lake.paths, at)
    assert run(engine, "SELECT * FROM t ORDER BY id") == rows
    assert run(engine, "SELECT * FROM t_live ORDER BY id") == rows
    assert run(engine, "SELECT count(*) FROM dblake.events") == [(events,)]


def test_point_that_cannot_be_read_is_rejected_at_once(lake: PlainLake) -> None:
    with pytest.raises(UsageError, match="'yesterday' is no point"):
        DuckdbEngine(lake.paths, "yesterday")
    with pytest.raises(PointOutOfRange):
        DuckdbEngine(lake.paths, "1/9")


def test_partition_by_its_own_name_names_the_parent(tmp_path: Path) -> None:
    """Older versions landed the schemas of partitions, too, whose rows are the parent's."""
    lake = PlainLake(tmp_path)
    for table in ("public.orders", "public.orders_2024", "public.orders_lines"):
        columns = ("id integer key", "a text") if table != "public.orders_lines" else ("id integer key",)
        lake.schema(table_schema(table, *columns))
    lake.land(1, {table_schema("public.orders", "id integer key", "a text"): [(1, "c", "1", {"id": "1", "a": "x"})]})
    lake.fold(1)
    engine = DuckdbEngine(lake.paths)
    assert run(engine, "SELECT * FROM orders_2024") == []
    assert engine.warnings() == [
        "table public.orders_2024 has had no rows; if it is a partition, its rows are in public.orders"
    ]
    assert run(engine, "SELECT count(*) FROM orders, orders_lines") == [("0",)]
    assert engine.warnings() == []


def test_history_has_no_version_for_unchanged_dumped_row(tmp_path: Path) -> None:
    """Each dump reads every row again; only a row that it returns with other values is a version."""
    lake = PlainLake(tmp_path)
    lake.schema(CUT)
    lake.land(1, {CUT: [
        (1, "c", "1", {"id": "1", "a": "x"}), (2, "r", "1", {"id": "1", "a": "x"}),
        (3, "r", "1", {"id": "1", "a": "x"}), (4, "r", "1", {"id": "1", "a": "y"}),
        (5, "u", "1", {"id": "1", "a": "y"}),
        (6, "r", "2", {"id": "2", "a": None}), (7, "d", "1", None), (8, "r", "1", {"id": "1", "a": "y"}),
    ]})
    statement = "SELECT id, a, _op, _from.lsn, _to.lsn FROM cut_history ORDER BY id, _from"
    assert run(DuckdbEngine(lake.paths), statement) == [
        ("1", "x", "c", "1", "4"), ("1", "y", "r", "4", "5"), ("1", "y", "u", "5", "7"), ("1", "y", "r", "8", None),
        ("2", None, "r", "6", None),
    ]


def test_history_of_changed_key_shows_values_that_the_log_lacks(tmp_path: Path) -> None:
    """A chain, a swap, a key that is used again, a row that lacks a value itself, and a whole create."""
    lake = PlainLake(tmp_path)
    lake.schema(T)
    lake.land(1, {T: [
        (1, "c", "1", {"id": "1", "a": "a1", "b": "b1"}), (2, "u", "1", {"id": "1", "a": "a2"}), (3, "d", "1", None),
        (4, "c", "2", {"id": "2", "a": "a4"}, [], "1"), (5, "c", "1", {"id": "1", "a": None, "b": "other"}),
        (6, "d", "2", None), (7, "c", "3", {"id": "3"}, [], "2"), (8, "u", "3", {"id": "3", "a": "a8"}),
        (9, "d", "3", None), (10, "c", "9", {"id": "9"}, [], "3"), (11, "d", "1", None),
        (12, "c", "3", {"id": "3"}, [], "1"), (13, "d", "9", None), (14, "c", "1", {"id": "1", "b": "b14"}, [], "9"),
        (20, "u", "5", {"id": "5", "a": "a20"}), (21, "d", "5", None), (22, "c", "6", {"id": "6"}, [], "5"),
        (23, "d", "7", None), (24, "c", "8", {"id": "8", "a": "x", "b": None}, [], "7"),
        (25, "t", None, None), (26, "d", "6", None), (27, "c", "4", {"id": "4"}, [], "6"),
    ]})
    statement = "SELECT _from.lsn, id, a, b, _missing, _to.lsn FROM t_history ORDER BY 1"
    assert run(DuckdbEngine(lake.paths), statement) == [
        ("1", "1", "a1", "b1", "[]", "2"), ("2", "1", "a2", "b1", "[]", "3"), ("4", "2", "a4", "b1", "[]", "6"),
        ("5", "1", None, "other", "[]", "11"), ("7", "3", "a4", "b1", "[]", "8"), ("8", "3", "a8", "b1", "[]", "9"),
        ("10", "9", "a8", "b1", "[]", "13"), ("12", "3", None, "other", "[]", "25"),
        ("14", "1", "a8", "b14", "[]", "25"), ("20", "5", "a20", None, '["b"]', "21"),
        ("22", "6", "a20", None, '["b"]', "25"), ("24", "8", "x", None, "[]", "25"),
        ("27", "4", None, None, '["a","b"]', None),
    ]


def test_describe_shows_types_and_key(engine: DuckdbEngine) -> None:
    assert run(engine, "DESCRIBE public.t_live") == [
        ("id", "INTEGER", "integer", "1"), ("a", "VARCHAR", "text", ""), ("b", "VARCHAR", "text", ""),
    ]
    assert run(engine, "desc table dblake.frontier")[0] == ("at", "TIMESTAMP WITH TIME ZONE", "", "")
    assert run(engine, "DESCRIBE SELECT 1 AS one")[0][:2] == ("one", "INTEGER")


def test_filter_and_projection_reach_parquet(lake: PlainLake) -> None:
    (plan,) = DuckdbEngine(lake.paths).query("EXPLAIN SELECT a FROM t WHERE id = 3").text_rows()
    (text,) = plan
    assert text is not None
    assert "Filters" in text and "id=3" in text.replace(" ", "")
    assert "b" not in [word.strip("│ ") for word in text.split()]


def test_interrupted_query_ends_and_the_next_one_runs(engine: DuckdbEngine) -> None:
    threading.Timer(0.5, engine.interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(engine, "SELECT count(*) FROM range(1000000000000) r(i) WHERE i % 7 = 3")
    assert time.monotonic() - began < 10
    assert run(engine, "SELECT count(*) FROM t") == [("6",)]


def test_query_sees_rows_folded_since_the_last_one(tmp_path: Path) -> None:
    lake = PlainLake(tmp_path)
    lake.schema(CUT)
    engine = DuckdbEngine(lake.paths)
    assert run(engine, "SELECT * FROM cut") == []
    lake.land(1, {CUT: [(1, "c", "1", {"id": "1", "a": "x"})]})
    lake.fold(1)
    assert run(engine, "SELECT * FROM cut") == [("1", "x")]


def test_values_keep_their_digits_and_zone(engine: DuckdbEngine) -> None:
    statement = ("SELECT 1051.05::DECIMAL(38,18), 10.50::DECIMAL(10,2), 100::DECIMAL(38,18), "
                 "TIMESTAMPTZ '2024-01-01 12:00:00.5+02', '\\xAB'::BLOB, 'nan'::DOUBLE")
    assert run(engine, statement) == [("1051.05", "10.50", "100", "2024-01-01 10:00:00.5+00", "\\xab", "NaN")]
    assert list(engine.query("SELECT 1.10::DECIMAL(38,18) AS a, NULL AS b, 'x\"y' AS \"c\"\"d\"").json_rows()) == [
        '{"a": 1.1, "b": null, "c\\"d": "x\\"y"}'
    ]


def test_count_is_headed_as_written(lake: PlainLake, engine: DuckdbEngine) -> None:
    from dblake.serve.sql.lake import Lake

    statement = "SELECT count(*), count(*) + 1 FROM t"
    assert engine.query(statement).columns == ("count(*)", "(count(*) + 1)")
    assert Lake(lake.paths).sql(statement).to_arrow().column_names == ["count(*)", "(count(*) + 1)"]


def test_files_in_folder_with_pattern_characters_are_read(tmp_path: Path) -> None:
    """DuckDB takes such paths for patterns, so Arrow opens the files, as it does on object stores."""
    (tmp_path / "{a}").mkdir()
    lake = PlainLake(tmp_path / "{a}")
    lake.schema(T)
    lake.land(1, {T: [(n, "c", str(n), {"id": str(n), "a": "x", "b": None}) for n in range(1, 4)]})
    lake.fold(1)
    engine = DuckdbEngine(lake.paths)
    assert run(engine, "SELECT id, a FROM t WHERE id > 2") == [("3", "x")]
    assert run(engine, "SELECT count(*) FROM dblake.events") == [("3",)]


def test_table_that_has_landed_only_is_read_live_by_its_name(tmp_path: Path) -> None:
    backend, lake = MemoryBackend(), CaptureLake(tmp_path)
    backend.create(T)
    source = backend.source("public.*")
    with backend.begin() as work:
        work.insert(T.table, {"id": "1", "a": "x", "b": None})
    lake.capture(source)
    engine = DuckdbEngine(lake.paths)
    assert run(engine, "SELECT * FROM t_live") == run(engine, "SELECT * FROM public.t_live") == [("1", "x", None)]
    assert run(engine, "SELECT * FROM t") == run(engine, "SELECT * FROM t_history") == []
    assert run(DuckdbEngine(lake.paths, is_live=True), "SELECT a FROM t") == [("x",)]
    with pytest.raises(UsageError, match="no table nowhere"):
        engine.query("SELECT * FROM nowhere")
