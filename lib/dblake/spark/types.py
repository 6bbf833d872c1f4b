"""Which Spark type a source type becomes in state and in the typed views, and how its text is read.

The mapping is data: ``SOURCE_TYPES`` is searched from the top, the first row whose pattern is the whole spelling
wins; what no row names stays the source's exact text. Spellings are the database's own, so the rows of several
databases stand side by side. Promise: the SQL of a type gives NULL for a text the type cannot hold unchanged, and
never rounds, shifts or fails; naming such a column in ``_lossy`` is left to the fold. ``docs/types.md`` is
generated from it (``tools.types_reference``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TEXT = "STRING"
_MAX_DIGITS = 38


@dataclass(frozen=True, slots=True)
class SourceType:
    """One row of the mapping. ``pattern`` may have two groups: precision and scale."""

    pattern: str
    spark: str
    shown: str
    cannot_hold: str = ""


_ZERO_DATES = "0000-00-00 and dates with a zero month or day"

SOURCE_TYPES = (
    SourceType("smallint", "SMALLINT", "smallint"),
    SourceType("integer", "INT", "integer"),
    SourceType("bigint", "BIGINT", "bigint"),
    SourceType("real", "FLOAT", "real"),
    SourceType("double precision", "DOUBLE", "double precision"),
    SourceType("boolean", "BOOLEAN", "boolean"),
    SourceType("date", "DATE", "date",
               f"infinity, BC, years after 9999; {_ZERO_DATES}"),
    SourceType(r"timestamp(?:\(\d\))? without time zone", "TIMESTAMP_NTZ", "timestamp without time zone",
               "infinity, BC, years after 9999"),
    SourceType(r"timestamp(?:\(\d\))? with time zone", "TIMESTAMP", "timestamp with time zone",
               "infinity, BC, years after 9999"),
    SourceType("bytea", "BINARY", "bytea"),
    SourceType("numeric", f"DECIMAL({_MAX_DIGITS},18)", "numeric",
               "NaN, infinity, more than 20 digits before or 18 after the point"),
    SourceType(r"numeric\((\d+),(-?\d+)\)", "DECIMAL(p,s)", "numeric(p,s)", "NaN"),
    # MySQL and MariaDB, whose spellings are landing.mysql_types'; smallint, bigint and date are as above.
    SourceType("tinyint", "TINYINT", "tinyint"),
    SourceType("tinyint unsigned", "SMALLINT", "tinyint unsigned"),
    SourceType("year", "SMALLINT", "year"),
    SourceType("mediumint(?: unsigned)?|int|smallint unsigned", "INT",
               "int, mediumint, mediumint unsigned, smallint unsigned"),
    SourceType("int unsigned", "BIGINT", "int unsigned"),
    SourceType("bigint unsigned", "DECIMAL(20,0)", "bigint unsigned"),
    SourceType(r"decimal\((\d+),(\d+)\)", "DECIMAL(p,s)", "decimal(p,s)"),
    SourceType("float", "FLOAT", "float"),
    SourceType("double", "DOUBLE", "double"),
    SourceType(r"datetime(?:\(\d\))?(?: /\* mariadb-5\.3 \*/)?", "TIMESTAMP_NTZ", "datetime", _ZERO_DATES),
    SourceType(r"timestamp(?:\(\d\))?(?: /\* mariadb-5\.3 \*/)?", "TIMESTAMP", "timestamp", _ZERO_DATES),
    SourceType(r"(?:var)?binary\(\d+\)|(?:tiny|medium|long)?blob", "BINARY",
               "binary(n), varbinary(n), tinyblob, blob, mediumblob, longblob"),
)

_READ = {
    # Only the length tells a date from 'epoch', '0044-03-15 BC' and '12024-01-01', all of which the cast would take.
    "DATE": "CASE WHEN length({v}) = 10 THEN try_cast({v} AS DATE) END",
    "TIMESTAMP_NTZ": "CASE WHEN substr({v}, 5, 1) = '-' AND {v} NOT LIKE '% BC' "
                     "THEN try_cast({v} AS TIMESTAMP_NTZ) END",
    # PostgreSQL sends +00, MySQL no zone: both are UTC, whatever the zone of Spark's session.
    "TIMESTAMP": "CASE WHEN substr({v}, 5, 1) = '-' AND {v} NOT LIKE '% BC' THEN try_cast("
                 "CASE WHEN substr({v}, 12) RLIKE '[+-]' THEN {v} ELSE concat({v}, '+00') END AS TIMESTAMP) END",
    "BINARY": "unhex(substr({v}, 3))",
}
# The cast rounds without a word, so digits beyond the scale are counted in the text first.
_READ_DECIMAL = (
    "CASE WHEN instr({v}, '.') = 0 OR length(trim(TRAILING '0' FROM substring_index({v}, '.', -1))) <= {scale} "
    "THEN try_cast({v} AS {type}) END"
)
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}


def spark_type(source_type: str) -> str:
    """The Spark type of a source type, as Spark's DDL spells it."""
    for row in SOURCE_TYPES:
        match = re.fullmatch(row.pattern, source_type)
        if match:
            return _decimal(int(match[1]), int(match[2])) if match.re.groups else row.spark
    return TEXT


def read_sql(spark: str, text: str) -> str:
    """SQL that turns the SQL expression ``text`` into ``spark``; NULL where the type cannot hold it."""
    if spark == TEXT:
        return text
    decimal = _DECIMAL.fullmatch(spark)
    if decimal:
        return _READ_DECIMAL.format(v=text, type=spark, scale=decimal[2])
    return _READ.get(spark, f"try_cast({{v}} AS {spark})").format(v=text)


def holds(wide: str, narrow: str) -> bool:
    """True if every value of ``narrow`` is also one of ``wide``."""
    if wide == narrow or (wide, narrow) == ("DOUBLE", "FLOAT"):
        return True
    into, of = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if into:
        room = int(into[1]) - int(into[2])
        if of:
            return int(into[2]) >= int(of[2]) and room >= int(of[1]) - int(of[2])
        return room >= _INTEGER_DIGITS.get(narrow, _MAX_DIGITS + 1)
    if wide in _INTEGER_DIGITS and narrow in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[wide] > _INTEGER_DIGITS[narrow]
    return False


def _decimal(precision: int, scale: int) -> str:
    # PostgreSQL allows a scale below zero (12300 in numeric(3,-2)) and above the precision (0.00012 in numeric(2,5)).
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    return f"DECIMAL({precision},{scale})" if precision <= _MAX_DIGITS else TEXT
