"""Type a row image by its schema: the source's text → Python values, without loss.

Place: below ``model``. Guarantee: a text that its type cannot hold unchanged (``infinity``, a zero date, a year above
9999, NaN in ``numeric``) stays the source's text. The mapping of source types is ``spark.types``', as in state.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from dblake.base.core.schema import TableSchema
from dblake.transform.spark.types import TEXT, spark_type

Value = None | str | int | float | bool | Decimal | date | datetime | bytes

_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})


def read_image(
    texts: Mapping[str, str | None], schema: TableSchema, undecoded: Container[str] = ()
) -> dict[str, Value]:
    """Return the columns of an image, typed by a schema; undecoded columns are bytes, unknown ones stay texts."""
    readers = _readers(schema)
    return {
        name: None if text is None
        else bytes.fromhex(text[2:]) if name in undecoded
        else readers[name](text) if name in readers else text
        for name, text in texts.items()
    }


def json_kinds(schema: TableSchema) -> Mapping[str, str]:
    """Return the columns whose values are JSON values: ``integer``, ``float`` or ``boolean``; others are texts."""
    return _json_kinds(schema)


@lru_cache(maxsize=4096)
def _json_kinds(schema: TableSchema) -> Mapping[str, str]:
    kinds = {}
    for column in schema.columns:
        spark = spark_type(column.type)
        if spark in _INTEGERS or column.type == "bigint unsigned":
            kinds[column.name] = "integer"
        elif spark in ("FLOAT", "DOUBLE"):
            kinds[column.name] = "float"
        elif spark == "BOOLEAN":
            kinds[column.name] = "boolean"
    return kinds


@lru_cache(maxsize=4096)
def _readers(schema: TableSchema) -> Mapping[str, Callable[[str], Value]]:
    readers = {column.name: value_reader(column.type) for column in schema.columns}
    return {name: reader for name, reader in readers.items() if reader is not None}


@lru_cache(maxsize=4096)
def value_reader(source_type: str) -> Callable[[str], Value] | None:
    """Return the function that types texts of a source type; None if they stay texts."""
    spark = spark_type(source_type)
    if spark == TEXT:
        return None
    if spark in _INTEGERS or source_type == "bigint unsigned":
        return _integer
    return _decimal if spark.startswith("DECIMAL") else _READERS[spark]


def _integer(text: str) -> Value:
    try:
        return int(text)
    except ValueError:
        return text


def _decimal(text: str) -> Value:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return text
    return value if value.is_finite() else text


def _float(text: str) -> Value:
    try:
        return float(text)
    except ValueError:
        return text


def _boolean(text: str) -> Value:
    return True if text in _TRUE else False if text in _FALSE else text


def _date(text: str) -> Value:
    try:
        return date.fromisoformat(text) if len(text) == 10 else text
    except ValueError:
        return text


def _local_time(text: str) -> Value:
    try:
        return datetime.fromisoformat(text) if len(text) >= 19 else text
    except ValueError:
        return text


def _instant(text: str) -> Value:
    at = _local_time(text)
    if not isinstance(at, datetime):
        return text
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _binary(text: str) -> Value:
    return bytes.fromhex(text[2:]) if text.startswith("\\x") else text


_READERS: dict[str, Callable[[str], Value]] = {
    "FLOAT": _float, "DOUBLE": _float, "BOOLEAN": _boolean, "DATE": _date, "TIMESTAMP_NTZ": _local_time,
    "TIMESTAMP": _instant, "BINARY": _binary,
}
