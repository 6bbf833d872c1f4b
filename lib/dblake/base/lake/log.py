"""Delta logs of our tables: which landing batch each application has reached, and commits that record it.

A table is its own checkpoint: every commit carries a Delta transaction identifier (``SetTransaction``), an application
and a version. ``Application`` is the one place that spells these identifiers. delta-rs reads a table's log in
milliseconds, so nothing here needs a JVM. Who may commit when is ``locks``'; which rows, the caller's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from dblake.base.core.errors import TableUnavailable
from dblake.base.lake.commits import COMPACTS, confirmed_commit
from dblake.base.lake.layout import Paths
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.storage import is_local
from dblake.base.lake.tables import find_table, has_table, open_table, storage_options, table_bytes

_LITTLE_BYTES = 256 << 20
COMMITS_PER_OPENING = 25
"""How many versions a table stays open. Each commit of a writer takes longer by some 0.3 ms of CPU for each of those
before it since it opened the table, whatever checkpoints there are; see ``benchmarks/commits.py``."""


class DataFile(Protocol):
    """A Parquet file in a table's folder: its path there, its bytes, and its statistics as Delta's JSON."""

    @property
    def path(self) -> str:
        """The path in the table's folder."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def statistics(self) -> str:
        """Delta's JSON."""


class Application:
    """Spell the Delta transaction identifiers of a source's jobs. The version is a landing batch, but where noted."""

    @staticmethod
    def capture(source: str) -> str:
        """Identify capture's commits to landing."""
        return f"capture/{source}"

    @staticmethod
    def reconcile(source: str) -> str:
        """Identify reconcile's commits to schemas, events and windows."""
        return f"reconcile/{source}"

    @staticmethod
    def landing(source: str, table_id: str = "") -> str:
        """Identify, in events, the landing table that they come from, or that any is recorded; the version is 1."""
        return f"landing/{source}/{table_id}"

    @staticmethod
    def state(source: str) -> str:
        """Identify state's commits to a state table."""
        return f"state/{source}"

    @staticmethod
    def consolidation(source: str) -> str:
        """Identify, in events, the newest batch of which maintenance may have removed events."""
        return f"maintain/{source}"

    @staticmethod
    def maintenance(source: str) -> str:
        """Identify, in schemas, the newest run of maintenance; the version is the time when it ended, in seconds."""
        return f"maintained/{source}"

    @staticmethod
    def vacuum(source: str) -> str:
        """Identify, in schemas, the newest run of maintenance that removed old files; the version is as above."""
        return f"vacuum/{source}"

    @staticmethod
    def windows_ended(source: str) -> str:
        """Identify, in schemas, the batch before which maintenance found no window of a chunk open."""
        return f"windows/{source}"

    @staticmethod
    def verification(source: str) -> str:
        """Identify, in the verification ledger, the batch up to which landed chunks are compared."""
        return f"verify/{source}"

    @staticmethod
    def iceberg(source: str, catalog: str) -> str:
        """Identify, in the frontier, its newest version whose state tables an Iceberg catalog has."""
        return f"iceberg/{source}/{catalog}"

    @staticmethod
    def output_verification(source: str, output: str) -> str:
        """Identify, in the verification ledger, an output's newest reading; the version is its time in milliseconds."""
        return f"verify/{source}/{output}"

    @staticmethod
    def redecode(source: str) -> str:
        """Identify the redecode run that a table's rows come from; the version is the run's number."""
        return f"again/{source}"

    @staticmethod
    def redecode_done(source: str) -> str:
        """Identify, in the redecode ledger, the newest finished run; the version is the run's number."""
        return f"again/{source}/done"

    @staticmethod
    def redecode_built(source: str) -> str:
        """Identify the redecode run for which a state table was rebuilt; the version is the run's number."""
        return f"again/{source}/built"


class OpenTable:
    """A table that stays open: to read on costs two requests and the new commits, however long the log is.

    It is opened again after ``COMMITS_PER_OPENING`` versions, and with rotated credentials.
    """

    def __init__(self, path: str) -> None:
        """Open the table. Raises TableNotFoundError without one."""
        self._path = path
        self._open()
        self._reached: dict[str, tuple[int, int]] = {}

    def refresh(self) -> bool:
        """Read the log's new entries; return True if there were any."""
        before = self.delta.version()
        if storage_options(self._path) == self._options and not self.is_worn:
            self.delta.update_incremental()
        else:
            self._open()
        return self.delta.version() != before

    @property
    def is_worn(self) -> bool:
        """True after ``COMMITS_PER_OPENING`` versions: a commit takes less time if the table is opened before it."""
        return self.delta.version() - self._opened_at >= COMMITS_PER_OPENING

    def _open(self) -> None:
        self._options, self.delta = storage_options(self._path), open_table(self._path)
        self._opened_at = self.delta.version()

    def has_next(self) -> bool:
        """Return whether the log has a newer version; see ``has_version``."""
        return has_version(self._path, self.delta.version() + 1)

    def reached(self, application: str) -> int:
        """Return the version that an application's newest commit carries, at the version at hand; 0 without one."""
        # delta-rs reads the log again each time.
        version = self.delta.version()
        known = self._reached.get(application)
        if known is None or known[0] != version:
            known = self._reached[application] = version, self.delta.transaction_version(application) or 0
        return known[1]


