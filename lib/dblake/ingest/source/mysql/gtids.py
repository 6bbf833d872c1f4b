"""The GTIDs that the log contains up to a position, as the server's own sets spell them.

Part of the resume token. On one server capture resumes by file and offset; on its successor, where the set ends
(``continuation``). MySQL's sets are mysql-replication's ``GtidSet``; MariaDB has the last GTID of each replication
domain and server, as ``gtid_binlog_state`` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import sub
from typing import Any, Protocol, Self
from uuid import UUID

from pymysqlreplication.gtid import Gtid as LibraryGtid
from pymysqlreplication.gtid import GtidSet

Gtid = tuple[Any, Any, int]
"""One transaction's GTID; each class below defines its fields."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Transactions that a set lacks: how many, and their GTIDs as the server spells them."""

    count: int
    text: str


class ExecutedGtids(Protocol):
    """A set of GTIDs that grows with the log."""

    def add(self, gtid: Gtid) -> None:
        """Add a transaction's GTID; one that is in the set already changes nothing."""

    def has(self, gtid: Gtid) -> bool:
        """Return True if a transaction's GTID is in the set."""

    def plus(self, other: Self) -> Self:
        """Return the GTIDs of both sets."""

    def minus(self, other: Self) -> Self:
        """Return the GTIDs of this set that are not in another."""

    def absent_from(self, other: Self) -> Absent:
        """Return the transactions of this set that ``other`` lacks."""

    def unplaced_by(self, landed: Self, own_server: int) -> Absent:
        """Return the transactions before a place of a log that ``landed``, which precedes it, does not account for.

        ``own_server`` is the number of the server whose log it is.
        """

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
        self._intervals: dict[tuple[str, str], list[tuple[int, int]]] | None = None
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

    def has(self, gtid: Gtid) -> bool:
        """Return True if a transaction's GTID is in the set."""
        server, tag, number = gtid
        first, behind = self._pending.get((server, tag), (0, 0))
        if first <= number < behind:
            return True
        if self._intervals is None:
            self._intervals = {
                (gtid.sid.replace("-", ""), of_tag): gtid.intervals
                for of_tag, executed in self._by_tag.items() for gtid in executed.gtids
            }
        return any(first <= number < behind for first, behind in self._intervals.get((server, tag), ()))

    def minus(self, other: MysqlGtids) -> MysqlGtids:
        """Return the GTIDs of this set that are not in another."""
        rest = MysqlGtids(str(self))
        other._flush()
        for tag, taken in other._by_tag.items():
            if tag in rest._by_tag:
                left = [reduce(sub, taken.gtids, gtid) for gtid in rest._by_tag[tag].gtids]
                rest._by_tag[tag] = GtidSet([gtid for gtid in left if gtid.intervals])
        return rest

    def plus(self, other: MysqlGtids) -> MysqlGtids:
        """Return the GTIDs of both sets."""
        both = [text for text in (str(self), str(other)) if text]
        return MysqlGtids(",".join(both))

    def absent_from(self, other: MysqlGtids) -> Absent:
        """Return the transactions of this set that ``other`` lacks."""
        rest = self.minus(other)
        gtids = [gtid for executed in rest._by_tag.values() for gtid in executed.gtids]
        return Absent(sum(behind - first for gtid in gtids for first, behind in gtid.intervals), str(rest))

    def unplaced_by(self, landed: MysqlGtids, own_server: int) -> Absent:  # noqa: ARG002 - for any server
        """Return the transactions of this set that are not in ``landed``."""
        return self.absent_from(landed)

    def _merge(self, server: str, tag: str, interval: tuple[int, int]) -> None:
        self._intervals = None
        executed = self._by_tag.setdefault(tag, GtidSet(None))
        added = LibraryGtid("", sid=server, intervals=[interval])
        for present in executed.gtids:
            added -= present
        if added.intervals:
            executed.merge_gtid(added)

    def _flush(self) -> None:
        for (server, tag), interval in self._pending.items():
            self._merge(str(UUID(server)), tag, interval)
        self._pending.clear()

    def __str__(self) -> str:
        self._flush()
        by_server: dict[str, list[str]] = {}
        for tag, executed in sorted(self._by_tag.items()):
            for gtid in executed.gtids:
                server, _, intervals = str(gtid).partition(":")
                by_server.setdefault(server, []).extend([tag, intervals] if tag else [intervals])
        return ",".join(":".join([server, *words]) for server, words in sorted(by_server.items()))


