"""The GTIDs that the log contains up to a position, as the server's own sets spell them.

Part of the resume token, so that an operator sees it; capture resumes by file and offset. MySQL's sets are
mysql-replication's ``GtidSet``; MariaDB keeps the last GTID of each replication domain, as ``gtid_binlog_pos`` does.
"""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

from pymysqlreplication.gtid import Gtid as LibraryGtid
from pymysqlreplication.gtid import GtidSet

Gtid = tuple[Any, Any, int]
"""One transaction's GTID; each class below defines its fields."""


class ExecutedGtids(Protocol):
    """A set of GTIDs that grows with the log."""

    def add(self, gtid: Gtid) -> None:
        """Add a transaction's GTID; one that is in the set already changes nothing."""

    def __str__(self) -> str:
        """Return the set in the server's notation."""


class MysqlGtids:
    """MySQL's set, ``uuid:1-5:7:tag:1-3, …``. A GTID is ``(uuid as 32 hex digits, tag or "", number)``.

    One ``GtidSet`` for each tag: the library knows no tags (MySQL 8.3) and rejects a number that is in the set. As it
    copies a set for every GTID that it merges (30 microseconds), consecutive numbers are merged as one interval.

    >>> executed = MysqlGtids("7b0eb4a4-0000-0000-0000-000000000001:1-3")
    >>> executed.add(("7b0eb4a4000000000000000000000001", "", 4))
    >>> str(executed)
    '7b0eb4a4-0000-0000-0000-000000000001:1-4'
    """

    def __init__(self, text: str) -> None:
        self._by_tag: dict[str, Any] = {}
        self._pending: dict[tuple[str, str], tuple[int, int]] = {}
        """Consecutive numbers by server and tag that are not merged yet: the first, and the one behind the last."""
        for part in filter(None, "".join(text.split()).split(",")):
            server, *words = part.split(":")
            tag = ""
            for word in words:
                if word[0].isdigit():
                    self._merge(str(UUID(server)), tag, LibraryGtid.parse_interval(word))
                else:
                    tag = word

    def add(self, gtid: Gtid) -> None:
        """Add a transaction's GTID."""
        server, tag, number = gtid
        first, behind = self._pending.get((server, tag), (number, number))
        if number != behind:
            self._merge(str(UUID(server)), tag, (first, behind))
            first = number
        self._pending[server, tag] = first, number + 1

    def _merge(self, server: str, tag: str, interval: tuple[int, int]) -> None:
        executed = self._by_tag.setdefault(tag, GtidSet(None))
        added = LibraryGtid("", sid=server, intervals=[interval])
        for present in executed.gtids:
            added -= present
        if added.intervals:
            executed.merge_gtid(added)

    def __str__(self) -> str:
        for (server, tag), interval in self._pending.items():
            self._merge(str(UUID(server)), tag, interval)
        self._pending.clear()
        by_server: dict[str, list[str]] = {}
        for tag, executed in sorted(self._by_tag.items()):
            for gtid in executed.gtids:
                server, _, intervals = str(gtid).partition(":")
                by_server.setdefault(server, []).extend([tag, intervals] if tag else [intervals])
        return ",".join(":".join([server, *words]) for server, words in sorted(by_server.items()))


class MariadbGtids:
    """MariaDB's position, ``domain-server-sequence, …``. A GTID is ``(domain, server, sequence)``.

    The library has no set for these: its ``GtidSet`` parses UUIDs only.

    >>> executed = MariadbGtids("0-1-7,3-1-1")
    >>> executed.add((0, 2, 8))
    >>> str(executed)
    '0-2-8,3-1-1'
    """

    def __init__(self, text: str) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        for part in filter(None, text.split(",")):
            domain, server, sequence = (int(number) for number in part.split("-"))
            self._last[domain] = (server, sequence)

    def add(self, gtid: Gtid) -> None:
        """Make a GTID the last of its domain."""
        domain, server, sequence = gtid
        self._last[domain] = (server, sequence)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{seq}" for domain, (server, seq) in sorted(self._last.items()))


def executed_gtids(flavour: str, text: str) -> ExecutedGtids:
    """Return the set that ``text`` spells in the notation of a server of this flavour."""
    return MariadbGtids(text) if flavour == "mariadb" else MysqlGtids(text)
