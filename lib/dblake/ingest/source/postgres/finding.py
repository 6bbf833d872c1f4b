"""The result of one prerequisite before its statement is quoted for a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from psycopg2 import sql
from psycopg2.extensions import cursor

from dblake.base.core.names import abbreviated
from dblake.base.core.source.prerequisites import Affects, Check


@dataclass(frozen=True, slots=True)
class Finding:
    """A check whose fix may still be a composed statement; see Check. A fix without a detail is dropped."""

    name: str
    ok: bool = True
    detail: str = ""
    fix: sql.Composable | str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    affects: Affects = "source"

    @classmethod
    def of_names(
        cls, name: str, cause: str, names: Sequence[str], fix: sql.Composable | str, *,
        tables: Sequence[str] | None = None, affects: Literal["log", "dump"] = "log",
    ) -> Finding:
        """Return a finding about tables that is met if there are no names, and else lists them after ``cause``.

        ``names`` are the tables' own unless ``tables`` is given.
        """
        reason = f"{name}: {cause.strip(': ')}"
        return cls(
            name, ok=not names, detail=f"{cause}{abbreviated(names)}" if names else "", fix=fix,
            tables=dict.fromkeys(names if tables is None else tables, reason), affects=affects,
        )

    def check(self, cur: cursor) -> Check:
        """Return the check, its statement quoted for the connection of ``cur``."""
        fix = self.fix if isinstance(self.fix, str) else self.fix.as_string(cur)
        check = Check(self.name, self.ok, self.detail, fix if self.detail else "")
        return check if self.ok and not self.tables else replace(check, tables=self.tables, affects=self.affects)
