"""The newest transaction with events, and whether events have all of it, from few row groups of the events table.

Place: beside ``event_table``, which names the files of one version and reads their row groups. Guarantee: the rows
decide the answer. A file or row group with events of two incarnations has the least and the greatest value of each
column. Together these values need not be an event's position: they can only rule a row group out. A row group is read
once, however often it is asked about, and without images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dblake.landing.columns import BATCH, INCARNATION, LAST_IN_TXN, LSN
from dblake.transform.events.files import ORIGIN

END_COLUMNS = (INCARNATION, LSN, ORIGIN, LAST_IN_TXN, BATCH)
"""The columns that are read of a row group."""

GroupName = tuple[str, int]
"""A file's path and the number of a row group in it."""


@dataclass(frozen=True, slots=True)
class NewestTransaction:
    """The newest transaction in some rows: its incarnation and LSN, and its first landing batch.

    ``has_log`` if there is an event of the log among its events, ``has_end`` if there is its last one.
    """

    incarnation: int
    lsn: int
    batch: int
    has_log: bool
    has_end: bool

    @property
    def at(self) -> tuple[int, int]:
        """The transaction's incarnation and LSN."""
        return self.incarnation, self.lsn

    def joined(self, other: NewestTransaction) -> NewestTransaction:
        """Return the newer of two; of one transaction in two places, what both show."""
        if self.at != other.at:
            return max(self, other, key=lambda one: one.at)
        return NewestTransaction(
            *self.at, min(self.batch, other.batch), self.has_log or other.has_log, self.has_end or other.has_end
        )


@dataclass(frozen=True, slots=True)
class GroupBound:
    """A row group, and an incarnation and LSN that none of its events follows."""

    name: GroupName
    most: tuple[int, int]


class NewestTransactions:
    """Finds the newest transaction in each version of the events table; keeps what it read of row groups.

    Only of those that may still have events of the newest transaction.
    """

    def __init__(self, read: Callable[[GroupName], pa.Table]) -> None:
        """``read`` returns END_COLUMNS of a row group."""
        self._read = read
        self._known: dict[GroupName, NewestTransaction | None] = {}

    def find(self, files: Iterable[tuple[tuple[int, int], Callable[[], Iterator[GroupBound]]]]) -> (
        NewestTransaction | None
    ):
        """Return the newest transaction in files, each given with what none of its events follows and its row groups.

        None if they have no events.
        """
        newest: NewestTransaction | None = None
        used: dict[GroupName, NewestTransaction | None] = {}
        for most, groups in sorted(files, key=lambda file: file[0], reverse=True):
            if newest and most < newest.at:
                break
            for group in sorted(groups(), key=lambda one: one.most, reverse=True):
                if newest and group.most < newest.at:
                    break
                name = group.name
                used[name] = found = self._known[name] if name in self._known else _newest_of(self._read(name))
                newest = newest.joined(found) if newest and found else newest or found
        self._known = used
        return newest


def _newest_of(rows: pa.Table) -> NewestTransaction | None:
    if rows.num_rows == 0:
        return None
    incarnation = pc.max(rows[INCARNATION]).as_py()
    rows = rows.filter(pc.equal(rows[INCARNATION], incarnation))
    lsn = pc.max(rows[LSN]).as_py()
    rows = rows.filter(pc.equal(rows[LSN], lsn))
    logged = rows.filter(pc.equal(rows[ORIGIN].cast(pa.string()), "log"))
    has_end = pc.any(pc.fill_null(logged[LAST_IN_TXN], False)).as_py()
    return NewestTransaction(incarnation, lsn, pc.min(rows[BATCH]).as_py(), logged.num_rows > 0, bool(has_end))
