"""The first screen of the page: is anything wrong, how far is each stage, and what has to be done.

Place: part of ``page``. Shows figures of the document of ``status`` only, in the order in which an operator needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dblake.ingest.capture.dump_task import DumpState
from dblake.operate.report.build import Report
from dblake.operate.report.charts import bar
from dblake.operate.report.markup import Html, join, name_of, tag
from dblake.operate.report.scales import format_count
from dblake.operate.status.quantities import format_duration, format_size
from dblake.operate.status.screen import describe_output

_SHOWN_PER_CODE = 20
_MINOR = frozenset({"late", "output_late", "unverified", "pending", "rewritten", "source_unreachable"})
"""Problems that often end without an operator; the others are shown as severe."""
_WORK = {"landing": "to land", "events": "to reconcile", "state": "to fold"}
_LIVES = ("suspended", "incomplete", "pending", "followed", "removed")


def build_verdict(report: Report) -> Html:
    """Return one sentence, with its color: how many problems are open, and how many tables are abnormal."""
    problems = report.document["problems"]
    severe = sum(problem["code"] not in _MINOR for problem in problems)
    kind = "severe" if severe else "minor" if problems else "good"
    sentence = "No open problems" if not problems else f"{_counted(len(problems), 'open problem')}"
    abnormal = len(report.episodes)
    details = []
    if problems:
        codes = Counter(problem["code"] for problem in problems)
        details.append(", ".join(f"{count} × {code}" if count > 1 else code for code, count in codes.most_common(6)))
    if abnormal:
        details.append(f"{_counted(abnormal, 'table')} with drops or spikes")
    elif report.operations.tables:
        details.append("no table with drops or spikes")
    return tag("div", tag("strong", sentence), tag("span", " · ".join(details)) if details else None,
               cls=f"verdict {kind}", role="status")


def build_stages(report: Report) -> Html:
    """Return capture, landing, events and state side by side, each with its lag."""
    document = report.document
    cards = [_capture_card(document["capture"], report.made_at)]
    for name, stage in document["stages"].items():
        cards.append(_stage_card(name, stage, report.limits.late_seconds))
    return tag("ol", *cards, cls="stages")


def _capture_card(capture: Mapping[str, Any] | None, now: datetime) -> Html:
    if capture is None:
        return _card("capture", "none", "never ran", "run capture")
    if not capture["running"]:
        seen = datetime.fromisoformat(capture["ended_at"] or capture["seen_at"])
        ago = format_duration(max((now - seen).total_seconds(), 0))
        return _card("capture", "off", "not running", f"ended {ago} ago on {capture['host']}")
    since = datetime.fromisoformat(capture["since"]).astimezone(UTC)
    caught_up = "caught up" if capture["has_caught_up"] else "catching up"
    return _card("capture", "good", "running", f"{caught_up}; on {capture['host']} since {since:%b %d %H:%M}")


def _stage_card(name: str, stage: Mapping[str, Any], late_seconds: float) -> Html:
    if stage["position"] is None:
        return _card(name, "none", "empty", "nothing yet")
    lag, pending = stage["lag_seconds"], stage["lag_transactions"]
    if pending:
        text = f"{_counted(pending, 'transaction')} {_WORK[name]}"
    elif pending is None and stage["lag_bytes"]:
        text = f"{format_size(stage['lag_bytes'])} {_WORK[name]}"
    else:
        text = "up to date" if pending == 0 else "newest change landed"
    is_late = lag is not None and lag > late_seconds and pending != 0
    return _card(name, "late" if is_late else "good", "—" if lag is None else f"{format_duration(lag)} old", text)


def _card(title: str, kind: str, value: str, text: str) -> Html:
    return tag("li", tag("h3", title), tag("b", value), tag("span", text), cls=f"stage {kind}")


def build_tiles(report: Report) -> Html:
    """Return the figures of the period and of the lake, one tile each; tiles without a figure are left out."""
    return tag("div", *(
        tag("div", tag("h3", title), tag("b", value), extra, tag("span", text), cls=f"tile {kind}".strip())
        for title, value, text, kind, extra in _tiles(report)
    ), cls="tiles")


_Tile = tuple[str, str, str, str, Html | None]


def _tiles(report: Report) -> Iterator[_Tile]:
    document, shown = report.document, report.operations.shown
    total = int(shown.sum())
    minutes = max(report.known_until, 1) * report.period.minutes
    yield "operations", format_count(total), f"{format_count(total / minutes)} a minute", "", None
    lives = Counter(life["state"] for life in document["captured"].values())
    if lives:
        others = ", ".join(f"{lives[state]:,} {state}" for state in _LIVES if lives[state] and state != "followed")
        kind = "late" if lives["suspended"] or lives["incomplete"] else ""
        yield "tables", f"{lives.total() - lives['removed']:,}", others or "all followed", kind, None
    yield from _verified_tile(report)
    dumps = Counter(dump["state"] for dump in document["dumps"])
    active = sum(count for state, count in dumps.items() if not DumpState(state).is_final)
    if dumps:
        text = ", ".join(f"{dumps[state]:,} {state}" for state in map(str, DumpState) if dumps[state])
        yield "dumps", f"{active:,} active" if active else "none active", text, "", None
    if check := document["check"]:
        failed, ago = len(check["failed"]), _ago(check["checked_at"], report.made_at)
        value = f"{failed} failed" if failed else "passed"
        yield "check", value, f"{check['expectations']:,} expectations, {ago}", "late" if failed else "", None
    wrong = {problem["output"] for problem in document["problems"] if "output" in problem}
    for output in document["outputs"]:
        kind = "late" if output["name"] in wrong else ""
        text = describe_output(output).removeprefix(", ") or "nothing known"
        yield f"output {output['name']}", output["state"].replace("_", " "), text, kind, None
    if letters := document["dead_letters"]:
        count = sum(letter["count"] for letter in letters)
        names = ", ".join(f"{letter['output']}: {letter['count']:,}" for letter in letters[:4])
        yield "dead letters", f"{count:,}", names + (" …" if len(letters) > 4 else ""), "late", None
    if (log := document["log"]) and log["room"] is not None:
        yield "log room", format_size(log["room"]), f"{format_size(log['kept'] or 0)} kept by the database", "", None


def _verified_tile(report: Report) -> Iterator[_Tile]:
    entries = report.document["verifications"]
    tables = [name for name, life in report.document["captured"].items() if life["state"] != "removed"]
    if not entries:
        return
    compared = sum(entry["rows_compared"] for entry in entries)
    rows = compared + sum(entry["rows_skipped"] for entry in entries)
    differences = sum(entry["differences"] for entry in entries)
    share = len(entries) / max(len(tables), len(entries))
    text = f"{len(entries):,} of {max(len(tables), len(entries)):,} tables"
    value = f"{differences:,} differ" if differences else f"{compared / rows:.1%}" if rows else "equal"
    text += ", rows that differ" if differences else ", share of rows found equal"
    yield "verified", value, text, "late" if differences else "", bar([("done", share, text)], cls="bar slim")


def build_problems(problems: Sequence[Mapping[str, Any]]) -> Html | None:
    """Return the open problems with their next steps, severe ones first; None without any."""
    if not problems:
        return None
    by_code: dict[str, list[Mapping[str, Any]]] = {}
    for problem in sorted(problems, key=lambda problem: problem["code"] in _MINOR):
        by_code.setdefault(problem["code"], []).append(problem)
    items = []
    for same_code in by_code.values():
        items += [_problem(problem) for problem in same_code[:_SHOWN_PER_CODE]]
        if len(same_code) > _SHOWN_PER_CODE:
            names = [name_of(problem["table"]) for problem in same_code[_SHOWN_PER_CODE:] if problem["table"]]
            items.append(tag("li", tag("details", tag(
                "summary", f"{len(same_code) - _SHOWN_PER_CODE:,} more of {same_code[0]['code']}",
            ), tag("p", *(join(name, " ") for name in names), cls="names")), cls="more"))
    return tag("section", tag("h2", f"Open problems: {len(problems):,}"), tag("ul", *items, cls="problems"),
               id="problems")


def _problem(problem: Mapping[str, Any]) -> Html:
    kind = "minor" if problem["code"] in _MINOR else "severe"
    table = join(" ", name_of(problem["table"])) if problem["table"] else None
    return tag("li", tag("p", tag("span", problem["code"], cls="code"), table), tag("p", problem["detail"]),
               tag("p", "Next: ", tag("code", problem["next"]), cls="next"), cls=kind)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _ago(text: str, now: datetime) -> str:
    return f"{format_duration(max((now - datetime.fromisoformat(text)).total_seconds(), 0))} ago"
