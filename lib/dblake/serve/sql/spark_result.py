"""The result of one query in Spark.

Guarantee: Spark converts each value to text, in the form that ``duckdb_types`` describes.
"""

from __future__ import annotations

from collections.abc import Iterator

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    StructType,
    TimestampType,
    VariantType,
)

from dblake.base.core.errors import UsageError
from dblake.serve.sql.duckdb_types import UNCONSTRAINED
from dblake.serve.sql.query import to_usage_error
from dblake.serve.sql.result import TextRow
from dblake.transform.spark.sql_literals import identifier

_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}


class SparkResult:
    """The rows of a query, computed while they are read."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        self.columns = tuple(rows.columns)

    def text_rows(self, most: int | None = None) -> Iterator[TextRow]:
        """Yield the values of each row, or of each of the first ``most`` rows, as text."""
        numbered = self._rows.toDF(*(f"c{index}" for index in range(len(self.columns))))
        texts = numbered.selectExpr(*(f"{_text_sql(f.name, f.dataType)} AS {f.name}" for f in numbered.schema))
        return self._read(texts, most)

    def json_rows(self) -> Iterator[str]:
        """Yield each row as a JSON object; numbers keep all their digits."""
        columns = ", ".join(
            f"{_hex_sql(identifier(f.name))} AS {identifier(f.name)}" if isinstance(f.dataType, BinaryType)
            else identifier(f.name) for f in self._rows.schema
        )
        options = ", ".join(f'"{key}", "{value}"' for key, value in {**_TIMES, "ignoreNullFields": "false"}.items())
        rows = self._read(self._rows.selectExpr(f"to_json(struct({columns}), map({options})) AS row"))
        return (str(row[0]) for row in rows)

    @staticmethod
    def _read(rows: DataFrame, most: int | None = None) -> Iterator[TextRow]:
        try:
            yield from rows.toLocalIterator() if most is None else rows.head(most)
        except PySparkException as error:
            raise to_usage_error(error) from None
        except Py4JJavaError:
            # The iterator's own way to report that a task failed; its text has row values.
            raise UsageError("the query failed while running", next_step="correct the query") from None


def _text_sql(column: str, kind: DataType) -> str:
    """Return SQL for a column as text."""
    if isinstance(kind, BinaryType):
        return _hex_sql(column)
    if isinstance(kind, (ArrayType, MapType, StructType, VariantType)):
        return f"to_json({column})"
    text = f"CAST({column} AS STRING)"
    if isinstance(kind, TimestampType):
        # The session's zone is UTC.
        return f"concat({text}, '+00')"
    if isinstance(kind, DecimalType) and (kind.precision, kind.scale) == UNCONSTRAINED:
        return rf"regexp_replace({text}, '\\.?0+$', '')"
    return text


def _hex_sql(column: str) -> str:
    r"""Return SQL for bytes in the sources' form, ``\x`` and hexadecimal digits."""
    return rf"concat('\\x', lower(hex({column})))"