class MariadbGtids:
    """MariaDB's set, ``domain-server-sequence, …``: the last GTID of each server in a domain, the newest last.

    A GTID is ``(domain, server, sequence)``. The library has no set for these: its ``GtidSet`` parses UUIDs only.

    >>> executed = MariadbGtids("0-1-7,3-1-1")
    >>> executed.add((0, 2, 8))
    >>> str(executed)
    '0-1-7,0-2-8,3-1-1'
    """

    def __init__(self, text: str) -> None:
        self._domains: dict[int, dict[int, int]] = {}
        for part in filter(None, "".join(text.split()).split(",")):
            domain, server, sequence = (int(number) for number in part.split("-"))
            self.add((domain, server, sequence))

    def add(self, gtid: Gtid) -> None:
        """Make a GTID the last of its server and domain."""
        domain, server, sequence = gtid
        of_domain = self._domains.setdefault(domain, {})
        of_domain.pop(server, None)
        of_domain[server] = sequence

    def has(self, gtid: Gtid) -> bool:
        """Return True if its server had written at least so many of the domain's transactions."""
        domain, server, sequence = gtid
        return bool(sequence <= self._domains.get(domain, {}).get(server, 0))

    def plus(self, other: MariadbGtids) -> MariadbGtids:
        """Return the last GTIDs in either set."""
        both = MariadbGtids(str(self))
        for domain, server, sequence in other._listed():
            if not both.has((domain, server, sequence)):
                both.add((domain, server, sequence))
        return both

    def minus(self, other: MariadbGtids) -> MariadbGtids:
        """Return the last GTIDs of this set that are not in another."""
        rest = MariadbGtids("")
        for gtid in self._listed():
            if not other.has(gtid):
                rest.add(gtid)
        return rest

    def _listed(self) -> list[tuple[int, int, int]]:
        return [(domain, *last) for domain, servers in sorted(self._domains.items()) for last in servers.items()]

    @property
    def last(self) -> dict[int, tuple[int, int]]:
        """The last GTID of each domain: its server and sequence."""
        return {domain: next(reversed(servers.items())) for domain, servers in self._domains.items()}

    def absent_from(self, other: MariadbGtids) -> Absent:
        """Return the transactions, up to each domain's last one, that ``other`` lacks.

        A domain's transactions are in one order, so a log that has the last one has all before it.
        """
        return _absent_gtids(
            (domain, server, other._domains.get(domain, {}).get(server, 0) + 1, sequence)
            for domain, (server, sequence) in self.last.items()
        )

    def unplaced_by(self, landed: MariadbGtids, own_server: int) -> Absent:
        """Return the transactions that are neither in ``landed`` nor, as an earlier server's, before its last one.

        ``own_server`` is the server whose log has this set: it has written what ``landed`` does not name.
        """
        last = landed.last
        return _absent_gtids(
            (domain, server, landed._domains.get(domain, {}).get(server, 0) + 1, sequence)
            for domain, server, sequence in self._listed()
            if server in landed._domains.get(domain, {}) or server == own_server
            or sequence > last.get(domain, (0, 0))[1]
        )

    def __str__(self) -> str:
        return ",".join("-".join(map(str, gtid)) for gtid in self._listed())


def _absent_gtids(spans: Iterable[tuple[int, int, int, int]]) -> Absent:
    """Return MariaDB's transactions in spans of domain, server, first and last sequence; a span may be empty."""
    count, texts = 0, []
    for domain, server, first, last in spans:
        if first <= last:
            count += last - first + 1
            texts.append(f"{domain}-{server}-{first}" + (f" to {last}" if first < last else ""))
    return Absent(count, ", ".join(texts))


def executed_gtids(flavour: str, text: str) -> ExecutedGtids:
    """Return the set that ``text`` spells in the notation of a server of this flavour."""
    return MariadbGtids(text) if flavour == "mariadb" else MysqlGtids(text)
