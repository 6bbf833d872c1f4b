"""Typed columns of state → the source's canonical text, the inverse of ``state.values.read_texts``.

Place: below ``state_rows``. Guarantee: the text is what the source sends for the same value. Two details are
exceptions, because state does not keep them: digits of floating point numbers, and trailing zeros of PostgreSQL's
``numeric`` without a scale. Such texts denote the same number.
"""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from dblake.transform.spark.types import spark_type

_DIGITS = re.compile(r"\((\d)\)")


def render_texts(source_type: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of state as texts of a source type; NULL stays NULL."""
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "t", "f")
    if pa.types.is_decimal(kind):
        return _render_decimals(source_type, column)
    if pa.types.is_floating(kind):
        return _render_floats(column)
    if pa.types.is_timestamp(kind):
        return _render_times(source_type, column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return column.cast(pa.string())


def _render_decimals(source_type: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = column.cast(pa.string())
    if pc.any(pc.match_substring(texts, "E")).as_py():
        plain = [None if value is None else format(Decimal(value), "f") for value in texts.to_pylist()]
        texts = pa.chunked_array([pa.array(plain, pa.string())])
    if source_type == "numeric" or not spark_type(source_type).startswith("DECIMAL"):
        texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)\.0*$", r"\1")
        texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+\.[0-9]*[1-9])0+$", r"\1")
    return texts


def _render_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = column.cast(pa.string())
    texts = pc.replace_substring_regex(texts, "^-?nan$", "NaN")
    return pc.replace_substring_regex(texts, "^(-?)inf$", r"\1Infinity")


def _render_times(source_type: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    local = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    texts = local.cast(pa.string())
    if source_type.startswith(("datetime", "timestamp")) and " time zone" not in source_type:
        # MySQL and MariaDB: as many digits as declared.
        digits = _DIGITS.search(source_type)
        return pc.utf8_slice_codeunits(texts, 0, 20 + int(digits[1]) if digits and digits[1] != "0" else 19)
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    texts = pc.replace_substring_regex(texts, r"(\.[0-9]*[1-9])0+$", r"\1")
    return pc.binary_join_element_wise(texts, "+00", "") if "with time zone" in source_type else texts
