"""The landing table as capture writes it: one commit, one batch, one file, and its own checkpoint.

Every commit carries the batch number as a Delta transaction identifier and, as commit metadata, the position reached.
So a restart resumes exactly after the last landed row with nothing but the table, nothing lands twice, and of two
writers the second is refused by Delta itself.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from dblake.core.errors import Fenced, LandingError, LandingUnavailable
from dblake.core.position import Position, ResumePoint
from dblake.core.source import ServerIdentity
from dblake.lake.locks import commit_lock
from dblake.lake.log import Application
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

_ONE_FILE = 1 << 40
_HISTORY_STEP = 50
# Readers prune by these; statistics of payloads would only cost.
_PRUNED_BY = (BATCH, LEASE_EPOCH, INCARNATION, LSN, SEQ, KIND, TABLE, TXID, COMMITTED_AT, CHUNK_ID)
# Values that hardly ever come twice: to look for repetitions costs time, and space in the file.
_UNLIKE = (LSN, SEQ, COMMITTED_AT, PAYLOAD)
_FILE = WriterProperties(
    compression="ZSTD", compression_level=1, max_row_group_size=1 << 20,
    column_properties={name: ColumnProperties(dictionary_enabled=False) for name in _UNLIKE},
)
# Not delta.appendOnly: capture appends only, but upkeep removes what nobody needs any more. It also cleans the log,
# which Spark would do by age alone, and so lose the commit that says where a capture stopped for long resumes.
_CONFIGURATION = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.dataSkippingStatsColumns": ",".join(_PRUNED_BY),
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 30 days",
}


@dataclass(frozen=True, slots=True)
class Reached:
    """What a landing commit says of itself: the batch, who wrote it, from which server, and where to resume."""

    batch: int
    lease_epoch: int
    server: ServerIdentity
    resume: ResumePoint

    def to_metadata(self) -> dict[str, str]:
        """As Delta commit metadata."""
        return {RESUME_METADATA: json.dumps(asdict(self), sort_keys=True)}

    @classmethod
    def from_metadata(cls, text: str) -> Reached:
        """Reads ``to_metadata``'s value."""
        doc = json.loads(text)
        resume = doc["resume"]
        landed = Position(**resume["landed"]) if resume["landed"] else None
        return cls(
            doc["batch"], doc["lease_epoch"], ServerIdentity(**doc["server"]),
            ResumePoint(resume["incarnation"], resume["token"], landed),
        )


class Landing:
    """One source's landing table, held by its one writer."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._application = Application.capture(source)
        try:
            self._table = self._open()
            self.reached = self._last_reached()
        except (DeltaError, OSError) as error:
            what = f"the landing table of source {source} cannot be opened or made under the warehouse"
            reason = _reason(error)
            if isinstance(error, OSError) and reason not in _LASTING:
                raise LandingUnavailable(
                    f"{what}: {reason}", next_step="see that the warehouse is there and not full; then run again"
                ) from error
            raise LandingError(
                f"{what}: {reason}", next_step="see that `warehouse` names a place this user may write to"
            ) from error

    def _open(self) -> DeltaTable:
        try:
            return DeltaTable(self._path)
        except TableNotFoundError:
            if "://" not in self._path:
                os.makedirs(self._path, exist_ok=True)
            return DeltaTable.create(self._path, LANDING, mode="ignore", configuration=_CONFIGURATION)

    def _last_reached(self) -> Reached | None:
        """The newest commit that capture made; commits of maintenance may have come after it."""
        if self._table.transaction_version(self._application) is None:
            return None
        limit = _HISTORY_STEP
        while True:
            history: list[dict[str, Any]] = self._table.history(limit)
            for commit in history:
                if RESUME_METADATA in commit:
                    return Reached.from_metadata(commit[RESUME_METADATA])
            if len(history) < limit:
                raise LandingError(
                    "the landing table's log no longer holds the commit that says where capture must resume",
                    next_step="bring the table's log back from a backup; or move the table away and dump all again",
                )
            limit *= 10

    def commit(self, rows: pa.Table, reached: Reached) -> None:
        """Lands one batch. On return it is durable.

        Raises Fenced if anybody else has landed a batch since this table was opened, LandingUnavailable if storage
        does not take it: in both cases nothing of the batch has landed as far as this process may know, and the
        process must end; the next one finds out from the table.
        """
        try:
            with commit_lock(self._path, shared=True):
                write_deltalake(
                    self._table, rows, mode="append", target_file_size=_ONE_FILE,
                    writer_properties=_FILE,
                    commit_properties=CommitProperties(
                        custom_metadata=reached.to_metadata(),
                        app_transactions=[Transaction(self._application, reached.batch)],
                    ),
                    post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
                )
        except CommitFailedError as error:
            raise Fenced(
                f"batch {reached.batch} was refused: another capture has landed since this one last did",
                next_step="see which other capture of this source runs; this one ends and may be started again",
            ) from error
        except (DeltaError, OSError) as error:
            raise LandingUnavailable(
                f"batch {reached.batch} could not be landed: {_reason(error)}",
                next_step="see that the warehouse is there, writable and not full; then start capture again",
            ) from error
        self.reached = reached


_LASTING = ("permission denied", "not a directory", "read-only file system", "file exists")
_PASSING = ("no space left", "file too large", "quota exceeded")


def _reason(error: Exception) -> str:
    """What went wrong, without the paths and values an error may quote."""
    text = str(error).lower()
    for words in (*_LASTING, *_PASSING):
        if words in text:
            return words
    return type(error).__name__
