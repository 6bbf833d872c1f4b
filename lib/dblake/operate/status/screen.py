"""The screen of ``status``: the document as lines of text, for a terminal of 80 columns and for a log.

Place: behind ``report``. Guarantee: no id, name or next step is cut; what is longer than its column has a line of its
own. Sections are in the order in which an operator needs them: does capture run, how far is each stage, which tables
are not followed, what has to be done.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dblake.operate.status.quantities import format_duration, format_size

WIDTH = 80
_LABEL, _NAME = 10, 32
_SHOWN_TABLES = 12
_WORK = {"landing": "to land", "events": "to reconcile", "state": "to fold"}


def build_screen(document: Mapping[str, Any], now: datetime, *, all_tables: bool = False) -> list[str]:
    """Return the lines; without ``all_tables`` only tables that are not followed if there are many."""
    lines = [f"source {document['source']}", *_stages(document, now)]
    lines += _section("tables", _tables(document, now, all_tables=all_tables))
    lines += _section("dumps", _dumps(document))
    lines += _section("verified", _verifications(document, now))
    lines += _section("outputs", _outputs(document))
    lines += _section("dead letters", _dead_letters(document, now))
    problems = list(_problems(document))
    lines += _section(f"problems: {len(document['problems'])}", problems) if problems else ["", "no open problems"]
    return lines


def _section(title: str, lines: Iterator[str] | Sequence[str]) -> list[str]:
    found = list(lines)
    return ["", title, *found] if found else []


def _labeled(label: str, text: str) -> list[str]:
    indent = " " * (_LABEL + 2)
    wrapped = textwrap.wrap(text, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {label:<{_LABEL}}{wrapped[0]}", *(indent + line for line in wrapped[1:])]


def _stages(document: Mapping[str, Any], now: datetime) -> Iterator[str]:
    yield from _labeled("capture", _describe_capture(document["capture"], now))
    for name, stage in document["stages"].items():
        yield from _labeled(name, _describe_stage(name, stage))
    if log := document["log"]:
        yield from _labeled("log", _describe_log(log))
    if check := document["check"]:
        failed, total = len(check["failed"]), check["expectations"]
        result = f"{failed} of {total:,} expectations failed" if failed else f"all {total:,} expectations passed"
        yield from _labeled("check", f"{result}, {_ago(check['checked_at'], now)}")
    if rate := document["log_limits"].get("mb_per_second"):
        yield from _labeled("throttle", f"the log is read at {rate} MB/s at most; `capture throttle --off` ends that")
    if document["throttle"]:
        limits = ", ".join(f"{name} {value}" for name, value in document["throttle"].items())
        yield from _labeled("throttle", f"dumps are limited to {limits}; `dump throttle --off` ends that")


def _describe_capture(capture: Mapping[str, Any] | None, now: datetime) -> str:
    if capture is None:
        return "has never run"
    place = f"on {capture['host']}, process {capture['process']}"
    if not capture["running"]:
        return f"does not run; last seen {_ago(capture['ended_at'] or capture['seen_at'], now)} {place}"
    reached = "has caught up" if capture["has_caught_up"] else "has not caught up yet"
    return f"runs {place}, since {_time(capture['since'])}; {reached}"


def _describe_stage(name: str, stage: Mapping[str, Any]) -> str:
    if stage["position"] is None:
        return "empty"
    parts = []
    if stage["lag_seconds"] is not None:
        parts.append(f"newest change {format_duration(stage['lag_seconds'])} ago")
    if stage["lag_transactions"]:
        parts.append(f"{stage['lag_transactions']:,} transactions {_WORK[name]}")
    elif stage["lag_bytes"] and stage["lag_transactions"] is None:
        parts.append(f"{format_size(stage['lag_bytes'])} {_WORK[name]}")
    elif stage["lag_transactions"] == 0:
        parts.append("up to date")
    return f"{stage['position']:<22} {', '.join(parts)}".rstrip()


def _describe_log(log: Mapping[str, Any]) -> str:
    parts = []
    if log["kept"] is not None:
        parts.append(f"the database keeps {format_size(log['kept'])}")
    if log["room"] is not None:
        parts.append(f"{format_size(log['room'])} more may be written before log that has not landed is lost")
    if log["seconds"] is not None:
        parts.append(f"kept for {format_duration(log['seconds'])}")
    return "; ".join(parts) or "how much the database keeps is unknown"


def _tables(document: Mapping[str, Any], now: datetime, *, all_tables: bool) -> Iterator[str]:
    captured: Mapping[str, Mapping[str, Any]] = document["captured"]
    if not captured:
        return
    states = Counter(life["state"] for life in captured.values())
    yield "  " + ", ".join(f"{count:,} {state}" for state, count in sorted(states.items(), key=_by_importance))
    shown = list(captured)
    if not all_tables and len(captured) > _SHOWN_TABLES:
        shown = [name for name, life in captured.items() if life["state"] not in ("followed", "removed")]
    if shown:
        yield f"  {'name':<{_NAME}} {'state':<10} {'rows':>11} {'changed':>9} {'dumped':>9}"
    for name in shown:
        life = captured[name]
        cells = (f"{life['state']:<10} {_number(life['rows']):>11} {_age(life['changed_at'], now):>9} "
                 f"{_age(life['dumped_at'], now):>9}")
        if len(name) <= _NAME:
            yield f"  {name:<{_NAME}} {cells}".rstrip()
        else:
            yield f"  {name}"
            yield f"  {'':<{_NAME}} {cells}".rstrip()
    if len(shown) < len(captured):
        yield f"  {len(captured) - len(shown):,} tables are not shown; `status --tables` lists all"


def _by_importance(item: tuple[str, int]) -> tuple[int, str]:
    order = ("suspended", "incomplete", "pending", "followed", "removed")
    return order.index(item[0]), item[0]


def _dumps(document: Mapping[str, Any]) -> Iterator[str]:
    ended = Counter(dump["state"] for dump in document["dumps"])
    unfinished = [dump for dump in document["dumps"] if dump["state"] in ("queued", "running", "paused")]
    for dump in unfinished[:_SHOWN_TABLES]:
        yield f"  {dump['id']} {dump['table']}"
        of = "" if dump["rows_expected"] is None else f" of about {dump['rows_expected']:,}"
        parts = [f"{dump['state']}: {dump['rows']:,}{of} rows"]
        if dump["rows_per_second"] is not None:
            parts.append(f"{dump['rows_per_second']:,.0f} a second")
        if dump["seconds_left"] is not None:
            parts.append(f"{format_duration(dump['seconds_left'])} left")
        yield f"    {', '.join(parts)}"
    more = len(unfinished) - _SHOWN_TABLES
    if more > 0:
        yield f"  {more:,} more are not done"
    rest = ", ".join(f"{ended[state]:,} {state}" for state in ("done", "failed", "cancelled") if ended[state])
    if rest:
        yield f"  {rest}; `dump status` lists them"


def _verifications(document: Mapping[str, Any], now: datetime) -> Iterator[str]:
    entries = document["verifications"]
    for entry in entries[:_SHOWN_TABLES]:
        sample = " of a sample" if entry["sampled"] else ""
        different = f", {entry['differences']:,} rows differ" if entry["differences"] else ""
        yield f"  {entry['table']}"
        yield f"    {_ago(entry['verified_at'], now)}: {entry['coverage']:.1%}{sample} of the rows{different}"
    if len(entries) > _SHOWN_TABLES:
        yield f"  and {len(entries) - _SHOWN_TABLES:,} more tables"


def _outputs(document: Mapping[str, Any]) -> Iterator[str]:
    for one in document["outputs"]:
        yield f"  {one['name']}: {one['state'].replace('_', ' ')}{describe_output(one)}"
        if one["last_error"] and one["failing_since"]:
            yield from textwrap.wrap(
                one["last_error"], WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
                break_on_hyphens=False,
            )


def describe_output(output: Mapping[str, Any]) -> str:
    """Return what an output lacks and how fast it is, as the end of a sentence; empty if nothing is known."""
    parts = []
    if output["lag_seconds"] is not None:
        size = format_size(output["lag_bytes"])
        parts.append(f"{format_duration(output['lag_seconds'])} and {size} behind" if output["lag_bytes"]
                     else "up to date")
    if output["rate"]:
        parts.append(f"{output['rate']:,.0f} events a second")
    return "".join(f", {part}" for part in parts)


def _dead_letters(document: Mapping[str, Any], now: datetime) -> Iterator[str]:
    for entry in document["dead_letters"]:
        yield f"  {entry['output']}: {entry['count']:,}, the newest {_ago(entry['newest_at'], now)}"


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    for problem in document["problems"]:
        table = f" {problem['table']}" if problem["table"] else ""
        yield f"  {problem['code']}{table}"
        for text in (problem["detail"], f"Next: {problem['next']}"):
            yield from textwrap.wrap(
                text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
                break_on_hyphens=False,
            )


def _time(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _ago(text: str, now: datetime) -> str:
    return f"{_age(text, now)} ago"


def _age(text: str | None, now: datetime) -> str:
    return "" if text is None else format_duration(max((now - datetime.fromisoformat(text)).total_seconds(), 0.0))


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
