"""Prerequisites that every database shares: table patterns match, and state tables can hold the columns.

``unfit_tables`` is capture's use of checks: it refuses to start while one of the whole source is not met.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from dblake.base.core.errors import AWAIT_FAILOVER, NoTables, PrerequisitesNotMet, SourceError
from dblake.base.core.names import TableFilter, abbreviated, qualified
from dblake.base.core.schema import TableSchema
from dblake.base.core.source import Check, UnfitTable

_RESERVED = frozenset({
    "_key", "_incarnation", "_lsn", "_seq", "_deleted", "_lossy", "_missing", "_unknown", "_moved_from",
})
"""Columns of state tables, and of what is merged into them."""
_TABLES = "tables"
"""The check that the patterns match a table."""
_OF_REPLICAS = frozenset({"read_only", "standby"})
"""Checks that a primary does not meet either, for the seconds in which it hands over to another server."""
_NEXT_STEP = "run preflight, which prints the statement that corrects each"
CLASH = "a state table already has a column of this name, ignoring case: "
"""The detail of the check ``column_names``, before the columns."""


def require_met(source: str, checks: Iterable[Check]) -> None:
    """Raise PrerequisitesNotMet with all checks that are not met, if there are any."""
    unmet = [check for check in checks if not check.ok]
    if unmet:
        raise PrerequisitesNotMet(
            f"source {source}: " + "; ".join(f"{check.check}: {check.detail}" for check in unmet),
            next_step=_NEXT_STEP,
        )


def unfit_tables(source: str, checks: Iterable[Check]) -> dict[str, UnfitTable]:
    """Return the tables that checks name, with the first reason; what concerns the log goes first.

    Raises PrerequisitesNotMet with all unmet checks if one of them concerns the whole source. If that is only that no
    table exists it raises NoTables, and SourceError if the server cannot be reached or accepts no writes.
    """
    checks = list(checks)
    unreachable = next((check for check in checks if check.check == "connect" and not check.ok), None)
    if unreachable:
        raise SourceError(f"source {source}: {unreachable.detail}", next_step=unreachable.fix)
    unmet = [check for check in checks if not check.ok and check.affects == "source"]
    if [check.check for check in unmet] == [_TABLES]:
        raise NoTables(f"source {source}: {_TABLES}: {unmet[0].detail}", next_step=_NEXT_STEP)
    if unmet and {check.check for check in unmet} <= _OF_REPLICAS:
        raise SourceError(f"source {source}: {unmet[0].detail}", next_step=AWAIT_FAILOVER)
    if unmet:
        require_met(source, checks)
    unfit: dict[str, UnfitTable] = {}
    for check in sorted(checks, key=lambda c: c.affects == "dump"):
        for table, reason in check.tables.items():
            unfit.setdefault(table, UnfitTable(
                reason, has_log=check.affects == "dump", is_ignored_if_new=check.affects == "followed"
            ))
    return unfit


def patterns_check(patterns: Sequence[str], names: Sequence[tuple[str, str]], *, has_tables: bool) -> Check:
    """Check that each pattern matches one of the tables ``names``, as ``(schema, table)``.

    ``has_tables`` is True if all patterns together include a table. An exclusion without effect is only reported.
    """

    def is_unused(pattern: str) -> bool:
        return not any(TableFilter([pattern.removeprefix("!")])(s, t) for s, t in names)

    unmatched = [p for p in patterns if not p.startswith("!") and is_unused(p)]
    if unmatched:
        existing = [qualified(s, t) for s, t in names]
        similar = sorted({n for p in unmatched for n in difflib.get_close_matches(p, existing, n=2, cutoff=0.8)})
        return Check(
            _TABLES, False, f"no table matches {abbreviated(unmatched)}",
            "correct source.tables, or create the tables"
            + (f"; similar names: {abbreviated(similar)}" if similar else ""),
            affects="nothing" if has_tables else "source",
        )
    if not has_tables:
        return Check(_TABLES, False, "the patterns exclude every table", "correct source.tables")
    unused_exclusions = [p for p in patterns if p.startswith("!") and is_unused(p)]
    return Check(
        _TABLES, True, f"no table matches the exclusion {abbreviated(unused_exclusions)}" if unused_exclusions else ""
    )


def clashing_columns(table: TableSchema) -> list[str]:
    """Return the columns whose names clash, ignoring case, with a state table's own columns or with earlier ones."""
    clashing = []
    seen: set[str] = set()
    for name in table.names:
        if name.lower() in _RESERVED or name.lower() in seen:
            clashing.append(name)
        seen.add(name.lower())
    return clashing


def free_name(column: str) -> str:
    """Return a name to rename a clashing column to."""
    return f"{column.strip('_')}_2"
