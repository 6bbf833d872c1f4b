"""The type mapping as a table, without Spark; tests with Spark cover how texts are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblake.transform.spark.types import holds, spark_type
from tools.types_reference import build_page


@pytest.mark.parametrize(
    ("source", "spark"),
    [
        ("smallint", "SMALLINT"), ("integer", "INT"), ("bigint", "BIGINT"), ("real", "FLOAT"),
        ("double precision", "DOUBLE"), ("boolean", "BOOLEAN"), ("date", "DATE"), ("bytea", "BINARY"),
        ("timestamp without time zone", "TIMESTAMP_NTZ"), ("timestamp(3) without time zone", "TIMESTAMP_NTZ"),
        ("timestamp with time zone", "TIMESTAMP"), ("timestamp(0) with time zone", "TIMESTAMP"),
        ("numeric", "DECIMAL(38,18)"), ("numeric(10,2)", "DECIMAL(10,2)"), ("numeric(38,38)", "DECIMAL(38,38)"),
        ("numeric(39,2)", "STRING"), ("numeric(3,-2)", "DECIMAL(5,0)"), ("numeric(2,5)", "DECIMAL(5,5)"),
        ("numeric(30,-10)", "STRING"), ("integer[]", "STRING"), ("numeric(10,2)[]", "STRING"),
        ("character varying(20)", "STRING"), ("uuid", "STRING"), ("jsonb", "STRING"), ("interval", "STRING"),
        ("time without time zone", "STRING"), ("shop.colour", "STRING"), ("date_range", "STRING"),
        ("tinyint", "TINYINT"), ("tinyint unsigned", "SMALLINT"), ("smallint unsigned", "INT"), ("mediumint", "INT"),
        ("mediumint unsigned", "INT"), ("int", "INT"), ("int unsigned", "BIGINT"), ("bigint unsigned", "DECIMAL(20,0)"),
        ("decimal(10,2)", "DECIMAL(10,2)"), ("decimal(65,30)", "STRING"), ("float", "FLOAT"), ("double", "DOUBLE"),
        ("year", "SMALLINT"), ("bit(13)", "STRING"), ("datetime", "TIMESTAMP_NTZ"), ("datetime(6)", "TIMESTAMP_NTZ"),
        ("datetime /* mariadb-5.3 */", "TIMESTAMP_NTZ"), ("timestamp", "TIMESTAMP"), ("timestamp(3)", "TIMESTAMP"),
        ("time(6)", "STRING"), ("binary(16)", "BINARY"), ("varbinary(9)", "BINARY"), ("tinyblob", "BINARY"),
        ("blob", "BINARY"), ("longblob", "BINARY"), ("char(5) character set latin1", "STRING"),
        ("enum('date','int') character set utf8mb4", "STRING"), ("geometry", "STRING"), ("vector(3)", "STRING"),
    ],
)
def test_source_type_maps_to_spark_type(source: str, spark: str) -> None:
    assert spark_type(source) == spark


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("BIGINT", "INT", True), ("INT", "BIGINT", False), ("INT", "SMALLINT", True), ("INT", "INT", True),
        ("DOUBLE", "FLOAT", True), ("FLOAT", "DOUBLE", False), ("DOUBLE", "BIGINT", False),
        ("DECIMAL(12,2)", "DECIMAL(10,2)", True), ("DECIMAL(12,3)", "DECIMAL(12,2)", False),
        ("DECIMAL(13,3)", "DECIMAL(12,2)", True), ("DECIMAL(12,2)", "INT", True), ("DECIMAL(11,2)", "INT", False),
        ("DECIMAL(38,18)", "BIGINT", True), ("DECIMAL(38,18)", "DOUBLE", False), ("STRING", "INT", False),
        ("INT", "DECIMAL(5,0)", False), ("TIMESTAMP", "DATE", False),
        ("SMALLINT", "TINYINT", True), ("DECIMAL(20,0)", "BIGINT", True), ("BIGINT", "DECIMAL(20,0)", False),
    ],
)
def test_wide_type_holds_narrow_type(wide: str, narrow: str, expected: bool) -> None:
    assert holds(wide, narrow) is expected


def test_types_page_equals_mapping() -> None:
    assert (Path(__file__).parents[4] / "docs" / "types.md").read_text(encoding="utf-8") == build_page()
