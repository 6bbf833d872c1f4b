"""Print a query result as a table, as vertical rows, as JSON or as CSV.

Guarantee: values are printed as the engine converted them to text; no other Python type holds them.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dblake.serve.sql.result import QueryResult, TextRow

MAX_TABLE_ROWS = 1000
_PIPE_WIDTH_CHARACTERS = 1000
_NULL = "NULL"


def print_result(result: QueryResult, form: str | None) -> None:
    """Compute a result and print it as ``json``, ``csv``, ``vertical`` or a table, vertical where that is too wide.

    Raises UsageError if the query fails.
    """
    {"json": _print_json, "csv": _print_csv, "vertical": _print_vertical, None: _print_table}[form](result)


def _print_json(result: QueryResult) -> None:
    lead = "["
    for row in result.json_rows():
        click.echo(f"{lead}{row}", nl=False)
        lead = ",\n "
    click.echo("[]" if lead == "[" else "]")


def _print_csv(result: QueryResult) -> None:
    rows = result.text_rows()
    # The first row is computed before the header is printed: a query that fails prints none.
    first = list(itertools.islice(rows, 1))
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(result.columns)
    out.writerows(itertools.chain(first, rows))


def _print_vertical(result: QueryResult) -> None:
    rows = _first_rows(result)
    _print_records(result.columns, rows[:MAX_TABLE_ROWS])
    _note_cut(rows)


def _print_table(result: QueryResult) -> None:
    rows = _first_rows(result)
    shown = rows[:MAX_TABLE_ROWS]
    console = Console()
    if console.is_terminal and _table_width(result.columns, shown) > console.width:
        _print_records(result.columns, shown)
    else:
        table = Table()
        for column in result.columns:
            table.add_column(Text(column))
        for row in shown:
            table.add_row(*(Text(_NULL, style="dim") if value is None else Text(value) for value in row))
        # A pipe or file has no width that rows must fit.
        (console if console.is_terminal else Console(width=_PIPE_WIDTH_CHARACTERS)).print(table)
    _note_cut(rows)


def _first_rows(result: QueryResult) -> list[TextRow]:
    return list(result.text_rows(MAX_TABLE_ROWS + 1))


def _note_cut(rows: Sequence[TextRow]) -> None:
    if len(rows) > MAX_TABLE_ROWS:
        click.echo(f"only the first {MAX_TABLE_ROWS} rows are shown; --csv and --json print all", err=True)


def _table_width(columns: Sequence[str], rows: Sequence[TextRow]) -> int:
    """Return the characters that a table is wide: values, and a border and two blanks for each column."""
    widths = [len(name) for name in columns]
    for row in rows:
        for place, value in enumerate(row):
            longest = max(map(len, value.splitlines()), default=0) if value is not None else len(_NULL)
            widths[place] = max(widths[place], longest)
    return sum(widths) + 3 * len(widths) + 1


def _print_records(columns: Sequence[str], rows: Sequence[TextRow]) -> None:
    """Print each row as lines of column and value."""
    width = max(map(len, columns), default=0)
    lead = " " * width + " | "
    for number, row in enumerate(rows, 1):
        head = f"-[ {number} ]"
        click.echo(head.ljust(max(width + 3, len(head)), "-"))
        for column, value in zip(columns, row, strict=True):
            text = _NULL if value is None else value.replace("\n", f"\n{lead}")
            click.echo(f"{column.ljust(width)} | {text}")
    if not rows:
        click.echo("no rows")
