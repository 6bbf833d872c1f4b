"""Every error a user can meet, with its exit code and its next step.

::

    DblakeError
    ├── UsageError                   64  invalid command line
    ├── ConfigError                  78  a configuration key is missing, unknown or invalid
    ├── SourceError                  75  the database failed; a retry may succeed
    │   ├── PrerequisitesNotMet      78  all unmet prerequisites of the source, at once
    │   │   └── NoTables             78  no captured table exists
    │   ├── UncapturableEvent        78  the log contains an event that cannot be captured
    │   ├── PositionLost             78  the log no longer holds the position where capture must resume
    │   │   └── LogWentBack          78  the server was restored to a state before that position
    │   ├── TableUnreadable          75  the rows of one table cannot be read, those of others can
    │   │   ├── ReplicaLags          75  the replica that serves chunks is behind or unavailable
    │   │   └── TableLocked          75  another session holds a lock on it
    │   ├── WrongServer              78  the server is not the one that landing was captured from
    │   │   └── DivergedServer       78  it has transactions among those that landed which did not land
    │   └── Unsupported              78  a table, column or log event that dblake rejects
    ├── LandingError                 78  the landing table cannot be read or written
    │   ├── LandingUnavailable       75  a commit failed for a reason that may pass
    │   └── Fenced                   75  another capture holds the lease or has written since
    ├── ProgressUnavailable          75  the progress directory or ZooKeeper failed for a reason that may pass
    ├── TableUnavailable             75  a commit to another table failed for a reason that may pass
    ├── StorageUnavailable           75  object storage failed for a reason that may pass
    │   └── StorageDenied            78  storage rejects what dblake needs: bucket, permission, If-None-Match
    ├── CatalogUnavailable           75  an Iceberg catalog failed for a reason that may pass
    │   └── CatalogRejected          78  an Iceberg catalog rejects the credentials
    ├── ReconcileError               70  landing violates a guarantee of capture
    │   ├── LandingGap               78  batches are missing between the last one reconciled and the next one
    │   ├── SupersededByRedecode     75  a redecode replaced events during this run of reconcile
    │   └── WindowInvariantViolated  70  a chunk window contradicts itself
    ├── PointOutOfRange              78  events and state do not reach back, or forward, to a point in time
    ├── StateError                   78  a state table cannot hold the events
    │   └── IncompatibleSchemaChange 78  a table changed its key or a type incompatibly
    ├── ConsumeError                 78  a subscription or an output cannot go on as it is set up
    │   ├── StateNotReady            75  state has not reached what a bootstrap needs
    │   ├── OutputUnavailable        75  the target of an output failed for a reason that may pass
    │   └── EventRejected            65  a target can never take one event
    ├── ChecksFailed                 65  a data quality check failed
    └── CopyDiffers                  65  a verification found rows of state that differ from the source

A message states the cause and where it occurred (source, table, chunk, position); the next step is an action. Neither
holds row values, SQL text or connection strings.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from dblake.base.core.position import Position


class ExitCode(IntEnum):
    """The exit codes of the jobs, numbered as in sysexits.h."""

    DONE = 0
    USAGE = 64
    WRONG_DATA = 65
    BUG = 70
    TRY_AGAIN = 75
    CONFIGURATION = 78


class DblakeError(Exception):
    """Base of all errors that dblake raises deliberately.

    ``what`` is the cause with its place; ``next_step`` is an imperative sentence for the operator, or empty.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, what: str, *, next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step

    @property
    def retryable(self) -> bool:
        """True if the same command may succeed on a retry without any change."""
        return self.exit_code is ExitCode.TRY_AGAIN

    def __str__(self) -> str:
        return f"{self.what}. Next: {self.next_step}" if self.next_step else self.what


class UsageError(DblakeError):
    """The command line is invalid."""

    exit_code = ExitCode.USAGE


class ConfigError(DblakeError):
    """A configuration key is missing, unknown or invalid; the message names the key."""

    exit_code = ExitCode.CONFIGURATION


class SourceError(DblakeError):
    """The database failed; a retry may succeed."""

    exit_code = ExitCode.TRY_AGAIN


class PrerequisitesNotMet(SourceError):
    """All unmet prerequisites of the source, at once."""

    exit_code = ExitCode.CONFIGURATION


class NoTables(PrerequisitesNotMet):
    """No table matches the patterns; a running capture waits for one."""


class UncapturableEvent(SourceError):
    """The log contains an event that cannot be captured; ``capture --accept-gap`` skips it."""

    exit_code = ExitCode.CONFIGURATION


class PositionLost(SourceError):
    """The log no longer holds the position where capture must resume: a gap."""

    exit_code = ExitCode.CONFIGURATION


