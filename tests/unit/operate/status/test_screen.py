"""The screen of ``status``, and its examples in the runbook. ``DBLAKE_WRITE_DOCS=1`` writes them."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dblake.operate.status.problem import problem
from dblake.operate.status.screen import WIDTH, build_screen

RUNBOOK = Path(__file__).parents[4] / "docs/runbook.md"
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def ago(**units: float) -> str:
    return (NOW - timedelta(**units)).isoformat()


def life(state: str = "followed", reason: str = "", **figures: Any) -> dict[str, Any]:
    return {"state": state, "reason": reason, "rows": None, "changed_at": None, "dumped_at": None} | figures


def stage(position: str, seconds: float, transactions: int | None, size: int | None = None) -> dict[str, Any]:
    return {"position": position, "lag_seconds": seconds, "lag_transactions": transactions, "lag_bytes": size}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "source": "shop",
        "capture": {"host": "db-lake-1", "process": 4711, "since": ago(hours=4), "seen_at": ago(seconds=20),
                    "ended_at": None, "has_caught_up": True, "running": True},
        "stages": {"landing": stage("1/25690112", 0.8, None, 1843), "events": stage("1/25690112", 0.8, 0),
                   "state": stage("1/25680016", 41, 12)},
        "log": {"kept": 16 << 20, "room": 4 << 30, "seconds": None},
        "captured": {}, "dumps": [], "throttle": {}, "log_limits": {}, "check": None, "verifications": [],
        "dead_letters": [], "outputs": [], "problems": [],
    } | changes


def three_tables() -> list[str]:
    late = problem("incomplete", "public.audit_log", "no primary key: rows from before it was followed are missing",
                   "give it a primary key")
    return build_screen(document(
        captured={
            "public.audit_log": life("incomplete", "no primary key", rows=204, changed_at=ago(minutes=3)),
            "public.customers": life(rows=1_203_441, changed_at=ago(seconds=41), dumped_at=ago(hours=3)),
            "public.orders_of_all_regions_and_years": life("pending", rows=80_000, changed_at=ago(seconds=41)),
        },
        dumps=[
            {"id": "20261123-115000-123-ab12", "table": "public.orders_of_all_regions_and_years", "state": "running",
             "rows": 80_000, "rows_expected": 2_000_000, "rows_per_second": 13_333.3, "seconds_left": 144.0},
            {"id": "20261123-085000-123-cd34", "table": "public.customers", "state": "done", "rows": 1, "chunks": 1},
        ],
        check={"checked_at": ago(minutes=35), "expectations": 45, "failed": []}, problems=[late],
    ), NOW)


def thousand_tables() -> list[str]:
    lives = {f"public.t{number:04}": life(rows=number) for number in range(1, 999)}
    lives["public.t0700"] = life("suspended", "row_security", rows=12, changed_at=ago(days=3), dumped_at=ago(days=90))
    lives["sales.new"] = life("pending", "it is new")
    lives["sales.old"] = life("removed", "not in the database")
    suspended = problem("suspended", "public.t0700", "row_security: policies hide rows from the capture role",
                        "run preflight, which prints the statement that corrects it")
    stopped = problem("late", None, "landing lags by 1800 s: capture does not run", "run capture")
    return build_screen(document(
        captured=lives, problems=[stopped, suspended],
        capture={"host": "db-lake-1", "process": 4711, "since": ago(hours=4), "seen_at": ago(minutes=30),
                 "ended_at": ago(minutes=30), "has_caught_up": True, "running": False},
        stages={"landing": stage("1/25690112", 1800, None, 90_000_000), "events": stage("1/25690112", 1800, 0),
                "state": stage("1/25690112", 1800, 0)},
    ), NOW)


@pytest.mark.parametrize(("name", "lines"), [("three", three_tables()), ("thousand", thousand_tables())])
def test_screen_in_runbook_is_the_generated_one(name: str, lines: list[str]) -> None:
    text, block = RUNBOOK.read_text(encoding="utf-8"), "\n".join(lines)
    begin, end = f"<!-- screen of {name} tables -->\n```\n", "\n```\n"
    assert begin in text
    if os.environ.get("DBLAKE_WRITE_DOCS"):
        pattern = re.escape(begin) + r"(?:.*?)" + re.escape(end)
        RUNBOOK.write_text(re.sub(pattern, lambda _: begin + block + end, text, flags=re.DOTALL), encoding="utf-8")
    assert begin + block + end in RUNBOOK.read_text(encoding="utf-8")
    assert max(map(len, lines)) <= WIDTH


def test_screen_cuts_no_name_id_or_next_step() -> None:
    table = 'public."' + "x" * 60 + '"'
    dump_id = "20261123-115000-123-ab12"
    dump = {"id": dump_id, "table": table, "state": "queued", "rows": 0, "rows_expected": None,
            "rows_per_second": None, "seconds_left": None}
    found = problem("dump_failed", table, "the server cannot read it", f"dump start --table '{table}'")
    lines = build_screen(document(captured={table: life()}, dumps=[dump], problems=[found]), NOW)
    assert sum(table in line for line in lines) == 4
    assert any(dump_id in line for line in lines)


def test_screen_of_many_tables_lists_them_on_request() -> None:
    lives = {f"public.t{number:04}": life() for number in range(1000)}
    assert len(build_screen(document(captured=lives), NOW)) < 20
    assert sum("public.t" in line for line in build_screen(document(captured=lives), NOW, all_tables=True)) == 1000


def test_screen_without_anything_is_short() -> None:
    empty = {"position": None, "lag_seconds": None, "lag_bytes": None, "lag_transactions": None}
    nothing = document(capture=None, log={"kept": None, "room": None, "seconds": None},
                       stages={"landing": empty, "events": empty, "state": empty})
    assert build_screen(nothing, NOW) == [
        "source shop", "  capture   has never run", "  landing   empty", "  events    empty", "  state     empty",
        "  log       how much the database keeps is unknown", "", "no open problems",
    ]


@pytest.mark.parametrize(("limits", "text"), [
    ({"throttle": {"share": 0.25}}, "dumps are limited to share 0.25"),
    ({"log_limits": {"mb_per_second": 5.0}}, "the log is read at 5.0 MB/s at most; `capture throttle --off` ends"),
])
def test_screen_names_throttle_in_force(limits: dict[str, Any], text: str) -> None:
    (line,) = [line for line in build_screen(document(**limits), NOW) if "throttle" in line]
    assert text in line


def test_screen_shows_outputs_with_lag_and_error() -> None:
    entry = {"name": "bus", "state": "running", "lag_seconds": 0.0, "lag_bytes": 0, "rate": 52.4, "last_error": None,
             "failing_since": None}
    stuck = entry | {"name": "hook", "state": "retrying", "lag_seconds": 245.0, "lag_bytes": 3 << 20, "rate": 0.0,
                     "last_error": "output hook: http://h:1: connection refused", "failing_since": ago(minutes=4)}
    new = entry | {"name": "new", "state": "never_run", "lag_seconds": None, "lag_bytes": None, "rate": None}
    lines = build_screen(document(outputs=[entry, stuck, new]), NOW)
    assert lines[lines.index("outputs") + 1 :][:4] == [
        "  bus: running, up to date, 52 events a second",
        "  hook: retrying, 4 min and 3.0 MiB behind",
        "    output hook: http://h:1: connection refused",
        "  new: never run",
    ]


def test_screen_counts_dead_letters_by_output() -> None:
    letters = [{"output": "search", "count": 1204, "newest_at": ago(minutes=5)}]
    lines = build_screen(document(dead_letters=letters), NOW)
    assert lines[lines.index("dead letters") + 1] == "  search: 1,204, the newest 5 min ago"
