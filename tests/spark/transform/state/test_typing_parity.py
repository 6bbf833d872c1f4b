"""Both readings of every type, Arrow and SQL, give equal values for ordinary and odd texts."""

from __future__ import annotations

import math
from itertools import product

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dblake.serve.sql import duckdb_types
from dblake.transform.state.fold import key_texts
from dblake.transform.state.values import arrow_type, read_texts
from tests.support.spark_typing import key_sql, read_sql

NUMBERS = ["0", "-0", "7", "007", "-1", "+1", " 5 ", "5.7", "5.0", ".5", "5.", "1e3", "1E-3", "127", "128", "-128",
           "-129", "32767", "32768", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
           "-9223372036854775808", "9" * 20, "9" * 38, "9" * 39, "0x1f", "", "-", "abc", "1_000", "\\xe9", "1 2", "--5"]
DECIMALS = ["1.5", "-12345678.90", "0.00012", "12300", "1.500000000000000000", "1.5" + "0" * 40,
            "0.1234567890123456789", "0.123456789012345678", "123456789012345678901", "12345678901234567890.5",
            "NaN", "Infinity", "-Infinity", "0.005", "99999999.99", "99999999.995", "100000000.00", "-0.00", "1.e2"]
FLOATS = ["1.5", "NaN", "Infinity", "-Infinity", "1.7976931348623157e+308", "5e-324", "3.4028235e+38", "1e-45", "0.1",
          "-0.0", "1e400", "1e-400", "123456789.123456789", "16777217"]
DATES = ["2024-02-29", "2023-02-29", "2024-02-30", "0001-01-01", "9999-12-31", "0000-00-00", "2024-00-10", "2024-13-01",
         "2024-04-31", "infinity", "-infinity", "0044-03-15 BC", "12024-01-01", "today", "epoch", "", "2024-1-1",
         "1582-10-10", "1900-02-29", "2000-02-29"]
TIMES = ["2024-01-31 12:34:56", "2024-01-31 12:34:56.7", "2024-01-31 12:34:56.789012", "0001-01-01 00:00:00.5",
         "9999-12-31 23:59:59.999999", "0000-00-00 00:00:00", "2024-02-30 00:00:00", "2024-01-31 24:00:00",
         "2024-01-31 23:60:00", "2024-01-31 23:59:60", "0044-03-15 00:00:00 BC", "10000-01-01 00:00:00", "infinity",
         "-infinity", "epoch", "today", "2024-01-31", "2024-03-10 02:30:00", "2024-11-03 01:30:00", ""]
ZONES = ["+00", "+00:00", "+01", "-05", "+05:30", "-12:34:56", ""]
BYTES = ["\\x", "\\xdeadbeef", "\\xDEADBEEF", "\\xff00", "\\xf", "\\xzz", "", "\\"]
BOOLEANS = ["t", "f", "true", "false", "TRUE", "1", "0", "y", "no", "on", "2", ""]
TEXTS = ["", "a", "today", "\\xe9", "{1,NULL,3}", "é", "\U0001f600"]

CASES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), NUMBERS + DECIMALS),
    **dict.fromkeys(("DECIMAL(10,2)", "DECIMAL(38,0)", "DECIMAL(38,18)", "DECIMAL(20,0)", "DECIMAL(5,5)",
                     "DECIMAL(1,0)"), NUMBERS + DECIMALS),
    **dict.fromkeys(("FLOAT", "DOUBLE"), FLOATS + [n for n in NUMBERS if n != "0x1f"]),
    "BOOLEAN": BOOLEANS, "DATE": DATES, "TIMESTAMP_NTZ": TIMES,
    "TIMESTAMP": [t + z for t, z in product(TIMES, ZONES)], "BINARY": BYTES, "STRING": TEXTS,
}


@pytest.fixture(scope="module")
def by_sql(spark: SparkSession) -> dict[str, list[object]]:
    """Return the values that the SQL reading gives for every case."""
    values: dict[str, list[object]] = {}
    for kind, texts in CASES.items():
        frame = spark.createDataFrame([(n, text) for n, text in enumerate([*texts, None])], "n INT, v STRING")
        table = frame.orderBy("n").selectExpr(f"{read_sql(kind, 'v')} AS t").toArrow()
        values[kind] = _values(table["t"].combine_chunks().cast(arrow_type(kind)))
    return values


@pytest.mark.parametrize("kind", CASES)
def test_arrow_typing_of_odd_texts_equals_sql(by_sql: dict[str, list[object]], kind: str) -> None:
    texts = [*CASES[kind], None]
    assert _shown(texts, _values(read_texts(kind, pa.array(texts, pa.string())))) == _shown(texts, by_sql[kind])


@pytest.mark.parametrize("kind", CASES)
def test_arrow_typing_of_single_text_equals_sql(by_sql: dict[str, list[object]], kind: str) -> None:
    """A single text uses the fast path of its type, if it has one."""
    texts = [*CASES[kind], None]
    values = [_values(read_texts(kind, pa.array([text], pa.string())))[0] for text in texts]
    assert _shown(texts, values) == _shown(texts, by_sql[kind])


@pytest.mark.parametrize("kind", CASES)
def test_duckdb_typing_of_odd_texts_equals_arrow(kind: str) -> None:
    # No source sends a decimal with an exponent.
    texts = [text for text in CASES[kind] if not (kind.startswith("DECIMAL") and "e" in text.lower())] + [None]
    column = pa.array(texts, pa.string())
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("texts", pa.table({"n": range(len(texts)), "v": column}))
    typed = connection.sql(f"SELECT {duckdb_types.read_sql(kind, 'v')} AS t FROM texts ORDER BY n").to_arrow_table()
    values = _values(typed["t"].combine_chunks().cast(arrow_type(kind)))
    assert _shown(texts, values) == _shown(texts, _values(read_texts(kind, column)))


@pytest.mark.parametrize("kind", CASES)
def test_arrow_typing_of_sliced_array_reads_the_slice(kind: str) -> None:
    texts = pa.array([*CASES[kind], None, CASES[kind][0]], pa.string())
    whole = read_texts(kind, texts)
    assert whole.type == arrow_type(kind)
    assert repr(_values(read_texts(kind, texts.slice(1, 3)))) == repr(_values(whole)[1:4])


def _values(column: pa.Array) -> list[object]:
    """Return Python objects; times as numbers, since Python cannot hold all of them."""
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    values: list[object] = column.to_pylist()
    return values


KEYS = ["1", "", 'x"', "back\\slash", "tab\tline\nreturn\r", "\x00\x01\x1f\x7f", "é", "\U0001f600",
        "\u2028/", "null", None]


@pytest.mark.parametrize("names", [("a",), ("a", "b")], ids=["one column", "two columns"])
def test_arrow_key_texts_equal_sql(spark: SparkSession, names: tuple[str, ...]) -> None:
    pairs = list(product(KEYS, KEYS))
    rows = [{"a": a, "b": b} for a, b in pairs]
    frame = spark.createDataFrame(list(enumerate(rows)), "n INT, key MAP<STRING, STRING>").orderBy("n")
    by_sql = [row["k"] for row in frame.selectExpr(f"{key_sql(names)} AS k").collect()]
    keys = pa.array([list(row.items()) for row in rows], pa.map_(pa.string(), pa.string()))
    assert key_texts(keys, names).to_pylist() == by_sql


def _shown(texts: list[str | None], values: list[object]) -> dict[str | None, str]:
    return {text: "NaN" if isinstance(v, float) and math.isnan(v) else repr(v)
            for text, v in zip(texts, values, strict=True)}
