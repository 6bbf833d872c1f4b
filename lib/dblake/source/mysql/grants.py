"""What an account may do, read from ``SHOW GRANTS``: the one list that every account may see of itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE )?(\*|`(?:[^`]|``)+`)\.(\*|`(?:[^`]|``)+`) TO ")
_ROLE = re.compile(r"GRANT ((?:`(?:[^`]|``)+`(?:@`(?:[^`]|``)*`)?(?:,\s*)?)+) TO ")
#: Beyond the name the list uses: other names of the privilege, and those that take it in.
_TAKES_IN = {
    "REPLICATION SLAVE": {"REPLICATION REPLICA"},
    "REPLICATION CLIENT": {"BINLOG MONITOR", "SUPER"},
}


class Grants:
    """Privileges by the level they are granted on. Column privileges count for nothing."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._levels: list[tuple[str, str, set[str]]] = []
        self.roles: list[str] = []
        for line in lines:
            if match := _GRANT.match(line):
                granted, schema, table = match.groups()
                privileges = {p.strip() for p in granted.split(",") if "(" not in p and ")" not in p}
                self._levels.append((_unquoted(schema), _unquoted(table), privileges))
            elif match := _ROLE.match(line):
                self.roles += [part.strip() for part in match[1].split(",")]

    def add(self, other: Grants) -> None:
        """Takes in what a role may do."""
        self._levels += other._levels

    def has(self, privilege: str, schema: str = "", table: str = "") -> bool:
        """True if the privilege is held on the table, on its schema or everywhere; without names, everywhere."""
        enough = {privilege, "ALL PRIVILEGES", "ALL"} | _TAKES_IN.get(privilege, set())
        return any(
            enough & privileges
            and (level_schema == "*" or (schema and _like(level_schema, schema, exact=level_table != "*")))
            and level_table in ("*", table)
            for level_schema, level_table, privileges in self._levels
        )


def _unquoted(name: str) -> str:
    return name if name == "*" else name[1:-1].replace("``", "`")


def _like(pattern: str, schema: str, *, exact: bool) -> bool:
    """Names of schemas are patterns in grants on whole schemas: % and _ stand for others unless escaped."""
    if exact:
        return pattern == schema
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(regex, schema, re.DOTALL) is not None
