"""One prerequisite as preflight finds it, before its statement is spelled for a connection."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.core.source import Check


@dataclass(frozen=True, slots=True)
class Finding:
    """A check whose fix may still be a statement in parts. A fix counts only if there is a detail."""

    name: str
    ok: bool = True
    detail: str = ""
    fix: sql.Composable | str = ""

    def check(self, cur: cursor) -> Check:
        """The check, its statement quoted as the connection wants it."""
        fix = self.fix if isinstance(self.fix, str) else self.fix.as_string(cur)
        return Check(self.name, self.ok, self.detail, fix if self.detail else "")