class LogWentBack(PositionLost):
    """The server's history does not contain what was captured: a gap that stays, also when the log has grown again."""


AWAIT_FAILOVER = "wait if a failover is under way; else set source.host to the primary"
ACCEPT_GAP = "run capture --accept-gap, which starts a new incarnation and dumps all tables again"
"""The next step after a PositionLost that has no other remedy."""


class TableUnreadable(SourceError):
    """The rows of one table cannot be read, those of others can: a damaged page, a revoked privilege."""


class ReplicaLags(TableUnreadable):
    """The replica that chunks come from cannot supply them now; it does not count as a failure of the table."""


class TableLocked(TableUnreadable):
    """Another session holds a lock on the table; it can be read once that is released."""


class WrongServer(SourceError):
    """The server is not the one that landing was captured from."""

    exit_code = ExitCode.CONFIGURATION


class DivergedServer(WrongServer):
    """A server has transactions among those that landed which did not land: it never becomes the right one."""


class Unsupported(SourceError):
    """A table, column or log event that dblake rejects by name instead of guessing."""

    exit_code = ExitCode.CONFIGURATION


class LandingError(DblakeError):
    """The landing table cannot be read or written."""

    exit_code = ExitCode.CONFIGURATION


class LandingUnavailable(LandingError):
    """A commit to landing failed for a reason that may pass: storage unreachable, disk full."""

    exit_code = ExitCode.TRY_AGAIN


class Fenced(LandingError):
    """Another capture holds the lease, or has written to landing since this one last did."""

    exit_code = ExitCode.TRY_AGAIN


class ProgressUnavailable(DblakeError):
    """The progress directory or ZooKeeper failed for a reason that may pass: disk full, connection lost."""

    exit_code = ExitCode.TRY_AGAIN


class TableUnavailable(DblakeError):
    """A commit to a table other than landing failed for a reason that may pass: disk full, a lock that is held."""

    exit_code = ExitCode.TRY_AGAIN


class StorageUnavailable(DblakeError):
    """Object storage failed for a reason that may pass: throttled, timed out, unreachable."""

    exit_code = ExitCode.TRY_AGAIN


class StorageDenied(StorageUnavailable):
    """Storage rejects what dblake needs: the bucket or folder, credentials, permissions, or conditional writes."""

    exit_code = ExitCode.CONFIGURATION


class CatalogUnavailable(DblakeError):
    """An Iceberg catalog failed for a reason that may pass; state is not affected."""

    exit_code = ExitCode.TRY_AGAIN


class CatalogRejected(CatalogUnavailable):
    """An Iceberg catalog rejects the credentials, or they may not change its tables."""

    exit_code = ExitCode.CONFIGURATION


class ReconcileError(DblakeError):
    """Landing violates a guarantee of capture: a bug, or a table edited by hand."""


class LandingGap(ReconcileError):
    """Batch numbers are missing between the last batch reconciled and the next one in landing."""

    exit_code = ExitCode.CONFIGURATION


class SupersededByRedecode(ReconcileError):
    """A redecode replaced events since this run of reconcile began, so its own decoder may be outdated."""

    exit_code = ExitCode.TRY_AGAIN


class WindowInvariantViolated(ReconcileError):
    """A chunk window contradicts itself: high watermark before low watermark, or rows missing."""


class PointOutOfRange(DblakeError):
    """Events and state do not cover a point in time."""

    exit_code = ExitCode.CONFIGURATION


class StateError(DblakeError):
    """A state table cannot hold the events that belong to it."""

    exit_code = ExitCode.CONFIGURATION


class IncompatibleSchemaChange(StateError):
    """A table changed its key or a type so that one state table cannot hold old and new rows."""


class ConsumeError(DblakeError):
    """A subscription or an output cannot go on as it is set up."""

    exit_code = ExitCode.CONFIGURATION


class StateNotReady(ConsumeError):
    """State has not reached what a bootstrap needs; it may after the next run of ``state``."""

    exit_code = ExitCode.TRY_AGAIN


class OutputUnavailable(ConsumeError):
    """The target of an output failed for a reason that may pass."""

    exit_code = ExitCode.TRY_AGAIN


class EventRejected(ConsumeError):
    """A target can never take one event, named by its table and position; it becomes a dead letter."""

    exit_code = ExitCode.WRONG_DATA

    def __init__(self, what: str, *, table: str, position: Position, next_step: str = "") -> None:
        super().__init__(what, next_step=next_step)
        self.table, self.position = table, position


class ChecksFailed(DblakeError):
    """A data quality check failed; a retry without a change of the data fails again."""

    exit_code = ExitCode.WRONG_DATA


class CopyDiffers(DblakeError):
    """A verification found rows of state that differ from the source; they do until they are dumped again."""

    exit_code = ExitCode.WRONG_DATA
