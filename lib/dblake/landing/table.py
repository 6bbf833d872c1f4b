"""The landing table as capture writes it: one commit is one batch is one file, and the table is its own checkpoint.

Every commit carries the batch number as a Delta transaction identifier and, as commit metadata, the position reached.
Guarantees: a restart resumes exactly after the last landed row from the table alone; no row lands twice; of two writers
Delta rejects the second.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from dblake.base.core.errors import Fenced, LandingError, LandingUnavailable
from dblake.base.core.position import Position, ResumePoint
from dblake.base.core.source import ServerIdentity
from dblake.base.core.transient import storage_fault, transient_reason
from dblake.base.lake.commits import COMMIT_ID, new_commit_id
from dblake.base.lake.locks import commit_lock
from dblake.base.lake.log import Application, OpenTable
from dblake.base.lake.panics import hidden_panics
from dblake.base.lake.storage import is_local
from dblake.base.lake.tables import create_table
from dblake.landing.columns import (
    BATCH,
    CHUNK_ID,
    COMMITTED_AT,
    INCARNATION,
    KIND,
    LANDING,
    LEASE_EPOCH,
    LSN,
    PAYLOAD,
    RESUME_METADATA,
    SEQ,
    TABLE,
    TXID,
)

logger = logging.getLogger(__name__)

_ONE_FILE_BYTES = 1 << 40
_HISTORY_COMMITS = 5
_RETRY_SECONDS = (0.5, 2.0, 8.0)
"""Pauses before object storage is tried again."""
# Readers prune files by these columns; statistics of payloads would cost time and space for no use.
_PRUNED_BY = (BATCH, LEASE_EPOCH, INCARNATION, LSN, SEQ, KIND, TABLE, TXID, COMMITTED_AT, CHUNK_ID)
# Nearly unique values: a dictionary would cost time, and space in the file.
_WITHOUT_DICTIONARY = (LSN, SEQ, COMMITTED_AT, PAYLOAD)
_WRITER = WriterProperties(
    compression="ZSTD", compression_level=1, max_row_group_size=1 << 20,
    column_properties={name: ColumnProperties(dictionary_enabled=False) for name in _WITHOUT_DICTIONARY},
)
# Not delta.appendOnly: capture only appends, but maintenance deletes reconciled rows. Maintenance also cleans the log:
# Spark cleans it by age alone, and would lose the commit from which a capture resumes after a long pause.
_CONFIGURATION = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.dataSkippingStatsColumns": ",".join(_PRUNED_BY),
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 30 days",
}


@dataclass(frozen=True, slots=True)
class Reached:
    """A landing commit's metadata: the batch, the writer's lease epoch, the server, and where the log resumes.

    ``heartbeat`` is the value that the heartbeat row has there, empty if that is not known.
    """

    batch: int
    lease_epoch: int
    server: ServerIdentity
    resume: ResumePoint
    heartbeat: str = ""

    def to_metadata(self) -> dict[str, str]:
        """Return the values as Delta commit metadata."""
        return {RESUME_METADATA: json.dumps(asdict(self), sort_keys=True)}

    @classmethod
    def from_metadata(cls, text: str) -> Reached:
        """Parse the value that ``to_metadata`` returned."""
        doc = json.loads(text)
        resume = doc["resume"]
        landed = Position(**resume["landed"]) if resume["landed"] else None
        return cls(
            doc["batch"], doc["lease_epoch"], ServerIdentity(**doc["server"]),
            ResumePoint(resume["incarnation"], resume["token"], landed), doc.get("heartbeat", ""),
        )


class Landing:
    """One source's landing table, for its one writer.

    ``reached`` is the metadata of capture's newest commit, None without one.
    """

    def __init__(self, path: str, source: str) -> None:
        """Open the table, and create it if there is none.

        Raises LandingUnavailable if storage fails for a reason that may pass, LandingError for any other failure.
        """
        self._path = path
        self._application = Application.capture(source)
        self._commit_id: str | None = None
        try:
            self._table = self._open()
            self.reached = self._read_reached()
        except (DeltaError, OSError) as error:
            what = f"the landing table of source {source} cannot be opened or created under the warehouse"
            fault = storage_fault(error)
            if fault:
                kind = LandingError if fault.is_permanent else LandingUnavailable
                raise kind(f"{what}: {fault.reason}", next_step=fault.next_step) from error
            if not isinstance(error, OSError) and transient_reason(error) is None:
                raise LandingError(
                    f"{what}: delta-rs cannot read it", next_step="restore it from a backup; --verbose shows the fault"
                ) from error
            raise LandingUnavailable(
                f"{what}: {_reason(error)}",
                next_step="check that the warehouse exists and is not full; then run this again",
            ) from error

    @property
    def is_remote(self) -> bool:
        """True on object storage, where a commit takes several round trips whatever its size."""
        return not is_local(self._path)

    def _open(self) -> OpenTable:
        """Open the table, and create it if there is none."""
        try:
            return OpenTable(self._path)
        except TableNotFoundError:
            create_table(self._path, LANDING, _CONFIGURATION)
            return OpenTable(self._path)

    def _reopen(self) -> Reached | None:
        """Open the newest version, and return the metadata of capture's newest commit.

        The table then accepts the next commit, also if another process made the newest one: the caller compares that.
        """
        self._table = OpenTable(self._path)
        return self._read_reached()

    def _read_reached(self) -> Reached | None:
        """Return the metadata of capture's newest commit; maintenance may have committed after it."""
        if self._table.delta.transaction_version(self._application) is None:
            return None
        self._commit_id = None
        limit = _HISTORY_COMMITS
        while True:
            history: list[dict[str, Any]] = self._table.delta.history(limit)
            for commit in history:
                if RESUME_METADATA in commit:
                    self._commit_id = commit.get(COMMIT_ID)
                    return Reached.from_metadata(commit[RESUME_METADATA])
            if len(history) < limit:
                raise LandingError(
                    "the landing table's log no longer holds the commit from which capture must resume",
                    next_step="restore the table's log from a backup; or move the table away and dump all tables again",
                )
            limit *= 10

    def commit(self, rows: pa.Table, reached: Reached) -> None:
        """Commit one batch of LANDING rows; it is durable on return.

        Raises Fenced if another process has landed a batch since this table was opened, LandingUnavailable if storage
        fails. In both cases this process cannot know whether the batch has landed and must end; the next one reads it
        from the table. On object storage a commit that failed is looked up in the table's log and tried again if it
        is not there. So is, everywhere, one that Delta rejects because another job has changed the table.
        """
        commit_id = new_commit_id()
        with commit_lock(self._path, shared=True):
            for pause in (*_RETRY_SECONDS, None):
                try:
                    self._append(rows, reached, commit_id)
                    break
                except (DeltaError, OSError) as error:
                    # Delta also rejects an append where maintenance has deleted rows since the table was opened.
                    is_rejected = isinstance(error, CommitFailedError)
                    if (is_rejected or not is_local(self._path)) and self._has_landed(reached, commit_id, error):
                        break
                    fault = storage_fault(error)
                    is_final = is_local(self._path) and not is_rejected
                    if pause is None or is_final or (fault and fault.is_permanent):
                        raise _unavailable(reached, error) from error
                    if not is_rejected:
                        logger.warning("batch %d could not be landed, trying again: %s", reached.batch, _reason(error))
                        time.sleep(pause)
        self.reached = reached

    def _append(self, rows: pa.Table, reached: Reached, commit_id: str) -> None:
        if self._table.is_worn and self._reopen() != self.reached:
            raise _fenced(reached)
        properties = CommitProperties(
            custom_metadata={**reached.to_metadata(), COMMIT_ID: commit_id},
            app_transactions=[Transaction(self._application, reached.batch)],
        )
        with hidden_panics():
            write_deltalake(
                self._table.delta, rows, mode="append", target_file_size=_ONE_FILE_BYTES, writer_properties=_WRITER,
                commit_properties=properties,
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )

    def _has_landed(self, reached: Reached, commit_id: str, error: Exception) -> bool:
        """Read from the table's log whether a commit that failed is there; the table is then the newest version.

        Raises Fenced if another process's commit is there instead.
        """
        try:
            newest = self._reopen()
        except (DeltaError, OSError):
            raise _unavailable(reached, error) from error
        if self._commit_id == commit_id:
            logger.warning("batch %d has landed, but the storage's answer was lost", reached.batch)
            return True
        if newest != self.reached:
            raise _fenced(reached) from error
        return False


def _fenced(reached: Reached) -> Fenced:
    return Fenced(
        f"batch {reached.batch} was rejected: another capture has landed a batch since this one did",
        next_step="find the other capture of this source; start this one again if it is to stand by",
    )


def _unavailable(reached: Reached, error: Exception) -> LandingError:
    fault = storage_fault(error)
    if fault and fault.is_permanent:
        return LandingError(
            f"batch {reached.batch} could not be landed: {fault.reason}", next_step=fault.next_step
        )
    return LandingUnavailable(
        f"batch {reached.batch} could not be landed: {_reason(error)}",
        next_step="check that the warehouse exists, is writable and not full; then start capture again",
    )


def _reason(error: Exception) -> str:
    """Return the reason of a storage error without the paths and values that its text may quote."""
    fault = storage_fault(error)
    if fault:
        return fault.reason
    if isinstance(error, CommitFailedError):
        return "another job changed the table at each attempt"
    return transient_reason(error) or "the storage failed; --verbose shows how"