class TableVersion:
    """A table's newest version, by which a caller that asks repeatedly sees if the table changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._opened: OpenTable | None = None

    def read(self) -> int | None:
        """Return the version; None as long as there is no table."""
        if self._opened is not None:
            self._opened.refresh()
        elif has_table(self._path):
            self._opened = OpenTable(self._path)
        return self._opened.delta.version() if self._opened else None


def has_version(path: str, version: int) -> bool:
    """Return whether a table's log has the commit of a version; known of a local disk only."""
    folder = path.removeprefix("file://")
    return is_local(path) and os.path.exists(os.path.join(folder, "_delta_log", f"{version:020}.json"))


def newest_batch(path: str, application: str) -> int:
    """Return the version that an application's newest commit to a table carries; 0 without a table or a commit."""
    table = find_table(path)
    return (table.transaction_version(application) or 0) if table else 0


def holds_little(paths: Paths) -> bool:
    """Return True if a source's landing and events are so small that a job reads them within seconds."""
    tables = (find_table(path) for path in (paths.landing, paths.events))
    return sum(table_bytes(table) for table in tables if table) < _LITTLE_BYTES


def record_batch(path: str, application: str, batch: int) -> None:
    """Record in a table's log that an application has reached a batch: a commit without a file.

    Takes the table's commit lock. Raises TableUnavailable if another writer commits at the same time.
    """
    with commit_lock(path):
        commit_rows(path, application, batch, None)


def commit_rows(
    path: str, application: str, batch: int, rows: pa.Table | None, opened: OpenTable | None = None
) -> None:
    """Append rows (or nothing) in one commit that carries ``application`` and ``batch``.

    Does nothing if the application has reached the batch already: the recorded version never decreases. The caller
    holds the table's commit lock, and has read on in ``opened``, the table at ``path``, since. Raises TableUnavailable
    if another writer commits at the same time.
    """
    opened = opened or OpenTable(path)
    if opened.reached(application) >= batch:
        return
    table = opened.delta
    try:
        with confirmed_commit(path) as metadata:
            properties = CommitProperties(metadata, app_transactions=[Transaction(application, batch)])
            if rows is None:
                table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
            else:
                write_deltalake(table, rows, mode="append", commit_properties=properties)
    except CommitFailedError as error:
        raise TableUnavailable(
            f"another job of this source committed to {os.path.basename(path)} at the same time",
            next_step="run this again",
        ) from error


def commit_files(
    path: str, table: DeltaTable, application: str, batch: int, files: Iterable[DataFile],
    notes: Mapping[str, str] | None = None,
) -> None:
    """Add files that lie in the table's folder in one commit that carries ``application`` and ``batch``.

    ``table`` is the table at ``path`` as it was read, ``notes`` become metadata of the commit. Raises TableUnavailable
    if the application's version, or the table's schema, was changed after it was read: then none of the files is
    visible. The caller has checked that ``batch`` is newer, and holds the commit lock.
    """
    try:
        with confirmed_commit(path) as metadata:
            properties = CommitProperties(
                metadata | dict(notes or {}), app_transactions=[Transaction(application, batch)]
            )
            added = _add_actions(files, is_new=True)
            table.create_write_transaction(added, "append", table.schema(), commit_properties=properties)
    except CommitFailedError as error:
        raise TableUnavailable(
            f"another job of this source committed to {os.path.basename(path)} at the same time",
            next_step="run this again",
        ) from error


def replace_files(path: str, table: DeltaTable, removed: Mapping[str, int], files: Iterable[DataFile]) -> None:
    """Replace files, given with their sizes, by others with the same rows: readers of changes see none.

    ``table`` is the table at ``path`` as it was read. Takes the table's commit lock. Raises deltalake's
    CommitFailedError, and changes nothing, if another writer removed one of the files after it was read.
    """
    actions = _add_actions(files, is_new=False)
    actions += [RemoveAction(name, False, _milliseconds(), size, {}) for name, size in removed.items()]
    with commit_lock(path), confirmed_commit(path) as metadata:
        properties = CommitProperties({COMPACTS: str(len(removed)), **metadata})
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)


def _add_actions(files: Iterable[DataFile], *, is_new: bool) -> list[AddAction | RemoveAction]:
    """Return the actions that add files; ``is_new`` is False for rows that the table has already."""
    now = _milliseconds()
    return [AddAction(file.path, file.size, {}, now, is_new, file.statistics) for file in files]


def _milliseconds() -> int:
    return int(time.time() * 1000)
