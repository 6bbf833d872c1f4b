"""The page: one HTML file with its style and its plots, which loads nothing and runs nothing.

Place: behind ``build``. Guarantee: a policy in the page forbids scripts and every load, so even a text that were
markup could do nothing; all texts are escaped by ``markup``. Row values are in none of its inputs.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from dblake.base.core.durable_file import replace_file
from dblake.base.core.errors import UsageError
from dblake.operate.report.activity import build_activity, build_other_tables
from dblake.operate.report.build import Report
from dblake.operate.report.ledgers import build_dumps, build_lag, build_verification
from dblake.operate.report.markup import Html, join, name_of, tag
from dblake.operate.report.overview import build_problems, build_stages, build_tiles, build_verdict
from dblake.operate.report.style import STYLE
from dblake.operate.status.quantities import format_duration

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(report: Report, reload_seconds: float | None = None) -> str:
    """Return the report's page as HTML, with its style and without scripts; a browser may load it again on its own."""
    source = report.document["source"]
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"), tag("title", f"dblake: {source}"),
        tag("style", Html(STYLE)),
        tag("meta", http_equiv="refresh", content=f"{reload_seconds:.0f}") if reload_seconds else None,
    )
    period = report.period
    header = tag(
        "header", tag("h1", tag("small", "dblake"), " ", name_of(source)),
        tag("p", f"{_time(period.start)} – {_time(report.made_at)} UTC, per {_width(period.width)}; made "
                 f"{report.made_at:%Y-%m-%d %H:%M:%S}"),
    )
    main = tag(
        "main", build_verdict(report), build_stages(report), build_tiles(report),
        build_problems(report.document["problems"]), build_activity(report), build_lag(report), build_dumps(report),
        build_verification(report), build_other_tables(report),
    )
    body = tag("body", header, main, _footer(report))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def write_page(file: Path, page: str) -> None:
    """Replace a file by the page as a whole, readable as any new file. Raises UsageError if it cannot be written."""
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}", next_step="name a file in a folder that exists")
    mask = os.umask(0)
    os.umask(mask)
    try:
        replace_file(file, page.encode())
        file.chmod(0o666 & ~mask)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written: {error.strerror}", next_step="name a file in a writable folder"
        ) from error


def _footer(report: Report) -> Html:
    complete = ""
    if report.operations.complete_from > report.period.past:
        begin = report.period.begins_at(report.operations.complete_from)
        complete = f" Maintenance has removed superseded events from before {_time(begin)}: counts there are too low."
    return tag(
        "footer",
        tag("p", "Operations are counted by their commit time at the source. Rows that a dump read are none. A drop is "
                 "a run with at most a fifth of the table's running average, a spike one with more than three times "
                 "it; only what is at least twice as large as all but one earlier run of the table is marked."
                 + complete),
        tag("p", join("All times are UTC. Runbook: docs/runbook.md, by problem code.")),
    )


def _time(time: datetime) -> str:
    return f"{time:%b} {time.day} {time:%H:%M}"


def _width(width: timedelta) -> str:
    return "minute" if width == timedelta(minutes=1) else format_duration(width.total_seconds())
