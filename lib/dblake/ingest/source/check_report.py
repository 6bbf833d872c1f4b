"""The checks of ``preflight`` as text: what is not in order first and whole, and what will happen to each table.

Place: behind ``Source.preflight``; the job prints it. Guarantee: a statement has lines of its own, neither cut nor
wrapped, so that it can be copied.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Check

_WIDTH = 80
_MAX_NAMES = 20
_SQL = re.compile(r"(ALTER|CREATE|DROP|FLUSH|GRANT|INSERT|REVOKE|SELECT|SET|UPDATE|RENAME)\b")


def build_report(checks: Sequence[Check], tables: Sequence[TableSchema]) -> list[str]:
    """Return the lines: unmet checks with what corrects them, notes, the tables, and how many checks are met.

    ``tables`` are those that the patterns match; none if the source cannot be reached.
    """
    lines = []
    for check in checks:
        if not check.ok:
            mark = "✗" if check.affects == "source" else "!"
            lines += [f"{mark} {check.check}: {check.detail}", *_indented(check.fix), ""]
    notes = [check for check in checks if check.ok and check.detail]
    for check in notes:
        lines += [f"- {check.check}: {check.detail}", *_indented(check.fix)]
    lines += [""] if notes else []
    suspended = _find_suspended(checks) if tables else {}
    lines += list(_describe_tables(suspended, tables))
    count = f"✓ {sum(check.ok for check in checks)} of {len(checks)} checks are met"
    return [*lines, count + (f"; suspended tables: {len(suspended):,}" if suspended else "")]


def build_script(checks: Sequence[Check]) -> list[str]:
    """Return only the statements that correct what is not met, and comments for what needs more than a statement."""
    lines = []
    for check in checks:
        if check.ok or not check.fix:
            continue
        is_sql = _SQL.match(check.fix) is not None
        lines.append(f"-- {check.check}: {' '.join(check.detail.split())}")
        lines += check.fix.splitlines() if is_sql else [f"-- {line}" for line in check.fix.splitlines()]
    return lines


def _find_suspended(checks: Sequence[Check]) -> dict[str, str]:
    """Return the check that suspends each table; as in capture, also a check that is met names some."""
    suspended: dict[str, str] = {}
    for check in checks:
        for table in check.tables if check.affects != "followed" else ():
            suspended.setdefault(table, check.check)
    return suspended


def _describe_tables(unfit: Mapping[str, str], tables: Sequence[TableSchema]) -> Iterator[str]:
    if not tables:
        return
    groups: Mapping[str, list[str]] = {
        "suspended": [f"{table} ({check})" for table, check in sorted(unfit.items())],
        "followed, not dumped: no primary key":
            [each.table for each in tables if each.table not in unfit and not each.primary_key],
        "followed and dumped": [each.table for each in tables if each.table not in unfit and each.primary_key],
    }
    yield f"tables that source.tables matches: {len({each.table for each in tables} | unfit.keys()):,}"
    for group, names in groups.items():
        if names:
            more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
            yield f"  {len(names):,} {group}"
            yield from textwrap.wrap(
                ", ".join(names[:_MAX_NAMES]) + more, _WIDTH, initial_indent="    ", subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )
    yield ""


def _indented(fix: str) -> list[str]:
    return [f"    {line}" for line in fix.splitlines()]
