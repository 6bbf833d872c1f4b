"""The fold of one key's events, in one step and in one step per batch: both give the same rows.

All cases without a truncate are keys of one table; each case with a truncate has its own table. So each way is one run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.schema import TableSchema
from tests.spark.transform.state.conftest import Lake, table_schema

TABLE = table_schema("public.t", "id text key", "a text", "b text")
WHOLE: dict[str, str | None] = {"a": "a1", "b": "b1"}

Event = tuple[int, str, str | None, dict[str, str | None] | None]
Row = tuple[object, ...]

# name, events of key 1 (and 2) as (lsn, op, key, values), expected rows (id, a, b, lsn, deleted, missing columns)
CASES: list[tuple[str, list[Event], list[Row]]] = [
    ("create", [(5, "c", "1", WHOLE)], [("1", "a1", "b1", 5, False, "")]),
    ("dumped", [(5, "r", "1", WHOLE)], [("1", "a1", "b1", 5, False, "")]),
    ("null value", [(5, "c", "1", WHOLE), (6, "u", "1", {"a": None, "b": "b2"})],
     [("1", None, "b2", 6, False, "")]),
    ("partial update", [(5, "c", "1", WHOLE), (6, "u", "1", {"a": "a2"})], [("1", "a2", "b1", 6, False, "")]),
    ("partial null", [(5, "c", "1", WHOLE), (6, "u", "1", {"a": None}), (7, "u", "1", {"b": "b2"})],
     [("1", None, "b2", 7, False, "")]),
    ("delete", [(5, "c", "1", WHOLE), (6, "d", "1", None)], [("1", None, None, 6, True, "")]),
    ("delete of an unknown key", [(6, "d", "1", None)], [("1", None, None, 6, True, "")]),
    ("partial, delete, create",
     [(5, "u", "1", {"a": "a0"}), (6, "d", "1", None), (7, "c", "1", {"a": "a2", "b": None})],
     [("1", "a2", None, 7, False, "")]),
    ("partial create after delete",
     [(5, "c", "1", WHOLE), (6, "d", "1", None), (7, "c", "1", {"a": "a2"})],
     [("1", "a2", None, 7, False, "b")]),
    ("partial dumped row", [(5, "c", "1", WHOLE), (6, "r", "1", {"a": "a2"})],
     [("1", "a2", None, 6, False, "b")]),
    ("update of an unknown key", [(5, "u", "1", {"a": "a1"})], [("1", "a1", None, 5, False, "b")]),
    ("update after a delete", [(5, "c", "1", WHOLE), (6, "d", "1", None), (7, "u", "1", {"b": "b2"})],
     [("1", None, "b2", 7, False, "a")]),
    ("missing column supplied later", [(5, "u", "1", {}), (6, "u", "1", {"b": None})],
     [("1", None, None, 6, False, "a")]),
    ("partial, dumped", [(5, "u", "1", {"a": "a1"}), (6, "r", "1", WHOLE)],
     [("1", "a1", "b1", 6, False, "")]),
    ("partial, delete", [(5, "u", "1", {"a": "a1"}), (6, "d", "1", None)], [("1", None, None, 6, True, "")]),
    ("fill after a partial", [(5, "u", "1", {"a": "a1"}), (6, "f", "1", {"b": "b1"})],
     [("1", "a1", "b1", 6, False, "")]),
    ("fill before a partial", [(5, "u", "1", {"a": "a1"}), (6, "f", "1", {"b": "b1"}), (7, "u", "1", {"b": "b2"})],
     [("1", "a1", "b2", 7, False, "")]),
    ("truncate", [(5, "c", "1", WHOLE), (6, "c", "2", WHOLE), (7, "t", None, None)],
     [("1", None, None, 7, True, ""), ("2", None, None, 7, True, "")]),
    ("truncate, then insert", [(5, "c", "1", WHOLE), (6, "c", "2", WHOLE), (7, "t", None, None), (8, "c", "2", WHOLE)],
     [("1", None, None, 7, True, ""), ("2", "a1", "b1", 8, False, "")]),
    ("truncate, partial update",
     [(5, "c", "1", WHOLE), (7, "t", None, None), (8, "u", "1", {"a": "a2"})], [("1", "a2", None, 8, False, "b")]),
    ("two truncates", [(5, "c", "1", WHOLE), (6, "t", None, None), (7, "c", "2", WHOLE), (8, "t", None, None)],
     [("1", None, None, 8, True, ""), ("2", None, None, 8, True, "")]),
    ("truncate alone", [(5, "t", None, None)], []),
]


def _table(number: int) -> str:
    return f"t{number}" if any(op == "t" for _, op, _, _ in CASES[number][1]) else "t"


def _events(number: int) -> list[tuple[object, ...]]:
    """Return the case's events, with keys that no other case has."""
    return [
        (lsn, op, key and f"{number}/{key}", None if values is None else {"id": f"{number}/{key}", **values})
        for lsn, op, key, values in CASES[number][1]
    ]


def _fold_in_one_step(lake: Lake) -> None:
    lake.append([lake.frame(_schema(number), 1, _events(number)) for number in range(len(CASES))])
    lake.fold()


def _fold_by_batch(lake: Lake) -> None:
    for batch in range(1, 5):
        lake.append([
            lake.frame(_schema(number), batch, _events(number)[batch - 1 : batch]) for number in range(len(CASES))
        ])
        lake.fold()


def _schema(number: int) -> TableSchema:
    return replace(TABLE, table=f"public.{_table(number)}")


@pytest.fixture(scope="module", params=[_fold_in_one_step, _fold_by_batch], ids=["one step", "steps"])
def folded(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(spark, tmp_path_factory.mktemp("lake"))
    for schema in {_table(number): _schema(number) for number in range(len(CASES))}.values():
        lake.schema(schema)
    fill: Callable[[Lake], None] = request.param
    fill(lake)
    return lake


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c[0] for c in CASES])
def test_fold_of_case_gives_expected_rows(folded: Lake, number: int) -> None:
    state = folded.state("public", _table(number)).where(f"id LIKE '{number}/%'").orderBy("id")
    rows = state.selectExpr("id", "a", "b", "_lsn", "_deleted", "array_join(_missing, ' ')").collect()
    assert [(r[0].partition("/")[2], *r[1:]) for r in rows] == CASES[number][2]
