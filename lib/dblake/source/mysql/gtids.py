"""Which transactions the log held up to a place, as the server's own sets of GTIDs.

A part of the resume token, so that another server of the same topology can be asked to go on. MySQL counts per
server and tag, with gaps; MariaDB keeps the last of each replication domain, as ``gtid_binlog_pos`` does.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Protocol
from uuid import UUID

Gtid = tuple[Any, Any, int]
"""One transaction's: see the two classes."""


class Executed(Protocol):
    """A set of GTIDs that grows with the log."""

    def add(self, gtid: Gtid) -> None:
        """Takes in a transaction."""

    def __str__(self) -> str:
        """As the server spells it."""


class MysqlExecuted:
    """MySQL's: ``uuid:1-5:7:tag:1-3, …``. A GTID is ``(uuid as 32 hex digits, tag or "", number)``.

    >>> executed = MysqlExecuted("7b0eb4a4-0000-0000-0000-000000000001:1-3")
    >>> executed.add(("7b0eb4a4000000000000000000000001", "", 4))
    >>> str(executed)
    '7b0eb4a4-0000-0000-0000-000000000001:1-4'
    """

    def __init__(self, text: str) -> None:
        self._ranges: dict[tuple[str, str], list[list[int]]] = {}
        for part in filter(None, "".join(text.split()).split(",")):
            server, *rest = part.split(":")
            tag = ""
            for word in rest:
                if word[0].isdigit():
                    low, _, high = word.partition("-")
                    self._ranges.setdefault((UUID(server).hex, tag), []).append([int(low), int(high or low)])
                else:
                    tag = word

    def add(self, gtid: Gtid) -> None:
        server, tag, number = gtid
        ranges = self._ranges.setdefault((server, tag), [])
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
            return
        place = bisect_left(ranges, [number, number])
        if any(low <= number <= high for low, high in ranges[max(place - 1, 0) : place + 1]):
            return
        ranges.insert(place, [number, number])
        if place + 1 < len(ranges) and ranges[place + 1][0] == number + 1:
            ranges[place][1] = ranges.pop(place + 1)[1]
        if place and ranges[place - 1][1] + 1 == number:
            ranges[place - 1][1] = ranges.pop(place)[1]

    def __str__(self) -> str:
        servers: dict[str, list[str]] = {}
        for (server, tag), ranges in sorted(self._ranges.items()):
            words = servers.setdefault(server, [])
            words += ([tag] if tag else []) + [str(a) if a == b else f"{a}-{b}" for a, b in ranges]
        return ",".join(":".join([str(UUID(server)), *words]) for server, words in servers.items())


class MariadbExecuted:
    """MariaDB's: ``domain-server-sequence, …``. A GTID is ``(domain, server, sequence)``.

    >>> executed = MariadbExecuted("0-1-7,3-1-1")
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
        domain, server, sequence = gtid
        self._last[domain] = (server, sequence)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{seq}" for domain, (server, seq) in sorted(self._last.items()))


def executed(flavour: str, text: str) -> Executed:
    """The set that ``text`` spells."""
    return MariadbExecuted(text) if flavour == "mariadb" else MysqlExecuted(text)
