"""Map source types to the Spark types of state and views.

Place: between events, which hold text, and state. The mapping is data: the first row of ``SOURCE_TYPES`` whose pattern
matches the whole type name applies, and a type without a row stays the source's exact text. Names are the database's
own, so one table has the rows of all databases. Reading a text as its type is left to ``state.values`` and
``sql.duckdb_types``. ``tools.types_reference`` generates ``docs/types.md`` from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TEXT = "STRING"
_MAX_DIGITS = 38


@dataclass(frozen=True, slots=True)
class SourceType:
    """One row of the mapping.

    ``pattern`` matches type names and may have two groups, precision and scale; ``shown`` lists the names for readers.
    """

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
    # MySQL and MariaDB, with the names of formats.mysql_types; smallint, bigint and date are as above.
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

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}


def spark_type(source_type: str) -> str:
    """Return the Spark type of a source type, as Spark's DDL spells it."""
    for row in SOURCE_TYPES:
        match = re.fullmatch(row.pattern, source_type)
        if match:
            return _decimal(int(match[1]), int(match[2])) if match.re.groups else row.spark
    return TEXT


def holds(wide: str, narrow: str) -> bool:
    """Return whether every value of the Spark type ``narrow`` is also a value of ``wide``."""
    if wide == narrow or (wide, narrow) == ("DOUBLE", "FLOAT"):
        return True
    wide_decimal, narrow_decimal = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if wide_decimal:
        precision, scale = int(wide_decimal[1]), int(wide_decimal[2])
        if narrow_decimal:
            narrow_precision, narrow_scale = int(narrow_decimal[1]), int(narrow_decimal[2])
            return scale >= narrow_scale and precision - scale >= narrow_precision - narrow_scale
        return precision - scale >= _INTEGER_DIGITS.get(narrow, _MAX_DIGITS + 1)
    if wide in _INTEGER_DIGITS and narrow in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[wide] > _INTEGER_DIGITS[narrow]
    return False


def _decimal(precision: int, scale: int) -> str:
    # PostgreSQL allows a scale below zero (12300 in numeric(3,-2)) and above the precision (0.00012 in numeric(2,5)).
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    return f"DECIMAL({precision},{scale})" if precision <= _MAX_DIGITS else TEXT
