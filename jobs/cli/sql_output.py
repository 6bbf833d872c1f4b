"""Print a query result as a table, JSON or CSV.

Guarantee: no value passes through a Python type that cannot hold it; Spark converts each to text.
"""

from __future__ import annotations

import csv
import sys

import click
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, VariantType
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dblake.spark.sql_literals import identifier
from dblake.sql.query import to_usage_error

MAX_TABLE_ROWS = 1000
_PIPE_WIDTH_CHARACTERS = 1000
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}


def print_result(result: DataFrame, form: str | None) -> None:
    """Compute a result and print it as ``json``, ``csv`` or a table. Raises UsageError if the query fails."""
    try:
        {"json": _print_json, "csv": _print_csv, None: _print_table}[form](result)
    except PySparkException as error:
        raise to_usage_error(error) from None


def _print_json(result: DataFrame) -> None:
    # Spark writes each row, so numbers keep all their digits.
    columns = ", ".join(
        f"{_hex_sql(identifier(f.name))} AS {identifier(f.name)}" if isinstance(f.dataType, BinaryType)
        else identifier(f.name) for f in result.schema
    )
    options = ", ".join(f'"{key}", "{value}"' for key, value in {**_TIMES, "ignoreNullFields": "false"}.items())
    rows = result.selectExpr(f"to_json(struct({columns}), map({options})) AS row")
    lead = "["
    for row in rows.toLocalIterator():
        click.echo(f"{lead}{row[0]}", nl=False)
        lead = ",\n "
    click.echo("[]" if lead == "[" else "]")


def _print_csv(result: DataFrame) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(result.columns)
    out.writerows(_to_text(result).toLocalIterator())


def _print_table(result: DataFrame) -> None:
    table = Table(*result.columns)
    rows = _to_text(result).head(MAX_TABLE_ROWS + 1)
    for row in rows[:MAX_TABLE_ROWS]:
        table.add_row(*(Text("NULL", style="dim") if value is None else Text(value) for value in row))
    # A pipe or file has no width that rows must fit.
    console = Console()
    (console if console.is_terminal else Console(width=_PIPE_WIDTH_CHARACTERS)).print(table)
    if len(rows) > MAX_TABLE_ROWS:
        click.echo(f"only the first {MAX_TABLE_ROWS} rows are shown; --csv and --json print all", err=True)


def _to_text(result: DataFrame) -> DataFrame:
    """Return the rows with every column as text; columns are named c0, c1, …"""
    numbered = result.toDF(*(f"c{index}" for index in range(len(result.columns))))
    return numbered.selectExpr(*(f"{_text_sql(f.name, f.dataType)} AS {f.name}" for f in numbered.schema))


def _text_sql(column: str, kind: DataType) -> str:
    """Return SQL for a column as text."""
    if isinstance(kind, BinaryType):
        return _hex_sql(column)
    if isinstance(kind, (ArrayType, MapType, StructType, VariantType)):
        return f"to_json({column})"
    return f"CAST({column} AS STRING)"


def _hex_sql(column: str) -> str:
    """Return SQL for bytes in the sources' form, ``\\x`` and hexadecimal digits."""
    return rf"concat('\\x', lower(hex({column})))"
