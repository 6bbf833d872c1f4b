"""The operations of the period: all tables together, abnormal and busy tables as plots, the others as rows at the end.

Place: part of ``page``. Guarantee: the number of plots is bounded, and a table is one row, so the page of a thousand
tables stays readable and below a megabyte or so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dblake.operate.report.build import Report, rank_tables
from dblake.operate.report.charts import Mark, sparkline, stacked_plot
from dblake.operate.report.episodes import DROP, Episode
from dblake.operate.report.markup import Html, join, name_of, tag
from dblake.operate.report.operations import KINDS
from dblake.operate.report.period import Period
from dblake.operate.report.scales import format_count, time_ticks

_TITLE = "Operations per table and minute"
_MAX_PLOTS, _MIN_PLOTS = 12, 6
_MAX_ROWS, _OPEN_ROWS = 2000, 25
_SHOWN_EPISODES = 3
_SIGNS = {"drop": "▼", "spike": "▲"}


def build_activity(report: Report) -> Html:
    """Return the section of operations."""
    ranked, plots = rank_tables(report), _count_plots(report)
    if not ranked:
        empty = "No changes in this period." if report.document["stages"]["events"]["position"] else "No events yet."
        return tag("section", tag("h2", _TITLE), tag("p", empty, cls="empty"), id="operations")
    ticks = time_ticks(report.period)
    overall = {kind: counts.sum(axis=0) for kind, counts in report.operations.kinds.items()}
    per_minute = report.period.minutes
    return _section(
        tag("figure", tag("figcaption", "All tables"), _episode_list(report.overall, report.period), stacked_plot(
            overall, ticks, _marks(report, report.overall, []), per_minute=per_minute,
            label="Operations per minute of all tables", size="tall",
        ), cls="card"),
        tag("div", *(_plot(report, row, ticks) for row in ranked[:plots]), cls="grid"),
    )


def build_other_tables(report: Report) -> Html | None:
    """Return the section of the tables without a plot of their own; None without any."""
    ranked = rank_tables(report)
    parts = [part for part in (_rows(report, ranked[_count_plots(report):]), _quiet(report, ranked)) if part]
    return tag("section", tag("h2", "Other tables"), *parts, id="tables") if parts else None


def _count_plots(report: Report) -> int:
    return min(max(len(report.episodes), _MIN_PLOTS), _MAX_PLOTS)


def _section(*children: Html | None) -> Html:
    keys = [(kind, kind) for kind in (*KINDS, "drop", "spike")] + [("unknown", "not reconciled yet")]
    legend = tag("p", *(tag("span", tag("i", cls=f"key {kind}"), text) for kind, text in keys), cls="legend")
    return tag("section", tag("h2", _TITLE), legend, *children, id="operations")


def _plot(report: Report, row: int, ticks: Sequence[tuple[float, str]]) -> Html:
    operations = report.operations
    counts = {kind: values[row] for kind, values in operations.kinds.items()}
    episodes, name = report.episodes.get(row, []), operations.tables[row]
    sums = ", ".join(f"{format_count(int(values.sum()))} {kind}" for kind, values in counts.items() if values.any())
    emptied = operations.truncates.get(row, [])
    return tag(
        "figure", tag("figcaption", name_of(name)), tag("p", sums or "no operations", cls="sums"),
        _episode_list(episodes, report.period, emptied),
        stacked_plot(counts, ticks, _marks(report, episodes, emptied), per_minute=report.period.minutes,
                     label=f"Operations per minute of {name}"),
        cls="card abnormal" if episodes else "card",
    )


def _marks(report: Report, episodes: Sequence[Episode], emptied: Sequence[int]) -> list[Mark]:
    period = report.period
    marks = [Mark(episode.kind, episode.begin, episode.end, describe_episode(episode, period)) for episode in episodes]
    marks += [Mark("emptied", bucket - period.past, bucket - period.past, "truncated") for bucket in emptied]
    if report.known_until < period.shown - 1:
        marks.append(Mark("unknown", max(report.known_until, 0), period.shown, "not reconciled yet"))
    return marks


def _episode_list(episodes: Sequence[Episode], period: Period, emptied: Sequence[int] = ()) -> Html | None:
    """Return the largest episodes as a list; None without any."""
    largest = sorted(episodes, key=lambda episode: (not episode.is_open, -episode.deviation))[:_SHOWN_EPISODES]
    items = [tag("li", f"{_SIGNS[episode.kind]} {describe_episode(episode, period)}", cls=episode.kind)
             for episode in largest]
    if len(episodes) > len(largest):
        items.append(tag("li", f"and {len(episodes) - len(largest)} more"))
    if emptied:
        items.append(tag("li", f"truncated at {period.begins_at(emptied[-1]):%b %d %H:%M}"))
    return tag("ul", *items, cls="episodes") if items else None


def describe_episode(episode: Episode, period: Period) -> str:
    """Return when an episode was, and how it differs from the usual level."""
    begin = period.begins_at(period.past + episode.begin)
    end = period.begins_at(period.past + episode.end)
    days = "" if begin.date() == period.end.date() else f"{begin:%b} {begin.day} "
    when = f"since {days}{begin:%H:%M}" if episode.is_open else f"{days}{begin:%H:%M}–{end:%H:%M}"
    usual = format_count(episode.usual / period.minutes) if episode.usual / period.minutes >= 0.1 else "under 0.1"
    if episode.kind == DROP:
        rate = episode.operations / max(episode.end - episode.begin, 1) / period.minutes
        return f"drop {when}: {format_count(round(rate, 1))} a minute, usually {usual}"
    return f"spike {when}: up to {format_count(episode.peak / period.minutes)} a minute, usually {usual}"


def _rows(report: Report, rows: Sequence[int]) -> Html | None:
    """Return tables as rows, all but the first ones folded."""
    shown = rows[:_MAX_ROWS]
    if not shown:
        return None
    more, rest = shown[_OPEN_ROWS:], len(rows) - len(shown)
    folded = tag("details", tag("summary", f"{len(more):,} more tables"), _table(report, more), cls="card rows")
    return join(
        tag("div", _table(report, shown[:_OPEN_ROWS]), cls="card rows"), folded if more else None,
        tag("p", f"{rest:,} tables with fewer operations are not shown.", cls="note") if rest else None,
    )


def _table(report: Report, rows: Sequence[int]) -> Html:
    kinds = (tag("th", tag("i", cls=f"key {kind}"), tag("span", kind), cls="number", title=kind) for kind in KINDS)
    head = tag("tr", tag("th", "table"), *kinds, tag("th", "operations", cls="spark"))
    return tag("table", tag("thead", head), tag("tbody", *(_row(report, row) for row in rows)))


def _quiet(report: Report, ranked: Sequence[int]) -> Html | None:
    """Return the names of the captured tables that did not change."""
    changed = {report.operations.tables[row] for row in ranked}
    quiet = sorted(name for name, life in report.document["captured"].items()
                   if life["state"] != "removed" and name not in changed)
    if not quiet:
        return None
    return tag("details", tag("summary", f"{len(quiet):,} tables without changes in this period"),
               tag("p", *(join(name_of(name), " ") for name in quiet), cls="names"), cls="card")


def _row(report: Report, row: int) -> Html:
    operations, episodes = report.operations, report.episodes.get(row, [])
    kinds = sorted({episode.kind for episode in episodes})
    signs = [tag("span", _SIGNS[kind], cls=kind, title=kind) for kind in kinds]
    counts = [
        tag("td", format_count(int(total)) if total else "", cls="number")
        for values in operations.kinds.values() for total in [np.sum(values[row])]
    ]
    marks = [Mark(episode.kind, episode.begin, episode.end, describe_episode(episode, report.period))
             for episode in episodes]
    return tag("tr", tag("td", name_of(operations.tables[row]), *signs), *counts,
               tag("td", sparkline(operations.shown[row], marks), cls="spark"))
