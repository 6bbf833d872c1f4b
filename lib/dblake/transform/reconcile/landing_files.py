"""The landing table's data files, chosen by the statistics of its newest version.

Reconcile goes by landing batch numbers and reads the files of the newest version alone: what compaction has rewritten
is read as rewritten, and no file of an old version is needed. Landing's Delta log is the only list of files; each
entry carries the range of batches, positions and transactions in its file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblake.base.core.window import ChunkWindow
from dblake.base.lake.files import file_path
from dblake.base.lake.log import Application, OpenTable
from dblake.base.lake.tables import has_table, list_files
from dblake.landing.columns import BATCH, INCARNATION, LEASE_EPOCH, LSN, TXID

_STATISTICS = (BATCH, LEASE_EPOCH, INCARNATION, LSN, TXID)
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LandingFile:
    """One data file, with the newest batch in it."""

    path: str
    size: int
    last_batch: int


class LandingFiles:
    """The files of landing's newest version; ``refresh`` moves on to a newer one."""

    def __init__(self, path: str, source: str) -> None:
        self._path, self._application = path, Application.capture(source)
        self._table = OpenTable(path)
        self._listed: tuple[int, _LandingListing] | None = None

    @classmethod
    def find(cls, path: str, source: str) -> LandingFiles | None:
        """Return the files of a landing table; None if there is none."""
        return cls(path, source) if has_table(path) else None

    def refresh(self) -> bool:
        """Read the log's new entries; True if there were any."""
        return self._table.refresh()

    def has_next(self) -> bool:
        """Return whether the log has a newer version; known of a local disk only."""
        return self._table.has_next()

    @property
    def table_id(self) -> str:
        """The table's id, which another table at the same path does not have."""
        return str(self._table.delta.metadata().id)

    @property
    def newest_batch(self) -> int:
        """The newest batch that landed; 0 before the first."""
        return self._table.reached(self._application)

    @property
    def oldest_batch(self) -> int:
        """The oldest batch that is still there, or an earlier one where statistics are missing; 1 without files."""
        return self._listing().oldest_batch

    def files(self, first: int, last: int) -> list[LandingFile]:
        """Return the files that may hold batches from ``first`` to ``last``, oldest first."""
        listing = self._listing()
        return listing.where(listing.may_hold(BATCH, first, last))

    def files_of_epoch(self, epoch: int, last: int) -> list[LandingFile]:
        """Return the files that may hold batches of a lease epoch, up to batch ``last``."""
        listing = self._listing()
        return listing.where(listing.may_hold(BATCH, 0, last) & listing.may_hold(LEASE_EPOCH, epoch, epoch))

    def files_in_windows(self, windows: Iterable[ChunkWindow], last: int) -> list[LandingFile]:
        """Return the files that may hold log rows of any of the windows, up to batch ``last``.

        What a chunk's snapshot could not see may have landed long before its low watermark.
        """
        listing = self._listing()
        of_incarnation: dict[int, list[ChunkWindow]] = {}
        for window in windows:
            of_incarnation.setdefault(window.high.incarnation, []).append(window)
        near = np.zeros(listing.count, np.bool_)
        for incarnation, spans in of_incarnation.items():
            since = listing.may_hold(LSN, min(window.low.lsn for window in spans), _MOST)
            oldest = [window.snapshot.xmin for window in spans if window.snapshot]
            if oldest:
                since |= listing.may_hold(TXID, min(oldest), _MOST)
            until = listing.may_hold(LSN, _LEAST, max(window.high.lsn for window in spans))
            # Positions of several incarnations in one file bound none of them.
            near |= listing.may_hold(INCARNATION, incarnation, incarnation) & (listing.mixed | (since & until))
        return listing.where(near & listing.may_hold(BATCH, 0, last))

    def portions(self, first: int, last: int, size: int) -> list[int]:
        """Divide batches ``first`` to ``last`` into micro-batches of about ``size`` bytes; return the end of each."""
        ends, waiting = list[int](), 0
        for file in self.files(first, last):
            waiting += file.size
            if waiting >= size and file.last_batch < last and file.last_batch > (ends[-1] if ends else 0):
                ends.append(file.last_batch)
                waiting = 0
        return [*ends, last]

    def _listing(self) -> _LandingListing:
        version = self._table.delta.version()
        if self._listed is None or self._listed[0] != version:
            self._listed = version, _LandingListing(self._path, list_files(self._table.delta))
        return self._listed[1]


class _LandingListing:
    """One version's files and their statistics, as columns; sorted by newest batch."""

    def __init__(self, path: str, actions: pa.Table) -> None:
        self._path, self.count = path, actions.num_rows
        self._bounds = {
            name: (_numbers(actions, f"min.{name}", _LEAST), _numbers(actions, f"max.{name}", _MOST))
            for name in _STATISTICS
        }
        lowest, highest = self._bounds[INCARNATION]
        self.mixed: Mask = lowest != highest
        self._files = actions.select(["path", "size_bytes"])
        self.oldest_batch = int(self._bounds[BATCH][0].min(initial=_MOST)) if self.count else 1
        self._order = np.argsort(self._bounds[BATCH][1], kind="stable")

    def may_hold(self, column: str, first: int, last: int) -> Mask:
        """Mark the files whose statistics do not exclude every value from ``first`` to ``last``."""
        lowest, highest = self._bounds[column]
        return np.asarray((lowest <= last) & (highest >= first))

    def where(self, wanted: Mask) -> list[LandingFile]:
        """Return the files that are marked."""
        rows = self._order[wanted[self._order]]
        newest = self._bounds[BATCH][1][rows].tolist()
        files = self._files.take(pa.array(rows)).to_pylist()
        return [
            LandingFile(file_path(self._path, file["path"]), file["size_bytes"], batch)
            for file, batch in zip(files, newest, strict=True)
        ]


def _numbers(actions: pa.Table, name: str, missing: int) -> npt.NDArray[np.int64]:
    if name not in actions.column_names:
        return np.full(actions.num_rows, missing, np.int64)
    return np.asarray(actions[name].cast(pa.int64()).fill_null(missing).to_numpy())
