"""``changes``: print what happened between two points as JSON lines, without a JVM."""

from __future__ import annotations

if __name__ == "__main__":
    from jobs.cli.stop import handle_signals

    handle_signals()  # before the other imports, which take a second

import sys

import click

from dblake.base.lake.layout import Paths
from dblake.config import Config
from dblake.serve.changes.lines import encode_consolidated, encode_events
from dblake.serve.changes.span import Span
from jobs.cli.frame import job_options, run_job

_POINT = "POSITION|TIME|now"


@click.command("changes")
@job_options
@click.option("--from", "start", required=True, metavar=_POINT,
              help="Report what happened after this point: a position (1/4711 is the end of that transaction), an ISO "
                   "8601 commit time at the source (UTC unless it names a zone), or now.")
@click.option("--to", "end", default="now", show_default=True, metavar=_POINT, help="Up to and including this point.")
@click.option("--table", "tables", multiple=True, metavar="GLOB",
              help="Tables to report, globs on schema.table; may be repeated. Default: all.")
@click.option("--consolidated", is_flag=True,
              help="Print one line for each key whose row differs: op c, u or d, before the row at --from, after the "
                   "row at --to.")
def changes(config: Config, start: str, end: str, tables: tuple[str, ...], consolidated: bool) -> None:
    """Print the events between two points, or each row that differs, in the native format.

    Both points must be covered by events; the error for another one names the earliest and the latest. docs/points.md
    describes points and lines.
    """
    span = Span(Paths(config.warehouse, config.source.name), start, end)
    encode = encode_consolidated if consolidated else encode_events
    out = sys.stdout.buffer
    for line in encode(span, tables):
        out.write(line + b"\n")
    out.flush()


if __name__ == "__main__":
    run_job(changes)
