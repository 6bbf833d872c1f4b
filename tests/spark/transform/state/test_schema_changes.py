"""Schema changes at the source through capture, reconcile and state: state equals the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dblake.base.core.names import split_qualified
from dblake.base.core.source import Source
from dblake.transform.reconcile.stream import reconcile_once
from dblake.transform.state.run import run_state
from tests.support.backends import Row
from tests.support.lake import CaptureLake
from tests.support.postgres import Database
from tests.support.reshaped import CHANGES, CREATE, INSERT, Change, Reshaped, find_misplaced, reshaped

NAMES = ("added", "renamed", "widened", "made text", "key changed", "recreated")
BROKEN = {
    "made text": "table {0}, column n: its type became STRING, state has INT",
    "key changed": "table {0}: its primary key changed",
}
HEAL = "dump start --table '{0}'"


def of_table(text: str, table: str) -> str:
    return text.replace("public.t", table).replace("t_pkey", f"{split_qualified(table)[1]}_pkey")


def moved(change: Change, number: int) -> Change:
    """Return the same change for a table named after its number."""
    table = f"public.t{number}"
    statements = {kind: tuple(of_table(s, table) for s in each) for kind, each in change.on.items()}
    return replace(change, on=statements, table=table, insert=of_table(change.insert, table),
                   update=of_table(change.update, table))


TABLES = {name: moved(CHANGES[name], number) for number, name in enumerate(NAMES)}


@pytest.fixture
def world(database: Database) -> Iterator[Reshaped]:
    with reshaped(database) as world:
        yield world


class Pipeline:
    """Capture, reconcile and state over one database."""

    def __init__(self, spark: SparkSession, world: Reshaped, lake: CaptureLake, source: Source) -> None:
        self.spark, self.world, self.lake, self.source = spark, world, lake, source

    def run(self, *, redump: bool) -> dict[str, str]:
        """Run all three once; return state's error message for each table that it cannot follow."""
        self.lake.capture(self.source, redump=redump)
        reconcile_once(self.spark, self.lake.paths)
        results = run_state(self.spark, self.lake.paths, parallel=2)
        assert all(HEAL.format(r.table) in r.error.next_step for r in results if r.error)
        return {result.table: result.error.what for result in results if result.error}

    def state(self, table: str) -> tuple[list[str], list[Row]]:
        """Return the columns, and the rows by ``id`` with the source's texts."""
        frame = self.spark.read.format("delta").load(self.lake.paths.state(*split_qualified(table)))
        names = [name for name in frame.columns if not name.startswith("_")]
        rows = frame.where("NOT _deleted AND _lossy = array()").orderBy("id")
        texts = rows.selectExpr(*(f"CAST({name} AS STRING) AS {name}" for name in names))
        return names, [row.asDict() for row in texts.collect()]

    def different(self) -> list[str]:
        """Return the changes whose state table differs from the source in a column of a row."""
        differing = []
        for name, change in TABLES.items():
            expected = self.world.sorted_rows(change.table)
            _, rows = self.state(change.table)
            if [{column: row.get(column, "absent") for column in expected[0]} for row in rows] != expected:
                differing.append(name)
        return differing


@pytest.mark.timeout(900)
def test_every_schema_change_ends_with_state_like_source(spark: SparkSession, world: Reshaped, tmp_path: Path) -> None:
    for change in TABLES.values():
        world.run(of_table(CREATE, change.table), *(of_table(INSERT, change.table).format(n) for n in range(1, 7)))
    lake = CaptureLake(tmp_path)
    pipeline = Pipeline(spark, world, lake, world.backend.source("public.*"))
    lake.dump(*(change.table for change in TABLES.values()))
    assert pipeline.run(redump=True) == {}
    assert pipeline.different() == []
    before = {name: pipeline.state(TABLES[name].table) for name in BROKEN}

    for change in TABLES.values():
        world.run(of_table(INSERT, change.table).format(20), of_table(CHANGES["added"].update, change.table).format(2),
                  *change.on["postgres"])
    world.grant()
    for change in TABLES.values():
        world.run(change.insert.format(21), change.update.format(3), change.update.format(21))
    # Without a re-dump the rewritten values are missing, and the tables that state cannot follow stay unchanged.
    broken = {TABLES[name].table: message.format(TABLES[name].table) for name, message in BROKEN.items()}
    assert pipeline.run(redump=False) == broken
    assert {name: pipeline.state(TABLES[name].table) for name in BROKEN} == before
    assert set(pipeline.different()) == set(NAMES) - {"widened"}

    assert pipeline.run(redump=True) == {}
    assert pipeline.different() == []
    for change in TABLES.values():
        world.run(change.insert.format(30), change.update.format(4))
    assert pipeline.run(redump=True) == {}
    assert pipeline.different() == []
    images = spark.read.format("delta").load(lake.paths.events).where("after IS NOT NULL").select("after").collect()
    assert len(images) > 100
    assert find_misplaced(row["after"] for row in images) == []


def test_key_added_to_keyless_table_is_followed(spark: SparkSession, world: Reshaped, tmp_path: Path) -> None:
    world.run("CREATE TABLE public.k (id int NOT NULL, v text)", "ALTER TABLE public.k REPLICA IDENTITY FULL")
    lake = CaptureLake(tmp_path)
    pipeline = Pipeline(spark, world, lake, world.backend.source("public.*"))
    world.run("INSERT INTO public.k VALUES (1, 'a'), (2, 'b')")
    assert pipeline.run(redump=False) == {}
    assert pipeline.state("public.k")[1] == world.sorted_rows("public.k")
    world.run("ALTER TABLE public.k ADD PRIMARY KEY (id)", "INSERT INTO public.k VALUES (3, 'c')")
    lake.dump("public.k")
    assert pipeline.run(redump=False) == {}
    assert pipeline.state("public.k")[1] == world.sorted_rows("public.k")
    # Earlier rows have no key, so the end of the dump deletes none of them.
    events = spark.read.format("delta").load(lake.paths.events).orderBy("lsn", "seq").collect()
    assert [event["op"] for event in events] == ["c", "c", "c", "r", "r", "r"]


def test_key_that_loses_column_keeps_its_rows(spark: SparkSession, world: Reshaped, tmp_path: Path) -> None:
    """The end of the dump deletes the keys of before, which have the columns of the new ones."""
    world.run("CREATE TABLE public.k (id int, n int, v text, PRIMARY KEY (id, n))",
              "INSERT INTO public.k VALUES (1, 1, 'a'), (2, 2, 'b')")
    lake = CaptureLake(tmp_path)
    pipeline = Pipeline(spark, world, lake, world.backend.source("public.*"))
    lake.dump("public.k")
    assert pipeline.run(redump=True) == {}
    world.run("ALTER TABLE public.k DROP CONSTRAINT k_pkey, ADD PRIMARY KEY (id)")
    assert pipeline.run(redump=True) == {}
    assert pipeline.state("public.k")[1] == world.sorted_rows("public.k")
    assert len(pipeline.state("public.k")[1]) == 2
