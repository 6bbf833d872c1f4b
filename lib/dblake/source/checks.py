"""What preflight says of any database: whether the patterns mean tables, and whether state can hold their columns.

And what capture makes of it: ``require_met`` refuses to start over checks that are not met.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from dblake.core.errors import PrerequisitesNotMet
from dblake.core.names import TableFilter, abbreviated, qualified
from dblake.core.schema import TableSchema
from dblake.core.source import Check

#: Column names of state tables' own, and of what is merged into them.
_RESERVED = frozenset({"_key", "_incarnation", "_lsn", "_seq", "_deleted", "_lossy", "_missing", "_unknown"})
CLASH = "a state table cannot hold a second column by this name, in whatever case: "


def require_met(source: str, checks: Iterable[Check]) -> None:
    """Raises PrerequisitesNotMet with all of the checks that are not met."""
    broken = [check for check in checks if not check.ok]
    if broken:
        raise PrerequisitesNotMet(
            f"source {source}: " + "; ".join(f"{check.check}: {check.detail}" for check in broken),
            next_step="run preflight, which has the statement that mends each",
        )


def patterns_check(patterns: Sequence[str], names: Sequence[tuple[str, str]], *, found: bool) -> Check:
    """Whether each pattern means something among the tables there are; ``found``: whether all together do."""

    def idle(pattern: str) -> bool:
        return not any(TableFilter([pattern.removeprefix("!")])(s, t) for s, t in names)

    missed = [p for p in patterns if not p.startswith("!") and idle(p)]
    if missed:
        everything = [qualified(s, t) for s, t in names]
        near = sorted({n for p in missed for n in difflib.get_close_matches(p, everything, n=2, cutoff=0.8)})
        return Check(
            "tables", False, f"no table matches {abbreviated(missed)}",
            "correct source.tables, or create the tables" + (f"; there is {abbreviated(near)}" if near else ""),
        )
    if not found:
        return Check("tables", False, "the patterns leave no table", "correct source.tables")
    in_vain = [p for p in patterns if p.startswith("!") and idle(p)]
    return Check("tables", True, f"nothing to take out for {abbreviated(in_vain)}" if in_vain else "")


def clashing(table: TableSchema) -> list[str]:
    """The columns that a state table cannot hold beside its own and the others."""
    bad = []
    seen: set[str] = set()
    for name in table.names:
        if name.lower() in _RESERVED or name.lower() in seen:
            bad.append(name)
        seen.add(name.lower())
    return bad


def free_name(column: str) -> str:
    """What a clashing column might be called instead."""
    return f"{column.strip('_')}_2"
