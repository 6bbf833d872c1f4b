"""The result of one prerequisite before its statement is quoted for a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.core.names import abbreviated
from dblake.core.source import Check


@dataclass(frozen=True, slots=True)
class Finding:
    """A check whose fix may still be a composed statement. A fix without a detail is dropped."""

    name: str
    ok: bool = True
    detail: str = ""
    fix: sql.Composable | str = ""

    @classmethod
    def of_names(cls, name: str, cause: str, names: Sequence[str], fix: sql.Composable | str) -> Finding:
        """Return a finding that is met if there are no names, and else lists them after ``cause``."""
        return cls(name, ok=not names, detail=f"{cause}{abbreviated(names)}" if names else "", fix=fix)

    def check(self, cur: cursor) -> Check:
        """Return the check, its statement quoted for the connection of ``cur``."""
        fix = self.fix if isinstance(self.fix, str) else self.fix.as_string(cur)
        return Check(self.name, self.ok, self.detail, fix if self.detail else "")
