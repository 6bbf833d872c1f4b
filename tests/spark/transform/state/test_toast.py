"""Updates that leave a TOAST column unchanged: state equals the source, or lists the column as missing."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from dblake.base.core.schema import Column, TableSchema
from dblake.base.lake.layout import Paths
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.backends import PostgresBackend
from tests.support.lake import CaptureLake
from tests.support.postgres import Database
from tests.support.sql_rows import sql_rows

T = "public.docs"
DOCS = TableSchema(T, (Column("id", "integer", False, 1), Column("v", "text"), Column("big", "text")))
MISSING = "SELECT id, _missing FROM {} WHERE {} AND {}(_missing) > 0 ORDER BY id"


def big(number: int) -> str:
    return f"{number} " * 2000


def fold(spark: SparkSession, paths: Paths) -> None:
    reconcile_once(spark, paths)
    assert [result.error for result in run_state(spark, paths)] == [None]


def missing(spark: SparkSession, paths: Paths) -> list[tuple[int, list[str]]]:
    """Return rows with missing columns: the query of the runbook, which must equal the history view."""
    table = MISSING.format(f"delta.`{paths.state('public', 'docs')}`", "NOT _deleted", "size")
    history = MISSING.format("docs_history", "_valid_to IS NULL", "len")
    rows = [tuple(row) for row in spark.sql(table).collect()]
    current = [tuple(row.values()) for row in sql_rows(paths, history)]
    assert rows == current
    return rows


def state(spark: SparkSession, paths: Paths) -> dict[int, tuple[str, str | None, list[str]]]:
    rows = spark.read.format("delta").load(paths.state("public", "docs")).where("NOT _deleted").collect()
    return {row["id"]: (row["v"], row["big"], row["_missing"]) for row in rows}


def test_unsent_toast_value_is_kept_filled_or_missing(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    backend, lake = PostgresBackend(database), CaptureLake(tmp_path)
    backend.create(DOCS, toasted=["big"])
    with backend.begin() as transaction:
        for number in range(1, 9):
            transaction.insert(T, {"id": str(number), "v": "a", "big": big(number)})
    source = backend.source("public.*")

    # Updates of rows whose whole image never landed.
    database.run("UPDATE docs SET v = 'b' WHERE id = 1", "UPDATE docs SET id = 20 WHERE id = 2")
    lake.capture(source)
    fold(spark, lake.paths)
    assert state(spark, lake.paths) == {1: ("b", None, ["big"]), 20: ("a", None, ["big"])}
    assert missing(spark, lake.paths) == [(1, ["big"]), (20, ["big"])]

    # A dump supplies the rows; some change in its window: a row whose key changes is followed.
    lake.dump(T)
    lake.capture(source, steps={
        ("low", T): lambda: database.run("UPDATE docs SET v = 'c' WHERE id = 3"),
        ("read", T): lambda: database.run(
            "UPDATE docs SET v = 'c' WHERE id = 4", "DELETE FROM docs WHERE id = 5",
            f"INSERT INTO docs VALUES (5, 'again', '{big(50)}')", "UPDATE docs SET id = 80 WHERE id = 8",
        ),
    })
    # After the window: updates, a key change, a delete with a new insert.
    database.run(
        "UPDATE docs SET v = 'd' WHERE id IN (3, 6)", "UPDATE docs SET id = 70 WHERE id = 7",
        "DELETE FROM docs WHERE id = 4", f"INSERT INTO docs VALUES (4, 'again', '{big(40)}')",
        "UPDATE docs SET v = 'e' WHERE id = 4",
    )
    lake.capture(source)
    fold(spark, lake.paths)
    expected = {
        1: ("b", big(1)), 20: ("a", big(2)), 3: ("d", big(3)), 4: ("e", big(40)), 5: ("again", big(50)),
        6: ("d", big(6)), 70: ("a", big(7)), 80: ("a", big(8)),
    }
    assert state(spark, lake.paths) == {key: (*row, []) for key, row in expected.items()}
    assert missing(spark, lake.paths) == []
    assert {int(r["id"] or 0): (r["v"], r["big"]) for r in backend.rows(T)} == expected
    events = spark.read.format("delta").load(lake.paths.events)
    assert events.where("map_contains_key(after, 'big') AND after['big'] IS NULL").count() == 0
    backend.close()
