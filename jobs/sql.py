"""``sql``: query state, live and history views and events of one source, with one statement or at a prompt."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import TextIO

import click

from dblake.config import Config
from dblake.core.errors import DblakeError
from dblake.lake.layout import Paths
from dblake.spark.session import spark_session
from dblake.sql.query import query, read_frontier_at, silence_spark
from jobs.cli.frame import job_options, run_job
from jobs.cli.sql_output import print_result


@click.command("sql")
@job_options
@click.argument("statement", required=False)
@click.option("--at", metavar="POSITION|TIME", help="Read all tables as of one recorded point in time.")
@click.option("--json", "form", flag_value="json", help="Print an array of objects, one per row.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV with a header line; NULL is an empty field.")
def sql(config: Config, statement: str | None, at: str | None, form: str | None) -> None:
    """Run a Spark SQL query; without STATEMENT, open a prompt.

    Tables are schema.table, schema.table_live, schema.table_history, and dblake.events, dblake.schemas,
    dblake.windows, dblake.frontier, dblake.verifications.
    """
    spark = spark_session("dblake sql", config.warehouse)
    silence_spark(spark)
    paths = Paths(config.warehouse, config.source.name)
    point = read_frontier_at(paths, at) if at else None
    if statement is not None:
        print_result(query(spark, paths, statement.strip().rstrip(";"), point), form)
        return
    for typed in _read_statements(sys.stdin):
        try:
            print_result(query(spark, paths, typed.strip().rstrip(";"), point), form)
        except DblakeError as error:
            click.echo(" ".join(str(error).split()), err=True)


def _read_statements(stream: TextIO) -> Iterator[str]:
    """Yield what is typed or piped in, up to each ``;`` at the end of a line."""
    is_terminal = stream.isatty()
    if is_terminal:
        # Importing readline gives input() line editing and a history.
        importlib.import_module("readline")
    lines: list[str] = []
    while True:
        try:
            line = input(("   ... " if lines else "dblake> ") if is_terminal else "")
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
