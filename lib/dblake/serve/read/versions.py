"""Versions of state tables: which one holds a table's rows up to a recorded frontier, and can still be read.

Guarantee: a version is returned only if it holds exactly the events of its batches, as they are decoded today, and all
its files exist. State merges table by table, so a table's newest version may be ahead of the frontier; then the version
that the frontier recorded counts. Maintenance rewrites files without changing rows: of the versions with the same rows
the newest is chosen, because its files are removed last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from dblake.base.core.names import split_qualified
from dblake.base.lake.files import file_path, filesystem
from dblake.base.lake.frontier import Frontier
from dblake.base.lake.layout import Paths
from dblake.base.lake.log import Application
from dblake.base.lake.query import query_rows
from dblake.base.lake.tables import DeltaTable, find_table, list_files, open_table
from dblake.transform.redecode.changed_tables import read_changed_tables


@dataclass(frozen=True)
class StateVersion:
    """An open state table; ``batch`` is the landing batch up to which its rows hold the table's events."""

    table: DeltaTable
    batch: int

    @property
    def version(self) -> int:
        """The Delta version."""
        return self.table.version()


class StateVersions:
    """The versions of all state tables of one source."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._redecoded: Mapping[str, Mapping[int, int]] = read_changed_tables(paths)

    def path(self, table: str) -> str:
        """Return the path of a table's state table."""
        return self._paths.state(*split_qualified(table))

    def is_expected(self, table: str, frontier: Frontier) -> bool:
        """Return True if a table may have events up to a frontier."""
        return table in frontier.versions or table in frontier.behind or table in self._redecoded

    def find(self, table: str, frontier: Frontier, *, is_newest: bool) -> StateVersion | None:
        """Return a version with the rows of a table at ``frontier``, or, if it was behind, at its own batch.

        None if there is none that can be read. ``is_newest``: no later row of the frontier is known.
        """
        path = self.path(table)
        newest = find_table(path) if self.is_expected(table, frontier) else None
        if newest is None:
            return None
        reached = self._reached(newest)
        # A rebuild for redecoded events may have gone further than the table's own batch.
        is_exact = is_newest or not newest.transaction_version(Application.redecode_built(self._paths.source))
        if reached <= frontier.batch and is_exact and not self._is_outdated(table, newest, reached):
            return StateVersion(newest, reached if table in frontier.behind else frontier.batch)
        recorded = frontier.versions.get(table)
        batch = frontier.batch
        if recorded is None or table in frontier.behind:
            recorded, batch = self._recorded_before(table, frontier.batch)
        if recorded is None:
            return None
        return self._at_version(table, path, recorded, batch, newest)

    def _at_version(
        self, table: str, path: str, recorded: int, batch: int, newest: DeltaTable
    ) -> StateVersion | None:
        following = self._recorded_after(table, recorded, batch)
        # The last version before the next merge holds the same rows, and its files stay longest.
        for version in sorted({recorded, *([following - 1] if following else [])}, reverse=True):
            try:
                found = open_table(path, version)
            except DeltaError:
                continue
            reached = self._reached(found)
            if reached <= batch and not self._is_outdated(table, found, reached) and _has_files(path, found, newest):
                return StateVersion(found, batch)
        return None

    def _reached(self, table: DeltaTable) -> int:
        return table.transaction_version(Application.state(self._paths.source)) or 0

    def _is_outdated(self, table: str, found: DeltaTable, reached: int) -> bool:
        """Return True if the version rests on events that were decoded again since."""
        runs = [run for run, batch in self._redecoded.get(table, {}).items() if batch <= reached]
        source = self._paths.source
        applied = max(found.transaction_version(Application.redecode_built(source)) or 0,
                      found.transaction_version(Application.redecode(source)) or 0)
        return any(run > applied for run in runs)

    def _recorded_before(self, table: str, batch: int) -> tuple[int | None, int]:
        """Return the newest version of a table that a row of the frontier up to a batch records, and that batch."""
        rows = query_rows(
            self._paths.frontier, f"SELECT batch, versions FROM t WHERE batch <= {batch} ORDER BY batch DESC, at DESC"
        )
        for row in rows:
            version = dict(row["versions"] or []).get(table)
            if version is not None:
                return version, row["batch"]
        return None, 0

    def _recorded_after(self, table: str, version: int, batch: int) -> int | None:
        rows = query_rows(
            self._paths.frontier, f"SELECT versions FROM t WHERE batch > {batch} ORDER BY batch, at"
        )
        for row in rows:
            later = dict(row["versions"] or []).get(table)
            if later is not None and later > version:
                return int(later)
        return None


def _has_files(path: str, found: DeltaTable, newest: DeltaTable) -> bool:
    """Return True if the files that only the older version has still exist."""
    old = _file_names(found) - _file_names(newest)
    system, base = filesystem(path)
    infos = system.get_file_info([file_path(base, name) for name in sorted(old)]) if old else []
    return all(info.is_file for info in infos)


def _file_names(table: DeltaTable) -> set[str]:
    return set(list_files(table)["path"].to_pylist())
