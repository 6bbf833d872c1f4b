"""The result of a question, shown: a table for people, JSON or CSV for programs.

No value passes through a Python type that cannot hold it: Spark writes each as text.
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

SHOWN = 1000
_WIDE = 1000
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}


def show(result: DataFrame, form: str | None) -> None:
    """Computes a result and prints it as ``json``, ``csv`` or a table. Raises UsageError for what fails meanwhile."""
    try:
        {"json": _as_json, "csv": _as_csv, None: _as_table}[form](result)
    except PySparkException as error:
        raise to_usage_error(error) from None


def _as_json(result: DataFrame) -> None:
    """Spark writes each row, so that numbers keep all their digits."""
    columns = ", ".join(
        f"{_hex(identifier(f.name))} AS {identifier(f.name)}" if isinstance(f.dataType, BinaryType)
        else identifier(f.name) for f in result.schema
    )
    options = ", ".join(f'"{key}", "{value}"' for key, value in {**_TIMES, "ignoreNullFields": "false"}.items())
    rows = result.selectExpr(f"to_json(struct({columns}), map({options})) AS row")
    lead = "["
    for row in rows.toLocalIterator():
        click.echo(f"{lead}{row[0]}", nl=False)
        lead = ",\n "
    click.echo("[]" if lead == "[" else "]")


def _as_csv(result: DataFrame) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(result.columns)
    out.writerows(_texts(result).toLocalIterator())


def _as_table(result: DataFrame) -> None:
    table = Table(*result.columns)
    rows = _texts(result).head(SHOWN + 1)
    for row in rows[:SHOWN]:
        table.add_row(*(Text("NULL", style="dim") if value is None else Text(value) for value in row))
    # Into a pipe or a file there is no width that a row would have to fit.
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(table)
    if len(rows) > SHOWN:
        click.echo(f"only the first {SHOWN} rows are shown; --csv and --json give all", err=True)


def _texts(result: DataFrame) -> DataFrame:
    """All columns as text, so that no value passes through a Python type that cannot hold it."""
    numbered = result.toDF(*(f"c{place}" for place in range(len(result.columns))))
    return numbered.selectExpr(*(f"{_text(f.name, f.dataType)} AS {f.name}" for f in numbered.schema))


def _text(column: str, kind: DataType) -> str:
    if isinstance(kind, BinaryType):
        return _hex(column)
    if isinstance(kind, (ArrayType, MapType, StructType, VariantType)):
        return f"to_json({column})"
    return f"CAST({column} AS STRING)"


def _hex(column: str) -> str:
    """Bytes as the sources write them."""
    return rf"concat('\\x', lower(hex({column})))"
