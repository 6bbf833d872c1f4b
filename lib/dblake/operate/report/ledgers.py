"""Lag, dumps and verification over time, as sections of the page.

Place: part of ``page``. The figures come from ``status``, ``lag`` and the window ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from dblake.ingest.capture.dump_task import DumpState
from dblake.operate.report.build import Report
from dblake.operate.report.charts import bar, line_plot, stacked_plot, timeline
from dblake.operate.report.markup import Html, join, name_of, tag
from dblake.operate.report.period import Period
from dblake.operate.report.scales import format_count, lag_height, lag_ticks, lag_top, time_ticks
from dblake.operate.status.quantities import format_duration

_SHOWN_DUMPS = 12
_SHOWN_TABLES = 12
_AGES = ((3600, "under an hour", "age1"), (86400, "under a day", "age2"), (604800, "under a week", "age3"),
         (float("inf"), "older", "age4"))


def build_lag(report: Report) -> Html:
    """Return how old changes were when they reached landing, events and state."""
    lines = {name: values.copy() for name, values in report.lag.stages.items()}
    stages, late = report.document["stages"], report.limits.late_seconds
    for name, values in lines.items():
        lag = stages[name]["lag_seconds"]
        is_pending = stages[name]["lag_transactions"] if name != "landing" else lag is not None and lag > late
        if lag is not None and is_pending:
            values[-1] = np.fmax(values[-1], lag)
    seconds = np.concatenate(list(lines.values()))
    seconds = seconds[~np.isnan(seconds)]
    title = tag("h2", "Lag: commit at the source to landing, events and state")
    if not len(seconds):
        return tag("section", title, tag("p", "Nothing has landed in this period.", cls="empty"), id="lag")
    greatest = max(float(seconds.max()), late)
    top = lag_top(greatest)
    heights = {
        name: np.array([np.nan if np.isnan(v) else lag_height(float(v), top) for v in values])
        for name, values in lines.items()
    }
    legend = [tag("span", tag("i", cls=f"key {name}"), name, _typical(values)) for name, values in lines.items()]
    legend.append(tag("span", tag("i", cls="key limit"), f"late after {format_duration(late)}"))
    plot = line_plot(heights, time_ticks(report.period), lag_ticks(greatest), lag_height(late, top),
                     label="Lag of landing, events and state over time, on a logarithmic scale")
    note = "The oldest change that each commit brought; the worst commit of each bucket. Logarithmic scale."
    return tag("section", title, tag("p", *legend, cls="legend"), tag("figure", plot, cls="card"),
               tag("p", note, cls="note"), id="lag")


def _typical(values: np.ndarray) -> str:
    seconds = values[~np.isnan(values)]
    if not len(seconds):
        return ""
    return f" (median {format_duration(float(np.median(seconds)))}, worst {format_duration(float(seconds.max()))})"


def build_dumps(report: Report) -> Html:
    """Return unfinished dumps with their progress, the period's dumps as a timeline, and the rows that were read."""
    dumps: Sequence[Mapping[str, Any]] = report.document["dumps"]
    title = tag("h2", "Dumps")
    if not dumps and not report.dumped.any():
        return tag("section", title, tag("p", "No dump on record.", cls="empty"), id="dumps")
    active = [dump for dump in dumps if not DumpState(dump["state"]).is_final]
    recent = [dump for dump in dumps if dump["started_at"] and _ends_since(dump, report.period.start)]
    recent.sort(key=lambda dump: dump["started_at"], reverse=True)
    parts: list[Html] = []
    if report.dumped.any():
        caption = f"Rows read per minute: {format_count(int(report.dumped.sum()))} in this period"
        plot = stacked_plot({"dumped": report.dumped}, time_ticks(report.period), [],
                            per_minute=report.period.minutes, label="Rows read by dumps per minute")
        parts.append(tag("figure", tag("figcaption", caption), plot, cls="card"))
    items = [_active_dump(dump) for dump in active[:_SHOWN_DUMPS]]
    if len(active) > _SHOWN_DUMPS:
        items.append(tag("li", f"{len(active) - _SHOWN_DUMPS:,} more are not done"))
    if items:
        parts.append(tag("ul", *items, cls="card dumps"))
    lanes = [_lane(dump, report.period, report.made_at) for dump in recent[:_SHOWN_DUMPS]]
    if lanes:
        more = len(recent) - len(lanes)
        rest = tag("p", f"{more:,} earlier dumps of this period are not shown.", cls="note") if more else None
        parts.append(tag("div", *lanes, rest, cls="card lanes"))
    elif not items and not report.dumped.any():
        parts.append(tag("p", f"None in this period; {len(dumps):,} before it.", cls="empty"))
    return tag("section", title, *parts, id="dumps")


