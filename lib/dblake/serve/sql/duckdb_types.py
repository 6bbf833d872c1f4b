r"""Spark types in DuckDB: their names, the typing of source texts, and values as text and JSON.

Guarantee: ``read_sql`` reads as ``state.values.read_texts`` does: NULL for a text that the type cannot hold unchanged;
nothing is rounded or shifted. ``text_sql`` and ``json_sql`` show values alike in all
engines. A time keeps its zone, and bytes are ``\x`` and hexadecimal digits. A number of an unconstrained ``numeric``
has no zeros that the source did not send.
"""

from __future__ import annotations

import re

from dblake.transform.spark.types import TEXT

_NAMES = {TEXT: "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP", "BINARY": "BLOB",
          "ARRAY<STRING>": "VARCHAR[]", "INT": "INTEGER"}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
UNCONSTRAINED = (38, 18)
"""Precision and scale of ``numeric`` without either: its values have their own number of digits at the source."""

_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = r"([+-][0-9]{2}(:?[0-9]{2}(:?[0-9]{2})?)?)?"
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_SPECIAL = r"[+-]?(inf|infinity|nan)"
_READ = {
    "BOOLEAN": "CASE WHEN lower({v}) IN ('t', 'true', 'y', 'yes', '1') THEN true "
               "WHEN lower({v}) IN ('f', 'false', 'n', 'no', '0') THEN false END",
    "DATE": f"CASE WHEN regexp_full_match({{v}}, '{_DATE}') AND {{v}} >= '0001' THEN TRY_CAST({{v}} AS DATE) END",
    "TIMESTAMP_NTZ": f"CASE WHEN regexp_full_match({{v}}, '{_DATE}([ T]{_TIME})?') AND {{v}} >= '0001' "
                     "THEN TRY_CAST({v} AS TIMESTAMP) END",
    # PostgreSQL sends +00, MySQL no zone: both are UTC.
    "TIMESTAMP": f"CASE WHEN regexp_full_match({{v}}, '{_DATE}[ T]{_TIME}{_ZONE}') AND {{v}} >= '0001' THEN TRY_CAST("
                 "CASE WHEN regexp_matches(substr({v}, 12), '[+-]') THEN {v} ELSE concat({v}, '+00') END "
                 "AS TIMESTAMPTZ) END",
    "BINARY": "TRY(unhex(substr({v}, 3)))",
}
_READ_FLOAT = f"CASE WHEN regexp_full_match({{v}}, '{_NUMBER}|{_SPECIAL}', 'i') THEN TRY_CAST({{v}} AS {{type}}) END"
_READ_INTEGER = "CASE WHEN regexp_full_match({v}, '[+-]?[0-9]+') THEN TRY_CAST({v} AS {type}) END"
# The cast rounds silently, so the text's digits beyond the scale are counted first.
_READ_DECIMAL = (
    f"CASE WHEN regexp_full_match({{v}}, '{_NUMBER}') AND (position('.' IN {{v}}) = 0 OR "
    "length(rtrim(split_part({v}, '.', 2), '0')) <= {scale}) THEN TRY_CAST({v} AS {type}) END"
)


def duckdb_type(spark: str) -> str:
    """Return the DuckDB type of a Spark type as ``spark.types`` writes it."""
    return _NAMES.get(spark, spark)


def read_sql(spark: str, text: str) -> str:
    """Return SQL that converts the SQL expression ``text`` to the type ``spark``; NULL if it cannot hold the value."""
    if spark == TEXT:
        return text
    decimal = _DECIMAL.fullmatch(spark)
    template = (
        _READ_DECIMAL.replace("{scale}", decimal[2]) if decimal
        else _READ_FLOAT if spark in ("FLOAT", "DOUBLE") else _READ.get(spark, _READ_INTEGER)
    )
    # Not format: regular expressions have braces.
    value = text if spark == "BINARY" else f"trim({text})"
    return template.replace("{v}", value).replace("{type}", duckdb_type(spark))


def text_sql(value: str, kind: str) -> str:
    """Return SQL for the SQL expression ``value`` of a DuckDB type as text."""
    if kind.startswith(("STRUCT", "MAP", "UNION")) or kind.endswith("]"):
        return f"CAST(to_json({value}) AS VARCHAR)"
    if kind == "BLOB":
        return rf"'\x' || lower(hex({value}))"
    if kind in ("FLOAT", "DOUBLE"):
        return f"CASE WHEN isnan({value}) THEN 'NaN' WHEN isinf({value}) THEN " \
               f"CASE WHEN {value} > 0 THEN 'Infinity' ELSE '-Infinity' END ELSE CAST({value} AS VARCHAR) END"
    return _trimmed(f"CAST({value} AS VARCHAR)", kind)


def json_sql(value: str, kind: str) -> str:
    """Return SQL for the SQL expression ``value`` of a DuckDB type as the text of a JSON value; NULL for NULL."""
    if kind in ("FLOAT", "DOUBLE"):
        return f"CASE WHEN isfinite({value}) THEN CAST({value} AS VARCHAR) " \
               f"ELSE '\"' || ({text_sql(value, kind)}) || '\"' END"
    if kind == "BOOLEAN" or kind.endswith("INT") or kind in ("INTEGER", "UINTEGER") or kind.startswith("DECIMAL"):
        return text_sql(value, kind)
    if kind == "TIMESTAMP WITH TIME ZONE":
        return f"CAST(to_json(strftime({value}, '%Y-%m-%dT%H:%M:%S.%fZ')) AS VARCHAR)"
    if kind == "TIMESTAMP":
        return f"CAST(to_json(strftime({value}, '%Y-%m-%dT%H:%M:%S.%f')) AS VARCHAR)"
    if kind == "JSON" or kind.startswith(("STRUCT", "MAP", "UNION")) or kind.endswith("]"):
        return f"CAST(to_json({value}) AS VARCHAR)"
    return f"CAST(to_json({text_sql(value, kind)}) AS VARCHAR)"


def _trimmed(text: str, kind: str) -> str:
    if kind != "DECIMAL({},{})".format(*UNCONSTRAINED):
        return text
    return rf"regexp_replace({text}, '\.?0+$', '')"
