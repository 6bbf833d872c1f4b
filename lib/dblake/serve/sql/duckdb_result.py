"""The result of one DuckDB query.

Place: between ``engine`` and what prints or hands on rows. Guarantee: rows are converted by DuckDB, a batch at a time;
every fault is a UsageError of one line without row values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from dblake.base.core.errors import UsageError
from dblake.serve.sql.duckdb_types import json_sql, text_sql
from dblake.serve.sql.result import TextRow
from dblake.serve.sql.rows import text

_BATCH_ROWS = 8192
_CAUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (duckdb.ConversionException, "a value cannot be converted to the type that the query requires"),
    (duckdb.OutOfRangeException, "a value is out of range"),
    (duckdb.OutOfMemoryException, "it requires more memory than there is"),
    (duckdb.InvalidInputException, "a function does not accept a value"),
    (duckdb.NotImplementedException, "it uses what DuckDB does not support"),
    ((duckdb.IOException, OSError), "a file cannot be read or written"),
    (pa.ArrowException, "the result is too large, or of a type that Arrow does not have"),
)
_BOUND = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)


class NoSuchTable(UsageError):
    """A query names a table or function that does not exist."""


class DuckdbResult:
    """The rows of a SELECT. Another query of the same connection ends the reading of them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, statement: str) -> None:
        self._connection, self._statement = connection, statement
        try:
            described = connection.sql(statement)
            # DuckDB names the column of count(*) by its own function.
            self.columns = tuple(str(name).replace("count_star()", "count(*)") for name in described.columns)
            self.types = tuple(str(kind) for kind in described.types)
        except duckdb.Error as error:
            raise to_usage_error(error) from None

    def text_rows(self, most: int | None = None) -> Iterator[TextRow]:
        """Yield the values of each row, or of each of the first ``most`` rows, as text."""
        limit = "" if most is None else f" LIMIT {most}"
        values = ", ".join(f"{text_sql(f'#{i}', kind)} AS c{i}" for i, kind in enumerate(self.types, 1))
        for batch in self._batches(f"SELECT {values} FROM ({self._statement}\n){limit}"):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def json_rows(self) -> Iterator[str]:
        """Yield each row as a JSON object."""
        named = zip(self.columns, self.types, strict=True)
        fields = ", ', ', ".join(
            f"CAST(to_json({text(name)}) AS VARCHAR), ': ', coalesce({json_sql(f'#{i}', kind)}, 'null')"
            for i, (name, kind) in enumerate(named, 1)
        )
        for batch in self._batches(f"SELECT concat('{{', {fields}, '}}') FROM ({self._statement}\n)"):
            yield from batch.column(0).to_pylist()

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        try:
            return self._connection.sql(self._statement).to_arrow_table().rename_columns(list(self.columns))
        except (duckdb.Error, pa.ArrowException) as error:
            raise to_usage_error(error) from None

    def _batches(self, statement: str) -> Iterator[Any]:
        try:
            with self._connection.sql(statement).to_arrow_reader(_BATCH_ROWS) as reader:
                yield from reader
        except duckdb.InterruptException:
            raise KeyboardInterrupt from None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise to_usage_error(error) from None


def to_usage_error(error: Exception) -> UsageError:
    """Return the error for a failed query, in one line without row values."""
    if isinstance(error, _BOUND):
        # DuckDB repeats the statement on further lines.
        message = str(error).splitlines()[0].rstrip(".!")
        if isinstance(error, duckdb.CatalogException):
            return NoSuchTable(message, next_step="correct the query; SHOW TABLES lists all tables")
        return UsageError(message, next_step="correct the query")
    if isinstance(error, duckdb.PermissionException):
        return UsageError("sql reads the tables of its sources only, no other file",
                          next_step="select from a table; SHOW TABLES lists all")
    cause = next((cause for kinds, cause in _CAUSES if isinstance(error, kinds)), "DuckDB gives no cause")
    return UsageError(f"the query failed while running: {cause}", next_step="correct the query")
