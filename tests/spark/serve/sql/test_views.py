"""The plain, live and history views, and which statements are rejected."""

from __future__ import annotations

from datetime import datetime

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.errors import UsageError
from dblake.serve.sql.query import query
from tests.spark.transform.state.conftest import Lake, table_schema
from tests.support.sql_rows import sql_rows

T = table_schema("public.t", "id integer key", "a text", "b text")
CUT = table_schema("public.cut", "id integer key", "a text")
NEW = table_schema("public.new", "id integer key", "a text")
SHOP = table_schema('"My Shop"."Order lines"', "id integer key")
TWIN = table_schema("other.t", "id integer key")
LONE = table_schema("other.lone", "v integer")
BEFORE = table_schema("public.altered", "id integer key", "a text", "b integer")
AFTER = table_schema("public.altered", "id integer key", "b text", "c integer")


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake whose state holds batch 1; batch 2 is in events only."""
    lake = Lake(spark, tmp_path_factory.mktemp("lake"))
    for schema in (T, CUT, NEW, SHOP, TWIN, LONE, BEFORE):
        lake.schema(schema)
    keys = [str(n) for n in range(1, 7)]
    lake.append([
        lake.frame(T, 1, [(10 + int(k), "c", k, {"id": k, "a": f"a{k}", "b": f"b{k}"}) for k in keys]),
        lake.frame(CUT, 1, [(10, "c", "1", {"id": "1", "a": "x"}), (11, "c", "2", {"id": "2", "a": "y"}),
                            (12, "d", "2", None)]),
        lake.frame(SHOP, 1, [(13, "c", "1", {"id": "1"})]),
        lake.frame(TWIN, 1, [(14, "c", "1", {"id": "1"})]),
        lake.frame(LONE, 1, [(15, "c", (), {"v": "5"})]),
        lake.frame(BEFORE, 1, [(15, "c", "1", {"id": "1", "a": "x", "b": "1"})]),
    ])
    lake.fold()
    lake.schema(AFTER, lsn=20, batch=2)
    lake.append([
        lake.frame(T, 2, [
            (21, "u", "1", {"id": "1", "a": None}), (22, "d", "2", None), (23, "f", "3", {"b": "filled"}),
            (24, "c", "7", {"id": "7", "a": "a7", "b": None}), (25, "u", "4", {"id": "4", "a": "old"}),
            (26, "u", "4", {"id": "4", "a": "new"}), (27, "d", "5", None), (28, "c", "5", {"id": "5", "a": "again"}),
        ]),
        lake.frame(CUT, 2, [(21, "u", "1", {"a": "z"}), (22, "t", None, None), (23, "c", "3", {"id": "3", "a": "w"})]),
        lake.frame(NEW, 2, [(21, "c", "1", {"id": "1", "a": "x"})]),
        lake.frame(LONE, 2, [(21, "c", (), {"v": "6"})]),
    ])
    return lake


def run(lake: Lake, statement: str) -> list[tuple[object, ...]]:
    """Return the rows that Spark answers, or the default engine for a view that folds events."""
    if "_live" in statement.lower() or "_history" in statement:
        return [tuple(row.values()) for row in sql_rows(lake.paths, statement)]
    return [tuple(row) for row in query(lake.spark, lake.paths, statement).collect()]


PLAIN = [(n, f"a{n}", f"b{n}") for n in range(1, 7)]
LIVE = [(1, None, "b1"), (3, "a3", "filled"), (4, "new", "b4"), (5, "again", None), (6, "a6", "b6"), (7, "a7", None)]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT * FROM public.t ORDER BY id", PLAIN),
        ("SELECT * FROM public.t_live ORDER BY id", LIVE),
        ("SELECT * FROM PUBLIC.T_Live ORDER BY id", LIVE),
        ("SELECT count(*) FROM t", [(6,)]),
        ("SELECT * FROM public.cut", [(1, "x")]),
        ("SELECT * FROM public.cut_live", [(3, "w")]),
        ("SELECT * FROM new", []),
        ("SELECT * FROM new_live", [(1, "x")]),
        ("SELECT * FROM lone_live ORDER BY v", [(5,), (6,)]),
        ("SELECT * FROM My_Shop.Order_lines", [(1,)]),
        ("SELECT * FROM altered", [(1, "x", 1)]),
        ("WITH x AS (SELECT id FROM public.t_live) SELECT count(*), (SELECT max(id) FROM other.t) AS m FROM x "
         "WHERE EXISTS (SELECT 1 FROM cut WHERE cut.id = x.id)", [(1, 1)]),
        ("SELECT `table`, count(*) FROM dblake.events WHERE batch = 2 GROUP BY 1 ORDER BY 1",
         [("other.lone", 1), ("public.cut", 3), ("public.new", 1), ("public.t", 8)]),
        ("SELECT batch, lsn FROM dblake.frontier", [(1, 16)]),
        ("SELECT count(*) FROM dblake.windows", [(0,)]),
    ],
)
def test_view_query_returns_rows(lake: Lake, statement: str, expected: list[object]) -> None:
    assert run(lake, statement) == expected


def test_history_has_one_row_per_version(lake: Lake) -> None:
    rows = run(
        lake,
        "SELECT id, a, b, _op, _valid_from AT TIME ZONE 'UTC' AS f, _valid_to AT TIME ZONE 'UTC' AS t, _from.lsn, "
        "_to.lsn AS until FROM t_history WHERE id IN (1, 2, 3, 4, 5) AND _from.lsn > 0 ORDER BY id, _from.lsn",
    )

    def at(lsn: int) -> datetime:
        return datetime(2024, 1, 1, 0, lsn)

    assert rows == [
        (1, "a1", "b1", "c", at(11), at(21), 11, 21), (1, None, "b1", "u", at(21), None, 21, None),
        (2, "a2", "b2", "c", at(12), at(22), 12, 22),
        (3, "a3", "b3", "c", at(13), at(23), 13, 23), (3, "a3", "filled", "f", at(23), None, 23, None),
        (4, "a4", "b4", "c", at(14), at(25), 14, 25), (4, "old", "b4", "u", at(25), at(26), 25, 26),
        (4, "new", "b4", "u", at(26), None, 26, None),
        (5, "a5", "b5", "c", at(15), at(27), 15, 27), (5, "again", None, "c", at(28), None, 28, None),
    ]


def test_history_truncate_ends_all_versions(lake: Lake) -> None:
    assert run(lake, "SELECT id, a, _from.lsn, _to.lsn AS until FROM cut_history ORDER BY _from.lsn") == [
        (1, "x", 10, 21), (2, "y", 11, 12), (1, "z", 21, 22), (3, "w", 23, None)
    ]


def test_history_without_key_has_the_created_rows(lake: Lake) -> None:
    assert run(lake, "SELECT v, _from.lsn, _to FROM lone_history ORDER BY v") == [(5, 15, None), (6, 21, None)]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("INSERT INTO public.t VALUES (1, 'a', 'b')", "InsertIntoStatement is not a query"),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "InsertIntoStatement is not a query"),
        ("DELETE FROM public.t", "DeleteFromTable is not a query"),
        ("DROP VIEW public.t", "DropView is not a query"),
        ("CREATE TABLE x AS SELECT 1", "CreateTableAsSelect is not a query"),
        ("MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE", "MergeIntoTable is not a query"),
        ("SET spark.sql.ansi.enabled = false", "SetCommand is not a query"),
        ("SELEKT 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT nope FROM t", "UNRESOLVED_COLUMN"),
        ("SELECT * FROM nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
    ],
)
def test_statement_that_is_no_query_is_rejected_in_one_line(lake: Lake, statement: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as rejected:
        run(lake, statement)
    assert "\n" not in str(rejected.value)


def test_unqualified_name_of_two_schemas_is_rejected(spark: SparkSession, lake: Lake) -> None:
    lake.schema(table_schema("third.lone", "v integer"), lsn=40, batch=3)
    with pytest.raises(UsageError, match="lone is a table of other, third"):
        run(lake, "SELECT * FROM lone")
