"""``sql``: one statement, or a prompt, over state, live, history and events of one source."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Iterator
from typing import TextIO

import click
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, VariantType
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dblake.config import Config
from dblake.core.errors import DblakeError
from dblake.spark.session import spark_session
from dblake.state.spelling import identifier
from pipelines.cli import job_options, run_job
from pipelines.paths import Paths
from pipelines.sql import fault, frontier_at, query, quiet
from pipelines.state import Frontier

SHOWN = 1000
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}


@click.command("sql")
@job_options
@click.argument("statement", required=False)
@click.option("--at", metavar="POSITION|TIME", help="Read all tables as of one point that state has noted.")
@click.option("--json", "form", flag_value="json", help="An array of objects, one for each row.")
@click.option("--csv", "form", flag_value="csv", help="CSV with a header line; NULL is an empty field.")
def sql(config: Config, statement: str | None, at: str | None, form: str | None) -> None:
    """Ask a question in Spark SQL; without STATEMENT, a prompt.

    Tables are schema.table, schema.table_live, schema.table_history, and dblake.events, dblake.schemas,
    dblake.windows, dblake.frontier.
    """
    spark = spark_session("dblake sql")
    quiet(spark)
    paths = Paths(config.warehouse, config.source.name)
    point = frontier_at(spark, paths, at) if at else None
    if statement is not None:
        _answer(spark, paths, statement, point, form)
        return
    for typed in _statements(sys.stdin):
        try:
            _answer(spark, paths, typed, point, form)
        except DblakeError as error:
            click.echo(" ".join(str(error).split()), err=True)


def _answer(spark: SparkSession, paths: Paths, statement: str, at: Frontier | None, form: str | None) -> None:
    result = query(spark, paths, statement.strip().rstrip(";"), at)
    try:
        {"json": _as_json, "csv": _as_csv, None: _as_table}[form](result)
    except PySparkException as error:
        raise fault(error) from None


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
    Console().print(table)
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


def _statements(given: TextIO) -> Iterator[str]:
    """What is typed (or piped in) up to each ``;`` at the end of a line."""
    prompt = given.isatty()
    if prompt:
        # Its import alone gives input() line editing and a history.
        importlib.import_module("readline")
    lines: list[str] = []
    while True:
        try:
            line = input(("   ... " if lines else "dblake> ") if prompt else "")
        except EOFError:
            line = ";"
            if not any(text.strip() for text in lines):
                return
        lines.append(line)
        if line.rstrip().endswith(";"):
            statement = "\n".join(lines)
            lines = []
            if statement.strip(" \n;"):
                yield statement


if __name__ == "__main__":
    run_job(sql)
