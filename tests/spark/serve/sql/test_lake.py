"""``dblake.open`` gives the rows of a table as a Spark data frame that equals every other form."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dblake
from dblake.serve.sql.lake import Lake, LakeTable
from tests.support.plain_lake import PlainLake
from tests.support.schemas import table_schema
from tests.unit.serve.sql.test_lake import CONF

TYPES = table_schema(
    "public.types", "id integer key", "small smallint", "big bigint", "real real", "double double precision",
    "flag boolean", "day date", "ts timestamp without time zone", "tz timestamp with time zone", "bytes bytea",
    "num numeric", "money numeric(10,2)", "wide numeric(38,0)", "words text", "doc jsonb",
)
VALUES: dict[str, str | None] = {
    "id": "1", "small": "-32768", "big": "9223372036854775807", "real": "1.5", "double": "-2.25", "flag": "t",
    "day": "2024-02-29", "ts": "2024-01-31 12:34:56.789", "tz": "2024-01-31 12:34:56.000001+00", "bytes": "\\xdeadbeef",
    "num": "1051.05", "money": "10.50", "wide": "12345678901234567890123456789012345678", "words": "it's \"ünïcode\"\n",
    "doc": '{"a": 1, "b": [0.10, null]}',
}
NULLS: dict[str, str | None] = dict.fromkeys(VALUES)
ODD = table_schema('"My Shop"."Order lines"', "id integer key", "the name; with (odd) characters: text", "SELECT: text")
LOG = table_schema("public.log", "line text")
LATE = table_schema("public.late", "id integer key")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake whose state holds batch 1; batch 2 is in events only."""
    folder = tmp_path_factory.mktemp("lake")
    lake = PlainLake(folder / "warehouse")
    for schema in (TYPES, ODD, LOG):
        lake.schema(schema)
    odd = dict(zip(ODD.names, ("1", "x", "y"), strict=True))
    lake.land(1, {
        TYPES: [(10, "c", "1", VALUES), (11, "c", "2", NULLS | {"id": "2"}), (12, "c", "3", NULLS | {"id": "3"})],
        ODD: [(13, "c", "1", odd)], LOG: [(14, "c", (), {"line": "one"})],
    })
    lake.fold(1)
    lake.schema(LATE, lsn=20, batch=2)
    lake.land(2, {
        TYPES: [(21, "u", "2", VALUES | {"id": "2"}), (22, "d", "3", None), (23, "c", "4", VALUES | {"id": "4"})],
        LOG: [(24, "c", (), {"line": None})], LATE: [(25, "c", "1", {"id": "1"})],
    })
    (folder / "conf.yaml").write_text(CONF)
    return dblake.open(folder / "conf.yaml")


@pytest.mark.parametrize("is_live", [False, True])
def test_spark_frame_equals_every_other_form(spark: SparkSession, lake: Lake, is_live: bool) -> None:
    read = lake.live() if is_live else lake
    for name in read.tables:
        table = read.table(name)
        expected = in_order(table.to_arrow())
        assert in_order(spark_rows(spark, table)) == expected, name
        pandas = pa.Table.from_pandas(table.to_pandas(), expected.schema, preserve_index=False)
        assert in_order(pandas) == expected, name
        assert in_order(table.to_polars().to_arrow().cast(expected.schema)) == expected, name
        assert in_order(table.to_duckdb(duckdb.connect()).to_arrow_table().cast(expected.schema)) == expected, name


def test_spark_query_equals_arrow(spark: SparkSession, lake: Lake) -> None:
    query = lake.live().sql("SELECT * FROM types")
    expected = in_order(query.to_arrow())
    assert expected.num_rows == 3
    assert in_order(query.to_spark(spark).toArrow().cast(expected.schema)) == expected


def test_spark_frame_reads_one_version(spark: SparkSession, tmp_path: Path) -> None:
    """State that is folded between two readings of a frame changes neither."""
    written = PlainLake(tmp_path)
    written.schema(LATE)
    written.land(1, {LATE: [(1, "c", "1", {"id": "1"})]})
    written.fold(1)
    frame = Lake(written.paths).table("late").to_spark(spark)
    assert frame.count() == 1
    written.land(2, {LATE: [(2, "c", "2", {"id": "2"})]})
    written.fold(2)
    assert frame.count() == 1
    assert Lake(written.paths).table("late").to_spark(spark).count() == 2


def spark_rows(spark: SparkSession, table: LakeTable) -> pa.Table:
    """Return the rows that Spark reads, with the table's Arrow types, which Spark's must fit without loss."""
    expected = table.to_arrow().schema
    return table.to_spark(spark).toArrow().cast(expected)


def in_order(rows: pa.Table) -> pa.Table:
    """Return rows ordered by their first column, in one chunk."""
    return rows.sort_by(rows.column_names[0]).combine_chunks()
