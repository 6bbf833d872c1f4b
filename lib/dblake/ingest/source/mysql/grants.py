"""An account's privileges, parsed from ``SHOW GRANTS``: the one list that every account may read of itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE |PROCEDURE )?(\*|`(?:[^`]|``)+`)\.(\*|`(?:[^`]|``)+`) TO ")
_ROLE = re.compile(r"GRANT ((?:`(?:[^`]|``)+`(?:@`(?:[^`]|``)*`)?(?:,\s*)?)+) TO ")
_IMPLIED_BY = {
    "REPLICATION SLAVE": {"REPLICATION REPLICA"},
    "REPLICATION CLIENT": {"BINLOG MONITOR", "SUPER"},
}
"""Other names of a privilege, and privileges that include it."""


class Grants:
    """Privileges by the level they are granted on; a procedure's are a table's. Column privileges are ignored."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._levels: list[tuple[str, str, set[str]]] = []
        self.roles: list[str] = []
        for line in lines:
            if match := _GRANT.match(line):
                granted, schema, table = match.groups()
                privileges = {p.strip() for p in granted.split(",") if "(" not in p and ")" not in p}
                self._levels.append((_unquote(schema), _unquote(table), privileges))
            elif match := _ROLE.match(line):
                self.roles += [part.strip() for part in match[1].split(",")]

    def add(self, other: Grants) -> None:
        """Add a role's privileges."""
        self._levels += other._levels

    def has(self, privilege: str, schema: str = "", table: str = "") -> bool:
        """Return True if the privilege is granted on the table, its schema or globally; without names, globally."""
        sufficient = {privilege, "ALL PRIVILEGES", "ALL"} | _IMPLIED_BY.get(privilege, set())
        return any(
            sufficient & privileges
            and (level_schema == "*" or (schema and _matches(level_schema, schema, exact=level_table != "*")))
            and level_table in ("*", table)
            for level_schema, level_table, privileges in self._levels
        )


def _unquote(name: str) -> str:
    return name if name == "*" else name[1:-1].replace("``", "`")


def _matches(pattern: str, schema: str, *, exact: bool) -> bool:
    """Return True if a grant's schema name covers a schema; in grants on whole schemas % and _ are wildcards."""
    if exact:
        return pattern == schema
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(regex, schema, re.DOTALL) is not None