def _ends_since(dump: Mapping[str, Any], start: datetime) -> bool:
    return dump["finished_at"] is None or datetime.fromisoformat(dump["finished_at"]) >= start


def _active_dump(dump: Mapping[str, Any]) -> Html:
    expected, rate, left = dump["rows_expected"], dump["rows_per_second"], dump["seconds_left"]
    parts = [f"{dump['state']}: {dump['rows']:,}" + ("" if expected is None else f" of about {expected:,}") + " rows"]
    if rate is not None:
        parts.append(f"{rate:,.0f} a second")
    if left is not None:
        parts.append(f"{format_duration(left)} left")
    share = min(dump["rows"] / expected, 1.0) if expected else 0.0
    return tag("li", tag("p", name_of(dump["table"]), tag("span", ", ".join(parts), cls="sums")),
               bar([("done", share, f"{share:.0%}")]) if expected else None)


def _lane(dump: Mapping[str, Any], period: Period, now: datetime) -> Html:
    begin = datetime.fromisoformat(dump["started_at"])
    end = datetime.fromisoformat(dump["finished_at"]) if dump["finished_at"] else now
    length = period.end - period.start
    took = format_duration(max((end - begin).total_seconds(), 0))
    text = f"{dump['state']}, {format_count(dump['rows'])} rows, {took}"
    line = timeline((begin - period.start) / length, (end - period.start) / length, dump["state"], text)
    return tag("div", tag("p", name_of(dump["table"]), tag("span", text, cls="sums")), line, cls="lane")


def build_verification(report: Report) -> Html:
    """Return how old the tables' newest verifications are, and the tables that need one most."""
    entries = {entry["table"]: entry for entry in report.document["verifications"]}
    tables = {name for name, life in report.document["captured"].items() if life["state"] != "removed"} | set(entries)
    title = tag("h2", "Verification: state compared with the source")
    if not tables:
        return tag("section", title, tag("p", "No tables yet.", cls="empty"), id="verification")
    never = sorted(tables - set(entries))
    counts = [sum(_age_class(entry["age_seconds"]) == kind for entry in entries.values()) for _, _, kind in _AGES]
    parts = [(kind, count / len(tables), f"{text}: {count:,}")
             for count, (_, text, kind) in zip(counts, _AGES, strict=True)]
    parts.append(("never", len(never) / len(tables), f"never: {len(never):,}"))
    legend = [tag("span", tag("i", cls=f"key {kind}"), text) for kind, share, text in parts if share]
    ordered = sorted(entries.values(), key=lambda entry: (-entry["differences"], -entry["age_seconds"], entry["table"]))
    limit = report.limits.max_verification_age_seconds
    shown = [_verified_row(entry, limit) for entry in ordered[:_SHOWN_TABLES]]
    head = tag("tr", tag("th", "table"), tag("th", "age", cls="number"), tag("th", "rows", cls="number"),
               tag("th", "coverage", cls="share"), tag("th", "differ", cls="number"))
    rows = tag("div", tag("table", tag("thead", head), tag("tbody", *shown)), cls="card rows") if shown else None
    rest = len(entries) - len(shown)
    return tag(
        "section", title,
        tag("div", tag("p", *legend, cls="legend"), bar(parts, cls="bar ages"), cls="card"), rows,
        tag("p", f"{rest:,} more tables were verified more recently.", cls="note") if rest > 0 else None,
        tag("details", tag("summary", f"{len(never):,} tables were never verified"),
            tag("p", *(join(name_of(name), " ") for name in never), cls="names"), cls="card") if never else None,
        id="verification",
    )


def _age_class(seconds: float) -> str:
    return next(kind for limit, _, kind in _AGES if seconds < limit)


def _verified_row(entry: Mapping[str, Any], limit: float | None) -> Html:
    differs, is_old = entry["differences"], limit is not None and entry["age_seconds"] > limit
    text = f"{entry['coverage']:.1%}{' of a sample' if entry['sampled'] else ''}"
    return tag(
        "tr", tag("td", name_of(entry["table"])),
        tag("td", format_duration(entry["age_seconds"]), cls="number late" if is_old else "number"),
        tag("td", format_count(entry["rows_compared"]), cls="number"),
        tag("td", bar([("done", entry["coverage"], text)], cls="bar slim"), tag("span", text), cls="share"),
        tag("td", f"{differs:,}" if differs else "0", cls="number severe" if differs else "number"),
    )
