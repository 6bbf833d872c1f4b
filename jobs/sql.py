"""``sql``: query state, live and history views and events, with one statement, a file or at a prompt."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from dblake.base.core.errors import DblakeError
from dblake.base.lake.layout import Paths
from dblake.base.lake.schemas import read_schemas
from dblake.config import Config
from dblake.ingest.capture.progress import open_progress
from dblake.ingest.capture.table_life import LifeState, missing_rows, read_lives
from dblake.serve.read.points import parse_point
from dblake.serve.sql.completeness import WarningEngine
from dblake.serve.sql.lossy import count_lossy_rows
from jobs.cli.frame import job_options, run_job
from jobs.cli.options import exclusive_flags
from jobs.cli.sql_prompt import Prompt, run_file, run_statement

if TYPE_CHECKING:
    from dblake.serve.sql.result import Engine


@click.command("sql")
@job_options
@click.argument("statement", required=False)
@click.option("--at", metavar="POINT", help="Read all tables as of one point: a position 1/4711, a time, or now.")
@click.option("--engine", "engine_name", type=click.Choice(["duckdb", "spark"]), default="duckdb", show_default=True,
              help="Run in this process, without a JVM, or with Spark and its dialect.")
@exclusive_flags("form", {
    "json": "Print an array of objects, one per row.",
    "csv": "Print CSV with a header line; NULL is an empty field.",
    "vertical": "Print each column of a row on its own line.",
})
def sql(config: Config, statement: str | None, at: str | None, engine_name: str, form: str | None) -> int | None:
    """Run a SQL query; without STATEMENT, open a prompt, or run the statements of a file: sql < FILE.

    Tables are schema.table, schema.table_live, schema.table_history, and dblake.events, dblake.schemas,
    dblake.windows, dblake.frontier, dblake.verifications; of another source in the warehouse source.schema.table.
    SHOW TABLES lists them, DESCRIBE lists a table's columns.
    """
    if at is not None:
        # Before a session starts.
        parse_point(at)
    paths = Paths(config.warehouse, config.source.name)
    engine = WarningEngine(
        _open_engine(engine_name, paths, at), partial(_missing_rows, config), partial(read_schemas, paths),
        partial(count_lossy_rows, paths),
    )
    if statement is not None:
        run_statement(engine, statement, form)
        return None
    if not sys.stdin.isatty():
        return run_file(engine, sys.stdin, form)
    Prompt(engine, form).run()
    return None


def _missing_rows(config: Config) -> Mapping[str, str]:
    """Return why rows of tables are missing, by table; nothing if the progress store cannot be read."""
    try:
        lives = read_lives(open_progress(config.progress, config.source.name))
    except DblakeError:
        return {}
    return {table: why for table, why in missing_rows(lives).items() if lives[table].state is not LifeState.REMOVED}


def _open_engine(name: str, paths: Paths, at: str | None) -> Engine:
    if name == "spark":
        from dblake.serve.sql.spark_engine import SparkEngine

        return SparkEngine(paths, at)
    from dblake.serve.sql.engine import DuckdbEngine

    return DuckdbEngine(paths, at)


if __name__ == "__main__":
    run_job(sql)
